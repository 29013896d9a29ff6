"""Runs the blocks of one cluster (a block alone is a cluster of one): which threads go next, where
lanes part and meet, who waits for whom.

Lanes that part at a branch are scheduled apart until they meet where the branch says. That
they wait for one another there is a matter of speed, not of meaning: threads of different warps
owe each other nothing, so where nobody can go on, those who have arrived do."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from tilec.ir.loc import UNKNOWN, Loc
from tilec.sim.barriers import Barriers
from tilec.sim.block import Setting, ThreadBlock
from tilec.sim.clocks import Across, Clocks, NoClocks
from tilec.sim.memory import BlockMemory
from tilec.sim.program import (
    NOWHERE,
    Branch,
    Edge,
    End,
    Operand,
    Program,
    Segment,
    Wait,
    operand_value,
)
from tilec.sim.thread_state import Group, ThreadState, meet
from tilec.sim.threads import Coordinates

_TURN = 1000  # segments that threads run before others get their turn


class StepLimit(Exception):
    """More segments have run than a block may take."""

    def __init__(self, active: ThreadState) -> None:
        super().__init__()
        self.active = active


class Scheduler:
    """`seed` None: threads run in order; else in an order that depends on it. `steps`: the most
    segments that the cluster may run. `turn` is called with threads before each of their turns."""

    def __init__(
        self,
        program: Program,
        blocks: list[ThreadBlock],
        seed: int | None = None,
        steps: int = 1 << 62,
        turn: Callable[[ThreadState], None] | None = None,
    ) -> None:
        self.turn = turn
        self.program, self.blocks, self.left = program, blocks, steps
        self.random = None if seed is None else random.Random(seed)
        self.running: deque[ThreadState] = deque()
        self.blocked: list[ThreadState] = []
        self.groups: list[Group] = []
        for block in blocks:
            env = list(program.start)
            for slot, value in zip(program.params, block.setting.launch.parameters):
                if slot is not None:
                    env[slot] = value
            self.running.append(ThreadState(block, np.arange(block.threads), env, 0, None))

    def run(self) -> None:
        """Until all threads have ended or none can go on, which is reported. Raises StepLimit."""
        if not self.run_alone():
            self.report_deadlock()

    def report_deadlock(self) -> None:
        active = self.blocked[0]
        active.block.barriers.deadlock(active, self.blocked)

    def run_alone(self, hasty: bool = True) -> bool:
        """Until all threads have ended (True) or none can go on by itself. Unless `hasty`, threads
        wait for those of their group that others may let go on. Raises StepLimit."""
        self._wake()
        with np.errstate(all="ignore"):
            while True:
                while self.running:
                    self._run(self._next())
                    self._wake()
                if not self.blocked and not any(g.arrived for g in self.groups):
                    return True
                if not (hasty and self._release()):
                    return False

    def _next(self) -> ThreadState:
        if self.random is not None:
            self.running.rotate(-self.random.randrange(len(self.running)))
        return self.running.popleft()

    def _run(self, active: ThreadState) -> None:
        """Run threads until they wait, meet others, part or end, or have had their turn."""
        segments = self.program.segments
        turn = self._begin(active)
        while True:
            if self.left <= 0:
                raise StepLimit(active)
            if self.left <= turn:
                if self.running:
                    self.running.append(active)  # it may be waiting for what others have to write
                    return
                turn = self._begin(active)
            self.left -= 1
            segment = segments[active.at]
            segment.run(active, active.env)
            end = segment.end
            if type(end) is Edge:
                self._follow(active, end)
                if self._arrived(active):
                    return
            elif type(end) is Branch:
                if not self._branch(active, end):
                    return
            elif type(end) is Wait:
                if not self._wait(active, end):
                    return
            else:
                self._leave(active)
                return

    def _begin(self, active: ThreadState) -> int:
        """Begin a turn; what is left of the steps when it ends."""
        if self.turn is not None:
            self.turn(active)
        return self.left - _TURN

    @staticmethod
    def _follow(active: ThreadState, edge: Edge) -> None:
        env = active.env
        if edge.copies:
            values = [operand_value(env, source) for _, source in edge.copies]
            for (slot, _), value in zip(edge.copies, values):
                env[slot] = value
        active.at = edge.target

    # --- parting and meeting ---

    def _branch(self, active: ThreadState, end: Branch) -> bool:
        """Whether all of the threads go on together."""
        cond = operand_value(active.env, end.cond)
        if cond is None or not isinstance(cond, (np.ndarray, np.generic)):
            (cond,) = active.defined(end.inst, (cond,))  # where not, it is not taken
        true = np.count_nonzero(cond)
        taken = true == cond.size
        if taken or not true:
            self._follow(active, end.then if taken else end.orelse)
            return not self._arrived(active)
        group = active.group
        if group is None or group.merge != end.merge:
            group = Group(end.merge, active, self._beside(active.at, end))
            self.groups.append(group)
        for mask, edge in ((cond, end.then), (~cond, end.orelse)):
            live = self.program.segments[edge.target].live_in
            part = active.part(mask, live, edge.copies, edge.target, group)
            if not self._arrived(part):
                self.running.append(part)
        return False

    def _beside(self, at: int, end: Branch) -> frozenset[int]:
        """What is needed where the lanes meet that part at segment `at`, and not between."""
        if end.beside is None and end.merge == NOWHERE:
            end.beside = frozenset()
        elif end.beside is None:
            segments = self.program.segments
            between = _reachable(
                at, lambda i: [j for j in _following(segments[i]) if j != end.merge]
            )
            touched = {slot for i in between | {at} for slot in _touched(segments[i].end)}
            touched.update(*(segments[i].touched for i in between))
            end.beside = frozenset(segments[end.merge].live_in) - touched
        return end.beside or frozenset()

    def _arrived(self, active: ThreadState) -> bool:
        """Whether the threads have come to where their group meets, and have to wait there."""
        group = active.group
        if group is None or active.at != group.merge:
            return False
        group.arrived.append(active)
        if sum(len(a.lanes) for a in group.arrived) == group.total:
            self._meet(group)
        return True

    def _meet(self, group: Group) -> None:
        """Those who have arrived go on as one active."""
        arrived, group.arrived = group.arrived, []
        group.total -= sum(len(a.lanes) for a in arrived)
        if not group.total:
            self.groups.remove(group)
        active = meet(arrived, self.program.segments[group.merge].live_in, group)
        if not self._arrived(active):
            self.running.append(active)

    def _leave(self, active: ThreadState) -> None:
        """The threads have ended."""
        group = active.group
        while group is not None:
            group.total -= len(active.lanes)
            if group.arrived and sum(len(a.lanes) for a in group.arrived) == group.total:
                self._meet(group)
            group = group.outer

    # --- waiting ---

    def _wait(self, active: ThreadState, end: Wait) -> bool:
        """Whether the threads go on at once."""
        args = tuple(operand_value(active.env, a) for a in end.args)
        found = active.start_wait(end.inst, args)
        if active.waiting is None:
            if end.result is not None and found is not None:
                active.env[end.result] = found[0] if len(found) == 1 else found
            active.at = end.next
            return True
        active.at = end.next
        self.blocked.append(active)
        return False

    def _wake(self) -> None:
        """Let those go on whose waiting is over; where that is a part of an active, it parts."""
        still: list[ThreadState] = []
        for active in self.blocked:
            waiting = active.waiting
            assert waiting is not None
            ready = waiting.ready()
            if not ready.any():
                still.append(active)
                continue
            waiting.finish(ready)
            if ready.all():
                active.waiting = None
                self.running.append(active)
                continue
            live = self.program.segments[active.at].live_in
            self.running.append(active.part(ready, live, (), active.at, active.group))
            rest = active.part(~ready, live, (), active.at, active.group)
            rest.waiting, rest.inst = waiting.only(~ready), active.inst
            still.append(rest)
        self.blocked = still

    def _release(self) -> bool:
        """Nobody can go on: those who only wait for others of their group go on alone."""
        for group in reversed(self.groups):
            if group.arrived:
                self._meet(group)
                return True
        return False


# --- the clusters of a launch ---
#
# Runs the clusters of a launch one after the other, and says where one is that does not end.


class LaunchRun:
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
        scheduler, cluster = self._cluster(first)
        try:
            scheduler.run()
        except StepLimit as e:
            self._report_endless(e.active)
            return False
        if not scheduler.blocked:
            _end(cluster)
        return True

    def run_together(self, clusters: Sequence[Coordinates]) -> bool:
        """Run clusters that wait for one another, each as far as it can go by itself, and again;
        whether they have come to an end."""
        memory, left = self.setting.globals, [self._cluster(first) for first in clusters]
        hasty = False
        while left:
            done, still = memory.atomics, []
            for scheduler, cluster in left:
                try:
                    ended = scheduler.run_alone(hasty)
                except StepLimit as e:
                    self._report_endless(e.active)
                    return False
                if ended:
                    _end(cluster)
                else:
                    still.append((scheduler, cluster))
            left = still
            if left and memory.atomics == done:  # nobody has anything new to look at
                if hasty:
                    left[0][0].report_deadlock()
                    return False
                hasty = True
            else:
                hasty = False
        return True

    def _cluster(self, first: Coordinates) -> tuple[Scheduler, list[ThreadBlock]]:
        """The cluster whose first block is `first`, about to begin."""
        s = self.setting
        self._party += 1
        places = blocks_of(first, s.launch.cluster)
        make = Clocks if s.checks else NoClocks
        warp_size = s.launch.target.warp_size
        clocks = make(s.launch.threads, warp_size, len(places), self._party)
        if s.checks:
            clocks.across = Across(clocks, s.globals.left)
        memories: list[BlockMemory] = []
        barriers: list[Barriers] = []
        cluster = [ThreadBlock(s, index, clocks, memories, barriers) for index in places]
        scheduler = Scheduler(
            self.program,
            cluster,
            None if self.seed is None else self.seed + self._party,
            self.steps,
            self.turn,
        )
        for block in cluster:
            block.steps = lambda: self.steps - scheduler.left
        return scheduler, cluster

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


def _end(cluster: Sequence[ThreadBlock]) -> None:
    for block in cluster:
        block.finish()
    for block in cluster:
        block.leave()


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


def _touched(end: End) -> Iterator[int]:
    """The slots that the scheduler reads or writes behind a segment."""
    slots: list[Operand | None] = []
    match end:
        case Branch(cond=cond):
            slots = [cond]
        case Wait(args=args, result=result):
            slots = [*args, result]
    edges = (end,) if isinstance(end, Edge) else ()
    for edge in (end.then, end.orelse) if isinstance(end, Branch) else edges:
        slots += itertools.chain(*edge.copies)
    return (slot for slot in slots if isinstance(slot, int))


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
