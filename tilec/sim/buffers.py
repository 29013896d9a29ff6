"""The user's buffers in shared memory and in registers: where they are, and what a place in them is
to the user."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir import ops
from tilec.ir.core import Block, Func, Value, walk
from tilec.ir.layout import Layout
from tilec.ir.types import MBARRIER_BYTES, DType
from tilec.sim.clocks import Ints
from tilec.sim.findings import Index, element_name

SHARED_BASE = 1024
"""The address of the first byte of shared memory, `@smem`."""

RANK_BITS = 24  # the bit from which on an address of shared memory names a block of the cluster
INSIDE_BLOCK = (1 << RANK_BITS) - 1


def at_block(address: Any, rank: Any) -> Any:
    """The address in the shared memory of the cluster's block `rank` (`mapa`)."""
    return np.int32(1 << RANK_BITS) * np.int32(rank + 1) | address


def inside(places: Ints) -> Ints:
    """The offsets of addresses in the shared memory of whatever block they name."""
    offsets: Ints = (places & INSIDE_BLOCK) - SHARED_BASE
    return offsets


@dataclass(frozen=True)
class SharedBuffer:
    """A buffer in shared memory: bytes `start` to `end` (exclusive) from the start of shared
    memory, `stages` copies of `stride` bytes. `bits` of one element, and its `dtype` (None: it is
    an mbarrier); `layout` says where in a copy each element is (None: row-major)."""

    name: str
    start: int
    end: int
    bits: int
    shape: tuple[int, ...]
    stages: int = 1
    stride: int = 0
    layout: Layout | None = None
    dtype: DType | None = None

    def addresses(self, index: Index) -> list[int]:
        """Where an element is in each copy, from the start of shared memory."""
        if self.layout is None:
            place = int(np.ravel_multi_index(index, self.shape))
        else:
            place = self.layout.offset(index)
        return [self.start + v * self.stride + place * self.bits // 8 for v in range(self.stages)]

    def index_of(self, offset: int) -> Index | None:
        """The element at byte `offset` of shared memory, led by the copy's number where there are
        several; None for padding."""
        copy, inside = divmod(offset - self.start, self.stride or self.end - self.start)
        flat = inside * 8 // self.bits
        if self.layout is not None:
            found = _elements(self.layout)
            flat = int(found[flat]) if flat < len(found) else -1
        count = int(np.prod(self.shape, dtype=np.int64))
        if not 0 <= flat < count:
            return None
        index = tuple(int(i) for i in np.unravel_index(flat, self.shape))
        return index if self.stages == 1 else (copy, *index)

    def beyond(self, offset: int) -> Index | None:
        """The index that an element outside of the buffer would have; None where what differs in
        the first index does not lie one after the other."""
        if self.stages > 1 or not (self.layout is None or _leads(self.layout)):
            return None
        first = (offset - self.start) * 8 // self.bits
        leading, rest = divmod(first, int(np.prod(self.shape[1:], dtype=np.int64)))
        rest = rest if self.layout is None else int(_elements(self.layout)[rest])
        return (leading, *(int(i) for i in np.unravel_index(rest, self.shape[1:])))

    def outside(self, offset: int, size: int) -> str:
        """What an access of `size` bytes at byte `offset` would be of this buffer, and what the
        buffer has."""
        first, count = (offset - self.start) * 8 // self.bits, max(size * 8 // self.bits, 1)
        after = f" and {count - 1} after it" if count > 1 else ""
        index = self.beyond(offset)
        if index is not None:
            what = element_name(self.name, index)
            return f"{what}{after}; {self.name} has the shape {self.shape}"
        copies = f"{self.stages} times " if self.stages > 1 else ""
        total = (self.end - self.start) * 8 // self.bits
        return (
            f"element {first}{after} of {self.name}, as it lies in memory, which has {total} "
            f"({copies}the shape {self.shape})"
        )


@functools.cache
def _elements(layout: Layout) -> NDArray[np.int64]:
    """By place in memory, the row-major number of the element there; -1 for padding."""
    flat = layout.flat("offset").astype(np.int64)
    if layout.pad is None:
        return flat
    every, skip = layout.pad
    found = np.full(layout.span(), -1, np.int64)
    at = np.arange(len(flat))
    found[at + at // every * skip] = flat
    return found


def shared_buffers(func: Func) -> list[SharedBuffer]:
    """The buffers that a LOWERED function has in shared memory, mbarriers included."""
    found = []
    for o in walk(func.body):
        if not isinstance(o, ops.Alloc) or o.type.space not in ("shared", "barrier"):
            continue
        t, stride = o.type, o.type.stage_bytes
        bits = 8 * MBARRIER_BYTES if t.space == "barrier" else t.dtype.bits
        count = t.size if t.layout is None else t.layout.span()
        own = -(-count * bits // 8)  # what is behind it, up to the next copy or buffer, is nobody's
        found.append(
            SharedBuffer(
                o.result.name,
                o.address,
                o.address + stride * (t.stages - 1) + own,
                bits,
                t.static_shape,
                t.stages,
                stride,
                t.layout,
                t.dtype if t.space == "shared" else None,
            )
        )
    return found


@functools.cache
def _leads(layout: Layout) -> bool:
    """Whether what differs in the first index lies one after the other, without padding."""
    each, found = int(np.prod(layout.shape[1:], dtype=np.int64)), _elements(layout)
    return layout.pad is None and bool((found // each == np.arange(len(found)) // each).all())


class SharedPlaces:
    """Finds the buffer of a byte. Buffers whose lives do not meet may lie over one another: the one
    that the record names is meant."""

    def __init__(self, buffers: Sequence[SharedBuffer]) -> None:
        self.buffers = tuple(buffers)
        self.bounds: dict[str, tuple[int, int]] = {}
        for b in buffers:
            start, end = self.bounds.get(b.name, (b.start, b.end))
            self.bounds[b.name] = min(start, b.start), max(end, b.end)

    def find(self, offset: int, name: str) -> tuple[str, Index | None]:
        """(buffer, element) at byte `offset`; ("", None) where there is no buffer."""
        here = [b for b in self.buffers if b.start <= offset < b.end]
        for b in sorted(here, key=lambda b: b.name != name):
            return b.name, b.index_of(offset)
        return name, None

    def beyond(self, offsets: Sequence[int], name: str) -> list[Index]:
        """The indices that elements outside of the buffer `name` would have, where they are
        known."""
        found = (b.beyond(o) for b in self.buffers if b.name == name for o in offsets)
        return [index for index in found if index is not None]

    def outside(self, offset: int, size: int, name: str, end: int) -> str:
        """What lies at `size` bytes from byte `offset` on that are not of the buffer `name` they
        were meant for; shared memory ends at byte `end`."""
        for b in self.buffers:
            if b.name == name:
                return b.outside(offset, size)
        return f"{size} bytes at byte {offset} of shared memory, which has {end}"


# --- in registers ---


@dataclass(frozen=True, slots=True)
class RegisterBuffer:
    """A fragment or local buffer and its stack slots, which hold `pack` elements each (one slot
    holds all of an array)."""

    value: Value
    slots: tuple[str, ...]
    pack: int
    is_array: bool


def first_warps(body: Block) -> dict[Value, int]:
    """The first warp of the scope that each buffer is allocated in."""
    found: dict[Value, int] = {}

    def visit(block: Block, first: int) -> None:
        for o in block.ops:
            if isinstance(o, ops.Alloc):
                found[o.result] = first
            inner = o.first_warp if isinstance(o, ops.Scope) else first
            for region in o.regions:
                visit(region, inner)

    visit(body, 0)
    return found
