"""Runs a program on the GPU that is here, by way of torch: arrays with the strides they have on the
host, but for negative ones, which torch does not have: there an array runs the other way, with the
same numbers in the same memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilec.fuzz.program import Launch, Made
from tilec.kernel import Kernel


class Unable(Exception):
    """The arrays cannot be given to torch."""


class Differs(Exception):
    """Two launches with the same arguments have left different bits."""


MOST_BYTES = 2**34  # of an array's memory; what is larger does not run here
MOST_COPIED = 2**28  # bytes that are copied whole; of a larger memory only what the array shows
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


@functools.cache
def present() -> bool:
    """Whether torch is installed and shows a CUDA device."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


@dataclass(frozen=True)
class _Sent:
    """An array and its copy on the device: `seen` has the array's elements in their order, as
    integers of their size, `given` is what the kernel is called with."""

    made: Made
    memory: Any
    seen: Any
    given: Any

    @staticmethod
    def of(a: Made, device: str) -> _Sent:
        import torch

        if a.base.nbytes > MOST_BYTES:
            raise Unable(f"an array over {a.base.nbytes >> 20} MiB")
        bits = _BITS[a.view.itemsize]
        low = sum((e - 1) * s for e, s in zip(a.view.shape, a.strides) if s < 0 and e)
        steps = tuple(map(abs, a.strides))
        backwards = [d for d, s in enumerate(a.strides) if s < 0]
        if a.base.nbytes > MOST_COPIED:
            memory = torch.zeros(a.base.size, dtype=getattr(torch, bits), device=device)
        else:
            memory = torch.from_numpy(a.base.view(bits)).to(device, copy=True)
        whole = torch.as_strided(memory, a.view.shape, steps, a.start + low)
        if a.base.nbytes > MOST_COPIED or backwards:
            if 0 not in a.strides:  # then nothing is turned over, and all is there already
                whole.copy_(torch.from_numpy(a.view.copy().view(bits)))
        typed = memory.view(getattr(torch, a.view.dtype.name))
        given = torch.as_strided(typed, a.view.shape, steps, a.start + low)
        return _Sent(a, memory, whole, given)

    def fetch(self) -> None:
        """Bring back what the kernel has made of the array, and of the memory beside it."""
        a, bits = self.made, _BITS[self.made.view.itemsize]
        seen = self.seen.cpu().contiguous().numpy().view(a.view.dtype)
        if a.base.nbytes <= MOST_COPIED:
            a.base.view(bits)[...] = self.memory.cpu().numpy()
        if a.base.nbytes > MOST_COPIED or min(a.strides, default=1) < 0:
            a.view[...] = seen


def launch(
    kernel: Kernel,
    arguments: Mapping[str, Made | int | float],
    how: Launch,
    device: str = "cuda",
    runs: int = 1,
) -> list[list[Any]]:
    """Call the kernel `runs` times with copies of the arrays on the device, then copy all their
    memory back. Gives the arrays that each call has made. Raises Unable for an array that spans
    more than `MOST_BYTES` or has no room, Differs where a later call has left something else than
    the first."""
    import torch

    try:
        sent = {n: _Sent.of(a, device) for n, a in arguments.items() if isinstance(a, Made)}
    except torch.OutOfMemoryError as e:
        raise Unable("the arrays do not fit beside those of other processes") from e
    given = [sent[n].given if n in sent else a for n, a in arguments.items()]
    if any(s.memory.nbytes > MOST_COPIED for s in sent.values()):
        runs = 1
    before = {n: s.memory.clone() for n, s in sent.items() if runs > 1}
    made = [how.call(kernel, given)]
    after = {n: s.memory.clone() for n, s in sent.items() if runs > 1}
    for run in range(1, runs):
        for n, s in sent.items():
            s.memory.copy_(before[n])
        made.append(how.call(kernel, given))
        for n, s in sent.items():
            if not torch.equal(s.memory, after[n]):
                raise Differs(f"{n}: run {run + 1} of {runs} has left other bits than the first")
    if device == "cuda":
        torch.cuda.synchronize()
    for s in sent.values():
        s.fetch()
    return [[_numpy(t) for t in one] for one in made]


def _numpy(made: Any) -> Any:
    """A torch tensor as an array of NumPy's type of the same name."""
    import torch

    name = str(made.dtype).removeprefix("torch.")
    kind = np.dtype(getattr(ml_dtypes, name, name))
    bits = made.cpu().contiguous().view(getattr(torch, _BITS[kind.itemsize]))
    return bits.numpy().view(kind)
