"""Products one of whose operands is brought to registers, because the instruction cannot read how
it is stored in shared memory.

wgmma reads 8-bit and 32-bit elements only where K is contiguous, but takes A from registers with
any history. So an A that has M contiguous goes there, element by element; and a B that has N
contiguous does as A of the turned product, C^T = B^T @ A^T. Long sums go in several products, lest
the elements on their way take too many registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilec.ir.core import Builder, Op, Region
from tilec.ir.instr import MatrixRow
from tilec.ir.ops import Alloc, Const, Copy, Gemm
from tilec.ir.types import INT32, BufferType, DType
from tilec.passes.utils.operands import part_of_sum

MAX_HELD = 64  # elements of the operand per thread that are loaded at once

Choose = Callable[[Gemm], tuple[str, tuple[int, int]] | None]


def through_registers(
    o: Gemm, rows: Sequence[MatrixRow], threads: int, choose: Choose
) -> list[Op] | None:
    """The copies and products, with their rows, that stand for `o`; None where no row can be used
    so. `choose` gives the row and the warps of a product as the instruction sees it."""
    depths = [row.k for row in rows if row.warps > 1 and "mn" not in row.majors]
    if not depths:
        return None
    for which, mn_major in (("a", o.transpose_a), ("b", not o.transpose_b)):
        x = o.a if which == "a" else o.b
        if not mn_major or x.buffer.buffer.space != "shared":
            continue
        dtype = rows[0].a_dtype if which == "a" else rows[0].b_dtype
        found = choose(_held(Builder(o.loc), o, which, dtype).turn())
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
            part = part_of_sum(b, o, start, size) if size < k else o
            part = replace(part, clear=o.clear and start == 0)
            b.ops.append(replace(_held(b, part, which, dtype), row=found[0], warps=found[1]))
        return b.ops
    return None


def _held(b: Builder, o: Gemm, which: str, dtype: DType) -> Gemm:
    """The product with its operand `which` in a fragment of `dtype`; what fills the fragment."""
    source = o.a if which == "a" else o.b
    shape = source.extents[-2:]
    fragment = b.value(
        Alloc, BufferType(shape, dtype, "fragment"), name=f"{source.buffer.name}_held"
    )
    held = Region(fragment, tuple(b.value(Const, 0, INT32) for _ in shape), shape)
    b.emit(Copy, source, held)
    return replace(o, a=held) if which == "a" else replace(o, b=held, turned=True)
