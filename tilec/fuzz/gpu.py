"""Runs a program on the GPU that is here, by way of torch: arrays with the strides they have on the
host."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilec.fuzz.arrays import Made
from tilec.kernel import Kernel


class Unable(Exception):
    """The arrays cannot be given to torch."""


MOST_BYTES = 2**30  # of an array's memory; what is larger does not run here
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


@functools.cache
def present() -> bool:
    """Whether torch is installed and shows a CUDA device."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def launch(
    kernel: Kernel, arguments: Mapping[str, Made | int | float], device: str = "cuda"
) -> None:
    """Call the kernel with copies of the arrays on the device, then copy all their memory back.
    Raises Unable for arrays that span more than `MOST_BYTES`, and for negative strides, which torch
    does not have."""
    import torch

    given: list[Any] = []
    back: list[tuple[Made, Any]] = []
    for a in arguments.values():
        if not isinstance(a, Made):
            given.append(a)
            continue
        if a.base.nbytes > MOST_BYTES:
            raise Unable(f"an array over {a.base.nbytes} bytes")
        item = a.view.itemsize
        start = (a.view.__array_interface__["data"][0] - a.base.ctypes.data) // item
        strides = tuple(s // item for s in a.view.strides)
        if min(strides, default=1) < 0:
            raise Unable("torch has no negative strides")
        bits = torch.from_numpy(a.base.view(np.dtype(_BITS[item]))).to(device, copy=True)
        name = a.view.dtype.name
        typed = bits.view(getattr(torch, name))
        given.append(torch.as_strided(typed, a.view.shape, strides, start))
        back.append((a, bits))
    kernel(*given)
    if device == "cuda":
        torch.cuda.synchronize()
    for a, bits in back:
        a.base.view(np.dtype(_BITS[a.view.itemsize]))[...] = bits.cpu().numpy()
