"""What a kernel in TILE form will keep in shared memory, before layouts are known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tilec.ir.agents import (
    REGISTER_VERSIONS,
    Agents,
    Narrow,
    alignment,
    box_may_begin,
    leaves_by_rows,
    ragged_tensors,
)
from tilec.ir.analysis import Facts
from tilec.ir.core import Block, Func, Value, walk
from tilec.ir.dependence import once
from tilec.ir.memory import PAD_BYTES, version_bytes
from tilec.ir.ops import Alloc, Const, Copy, For, Gemm, Parallel, Store, While
from tilec.ir.schedule import DEFAULT_THREADS, Plan
from tilec.passes.utils.plans import stages_of
from tilec.target import Target

MOST_STAGES = 8  # that tilec takes by itself
STAGED_BYTES = 2048  # of a warp, for what it stores by TMA


@dataclass(frozen=True)
class Ring:
    """The buffers of one pipelined loop: bytes of one version of those that TMA may bring and of
    the others; the loop's iterations, 0 where they are not known. Without and with producer warps:
    whether the others go through registers, and what it takes threads to bring them where
    their accesses are narrower than they could be."""

    loop: For
    boxes: int
    others: int
    registers: tuple[bool, bool]
    narrow: tuple[Narrow, Narrow]
    trips: int

    def size(self, plan: Plan, stages: int) -> int:
        """Bytes of all versions under `plan`, were its stages so many."""
        count = stages_of(self.loop, stages)
        if plan.single_buffer:
            return self.boxes + self.others
        rest = min(count, REGISTER_VERSIONS) if self.registers[plan.specialise] else count
        return self.others * rest + self.boxes * (count if plan.specialise else rest)

    def stages(self, plan: Plan, stages: int) -> int:
        """The versions that its tiles have at most, were the plan's stages so many."""
        count = stages_of(self.loop, stages)
        if self.registers[plan.specialise] and not (plan.specialise and self.boxes):
            return min(count, REGISTER_VERSIONS)
        return count


@dataclass(frozen=True)
class Footprint:
    """Bytes of shared memory of a kernel before layouts are known: `rings`, the buffers of its
    pipelined loops; `rest`, everything else; `sums`, what a block that shares its sums hands over;
    `rows`, the largest tile that leaves by rows, in place of the rings where these are not filled
    again (`refilled`: by a loop of the user's). `threads` are the user's, or the default. `leaves`:
    beside such loops, whether TMA can take some tile to global memory."""

    rings: tuple[Ring, ...]
    rest: int
    sums: int
    threads: int
    rows: int = 0
    refilled: bool = False
    leaves: bool = False

    def beside(self, plan: Plan, target: Target) -> int:
        """Bytes beside the rings: what stores go through, too."""
        threads = (plan.threads or self.threads) * plan.teams
        staging = threads // target.warp_size * STAGED_BYTES if plan.staged_store else 0
        rows = self.rows * plan.teams if plan.persistent or self.refilled else 0
        return self.rest + staging + rows + (self.sums if plan.split > 1 else 0)

    def stages_that_fit(self, plan: Plan, target: Target) -> int:
        """Stages that the loops may have: as many as shared memory holds beside all other buffers,
        no more than a loop of known length has iterations, and at least what their authors say (2
        where they say nothing). The exact check is `plan_shared`'s."""
        limit, most = target.shared_bytes, MOST_STAGES
        if not target.has("tma"):
            limit, most = limit // 2, 4  # two blocks hide each other's latency
        chosen = [r for r in self.rings if stages_of(r.loop, MOST_STAGES) == MOST_STAGES]
        if chosen and all(r.trips for r in chosen):
            most = min(most, max(r.trips for r in chosen))
        room = limit - self.beside(plan, target) - 1024
        while most > 2 and sum(r.size(plan, most) for r in self.rings) > room:
            most -= 1
        return min((r.stages(plan, max(2, most)) for r in chosen or self.rings), default=2)

    def of(self, plan: Plan, target: Target) -> tuple[int, int, int]:
        """Bytes of shared memory that a block of `plan` will need, about; those of the pipelined
        loops' buffers among them; and the versions these have (the least over the loops)."""
        rings = sum(r.size(plan, plan.stages) for r in self.rings)
        stages = min((r.stages(plan, plan.stages) for r in self.rings), default=1)
        total = max(rings, self.rows) + self.beside(plan, target)
        return total, rings, 1 if plan.single_buffer else stages


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
            case For(kind="pipelined") if o.num_stages not in (0, 1):
                loops.append(o)
            case Alloc() if o.type.space == "shared":
                sizes[o.result] = version_bytes(o.type)
            case Gemm():
                sums.add(o.c)
    agents = Agents(func, target, facts) if loops else None
    rings: list[Ring] = []
    for loop in loops:
        assert agents is not None
        copies = [
            o
            for o in once(loop.body)
            if isinstance(o, Copy)
            and o.source.buffer.buffer.space == "global"
            and o.dest.buffer in sizes
        ]
        boxes = {o.dest.buffer for o in copies if agents.of(o, True) == "tma"}
        others = {o.dest.buffer for o in copies} - boxes
        registers = [agents.through_registers(copies, s) for s in (False, True)]
        narrow = [agents.narrow(copies, s) for s in (False, True)]
        bounds = [consts.get(v) for v in (loop.lo, loop.hi, loop.step)]
        known = [b for b in bounds if isinstance(b, int)]
        trips = -(-(known[1] - known[0]) // max(known[2], 1)) if len(known) == 3 else 0
        if copies:
            size = [sum(sizes.pop(v, 0) for v in part) for part in (boxes, others)]
            pairs = (registers[0], registers[1]), (narrow[0], narrow[1])
            rings.append(Ring(loop, size[0], size[1], *pairs, trips))
    rows, refilled = _by_rows(func) if sums else (0, False)
    return Footprint(
        tuple(rings),
        sum(sizes.values()),
        4 * sum(c.buffer.size for c in sums),
        func.attrs.get("threads") or DEFAULT_THREADS,
        rows,
        refilled,
        agents is not None and _leaves(func, agents),
    )


def _leaves(func: Func, agents: Agents) -> bool:
    """Whether TMA can take some tile to global memory."""
    ragged = ragged_tensors(func)
    stored = (o.dest for o in walk(func.body) if isinstance(o, Copy))
    return any(
        r.buffer.buffer.space == "global"
        and r.buffer not in ragged
        and box_may_begin(r, agents.facts, store=True)
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
            if isinstance(o, Copy) and o.source.buffer.buffer.space == "fragment":
                tensor, extents = o.dest.buffer, o.source.extents
            elif isinstance(o, Parallel):
                stores = (x for x in o.body.ops if isinstance(x, Store))
                store = next((x for x in stores if x.dest.buffer.space == "global"), None)
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
