"""How long a call takes, on the device that it runs on: the one place where commands read a clock.

On a GPU each call stands between two events of the stream, behind a write of as many bytes as the
L2 cache holds twice, so that it finds its arrays in memory; on the CPU between two readings of the
clock."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.cli.usage import UsageError
from tilec.support.progress import Progress

WARM = 3  # calls before the first that counts
LEAST, MOST = 5, 2000  # calls that count


@dataclass(frozen=True)
class Times:
    """Seconds of each call, in their order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def quantile(self, q: float) -> float:
        """The time that a part `q` of the calls keep within."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def measure(call: Callable[[], Any], device: str, seconds: float, progress: Progress) -> Times:
    """Times of `call` on `device` ("cpu", "cuda", "cuda:1"), over about so many seconds."""
    for _ in range(WARM - 1):
        call()
    timed = _on_cpu if device == "cpu" else _on_gpu
    one = max(timed(call, device, 1)[0], 1e-7)
    progress.total = max(LEAST, min(MOST, math.ceil(seconds / one)))
    found = list[float]()
    while len(found) < progress.total:  # a tenth at a time, to say how far it is
        count = min(math.ceil(progress.total / 10), progress.total - len(found))
        found += timed(call, device, count)
        progress.done = len(found)
        progress.tell()
    return Times(tuple(found))


def _on_cpu(call: Callable[[], Any], device: str, count: int) -> list[float]:
    found = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def _on_gpu(call: Callable[[], Any], device: str, count: int) -> list[float]:
    torch = import_torch()
    with torch.cuda.device(device):
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        flush = torch.empty(2 * cache, dtype=torch.int8, device=device)
        starts, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(count)] for _ in "ab")
        for start, end in zip(starts, ends):
            flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in zip(starts, ends)]


def import_torch() -> Any:
    """torch, which has the arrays and events of GPUs. Raises UsageError where there is none."""
    try:
        import torch
    except ImportError:
        raise UsageError(
            "a GPU's arrays are torch's, and torch is not installed",
            hint="pip install torch, or time it with --device cpu",
        ) from None
    return torch


def on_device(array: NDArray[Any], device: str) -> Any:
    """The array on `device`, with its strides."""
    if device == "cpu":
        return array
    torch = import_torch()
    kind = getattr(torch, array.dtype.name)
    words = np.dtype(f"i{array.itemsize}") if array.dtype.kind != "b" else np.dtype("i1")
    strides = [s // array.itemsize for s in array.strides]
    try:
        made = torch.empty_strided(array.shape, strides, dtype=kind, device=device)
        made.copy_(torch.from_numpy(np.ascontiguousarray(array).view(words)).view(kind))
    except RuntimeError as e:  # there is no room, say, or no such device
        reason = str(e).split("\n")[0]
        raise UsageError(
            f"the arrays cannot be put on {device}: {reason}",
            hint="give smaller sizes with --dim, or another --device",
        ) from e
    return made
