"""What a kernel in TILE form will keep in shared memory, before layouts are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.memory import version_bytes
from tilec.ir.ops import Alloc, Const, Copy, For, Gemm
from tilec.target import Target

if TYPE_CHECKING:
    from tilec.ir.plan import Plan

MOST_STAGES = 8  # that an open loop gets
MOST_VERSIONS = 64
DEFAULT_THREADS = 128
STAGED_BYTES = 2048  # of a warp, for what it stores by TMA


def is_open(o: Op) -> bool:
    """Whether the plan says how many stages this loop has."""
    return isinstance(o, For) and o.kind == "pipelined" and o.num_stages < 0


@dataclass(frozen=True)
class Footprint:
    """Bytes of shared memory of a kernel before layouts are known: `ring`, one version of all
    buffers of the loops whose stages are open; `explicit`, the same of other pipelined loops, each
    with its number of stages; `rest`, everything else; `sums`, what a block that shares its sums
    hands over. `trips`: iterations of the longest open loop, 0 where one is not known. `threads`
    are the user's, or the default."""

    ring: int
    explicit: tuple[tuple[int, int], ...]
    rest: int
    sums: int
    trips: int
    threads: int

    def beside(self, plan: Plan, target: Target) -> int:
        """Bytes beside the rings: what stores go through, too."""
        threads = (plan.threads or self.threads) * plan.teams
        staging = threads // target.warp_size * STAGED_BYTES if plan.staged_store else 0
        return self.rest + staging + (self.sums if plan.split > 1 else 0)

    def stages_that_fit(self, plan: Plan, target: Target) -> int:
        """Versions that the buffers of the open loops may have: as many as shared memory holds
        beside all other buffers, and no more than a loop of known length has iterations. At least
        2; the exact check is `plan_shared`'s."""
        if not self.ring:
            return 2
        limit, most = target.shared_bytes, MOST_STAGES
        if not target.has("tma"):
            limit, most = limit // 2, 4  # two blocks hide each other's latency
        if self.trips:
            most = min(most, self.trips)
        room = limit - self.beside(plan, target) - self._explicit(plan, target) - 1024
        return max(2, min(most, room // self.ring))

    def of(self, plan: Plan, target: Target) -> tuple[int, int, int]:
        """Bytes of shared memory that a block of `plan` will need, about; those of the pipelined
        loops' buffers among them; and the versions these have (the least over the loops)."""
        most = _most(plan, target)
        rings = self._explicit(plan, target) + self.ring * min(plan.stages, most)
        stages = [*(n for _, n in self.explicit), *([plan.stages] if self.ring else [])]
        return rings + self.beside(plan, target), rings, min((*stages, most)) if stages else 1

    def _explicit(self, plan: Plan, target: Target) -> int:
        return sum(size * min(stages, _most(plan, target)) for size, stages in self.explicit)


def _most(plan: Plan, target: Target) -> int:
    """Versions that a tile can have at most: one that comes through registers waits there."""
    if plan.single_buffer:
        return 1
    return MOST_VERSIONS if target.has("cp_async") else 2


def footprint(func: Func) -> Footprint:
    """What `func` (TILE) keeps in shared memory."""
    consts: dict[Value, Any] = {}
    loops: list[For] = []
    allocs: list[Alloc] = []
    sums: set[Value] = set()
    for o in walk(func.body):
        match o:
            case Const():
                consts[o.result] = o.value
            case For(kind="pipelined"):
                loops.append(o)
            case Alloc() if o.type.space == "shared":
                allocs.append(o)
            case Gemm():
                sums.add(o.c)
    versions: dict[Value, int] = {}
    trips: list[int] = []
    for loop in loops:
        for o in loop.body.ops:
            if isinstance(o, Copy) and o.source.buffer.space == "global":
                versions[o.dest] = loop.num_stages
        bounds = [consts.get(v) for v in (loop.lo, loop.hi, loop.step)]
        known = [b for b in bounds if isinstance(b, int)]
        if is_open(loop):
            trips.append(-(-(known[1] - known[0]) // max(known[2], 1)) if len(known) == 3 else 0)
    ring = rest = 0
    explicit: list[tuple[int, int]] = []
    for alloc in allocs:
        size, count = version_bytes(alloc.type), versions.get(alloc.result, 1)
        if count > 1:
            explicit.append((size, count))
        elif count < 0:
            ring += size
        else:
            rest += size
    return Footprint(
        ring,
        tuple(explicit),
        rest,
        4 * sum(c.buffer.size for c in sums),
        0 if 0 in trips else max(trips, default=0),
        func.attrs.get("threads") or DEFAULT_THREADS,
    )
