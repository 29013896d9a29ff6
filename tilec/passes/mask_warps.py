"""mask_warps: on a target whose blocks are one thread, warps that go their own ways keep step.

Before: TILE, and what a warp does together (a shuffle, a meeting) stands under conditions that hold
for some warps and not for others: `if row < M: s = warp_reduce_sum(x)`. After: it stands outside of
such conditions, and what lies between is done under the condition by itself, so that
`lower_threads` can cut there.

    if row < M:                        x = load A[row] if row < M else 0
        x = load A[row]                y = shuffle_xor x, 1
        y = shuffle_xor x, 1   ->      store B[row] = y if row < M
        store B[row] = y

A loop that some warps leave earlier runs as long as any thread has an iteration left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, fresh, walk
from tilec.ir.types import INT32, BufferType
from tilec.ir.uniformity import Level, asks_for_threads, uniformity_of
from tilec.passes.utils.building import or_zeros
from tilec.target import Target


def mask_warps(func: Func, target: Target) -> Func:
    if not asks_for_threads(func):
        return func
    level = uniformity_of(func).level
    if not any(
        _has_cut(o) and max(map(level, ops.decides(o))) > Level.BLOCK for o in walk(func.body)
    ):
        return func
    masks = _Masks(func)
    masks.b.emit(ops.Yield, tuple(masks.block(func.body, None)))
    return func.with_body(replace(func.body, ops=tuple(masks.b.ops)))


_TOGETHER = (ops.WarpSync, ops.Shuffle, ops.ShuffleXor, ops.WarpMma)


def _has_cut(o: Op) -> bool:
    return isinstance(o, ops.For | ops.While | ops.If) and any(
        isinstance(x, _TOGETHER) for x in walk(o)
    )


class _Masks:
    """Ops are copied to `b`. A mask is a bool of each thread, whether it comes there; None where
    all do."""

    def __init__(self, func: Func) -> None:
        self.level = uniformity_of(func).level
        self.b = Builder(func.loc)
        self.subst: Substitution = {}
        self.users = func.body.users
        self.masked: set[Value] = set()  # copies: without a meaning where the mask is false

    def block(self, block: Block, mask: Value | None) -> list[Value]:
        """Copy the ops of a block; what it yields."""
        run: list[Op] = []
        for o in block.statements:
            if isinstance(o, (*_TOGETHER, ops.Alloc)) or _has_cut(o):
                self.run(run, mask)
                run = []
                self.op(o, mask)
            else:
                run.append(o)
        self.run(run, mask)
        return [self.copy(v) for v in ops.yielded(block)]

    def copy(self, v: Value) -> Value:
        return self.subst.get(v, v)

    def run(self, statements: Sequence[Op], mask: Value | None) -> None:
        """Copy ops that each thread does by itself, under the mask where they are more than
        arithmetic."""
        if mask is None or all(o.pure for o in statements):
            for o in statements:
                self.b.ops.append(o.clone(self.subst))
                if not self.masked.isdisjoint(self.b.ops[-1].operands):
                    self.masked.update(self.b.ops[-1].results)
            return
        inside = {x for o in statements for x in walk(o)}
        made = [r for o in statements for r in o.results]
        needed = [r for r in made if not inside.issuperset(self.users.get(r, ()))]
        then = Builder(statements[0].loc, (o.clone(self.subst) for o in statements))
        results = or_zeros(self.b, mask, then, [self.copy(r) for r in needed])
        self.subst.update(zip(needed, results))
        self.masked.update(results)

    def op(self, o: Op, mask: Value | None) -> None:
        self.b.loc = o.loc
        if not isinstance(o, ops.For | ops.While | ops.If):
            self.b.ops.append(o.clone(self.subst))
            self.masked.update(self.b.ops[-1].results if mask is not None else ())
            return
        parts = any(
            self.level(v) > Level.BLOCK or self.copy(v) in self.masked for v in ops.decides(o)
        )
        match o:
            case ops.If() if parts:
                results = self.parted(o, mask)
            case ops.For() | ops.While() if parts or (
                isinstance(o, ops.While) and mask is not None
            ):
                results = self.stepped(o, mask)
            case _:
                results = self.whole(o, mask)
        self.subst.update(zip(o.results, results))
        if mask is not None or parts:
            self.masked.update(results)

    # --- loops and branches ---

    def whole(self, o: Op, mask: Value | None) -> Sequence[Value]:
        """A loop or branch that all threads take alike, with the mask inside."""
        outer = self.b
        changed: dict[str, Any] = {}
        for name in o.region_fields:
            region = getattr(o, name)
            args = fresh(region.args, self.subst)
            if mask is not None:
                self.masked.update(args[isinstance(o, ops.For) :])
            self.b = Builder(o.loc)
            self.b.emit(ops.Yield, tuple(self.block(region, mask)))
            changed[name] = self.b.block(args)
        self.b = outer
        bare: dict[str, Any] = {n: Block((), ()) for n in o.region_fields}
        made: Op = replace(replace(o, **bare).clone(self.subst), **changed)
        self.b.ops.append(made)
        return made.results

    def parted(self, o: ops.If, mask: Value | None) -> Sequence[Value]:
        """Both branches, one after the other."""
        cond = self.copy(o.cond)
        then = self.block(o.then, self.both(mask, cond))
        orelse = self.block(o.orelse, self.both(mask, self.b.value(ops.Unary, "not", cond)))
        return [self.b.select(cond, x, y) for x, y in zip(then, orelse)]

    def both(self, mask: Value | None, cond: Value) -> Value:
        return cond if mask is None else self.b.binary("and", mask, cond)

    def stepped(self, o: ops.For | ops.While, mask: Value | None) -> Sequence[Value]:
        """A loop as long as any thread has an iteration left, under a mask of those that have."""
        outer = self.b
        left = outer.value(ops.Alloc, BufferType((1,), INT32, "shared"), name="left")
        zero, one = outer.const(0), outer.const(1)
        first = () if isinstance(o, ops.While) else (self.copy(o.lo),)
        inits = (*first, *map(self.copy, o.inits))
        outer.emit(ops.Store, left, (zero,), zero)
        inits = (self.vote(o, inits, mask, left, zero, one), *inits)
        cond = Builder(o.loc)
        going = cond.compare("ne", cond.value(ops.Load, left, (zero,)), zero)
        cond.emit(ops.Yield, (going,))
        mine, *args = before = fresh(inits)
        self.masked.update(before)
        self.b = Builder(o.loc)
        self.subst.update(zip(o.body.args, args))
        after = self.block(o.body, mine)
        if isinstance(o, ops.For):
            after.insert(0, self.b.binary("add", args[0], self.copy(o.step)))
        after = [self.b.select(mine, new, old) for new, old in zip(after, args)]
        self.b.emit(ops.Store, left, (zero,), zero)
        self.b.emit(ops.Yield, (self.vote(o, after, mine, left, zero, one), *after))
        body, self.b = self.b.block(before), outer
        asked = fresh(inits)
        done = outer.emit(ops.While, inits, cond.block(asked), body)
        return done.results[1 + isinstance(o, ops.For) :]

    def vote(
        self,
        o: ops.For | ops.While,
        carried: Sequence[Value],
        mask: Value | None,
        left: Value,
        zero: Value,
        one: Value,
    ) -> Value:
        """Whether this thread has an iteration left; `left` is 1 where any has."""
        if isinstance(o, ops.For):
            again = self.b.compare("lt", carried[0], self.copy(o.hi))
        else:
            self.subst.update(zip(o.cond.args, carried))
            (again,) = self.block(o.cond, mask)
        mine = self.both(mask, again)
        self.b.branch(mine, [ops.Store(left, (zero,), one, loc=o.loc)])
        self.b.emit(ops.WarpSync)
        return mine
