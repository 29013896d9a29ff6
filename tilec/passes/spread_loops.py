"""spread_loops: a loop over the rows of a fragment, around one over its columns, is one over both.

Before: TILE; rows follow one another, and no thread can tell at compile time which of its registers
a row is in:

    for i in T.serial(R):
        for j in T.Parallel(C):  x[i, j] = f(x[i, j], m[i])

After: an element of a row is for whoever holds it.

    for i, j in T.Parallel(R, C):  x[i, j] = f(x[i, j], m[i])

Only where the loop is over all of a fragment's rows, has nothing else in it, and its iterations
touch elements of their own of whatever one of them writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.ir.affine import Affine
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.ops import Alloc, For, If, Load, Parallel, Store, Yield
from tilec.ir.types import INT32
from tilec.target import Target


def spread_loops(func: Func, target: Target) -> Func:
    if not any(o.kind != "pipelined" for o in func.body.every(For)):
        return func
    facts, defs = facts_of(func), func.body.defs
    overlapping = bool(func.attrs.get("may_alias"))

    def visit(o: For) -> Op | None:
        indices = o.indices(facts.constant)
        if not o.body.statements or indices is None or o.kind == "pipelined" or o.inits:
            return None
        *scalars, inner = o.body.statements
        if not isinstance(inner, Parallel) or inner.layout is not None or inner.wanted is not None:
            return None
        if not all(s.pure for s in scalars) or (indices.start, indices.step) != (0, 1):
            return None
        index = o.body.args[0]
        accesses = [*_accesses(inner.body)]
        if index.dtype != INT32 or None in accesses or not len(indices):
            return None
        found = [a for a in accesses if a is not None]
        written = {a.buffer for a in found if isinstance(a, Store)}
        if overlapping and any(v.space == "global" for v in written):
            return None
        own = {v for x in walk(o.body) for v in x.results} | {*o.body.args, *inner.body.args}
        if not all(_apart(facts, index, [a for a in found if a.buffer is v], own) for v in written):
            return None
        if not any(_is_row(facts, index, a, len(indices)) for a in found):
            return None
        if any(_is_view(a.buffer, defs) for a in found):
            return None
        body = Block((index, *inner.body.args), (*scalars, *inner.body.ops))
        return replace(inner, extents=(len(indices), *inner.extents), body=body, loc=o.loc)

    return func.rewrite(For, visit)


def _accesses(block: Block) -> Iterator[Load | Store | None]:
    """The accesses of a body that has no other effects; None for what has."""
    for o in walk(block):
        if isinstance(o, Load | Store):
            yield o
        elif not o.pure and not isinstance(o, If | For | Yield):
            yield None


def _apart(facts: Facts, index: Value, found: list[Load | Store], own: set[Value]) -> bool:
    """Whether all these accesses of one buffer have one place for `index`, in one dimension, so
    that iterations share no element."""

    def place(o: Load | Store, dim: int) -> Affine | None:
        form = facts.form(o.indices[dim])
        rest = form.without(index)
        return rest if form.terms.get(index) == 1 and own.isdisjoint(rest.terms) else None

    for dim in range(len(found[0].indices)):
        places = [place(o, dim) for o in found]
        first = places[0]
        if first is not None and all(p is not None and (p - first).constant == 0 for p in places):
            return True
    return False


def _is_row(facts: Facts, index: Value, o: Load | Store, extent: int) -> bool:
    """Whether an access is of a fragment that has as many rows as the loop has iterations."""
    if o.buffer.space != "fragment":
        return False
    shape = o.buffer.buffer.static_shape
    return any(
        n == extent and (facts.form(v) - Affine.of(index)).constant == 0
        for n, v in zip(shape, o.indices)
    )


def _is_view(buffer: Value, defs: dict[Value, Op]) -> bool:
    """Whether another name may stand for the same on-chip memory."""
    made = defs.get(buffer)
    return made is not None and not isinstance(made, Alloc)
