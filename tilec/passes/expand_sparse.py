"""expand_sparse: products with a compressed A that no instruction of the target takes become dense.

Before: TILE, `gemm` ops may have metadata. After: those that still have them have a row of the
target (`sparse_instructions`). For each of the others a loop writes A out in shared memory, element
by element: what the metadata name is selected, the rest is zero; the product of that is exact, as
the compressed one is."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region, Value
from tilec.ir.element_loops import shifted
from tilec.ir.ops import Alloc, Copy, Gemm, Load, Store
from tilec.ir.sparse import PATTERN_BITS, covered, group_size
from tilec.ir.types import INT32, BufferType
from tilec.passes.select_gemm import sparse_instructions
from tilec.passes.utils.building import beside
from tilec.target import Target


def expand_sparse(func: Func, target: Target) -> Func:
    if not any(o.metadata is not None for o in func.body.every(Gemm)):
        return func

    def visit(o: Gemm) -> None | list[Op]:
        if o.metadata is None or sparse_instructions(o, target):
            return None
        b = Builder(o.loc)
        dense = _written_out(b, o, o.metadata)
        b.ops.append(
            replace(o, a=dense, metadata=None, transpose_a=False, transpose_metadata=False)
        )
        return b.ops

    return func.rewrite(Gemm, visit)


def _written_out(b: Builder, o: Gemm, metadata: Region) -> Region:
    """The dense A of `o`, (M, K) in a buffer of its own."""
    kept = o.a
    if kept.type.space == "fragment":  # whose threads hold other elements than they need
        moved = beside(b, kept, "shared", "kept")
        b.emit(Copy, kept, moved)
        kept = moved
    m, _, k = o.shape
    made = b.value(Alloc, BufferType((m, k), kept.dtype, "shared"), name=f"{o.a.buffer.name}_dense")
    size = group_size(kept.dtype.bits)
    with b.each_element((m, k)) as (inner, (row, column)):
        op = inner.binary

        def element(x: Region, along: Value, transposed: bool) -> Value:
            places = (along, row) if transposed else (row, along)
            ends = (shifted(inner, at, p) for at, p in zip(x.offsets[-2:], places))
            return inner.value(Load, x.buffer, (*x.offsets[:-2], *ends))

        per = covered(kept.dtype.bits, metadata.dtype.bits)
        word = element(metadata, op("floordiv", column, per), o.transpose_metadata)
        word = inner.cast(word, INT32)
        shift = op("mul", op("floordiv", op("mod", column, per), size), PATTERN_BITS)
        pattern = op("shr", word, shift)
        first = op("and", pattern, 3)
        place = op("mod", column, size)
        value = inner.zero(kept.dtype)
        if size == 2:
            half = op("floordiv", column, 2)
            found = [(op("shr", first, 1), element(kept, half, o.transpose_a))]
        else:
            pair = op("mul", op("floordiv", column, 4), 2)
            second = op("max", op("and", op("shr", pattern, 2), 3), 1)
            found = [
                (second, element(kept, op("add", pair, 1), o.transpose_a)),
                (first, element(kept, pair, o.transpose_a)),
            ]
        for at, own in found:
            value = inner.select(inner.compare("eq", place, at), own, value)
        inner.emit(Store, made, (row, column), value)
    return b.whole(made)
