"""expand_pipeline: loops whose copies run ahead in the threads that also compute.

Before: copies marked `ahead` remain where the producer warps did not take them. After: none is
`ahead`; each such loop is one of two shapes, and every use of a ring names its stage:

- *asynchronous* (all copies "cp_async"): `stages - 1` copies are in flight; an iteration waits
  for the oldest, meets the other threads, starts the copy that is `stages - 1` iterations away
  and computes (where places are computed, a product that threads need not wait for is started
  first, and runs meanwhile);
- *through registers* (anything else): an iteration loads the next tile into fragments, computes on
  this one, then stores the fragments into the other stage (or, where there is one stage only,
  into the same after a barrier).

Where products overlap, the first or the last iteration stands beside its loop: there a copy is
waited for where it stands.

The loop keeps the kind "pipelined", which tells `insert_sync` that its rings are in order inside
it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeGuard

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, fresh, rewritten
from tilec.ir.layout import Layout, blocked
from tilec.ir.types import BufferType
from tilec.passes.utils.building import copy_whole
from tilec.passes.utils.distribution import idle
from tilec.passes.utils.realign import Pieces, Realigner, Tile
from tilec.passes.utils.rings import Position, meeting, ring_copies
from tilec.passes.utils.slicing import Slice
from tilec.passes.utils.software_pipeline import free_running, held_in_flight
from tilec.target import Target


def expand_pipeline(func: Func, target: Target) -> Func:
    expander = _Expander(func, target)

    func = func.rewrite(ops.For, lambda o: expander.expand(o) if ring_copies(o) else None)
    # What is left stands beside its loop: of an iteration that others overlap.
    func = func.rewrite(ops.Copy, _at_once)
    if expander.in_place:
        ahead = tuple(x for x in func.attrs["ahead"] if x[:2] not in expander.in_place)
        left = tuple((*at, UNEVEN) for at in sorted(expander.in_place))
        func = func.with_attrs(ahead=ahead, not_ahead=(*func.attrs.get("not_ahead", ()), *left))
    return func


UNEVEN = "its tile does not divide among the threads, and would fill their registers"
"""Why a copy does not run ahead after all."""
LEAST_ACCESS = 32
"""Bits that are worth an access of their own."""
MOST_REPEATED = 16
"""Elements that a thread may hold of a tile that other threads hold, too."""


def _fills_registers(layout: Layout) -> bool:
    """Whether threads would repeat each other's work on a tile that waits in them, and much of
    it."""
    return idle(layout) > 1 and layout.size("reg") > MOST_REPEATED


class _Expander:
    def __init__(self, func: Func, target: Target) -> None:
        self.target = target
        self.threads = int(func.attrs["threads"])
        self.realigner = Realigner(func, self.threads, target)
        self.barrier = meeting(func)
        self.gathered = {o.result for o in func.body.every(ops.Gather)}
        self.rings = 0
        # Lines of copies that do not run ahead after all, and what they fill.
        self.in_place: set[tuple[int, str]] = set()

    def expand(self, loop: ops.For) -> list[Op]:
        copies = ring_copies(loop)
        if all(o.engine == "cp_async" for o in copies):
            return self._asynchronous(loop, copies)
        tiles = self.realigner.tiles([o for o in copies if o in loop.body.ops])
        plain = [self.staging(o) for o in copies if o.dest.buffer not in tiles]
        if any(map(_fills_registers, plain)):
            return self._in_place(loop, copies)
        return self._through_registers(loop, copies, tiles)

    def staging(self, o: ops.Copy) -> Layout:
        """Where a tile waits in registers: in the widest accesses that divide among the threads
        (heads of 72 numbers come two at a time), if some do."""
        warps, widest = self.threads // self.target.warp_size, max(1, o.vector)
        widths = [widest >> i for i in range(widest.bit_length())]
        layouts = [
            blocked(o.dest.shape or (1,), self.target.warp_size, warps, n)
            for n in widths
            if n == widest or n * o.dest.dtype.bits >= LEAST_ACCESS
        ]
        return next((x for x in layouts if not _fills_registers(x)), layouts[0])

    def _in_place(self, loop: ops.For, copies: list[ops.Copy]) -> list[Op]:
        """Tiles that do not divide among the threads would fill their registers: nothing runs
        ahead."""
        self.in_place.update((o.loc.line, str(o.dest.buffer.name)) for o in copies)
        b = Builder(loop.loc)
        zero = b.const(0)
        subst = _at_stage(b, copies, zero)

        body = loop.body.rewrite(ops.Copy, _at_once, subst)
        b.ops.append(replace(loop.in_order(), body=body))
        return b.ops

    def _copies(
        self, b: Builder, loop: ops.For, copies: list[ops.Copy], index: Value, stage: Value
    ) -> None:
        """The loop's copies for iteration `index`, into stage `stage`."""
        made = _of_iteration(loop, copies, index)

        def here(o: ops.Copy) -> list[Op]:
            ring_stage = Builder(o.loc)
            v = ring_stage.value(ops.RingStage, o.dest.buffer, stage, name=o.dest.buffer.name)
            return [*ring_stage.ops, replace(o, dest=replace(o.dest, buffer=v), ahead=False)]

        b.ops += made.rewrite(ops.Copy, here).ops

    def _body(
        self,
        b: Builder,
        loop: ops.For,
        copies: list[ops.Copy],
        stage: Value,
        in_flight: Collection[Value] = (),
    ) -> None:
        """What is left of the loop's body, on stage `stage`, without its Yield; products onto
        the fragments `in_flight` may be under way behind it."""
        subst = _at_stage(b, copies, stage)

        def start(o: Op) -> None | Op | list[Op]:
            if _is_ahead(o):
                return []
            if isinstance(o, ops.Gemm) and o.c in in_flight:
                return replace(o, asynchronous=True)
            return None

        b.ops += rewritten(loop.body.statements, start, subst)

    def _synchronise(self, b: Builder, copies: list[ops.Copy], loop: ops.For) -> None:
        """All threads' writes to the ring are done and visible to whoever reads it."""
        filled = {o.dest.buffer for o in copies}
        by_engine = any(
            o.by_engine and {r.buffer for r in o.inputs} & filled for o in loop.body.every(ops.Gemm)
        )
        if by_engine:
            b.emit(ops.ProxyFence)
        b.emit(ops.Barrier, *self.barrier)

    def _asynchronous(self, loop: ops.For, copies: list[ops.Copy]) -> list[Op]:
        stages = min(o.dest.type.stages for o in copies)
        b = Builder(loop.loc)
        at = Position(b, stages, 0, f"pipe{self.rings}")
        self.rings += 1
        index = loop.lo
        for s in range(stages - 1):
            with b.when(b.compare("lt", index, loop.hi)) as inner:
                self._copies(inner, loop, copies, index, inner.const(s))
            b.emit(ops.CpAsyncCommit)
            index = b.binary("add", index, loop.step)
        distance = b.binary("sub", index, loop.lo)
        body = Builder(loop.loc)
        stage = at.get_stage(body)
        body.emit(ops.CpAsyncWait, stages - 2)
        self._synchronise(body, copies, loop)
        following = body.binary("add", loop.body.args[0], distance)
        ahead = Builder(loop.loc)
        with ahead.when(ahead.compare("lt", following, loop.hi)) as inner:
            self._copies(inner, loop, copies, following, at.before(inner, stage))
        ahead.emit(ops.CpAsyncCommit)
        rest = Builder(loop.loc)
        sum_of = _last_sum(loop) if self._computes_places(copies) else set()
        self._body(rest, loop, copies, stage, sum_of)
        behind = 0
        for n, o in enumerate(rest.ops):
            if isinstance(o, ops.Gemm) and o.c in sum_of:
                behind = n + 1
                ahead.emit(ops.WgmmaWait, 0, held_in_flight([o]))
        body.ops += [*rest.ops[:behind], *ahead.ops, *rest.ops[behind:]]
        at.advance(body, stage)
        body.ops.append(loop.body.ops[-1])
        b.ops.append(replace(loop, body=Block(loop.body.args, tuple(body.ops))))
        return b.ops

    def _computes_places(self, copies: list[ops.Copy]) -> bool:
        """Whether it takes threads long to say where the copies come from. (Whether others should
        be started behind a product, too, nobody has measured.)"""
        return any(o.source.buffer in self.gathered for o in copies)

    def _through_registers(
        self, loop: ops.For, copies: list[ops.Copy], tiles: dict[Value, Tile]
    ) -> list[Op]:
        b = Builder(loop.loc)
        at = Position(b, 2, 0, f"pipe{self.rings}")
        self.rings += 1
        waiting = _Waiting(b, loop, copies, tiles, self)

        first = Builder(loop.loc)
        found = waiting.pieces(first, loop.lo, True)
        waiting.load(first, loop.lo, found)
        waiting.store(first, loop.lo, waiting.zero, found)
        self._synchronise(first, copies, loop)
        stages = min(o.dest.type.stages for o in copies)
        body = Builder(loop.loc)
        stage = at.get_stage(body) if stages > 1 else body.const(0)
        following = body.binary("add", loop.body.args[0], loop.step)
        more = body.compare("lt", following, loop.hi)
        found = waiting.pieces(body, following, False)
        with body.when(more) as ahead:
            waiting.load(ahead, following, found)
        in_flight = free_running(loop, list(tiles)) if tiles and stages > 1 else []
        read = {r.buffer for o in in_flight for r in o.inputs}
        if not {v for v in read if v.space == "shared"} <= {o.dest.buffer for o in copies}:
            in_flight = []  # TMA may fill the stage of the other operand behind the product
        self._body(body, loop, copies, stage, {o.c for o in in_flight})
        if stages == 1:
            body.emit(ops.Barrier, *self.barrier)
        other = body.binary("sub", body.const(1), stage) if stages > 1 else stage
        with body.when(more) as behind:
            waiting.store(behind, following, other, found)
        if in_flight:
            body.emit(ops.WgmmaWait, 0, held_in_flight(in_flight))
        self._synchronise(body, copies, loop)
        if stages > 1:
            at.advance(body, stage)
        body.ops.append(loop.body.ops[-1])
        carried = fresh(loop.results)
        whole_body = Block(loop.body.args, tuple(body.ops))
        first.ops.append(replace(loop, body=whole_body, results=carried))
        first.emit(ops.Yield, carried)
        never = Builder(loop.loc)
        never.emit(ops.Yield, loop.inits)
        any_trip = b.compare("lt", loop.lo, loop.hi)
        types = tuple(r.type for r in loop.results)
        sides = first.block(), never.block()
        b.ops.append(ops.If(any_trip, *sides, types, results=loop.results, loc=loop.loc))
        return b.ops


class _Waiting:
    """The tiles of a loop that wait in registers until shared memory is free: those that come in
    pieces (`realign`) as words, the others as elements."""

    def __init__(
        self,
        b: Builder,
        loop: ops.For,
        copies: list[ops.Copy],
        tiles: dict[Value, Tile],
        expander: _Expander,
    ) -> None:
        self.loop, self.tiles, self.realigner = loop, tiles, expander.realigner
        self.aligned = [o for o in copies if o.dest.buffer not in tiles]
        self.realigned = [o for o in copies if o.dest.buffer in tiles]
        self.held = expander.realigner.held(b, tiles)
        self.staged = {}
        for o in self.aligned:
            layout = expander.staging(o)
            # A conversion that changes no width happens where the tile is stored: here it would
            # wait for the loads.
            same = o.source.dtype.bits == o.dest.dtype.bits
            dtype = (o.source if same else o.dest).dtype
            t = BufferType(layout.shape, dtype, "fragment", layout=layout)
            v = o.dest.buffer
            self.staged[v] = b.value(ops.Alloc, t, name=f"{v.name}_next")
        self.zero = b.const(0)

    def pieces(self, into: Builder, index: Value, once: bool) -> Pieces | None:
        """What `load` and `store` have to know of an iteration's tiles."""
        if not self.tiles:
            return None
        made = _of_iteration(self.loop, self.realigned, index).ops
        moved = [o for o in made if isinstance(o, ops.Copy)]
        into.ops += [o for o in made if not isinstance(o, ops.Copy)]
        return self.realigner.pieces(into, moved, self.tiles, once)

    def load(self, into: Builder, index: Value, found: Pieces | None) -> None:
        if found is not None:
            self.realigner.load(into, found, self.held)

        def to_fragment(o: ops.Copy) -> Op:
            fragment = into.whole(self.staged[o.dest.buffer])
            return replace(o, dest=fragment, ahead=False, engine="threads")

        if self.aligned:
            made = _of_iteration(self.loop, self.aligned, index)
            into.ops += made.rewrite(ops.Copy, to_fragment).ops

    def store(self, into: Builder, index: Value, stage: Value, found: Pieces | None) -> None:
        """What `load` has brought, to stage `stage` of each tile."""
        if found is not None:
            self.realigner.store(into, found, self.held, stage)

        def to_shared(o: ops.Copy) -> list[Op]:
            b = Builder(o.loc)
            ring_stage = b.value(ops.RingStage, o.dest.buffer, stage, name=o.dest.buffer.name)
            copy_whole(b, self.staged[o.dest.buffer], ring_stage, engine="threads", vector=1)
            return b.ops

        for copy in self.aligned:
            alone = copy in self.loop.body.ops
            made = Block((), (copy,)) if alone else _of_iteration(self.loop, [copy], index)
            into.ops += made.rewrite(ops.Copy, to_shared).ops


def _of_iteration(loop: ops.For, copies: list[ops.Copy], index: Value) -> Block:
    """The copies, and what they need, for the iteration `index`."""
    made = Slice(loop.body, copies).copy(loop.body, {loop.body.args[0]: index})
    return Block((), tuple(made))


def _is_ahead(o: Op) -> TypeGuard[ops.Copy]:
    return isinstance(o, ops.Copy) and o.ahead


def _last_sum(loop: ops.For) -> set[Value]:
    """The sum of the last product of an iteration, if that is under way while threads start copies:
    nothing else adds to it."""
    products = [o for o in loop.body.every(ops.Gemm)]
    last = next((o for o in reversed(loop.body.ops) if isinstance(o, ops.Gemm)), None)
    if last is None or not last.is_asynchronous or sum(o.c is last.c for o in products) > 1:
        return set()
    return {last.c}


def _at_once(o: ops.Copy) -> Op | None:
    """A copy that runs ahead as one that its threads make where it stands."""
    return replace(o, ahead=False, engine="threads") if o.ahead else None


def _at_stage(b: Builder, copies: list[ops.Copy], stage: Value) -> Substitution:
    """Stage `stage` of each buffer that the copies fill."""
    filled = [o.dest.buffer for o in copies]
    return {v: b.value(ops.RingStage, v, stage, name=v.name) for v in filled}
