"""expand_scopes: producer warps that bring tiles by TMA, the user's threads that compute.

Before: copies of pipelined loops have the engine "tma". After: the function's body is the set-up
(shared buffers, mbarriers) and two scopes. The producer's is a slice of the program: the copies,
the control flow around them and the scalars these need. The consumers' is the rest, in which a
ring's first reader waits for the stage to be full and its last reader frees it. Where every reader
is a wgmma whose accumulator nothing else in the loop touches, one product stays in flight over the
iteration's end and the stage before is freed instead. It may read fragments that the loop fills
where the iteration after fills others (`For.versions`). In a cluster, a tile that is the same for
several blocks is loaded in parts by all of them (`multicast`); the blocks then begin and end
together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.clusters import SINGLE, cluster_of, groups_of, residents_of, threads_of
from tilec.ir.core import Block, Func, Op, Substitution, Value, rewritten, walk
from tilec.ir.effects import effects_in
from tilec.ir.errors import ResourceError
from tilec.passes.utils.building import is_shared
from tilec.passes.utils.consumer_groups import ConsumerGroups
from tilec.passes.utils.dependence import LiveRange, Unclear, live_ranges, runs
from tilec.passes.utils.multicast import Multicast
from tilec.passes.utils.registers import producer_warps, register_split
from tilec.passes.utils.rings import (
    Position,
    Ring,
    TensorMaps,
    elected,
    fills_tile,
    is_brought,
    tma_boxes,
)
from tilec.passes.utils.slicing import Slice
from tilec.passes.utils.software_pipeline import (
    SoftwarePipeline,
    filled,
    free_running,
    give_first_turn,
    held_in_flight,
)
from tilec.target import Target


def expand_scopes(func: Func, target: Target) -> Func:
    tiles = [o for o in walk(func.body) if is_brought(o)]
    count = groups_of(func)
    multicast = Multicast(func)
    if not multicast.shares:
        _check_cluster(func)
    if not tiles and count == 1:
        return func.with_attrs(launch_threads=func.attrs["threads"], specialise=False)
    groups = ConsumerGroups(func) if count > 1 else None
    part = Slice(func.body, tiles)
    warps = threads_of(func) // target.warp_size
    rings, spans = _make_rings(func, warps, multicast)
    ring_of = {v: r for r in rings for v in r.buffers}
    maps = TensorMaps(func)
    top = Builder(func.loc)
    private = _hoist_buffers(func.body, top, ring_of, groups)
    for r in rings:
        r.allocate(top)
        if len(r.links) > 1:
            r.number = multicast.number(top)
    producer = _producer(func, part, rings, ring_of, maps, multicast)
    consumer = _Consumers(func, rings, spans, warps // 4).body(private, groups)
    warps *= count
    helpers = producer_warps(warps)
    registers = register_split(warps, target, blocks=residents_of(func))
    with top.when(elected(top)) as init:
        for r in rings:
            r.initialise(init)
        init.emit(ops.MbarrierInitFence)
        maps.prefetch(init)
    together = ops.ClusterBarrier if multicast.shares else ops.Barrier
    top.emit(together)
    top.emit(ops.Scope, "consumer", 0, warps, consumer, registers[0], count)
    top.emit(ops.Scope, "producer", warps, helpers, producer, registers[1])
    if multicast.shares:
        top.emit(together)  # no block ends while another loads into it or frees its stages
    func = maps.added(top.block())
    return func.with_attrs(launch_threads=(warps + helpers) * target.warp_size)


def _check_cluster(func: Func) -> None:
    """Raise ResourceError for a cluster that the plan chose and that brings nothing."""
    if cluster_of(func) != SINGLE and not func.attrs.get("cluster_dims"):
        shown = "x".join(map(str, cluster_of(func)))
        raise ResourceError(
            f"no tile is the same for the blocks of a cluster of {shown}, or can be loaded in "
            "parts",
            func.loc,
            "leave the cluster out",
        )


def _hoist_buffers(
    body: Block, top: Builder, ring_of: dict[Value, Ring], groups: ConsumerGroups | None
) -> dict[Value, Value]:
    """Repeat the shared allocations at the top, where all scopes see them. Those that the
    consumers use as scratch get a stage for each group: what they are called before and after."""
    private: dict[Value, Value] = {}
    for o in walk(body):
        if not is_shared(o):
            continue
        if groups is not None and o.result not in ring_of:
            made = groups.private(o)
            private[o.result] = made.result
            o = made
        top.ops.append(o)
    return private


Spans = dict[Block, dict[Ring, list[tuple[int, int]]]]


def _make_rings(func: Func, warps: int, multicast: Multicast) -> tuple[list[Ring], Spans]:
    """One ring for the buffers that are filled in the same places and have the same first and last
    readers; and in each block where the first and last op stand that need what a ring holds (the
    last copy twice, where nothing does)."""
    copies = [o for o in walk(func.body) if is_brought(o)]
    groups: dict[tuple[object, ...], list[Value]] = {}
    found: dict[Value, list[LiveRange]] = {}
    tiles = {o.dest.buffer for o in copies}
    for v, ranges in live_ranges(func.body, tiles, fills_tile).items():
        assert not isinstance(ranges, Unclear)
        key = (v.buffer.stages, *((r.block, r.span) for r in ranges))
        found[v] = ranges
        groups.setdefault(key, []).append(v)
    rings: list[Ring] = []
    spans: Spans = {}
    numbers = ops.constants(func.body)
    for buffers in groups.values():
        effects = [
            e
            for r in found[buffers[0]]
            for i in r.readers
            for _, e in effects_in(r.block.ops[i])
            if e.buffer in buffers
        ]
        by_group = bool(effects) and all(e.engine == "wgmma" for e in effects)
        # Where no product may come, nothing says that all warps of a group have waited.
        readers = ((r.block, r.block.ops[i]) for r in found[buffers[0]] for i in r.readers)
        by_group = by_group and not any(
            _may_skip(o, buffers, numbers, block is not func.body) for block, o in readers
        )
        every = 4 if by_group else 1
        ring = Ring(
            f"ring{len(rings)}",
            tuple(buffers),
            buffers[0].buffer.stages,
            warps // every,
            every,
            links=multicast.links(buffers),
            repeated=multicast.repeated(buffers),
        )
        rings.append(ring)
        for together in zip(*(found[v] for v in buffers)):
            last = max(r.start for r in together)
            span = together[0].span or (last, last)
            spans.setdefault(together[0].block, {}).setdefault(ring, []).append(span)
    return rings, spans


def _may_skip(
    o: Op, buffers: Sequence[Value], numbers: Mapping[Value, object], refilled: bool
) -> bool:
    """Whether `o` reads one of the buffers under a condition in it or, where they are `refilled`,
    in a loop that may have no iteration."""

    def skips(x: Op) -> bool:
        loop = isinstance(x, ops.While) or (isinstance(x, ops.For) and not runs(x, numbers))
        return isinstance(x, ops.If) or (refilled and loop)

    inside = (e for x in walk(o) if skips(x) for _, e in effects_in(x))
    return any(e.reads and e.buffer in buffers for e in inside)


def _producer(
    func: Func,
    part: Slice,
    rings: list[Ring],
    ring_of: dict[Value, Ring],
    maps: TensorMaps,
    multicast: Multicast,
) -> Block:
    top = Builder(func.loc)
    positions = {r: Position(top, r.stages, 1, r.name) for r in rings}
    statements = part.copy(func.body, {})
    started: dict[Ring, tuple[Value, Value]] = {}
    left = {r: len(r.buffers) for r in rings}

    def visit(o: Op) -> None | Op | list[Op]:
        if isinstance(o, ops.For) and (o.order or o.versions > 1):  # they are the consumers'
            return replace(o, order=(), stage=(), turns=False, versions=1)
        if not is_brought(o):
            return None
        ring = ring_of[o.dest.buffer]
        at = positions[ring]
        b = Builder(o.loc)
        if ring not in started:
            phase = at.get_phase(b)
            started[ring] = (ring.wait_empty(b, at), phase)
            left[ring] = len(ring.buffers)
        stage, phase = started[ring]
        tma_boxes(b, o, maps, ring.full, stage, multicast)
        left[ring] -= 1
        if left[ring] == 0:
            at.advance(b, stage, phase)
            del started[ring]
        return b.ops

    outer = Builder(func.loc)
    outer.branch(elected(outer), [*top.ops, *rewritten(statements, visit)])
    return outer.block()


def _are_shared(others: Sequence[Value]) -> bool:
    return any(v.space == "shared" for v in others)


class _Consumers:
    """The program of the user's threads: in front of the first reader of what a ring's stage holds
    they wait for it, behind the last one they free it."""

    def __init__(self, func: Func, rings: list[Ring], spans: Spans, warpgroups: int) -> None:
        self.func = func
        self.spans = spans
        self.warpgroups = warpgroups
        # Sums of a product under a condition: where such a sum goes on in another loop, whose
        # products stay in flight, ptxas serialises all of them (C7515).
        branches = (o for o in func.body.every(ops.If))
        inside = (x for o in branches for region in o.regions for x in region.ops)
        self.conditional = {o.c for o in inside if isinstance(o, ops.Gemm)}
        self.top = Builder(func.loc)
        self.positions = {r: Position(self.top, r.stages, 0, r.name) for r in rings}
        if any(o.turns for o in func.body.every(ops.For)):
            give_first_turn(self.top, warpgroups)

    def body(self, private: dict[Value, Value], groups: ConsumerGroups | None) -> Block:
        if groups is None:
            return Block((), (*self.top.ops, *self.block(self.func.body).ops))
        made: dict[Op, list[Op]] = {o: self.loop(o) for o in groups.rings}
        positions = {v: at for r, at in self.positions.items() for v in r.buffers}
        statements: list[Op] = []
        for o in self.func.body.ops:
            if o is groups.loop:
                b = Builder(o.loc)
                shared_out = groups.share_out(b, made, positions)
                statements += [*b.ops, shared_out]
            else:
                statements.append(o)
        rest = rewritten(statements, lambda o: [] if is_shared(o) else None)
        body = groups.own(self.top, private, Block((), rest))
        return Block((), (*self.top.ops, *body.ops))

    def block(
        self,
        block: Block,
        loop: ops.For | None = None,
        products: Sequence[ops.Gemm] = (),
        others: Sequence[Value] = (),
    ) -> Block:
        """`block` with its waits and releases; where it is the body of a `loop` whose `products`
        stay in flight behind an iteration, that frees the stages of the one before, whose products
        read `others`: fragments, or shared tiles, which other warpgroups fill, too. Of these the
        iteration before is waited for in front of the barrier that this one's products need."""
        b = Builder()
        here = self.spans.get(block, {})
        subst: Substitution = {}
        stages: dict[Ring, tuple[Value, Value]] = {}
        for i, o in enumerate(block.ops):
            b.loc = o.loc
            if products and o is products[0] and _are_shared(others):
                held = (v for v in others if v.space == "fragment")
                b.emit(ops.WgmmaWait, 0, (*(x.c for x in products), *held))
            for r, spans in here.items():
                if any(i == first for first, _ in spans):
                    phase = self.positions[r].get_phase(b)
                    stages[r] = r.wait_full(b, self.positions[r]), phase
                    for v in r.buffers:
                        subst[v] = b.value(ops.RingStage, v, stages[r][0], name=v.name)
            if isinstance(o, ops.Yield) and products:
                assert loop is not None
                late = {r: at for r, at in stages.items() if r.release_every == 4}
                self._free_before(b, loop, late, products, others)
            over = [r for r, spans in here.items() if any(i == last for _, last in spans)]
            ending = [r for r in over if not (products and r.release_every == 4)]
            if isinstance(o, ops.For) and o.order:
                pipeline = self.pipeline(o)
                early = [r for r in ending if not pipeline.reads_late(r)]
                ending = [r for r in ending if r not in early]
                between = Builder(b.loc)
                for r in early:
                    r.free(between, self.positions[r], *stages[r])
                b.ops += Block((), tuple(pipeline.expanded(between.ops))).substituted(subst).ops
            elif not (is_shared(o) or is_brought(o)):
                made = self._within(o, o in products)
                b.ops += Block((), tuple(made)).substituted(subst).ops
            for r in ending:
                r.free(b, self.positions[r], *stages[r])
            for v in (v for r in over for v in r.buffers):
                del subst[v]  # a loop behind may fill the buffer again
        return b.block(block.args)

    def pipeline(self, loop: ops.For) -> SoftwarePipeline:
        """A loop whose statements are arranged, with the rings that live in it."""
        positions = {r: self.positions[r] for r in self.spans.get(loop.body, {})}
        return SoftwarePipeline(loop, positions, self.warpgroups)

    def _within(self, o: Op, in_flight: bool) -> list[Op]:
        if isinstance(o, ops.For):
            return self.loop(o)
        if o.region_fields:
            return [o.with_regions(self.block)]
        return [replace(o, asynchronous=True) if in_flight else o]  # type: ignore[call-arg]

    def loop(self, loop: ops.For) -> list[Op]:
        """A loop, and behind it what ends with it."""
        here = self.spans.get(loop.body, {})
        if loop.order:
            return self.pipeline(loop).expanded()
        versions = filled(loop) if loop.versions > 1 else []
        late = [r for r in here if r.release_every == 4]
        products: list[ops.Gemm] = []
        if late and (versions or late == [*here]):
            if all(len(here[r]) == 1 < r.stages for r in late):
                products = free_running(loop, [v for r in late for v in r.buffers], versions)
        if any(o.c in self.conditional for o in products):
            products = []
        if not products:
            return [replace(loop, body=self.block(loop.body), versions=1)]
        b = Builder(loop.loc)
        others: tuple[Value, ...] = ()
        if versions:
            loop, others = self._in_pairs(b, loop, products, versions)
        else:
            loop = replace(loop, body=self.block(loop.body, loop, products))
        b.ops.append(loop)
        b.loc = products[-1].loc
        held = (v for v in others if v.space == "fragment")
        b.emit(ops.WgmmaWait, 0, (*held_in_flight(products), *held))
        ran = b.compare("gt", loop.hi, loop.lo)
        for r in late:
            at = self.positions[r]
            r.release(b, at.before(b, at.get_stage(b)), ran)
        return b.ops

    def _in_pairs(
        self, b: Builder, loop: ops.For, products: Sequence[ops.Gemm], versions: Sequence[Value]
    ) -> tuple[ops.For, tuple[Value, ...]]:
        """`loop` with two iterations in one, of which the second fills other fragments; and these.
        Of an odd number of iterations the first one stands in front, and waits for its products: a
        branch around products in flight serialises all (C7518)."""
        last = b.fold("sub", b.fold("add", loop.hi, b.fold("sub", loop.step, 1)), loop.lo)
        left = b.fold("mod", b.fold("floordiv", last, loop.step), 2)
        index = loop.body.args[0]
        alone: Substitution = {index: loop.lo}
        once = [o.clone(alone) for o in self.block(loop.body).statements]
        runs = b.compare("gt", loop.hi, loop.lo)
        b.branch(b.binary("and", runs, b.compare("eq", left, 1)), once)
        start = b.fold("add", loop.lo, b.fold("mul", left, loop.step))
        pairs = replace(loop, lo=start, step=b.fold("mul", loop.step, 2))
        others = {v: b.value(ops.Alloc, v.type, name=f"{v.name}_other") for v in versions}
        body = self.block(loop.body, pairs, products, tuple(others.values()))
        both = Builder(loop.loc, body.statements)
        after = both.fold("add", index, loop.step)
        subst: Substitution = {index: after, **others, **{w: v for v, w in others.items()}}
        both.ops += [o.clone(subst) for o in body.ops]
        return replace(pairs, body=both.block(body.args)), tuple(others.values())

    def _free_before(
        self,
        b: Builder,
        loop: ops.For,
        stages: dict[Ring, tuple[Value, Value]],
        products: Sequence[ops.Gemm],
        others: Sequence[Value],
    ) -> None:
        """Leave the iteration's products in flight; free the stages of the iteration before, and
        the fragments `others` that its products read."""
        b.loc = products[-1].loc
        if not _are_shared(others):
            b.emit(ops.WgmmaWait, len(products), (*(o.c for o in products), *others))
        later = b.compare("gt", loop.body.args[0], loop.lo)
        for r, (stage, phase) in stages.items():
            r.release(b, self.positions[r].before(b, stage), later)
            self.positions[r].advance(b, stage, phase)
