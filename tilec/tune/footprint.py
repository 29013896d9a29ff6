"""What a kernel in TILE form will keep in shared memory, before layouts are known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tilec.ir.analysis import Facts
from tilec.ir.clusters import threads_of
from tilec.ir.copy_engines import (
    CopyEngines,
    Narrow,
    alignment,
    box_may_begin,
    leaves_by_rows,
    ragged_tensors,
)
from tilec.ir.core import Block, Func, Value, walk
from tilec.ir.ops import Alloc, Const, Copy, For, Gemm, Parallel, Store, While
from tilec.ir.schedule import Plan
from tilec.ir.types import PAD_BYTES
from tilec.passes.block_order import can_persist
from tilec.passes.plan_pipeline import (
    BARRIER_BYTES,
    Depth,
    Rings,
    buffer_stages,
    has_stages,
    room_for_rings,
    staging_bytes,
)
from tilec.passes.utils.dependence import modref
from tilec.passes.utils.plans import shared_of, stages_of
from tilec.target import Target

MOST_STAGES = 8  # that tilec takes by itself


@dataclass(frozen=True)
class Ring:
    """A loop whose copies run ahead: the buffers they fill; whether TMA may bring some of its
    tiles, and whether it may not bring others; without and with producer warps, what it takes
    threads to bring them where their accesses are narrower than they could be; the loop's
    iterations, 0 where they are not known."""

    loop: For
    buffers: frozenset[Value]
    boxes: bool
    others: bool
    narrow: tuple[Narrow, Narrow]
    trips: int


class RingStages(NamedTuple):
    """How many stages the buffers have that are filled ahead of time; bytes of all of these, and
    of one of each."""

    stages: dict[Value, int]
    total: int
    one: int


@dataclass(frozen=True)
class Footprint:
    """Bytes of shared memory of a kernel before layouts are known: `sizes`, of one stage of each
    buffer; `buffers`, those that may have more (`plan_pipeline`), and their loops' `rings`; `sums`,
    what a block that shares its sums hands over; `rows`, the largest tile that leaves by rows, in
    place of the rings where these are not filled again (`refilled`: by a loop of the user's).
    `threads` are the user's, or the default. `leaves`: beside such loops, whether TMA can take some
    tile to global memory. `persists`: whether a block may do the body several times.
    `made`: of tiles that threads fill for products, which have two versions if there is room."""

    sizes: Mapping[Value, int]
    buffers: Rings | None
    rings: tuple[Ring, ...]
    sums: int
    threads: int
    rows: int = 0
    refilled: bool = False
    leaves: bool = False
    persists: bool = False
    made: int = 0
    _planned: dict[tuple[object, ...], RingStages] = field(default_factory=dict)
    _depths: dict[tuple[bool, int, bool], tuple[dict[Value, list[Depth]], list[Value]]] = field(
        default_factory=dict
    )
    _beside: dict[tuple[object, ...], int] = field(default_factory=dict)
    _fits: dict[tuple[bool, bool, bool, int, int], int] = field(default_factory=dict)

    def planned(self, plan: Plan, stages: int, target: Target) -> RingStages:
        """What is filled ahead of time, were the plan's stages so many."""
        persistent = plan.persistent and self.persists
        kind = plan.specialise, min(plan.consumer_groups, 2), persistent
        staging = self._staging(plan, target)
        stages = 0 if plan.single_buffer else stages
        key = *kind, stages, staging, plan.residents
        known = self._planned.get(key)
        if known is not None or self.buffers is None:
            return known or RingStages({}, 0, 0)
        if kind not in self._depths:
            chosen = self.buffers.chosen(*kind[:2])
            depths = self.buffers.depths(chosen, plan.specialise)
            self._depths[kind] = depths, self.buffers.across(chosen, persistent)
        depths, across = self._depths[kind]
        count = dict.fromkeys(depths, 1)
        one = sum(self.sizes[v] for v in count)
        if stages:
            beside = sum(self.sizes.values()) - one + staging
            room = room_for_rings(target, beside, plan.residents)
            count = buffer_stages(
                depths, lambda o: stages_of(o, stages), across, self.sizes, room
            )  # fmt: skip
        made = RingStages(count, sum(self.sizes[v] * n for v, n in count.items()), one)
        self._planned[key] = made
        return made

    @property
    def brings(self) -> bool:
        """Whether producers have something to bring to a block that may stay for several tiles."""
        return not self.persists or any(r.boxes for r in self.rings)

    def _staging(self, plan: Plan, target: Target) -> int:
        threads = (plan.threads or self.threads) * plan.consumer_groups
        return staging_bytes(threads, plan.staged_store, target)

    def beside(self, plan: Plan, target: Target) -> int:
        """Bytes beside the rings: what stores go through, too."""
        kind = (
            plan.specialise, plan.persistent, plan.staged_store, plan.single_buffer,
            plan.consumer_groups, plan.split > 1, plan.threads, plan.stages, plan.residents,
        )  # fmt: skip
        if kind not in self._beside:
            self._beside[kind] = self._beside_rings(plan, target)
        return self._beside[kind]

    def _beside_rings(self, plan: Plan, target: Target) -> int:
        staging = self._staging(plan, target)
        rows = self.rows * plan.consumer_groups if plan.persistent or self.refilled else 0
        rest = sum(self.sizes.values()) - self.planned(plan, plan.stages, target).one
        return rest + staging + rows + (self.sums if plan.split > 1 else 0)

    def stages_that_fit(self, plan: Plan, target: Target) -> int:
        """Stages that the loops may have: as many as shared memory holds beside all other buffers,
        no more than a loop of known length has iterations, and at least what their authors say (2
        where they say nothing). The exact check is `plan_shared`'s."""
        beside = self.beside(plan, target)
        kind = plan.specialise, plan.consumer_groups > 1, plan.single_buffer, plan.residents, beside
        if kind not in self._fits:
            self._fits[kind] = self._most_stages(plan, target, beside)
        return self._fits[kind]

    def _most_stages(self, plan: Plan, target: Target, beside: int) -> int:
        limit, most = shared_of(plan.residents, target), MOST_STAGES
        if not target.has("tma"):
            limit, most = limit // 2, 4  # two blocks hide each other's latency
        chosen = [r for r in self.rings if stages_of(r.loop, MOST_STAGES) == MOST_STAGES]
        if chosen and all(r.trips for r in chosen):
            most = min(most, max(r.trips for r in chosen))
        room = limit - beside - BARRIER_BYTES
        if plan.specialise and plan.consumer_groups == 1:
            room -= self.made
        while most > 2 and self.planned(plan, most, target).total > room:
            most -= 1
        several = replace(plan, single_buffer=False) if plan.single_buffer else plan
        stages = self.planned(several, max(2, most), target).stages
        return min((_deepest(r, stages) for r in chosen or self.rings), default=2)

    def of(self, plan: Plan, target: Target) -> tuple[int, int, int]:
        """Bytes of shared memory that a block of `plan` will need, about; those of the pipelined
        loops' buffers among them; and the stages these have (the least over the loops)."""
        ahead = self.planned(plan, plan.stages, target)
        total = max(ahead.total, self.rows) + self.beside(plan, target)
        return total, ahead.total, min((_deepest(r, ahead.stages) for r in self.rings), default=1)


def _deepest(ring: Ring, stages: Mapping[Value, int]) -> int:
    return max(stages.get(v, 1) for v in ring.buffers)


def footprint(func: Func, target: Target, facts: Facts | None = None) -> Footprint:
    """What `func` (TILE) keeps in shared memory; `facts` are those of its values, if known."""
    consts: dict[Value, Any] = {}
    loops: list[For] = []
    sizes: dict[Value, int] = {}
    sums: set[Value] = set()
    for o in walk(func.body):
        match o:
            case Const():
                consts[o.result] = o.value
            case For() if has_stages(o):
                loops.append(o)
            case Alloc() if o.type.space == "shared":
                sizes[o.result] = o.type.stage_bytes
            case Gemm():
                sums.add(o.c)
    engines = CopyEngines(func, target, facts) if loops else None
    planned = Rings(func, engines) if engines is not None else None
    found = {} if planned is None else planned.chosen(False, 1)
    if planned is not None and target.has("tma"):
        found |= planned.changed
    rings: list[Ring] = []
    for loop in loops:
        here = {v: x for v, x in found.items() if loop in x.loops}
        if engines is None or not here:
            continue
        boxes = {v for v, x in here.items() if x.by_tma}
        copies = [o for x in here.values() for o in x.copies]
        trips = len(loop.indices(consts.get) or ())
        narrow = engines.narrow(copies, False), engines.narrow(copies, True)
        rings.append(
            Ring(loop, frozenset(here), bool(boxes), len(boxes) < len(here), narrow, trips)
        )
    rows, refilled = _by_rows(func) if sums else (0, False)
    return Footprint(
        sizes,
        planned,
        tuple(rings),
        4 * sum(c.buffer.size for c in sums),
        threads_of(func),
        rows,
        refilled,
        engines is not None and _leaves(func, engines),
        can_persist(func),
        sum(sizes[v] for v in _made(loops)) if target.has("wgmma") else 0,
    )


def _made(loops: Iterable[For]) -> set[Value]:
    """The shared tiles that threads fill in loops with stages for products, which alone read
    them."""
    found = set[Value]()
    for loop in loops:
        inputs = {r.buffer for o in loop.body.ops if isinstance(o, Gemm) for r in o.inputs}
        for v in inputs:
            users = [o for o in loop.body.ops if v in modref(o)]
            if isinstance(users[0], Parallel) and all(isinstance(o, Gemm) for o in users[1:]):
                found |= {v} if v.space == "shared" else set()
    return found


def _leaves(func: Func, engines: CopyEngines) -> bool:
    """Whether TMA can take some tile to global memory."""
    ragged = ragged_tensors(func)
    stored = (o.dest for o in func.body.every(Copy))
    return any(
        r.type.space == "global"
        and r.buffer not in ragged
        and box_may_begin(r, engines.facts, store=True)
        for r in stored
    )


def _by_rows(func: Func) -> tuple[int, bool]:
    """Bytes of the largest tile that leaves by rows, from a copy or a loop over elements; and
    whether one does so in a loop."""
    ragged = ragged_tensors(func)
    most, again = 0, False

    def visit(block: Block, inside: bool) -> None:
        nonlocal most, again
        for o in block.ops:
            if isinstance(o, Copy) and o.source.type.space == "fragment":
                tensor, extents = o.dest.buffer, o.source.extents
            elif isinstance(o, Parallel):
                stores = (x for x in o.body.ops if isinstance(x, Store))
                store = next((x for x in stores if x.dest.space == "global"), None)
                if store is None:
                    continue
                tensor, extents = store.dest, o.extents
            else:
                for region in o.regions:
                    visit(region, inside or isinstance(o, (For, While)))
                continue
            bits = tensor.dtype.bits
            vector = alignment(tensor.buffer) * 8 // bits
            if len(extents) > 1 and leaves_by_rows(tensor, extents[-1], vector, ragged):
                row = extents[-1] * bits // 8 + PAD_BYTES
                most, again = max(most, math.prod(extents[:-1]) * row), again or inside

    visit(func.body, False)
    return most, again
