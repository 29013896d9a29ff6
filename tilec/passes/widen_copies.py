"""widen_copies: fragments of narrow pieces meet global memory in wide ones.

Before: a copy between a fragment and global memory that threads make may access up to `vector`
elements at once, but the fragment's layout may give a thread fewer neighbours (a matrix
instruction's gives one or two). After: such a copy goes through a fragment of the nearest layout
with longer runs, of the memory's dtype; `convert_fragments` finds that shuffles lead there. A
store of 16-bit accumulators takes a quarter of the instructions so, and memory sees whole
sectors. Not what is loaded where products have roles (`split_roles`): the operands that the first
group keeps take the registers that the wide fragment would need."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op
from tilec.ir.layout import Layout, conversion, leading_run, widened
from tilec.ir.ops import Alloc, Copy
from tilec.ir.types import BufferType
from tilec.passes.utils.building import copy_whole
from tilec.target import Target


def widen_copies(func: Func, target: Target) -> Func:
    def visit(o: Copy) -> None | list[Op]:
        if o.engine != "threads":
            return None
        loads = o.dest.type.space == "fragment"
        return None if loads and func.attrs.get("roles") else _widen(o)

    return func.rewrite(Copy, visit)


def _widen(o: Copy) -> list[Op] | None:
    s, d = o.source.type, o.dest.type
    if (s.space, d.space) == ("fragment", "global"):
        side, memory = o.source, d
    elif (s.space, d.space) == ("global", "fragment"):
        side, memory = o.dest, s
    else:
        return None
    fragment = side.type
    if fragment.layout is None or not side.is_whole or memory.dtype.bits < 8:
        return None
    layout = wider(fragment.layout, o.vector, min(s.dtype.bits, d.dtype.bits))
    if layout is None:
        return None
    b = Builder(o.loc)
    t = BufferType(fragment.shape, memory.dtype, "fragment", layout=layout)
    wide = b.value(Alloc, t, name=f"{side.buffer.name}_wide")
    if side is o.source:
        copy_whole(b, side.buffer, wide)
        b.ops.append(replace(o, source=b.whole(wide)))
    else:
        b.ops.append(replace(o, dest=b.whole(wide)))
        copy_whole(b, wide, side.buffer)
    return b.ops


def wider(layout: Layout, vector: int, bits: int) -> Layout | None:
    """The layout with the longest runs up to `vector` elements along the last dimension that
    shuffles reach from a fragment's; None if none is longer than its own."""
    if layout.replicas("lane") > 1 or layout.replicas("reg") > 1:
        return None
    dim, run = leading_run(layout)
    last = layout.rank - 1
    have = run if dim == last else 1
    while vector > have:
        found = widened(layout, last, vector)
        if found is not None and conversion(layout, found, bits).kind in ("shuffle", "registers"):
            return found
        vector //= 2
    return None
