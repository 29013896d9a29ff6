"""Reductions along a dimension of a fragment's view that counts through several of the fragment's:
of (64, 128) as (16, 512), whose rows are four of the fragment's. What the fragment's rows combine
to comes first and is small; the view is one of that."""

from __future__ import annotations

import math

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Op, Value
from tilec.ir.types import BufferType
from tilec.passes.utils.building import whole


def in_steps(o: ops.Reduce, root: Value) -> list[Op] | None:
    """A reduction of a view of the fragment `root` as reductions of the fragment, and of a view of
    what they give; None where it is no such reduction."""
    view, t = o.source.buffer.buffer, root.buffer
    last = view.rank - 1
    if t.space != "fragment" or t.dtype is not view.dtype or o.dim != last or o.parts != 1:
        return None
    if not o.source.is_whole:
        return None
    shape, extent = t.static_shape, view.static_shape[last]
    for kept in range(1, t.rank):
        rows, left = divmod(extent, math.prod(shape[kept:]))
        if rows and not left and shape[kept - 1] % rows == 0:
            break
    else:
        return None
    b = Builder(o.loc)
    source = whole(b, root)
    for dim in reversed(range(kept, t.rank)):
        space = "fragment" if dim > kept else "shared"  # whose rows others read
        rest = BufferType(shape[:dim], o.accumulator, space)
        made = b.value(ops.Alloc, rest, name=f"{root.name}_rows")
        b.emit(ops.Reduce, source, whole(b, made), dim, o.kind, propagate_nan=o.propagate_nan)
        source = whole(b, made)
    few = BufferType((*view.static_shape[:last], rows), o.accumulator, "shared")
    found = b.value(ops.View, source.buffer, few, name=f"{root.name}_rows")
    b.emit(ops.Reduce, whole(b, found), o.dest, last, o.kind, o.clear, o.propagate_nan)
    return b.ops
