"""private_locals: what the iterations of a loop over elements put down for themselves is theirs.

Before: TILE; `local` buffers that stand in front of loops over elements, and that each iteration
writes before it reads them: scratch. After: such a buffer stands in the loop, an iteration has one
of its own, and the loop's iterations are shared among the threads: a loop that uses variables of
the threads' is done by each of them, all of it. Short loops over the elements of such scratch are
written out, so that it lies in registers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from tilec.ir.analysis import Facts, facts_of
from tilec.ir.core import Block, Func, Op, Substitution, Value, walk, within
from tilec.ir.ops import Alloc, ElementAccess, For, Parallel
from tilec.passes.utils.building import may_be_written_out
from tilec.target import Target


def private_locals(func: Func, target: Target) -> Func:
    if target.kind == "cpu":
        return func
    found = _Scratch(func)
    inside: dict[Parallel, list[Value]] = defaultdict(list)
    for v in found.scratch:
        for p in found.loops[v]:
            inside[p].append(v)
    if not inside:
        return func
    facts = facts_of(func)
    allocs = {o.result: o for o in func.body.every(Alloc)}

    def moved(o: Alloc) -> list[Op] | None:
        return [] if o.result in found.scratch else None

    def owned(o: Parallel) -> Op | None:
        if o not in inside:
            return None
        own: Substitution = {}
        first = [allocs[v].clone(own) for v in inside[o]]
        body = o.body.rewrite(Op, lambda x: None, dict(own))
        body = body.rewrite(For, lambda x: _over_scratch(x, {*own.values()}, facts))
        return replace(o, body=Block(body.args, (*first, *body.ops)))

    return func.rewrite(Parallel, owned).rewrite(Alloc, moved)


def _over_scratch(o: For, scratch: Collection[Value], facts: Facts) -> Op | None:
    """The loop as one that is written out, if it is a short one over scratch."""
    if not may_be_written_out(o, facts.constant):
        return None
    over = (x for x in walk(o.body) if isinstance(x, ElementAccess) and x.buffer in scratch)
    along = any(o.body.args[0] in facts.form(v).terms for x in over for v in x.indices)
    return replace(o, kind="unroll") if along else None


class _Scratch:
    """The `local` buffers in front of loops over elements that are these loops' `scratch`, and the
    `loops` that use each."""

    def __init__(self, func: Func) -> None:
        self.loops: dict[Value, list[Parallel]] = defaultdict(list)
        self.facts = facts_of(func)
        self.scratch: set[Value] = set()
        for o, around in within(func.body):
            if any(isinstance(x, Parallel) for x in around):
                continue
            if isinstance(o, Alloc) and o.type.space == "local":
                self.scratch.add(o.result)
            elif isinstance(o, Parallel):
                self._loop(o)
            else:
                self.scratch.difference_update(o.operands)

    def _loop(self, p: Parallel) -> None:
        first: dict[Value, bool] = {}  # access, whether it is a write that each iteration makes
        for o, around in within(p.body):
            always = all(isinstance(x, For) and x.indices(self.facts.constant) for x in around)
            writes = isinstance(o, ElementAccess) and all(e.kind == "write" for e in o.effects())
            for v in o.operands:
                first.setdefault(v, always and writes)
        for v in self.scratch & first.keys():
            if self.loops[v] and v.buffer.size != 1:  # an element may be what another loop has left
                self.scratch.discard(v)
            self.loops[v].append(p)
        self.scratch -= {v for v, writes in first.items() if not writes}
