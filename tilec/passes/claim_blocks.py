"""claim_blocks: blocks of a persistent kernel take the tiles of the grid as they come.

Before: both roles of a specialised kernel walk over `block, block + blocks, block + 2 blocks, …`,
where `block_order` has found that some tiles take longer than others (attribute `claimed`). After:
a block's first tile is the one with its number, and each further one the next that nobody has: so
the longest, which come first, end together with the shortest, and blocks that run at the same time
work on neighbours, whose operands the L2 cache holds.

    producer:  bring the tile; take = count up; wait for a free slot, slot = take + blocks, arrive
    consumers: do the tile; wait for the slot, tile = slot, free it

The producer asks when it has asked for all of a tile, stages before its readers are through with
it: if it asked before, each block would have a tile in hand that others could begin (up to 9 % of
the time, measured), and the number comes while there are stages left to read. The counter is the
launch's own and zero between launches: there are as many takes as tiles, for each block takes once
for each tile that it does, and whoever takes last makes it zero again."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Param, Value
from tilec.ir.layout import row_major
from tilec.ir.types import INT32, BufferType, ScalarType
from tilec.passes.utils.rings import Position, Ring
from tilec.target import Target

SLOTS = 2  # the producer may be one tile ahead of its readers


def claim_blocks(func: Func, target: Target) -> Func:
    scopes = [o for o in func.body.ops if isinstance(o, ops.Scope)]
    if not func.attrs.get("claimed") or len(scopes) != 2:
        return func
    return _Claims(func, target, scopes).claimed()


class _Claims:
    def __init__(self, func: Func, target: Target, scopes: list[ops.Scope]) -> None:
        self.func = func
        name = func.unused("tiles_taken")
        self.counter = Value(BufferType((1,), INT32, "global", align=4), name)
        slot = BufferType((1,), INT32, "shared", stages=SLOTS, layout=row_major((1,)))
        self.top = Builder(func.loc)
        self.slot = self.top.value(ops.Alloc, slot, name="next_tile")
        consumers = next(o for o in scopes if o.name == "consumer")
        readers = consumers.warps * target.warp_size
        self.ring = Ring("claims", (self.slot,), SLOTS, readers, 1)
        self.ring.allocate(self.top)

    def claimed(self) -> Func:
        init = Builder(self.func.loc)
        self.ring.initialise(init)

        def visit(o: Op) -> None | list[Op]:
            if isinstance(o, ops.MbarrierInitFence):
                return [*init.ops, o]
            if isinstance(o, ops.Scope):
                return [replace(o, body=self.scope(o))]
            return None

        body = self.func.body.rewrite(Op, visit)
        params = (*self.func.params, Param(self.counter, "counters", self.counter.name, 4))
        return replace(self.func, params=params, body=Block((), (*self.top.ops, *body.ops)))

    def scope(self, scope: ops.Scope) -> Block:
        produces = scope.name == "producer"

        return scope.body.rewrite(
            ops.For, lambda o: self.loop(o, produces) if o.kind == "persistent" else None
        )

    def loop(self, o: ops.For, produces: bool) -> list[Op]:
        b = Builder(o.loc)
        at = Position(b, SLOTS, int(produces), "claims")
        (tile,) = o.body.args
        cond, body = Builder(o.loc), Builder(o.loc, o.body.statements)
        asked = Value(ScalarType(INT32), tile.name)
        cond.emit(ops.Yield, (cond.compare("lt", asked, o.hi),))
        following = self.hand_on(body, o, at) if produces else self.receive(body, at)
        body.emit(ops.Yield, (following,))
        b.emit(ops.While, (o.lo,), cond.block([asked]), body.block([tile]))
        return b.ops

    def hand_on(self, b: Builder, o: ops.For, at: Position) -> Value:
        """The number of the next tile, asked for, which the others are told."""
        taken = b.value(ops.Atomic, self.counter, (b.const(0),), b.const(1), "add")
        following = b.binary("add", taken, o.step)
        last = b.binary("sub", o.hi, 1)
        with b.when(b.compare("eq", taken, last)) as clear:
            zero = clear.const(0)
            clear.value(ops.Atomic, self.counter, (zero,), zero, "exchange")
        phase = at.get_phase(b)
        stage = self.ring.wait_free(b, at)
        b.emit(ops.Store, b.value(ops.RingStage, self.slot, stage), (b.const(0),), following)
        b.emit(ops.MbarrierArrive, self.ring.full, stage)
        at.advance(b, stage, phase)
        return following

    def receive(self, b: Builder, at: Position) -> Value:
        """The number of the next tile. Each thread frees what it has read: ptxas leaves no
        instruction of a warp's barrier, without which racecheck sees no order in another's."""
        phase = at.get_phase(b)
        stage = self.ring.wait_full(b, at)
        following = b.value(ops.Load, b.value(ops.RingStage, self.slot, stage), (b.const(0),))
        b.emit(ops.MbarrierArrive, self.ring.empty, stage)
        at.advance(b, stage, phase)
        return following
