"""How near the choice of a product's tiles and plan comes to the fastest of those that were timed.

    python -m benchmarks.choices                                   # no GPU
    python -m benchmarks.choices --measure [--seed 5] [--products 90] [--budget 300]

`--measure` compiles and times, beside the library, about 25 configurations of products of random
sizes, dtypes and kinds of storage, in tiles that are predicted to be fast and in others that fit
the sizes. What is stored says, without a GPU, what today's prediction makes of it: of the stored
configurations it names its favourite, whose time is compared with the least.

The stored rows are of 82 products: 68 at random, and 14 that had been among the slowest of 170
tried before. Constants have been fitted to them since (docs/decisions.md, "Tall tiles in narrow
rasterisation groups"), so other products (`--seed`) are the fairer judges of the next ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import torch

from benchmarks import kernels
from benchmarks.harness import save
from benchmarks.products import Product, cublas
from benchmarks.timing import Effort, Timer, geometric_mean, hot
from tilec import CompileError
from tilec.autotuning.workers import Processes
from tilec.ir.schedule import Plan
from tilec.runtime.devices import default_target

STORED = Path(__file__).parent / "results" / "choices.json"
# Sides that models and their users have, and some that fit nothing.
SIDES = (17, 31, 48, 64, 77, 96, 100, 128, 196, 200, 256, 257, 384, 500, 512, 640, 768, 1000, 1024,
         1152, 1280, 1536, 2000, 2048, 2304, 2560, 3000, 3072, 3584, 4096, 5000, 5120, 5632, 6144,
         7168, 8192, 10000, 11008, 12288, 13824, 14336, 18432, 28672, 32000)  # fmt: skip
KINDS = ("NT", "NT", "NT", "NN", "NN", "NN", "TN", "TT")
DTYPES = (*["float16"] * 4, *["bfloat16"] * 3, "float8_e4m3", "int8", "float32")
WORK = (3e7, 4e11)  # multiply-adds
MOST = 5e8  # elements of a tensor
TILES = (64, 96, 128, 160, 192, 256)
DEPTHS = {1: (128, 256), 2: (64, 128), 4: (32, 64)}  # by the bytes of an element
CONFIGURATIONS = 26  # of a product, at most,
OF_A_TILE = 3
WRONG = 2.1e-2  # the largest relative error
EFFORT = Effort(rounds=9, most_rounds=11, together=0.02)
SAMPLE = 0.3  # ms that a timed batch of calls lasts, about

Tile = tuple[int, int, int]
Found = list[tuple[Tile, Plan]]


def products(seed: int, count: int) -> list[Product]:
    """So many, the same for a seed."""
    r, found = random.Random(seed), list[Product]()
    while len(found) < count:
        m, n, k = (r.choice(SIDES) for _ in range(3))
        if r.random() < 0.3:
            m, n, k = (int(2 ** r.uniform(5, 13)) for _ in range(3))
        dtype, kind = r.choice(DTYPES), r.choice(KINDS)
        rows = r.choice(["dense"] * 6 + ["padded"])
        if dtype in ("float8_e4m3", "int8"):  # what the library takes
            kind, rows = "NT", "dense"
            m, n, k = (max(-(-side // 16) * 16, 32) for side in (m, n, k))
        small = max(m * k, k * n, m * n) < MOST
        if small and WORK[0] < m * n * k < WORK[1]:
            found.append(Product(m, n, k, kind, dtype, rows if dtype != "float32" else "dense"))
    return found


# --- in processes -------------------------------------------------------------------------------


def specs(p: Product) -> list[Any]:
    a, b = p.stored
    result = kernels.DTYPES[p.dtype][1]
    return [p.spec(a, p.dtype), p.spec(b, p.dtype), p.spec((p.m, p.n), result)]


def kernel(p: Product) -> Any:
    """A new one: a kernel takes plans that it has compiled before for others."""
    return kernels.product.__wrapped__(p.dtype, p.ta, p.tb)


def tiles(p: Product, multiprocessors: int = 132) -> Iterator[Tile]:
    """Tiles of usual sizes, and those that fill so many multiprocessors well."""

    def fills(sides: Sequence[int]) -> float:
        a, b = sides
        return -(-(-(-p.m // a) * -(-p.n // b)) // multiprocessors) * (a * b + 64 * (a + b))

    fine = [s for s in itertools.product(range(96, 257, 8), repeat=2) if s[0] * s[1] <= 192 * 256]
    fine = [(a, b) for a, b in fine if not (a % 64 and b % 64)]
    usual = itertools.product(TILES, repeat=2)
    first, *deeper = DEPTHS[p.itemsize]
    for a, b in dict.fromkeys((*sorted(fine, key=fills)[:6], *usual)):
        if a <= 2 * p.m + 32 and b <= 2 * p.n + 32:
            yield a, b, first
            if min(a, b) == 64:
                yield from ((a, b, depth) for depth in deeper)


def listed(p: Product, target: str) -> Found:
    """What is chosen, then what is predicted to be fastest: configurations that differ in more than
    the number of threads."""
    k, given = kernel(p), specs(p)
    known: list[tuple[float, Tile, Plan]] = []
    for bm, bn, bk in tiles(p):
        try:
            found = k.recommend(*given, target=target, topk=12, BM=bm, BN=bn, BK=bk)
        except CompileError:
            continue
        kinds = set()
        for r in found:
            if r.plan and r.estimate and (kind := same(r.plan)[:-1]) not in kinds:
                kinds.add(kind)
                known.append((r.estimate.seconds, (bm, bn, bk), r.plan))
    chosen: Found = [
        (tuple(r.constants.values()), r.plan)
        for r in k.recommend(*given, target=target, topk=4)
        if r.plan
    ]
    made: Found = []
    for tile, plan in (*chosen, *(x[1:] for x in sorted(known, key=lambda x: x[0]))):
        here = [q for t, q in made if t == tile]
        if len(here) < OF_A_TILE and all(same(plan) != same(q) for q in here):
            made.append((tile, plan))
    return made[:CONFIGURATIONS]


def forced(p: Product, tile: Tile, plan: Plan, target: str) -> Any:
    """The kernel with this plan; None where the passes refuse it."""
    bm, bn, bk = tile
    try:
        return kernel(p).compile_with_plan(plan, *specs(p), target=target, BM=bm, BN=bn, BK=bk)
    except CompileError:
        return None


def same(plan: Plan) -> tuple[Any, ...]:
    """What tells a plan from others of a tile: as many stages as fit, under any name, in
    rasterisation groups that follow from the sizes."""
    left_out = ("name", "stages", "raster_group", "threads")
    return (*(v for k, v in vars(plan).items() if k not in left_out), plan.threads)


# --- on the device ------------------------------------------------------------------------------


def measured(
    p: Product, made: Sequence[tuple[Tile, Plan, Any]], timer: Timer, device: str = "cuda"
) -> dict[str, Any]:
    """A row: microseconds of each configuration whose result is right, and of the library."""
    t = p.make(device)
    rows = torch.randperm(p.m, device=device)[:48]
    reference = p.reference(t, rows)
    other = p.empty((p.m, p.n), t["out"].dtype, device)
    calls: dict[Any, Any] = {"cublas": cublas(p).bind({**t, "out": other}, {})}
    wrong = 0
    for i, (_, _, compiled) in enumerate(made):
        if compiled is None:
            continue
        t["out"].fill_(7 if t["out"].dtype == torch.int32 else torch.nan)
        compiled(t["a"], t["b"], t["out"])
        error = (t["out"][rows].double() - reference).norm() / reference.norm()
        if not float(error) <= WRONG:
            wrong += 1
            continue
        calls[i] = lambda compiled=compiled: compiled(t["a"], t["b"], t["out"])
    alone = statistics.median(timer.each([calls["cublas"]] * 5))
    count = max(1, min(40, int(SAMPLE / max(alone, 1e-3))))
    batches = {name: timer.batch([call] * count) for name, call in calls.items()}
    samples: dict[Any, list[float]] = {**hot(timer, batches, EFFORT, random.Random(0))}
    us = {name: round(statistics.median(ms) * 1e3 / count, 2) for name, ms in samples.items()}
    configurations = [
        [tile, said(plan), us[i], compiled.resources.spilled_bytes]
        for i, (tile, plan, compiled) in enumerate(made)
        if i in us
    ]
    facts = [p.m, p.n, p.k, p.kind, p.dtype, p.rows]
    return {
        "what": p.label, "product": facts, "cublas": us["cublas"], "wrong": wrong,
        "configurations": configurations,
    }  # fmt: skip


def measure(found: Sequence[Product], budget: float, workers: Executor) -> list[dict[str, Any]]:
    from benchmarks.gpu import CudaTimer

    target, timer, end = default_target(), CudaTimer(), time.monotonic() + budget
    lists = [(p, workers.submit(listed, p, target)) for p in found]
    jobs = [
        (p, [(*c, workers.submit(forced, p, *c, target)) for c in future.result()])
        for p, future in lists
    ]
    rows = []
    for p, coming in jobs:
        if time.monotonic() > end:
            break
        rows.append(
            measured(p, [(tile, plan, made.result()) for tile, plan, made in coming], timer)
        )
        print(told(rows[-1]), flush=True)
    return rows


# --- what today's prediction makes of it ----------------------------------------------------------


def favourite(row: dict[str, Any], target: str = "cuda:sm_90a") -> tuple[float, float]:
    """Of a row's configurations the microseconds of that which is predicted to take the least,
    and of the fastest. What spills by more than a few bytes is not taken."""
    p = Product(*row["product"])
    k, given = kernel(p), specs(p)
    taken = [
        (tuple(t), plan_of(fields), us)
        for t, fields, us, spilled in row["configurations"]
        if spilled < 100
    ]
    best = (float("inf"), float("inf"))
    for tile, group in itertools.groupby(sorted(taken, key=lambda x: x[0]), key=lambda x: x[0]):
        bm, bn, bk = tile
        asked = k.described(given, target, {"BM": bm, "BN": bn, "BK": bk})
        choice = k.choices.rank(asked.key(), asked)  # without asking the passes: many
        found = choice.ranked if choice else ()
        seconds = {same(r.plan): r.estimate.seconds for r in found if r.plan and r.estimate}
        for _, plan, us in group:
            best = min(best, (seconds.get(same(plan), float("inf")), us))
    return best[1], min(us for _, _, us in taken)


def said(plan: Plan) -> dict[str, Any]:
    """What a plan says that is not usual."""
    usual = vars(Plan(""))
    return {k: v for k, v in vars(plan).items() if v != usual[k]}


def plan_of(fields: dict[str, Any]) -> Plan:
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Plan(**given)


def told(row: dict[str, Any]) -> str:
    tile, fields, us, _ = min(row["configurations"], key=lambda c: c[2])
    where = "x".join(map(str, tile))
    return f"{row['what']:38} {us:8.1f} us, {where}, {fields['name']}; cuBLAS {row['cublas']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--measure", action="store_true", help="time them again; needs a GPU")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--products", type=int, default=90)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds")
    parser.add_argument("--json", default=str(STORED))
    options = parser.parse_args()
    if options.measure:
        with Processes() as workers:
            rows = measure(products(options.seed, options.products), options.budget, workers)
        save(options.json, "choices", rows)
    rows = json.loads(Path(options.json).read_text())["rows"]
    ratios, library = [], []
    for row in rows:
        us, least = favourite(row)
        ratios.append(least / us)
        library.append(row["cublas"] / us)
        print(
            f"{least / us:.3f}  {row['what']}: {us:.1f} us, {told(row).split(None, 3)[-1]}",
            flush=True,
        )
    of_fastest, of_library = geometric_mean(ratios), geometric_mean(library)
    print(f"{of_fastest:.3f} of the fastest; {of_library:.3f} of cuBLAS's speed")


if __name__ == "__main__":
    from benchmarks import choices  # whose functions processes find by its name

    choices.main()
