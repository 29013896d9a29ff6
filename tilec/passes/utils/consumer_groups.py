"""Groups: several sets of the user's threads in one launched block, each with blocks of its own.

One consumer scope runs its body once per group. The iterations of the persistent loop are dealt to
the groups in turn, and each group has its stage of the scratch buffers. The groups take turns: from
a block's first ring loop to its last only one group starts products, so that the tensor cores work
on one group's block while the other group stores its last one (CUTLASS calls the schedule
ping-pong). A group's ring positions jump over the iterations that the other groups take: over as
many stages as a slice of the body says, the conditions and the lengths of its ring loops.

Where an iteration hands no value to the next, a group visits its own iterations only. Otherwise it
goes through all of them, computes what is handed on, and does the rest in its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, walk
from tilec.ir.effects import is_clonable
from tilec.ir.errors import ResourceError
from tilec.ir.loc import Loc
from tilec.passes.utils.addressing import narrow
from tilec.passes.utils.rings import Position, is_brought
from tilec.passes.utils.slicing import NotClonable, Slice

FIRST_ORDERED = 1  # named barriers below it: 0 the block's, 1 … `groups` each group's own

Made = Mapping[Op, list[Op]]  # what each ring loop becomes: what stands around it, too


def refusal(func: Func, why: str, loc: Loc | None = None) -> ResourceError:
    """The error for a program that cannot be shared out among groups, because of what is at
    `loc`."""
    return ResourceError(
        f"{func.name} cannot run as {func.attrs['consumer_groups']} groups that take turns: {why}",
        loc or func.loc,
        "leave the schedule open, or ask for cooperative consumers",
    )


def loop_over_blocks(func: Func) -> ops.For:
    """The persistent loop whose iterations the groups share. Raises ResourceError if there is
    none."""
    for o in func.body.ops:
        if isinstance(o, ops.For) and o.kind == "persistent":
            return o
    raise refusal(func, "it has no persistent loop over blocks")


class ConsumerGroups:
    """What `groups` groups change in a consumer scope. Raises ResourceError where the program
    cannot be shared out so."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.positions: Mapping[Value, Position] = {}
        self.count = int(func.attrs["consumer_groups"])
        self.ordered = FIRST_ORDERED + self.count
        self.loop = loop_over_blocks(func)
        body = self.loop.body
        self.rings = [o for o in body.every(ops.For) if _loads(o)]
        if len(self.rings) != sum(bool(_loads(o)) for o in func.body.every(ops.For)):
            raise refusal(func, "a pipelined loop stands outside of its loop over blocks")
        if any(x in self.rings for o in self.rings for x in walk(o.body)):
            raise refusal(func, "a pipelined loop stands in another one")
        ahead = [o for o in func.body.every(ops.Copy) if o.ahead]
        if any(o.engine != "tma" for o in ahead):
            raise refusal(func, "not all of its pipelined copies can go by TMA")
        if len(ahead) > sum(len(_loads(o)) for o in self.rings):
            raise refusal(func, "a copy of a pipelined loop stands under a condition")
        self.carried = Slice(body, ())
        try:
            for v in ops.yielded(body):
                self.carried.need(v)
        except NotClonable:
            why = "what its blocks hand on to one another is more than scalars made of scalars"
            raise refusal(func, why) from None
        self.rest = Block(body.args, tuple(o for o in body.ops if not self._is_shared(o)))
        try:
            self.passing = Slice(self.rest, self.rings)
        except NotClonable:
            raise refusal(func, "a loop's length cannot be computed ahead of time") from None
        if any(r in self.passing.needed for o in self.rings for r in o.results):
            raise refusal(func, "a loop's length depends on what another pipelined loop carries")

    def _is_shared(self, o: Op) -> bool:
        """Whether each group does an op of the body in every iteration: it makes nothing but what
        the next iteration is handed."""
        if not o.results or not all(r in self.carried.needed for r in o.results):
            return False
        return all(
            isinstance(x, (ops.For, ops.While, ops.If, ops.Yield))
            or is_clonable(x, self.carried.written)
            for x in walk(o)
        )

    # --- scratch buffers ---

    def private(self, alloc: ops.Alloc) -> ops.Alloc:
        """The allocation with a stage for each group."""
        if alloc.type.stages != 1:
            raise refusal(self.func, f"{alloc.result.name} already has stages")
        t = replace(alloc.type, stages=self.count)
        return replace(alloc, type=t, results=(Value(t, alloc.result.name),))

    def own(self, b: Builder, private: dict[Value, Value], body: Block) -> Block:
        """`body` with each group's stage of the buffers in `private` (before: after)."""
        if not private:
            return body
        group = b.value(ops.ConsumerGroup)
        subst: Substitution = {
            old: b.value(ops.RingStage, new, group, name=old.name) for old, new in private.items()
        }
        return body.substituted(subst)

    # --- the loop over blocks ---

    def share_out(self, b: Builder, made: Made, positions: Mapping[Value, Position]) -> ops.For:
        """The consumers' form of the loop over blocks, and at `b` what stands before it. `made` is
        what its ring loops become; `positions`, where a group stands in the ring of each buffer."""
        self.positions = positions
        group = b.value(ops.ConsumerGroup)
        with b.when(b.compare("eq", group, self.count - 1)) as pass_on:
            pass_on.emit(ops.OrderedArrive, self.ordered)
        own = self._with_turns(self.rest, made, bool(self.rings), bool(self.rings))
        if self.loop.inits:
            return self._through_all(group, own)
        return self._own_only(b, group, own)

    def _own_only(self, b: Builder, group: Value, own: Block) -> ops.For:
        """The loop over every so-many-th iteration, from the group's first one on."""
        loop = self.loop
        number = b.cast(group, loop.step.dtype)
        first = b.binary("add", loop.lo, b.binary("mul", number, loop.step))
        for other in range(self.count - 1):
            tile = b.binary("add", loop.lo, b.fold("mul", loop.step, other))
            exists = b.compare("lt", tile, loop.hi)
            later = b.compare("gt", group, other)
            exists = b.binary("and", exists, later)
            b.branch(exists, self._skipped(tile))
        stride = b.fold("mul", loop.step, self.count)
        body = Builder(loop.loc, own.statements)
        for ahead in range(1, self.count):
            index = loop.body.args[0]
            tile = body.binary("add", index, body.fold("mul", loop.step, ahead))
            exists = body.compare("lt", tile, loop.hi)
            body.branch(exists, self._skipped(tile))
        body.ops.append(own.ops[-1])
        return replace(loop, lo=first, step=stride, body=body.block(loop.body.args))

    def _through_all(self, group: Value, own: Block) -> ops.For:
        """The loop over all iterations; it carries in how many the group's next one comes."""
        loop = self.loop
        b = Builder(loop.loc)
        handed: Substitution = {}
        for o in loop.body.statements:
            if self._is_shared(o):
                b.ops += Block((), (o,)).substituted(handed).ops
            else:
                b.ops += self.carried.copy(Block((), (o,)), handed)
        until = Value(group.type, "until")
        mine = b.compare("eq", until, 0)
        others = self._skipped(loop.body.args[0])
        b.branch(mine, own.statements, others)
        sooner = b.binary("sub", until, 1)
        after = b.select(mine, b.const(self.count - 1), sooner)
        b.emit(ops.Yield, (*(handed.get(v, v) for v in ops.yielded(loop.body)), after))
        return replace(
            loop,
            inits=(*loop.inits, group),
            body=b.block((*loop.body.args, until)),
            results=(*loop.results, Value(group.type, "until")),
        )

    def _skipped(self, tile: Value) -> Sequence[Op]:
        """Ops that move the positions past iteration `tile`, which another group does."""

        def skip(o: ops.For) -> None | list[Op]:
            if not (loads := _loads(o)):
                return None
            b = Builder(o.loc)
            trips = _trips(b, o.lo, o.hi, o.step)
            for at in dict.fromkeys(self.positions[x.dest.buffer] for x in loads):
                at.skip(b, trips)
            return b.ops

        index = self.loop.body.args[0]
        copied = self.passing.copy(self.rest, {} if tile is index else {index: tile})
        return Block((), tuple(copied)).rewrite(ops.For, skip).ops

    # --- turns ---

    def _with_turns(self, block: Block, made: Made, wait: bool, give: bool) -> Block:
        """`block` with its ring loops as they are `made`. On every way through it the group waits
        for its turn before the first of them (`wait`) and gives it on when it has started the last
        one's products (`give`); on a way without any, both at once."""
        b = Builder(self.loop.loc)
        at = [i for i, o in enumerate(block.ops) if self._holds(o)]
        if not at:
            self._take(b, wait)
            self._give(b, give)
        for i, o in enumerate(block.ops):
            b.loc = o.loc
            if i not in at:
                b.ops.append(o)
                continue
            first, last = wait and i == at[0], give and i == at[-1]
            if o in made:
                self._take(b, first)
                behind = next(n for n, x in enumerate(made[o], 1) if isinstance(x, ops.For))
                b.ops += made[o][:behind]
                self._give(b, last)
                b.ops += made[o][behind:]
            elif isinstance(o, ops.If):
                b.ops.append(self._inside(o, made, first, last))
            else:
                self._take(b, first)
                b.ops.append(self._inside(o, made, False, False))
                self._give(b, last)
        return b.block(block.args)

    def _holds(self, o: Op) -> bool:
        return o in self.rings or any(self._holds(x) for region in o.regions for x in region.ops)

    def _inside(self, o: Op, made: Made, wait: bool, give: bool) -> Op:
        return o.with_regions(lambda region: self._with_turns(region, made, wait, give))

    def _take(self, b: Builder, wanted: bool) -> None:
        if wanted:
            b.emit(ops.OrderedWait, self.ordered)

    def _give(self, b: Builder, wanted: bool) -> None:
        if wanted:
            b.emit(ops.OrderedArrive, self.ordered)


def _loads(loop: ops.For) -> list[ops.Copy]:
    """The copies of a loop's body that producer warps bring."""
    return [o for o in loop.body.ops if is_brought(o)]


def _trips(b: Builder, lo: Value, hi: Value, step: Value) -> Value:
    """How many iterations a loop has."""
    up = b.fold("sub", b.fold("add", b.fold("sub", hi, lo), step), 1)
    return narrow(b, b.fold("max", b.fold("floordiv", up, step), 0))
