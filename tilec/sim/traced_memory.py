"""A block's memory that tells a tracer of everything that is written to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.sim.memory import Memory
from tilec.sim.places import SHARED_BASE
from tilec.sim.storage import Bytes
from tilec.sim.trace import Tracer

if TYPE_CHECKING:
    from tilec.sim.agent import Agent
    from tilec.sim.program import Access

_RANK = 24  # see `memory`: bits of a shared address from here on name a block of the cluster
_GLOBAL = 1 << 40


class TracedMemory(Memory):
    """`tracer` is set before the first access, and `step` says what time it is."""

    tracer: Tracer
    step: Callable[[], int]

    def store(self, agent: Agent, at: Any, value: Any, access: Access) -> None:
        super().store(agent, at, value, access)
        self._wrote(agent, agent.full(at), access.bytes * access.count)

    def warp_write(self, agent: Agent, at: Any, data: Bytes) -> None:
        super().warp_write(agent, at, data)
        self._wrote(agent, agent.full(at), data.shape[1])

    def engine_write(
        self, agent: Agent, at: Any, data: Bytes, column: Any, issuers: Any = None
    ) -> None:
        super().engine_write(agent, at, data, column, issuers)
        self._wrote(agent, at, data.shape[1])

    def _wrote(self, agent: Agent, at: Any, width: int) -> None:
        """`width` bytes from each of the addresses on have been written by the agent's record."""
        at = np.asarray(at, np.int64)
        if not len(at) or agent.inst is None:
            return
        where, loc, step = agent.block.index, agent.inst.loc, self.step()
        if at[0] >= _GLOBAL:
            peek = self.tracer.peek_global
            self.tracer.memory_written("global", at, width, peek, where, loc, step)
            return
        rank = int(at[0]) >> _RANK
        owner = self if rank == 0 else self.cluster[rank - 1]
        inside = (at & (1 << _RANK) - 1) - SHARED_BASE

        def peek_shared(address: int, size: int) -> bytes:
            return owner.shared.storage.gather(np.array([address]), size).tobytes()

        self.tracer.memory_written("shared", inside, width, peek_shared, where, loc, step)
