"""expand_scopes: producer warps that bring tiles by TMA, the user's threads that compute.

Before: copies of pipelined loops have the agent "tma". After: the function's body is the set-up
(shared buffers, mbarriers) and two scopes. The producer's is a slice of the program: the copies,
the control flow around them and the scalars these need. The consumers' is the rest, in which a
ring's first reader waits for the slot to be full and its last reader frees it. Where every reader
is a wgmma whose accumulator nothing else in the loop touches, one product stays in flight over the
iteration's end and the slot before is freed instead. If something the producer needs cannot be
computed twice, the copies go back to the threads. In a cluster, a tile that is the same for several
blocks is loaded in parts by all of them (`multicast`); the blocks then begin and end together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilec.ir.clusters import SINGLE, cluster_of
from tilec.ir.core import Block, Builder, Func, Op, Substitution, Value, rewrite, substitute, walk
from tilec.ir.errors import ResourceError
from tilec.ir.ops import (
    Alloc,
    Barrier,
    ClusterBarrier,
    Compare,
    Copy,
    For,
    Gemm,
    MbarrierInitFence,
    Scope,
    Version,
    WarpSync,
    WgmmaWait,
    Yield,
)
from tilec.passes.utils.multicast import Multicast
from tilec.passes.utils.registers import producer_warps, register_split
from tilec.passes.utils.rings import Position, Ring, TensorMaps, elected, only_if, tma_boxes
from tilec.passes.utils.slicing import NotClonable, Slice
from tilec.passes.utils.teams import Teams
from tilec.target import Target


def expand_scopes(func: Func, target: Target) -> Func:
    """See the module's opening."""
    tiles = [o for o in walk(func.body) if isinstance(o, Copy) and o.agent == "tma"]
    count = int(func.attrs.get("teams", 1))
    multicast = Multicast(func)
    if not multicast.shares:
        _check_cluster(func)
    if not tiles and count == 1:
        return func.with_attrs(launch_threads=func.attrs["threads"], specialise=False)
    teams = Teams(func) if count > 1 else None
    try:
        part = Slice(func.body, tiles)
    except NotClonable:
        return expand_scopes(_without_tma(func), target)
    warps = int(func.attrs["threads"]) // target.warp_size
    rings = _make_rings(func, warps, multicast)
    ring_of = {v: r for r in rings for v in r.buffers}
    maps = TensorMaps()
    top = Builder(func.loc)
    private = _hoist_buffers(func.body, top, ring_of, teams)
    for r in rings:
        r.allocate(top)
        if len(r.links) > 1:
            r.number = multicast.number(top)
    producer = _producer(func, part, rings, ring_of, maps, multicast)
    consumer = _consumers(func, rings, ring_of, private, teams)
    warps *= count
    helpers = producer_warps(warps)
    registers = register_split(warps, target)
    init = Builder(func.loc)
    for r in rings:
        r.initialise(init)
    init.emit(MbarrierInitFence)
    maps.prefetch(init)
    only_if(top, elected(top), init.ops)
    together = ClusterBarrier if multicast.shares else Barrier
    top.emit(together)
    top.emit(Scope, "consumer", 0, warps, consumer, registers[0], count)
    top.emit(Scope, "producer", warps, helpers, producer, registers[1])
    if multicast.shares:
        top.emit(together)  # no block ends while another loads into it or frees its slots
    func = Func(
        func.name,
        (*func.params, *(p for p in maps.params.values())),
        func.grid,
        top.block(),
        func.attrs,
        func.loc,
    )
    return func.with_attrs(launch_threads=(warps + helpers) * target.warp_size)


def _check_cluster(func: Func) -> None:
    """Raise ResourceError for a cluster that the plan chose and that brings nothing."""
    if cluster_of(func) != SINGLE and not func.attrs.get("cluster_dims"):
        shown = "x".join(map(str, cluster_of(func)))
        raise ResourceError(
            f"no tile is the same for the blocks of a cluster of {shown}, or can be loaded in "
            "equal parts",
            func.loc,
            "leave the cluster out",
        )


def _without_tma(func: Func) -> Func:
    def visit(o: Op) -> Op | None:
        if isinstance(o, Copy) and o.agent == "tma":
            as_stored = o.source.dtype == o.dest.dtype and o.vector * o.source.dtype.bits // 8 >= 4
            return replace(o, agent="cp_async" if as_stored else "threads")
        return None

    return func.with_body(rewrite(func.body, visit))


def _hoist_buffers(
    body: Block, top: Builder, ring_of: dict[Value, Ring], teams: Teams | None
) -> dict[Value, Value]:
    """Repeat the shared allocations at the top, where all scopes see them. Those that the
    consumers use as scratch get a version for each team: what they are called before and after."""
    private: dict[Value, Value] = {}
    for o in walk(body):
        if not isinstance(o, Alloc) or o.type.space != "shared":
            continue
        if teams is not None and o.result not in ring_of:
            made = teams.private(o)
            private[o.result] = made.result
            o = made
        top.ops.append(o)
    return private


def _readers(loop: For, buffers: set[Value]) -> list[int]:
    """Positions in the loop's body of the ops that read any of the buffers."""
    found = []
    for i, o in enumerate(loop.body.ops):
        if isinstance(o, Copy) and o.agent == "tma" and o.dest.buffer in buffers:
            continue
        touched = set(o.operands).union(*(x.operands for r in o.regions for x in walk(r)))
        if touched & buffers:
            found.append(i)
    return found


def _make_rings(func: Func, warps: int, multicast: Multicast) -> list[Ring]:
    """One ring for the buffers of a loop that have the same first and last reader."""
    rings: list[Ring] = []
    for loop in walk(func.body):
        if not isinstance(loop, For):
            continue
        groups: dict[tuple[int, int], list[Value]] = {}
        for o in loop.body.ops:
            if isinstance(o, Copy) and o.agent == "tma":
                v = o.dest.buffer
                at = _readers(loop, {v})
                groups.setdefault((at[0], at[-1]) if at else (-1, -1), []).append(v)
        for buffers in groups.values():
            readers = [loop.body.ops[i] for i in _readers(loop, set(buffers))]
            by_group = all(isinstance(o, Gemm) and o.is_asynchronous for o in readers)
            every = 4 if by_group else 1
            rings.append(
                Ring(
                    f"ring{len(rings)}",
                    tuple(buffers),
                    buffers[0].buffer.versions,
                    warps // every,
                    every,
                    links=multicast.links(buffers),
                )
            )
    return rings


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
    ops = part.copy(func.body, {})
    started: dict[Ring, tuple[Value, Value]] = {}
    left = {r: len(r.buffers) for r in rings}

    def visit(o: Op) -> None | list[Op]:
        if not (isinstance(o, Copy) and o.agent == "tma"):
            return None
        ring = ring_of[o.dest.buffer]
        at = positions[ring]
        b = Builder(o.loc)
        if ring not in started:
            phase = at.get_phase(b)
            started[ring] = (ring.wait_empty(b, at), phase)
            left[ring] = len(ring.buffers)
        slot, phase = started[ring]
        assert ring.full is not None
        tma_boxes(b, o, maps, ring.full, slot, multicast)
        left[ring] -= 1
        if left[ring] == 0:
            at.advance(b, slot, phase)
            del started[ring]
        return b.ops

    body = rewrite(Block((), tuple(ops)), visit)
    issuing = [*top.ops, *body.ops]
    outer = Builder(func.loc)
    only_if(outer, elected(outer), issuing)
    return outer.block()


def _consumers(
    func: Func,
    rings: list[Ring],
    ring_of: dict[Value, Ring],
    private: dict[Value, Value],
    teams: Teams | None,
) -> Block:
    top = Builder(func.loc)
    positions = {r: Position(top, r.stages, 0, r.name) for r in rings}
    made: dict[Op, list[Op]] = {}

    def visit(o: Op) -> None | list[Op]:
        if isinstance(o, Alloc) and o.type.space == "shared":
            return []
        if isinstance(o, For) and any(isinstance(x, Copy) and x.agent == "tma" for x in o.body.ops):
            return _consumer_loop(o, positions, ring_of)
        return None

    if teams is None:
        return Block((), (*top.ops, *rewrite(func.body, visit).ops))
    made = {o: _consumer_loop(o, positions, ring_of) for o in teams.rings}
    ops: list[Op] = []
    for o in func.body.ops:
        if o is teams.loop:
            b = Builder(o.loc)
            shared_out = teams.share_out(b, made, ring_of, positions)
            ops += [*b.ops, shared_out]
        else:
            ops.append(o)
    rest = rewrite(Block((), tuple(ops)), visit)
    body = teams.own(top, private, rest)
    return Block((), (*top.ops, *body.ops))


def _consumer_loop(
    loop: For, positions: dict[Ring, Position], ring_of: dict[Value, Ring]
) -> list[Op]:
    tiles = [o for o in loop.body.ops if isinstance(o, Copy) and o.agent == "tma"]
    here = {ring_of[o.dest.buffer] for o in tiles}
    rings = [r for r in positions if r in here]
    products = []
    if all(r.release_every == 4 for r in rings):
        products = free_running(loop, [v for r in rings for v in r.buffers])
    b = Builder(loop.loc)
    subst: Substitution = {}
    slots: dict[Ring, Value] = {}
    phases: dict[Ring, Value] = {}
    spans = {r: _readers(loop, set(r.buffers)) for r in rings}
    for i, o in enumerate(loop.body.ops):
        b.loc = o.loc
        if o in tiles:
            continue
        if isinstance(o, Yield):
            break
        for r in rings:
            if spans[r] and i == spans[r][0]:
                phases[r] = positions[r].get_phase(b)
                slots[r] = r.wait_full(b, positions[r])
                for v in r.buffers:
                    subst[v] = b.value(Version, v, slots[r], name=v.name)
        (done,) = rewrite(Block((), (o,)), lambda _: None, subst).ops
        if o in products:
            done = replace(done, asynchronous=True)  # type: ignore[call-arg]
        b.ops.append(done)
        if products:
            continue
        for r in rings:
            if spans[r] and i == spans[r][-1]:
                if r.release_every == 1:
                    b.emit(WarpSync)
                r.release(b, slots[r])
                positions[r].advance(b, slots[r], phases[r])
    if not products:
        for r in rings:
            if not spans[r]:
                _skip(b, r, positions[r])
        b.ops.append(substitute(loop.body.ops[-1], subst))
        return [replace(loop, body=Block(loop.body.args, tuple(b.ops)))]
    return _finish_free_running(loop, b, rings, positions, slots, phases, products)


def _skip(b: Builder, r: Ring, at: Position) -> None:
    """A slot that nothing reads is waited for and freed all the same."""
    phase = at.get_phase(b)
    slot = r.wait_full(b, at)
    b.emit(WarpSync)
    r.release(b, slot)
    at.advance(b, slot, phase)


def free_running(loop: For, ringed: Iterable[Value]) -> list[Gemm]:
    """The wgmma products of the loop, if nothing else in the loop touches their fragments, or the
    shared memory that they read beside the buffers of its rings; [] otherwise."""
    products = [o for o in loop.body.ops if isinstance(o, Gemm) and o.is_asynchronous]
    accumulators = {o.c for o in products}
    if len(accumulators) != len(products) or any(o.clear for o in products):
        return []
    inputs = _fragment_inputs(products)
    if accumulators & set(inputs):
        return []
    besides = {r.buffer for o in products for r in (o.a, o.b)}.difference(ringed)
    for o in walk(loop.body):
        if o not in products and (accumulators | besides) & set(o.operands):
            return []
    return products


def held_in_flight(products: list[Gemm]) -> tuple[Value, ...]:
    """The fragments that products use while they are in flight."""
    return (*(o.c for o in products), *_fragment_inputs(products))


def _fragment_inputs(products: list[Gemm]) -> tuple[Value, ...]:
    """The fragments that products read while they are in flight."""
    inputs = dict.fromkeys(o.a.buffer for o in products)
    return tuple(v for v in inputs if v.buffer.space == "fragment")


def _finish_free_running(
    loop: For,
    b: Builder,
    rings: list[Ring],
    positions: dict[Ring, Position],
    slots: dict[Ring, Value],
    phases: dict[Ring, Value],
    products: list[Gemm],
) -> list[Op]:
    b.loc = products[-1].loc
    accumulators = tuple(o.c for o in products)
    b.emit(WgmmaWait, len(products), accumulators)
    later = b.value(Compare, "gt", loop.body.args[0], loop.lo)
    for r in rings:
        r.release(b, positions[r].before(b, slots[r]), later)
        positions[r].advance(b, slots[r], phases[r])
    b.ops.append(loop.body.ops[-1])
    after = Builder(products[-1].loc)
    after.emit(WgmmaWait, 0, held_in_flight(products))
    ran = after.value(Compare, "gt", loop.hi, loop.lo)
    for r in rings:
        at = positions[r]
        r.release(after, at.before(after, at.get_slot(after)), ran)
    return [replace(loop, body=Block(loop.body.args, tuple(b.ops))), *after.ops]
