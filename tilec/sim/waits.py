"""What threads wait for: mbarriers, barriers at which a number of threads meet, and the pool of
registers that warpgroups share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tilec.ir.llvm import Inst
from tilec.sim.clocks import Clock, Ints, Order, Times
from tilec.sim.shadow import Shadow
from tilec.sim.threads import BlockInfo, Threads

Mask = NDArray[np.bool_]
Marks = dict[int, int]
"""Column of the clocks -> a time."""


class Condition(Protocol):
    """What threads wait for."""

    def ready(self) -> bool: ...

    def passed(self, active: Threads, lanes: Ints) -> None:
        """These threads go on: what it says is behind them."""

    def describe(self, block: BlockInfo) -> str:
        """What is missing, in words; "" where nothing is."""


@dataclass(slots=True)
class Waiting:
    """Threads that wait (see `ir.instr.semantics.Waits`): thread i for `conditions[which[i]]`."""

    active: Threads
    lanes: Ints
    conditions: Sequence[Condition]
    which: Ints

    def ready(self) -> Mask:
        mask: Mask = np.array([c.ready() for c in self.conditions])[self.which]
        return mask

    def finish(self, mask: Mask) -> None:
        for i, condition in enumerate(self.conditions):
            lanes = self.lanes[mask & (self.which == i)]
            if len(lanes):
                condition.passed(self.active, lanes)

    def only(self, mask: Mask) -> Waiting:
        return replace(self, lanes=self.lanes[mask], which=self.which[mask])

    def describe(self) -> str:
        here = (c for i, c in enumerate(self.conditions) if (self.which == i).any())
        return " and ".join(filter(None, (c.describe(self.active.block) for c in here)))


# --- mbarriers ---


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
    """One mbarrier: its phases, what each waits for, and what is behind those who saw it end.

    A phase ends when its arrivals and the bytes that were announced for it have come (PTX ISA,
    section "mbarrier"). A waiter names a phase by its parity only, so a program must keep every
    waiter within one phase of the barrier. That is checked by order, whatever the schedule was:

    - who goes on because phase p has ended must have the end of phase p - 1 behind it; otherwise it
      might have come earlier, and have taken the end of phase p - 2 for that of p;
    - phase p + 1 may end only after those who waited for phase p have gone on; otherwise they might
      have come later, and wait for ever, or for phase p + 2.

    `number`: of the phase that is running. `clock` and `marks`: what has arrived in it; `ended`
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

    def announce(self, bytes: int, inst: Inst | None) -> None:
        """Bytes will come in the running phase, as `inst` says."""
        self.tx += bytes
        self.announced += bytes
        self.expects = inst

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


class Published:
    """What a block may read in the shared memory of the others of its cluster: `times[r]` is up to
    when what the cluster's thread r did has been published to it.

    An arrival at another block's mbarrier orders what asynchronous engines did, and no more, unless
    it is a release at the scope of the cluster and the wait an acquire at that scope (PTX ISA,
    "Memory Consistency Model", sections "Scope" and "Release-Acquire Patterns"). The clocks make no
    difference between scopes. What is known of a thread of another block without its having been
    published may be read by engines only."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.times: Times = np.zeros(order.clocks.rows, np.int32)

    def meet(self) -> None:
        """All threads of the cluster have met."""
        self.times[:] = self.order.mark()

    def release(self, clock: Clock) -> Times:
        """What threads of this block publish when they have `clock` behind them: all of it that
        their own block did, and what had been published to it."""
        base = self.order.base
        mine = slice(base, base + self.order.clocks.threads)
        times = np.minimum(clock.seen[: len(self.times)], self.times)
        times[mine] = clock.seen[mine]
        return times

    def acquire(self, times: Times) -> None:
        """A wait at the scope of the cluster has ended."""
        np.maximum(self.times, times, out=self.times)

    def unknown(self, shadow: Shadow, at: Ints, size: int) -> Any:
        """The record of another block's thread that wrote any of the `size` bytes at the offsets in
        a shared memory without having published it to this block; None if there is none."""
        first = at // shadow.granule
        granules = first[:, None] + np.arange(max(size // shadow.granule, 1))
        granules = np.clip(granules, 0, shadow.count - 1)  # what is outside has been reported
        wrote, who = shadow.w_time[granules], shadow.w_actor[granules]
        own = (who >= self.order.base) & (who < self.order.base + self.order.clocks.threads)
        threads = (who < len(self.times)) & ~own
        bad = threads & (wrote >= self.times[np.where(threads, who, 0)])
        return shadow.clocks.log[int(wrote[bad][0])] if bad.any() else None


def check_published(
    active: Threads, published: Published, shadow: Shadow, at: Ints, size: int
) -> None:
    """Report a read, of a thread of the block that `published` is of, that nothing has been
    published for. See `Published.unknown`."""
    inst = published.unknown(shadow, at, size)
    if inst is not None:
        message = (
            "a thread of another block wrote this, and has not published it to the cluster, or "
            "the wait did not acquire it at that scope"
        )
        active.report("data race", message, inst)


@dataclass(slots=True)
class PhaseEnd:
    """That the phase of this parity has ended; nothing where there is no mbarrier. `published`:
    where to acquire what arrivals at the scope of the cluster have published; `inst`: the record
    that waits."""

    barrier: Mbarrier | None
    parity: int
    published: Published | None
    inst: Inst | None

    def ready(self) -> bool:
        return self.barrier is None or self.barrier.ready(self.parity)

    def passed(self, active: Threads, lanes: Ints) -> None:
        barrier, block = self.barrier, active.block
        if barrier is None:
            return
        order, clocks = block.order, block.order.clocks
        rows = lanes + order.base
        firsts = np.unique(rows // block.warp_size, return_index=True)[1]  # a warp waits as one
        if barrier.before and any(barrier.stale(clocks.seen[row]) for row in rows[firsts]):
            block.report(
                active,
                "parity can alias",
                f"a wait for phase {barrier.number - 1} of {barrier} is not ordered behind the end "
                f"of phase {barrier.number - 2}: it might take the end of phase "
                f"{barrier.number - 3} for it",
                *([self.inst.loc] if self.inst is not None else []),
                threads=lanes.tolist(),
            )
        if barrier.ended is not None:
            order.acquire(lanes, barrier.ended)
        if self.published is not None and barrier.published is not None:
            self.published.acquire(barrier.published)
        groups = np.split(rows, firsts[1:])
        barrier.passes.append(Pass(groups, order.mark(), self.inst, tuple(lanes.tolist())))

    def describe(self, block: BlockInfo) -> str:
        b = self.barrier
        if b is None:
            return ""
        return (
            f"for the end of a phase of parity {self.parity} of {b}, which is in phase {b.number} "
            f"and waits for {b.missing()}"
        )


# --- words that other blocks change ---


class Counted(Protocol):
    """Memory that counts the atomics that have changed it."""

    atomics: int


class NewAtomic:
    """That an atomic has changed `memory` since now."""

    def __init__(self, memory: Counted) -> None:
        self.memory, self.before = memory, memory.atomics

    def ready(self) -> bool:
        return self.memory.atomics > self.before

    def passed(self, active: Threads, lanes: Ints) -> None:
        """What the threads learn they find in the word."""

    def describe(self, block: BlockInfo) -> str:
        return "" if self.ready() else "for other blocks, which do not come to T.sync_grid"


# --- meeting ---


class Meeting:
    """Threads on their way to one meeting of `wanted`; `clock`: what is behind those who have
    come. That is behind them all when they go on, or `told` is told of it (AMD: it is by the next
    fence)."""

    def __init__(
        self, name: str, wanted: int, told: Callable[[Ints, Clock], None] | None = None
    ) -> None:
        self.name, self.wanted, self.told = name, wanted, told
        self.come: list[tuple[BlockInfo, Ints]] = []  # (block, threads)
        self.count = 0
        self.clock: Clock | None = None

    def add(self, block: BlockInfo, lanes: Ints, clock: Clock | None) -> None:
        self.come.append((block, lanes))
        self.count += len(lanes)
        if clock is not None:
            self.clock = clock if self.clock is None else self.clock.join(clock)

    def ready(self) -> bool:
        return self.count >= self.wanted

    def passed(self, active: Threads, lanes: Ints) -> None:
        if self.clock is not None:
            (self.told or active.block.order.acquire)(lanes, self.clock)

    def describe(self, block: BlockInfo) -> str:
        return "" if self.ready() else f"at {self.name}, where {self.missing(block)}"

    def missing(self, block: BlockInfo) -> str:
        """Which threads of a block have not come, in words."""
        there = np.zeros(block.threads, np.bool_)
        for where, lanes in self.come:
            if where is block:
                there[lanes] = True
        warps = np.flatnonzero(~there[:: block.warp_size])
        names = ", ".join(map(str, warps[:8])) + (", ..." if len(warps) > 8 else "")
        return f"{self.count} of {self.wanted} threads have come; not here: warps {names}"


class RegisterPool:
    """The registers per thread of each warp, `at_launch` of them to begin with, and what is left of
    the block's: the sum over the warps is at most what they had at launch. (PTX ISA, section
    "setmaxnreg".)"""

    def __init__(self, threads: int, warp_size: int, at_launch: int) -> None:
        self.at_launch = at_launch
        self.of = np.full(-(-threads // warp_size), at_launch)
        self.total = int(self.of.sum())

    def free(self) -> int:
        """Registers per thread, times warps, that nobody has."""
        return self.total - int(self.of.sum())

    def fitting(self, warps: Ints, wanted: int) -> Ints:
        """Those warps, whole groups of four at a time, that can have `wanted` now."""
        left, found = self.free(), []
        for group in np.unique(warps // 4):
            mine = warps[warps // 4 == group]
            need = int((wanted - self.of[mine]).sum())
            if need <= left:
                left -= need
                found += mine.tolist()
        return np.array(found, np.int64)

    def take(self, warps: Ints, wanted: int) -> None:
        self.of[warps] = wanted


@dataclass(slots=True)
class RegisterWait:
    """Warps that wait until the pool has what they ask for (see `ir.instr.machine.Waits`)."""

    active: Threads
    lanes: Ints
    pool: RegisterPool
    wanted: int

    def _warps(self, lanes: Ints) -> Ints:
        return np.unique(lanes // self.active.block.warp_size)

    def ready(self) -> Mask:
        fit = self.pool.fitting(self._warps(self.lanes), self.wanted)
        return np.isin(self.lanes // self.active.block.warp_size, fit)

    def finish(self, mask: Mask) -> None:
        self.pool.take(self._warps(self.lanes[mask]), self.wanted)

    def only(self, mask: Mask) -> RegisterWait:
        return replace(self, lanes=self.lanes[mask])

    def describe(self) -> str:
        held = [int(x) for x in self.pool.of[::4]]
        most = self.pool.at_launch * len(held)
        return (
            f"for {self.wanted} registers per thread; the warpgroups hold {held}, which with this "
            f"request is more than the {most} that they had at launch"
        )
