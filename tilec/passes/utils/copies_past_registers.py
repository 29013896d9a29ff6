"""Copies that a thread starts by itself, past its registers (cp.async): each is a loop over
neighbours of its own, of one load and one store, whose width is found where it is lowered."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, walk
from tilec.passes.utils.several_stores import with_stores


def as_loops(func: Func) -> Block:
    """The body where a thread's copy of a single element past its registers, too, is a loop, and
    each of several in a loop has its own."""
    func = func.rewrite(ops.For, _each_alone)
    made = {r: o for o in walk(func.body) for r in o.results}
    loops = (o for o in func.body.every(ops.For) if o.kind == "vectorized")
    inside = {x for o in loops for x in o.body.ops}

    def visit(o: ops.Store) -> None | list[Op]:
        if o.engine != "cp_async" or o in inside:
            return None
        copied = [x] if (x := made.get(o.value)) else []
        if isinstance(x, ops.Select):
            copied = [y, x] if (y := made.get(x.on_true)) else []
        if not copied or not isinstance(copied[0], ops.Load):
            return None
        own: Substitution = {}
        one = tuple(x.clone(own) for x in (*copied, o, ops.Yield(loc=o.loc)))
        b = Builder(o.loc)
        lo, hi, step = (b.const(n) for n in (0, 1, 1))
        b.emit(ops.For, "vectorized", lo, hi, step, (), Block((Value(lo.type, "n"),), one))
        return b.ops

    return func.body.rewrite(ops.Store, visit)


def _each_alone(o: ops.For) -> None | list[Op]:
    """Copies past registers that stand in one loop over neighbours, which nothing orders."""
    stores = [x for x in o.body.ops if isinstance(x, ops.Store)]
    alike = all(x.engine == "cp_async" for x in stores)
    plain = all(x.pure or isinstance(x, ops.Load | ops.Store | ops.Yield) for x in o.body.ops)
    if o.kind != "vectorized" or len(stores) < 2 or not (alike and plain):
        return None
    alone = (with_stores(o, [store]) for store in stores)
    return [replace(x, body=x.body.clone({})) for x in alone]
