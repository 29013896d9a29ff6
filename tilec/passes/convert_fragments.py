"""convert_fragments: the lowering path of a copy between fragments of different layouts.

Before: `copy` ops whose two sides are fragments in different layouts (put there by
`infer_layouts` and `widen_copies`). After: a copy that renames the registers of each thread is left
as it is; one whose elements stay in their warps, where that is cheaper, has the engine "shuffle";
any other is a copy into an ordinary shared buffer and one out of it, which `plan_shared` places and
`insert_sync` orders. The dump shows the price: the bytes written and read."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op
from tilec.ir.layout import conversion, padded
from tilec.ir.ops import Alloc, Copy
from tilec.target import Target


def convert_fragments(func: Func, target: Target) -> Func:
    def visit(o: Copy) -> None | list[Op]:
        s, d = o.source.type, o.dest.type
        held = s.space == d.space == "fragment"
        if o.engine == "registers" or not held or s.layout == d.layout:
            return None
        if s.shape == d.shape:
            kind = conversion(s.layout, d.layout, min(s.dtype.bits, d.dtype.bits)).kind
            if kind in ("same", "registers"):
                return None
            if kind == "shuffle":
                return [replace(o, engine="shuffle")]
        b = Builder(o.loc)
        shape = d.static_shape
        skip = 128 // d.dtype.bits
        t = replace(d, space="shared", layout=padded(shape, shape[-1], skip))
        between = b.whole(b.value(Alloc, t, name=f"{o.dest.buffer.name}_scratch"))
        b.emit(Copy, o.source, between, engine="threads", vector=1)
        b.emit(Copy, between, o.dest, engine="threads", vector=1)
        return b.ops

    return func.rewrite(Copy, visit)
