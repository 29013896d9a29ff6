"""The operands of tile products: which part of which buffer they are, and whether wgmma can read
them where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilec.ir.analysis import Facts
from tilec.ir.core import Builder, Value
from tilec.ir.layout import Layout, WgmmaOperand, wgmma_operand
from tilec.ir.ops import Binary, Const, Gemm
from tilec.passes.addressing import Numbers, narrow, shared_offset

WGMMA_K_BYTES = 32  # of one step of the instruction along K
SWIZZLE_ROWS = 8  # after which every swizzle begins anew


@dataclass(frozen=True)
class Operand:
    """A or B of a gemm: the trailing two dimensions of a region of `buffer`.

    `starts`: the region's offsets that are known numbers, None for others. `divisors`: powers of
    two that divide the last two offsets. `across`: which of the two dimensions is M or N (0 or 1).
    """

    buffer: Value
    offsets: tuple[Value, ...]
    starts: tuple[int | None, ...]
    divisors: tuple[int, int]
    extents: tuple[int, int]
    across: int

    @property
    def mn_major(self) -> bool:
        """Whether M or N is the contiguous dimension."""
        return self.across == 1

    @property
    def whole(self) -> bool:
        """Whether the region is the buffer."""
        return prod(self.extents) == prod(self.buffer.buffer.static_shape)

    def coordinates(self, x: Numbers, mn: Value, k: Value) -> list[Value]:
        """The buffer's coordinates of an element of the operand."""
        last = (k, mn) if self.mn_major else (mn, k)
        lead = [self._start(x, d) for d in range(len(self.offsets) - 2)]
        ends = [
            x.op("add", self._start(x, len(self.offsets) - 2 + i), v) for i, v in enumerate(last)
        ]
        return [*lead, *ends]

    def origin(self, x: Numbers, layout: Layout) -> Value:
        """Offset in elements of the operand's first element."""
        zero = x.const(0)
        if all(s == 0 for s in self.starts):
            return zero
        return shared_offset(x.b, layout, self.coordinates(x, zero, zero))

    def _start(self, x: Numbers, d: int) -> Value:
        known = self.starts[d]
        return narrow(x.b, self.offsets[d]) if known is None else x.const(known)


def operand(o: Gemm, which: str, facts: Facts) -> Operand:
    """Operand "a" or "b" of a gemm."""
    buffer, offsets, extents, transposed = (
        (o.a, o.a_offsets, o.a_extents, o.transpose_a)
        if which == "a"
        else (o.b, o.b_offsets, o.b_extents, o.transpose_b)
    )
    row, column = (max(1, facts.divisor(v)) for v in offsets[-2:])
    return Operand(
        buffer,
        offsets,
        tuple(facts.constant(v) for v in offsets),
        (row, column),
        (extents[-2], extents[-1]),
        int((which == "a") == transposed),
    )


def part_of_sum(b: Builder, o: Gemm, start: int, size: int) -> Gemm:
    """The product over `size` steps of K from `start` on; appends what its offsets need."""
    a_dim, b_dim = (-2 if o.transpose_a else -1), (-1 if o.transpose_b else -2)
    return replace(
        o,
        a_offsets=_moved(b, o.a_offsets, a_dim, start),
        a_extents=_cut(o.a_extents, a_dim, size),
        b_offsets=_moved(b, o.b_offsets, b_dim, start),
        b_extents=_cut(o.b_extents, b_dim, size),
    )


def _moved(b: Builder, offsets: tuple[Value, ...], dim: int, by: int) -> tuple[Value, ...]:
    if by == 0:
        return offsets
    at = len(offsets) + dim
    moved = b.value(Binary, "add", offsets[at], b.value(Const, by, offsets[at].dtype))
    return (*offsets[:at], moved, *offsets[at + 1 :])


def _cut(extents: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    at = len(extents) + dim
    return (*extents[:at], size, *extents[at + 1 :])


def plane(layout: Layout) -> Layout:
    """A memory layout with its leading dimensions joined to the last but one."""
    if layout.rank == 2:
        return layout
    return layout.reshape((prod(layout.shape[:-1]), layout.shape[-1]))


def wgmma_reads(x: Operand, layout: Layout, share: int) -> WgmmaOperand | None:
    """The descriptor with which warpgroups read the operand in `layout` in pieces of `share` along
    M or N; None if they cannot, wherever the region may start."""
    bits = x.buffer.dtype.bits
    memory = plane(layout)
    found = wgmma_operand(memory, bits, "mn" if x.mn_major else "k")
    if found is None or layout.shape[-2] % SWIZZLE_ROWS:
        return None
    row, column = x.divisors
    step = found.mn_unit if x.mn_major else WGMMA_K_BYTES * 8 // bits
    if row % SWIZZLE_ROWS or column % step:
        return None
    if share != x.extents[x.across] and share % found.mn_unit:
        return None
    at = memory.offsets()
    lines = ((at[:, 0], x.extents[0], row, SWIZZLE_ROWS), (at[0], x.extents[1], column, step))
    return found if all(_steady(*line) for line in lines) else None


def _steady(at: Sequence[int], extent: int, divisor: int, step: int) -> bool:
    """Whether pieces `step` apart are equally far from the start at every multiple of `divisor` at
    which a region of `extent` may start."""
    first = [int(at[p]) - int(at[0]) for p in range(0, extent, step)]
    return all(
        [int(at[s + p]) - int(at[s]) for p in range(0, extent, step)] == first
        for s in range(0, len(at) - extent + 1, divisor)
    )
