"""Runs the clusters of a launch one after the other, and says where one is that does not end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from tilec.ir.loc import UNKNOWN, Loc
from tilec.sim.barriers import Barriers
from tilec.sim.block import Block, Setting
from tilec.sim.clocks import Across, Clocks, NoClocks
from tilec.sim.memory import Memory
from tilec.sim.program import Branch, Edge, Program, Segment, Wait
from tilec.sim.scheduler import Scheduler, StepLimit
from tilec.sim.thread_state import ThreadState
from tilec.sim.threads import Coordinates


class Machine:
    """One run of a launch. `seed` None: threads that part run in order; else in an order that
    depends on it. `steps`: the most segments that a cluster may run. `turn`: see `Scheduler`."""

    def __init__(
        self,
        setting: Setting,
        program: Program,
        seed: int | None,
        steps: int,
        turn: Callable[[ThreadState], None] | None = None,
    ) -> None:
        self.setting, self.program, self.seed, self.steps = setting, program, seed, steps
        self.turn = turn
        self._party = 0

    def run_cluster(self, first: Coordinates) -> bool:
        """Run the cluster whose first block is `first`; whether it has come to an end, and does not
        run for ever."""
        s = self.setting
        self._party += 1
        places = blocks_of(first, s.cluster)
        make = Clocks if s.checks else NoClocks
        clocks = make(s.threads, s.target.warp_size, len(places))
        if s.checks:
            clocks.across = Across(clocks, self._party, s.globals.left)
        memories: list[Memory] = []
        barriers: list[Barriers] = []
        cluster = [Block(s, index, clocks, memories, barriers, self._party) for index in places]
        scheduler = Scheduler(
            self.program,
            cluster,
            None if self.seed is None else self.seed + self._party,
            self.steps,
            self.turn,
        )
        for block in cluster:
            block.steps = lambda: self.steps - scheduler.left
        try:
            scheduler.run()
        except StepLimit as e:
            self._report_endless(e.active)
            return False
        if not scheduler.blocked:
            for block in cluster:
                block.finish()
        return True

    def _report_endless(self, active: ThreadState) -> None:
        lines = lines_of_loop(self.program, active.at)
        active.block.report(
            active,
            "step limit",
            f"still running after {self.steps:,} steps, in the loop of these lines",
            *lines,
            details=(
                f"pass steps= to allow more than steps={self.steps}",
                _there([int(t) // active.block.warp_size for t in active.lanes]),
            ),
        )


def blocks_of(first: Coordinates, cluster: Coordinates) -> list[Coordinates]:
    """The blocks of the cluster whose first block is `first`, by rank: x fastest."""
    ranges = [range(f, f + n) for f, n in zip(first, cluster)]
    return [(i, j, k) for k, j, i in itertools.product(*reversed(ranges))]


# --- loops that do not end ---


def lines_of_loop(program: Program, at: int) -> list[Loc]:
    """The lines of the innermost loop around a segment, where it goes round first; the segment's
    own where there is no loop."""
    segments = program.segments
    forward = _reachable(at, lambda i: _following(segments[i]))
    before: dict[int, list[int]] = {}
    for s in segments:
        for i in _following(s):
            before.setdefault(i, []).append(s.index)
    backward = _reachable(at, lambda i: before.get(i, []))
    loop = sorted(forward & backward) or [at]
    leaving = [i for i in loop if isinstance(segments[i].end, Branch)]
    found = dict[tuple[str, int], Loc]()
    ends = [segments[i].insts[-1] for i in leaving]
    for inst in itertools.chain(ends, *(segments[i].insts for i in loop)):
        if inst.loc is not UNKNOWN:
            found.setdefault((inst.loc.file, inst.loc.line), inst.loc)
    return list(found.values())[:2]


def _following(segment: Segment) -> list[int]:
    match segment.end:
        case Edge(target=target):
            return [target]
        case Branch(then=then, orelse=orelse):
            return [then.target, orelse.target]
        case Wait(next=following):
            return [following]
    return []


def _reachable(start: int, following: Callable[[int], Iterable[int]]) -> set[int]:
    """What `start` leads to in one step or more."""
    found: set[int] = set()
    todo = list(following(start))
    while todo:
        i = todo.pop()
        if i not in found:
            found.add(i)
            todo += following(i)
    return found


def _there(warps: Sequence[int]) -> str:
    low, high = min(warps), max(warps)
    return f"warp {low} is there" if low == high else f"warps {low} to {high} are there"
