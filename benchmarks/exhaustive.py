"""Every plan of every tile of attention, timed: how near T.auto comes to the fastest.

    python -m benchmarks.exhaustive [--only "d128 causal"] [--json results/exhaustive.json]

For each shape all plans are compiled that tilec lists for a tile, with 20 tiles, as many at a time
as there are processors, and timed alone; then the six fastest and what `T.auto` chooses, in turns.
A row's figure is the least time of these over the choice's. About ten minutes on 16 processors.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import tilec
from benchmarks.attention_calls import example
from benchmarks.gpu import CudaTimer
from benchmarks.harness import save
from benchmarks.timing import Call, Effort, Timer, hot
from tilec import CompiledKernel, CompileError
from tilec.autotuning.workers import Processes
from tilec.ir.schedule import Plan
from tilec.runtime.devices import default_target

TILES = [*itertools.product((64, 128, 192, 256), (64, 96, 112, 128, 160))]  # BM, BN
LISTED = 2000  # plans of a tile, at most
AGAIN = 6  # that are timed beside the choice
WRONG = 2e-2  # the largest difference to torch's result
ALONE = 7  # samples of a plan in the first pass, of at least so many milliseconds
SAMPLE = 0.8
TOGETHER = Effort(rounds=31, most_rounds=31)

Tile = tuple[int, int]
Made = dict[tuple[Tile, Plan], "Future[CompiledKernel | None]"]


@dataclass(frozen=True)
class Shape:
    """Attention forward in float16, the kernel of examples/attention/mha_fwd.py."""

    dim: int
    causal: bool
    batch: int
    length: int
    heads: int

    @property
    def name(self) -> str:
        mask = " causal" if self.causal else ""
        return f"d{self.dim}{mask} {self.batch}x{self.length}x{self.heads}"

    def kernel(self) -> Any:
        """A new one: a kernel takes plans that it has compiled before for others."""
        return example("mha_fwd").mha.__wrapped__(self.dim, self.dim, causal=self.causal)

    @property
    def specs(self) -> list[Any]:
        x = tilec.spec((self.batch, self.length, self.heads, self.dim), "float16")
        lse = tilec.spec((self.batch, self.heads, self.length), "float32")
        return [x, x, x, tilec.spec((1,), "float16"), x, lse]

    def tensors(self, device: str) -> tuple[list[torch.Tensor], torch.Tensor]:
        """What the kernel takes, its result full of NaN, and the result of torch."""
        g = torch.Generator(device).manual_seed(self.length + self.dim)
        size = (self.batch, self.length, self.heads, self.dim)
        q, k, v = (
            torch.randn(size, generator=g, device=device, dtype=torch.float16) for _ in range(3)
        )
        lse = torch.empty((self.batch, self.heads, self.length), device=device)
        a, b, c = (x.transpose(1, 2) for x in (q, k, v))
        want = F.scaled_dot_product_attention(a, b, c, is_causal=self.causal).transpose(1, 2)
        return [q, k, v, q.new_zeros(1), torch.full_like(q, torch.nan), lse], want


SHAPES = [
    Shape(dim, causal, *size)
    for dim, causal, sizes in (
        (64, False, [(8, 1024, 16), (4, 4096, 16), (2, 1000, 32)]),
        (64, True, [(8, 1024, 16), (4, 4096, 16), (16, 256, 32)]),
        (96, False, [(4, 2048, 16)]),
        (96, True, [(4, 4096, 16)]),
        (128, False, [(8, 1024, 16), (4, 4096, 16), (2, 1000, 32)]),
        (128, True, [(8, 1024, 16), (4, 4096, 16), (16, 256, 32)]),
        (256, False, [(4, 2048, 8)]),
        (256, True, [(2, 4096, 8)]),
    )
    for size in sizes
]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="shapes whose name holds this")
    parser.add_argument("--json", default="", help="write the rows here")
    options = parser.parse_args()
    rows, timer, target = [], CudaTimer(), default_target()
    shapes = [shape for shape in SHAPES if options.only in shape.name]
    with Processes() as processes:
        for _, alike in itertools.groupby(shapes, key=lambda shape: (shape.dim, shape.causal)):
            made: Made = {}
            for shape in alike:
                rows.append(row(shape, target, timer, "cuda", processes, made))
                print(told(rows[-1]), flush=True)
                if options.json:
                    save(options.json, "exhaustive", rows)


def row(
    shape: Shape, target: str, timer: Timer, device: str, processes: Executor, made: Made
) -> dict[str, Any]:
    """What is found of a shape: `median` is what the choice reaches of the fastest. `made`: the
    plans of its kernel that are compiled, or will be, for any shape."""
    chosen = processes.submit(choice, shape, target)
    lists = {tile: processes.submit(listed, shape, tile, target) for tile in TILES}
    asked = [(tile, *found) for tile, future in lists.items() for found in future.result()]
    coming = {}
    for tile, plan, predicted in asked:
        if (tile, plan) not in made:
            made[tile, plan] = processes.submit(forced, shape, tile, plan, target)
        coming[made[tile, plan]] = tile, plan, predicted
    arrays, want = shape.tensors(device)
    timed: list[tuple[float, Batch, dict[str, Any]]] = []
    wrong = 0
    for future in as_completed(coming):
        tile, plan, predicted = coming[future]
        if (kernel := future.result()) is None:
            continue
        batch = Batch(kernel, arrays, timer)
        facts = {"tile": tile, "plan": plan.describe(), "predicted us": round(predicted, 2)}
        if difference(arrays[4], want) > WRONG:
            wrong += 1
            print(f"{shape.name} {facts}: a wrong result", file=sys.stderr)
            continue
        ms = statistics.median(timer.each([batch.call] * ALONE)) / batch.count
        timed.append((ms, batch, facts))
    timed.sort(key=lambda found: found[0])
    tile, kernel = chosen.result()
    about = {"tile": tile, "plan": kernel.plan.describe() if kernel.plan else ""}
    best = {f"{i}": (batch, facts) for i, (_, batch, facts) in enumerate(timed[:AGAIN])}
    us = together({"chosen": (Batch(kernel, arrays, timer), about), **best}, timer)
    fastest = min(us, key=lambda name: us[name])
    return {
        "what": shape.name,
        "unit": "of the fastest plan's speed",
        "median": round(us[fastest] / us["chosen"], 3),
        "listed": len(asked),
        "timed": len(timed),
        "wrong": wrong,
        "chosen": {**about, "us": us["chosen"]},
        "others": [{**facts, "us": us[name]} for name, (_, facts) in best.items()],
    }


def told(row: dict[str, Any]) -> str:
    best = min(row["others"], key=lambda other: other["us"])
    texts = [f"{x['us']:.1f} us {x['tile']} {x['plan']}" for x in (row["chosen"], best)]
    return f"{row['median']:.3f}  {row['what']}, {row['timed']} plans: {'; best '.join(texts)}"


# --- in processes -------------------------------------------------------------------------------


def listed(shape: Shape, tile: Tile, target: str) -> list[tuple[Plan, float]]:
    """The plans that tilec has for a tile, and the microseconds that it predicts."""
    bm, bn = tile
    try:
        found = shape.kernel().recommend(*shape.specs, target=target, topk=LISTED, BM=bm, BN=bn)
    except CompileError:
        return []
    return [(r.plan, r.estimate.seconds * 1e6) for r in found if r.plan and r.estimate]


def forced(shape: Shape, tile: Tile, plan: Plan, target: str) -> CompiledKernel | None:
    """The kernel with this plan; None where the passes refuse it."""
    bm, bn = tile
    try:
        made: CompiledKernel = shape.kernel().compile_with_plan(
            plan, *shape.specs, target=target, BM=bm, BN=bn
        )
    except CompileError:
        return None
    if made.plan is None or same(made.plan) != same(plan):
        raise AssertionError(f"{plan.describe()} compiled as another plan")
    return made


def same(plan: Plan) -> tuple[Any, ...]:
    """Of a plan what its code is made from (as many stages as fit, by any name)."""
    return tuple(v for k, v in vars(plan).items() if k not in ("name", "stages"))


def choice(shape: Shape, target: str) -> tuple[Tile, CompiledKernel]:
    """What `T.auto` chooses, and its tile."""
    kernel = shape.kernel()
    made = kernel.compile(*shape.specs, target=target)
    (key,) = kernel._variants
    return (key.values["BM"], key.values["BN"]), made


# --- on the device ------------------------------------------------------------------------------


class Batch:
    """So many calls of a kernel in one, which last long enough to be timed."""

    def __init__(self, kernel: Call, arrays: Sequence[torch.Tensor], timer: Timer) -> None:
        arrays[4].fill_(torch.nan)

        def once() -> Any:
            return kernel(*arrays)

        once()
        ms = timer.each([once, once])[1]
        self.count = max(1, min(50, int(SAMPLE / max(ms, 1e-6))))
        self.call = timer.batch([once] * self.count)


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest one; infinite where a number is missing."""
    return float((got.float() - want.float()).abs().nan_to_num(torch.inf).max())


def together(found: Mapping[str, tuple[Batch, Any]], timer: Timer) -> dict[str, float]:
    """Microseconds of each call, medians of rounds in which all have a turn."""
    calls = {name: batch.call for name, (batch, _) in found.items()}
    samples = hot(timer, calls, TOGETHER, random.Random(0))
    return {
        name: round(statistics.median(ms) * 1e3 / found[name][0].count, 2)
        for name, ms in samples.items()
    }


if __name__ == "__main__":
    from benchmarks import exhaustive  # whose functions processes find by its name

    exhaustive.main()
