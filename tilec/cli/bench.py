"""Time a kernel on this machine: on the GPU if there is one, else on the CPU. The arrays are made
as for simulate. Status 0: timed; 2: it could not be run. (The benchmarks of tilec itself, against
other compilers, are `python -m benchmarks` in its repository.)"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.bench import Timing, do_bench
from tilec.cli.arguments import make_arguments, read_call
from tilec.cli.kernels import find_kernel
from tilec.cli.options import UsageError, add_call_options, check_writable, write_text
from tilec.ir.errors import LaunchError, TilecError
from tilec.kernel import Kernel
from tilec.runtime.devices import default_target, device_target, named_place
from tilec.support.progress import Progress
from tilec.support.rich import aligned, size_text, time_text

RANKED = 8  # configurations among which the plan that runs is looked for


@dataclass(frozen=True)
class Figures:
    """What was timed. `timing` in milliseconds, `bytes` of all arrays, `predicted` seconds (None:
    not on this target)."""

    kernel: str
    target: str
    plan: str
    timing: Timing
    bytes: int
    flops: float
    predicted: float | None

    def to_json(self) -> dict[str, Any]:
        """As plain data: seconds, bytes and operations."""
        t = self.timing
        return {
            "kernel": self.kernel,
            "device": t.device,
            "target": self.target,
            "plan": self.plan,
            "samples": len(t.samples),
            "median": t.median * 1e-3,
            "p10": t.quantile(0.1) * 1e-3,
            "p90": t.quantile(0.9) * 1e-3,
            "bytes": self.bytes,
            "flops": self.flops,
            "predicted": self.predicted,
        }

    def __str__(self) -> str:
        t, median = self.timing, self.timing.median * 1e-3
        low, high = (time_text(x * 1e-3) for x in t.spread)
        rows = [
            ("median", f"{time_text(median)} of {len(t.samples)} samples"),
            ("10 to 90 %", f"{low} to {high}"),
            ("arrays", f"{size_text(self.bytes)}, {self.bytes / median / 1e9:,.1f} GB/s"),
        ]
        if self.flops:
            rows.append(("products", f"{self.flops / median / 1e12:,.2f} TFLOP/s"))
        if self.predicted is not None:
            ratio = self.predicted / median
            rows.append(("predicted", f"{time_text(self.predicted)}, {ratio:.2f} of the median"))
        plan = f", plan {self.plan}" if self.plan else ""
        return f"{self.kernel} on {t.device} ({self.target}){plan}\n{aligned(rows)}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    add_call_options(parser, grid=True)
    add = parser.add_argument
    add("--device", help="cpu, cuda or cuda:1 (else the GPU found, else the CPU)")
    add("--seconds", type=float, default=1.0, help="time for, about (default: 1)")
    add("--json", type=Path, metavar="FILE.json", help="keep the figures")


def main(options: argparse.Namespace) -> int:
    """Time; the exit status."""
    where, words, grid = read_call(options, "bench")
    if not 0 < options.seconds <= 3600:
        raise UsageError(f"--seconds {options.seconds}: expected more than 0", hint="write 1")
    if options.json is not None:
        check_writable("--json", options.json)
    place, target = find_place(options.device)
    kernel = find_kernel(where)
    given = make_arguments(kernel, words, target)
    arrays = {
        name: on_device(value, place) if isinstance(value, np.ndarray) else value
        for name, value in given.by_name.items()
    }
    figures = time_kernel(kernel, arrays, given.keywords, grid, place, target, options.seconds)
    print(figures)
    if options.json is not None:
        write_text("--json", options.json, json.dumps(figures.to_json(), indent=2) + "\n")
    return 0


def find_place(name: str | None) -> tuple[str, str]:
    """A device ("cpu", "cuda:0") and the target that it runs. Raises UsageError."""
    kind = default_target().split(":")[0] if name is None else name
    try:
        kind, index = named_place(None, kind)
    except TilecError as e:
        raise UsageError(f"--device {name}: {e.message}", hint=e.hint) from None
    return ("cpu", "cpu") if kind == "cpu" else (f"{kind}:{index}", device_target(kind, index))


def time_kernel(
    kernel: Kernel,
    arrays: Mapping[str, Any],
    keywords: Mapping[str, Any],
    grid: tuple[int, ...] | None,
    place: str,
    target: str,
    seconds: float,
) -> Figures:
    """Time calls with these arguments. Raises LaunchError and CompileError, as a call does."""
    start: Callable[..., Any] = kernel if grid is None else kernel[grid]
    if not any(hasattr(a, "shape") for a in arrays.values()):
        keywords = {**keywords, "device": place}
    call = functools.partial(start, *arrays.values(), **keywords)
    with Progress(f"timing {kernel.name}", 1, "seconds", threaded=False) as progress:
        try:
            call()
            timing = measure(call, place, seconds, progress)
        except LaunchError as e:
            raise LaunchError(e.message, e.loc or kernel.signature.loc, e.hint) from None
    plan, flops, predicted = _predicted(kernel, arrays, keywords, target)
    total = sum(int(a.nbytes) for a in arrays.values() if hasattr(a, "nbytes"))
    return Figures(kernel.name, target, plan, timing, total, flops, predicted)


def _predicted(
    kernel: Kernel, arrays: Mapping[str, Any], keywords: Mapping[str, Any], target: str
) -> tuple[str, float, float | None]:
    """The plan that runs, the operations of its products, and the time that was predicted for it;
    nothing where no grid is known or several kernels run."""
    if kernel.is_sequence or kernel.signature.grid_from_launch:
        return "", 0.0, None
    compiled = kernel.compile(*arrays.values(), target=target, **keywords)
    ranked = kernel.recommend(*arrays.values(), target=target, topk=RANKED, **keywords)
    plan = compiled.plan
    for r in ranked:
        same = r.plan is not None and plan is not None and r.plan.name == plan.name
        if r.estimate is not None and (same or plan is None or r.plan is None):
            known = target != "cpu"
            seconds = r.estimate.seconds if known else None
            return plan.describe() if plan else "", r.estimate.flops, seconds
    return plan.describe() if plan else "", 0.0, None


# --- what is called and timed ---------------------------------------------------------------------


WARM = 25.0  # milliseconds of calls before the first that counts


def measure(call: Callable[[], Any], place: str, seconds: float, progress: Progress) -> Timing:
    """`do_bench` of `call` on `place` ("cpu", "cuda:1", "hip:0") over so many seconds, one at a
    time, to say how far it is."""
    progress.total = math.ceil(seconds)
    samples = list[float]()
    for n in range(progress.total):
        rep = 1e3 * min(1.0, seconds - n)
        samples += do_bench(call, 0.0 if n else WARM, rep, return_mode="all", device=place)
        progress.done = n + 1
        progress.tell()
    return Timing(sorted(samples)[len(samples) // 2], samples, place)


def on_device(array: NDArray[Any], place: str) -> Any:
    """The array on `place`, with its strides. Raises UsageError where that cannot be."""
    kind, _, index = place.partition(":")
    if kind == "cpu":
        return array
    torch = _torch()
    dtype = getattr(torch, array.dtype.name)
    words = np.dtype(f"i{array.itemsize}") if array.dtype.kind != "b" else np.dtype("i1")
    strides = [s // array.itemsize for s in array.strides]
    device = f"cuda:{index or 0}" if kind in ("cuda", "hip") else kind  # AMD's are cuda there
    try:
        made = torch.empty_strided(array.shape, strides, dtype=dtype, device=device)
        made.copy_(torch.from_numpy(np.ascontiguousarray(array).view(words)).view(dtype))
    except RuntimeError as e:  # there is no room, say, or no such device
        reason = str(e).split("\n")[0]
        hint = "give smaller sizes with --dim, or another --device"
        raise UsageError(f"the arrays cannot be put on {place}: {reason}", hint=hint) from e
    return made


def _torch() -> Any:
    """torch, which makes a GPU's arrays. Raises UsageError where there is none."""
    try:
        import torch
    except ImportError:
        raise UsageError(
            "a GPU's arrays are torch's, and torch is not installed",
            hint="pip install torch, or time it with --device cpu",
        ) from None
    return torch
