"""A block of the simulator without a program: its memory, clocks, barriers and engines, for tests
that execute single rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tilec.ir.instr import Asm, Instruction, Intrinsic
from tilec.ir.llvm import Inst
from tilec.ir.loc import Loc
from tilec.passes.utils.registers import at_launch
from tilec.sim.barriers import Barriers
from tilec.sim.buffers import SHARED_BASE
from tilec.sim.clocks import Clocks, Order
from tilec.sim.engines import Engines
from tilec.sim.findings import Findings
from tilec.sim.memory import BlockMemory
from tilec.sim.regions import GlobalMemory
from tilec.sim.shadow import Actors
from tilec.sim.tensors import GlobalTensor, TensorMap
from tilec.sim.thread_state import ThreadState
from tilec.target import find_target

SHARED_BYTES = 96 * 1024


class Bench:
    """One cluster. `arrays`: the tensors, in order."""

    def __init__(
        self,
        threads: int = 128,
        target: str = "cuda:sm_90a",
        arrays: dict[str, np.ndarray] | None = None,
        blocks: int = 1,
    ) -> None:
        self.target = find_target(target)
        self.findings = Findings()
        self.tensors = [tensor(name, a, i) for i, (name, a) in enumerate((arrays or {}).items())]
        self.maps: list[TensorMap] = []
        clocks = Clocks(threads, self.target.warp_size, blocks)
        memories: list[BlockMemory] = []
        barriers: list[Barriers] = []
        shared = GlobalMemory(self.tensors)
        self.blocks: list[Any] = []
        for rank in range(blocks):
            block = SimpleNamespace(
                order=Order(clocks, rank),
                index=(rank, 0, 0),
                grid=(blocks, 1, 1),
                cluster_dims=(blocks, 1, 1),
                threads=threads,
                warp_size=self.target.warp_size,
                target=self.target,
                checks=True,
                executing=None,
                report=self._report,
            )
            block.memory = BlockMemory(
                block.order, shared, SHARED_BYTES, granule=1, cluster=memories
            )
            launched = at_launch(threads, self.target)
            block.barriers = Barriers(block, barriers, launched)
            block.engines = Engines(block, block.memory, block.barriers, self.maps)
            self.blocks.append(block)
        self.lines = 0

    def _report(self, active: Any, kind: Any, message: str, *places: Loc, **more: Any) -> None:
        self.findings.add(kind, message, places, **more)

    @property
    def kinds(self) -> list[str]:
        return [f.kind for f in self.findings]

    def active(self, lanes: Any = None, block: int = 0) -> ThreadState:
        threads = self.blocks[block].threads
        lanes = np.arange(threads) if lanes is None else np.asarray(lanes)
        return ThreadState(self.blocks[block], lanes, [], 0, None)

    def run(
        self, active: ThreadState, what: Instruction | Asm | Intrinsic, *args: Any, buffer: str = ""
    ) -> Any:
        """Execute a row with registers as NumPy scalars or arrays; gives its results, or what the
        active waits for."""
        self.lines += 1
        form = what.asm if isinstance(what, Instruction) else what
        name = what.name if isinstance(what, Instruction) else ""
        loc = Loc(__file__, self.lines, 0, 1)
        active.inst = Inst("asm", None, (), "", name, loc, "", form.semantics, buffer)
        return form.semantics(active, *args)

    def pass_(self, active: ThreadState, what: Instruction, *args: Any) -> None:
        """Execute a row that may wait, and go on; it must be possible."""
        waiting = self.run(active, what, *args)
        ready = waiting.ready()
        assert ready.all(), waiting.describe()
        waiting.finish(ready)

    # --- shared memory, without history ---

    def bytes(self, block: int = 0) -> np.ndarray:
        return self.blocks[block].memory.shared.storage.data

    def put(self, offset: int, values: np.ndarray, active: ThreadState | None = None) -> None:
        """Store bytes as thread 0 does, ordered before everything: all threads know of it."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        block = self.blocks[0] if active is None else active.block
        everyone = ThreadState(block, np.arange(block.threads), [], 0, None)
        first = ThreadState(block, np.arange(1), [], 0, None)
        first.inst = Inst("store", None, (), "")
        at = SHARED_BASE + offset + np.arange(len(data))
        one = block.order.team(np.zeros(len(data), np.int64))
        # one byte after the other, all by thread 0
        by, regions = Actors(first, block.order, one), [(block.memory.shared, None)]
        block.memory._write(regions, by, at, data[:, None], 1)
        block.order.acquire(everyone.lanes, block.order.release(first.lanes))
        block.order.fence(everyone.lanes)


def tensor(name: str, a: np.ndarray, number: int) -> GlobalTensor:
    """A tensor parameter of a contiguous array."""
    strides = tuple(s // a.itemsize for s in a.strides)
    memory = a.reshape(-1).view(np.uint8)
    return GlobalTensor(
        name, memory, 0, a.shape, strides, str(a.dtype), a.itemsize, True, False, number
    )
