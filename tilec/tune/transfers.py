"""Tiles that move between tensors and the chip: their bytes, and the cache lines they touch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilec.ir.core import Value
from tilec.ir.types import BufferType
from tilec.target import CACHE_LINE, SECTOR

# How much longer a row of a tile takes that lies in two lines, and rows of which every other begins
# inside of a sector.
SPLIT_ROW, INSIDE = 0.75, 0.65

Sizes = Mapping[str, bool | int | float]


@dataclass(frozen=True)
class Transfer:
    """A tile that moves between a tensor and the chip: elements per dimension of the tensor (one
    number where single elements are accessed), and of them those that lie in a row; along which
    dimensions of the grid the place changes; whether a pipelined loop stands before it in
    its block."""

    tensor: Value
    extents: tuple[int, ...]
    loops: tuple[int, ...]
    is_store: bool
    row: int
    along: frozenset[int]
    behind: bool

    @property
    def bits(self) -> int:
        return self.tensor.dtype.bits

    def lines(self, sizes: Sizes) -> float:
        """Bytes of the cache lines that a tile's rows touch, for each byte of the tile. Rows come
        one request for each line, two for those that straddle lines because the tensor's rows begin
        elsewhere; the most where they begin inside of sectors."""
        step = self.step(sizes)
        if step is None:
            return 1.0
        row = math.gcd(CACHE_LINE, max(1, self.extents[-1] * self.bits // 8))  # pieces are alike
        touched = 1 + SPLIT_ROW * max(0, row - step) / CACHE_LINE + INSIDE * (step < SECTOR)
        return max(1.0, touched * CACHE_LINE / row)

    def step(self, sizes: Sizes) -> int | None:
        """Where in a cache line the rows of a tile begin: at multiples of so many bytes. None of
        what is no tile of a tensor's rows."""
        buffer = self.tensor.buffer
        if len(buffer.shape) != len(self.extents) or len(self.extents) < 2:
            return None
        between = buffer.shape[-1] if buffer.strides is None else buffer.strides[-2]
        pitch = between if isinstance(between, int) else sizes.get(between)
        return CACHE_LINE if pitch is None else math.gcd(CACHE_LINE, int(pitch) * self.bits // 8)

    def clipped(self, sizes: Sizes) -> float:
        """Elements that are inside the tensor: a tile wider than it moves no more than there is."""
        known = shape_of(self.tensor.buffer, sizes)
        if len(known) != len(self.extents):
            return float(math.prod(self.extents))
        return float(math.prod(e if n is None else min(e, n) for e, n in zip(self.extents, known)))


def shape_of(t: BufferType, sizes: Sizes) -> list[int | None]:
    """The extents of a tensor, None where they are not known."""
    known = [e if isinstance(e, int) else sizes.get(e) for e in t.shape]
    return [None if n is None else int(n) for n in known]
