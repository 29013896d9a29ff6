"""Teams: several sets of the user's threads in one launched block, each with blocks of its own.

One consumer scope runs its body once per team. The team number picks which blocks of the
persistent loop are its own (team w takes every so-many-th, from the w-th on), and which version of
the scratch buffers. The teams take turns: from a block's first ring loop to its last only one team
starts products, so that the tensor cores work on one team's block while the other team stores its
last one (CUTLASS calls the schedule ping-pong). A team's ring positions jump over the iterations
that the other teams take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir.core import Block, Builder, Func, Op, Substitution, Value, rewrite, walk
from tilec.ir.errors import ResourceError
from tilec.ir.ops import (
    Alloc,
    Binary,
    Cast,
    Compare,
    Copy,
    For,
    Team,
    TurnPass,
    TurnWait,
    Version,
    Yield,
)
from tilec.ir.types import INT32
from tilec.passes.addressing import Numbers, narrow
from tilec.passes.rings import Position, Ring, const, only_if
from tilec.passes.slicing import NotClonable, Slice

FIRST_TURN = 1  # named barriers below it: 0 the block's, 1 … `teams` each team's own


class Teams:
    """What `teams` teams change in a consumer scope. Raises ResourceError where the program cannot
    be shared out so."""

    def __init__(self, func: Func, count: int) -> None:
        self.func = func
        self.count = count
        self.turn = FIRST_TURN + count
        self.loop = self._persistent(func)
        self.rings = [o for o in self.loop.body.ops if isinstance(o, For) and _brings(o)]
        if len(self.rings) != sum(isinstance(o, For) and _brings(o) for o in walk(func.body)):
            raise self._refuse("its pipelined loops do not all stand at the top of a block")
        if any(isinstance(o, Copy) and o.ahead and o.agent != "tma" for o in walk(func.body)):
            raise self._refuse("not all of its pipelined copies can go by TMA")
        try:
            self.bounds = {o: self._slice(o) for o in self.rings}
        except NotClonable:
            raise self._refuse("a loop's length cannot be computed ahead of time") from None

    def _refuse(self, why: str) -> ResourceError:
        return ResourceError(
            f"{self.func.name} cannot run as {self.count} teams that take turns: {why}",
            self.func.loc,
            "leave the schedule open, or ask for cooperative consumers",
        )

    def _persistent(self, func: Func) -> For:
        for o in func.body.ops:
            if isinstance(o, For) and o.kind == "persistent":
                if o.inits:
                    raise self._refuse("its blocks hand values on to one another")
                return o
        raise self._refuse("it has no persistent loop over blocks")

    def _slice(self, loop: For) -> Slice:
        needed = Slice(self.loop.body, ())
        for v in (loop.lo, loop.hi, loop.step):
            needed.need(v)
        return needed

    # --- scratch buffers ---

    def private(self, alloc: Alloc) -> Alloc:
        """The allocation with a version for each team."""
        if alloc.type.versions != 1:
            raise self._refuse(f"{alloc.result.name} already has versions")
        t = replace(alloc.type, versions=self.count)
        return replace(alloc, type=t, results=(Value(t, alloc.result.name),))

    def own(self, b: Builder, private: dict[Value, Value], body: Block) -> Block:
        """`body` with each team's version of the buffers in `private` (before: after)."""
        if not private:
            return body
        team = b.value(Team)
        subst: Substitution = {
            old: b.value(Version, new, team, name=old.name) for old, new in private.items()
        }
        return rewrite(body, lambda _: None, subst)

    # --- the loop over blocks ---

    def share_out(
        self,
        b: Builder,
        loop: For,
        made: dict[Op, list[Op]],
        ring_of: dict[Value, Ring],
        positions: dict[Ring, Position],
    ) -> list[Op]:
        """The consumers' form of the loop over blocks. `loop` is it with its ring loops as they
        were; `made` is what each becomes, its own ops first."""
        team = b.value(Team)
        last = b.value(Compare, "eq", team, const(b, self.count - 1))
        pass_on = Builder(loop.loc)
        pass_on.emit(TurnPass, self.turn)
        only_if(b, last, pass_on.ops)
        number = team if loop.step.dtype == INT32 else b.value(Cast, team, loop.step.dtype)
        own = b.value(Binary, "add", loop.lo, b.value(Binary, "mul", number, loop.step))
        for other in range(self.count - 1):
            tile = b.value(Binary, "add", loop.lo, self._times(b, loop.step, other))
            later = b.value(Compare, "gt", team, const(b, other))
            self._jump(b, tile, later, ring_of, positions)
        stride = self._times(b, loop.step, self.count)
        body = Builder(loop.loc)
        for o in loop.body.ops[:-1]:
            body.loc = o.loc
            if self.rings and o is self.rings[0]:
                body.emit(TurnWait, self.turn)
            if o not in made:
                body.ops.append(o)
                continue
            body.ops += made[o][:1]
            if o is self.rings[-1]:
                body.emit(TurnPass, self.turn)
            body.ops += made[o][1:]
        body.loc = loop.loc
        for ahead in range(1, self.count):
            index = loop.body.args[0]
            tile = body.value(Binary, "add", index, self._times(body, loop.step, ahead))
            self._jump(body, tile, None, ring_of, positions)
        body.emit(Yield)
        return [replace(loop, lo=own, step=stride, body=Block(loop.body.args, tuple(body.ops)))]

    def _times(self, b: Builder, v: Value, factor: int) -> Value:
        n = Numbers(b, v.dtype)
        return n.op("mul", v, n.const(factor))

    def _jump(
        self,
        b: Builder,
        tile: Value,
        where: Value | None,
        ring_of: dict[Value, Ring],
        positions: dict[Ring, Position],
    ) -> None:
        """Move the positions past another team's block, if there is one and `where` holds."""
        exists = b.value(Compare, "lt", tile, self.loop.hi)
        if where is not None:
            exists = b.value(Binary, "and", exists, where)
        inner = Builder(b.loc)
        for loop in self.rings:
            subst: Substitution = {self.loop.body.args[0]: tile}
            inner.ops += self.bounds[loop].copy(self.loop.body, subst)
            trips = _trips(inner, *(subst.get(v, v) for v in (loop.lo, loop.hi, loop.step)))
            for r in _rings(loop, ring_of):
                positions[r].skip(inner, trips)
        only_if(b, exists, inner.ops)


def _brings(loop: For) -> bool:
    return any(isinstance(o, Copy) and o.agent == "tma" for o in loop.body.ops)


def _rings(loop: For, ring_of: dict[Value, Ring]) -> Sequence[Ring]:
    found = (ring_of[o.dest] for o in loop.body.ops if isinstance(o, Copy) and o.agent == "tma")
    return list(dict.fromkeys(found))


def _trips(b: Builder, lo: Value, hi: Value, step: Value) -> Value:
    """How many iterations a loop has."""
    n = Numbers(b, lo.dtype)
    up = n.op("sub", n.op("add", n.op("sub", hi, lo), step), n.const(1))
    return narrow(b, n.op("max", n.op("floordiv", up, step), n.const(0)))
