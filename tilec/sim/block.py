"""A block of a launch: its threads' memory, barriers and engines, and who they are to the user."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilec.ir.core import Func
from tilec.ir.llvm import Inst
from tilec.sim.barriers import Barriers
from tilec.sim.buffers import RegisterBuffer, SharedBuffer, shared_buffers
from tilec.sim.clocks import Clocks
from tilec.sim.counts import Counts
from tilec.sim.engines import Engines
from tilec.sim.findings import Findings
from tilec.sim.global_memory import GlobalMemory
from tilec.sim.intrinsics import DISPATCH_PACKET, intrinsic
from tilec.sim.memory import Memory, TracedMemory
from tilec.sim.printing import lines_of
from tilec.sim.program import Access
from tilec.sim.tensors import TensorMap
from tilec.sim.threads import BlockInfo, Coordinates, Threads
from tilec.sim.trace import Tracer
from tilec.sim.updates import Updates, updates
from tilec.target import Target

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
    grid: Coordinates
    cluster: Coordinates
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


class Block(BlockInfo):
    """One block. `memories` and `barriers`: those of its cluster by rank, to which its own are
    added."""

    def __init__(
        self,
        setting: Setting,
        index: Coordinates,
        clocks: Clocks,
        memories: list[Memory],
        barriers: list[Barriers],
        party: int,
    ) -> None:
        self.setting, self.index = setting, index
        self.func, self.findings, self.registers = setting.func, setting.findings, setting.registers
        self.target, self.warp_size = setting.target, setting.target.warp_size
        self.checks, self.threads = setting.checks, setting.threads
        self.grid, self.cluster_dims = setting.grid, setting.cluster
        self.order = clocks.order(len(memories))
        self.steps: Callable[[], int] = int  # segments that the cluster has run
        self.executing = None
        self.memory = self._memory(memories, party)
        self.barriers = Barriers(self, barriers, setting.at_launch)
        self.engines = Engines(self, self.memory, self.barriers, setting.maps)

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

    # --- what threads ask for ---

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

    def print_line(self, active: Threads, name: str, values: tuple[Any, ...]) -> None:
        """T.print, of each of the threads: on stdout, and kept for the report."""
        for line in lines_of(self.setting.strings[name], values, len(active.lanes)):
            self.setting.printed.append(line)
            print(line)

    def written_register(self, active: Threads, inst: Inst, slot: str, value: Any) -> None:
        """A stack slot that is traced has got a value."""
        assert self.setting.tracer is not None
        self.setting.tracer.register_written(
            slot, value, active.lanes, self.index, inst.loc, self.steps()
        )
