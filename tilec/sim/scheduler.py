"""Runs the blocks of one cluster (a block alone is a cluster of one): which agent goes next, where
lanes part and meet, who waits for whom.

Lanes that part at a branch are agents of their own until they meet where the branch says. That
they wait for one another there is a matter of speed, not of meaning: threads of different warps
owe each other nothing, so where nobody can go on, those who have arrived do."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import numpy as np

from tilec.sim.agent import Agent, Group, meet
from tilec.sim.block import Block
from tilec.sim.program import Branch, Edge, Program, Wait, operand_value

_TURN = 1000  # segments that an agent runs before others get their turn


class StepLimit(Exception):
    """More segments have run than a block may take."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent


class Scheduler:
    """`seed` None: agents run in order; else in an order that depends on it. `steps`: the most
    segments that the cluster may run. `turn` is called with the agent before each of its turns."""

    def __init__(
        self,
        program: Program,
        blocks: list[Block],
        seed: int | None = None,
        steps: int = 1 << 62,
        turn: Callable[[Agent], None] | None = None,
    ) -> None:
        self.turn = turn
        self.program, self.blocks, self.left = program, blocks, steps
        self.random = None if seed is None else random.Random(seed)
        self.running: deque[Agent] = deque()
        self.blocked: list[Agent] = []
        self.groups: list[Group] = []
        for block in blocks:
            env = list(program.start)
            for slot, value in zip(program.params, block.parameters):
                if slot is not None:
                    env[slot] = value
            self.running.append(Agent(block, np.arange(block.threads), env, 0, None))

    def run(self) -> None:
        """Until all threads have ended or none can go on, which is reported. Raises StepLimit."""
        with np.errstate(all="ignore"):
            while True:
                while self.running:
                    self._run(self._next())
                    self._wake()
                if not self.blocked and not any(g.arrived for g in self.groups):
                    return
                if not self._release():
                    for agent in self.blocked:
                        agent.block.barriers.deadlock(agent, self.blocked)
                        break
                    return

    def _next(self) -> Agent:
        if self.random is not None:
            self.running.rotate(-self.random.randrange(len(self.running)))
        return self.running.popleft()

    def _run(self, agent: Agent) -> None:
        """Run an agent until it waits, meets others, parts or ends, or has had its turn."""
        segments = self.program.segments
        turn = self._begin(agent)
        while True:
            if self.left <= 0:
                raise StepLimit(agent)
            if self.left <= turn:
                if self.running:
                    self.running.append(agent)  # it may be waiting for what others have to write
                    return
                turn = self._begin(agent)
            self.left -= 1
            segment = segments[agent.at]
            segment.run(agent, agent.env)
            end = segment.end
            if type(end) is Edge:
                self._follow(agent, end)
                if self._arrived(agent):
                    return
            elif type(end) is Branch:
                if not self._branch(agent, end):
                    return
            elif type(end) is Wait:
                if not self._wait(agent, end):
                    return
            else:
                self._leave(agent)
                return

    def _begin(self, agent: Agent) -> int:
        """Begin a turn of an agent; what is left of the steps when it ends."""
        if self.turn is not None:
            self.turn(agent)
        return self.left - _TURN

    @staticmethod
    def _follow(agent: Agent, edge: Edge) -> None:
        env = agent.env
        if edge.copies:
            values = [operand_value(env, source) for _, source in edge.copies]
            for (slot, _), value in zip(edge.copies, values):
                env[slot] = value
        agent.at = edge.target

    # --- parting and meeting ---

    def _branch(self, agent: Agent, end: Branch) -> bool:
        """Whether the agent goes on as it is."""
        cond = operand_value(agent.env, end.cond)
        if cond is None or not isinstance(cond, (np.ndarray, np.generic)):
            (cond,) = agent.undefined_condition(end.inst, cond)
        taken = bool(cond.all()) if np.ndim(cond) else bool(cond)
        if taken or not np.any(cond):
            self._follow(agent, end.then if taken else end.orelse)
            return not self._arrived(agent)
        group = agent.group
        if group is None or group.merge != end.merge:
            group = Group(end.merge, group, len(agent.lanes))
            self.groups.append(group)
        for mask, edge in ((cond, end.then), (~cond, end.orelse)):
            live = self.program.segments[edge.target].live_in
            part = agent.part(mask, live, edge.copies, edge.target, group)
            if not self._arrived(part):
                self.running.append(part)
        return False

    def _arrived(self, agent: Agent) -> bool:
        """Whether the agent has come to where its group meets, and has to wait there."""
        group = agent.group
        if group is None or agent.at != group.merge:
            return False
        group.arrived.append(agent)
        if sum(len(a.lanes) for a in group.arrived) == group.total:
            self._meet(group)
        return True

    def _meet(self, group: Group) -> None:
        """Those who have arrived go on as one agent."""
        arrived, group.arrived = group.arrived, []
        group.total -= sum(len(a.lanes) for a in arrived)
        if not group.total:
            self.groups.remove(group)
        agent = meet(arrived, self.program.segments[group.merge].live_in, group.merge, group.outer)
        if not self._arrived(agent):
            self.running.append(agent)

    def _leave(self, agent: Agent) -> None:
        """The agent's threads have ended."""
        group = agent.group
        while group is not None:
            group.total -= len(agent.lanes)
            if group.arrived and sum(len(a.lanes) for a in group.arrived) == group.total:
                self._meet(group)
            group = group.outer

    # --- waiting ---

    def _wait(self, agent: Agent, end: Wait) -> bool:
        """Whether the agent goes on at once."""
        args = tuple(operand_value(agent.env, a) for a in end.args)
        found = agent.start_wait(end.inst, args)
        if agent.waiting is None:
            if end.result is not None and found is not None:
                agent.env[end.result] = found[0] if len(found) == 1 else found
            agent.at = end.next
            return True
        agent.at = end.next
        self.blocked.append(agent)
        return False

    def _wake(self) -> None:
        """Let those go on whose waiting is over; where that is a part of an agent, it parts."""
        still: list[Agent] = []
        for agent in self.blocked:
            waiting = agent.waiting
            assert waiting is not None
            ready = waiting.ready()
            if not ready.any():
                still.append(agent)
                continue
            waiting.finish(ready)
            if ready.all():
                agent.waiting = None
                self.running.append(agent)
                continue
            live = self.program.segments[agent.at].live_in
            self.running.append(agent.part(ready, live, (), agent.at, agent.group))
            rest = agent.part(~ready, live, (), agent.at, agent.group)
            rest.waiting, rest.inst = waiting.only(~ready), agent.inst
            still.append(rest)
        self.blocked = still

    def _release(self) -> bool:
        """Nobody can go on: those who only wait for others of their group go on alone."""
        for group in reversed(self.groups):
            if group.arrived:
                self._meet(group)
                return True
        return False
