"""One mbarrier: its phases, what each waits for, and what is behind those who have seen it end.

A phase ends when its arrivals and the bytes that were announced for it have come (PTX ISA, section
"mbarrier"). A waiter names a phase by its parity only, so a program must keep every waiter within
one phase of the barrier. That is checked by order, whatever the schedule was:

- who goes on because phase p has ended must have the end of phase p - 1 behind it; otherwise it
  might have come earlier, and have taken the end of phase p - 2 for that of p;
- phase p + 1 may end only after those who waited for phase p have gone on; otherwise they might
  have come later, and wait for ever, or for phase p + 2."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.llvm import Inst
from tilec.sim.order import Clock, Times

if TYPE_CHECKING:
    from tilec.sim.agent import Agent

Ints = NDArray[np.int64]
Marks = dict[int, int]
"""Column of the clocks -> a time."""


@dataclass(slots=True)
class Pass:
    """Threads that went on together when a phase had ended: clock rows in groups (one warp each,
    whose lanes execute the wait as one), and the time."""

    groups: list[Ints]
    time: int
    inst: Inst | None
    threads: tuple[int, ...]


@dataclass(slots=True)
class Mbarrier:
    """`number`: of the phase that is running. `clock` and `marks`: what has arrived in it; `ended`
    and `ends`: the same of the one before. `tx`: bytes announced and not yet come. `again`: it has
    been initialised more than once. `publishing`: what the running phase's arrivals publish in the
    cluster, `published`: what those of the last phase have."""

    address: int
    name: str
    slot: int
    count: int
    made_by: int
    made_at: int
    inst: Inst | None
    pending: int = 0
    number: int = 0
    tx: int = 0
    announced: int = 0
    fenced: bool = False
    again: bool = False
    clock: Clock | None = None
    marks: Marks = field(default_factory=dict)
    ended: Clock | None = None
    ends: Marks = field(default_factory=dict)
    before: Marks = field(default_factory=dict)
    passes: list[Pass] = field(default_factory=list)
    publishing: Times | None = None
    published: Times | None = None
    expects: Inst | None = None
    copies: Inst | None = None

    def __post_init__(self) -> None:
        self.pending = self.count

    def __str__(self) -> str:
        return f"{self.name or 'mbarrier'}[{self.slot}]"

    def note(self, clock: Clock, marks: Marks) -> None:
        """Something has arrived in the running phase, with all that is behind it."""
        self.clock = clock if self.clock is None else self.clock.join(clock)
        for column, time in marks.items():
            self.marks[column] = max(time, self.marks.get(column, 0))

    def publish(self, times: Times) -> None:
        """An arrival of the running phase publishes this to those who acquire its end."""
        known = self.publishing
        self.publishing = times if known is None else np.maximum(known, times)

    def arrive(self, threads: int) -> None:
        self.pending -= threads

    def full(self) -> bool:
        """Whether the running phase has all it waits for."""
        return self.pending == 0 and self.tx == 0

    def end(self) -> Pass | None:
        """Begin the next phase. Gives threads that waited for the phase before and are not ordered
        before the end of this one, if there are such."""
        late = None
        clock = self.clock
        for p in self.passes:
            ahead = clock is not None and all(_any_after(clock, rows, p.time) for rows in p.groups)
            if not ahead:
                late = p
                break
        self.before, self.ends, self.ended = self.ends, self.marks, self.clock
        self.number, self.pending, self.announced = self.number + 1, self.count, 0
        self.clock, self.marks, self.passes = None, {}, []
        self.published, self.publishing = self.publishing, None
        return late

    def ready(self, parity: int) -> bool:
        """`try_wait.parity`: the last phase of this parity has ended."""
        return self.number & 1 != parity

    def stale(self, seen: Any) -> bool:
        """Whether a waiter with the row `seen` of the clocks might have come before the phase that
        precedes the one it has waited for had ended."""
        return any(seen[column] < time for column, time in self.before.items())

    def missing(self) -> str:
        """What the running phase still waits for."""
        parts = []
        if self.pending:
            parts.append(f"{self.pending} of {self.count} arrivals")
        if self.tx > 0:
            parts.append(f"{self.tx} of {self.announced} announced bytes")
        elif self.tx < 0:
            parts.append(f"{-self.tx} bytes have come that nobody announced")
        return " and ".join(parts) or "nothing"


def _any_after(clock: Clock, rows: Ints, time: int) -> bool:
    rows = rows[rows < len(clock.seen)]
    return bool((clock.seen[rows] > time).any())


class MbarrierWait:
    """Threads of an agent that wait for phases (see `ir.instr.machine.Waits`): `of[i]` is the
    barrier of thread i, with its parity. `acquires`: at the scope of the cluster."""

    def __init__(
        self,
        agent: Agent,
        lanes: Ints,
        of: list[tuple[Mbarrier | None, int]],
        which: Ints,
        acquires: bool = False,
    ) -> None:
        self.agent, self.lanes, self.of, self.which = agent, lanes, of, which
        self.acquires = acquires
        self.inst = agent.inst

    def ready(self) -> NDArray[np.bool_]:
        each = np.array([b is None or b.ready(parity) for b, parity in self.of])
        mask: NDArray[np.bool_] = each[self.which]
        return mask

    def finish(self, mask: NDArray[np.bool_]) -> None:
        for i, (barrier, _) in enumerate(self.of):
            lanes = self.lanes[mask & (self.which == i)]
            if barrier is not None and len(lanes):
                self._go_on(barrier, lanes)

    def _go_on(self, barrier: Mbarrier, lanes: Ints) -> None:
        block = self.agent.block
        order, clocks = block.order, block.order.clocks
        rows = lanes + order.base
        if barrier.before and any(barrier.stale(clocks.seen[row]) for row in _firsts(rows, block)):
            block.report(
                self.agent,
                "parity can alias",
                f"a wait for phase {barrier.number - 1} of {barrier} is not ordered behind the end "
                f"of phase {barrier.number - 2}: it might take the end of phase "
                f"{barrier.number - 3} for it",
                *_places(self.inst),
                threads=lanes.tolist(),
            )
        if barrier.ended is not None:
            order.acquire(lanes, barrier.ended)
        if self.acquires and barrier.published is not None:
            block.barriers.published.acquire(barrier.published)
        warps = np.unique(rows // block.warp_size, return_index=True)[1][1:]
        groups = np.split(rows, warps)
        passed = Pass(groups, order.mark(), self.inst, tuple(lanes.tolist()))
        barrier.passes.append(passed)

    def only(self, mask: NDArray[np.bool_]) -> MbarrierWait:
        made = MbarrierWait(self.agent, self.lanes[mask], self.of, self.which[mask], self.acquires)
        made.inst = self.inst
        return made

    def describe(self) -> str:
        names = []
        for i, (barrier, parity) in enumerate(self.of):
            if barrier is None or not (self.which == i).any():
                continue
            names.append(
                f"for the end of a phase of parity {parity} of {barrier}, which is in phase "
                f"{barrier.number} and waits for {barrier.missing()}"
            )
        return " and ".join(names)


def _firsts(rows: Ints, block: Any) -> Ints:
    """One row of each warp: its lanes wait as one."""
    found: Ints = rows[np.unique(rows // block.warp_size, return_index=True)[1]]
    return found


def _places(*insts: Inst | None) -> list[Any]:
    return [i.loc for i in insts if i is not None]
