"""What a launch gives the simulator: arrays as global memory, and descriptors of tensor copies;
where an array has elements, and how its bytes are read and written."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilec.ir.types import DType
from tilec.sim.clocks import Ints
from tilec.sim.findings import element_name

TENSOR_SPACING = 40
"""Tensor number i has its first element at ((i + 1) << 40) + (1 << 39), so that offsets of either
sign show which tensor is meant."""


@dataclass(frozen=True)
class GlobalTensor:
    """A tensor parameter's array.

    `memory`: the bytes from the lowest to the highest that an element occupies, those of the
    caller's array itself; element 0 is at byte `first` of it. `shape`, `strides` in elements,
    `dtype` by tilec's name, `itemsize` in bytes. `written`: whether the kernel stores to it;
    `output`: whether the call has allocated it, so that nothing in it counts as written yet.
    `number`: among the pointer parameters. `skew`: the address modulo 16. `owner` keeps the memory
    alive. `counters`: it holds zeros before and after a launch.
    """

    name: str
    memory: NDArray[np.uint8]
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    written: bool
    output: bool
    number: int
    skew: int = 0
    owner: Any = None
    counters: bool = False

    @property
    def address(self) -> int:
        """Where its first element is in the simulator's address space."""
        return (self.number + 1 << TENSOR_SPACING) + (1 << TENSOR_SPACING - 1) + self.skew

    def addresses(self, index: Sequence[int]) -> list[int]:
        """Where an element is."""
        return [self.address + self.itemsize * sum(i * s for i, s in zip(index, self.strides))]

    def index_of(self, address: int) -> tuple[int, ...] | None:
        """The element that `address` is in, for messages; None where it is in none."""
        found, left = self._nearest(address)
        if left or any(not 0 <= i < n for i, n in zip(found, self.shape)):
            return None
        return found

    def _nearest(self, address: int) -> tuple[tuple[int, ...], int]:
        """The index before `address`, as far as strides tell, and elements from there to it."""
        back = sum((n - 1) * s for n, s in zip(self.shape, self.strides) if s < 0)
        left = (address - self.address) // self.itemsize - back
        found = [0] * len(self.shape)
        for d in sorted(range(len(self.shape)), key=lambda d: -abs(self.strides[d])):
            extent, stride = self.shape[d], self.strides[d]
            if stride and extent > 1:
                step, left = divmod(left, abs(stride))
                found[d] = step if stride > 0 else extent - 1 - step
        return tuple(found), left

    def outside(self, address: int, size: int) -> str:
        """What is said of an access of `size` bytes at `address` that is not in an element."""
        count = max(size // self.itemsize, 1)
        after = f" and {count - 1} after it" if count > 1 else ""
        found, left = self._nearest(address)
        if left:
            place = f"byte {address - self.address} from the start of {self.name}{after}"
        else:
            place = f"{element_name(self.name, found)}{after}"
        return f"{place} is not in its shape {self.shape}"


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor. `address`: of the element at the origin. `sizes` in elements and `strides`
    in bytes, innermost dimension first, strides without the innermost one; `box` in elements;
    `swizzle`: bytes of the pattern in shared memory, 0 for none."""

    tensor: GlobalTensor
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    dtype: DType


# --- boxes of tensor maps ---
#
# Which bytes of the tensor and of shared memory one copy moves.
#
# PTX ISA, sections "Tensors" and "Swizzling modes": the box is row-major in shared memory,
# innermost dimension first in all lists here; in the pattern of 32, 64 or 128 bytes, bits 4 and up
# of an address are exchanged (exclusive or) with the bits from 7 on.

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


# --- places of elements ---
#
# Where a tensor with gaps between its rows has elements, without a table of its whole span.
#
# Places are numbers of elements from the lowest one on. Strides taken by size, an element lies at a
# sum of steps; where each stride is longer than what lies within it, as in every ordinary view,
# division gives the steps back. Strides that interleave (sliding windows) are one `run` together,
# with a mask of that run. Elements are numbered without the gaps, in the order of memory, so that
# what is noted of each takes as much room as the tensor has elements.

Truths = NDArray[np.bool_]
Places = TypeVar("Places", int, Ints)


class Elements:
    """The places of a tensor of `shape` with `strides` in elements; none of its extents is 0.

    `count`: numbers that are given out, at least one an element. `gaps`: whether places between the
    lowest and the highest element are none of the tensor's.
    """

    def __init__(self, shape: Sequence[int], strides: Sequence[int]) -> None:
        steps = sorted((abs(s), n) for n, s in zip(shape, strides) if n > 1 and s)
        nested, reach = len(steps), 1
        for i in reversed(range(len(steps))):
            inner = 1 + sum(s * (n - 1) for s, n in steps[:i])
            if steps[i][0] < inner:
                break
            nested = i
        within, outer = steps[:nested], steps[nested:]
        self._mask: Truths | None = None
        if within:
            reach = 1 + sum(s * (n - 1) for s, n in within)
            mask = _mask(within, reach)
            self._mask = None if mask.all() else mask
        while outer and outer[0][0] == reach and self._mask is None:  # it goes on without a gap
            reach *= outer.pop(0)[1]
        self._run = self.count = reach
        # (stride, extent, numbers within one step), longest stride first.
        self._outer: list[tuple[int, int, int]] = []
        for stride, extent in outer:
            self._outer.insert(0, (stride, extent, self.count))
            self.count *= extent
        self.gaps = bool(self._outer) or self._mask is not None

    def numbers(self, places: Ints) -> tuple[Ints, Truths]:
        """The number of each place, and whether there is an element. Places are not negative and
        not behind the highest element."""
        left, there = places, np.ones(places.shape, np.bool_)
        found: Ints = np.zeros(places.shape, np.int64)
        for stride, extent, within in self._outer:
            step = left // stride
            left = left - step * stride
            found += step * within
            there &= step < extent
        there &= left < self._run
        if self._mask is not None:
            there &= self._mask.take(left, mode="clip")
        return np.minimum(found + left, self.count - 1), there

    def place(self, number: Places) -> Places:
        """The place that has a number, or places of several."""
        at = number * 0
        for stride, _, within in self._outer:
            step, number = number // within, number % within
            at = at + step * stride
        return at + number

    def exist(self, numbers: Ints) -> Truths:
        """Which of the numbers are elements: all, but for those in the gaps of a run."""
        if self._mask is None:
            return np.ones(numbers.shape, np.bool_)
        return self._mask.take(numbers % self._run)


def _mask(steps: Sequence[tuple[int, int]], reach: int) -> Truths:
    """By place of a run of `reach`: whether one of these strides' elements is there."""
    mask = np.zeros(reach, np.bool_)
    shape, strides = [n for _, n in steps], [s for s, _ in steps]
    np.lib.stride_tricks.as_strided(mask, shape, strides)[...] = True
    return mask


# --- bytes ---
#
# Bytes that lanes read and write at once: gathers and scatters of pieces of any size, as fast as
# their alignment allows.

Bytes = NDArray[np.uint8]

_WIDE: dict[int, Any] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),  # moved, never computed with
}


class Storage:
    """Memory seen as bytes and as units of 2, 4, 8 and 16 bytes. Ints must lie inside."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.size = len(data)
        self._views = {n: data[: len(data) // n * n].view(t) for n, t in _WIDE.items()}

    def gather(self, at: Ints, size: int) -> Bytes:
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

    def scatter(self, at: Ints, data: Bytes) -> None:
        """Write `data` (n, size) at the offsets; of pieces at one place the last stays."""
        size = data.shape[1]
        unit = _unit(at, size)
        wide = data.view(_WIDE[unit])
        if unit == size:
            self._views[unit][at // unit] = wide[:, 0]
        else:
            self._views[unit][(at // unit)[:, None] + np.arange(size // unit)] = wide

    def differs(self, at: Ints, data: Bytes) -> NDArray[np.bool_]:
        """By piece: whether the memory holds something else."""
        differs: NDArray[np.bool_] = (self.gather(at, data.shape[1]) != data).any(axis=1)
        return differs


class Restorable(Storage):
    """A storage that remembers what it held before the first write to each page of it."""

    _PAGE = 12  # bits of an offset within its page

    def __init__(self, data: Bytes) -> None:
        super().__init__(data)
        self._before: dict[int, Bytes] = {}

    def scatter(self, at: Ints, data: Bytes) -> None:
        pages = {*(at >> self._PAGE).tolist(), *(at + data.shape[1] - 1 >> self._PAGE).tolist()}
        for page in pages - self._before.keys():
            self._before[page] = self.data[page << self._PAGE : page + 1 << self._PAGE].copy()
        super().scatter(at, data)

    def restore(self) -> None:
        """Hold what it held in the beginning."""
        for page, content in self._before.items():
            start = page << self._PAGE
            self.data[start : start + len(content)] = content


def _unit(at: Ints, size: int) -> int:
    """The widest unit that divides the size and all offsets."""
    low = int(np.bitwise_or.reduce(at, initial=0)) | size | 16
    return low & -low
