"""A block of a launch: its threads' memory, barriers and engines, and who they are to the user."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.ir.core import Func, walk
from tilec.ir.llvm import Inst
from tilec.ir.loc import Loc
from tilec.ir.ops import Scope
from tilec.sim.barriers import Barriers
from tilec.sim.counts import Counts
from tilec.sim.engines import Engines
from tilec.sim.findings import Findings, Kind
from tilec.sim.global_memory import GlobalMemory
from tilec.sim.intrinsics import DISPATCH_PACKET, intrinsic
from tilec.sim.memory import Memory
from tilec.sim.order import Clocks
from tilec.sim.places import SharedBuffer, shared_buffers
from tilec.sim.printing import lines_of
from tilec.sim.tensors import TensorMap
from tilec.sim.trace import RegisterBuffer, Tracer
from tilec.sim.traced_memory import TracedMemory
from tilec.sim.updates import Updates, updates
from tilec.target import Target

if TYPE_CHECKING:
    from tilec.sim.agent import Agent
    from tilec.sim.program import Access

Index = tuple[int, int, int]

_GRID_OF_PACKET = 12  # bytes from the packet's start to the grid's three sizes, in threads


@dataclass
class Setting:
    """What all blocks of one run have in common. `granule`: bytes of the narrowest access to shared
    memory. `seed` makes the noise in memory that nobody has written. `registers`: the user's
    buffers that threads hold in stack slots. `at_launch`: registers of a thread when a block
    begins."""

    func: Func
    target: Target
    parameters: Sequence[Any]
    maps: Sequence[TensorMap]
    grid: Index
    cluster: Index
    globals: GlobalMemory
    findings: Findings
    counts: Counts
    strings: Mapping[str, str]
    granule: int = 1
    checks: bool = True
    seed: int = 0
    tracer: Tracer | None = None
    registers: Sequence[RegisterBuffer] = ()
    at_launch: int = 0
    printed: list[str] = field(default_factory=list)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return int(self.func.attrs["launch_threads"])

    @functools.cached_property
    def updates(self) -> Updates:
        """Stores of which no two threads may make the same one."""
        return updates(self.func)

    @functools.cached_property
    def buffers(self) -> list[SharedBuffer]:
        """The buffers that each block has in shared memory."""
        return shared_buffers(self.func)


class Block:
    """One block; `cluster` are those of its cluster by rank, itself included."""

    def __init__(
        self,
        setting: Setting,
        index: Index,
        clocks: Clocks,
        cluster: list[Block],
        memories: list[Memory],
        party: int,
    ) -> None:
        self.setting, self.index, self.cluster = setting, index, cluster
        cluster.append(self)
        self.target, self.warp_size = setting.target, setting.target.warp_size
        self.threads, self.parameters = setting.threads, setting.parameters
        self.grid, self.cluster_dims, self.maps = setting.grid, setting.cluster, setting.maps
        self.order = clocks.order(len(cluster) - 1)
        self.steps: Callable[[], int] = int  # segments that the cluster has run
        self.executing: Inst | None = None  # the last row or store that an agent came to
        self.memory = self._memory(memories, party)
        self.barriers = Barriers(self)
        self.engines = Engines(self)

    def _memory(self, memories: list[Memory], party: int) -> Memory:
        s = self.setting
        kind = Memory if s.tracer is None else TracedMemory
        memory = kind(
            self.order,
            s.globals,
            int(s.func.attrs["shared_bytes"]),
            s.buffers,
            granule=s.granule,
            cluster=memories,
            party=party,
            counts=s.counts if s.checks else None,
            checks=s.checks,
            seed=s.seed + party,
            updates=s.updates if s.checks else frozenset(),
        )
        if isinstance(memory, TracedMemory) and s.tracer is not None:
            memory.tracer, memory.step = s.tracer, lambda: self.steps()
        return memory

    def finish(self) -> None:
        """All threads have ended."""
        self.barriers.finish()
        self.engines.finish()

    # --- what agents ask for ---

    def meaning(self, inst: Inst) -> Callable[..., Any]:
        """What a row or intrinsic does."""
        found: Callable[..., Any] | None = inst.meaning or intrinsic(inst.row)
        assert found is not None  # or the program would not have been read
        return found

    def constant(self, at: Any, access: Access) -> Any:
        """A load of what the launch has put beside the arguments: AMD's dispatch packet, of which
        the grid's size in threads is known."""
        dim = (int(at) - DISPATCH_PACKET - _GRID_OF_PACKET) // 4
        return np.int32(self.grid[dim] * (self.threads if dim == 0 else 1))

    def print_line(self, agent: Agent, name: str, values: tuple[Any, ...]) -> None:
        """T.print, of each of the agent's threads: on stdout, and kept for the report."""
        for line in lines_of(self.setting.strings[name], values, len(agent.lanes)):
            self.setting.printed.append(line)
            print(line)

    def written_register(self, agent: Agent, inst: Inst, slot: str, value: Any) -> None:
        """A stack slot that is traced has got a value."""
        assert self.setting.tracer is not None
        self.setting.tracer.register_written(
            slot, value, agent.lanes, self.index, inst.loc, self.steps()
        )

    # --- findings ---

    def report(
        self,
        agent: Agent | None,
        kind: Kind,
        message: str,
        *locations: Loc,
        buffer: str = "",
        indices: Sequence[tuple[int, ...]] = (),
        threads: Sequence[int] = (),
        warps: Sequence[int] = (),
        details: Sequence[str] = (),
    ) -> None:
        """A fault of this block. Without `threads` those of the agent are meant."""
        if not len(threads) and agent is not None and not details:
            threads = agent.lanes.tolist()
        if not len(warps):
            warps = sorted({int(t) // self.warp_size for t in threads})
        self.setting.findings.add(
            kind,
            message,
            locations,
            buffer=buffer,
            indices=indices,
            threads=threads,
            warps=warps,
            roles=roles_of(self.setting.func, warps),
            block=self.index,
            details=details,
        )


def roles_of(func: Func, warps: Sequence[int]) -> tuple[str, ...]:
    """What these warps do, by the names of their scopes; nothing where all do the same."""
    scopes = [o for o in walk(func.body) if isinstance(o, Scope)]
    found = [
        o.name for o in scopes if any(o.first_warp <= w < o.first_warp + o.warps for w in warps)
    ]
    return tuple(dict.fromkeys(found))
