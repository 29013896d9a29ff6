"""Bytes that lanes read and write at once: gathers and scatters of pieces of any size, as fast as
their alignment allows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_WIDE: dict[int, Any] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),  # moved, never computed with
}


class Storage:
    """Memory seen as bytes and as units of 2, 4, 8 and 16 bytes. Offsets must lie inside."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.size = len(data)
        self._views = {n: data[: len(data) // n * n].view(t) for n, t in _WIDE.items()}

    def gather(self, at: Offsets, size: int) -> Bytes:
        """The `size` bytes at each offset: (n, size), the caller's own."""
        unit = _unit(at, size)
        if unit == size:
            found = self._views[size].take(at // size)
        elif unit > 1 or size == 1:
            units = np.arange(size // unit)
            found = self._views[unit].take((at // unit)[:, None] + units)
        else:
            found = self.data.take(at[:, None] + np.arange(size))
        data: Bytes = found.view(np.uint8).reshape(len(at), size)
        return data

    def scatter(self, at: Offsets, data: Bytes) -> None:
        """Write `data` (n, size) at the offsets; of pieces at one place the last stays."""
        size = data.shape[1]
        unit = _unit(at, size)
        wide = data.view(_WIDE[unit])
        if unit == size:
            self._views[unit][at // unit] = wide[:, 0]
        else:
            self._views[unit][(at // unit)[:, None] + np.arange(size // unit)] = wide

    def differs(self, at: Offsets, data: Bytes) -> NDArray[np.bool_]:
        """By piece: whether the memory holds something else."""
        differs: NDArray[np.bool_] = (self.gather(at, data.shape[1]) != data).any(axis=1)
        return differs


class Restorable(Storage):
    """A storage that remembers what it held before the first write to each page of it."""

    _PAGE = 12  # bits of an offset within its page

    def __init__(self, data: Bytes) -> None:
        super().__init__(data)
        self._before: dict[int, Bytes] = {}

    def scatter(self, at: Offsets, data: Bytes) -> None:
        pages = {*(at >> self._PAGE).tolist(), *(at + data.shape[1] - 1 >> self._PAGE).tolist()}
        for page in pages - self._before.keys():
            self._before[page] = self.data[page << self._PAGE : page + 1 << self._PAGE].copy()
        super().scatter(at, data)

    def restore(self) -> None:
        """Hold what it held in the beginning."""
        for page, content in self._before.items():
            start = page << self._PAGE
            self.data[start : start + len(content)] = content


def _unit(at: Offsets, size: int) -> int:
    """The widest unit that divides the size and all offsets."""
    low = int(np.bitwise_or.reduce(at, initial=0)) | size | 16
    return low & -low
