"""split_reductions: warps that hold parts of what a reduction combines meet in shared memory.

Before: LAID_OUT, a `reduce` combines fragments of any layout. After: each combines what one warp
holds. Where several warps hold the elements, each combines its own into a fragment with a dimension
of its parts, which go to shared memory; every thread reads all parts of its results:

    reduce x, m, dim=1    ->    reduce x, x_parts, dim=1, parts=4
                                copy x_parts, x_scratch: shared<4x64xf32>
                                copy x_scratch, x_all
                                reduce x_all, m, dim=0"""

from __future__ import annotations

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region
from tilec.ir.layout import Layout, row_major
from tilec.ir.ops import Alloc, Copy, Reduce
from tilec.ir.types import BufferType
from tilec.passes.utils.building import whole
from tilec.passes.utils.reductions import combined_layout, part_layout, warps_along
from tilec.target import Target


def split_reductions(func: Func, target: Target) -> Func:
    def visit(o: Reduce) -> None | list[Op]:
        held, result = o.source.type, o.dest.type
        parts = warps_along(held.laid_out, o.dim)
        if parts == 1:
            return None
        b, name = Builder(o.loc), o.source.buffer.name
        own = part_layout(held.laid_out, o.dim)
        all_ = combined_layout(result.laid_out, parts)

        def buffer(what: str, space: str, layout: Layout) -> Region:
            t = BufferType(layout.shape, o.accumulator, space, layout=layout)
            return whole(b, b.value(Alloc, t, name=f"{name}_{what}"))

        partial = buffer("parts", "fragment", own)
        scratch = buffer("scratch", "shared", row_major(own.shape))
        every = buffer("all", "fragment", all_)
        b.emit(Reduce, o.source, partial, o.dim, o.kind, propagate_nan=o.propagate_nan, parts=parts)
        b.emit(Copy, partial, scratch, engine="threads", vector=1)
        b.emit(Copy, scratch, every, engine="threads", vector=1)
        again = o.kind.removeprefix("abs")
        b.emit(Reduce, every, o.dest, 0, again, clear=o.clear, propagate_nan=o.propagate_nan)
        return b.ops

    return func.rewrite(Reduce, visit)
