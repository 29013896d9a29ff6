"""The operands of tile products: which part of which buffer they are, whether wgmma can read them
where they lie, and how they come to registers where it cannot.

wgmma reads 8-bit and 32-bit elements only where K is contiguous, but takes A from registers with
any history. So an A that has M contiguous goes there, element by element; and a B that has N
contiguous does as A of the product with operands swapped, C^T = B^T @ A^T. Long sums go in several
products, lest the elements on their way take too many registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from tilec.ir.analysis import Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Op, Region, Value
from tilec.ir.instr import MatrixInstruction
from tilec.ir.layout import Layout, WgmmaOperand, wgmma_operand
from tilec.ir.ops import Alloc, Copy, Gemm
from tilec.ir.types import BufferType, DType
from tilec.passes.utils.addressing import narrow, shared_offset
from tilec.passes.utils.building import part

WGMMA_K_BYTES = 32  # of one step of the instruction along K
SWIZZLE_ROWS = 8  # after which every swizzle begins anew
MAX_HELD = 64  # elements of an operand per thread that are brought to registers at once

Choose = Callable[[Gemm], tuple[str, tuple[int, int]] | None]


@dataclass(frozen=True)
class Operand:
    """A or B of a gemm: the trailing two dimensions of `region`.

    `starts`: the region's offsets that are known numbers, None for others. `divisors`: powers of
    two that divide the last two offsets. `across`: which of the two dimensions is M or N (0 or 1).
    """

    region: Region
    starts: tuple[int | None, ...]
    divisors: tuple[int, int]
    across: int

    @classmethod
    def of(cls, region: Region, across: int, facts: Facts) -> Operand:
        """The operand, as far as it is known where the region is."""
        row, column = (max(1, facts.divisor(v)) for v in region.offsets[-2:])
        return cls(region, tuple(map(facts.constant, region.offsets)), (row, column), across)

    @property
    def buffer(self) -> Value:
        return self.region.buffer

    @property
    def mn_major(self) -> bool:
        """Whether M or N is the contiguous dimension."""
        return self.across == 1

    def coordinates(self, x: Builder, mn: Value, k: Value) -> list[Value]:
        """The buffer's coordinates of an element of the operand."""
        last = (k, mn) if self.mn_major else (mn, k)
        rank = len(self.starts)
        lead = [self._start(x, d) for d in range(rank - 2)]
        ends = [x.fold("add", self._start(x, rank - 2 + i), v) for i, v in enumerate(last)]
        return [*lead, *ends]

    def origin(self, x: Builder, layout: Layout) -> Value:
        """Offset in elements of the operand's first element."""
        zero = x.const(0)
        if all(s == 0 for s in self.starts):
            return zero
        return shared_offset(x, layout, self.coordinates(x, zero, zero))

    def _start(self, x: Builder, d: int) -> Value:
        known = self.starts[d]
        return narrow(x, self.region.offsets[d]) if known is None else x.const(known)


def operand(o: Gemm, which: str, facts: Facts) -> Operand:
    """Operand "a" or "b" of a gemm."""
    region, transposed = (o.a, o.transpose_a) if which == "a" else (o.b, o.transpose_b)
    return Operand.of(region, int((which == "a") == transposed), facts)


def part_of_sum(b: Builder, o: Gemm, start: int, size: int) -> Gemm:
    """The product over `size` steps of K from `start` on; appends what its offsets need."""
    of_a, of_b = (part(b, r, dim, start, size) for r, dim in zip((o.a, o.b), o.summed))
    return replace(o, a=of_a, b=of_b)


def plane(layout: Layout) -> Layout:
    """A memory layout with its leading dimensions joined to the last but one."""
    if layout.rank == 2:
        return layout
    return layout.reshape((prod(layout.shape[:-1]), layout.shape[-1]))


def k_bytes(instr: MatrixInstruction) -> int:
    """Bytes along K of one step of B."""
    return instr.k * instr.b_dtype.bits // 8


def wgmma_reads(
    x: Operand, layout: Layout, share: int, depth: int = WGMMA_K_BYTES
) -> WgmmaOperand | None:
    """The descriptor with which warpgroups read the operand in `layout` in pieces of `share` along
    M or N and `depth` bytes along K; None if they cannot, wherever the region may start."""
    bits = x.buffer.dtype.bits
    memory = plane(layout)
    found = wgmma_operand(memory, bits, "mn" if x.mn_major else "k")
    if found is None or layout.shape[-2] % SWIZZLE_ROWS:
        return None
    row, column = x.divisors
    if depth > WGMMA_K_BYTES and not _reads_on(memory, found, x.mn_major, depth):
        return None
    step = found.mn_unit if x.mn_major else depth * 8 // bits
    if row % SWIZZLE_ROWS or column % step:
        return None
    extents = x.region.extents[-2:]
    if share != extents[x.across] and share % found.mn_unit:
        return None
    at = memory.offsets()
    lines = ((at[:, 0], extents[0], row, SWIZZLE_ROWS), (at[0], extents[1], column, step))
    return found if all(_steady(*line) for line in lines) else None


def _reads_on(memory: Layout, found: WgmmaOperand, mn_major: bool, depth: int) -> bool:
    """Whether `depth` bytes along K follow one another as those of one dense step do."""
    if not mn_major:
        return found.swizzle >= depth
    gaps = {int(y) - int(x) for x, y in pairwise(memory.offsets()[::SWIZZLE_ROWS, 0])}
    return len(gaps) <= 1


def _steady(at: Sequence[int], extent: int, divisor: int, step: int) -> bool:
    """Whether pieces `step` apart are equally far from the start at every multiple of `divisor` at
    which a region of `extent` may start."""
    first = [int(at[p]) - int(at[0]) for p in range(0, extent, step)]
    return all(
        [int(at[s + p]) - int(at[s]) for p in range(0, extent, step)] == first
        for s in range(0, len(at) - extent + 1, divisor)
    )


def through_registers(
    o: Gemm, rows: Sequence[MatrixInstruction], threads: int, choose: Choose
) -> list[Op] | None:
    """The copies and products, with their rows, that stand for `o`; None where no row can be used
    so. `choose` gives the row and the warps of a product as the instruction sees it."""
    depths = [row.k for row in rows if row.warps > 1 and "mn" not in row.majors]
    if not depths:
        return None
    for which, mn_major in (("a", o.transpose_a), ("b", not o.transpose_b)):
        x = o.a if which == "a" else o.b
        if not mn_major or x.type.space != "shared":
            continue
        dtype = rows[0].a_dtype if which == "a" else rows[0].b_dtype
        found = choose(_held(Builder(o.loc), o, which, dtype).swap_operands())
        if found is None:
            continue
        m, n, k = o.shape
        size = k
        while (m if which == "a" else n) * size > MAX_HELD * threads and size % (
            2 * depths[0]
        ) == 0:
            size //= 2
        b = Builder(o.loc)
        for start in range(0, k, size):
            piece = part_of_sum(b, o, start, size) if size < k else o
            piece = replace(piece, clear=o.clear and start == 0)
            b.ops.append(replace(_held(b, piece, which, dtype), instr=found[0], warps=found[1]))
        return b.ops
    return None


def _held(b: Builder, o: Gemm, which: str, dtype: DType) -> Gemm:
    """The product with its operand `which` in a fragment of `dtype`; what fills the fragment."""
    source = o.a if which == "a" else o.b
    shape = source.extents[-2:]
    fragment = b.value(
        Alloc, BufferType(shape, dtype, "fragment"), name=f"{source.buffer.name}_held"
    )
    held = b.whole(fragment)
    b.emit(Copy, source, held)
    return replace(o, a=held) if which == "a" else replace(o, b=held, operands_swapped=True)
