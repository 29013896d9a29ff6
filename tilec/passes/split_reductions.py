"""split_reductions: warps that hold parts of what a reduction combines meet in shared memory.

Before: LAID_OUT, a `reduce` combines fragments of any layout. After: each combines what one warp
holds. Where several warps hold the elements, each combines its own into a fragment with a dimension
of its parts, which go to shared memory; every thread reads all parts of its results:

    reduce x, m, dim=1    ->    reduce x, x_parts, dim=1, parts=4
                                copy x_parts, x_scratch: shared<4x64xf32>
                                copy x_scratch, x_all
                                reduce x_all, m, dim=0

Where threads have many results each, as of a sum over the rows of a wide tile, which others have
too, each combines the parts of few, and they tell one another through shared memory once more."""

from __future__ import annotations

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region
from tilec.ir.layout import Layout, row_major
from tilec.ir.ops import Alloc, Copy, Reduce
from tilec.ir.types import BufferType
from tilec.passes.utils.reductions import combined_layout, few_each, part_layout, warps_along
from tilec.target import Target


def split_reductions(func: Func, target: Target) -> Func:
    def visit(o: Reduce) -> None | list[Op]:
        held, result = o.source.type, o.dest.type
        parts = warps_along(held.laid_out, o.dim)
        if parts == 1:
            return None
        b, name = Builder(o.loc), o.source.buffer.name

        def buffer(what: str, space: str, layout: Layout) -> Region:
            t = BufferType(layout.shape, o.accumulator, space, layout=layout)
            return b.whole(b.value(Alloc, t, name=f"{name}_{what}"))

        def met(own: Region, layout: Layout) -> Region:
            """What threads have, as others are to have it."""
            scratch = buffer("scratch", "shared", row_major(own.extents))
            every = buffer("all", "fragment", layout)
            b.emit(Copy, own, scratch, engine="threads", vector=1)
            b.emit(Copy, scratch, every, engine="threads", vector=1)
            return every

        again = o.kind.removeprefix("abs")
        partial = buffer("parts", "fragment", part_layout(held.laid_out, o.dim))
        b.emit(Reduce, o.source, partial, o.dim, o.kind, propagate_nan=o.propagate_nan, parts=parts)
        few = few_each(result.laid_out, parts)
        if few is not None:
            each = met(partial, combined_layout(few, parts))
            partial = buffer("sums", "fragment", combined_layout(few, 1))
            b.emit(Reduce, each, partial, 0, again, propagate_nan=o.propagate_nan, parts=1)
            parts = 1
        every = met(partial, combined_layout(result.laid_out, parts))
        b.emit(Reduce, every, o.dest, 0, again, clear=o.clear, propagate_nan=o.propagate_nan)
        return b.ops

    return func.rewrite(Reduce, visit)
