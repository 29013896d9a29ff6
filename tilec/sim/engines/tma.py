"""Boxes of tensor maps: which bytes of the tensor and of shared memory one copy moves.

PTX ISA, sections "Tensors" and "Swizzling modes": the box is row-major in shared memory, innermost
dimension first in all lists here; in the pattern of 32, 64 or 128 bytes, bits 4 and up of an
address are exchanged (exclusive or) with the bits from 7 on."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.sim.machine.tensors import TensorMap

Ints = NDArray[np.int64]

PIECE = 16  # bytes that every pattern keeps together
ALIGNMENT = 128  # of a box in shared memory, in bytes


def swizzled(address: Ints, width: int) -> Ints:
    """Where the bytes at these addresses of a pattern of `width` bytes (0: none) really are."""
    if not width:
        return address
    return address ^ ((address >> 7 & width // PIECE - 1) << 4)


@functools.cache
def _pieces(bytes: int) -> Ints:
    return np.arange(0, bytes, PIECE)


@dataclass(frozen=True)
class Box:
    """A box. `begin`: of its rows, in bytes from that of the tensor's; `before`: whether it begins
    in front of the tensor along some dimension; `numbers`: the places of the rows that are inside
    of the tensor's outer dimensions among all rows of the box; `low` and `high`: which elements of
    a row are inside; `at`: the address of the first of these in each row."""

    map: TensorMap
    begin: int
    before: bool
    numbers: Ints
    low: int
    high: int
    at: Ints

    @property
    def row_bytes(self) -> int:
        return self.map.box[0] * self.map.tensor.itemsize

    @property
    def bytes(self) -> int:
        """All of the box, what is outside of the tensor included."""
        return int(np.prod(self.map.box)) * self.map.tensor.itemsize

    @property
    def inside(self) -> slice:
        """Which bytes of a row are inside of the tensor."""
        size = self.map.tensor.itemsize
        return slice(self.low * size, self.high * size)

    @property
    def spilled(self) -> int:
        """Bytes that a store writes behind each row of the tensor: it ends at a multiple of 16."""
        if self.high == self.low or self.high == self.map.box[0]:
            return 0
        return -self.map.sizes[0] * self.map.tensor.itemsize % PIECE

    def places(self, base: int) -> Ints:
        """The address in shared memory of each 16 bytes of the box."""
        return swizzled(base + _pieces(self.bytes), self.map.swizzle)


def box_at(map: TensorMap, corner: Sequence[Any]) -> Box:
    """The box of a map at the coordinates `corner`, clipped to the tensor."""
    first = [int(c) for c in corner]
    low = min(max(-first[0], 0), map.box[0])
    high = max(min(map.sizes[0] - first[0], map.box[0]), low)
    at, numbers = np.zeros(1, np.int64), np.zeros(1, np.int64)
    every = 1
    for start, size, stride, extent in zip(first[1:], map.sizes[1:], map.strides, map.box[1:]):
        steps = np.arange(max(-start, 0), max(min(size - start, extent), max(-start, 0)))
        at = ((start + steps)[:, None] * stride + at).ravel()
        numbers = (steps[:, None] * every + numbers).ravel()
        every *= extent
    if high == low:
        at, numbers = at[:0], numbers[:0]
    base = map.address + (first[0] + low) * map.tensor.itemsize
    begin = first[0] * map.tensor.itemsize
    return Box(map, begin, min(first) < 0, numbers, low, high, base + at)
