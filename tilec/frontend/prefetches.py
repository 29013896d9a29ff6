"""Tiles that the author brings an iteration early are brought in the iteration that reads them.

    T.copy(A[y, 0], a)                               for k in range(n):
    for k in range(n):                                   T.copy(A[y, k * 32], a)
        T.copy(a, a_s)                       ->          T.copy(a, a_s)
        T.copy(A[y, (k + 1) * 32], a)                    T.gemm(a_s, b, acc)
        T.gemm(a_s, b, acc)

Then the copy runs ahead of its iteration as far as stages let it, by TMA, where it had
run ahead by one product's time. What went through a fragment on its way to shared memory does not.

A copy is such a one where all that reads its tile in the loop stands in front of it, where nothing
else fills the tile but a copy in front of the loop, which brings what the loop's would have brought
in the iteration before the first (`Affine` sums are equal), and where nobody reads the tile behind
the loop. It may stand under the condition that there is a next iteration. In such a loop nothing
else is stored to memory, and nothing is ordered by hand; it is one of Python's `range`, or has
stages, and is as good as one with stages in the end (`may_run_ahead`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cached_property

from tilec.frontend.statement_order import may_run_ahead
from tilec.ir import ops
from tilec.ir.affine import Affine
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Region, Value, walk
from tilec.ir.effects import effects_in


def in_their_iteration(func: Func, own: Collection[Value]) -> Func:
    """`own`: the indices of loops over Python's `range`."""
    if not own and not any(o.kind == "pipelined" for o in func.body.every(ops.For)):
        return func
    return func.with_body(_Prefetches(func, own).block(func.body))


class _Prefetches:
    def __init__(self, func: Func, own: Collection[Value]) -> None:
        self.func, self.own = func, own

    @cached_property
    def facts(self) -> Facts:
        return facts_of(self.func)

    def block(self, block: Block) -> Block:
        done: list[Op] = []
        for o in block.ops:
            if isinstance(o, ops.For) and (o.kind == "pipelined" or o.body.args[0] in self.own):
                o = self.loop(done, o)
            done.append(o.with_regions(self.block))
        same = len(done) == len(block.ops) and all(a is b for a, b in zip(done, block.ops))
        return block if same else replace(block, ops=tuple(done))

    def loop(self, before: list[Op], o: ops.For) -> ops.For:
        """The loop, with its tiles brought in their iterations; what brought the first of them is
        gone from `before`."""
        if o.inits or o.order or o.stage or not _only_reads(o.body.ops):
            return o
        gone: dict[Op, list[ops.Copy]] = {}  # with the copies in front of the loop
        for i, x in enumerate(o.body.ops):
            firsts = [self.first(before, o, i, c) for c in self.copies(o, x)]
            found = [p for p in firsts if p is not None]
            if found and len(found) == len(firsts):
                gone[x] = found
        firsts = [p for found in gone.values() for p in found]
        if not firsts:
            return o
        top, instead = Builder(o.loc), dict[Op, Op]()
        for x, found in gone.items():
            for c, p in zip(self.copies(o, x), found):
                top.loc = c.loc
                brought = replace(c, source=self.region(top, o, c, p), dest=p.dest)
                y = self.only_copy(o, c)
                if y is None:
                    top.ops.append(brought)
                else:
                    instead[y] = replace(brought, dest=y.dest)
        statements = [instead.get(x, x) for x in o.body.ops if x not in gone]
        done = replace(o, body=replace(o.body, ops=(*top.ops, *statements)))
        if not may_run_ahead(done.body):
            return o
        before[:] = [x for x in before if x not in firsts]
        return done if o.kind == "pipelined" else replace(done, kind="pipelined", num_stages=-1)

    def copies(self, o: ops.For, x: Op) -> list[ops.Copy]:
        """The copies that a statement of the loop makes in every iteration that has a next one."""
        if isinstance(x, ops.Copy):
            return [x]
        match x:
            case ops.If(then=then, orelse=orelse, types=()) if not orelse.statements:
                copies = [c for c in then.statements if isinstance(c, ops.Copy)]
                others = (c for c in then.statements if not isinstance(c, ops.Copy))
                if all(c.pure for c in others) and self._has_next(o, x.cond):
                    return copies
        return []

    def _has_next(self, o: ops.For, cond: Value) -> bool:
        """Whether a condition is that the loop has another iteration."""
        form = self.facts.form
        match self.facts.made_by(cond):
            case ops.Compare(kind="lt" | "gt" as kind, lhs=a, rhs=b):
                low, high = (a, b) if kind == "lt" else (b, a)
                following = form(o.body.args[0]) + form(o.step)
                return form(low) - form(high) == following - form(o.hi)
        return False

    def first(self, before: list[Op], o: ops.For, at: int, c: ops.Copy) -> ops.Copy | None:
        """The copy in front of a loop that has brought what statement `at` of the loop brings by
        `c` for the next iteration; None if there is none, or others see the tile."""
        v, whole = c.dest.buffer, c.dest.is_whole
        if c.source.type.space != "global" or v.space not in ("shared", "fragment") or not whole:
            return None
        uses = [i for i, x in enumerate(o.body.ops) if _touches(x, v)]
        if uses[-1] != at or len(uses) < 2 or any(_writes(o.body.ops[i], v) for i in uses[:-1]):
            return None
        places = [i for i, x in enumerate(before) if _touches(x, v)]
        p = before[places[-1]] if places else None
        if not isinstance(p, ops.Copy) or not _only_reads(before[places[-1] + 1 :]):
            return None
        if not {x for x in self.func.body.users[v] if _touches(x, v)} <= {p, *walk(o.body)}:
            return None
        alike = p.source.buffer is c.source.buffer and p.source.extents == c.source.extents
        if not alike or p.dest.buffer is not v or p.dest.extents != c.dest.extents:
            return None
        pairs = zip(c.source.offsets, p.source.offsets)
        return p if all(self.before_first(o, a) == self.facts.form(b) for a, b in pairs) else None

    def before_first(self, o: ops.For, v: Value) -> Affine:
        """What `v` would be in the iteration before the first."""
        form, index = self.facts.form(v), o.body.args[0]
        first = self.facts.form(o.lo) - self.facts.form(o.step)
        return form.without(index) + first.scaled(form.terms.get(index, 0))

    def region(self, b: Builder, o: ops.For, c: ops.Copy, p: ops.Copy) -> Region:
        """What the loop reads in an iteration of the tensor: in the first what `p` has brought."""
        index = o.body.args[0]
        number = index if self.facts.constant(o.lo) == 0 else b.binary("sub", index, o.lo)
        found = []
        for a, start in zip(c.source.offsets, p.source.offsets):
            if each := self.facts.form(a).terms.get(index, 0):
                moved = b.binary("mul", b.cast(number, start.dtype), each)
                start = moved if self.facts.constant(start) == 0 else b.binary("add", start, moved)
            found.append(start)
        return replace(p.source, offsets=tuple(found))

    def only_copy(self, o: ops.For, c: ops.Copy) -> ops.Copy | None:
        """The copy to shared memory that is all that reads what `c` brings to a fragment."""
        v = c.dest.buffer
        readers = [
            x for x in self.func.body.users[v] if isinstance(x, ops.Copy) and x.source.buffer is v
        ]
        readers = [x for x in readers if x.source.is_whole and x in o.body.ops]
        same = v.space == "fragment" and v.dtype == c.source.dtype
        only = same and len(readers) == 1 and len([x for x in o.body.ops if _touches(x, v)]) == 2
        return readers[0] if only and readers[0].dest.type.space == "shared" else None


def _touches(o: Op, v: Value) -> bool:
    return any(e.buffer is v for _, e in effects_in(o) if e.kind not in ("allocate", "describe"))


def _writes(o: Op, v: Value) -> bool:
    return any(e.writes and e.buffer is v for _, e in effects_in(o))


def _only_reads(statements: Collection[Op]) -> bool:
    """Whether nothing is stored to tensors, ordered or shown."""
    found = [e for o in statements for _, e in effects_in(o)]
    seen = any(e.is_seen or e.kind == "order" for e in found)
    return not seen and not ops.is_by_hand(Block((), tuple(statements)))
