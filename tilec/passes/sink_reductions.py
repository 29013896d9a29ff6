"""sink_reductions: what the iterations of a loop contribute to a sum is reduced once, behind it.

Before: TILE. After: TILE, and a fragment that each iteration begins with zeros, adds to, and
reduces into a sum that it does not read otherwise, gathers what all iterations add:

    for k {                                 fill shares, 0
      fill shares, 0                        for k {
      parallel { shares[i, j] += x }   ->     parallel { shares[i, j] += x }
      reduce shares, sum, clear=false       }
    }                                       reduce shares, sum, clear=false

as a reducer's contributions are (`T.alloc_reducer`), whose order nobody is promised. The same for
maxima and the others. A loop with products keeps its registers for these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Substitution, Value, makers, upstream, walk
from tilec.ir.fold import Number
from tilec.ir.semantics import neutral
from tilec.ir.types import BufferType
from tilec.target import Target


def sink_reductions(func: Func, target: Target) -> Func:
    if target.kind == "cpu" or not func.body.has(ops.Reduce):
        return func
    numbers = ops.constants(func.body)

    def visit(o: ops.For) -> list[Op] | None:
        if o.kind == "persistent" or o.body.has(ops.Gemm, ops.WarpMma):
            return None
        return _Loop(o, numbers).sunk()

    return func.rewrite(ops.For, visit)


@dataclass(frozen=True)
class _Sum:
    """`first`: the allocation and the fill of the contributions. `last`: what brings them into
    `total`, combined by a `kind` of `Binary`."""

    first: list[Op]
    last: list[Op]
    total: Value
    kind: str


class _Loop:
    """A loop's statements, and the buffers that each of them touches."""

    def __init__(self, loop: ops.For, numbers: Mapping[Value, Number]) -> None:
        self.loop, self.numbers, self.makers = loop, numbers, loop.body.makers
        self.touched = {
            o: {v for v in o.uses if isinstance(v.type, BufferType)} for o in loop.body.ops
        }
        self.own = {o.result: o for o in loop.body.ops if isinstance(o, ops.Alloc)}

    def sunk(self) -> list[Op] | None:
        """The loop between what its sums begin and end with; None if it has none."""
        every = self.loop.body.ops
        sums = [s for o in every if isinstance(o, ops.Reduce) and (s := self.sum(o))]
        while (kept := [s for s in sums if self.is_only_combined(s, sums)]) != sums:
            sums = kept
        if not sums:
            return None
        first, last = [x for s in sums for x in s.first], [x for s in sums for x in s.last]
        body = Block(self.loop.body.args, tuple(x for x in every if x not in {*first, *last}))
        before, subst = self.needed(first, {*self.own})
        before += [x.with_operands(subst) for x in first]
        behind, subst = self.needed(last, {s.first[0].result for s in sums})
        behind += [x.clone(subst) for x in last]
        return [*before, replace(self.loop, body=body), *behind]

    def needed(self, moved: Sequence[Op], there: Container[Value]) -> tuple[list[Op], Substitution]:
        """Copies of what `moved` uses of the body, but for what is `there`."""
        subst: Substitution = {}
        values = [v for o in moved for v in o.uses if v not in there]
        behind = [o for o in upstream(values, self.makers) if o not in moved]
        return [o.clone(subst) for o in behind], subst

    def sum(self, o: ops.Reduce) -> _Sum | None:
        """What `o` begins to bring into a total, if it is all that the iteration contributes."""
        v, kind = o.source.buffer, o.combine
        users = self.users(v)
        fills = [x for x in users if isinstance(x, ops.Fill) and x.dest.is_whole]
        if v not in self.own or v.dtype.bits < 32 or len(fills) != 1 or o.kind.startswith("abs"):
            return None
        if users[0] is not fills[0] or users[-1] is not o:
            return None  # what is added behind the reduction does not count
        here = self.makers.get(fills[0].value)
        begun = here.value if isinstance(here, ops.Const) else self.numbers.get(fills[0].value)
        if begun != neutral(kind, v.dtype):
            return None
        if not all(_combines(x, v, kind) for x in users if x not in (o, fills[0])):
            return None
        last: list[Op] = []
        x: Op = o
        while True:
            last.append(x)
            if isinstance(x, ops.Reduce) and x.combine == kind and x.kind == o.kind:
                total, added = x.dest.buffer, not x.clear
            else:
                stores = [y for y in walk(x) if isinstance(y, ops.Store)]
                if not isinstance(x, ops.Parallel) or len(stores) != 1:
                    return None
                total = stores[0].dest
                added = _combines(x, total, kind)
            if total not in self.own:
                break
            users = [y for y in self.users(total) if y is not x]
            if added or len(users) != 1 or not isinstance(x, ops.Reduce):
                return None
            last.insert(0, self.own[total])
            x = users[0]
        args = {*self.loop.body.args}
        behind = [*upstream((v for y in last for v in y.uses), self.makers)]
        invariant = all(y.pure or y in last or y is self.own[v] for y in behind)
        used = {v for y in (*behind, *last) for v in y.uses}
        if not added or not invariant or used & args:
            return None
        return _Sum([self.own[v], fills[0]], last, total, kind)

    def users(self, v: Value) -> list[Op]:
        return [o for o in self.loop.body.ops if v in self.touched[o]]

    def is_only_combined(self, s: _Sum, sums: Sequence[_Sum]) -> bool:
        """Whether the loop touches the total of `s` in such sums alone."""
        alike = {o for x in sums if (x.total, x.kind) == (s.total, s.kind) for o in x.last}
        return alike.issuperset(self.users(s.total))


def _combines(o: Op, v: Value, kind: str) -> bool:
    """Whether `o` only combines elements of `v` with something, each in its place."""
    inside = [*walk(o)]
    made, uses = makers(inside), Counter(x for y in inside for x in y.operands)
    for x in inside:
        if v not in x.operands or (isinstance(x, ops.Load) and uses[x.result] == 1):
            continue
        if not isinstance(x, ops.Store):
            return False
        by = made.get(x.value)
        if not isinstance(by, ops.Binary) or by.kind != kind or uses[by.result] != 1:
            return False
        old = [made[y] for y in by.operands if isinstance(made.get(y), ops.Load)]
        if not any(
            y.source is v and y.indices == x.indices for y in old if isinstance(y, ops.Load)
        ):
            return False
    loads = sum(isinstance(x, ops.Load) and x.source is v for x in inside)
    return loads == sum(isinstance(x, ops.Store) and x.dest is v for x in inside)
