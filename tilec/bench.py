"""`tilec.bench.do_bench`: how long a call takes.

    timing = tilec.bench.do_bench(lambda: kernel(a, b, c))
    print(timing)                  # 0.1234 ms (10 % to 90 %: 0.1221 to 0.1260; 512 calls on cuda:0)
    print(2 * m * n * k / timing / 1e9, "TFLOPS")     # a Timing is a float: milliseconds

On a GPU calls are timed by the driver's events (CUDA or HIP, without torch), with the L2 cache
flushed before each; on a CPU by a monotonic clock, short calls several at a time.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tilec.ir.caller import for_users
from tilec.ir.errors import LaunchError, did_you_mean, shown
from tilec.runtime.devices import driver
from tilec.runtime.driver import DriverError
from tilec.runtime.gpu import GpuDriver
from tilec.runtime.timing import GpuTimer

_SAMPLE = 0.1  # milliseconds that one sample lasts at least on a CPU
_FEWEST, _MOST = 3, 10_000  # samples
_MODES: dict[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "min": min,
    "max": max,
}


class Timing(float):
    """Milliseconds of a call, the median unless another `return_mode` was asked for, with the
    `samples` that it comes from and the `device` ("cpu", "cuda:0") they were taken on."""

    samples: tuple[float, ...]
    device: str

    def __new__(cls, value: float, samples: Iterable[float], device: str) -> Timing:
        made = super().__new__(cls, value)
        made.samples, made.device = tuple(samples), device
        return made

    def __getnewargs__(self) -> tuple[float, tuple[float, ...], str]:  # type: ignore[override]
        return float(self), self.samples, self.device

    @property
    def median(self) -> float:
        """The middle one of the samples, in milliseconds."""
        return statistics.median(self.samples)

    @property
    def mean(self) -> float:
        """The average of the samples, in milliseconds."""
        return statistics.fmean(self.samples)

    @property
    def min(self) -> float:
        """The shortest of the samples, in milliseconds."""
        return min(self.samples)

    @property
    def max(self) -> float:
        """The longest of the samples, in milliseconds."""
        return max(self.samples)

    def quantile(self, q: float) -> float:
        """The sample below which the fraction `q` of them lies, linear between two."""
        return quantile(self.samples, q)

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and the 90th percentile."""
        return self.quantile(0.1), self.quantile(0.9)

    def __repr__(self) -> str:
        low, high = self.spread
        count = len(self.samples)
        samples = f"{count} sample{'s' * (count != 1)} on {self.device}"
        return f"{self:.4g} ms (10 % to 90 %: {low:.4g} to {high:.4g}; {samples})"

    __str__ = __repr__


def quantile(samples: Sequence[float], q: float) -> float:
    """The `q` quantile (0 to 1) of at least one sample, linear between two."""
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))


@for_users
def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Iterable[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "median",
    *,
    device: str | None = None,
    flush: bool = True,
) -> Any:
    """How long `fn()` takes, in milliseconds.

    warmup, rep    milliseconds that it is called for before, and while, it is timed.
    grad_to_none   tensors whose `.grad` is dropped before each call.
    quantiles      quantiles to return, as a list of floats in the place of a `Timing`.
    return_mode    what a `Timing` counts as: "median", "mean", "min" or "max"; "all" returns the
                   list of all samples.
    device         "cpu", "cuda", "cuda:1", "hip": without it torch's current GPU, else the first
                   one that there is a driver for, else the CPU.
    flush          whether the L2 cache of a GPU is written over before each call.

    Raises LaunchError for other arguments, DriverError where the device asked for has no driver.
    """
    _check(fn, warmup, rep, quantiles, return_mode)
    place, gpu = _place(device)
    dropped = list(grad_to_none or ())

    def before() -> None:
        for tensor in dropped:
            tensor.grad = None

    if gpu is None:
        samples = _on_cpu(fn, warmup, rep, before)
    else:
        samples = _on_gpu(GpuTimer(*gpu, flush), fn, warmup, rep, before)
    if quantiles is not None:
        return [quantile(samples, q) for q in quantiles]
    if return_mode == "all":
        return samples
    return Timing(_MODES[return_mode](samples), samples, place)


def _check(fn: object, warmup: object, rep: object, quantiles: object, mode: object) -> None:
    if not callable(fn):
        hint = "write do_bench(lambda: kernel(a, b, c))"
        raise LaunchError(f"do_bench times a function, not {shown(fn)}", hint=hint)
    for name, value in (("warmup", warmup), ("rep", rep)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:  # type: ignore[operator]
            message = f"{name} of do_bench is {shown(value)}"
            raise LaunchError(message, hint=f"write milliseconds: {name}=100")
    if quantiles is not None:
        several = isinstance(quantiles, Sequence) and not isinstance(quantiles, str)
        listed: Sequence[Any] = quantiles if several else ()  # type: ignore[assignment]
        if not several or not all(isinstance(q, int | float) and 0 <= q <= 1 for q in listed):
            message = f"quantiles of do_bench are {shown(quantiles)}"
            raise LaunchError(message, hint="write numbers from 0 to 1: quantiles=[0.5, 0.2, 0.8]")
    known = (*_MODES, "all")
    if mode not in known:
        near = did_you_mean(mode, known) if isinstance(mode, str) else ""
        message = f"return_mode of do_bench is {shown(mode)}{near}"
        raise LaunchError(message, hint=f"it may be {', '.join(known)}")


def _place(device: str | None) -> tuple[str, tuple[GpuDriver, int] | None]:
    """The device's name, and its driver and number if it is a GPU."""
    torch = sys.modules.get("torch")
    if device is None:
        if torch is not None and torch.cuda.is_available():
            device = "hip" if torch.version.hip else "cuda"
            device += f":{torch.cuda.current_device()}"
        else:
            device = next((kind for kind in ("cuda", "hip") if _has(kind)), "cpu")
    kind, _, number = str(device).partition(":")
    if kind not in ("cpu", "cuda", "hip") or not (number or "0").isdecimal():
        message = f"device of do_bench is {shown(device)}"
        raise LaunchError(message, hint='write device="cpu" or device="cuda:0"')
    if kind == "cpu":
        return "cpu", None
    if kind == "cuda" and torch is not None and torch.version.hip:
        kind = "hip"  # what torch calls AMD's GPUs
    found = driver(kind)
    assert isinstance(found, GpuDriver)
    return f"{kind}:{number or 0}", (found, int(number or 0))


def _has(kind: str) -> bool:
    try:
        driver(kind)
    except DriverError:
        return False
    return True


def _on_gpu(
    timer: GpuTimer, fn: Callable[[], Any], warmup: float, rep: float, before: Callable[[], None]
) -> list[float]:
    before()
    fn()  # what is compiled, or loaded, at the first call
    one = max(statistics.median(timer.each(fn, 5, before)), 1e-3)
    timer.each(fn, max(1, min(_MOST, round(warmup / one))), before)
    return timer.each(fn, max(_FEWEST, min(_MOST, round(rep / one))), before)


def _on_cpu(
    fn: Callable[[], Any], warmup: float, rep: float, before: Callable[[], None]
) -> list[float]:
    def sample(calls: int) -> float:
        before()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            fn()
        return (time.perf_counter_ns() - begin) * 1e-6 / calls

    one, begin = sample(1), time.perf_counter()
    while (time.perf_counter() - begin) * 1e3 < warmup:
        one = min(one, sample(1))
    calls = max(1, math.ceil(_SAMPLE / max(one, 1e-4)))
    collecting = gc.isenabled()
    gc.disable()  # a collection is nobody's time
    try:
        samples = [sample(calls) for _ in range(_FEWEST)]
        while sum(samples) * calls < rep and len(samples) < _MOST:
            samples.append(sample(calls))
    finally:
        if collecting:
            gc.enable()
    return samples
