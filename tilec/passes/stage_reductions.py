"""stage_reductions: what is combined lies in registers.

Before: TILE. After: TILE, and each `reduce` reads a whole fragment and writes one: tiles in shared
memory and parts of fragments are copied before and after."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Builder, Func, Op, Region, rewrite
from tilec.ir.ops import Alloc, Copy, Reduce
from tilec.ir.types import BufferType
from tilec.passes.utils.building import whole
from tilec.target import Target


def stage_reductions(func: Func, target: Target) -> Func:
    """See the module's opening."""

    def visit(o: Op) -> None | list[Op]:
        if target.kind == "cpu" or not isinstance(o, Reduce):
            return None
        if _is_fragment(o.source) and _is_fragment(o.dest):
            return None
        b = Builder(o.loc)
        source, dest = o.source, o.dest
        if not _is_fragment(source):
            source = _fragment(b, source)
            b.emit(Copy, o.source, source)
        if not _is_fragment(dest):
            dest = _fragment(b, dest)
            if not o.clear:
                b.emit(Copy, o.dest, dest)
        b.ops.append(replace(o, source=source, dest=dest))
        if dest is not o.dest:
            b.emit(Copy, dest, o.dest)
        return b.ops

    return func.with_body(rewrite(func.body, visit))


def _is_fragment(r: Region) -> bool:
    return r.buffer.buffer.space == "fragment" and r.is_whole


def _fragment(b: Builder, r: Region) -> Region:
    made = BufferType(r.extents, r.dtype, "fragment")
    return whole(b, b.value(Alloc, made, name=f"{r.buffer.name}_held"))
