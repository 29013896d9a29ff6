"""Arrays on the device where a command times a kernel, and how long its calls take there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.bench import Timing, do_bench
from tilec.cli.usage import UsageError
from tilec.support.progress import Progress

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
        raise UsageError(
            f"the arrays cannot be put on {place}: {reason}",
            hint="give smaller sizes with --dim, or another --device",
        ) from e
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
