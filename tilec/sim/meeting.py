"""Barriers at which a number of threads meet: named ones, the cluster's, AMD's; and the pool of
registers that warpgroups share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilec.sim.order import Clock

if TYPE_CHECKING:
    from tilec.sim.agent import Agent

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Meeting:
    """Threads on their way to one meeting of `wanted`; `clock`: what is behind those who have
    come."""

    def __init__(self, name: str, wanted: int) -> None:
        self.name, self.wanted = name, wanted
        self.come: list[tuple[Any, Ints]] = []  # (block, threads)
        self.count = 0
        self.clock: Clock | None = None

    def add(self, block: Any, lanes: Ints, clock: Clock | None) -> None:
        self.come.append((block, lanes))
        self.count += len(lanes)
        if clock is not None:
            self.clock = clock if self.clock is None else self.clock.join(clock)

    @property
    def full(self) -> bool:
        return self.count >= self.wanted

    def missing(self, block: Any) -> str:
        """Which threads of a block have not come, in words."""
        there = np.zeros(block.threads, np.bool_)
        for where, lanes in self.come:
            if where is block:
                there[lanes] = True
        warps = np.flatnonzero(~there[:: block.warp_size])
        names = ", ".join(map(str, warps[:8])) + (", ..." if len(warps) > 8 else "")
        return f"{self.count} of {self.wanted} threads have come; not here: warps {names}"


class MeetingWait:
    """Threads of an agent at meetings (see `ir.instr.machine.Waits`): thread i waits for
    `meetings[which[i]]`. `acquires`: going on puts what the others have done behind them; AMD's
    barrier leaves that to a fence."""

    def __init__(
        self, agent: Agent, lanes: Ints, meetings: list[Meeting], which: Ints, acquires: bool = True
    ) -> None:
        self.agent, self.lanes, self.meetings, self.which = agent, lanes, meetings, which
        self.acquires = acquires

    def ready(self) -> Mask:
        mask: Mask = np.array([m.full for m in self.meetings])[self.which]
        return mask

    def finish(self, mask: Mask) -> None:
        block = self.agent.block
        for i, meeting in enumerate(self.meetings):
            lanes = self.lanes[mask & (self.which == i)]
            if not len(lanes) or meeting.clock is None:
                continue
            if self.acquires:
                block.order.acquire(lanes, meeting.clock)
            else:
                block.barriers.met(lanes, meeting.clock)

    def only(self, mask: Mask) -> MeetingWait:
        return MeetingWait(
            self.agent, self.lanes[mask], self.meetings, self.which[mask], self.acquires
        )

    def describe(self) -> str:
        return " and ".join(
            f"at {m.name}, where {m.missing(self.agent.block)}"
            for i, m in enumerate(self.meetings)
            if (self.which == i).any() and not m.full
        )


class Registers:
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


class RegisterWait:
    """Warps that wait until the pool has what they ask for (see `ir.instr.machine.Waits`)."""

    def __init__(self, agent: Agent, lanes: Ints, pool: Registers, wanted: int) -> None:
        self.agent, self.lanes, self.pool, self.wanted = agent, lanes, pool, wanted

    def _warps(self, lanes: Ints) -> Ints:
        return np.unique(lanes // self.agent.block.warp_size)

    def ready(self) -> Mask:
        fit = self.pool.fitting(self._warps(self.lanes), self.wanted)
        return np.isin(self.lanes // self.agent.block.warp_size, fit)

    def finish(self, mask: Mask) -> None:
        self.pool.take(self._warps(self.lanes[mask]), self.wanted)

    def only(self, mask: Mask) -> RegisterWait:
        return RegisterWait(self.agent, self.lanes[mask], self.pool, self.wanted)

    def describe(self) -> str:
        held = [int(x) for x in self.pool.of[::4]]
        most = self.pool.at_launch * len(held)
        return (
            f"for {self.wanted} registers per thread; the warpgroups hold {held}, which with this "
            f"request is more than the {most} that they had at launch"
        )
