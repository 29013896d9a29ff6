"""What the examples share: where they run, random operands, a check against float64, and timing.

With an NVIDIA GPU and torch, operands are CUDA tensors; otherwise NumPy arrays, and the same
kernels are compiled for the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

try:
    import torch
except ImportError:  # without torch the examples run on NumPy arrays
    torch = None

ON_GPU = torch is not None and torch.cuda.is_available()
WHERE = torch.cuda.get_device_name() if ON_GPU else "cpu"

_EXTENSIONS = {"bfloat16": ml_dtypes.bfloat16, "float8_e4m3": ml_dtypes.float8_e4m3fn}
_TORCH_NAMES = {"float8_e4m3": "float8_e4m3fn"}
_ROUNDING = {
    "float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-20, "float8_e4m3fn": 2.0**-4,
    "float8_e4m3fnuz": 2.0**-4,
}  # fmt: skip


def random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Normally distributed numbers of `dtype`, on the device the examples run on."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    if ON_GPU:
        return torch.from_numpy(values).to("cuda", getattr(torch, _TORCH_NAMES.get(dtype, dtype)))
    return values.astype(_EXTENSIONS.get(dtype, dtype))


def integers(values: list[int]) -> Any:
    """int32 numbers on the device the examples run on."""
    host = np.array(values, np.int32)
    return torch.from_numpy(host).cuda() if ON_GPU else host


def empty(shape: tuple[int, ...], dtype: str) -> Any:
    """An output filled with NaN, so that an element which is never written is found."""
    return _full(shape, dtype, float("nan"))


def zeros(shape: tuple[int, ...], dtype: str) -> Any:
    """What a kernel adds to."""
    return _full(shape, dtype, 0.0)


def _full(shape: tuple[int, ...], dtype: str, value: float) -> Any:
    if ON_GPU:
        made = torch.full(shape, value, device="cuda")
        return made.to(getattr(torch, _TORCH_NAMES.get(dtype, dtype)))
    return np.full(shape, value, _EXTENSIONS.get(dtype, dtype))


def float64(array: Any) -> np.ndarray:
    """The array's values in double precision, on the host."""
    if isinstance(array, np.ndarray):
        return np.asarray(array, np.float64)
    return array.double().cpu().numpy()


def check(name: str, got: Any, want: np.ndarray) -> float:
    """The largest error, relative to the largest value of `want` (float64).

    Raises AssertionError if it is more than the rounding of `got`'s dtype explains.
    """
    values = float64(got)
    assert values.shape == want.shape, f"{name}: shape {values.shape}, expected {want.shape}"
    assert np.isfinite(values).all(), f"{name}: {(~np.isfinite(values)).sum()} elements not written"
    error = float(np.abs(values - want).max() / np.abs(want).max())
    limit = _ROUNDING[str(got.dtype).removeprefix("torch.")]
    assert error <= limit, f"{name}: relative error {error:.1e}, more than {limit:.1e}"
    return error


def compared(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int = 9,
    repeat: int = 10,
) -> tuple[float, list[float]]:
    """The seconds of one call of `ours` (events on a GPU, the clock on the CPU), and how many times
    as long `theirs` takes, in each of `rounds` that they take turns in, sorted.

    One ratio says little: the machine has better and worse moments. Each round has both within one
    moment, and the median of the rounds leaves out those in which it changed.
    """
    times, ratios = [], []
    for number in range(rounds):
        turns = (ours, theirs) if number % 2 else (theirs, ours)
        medians = {run: _median(run, repeat) for run in turns}
        times.append(medians[ours])
        ratios.append(medians[theirs] / medians[ours])
    return float(np.median(times)), sorted(ratios)


def _median(run: Callable[[], object], repeat: int) -> float:
    run()  # what ran before may still be in the caches, or have threads that wait
    return float(np.median([_once(run) for _ in range(repeat)]))


def _once(run: Callable[[], object]) -> float:
    if not ON_GPU:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
