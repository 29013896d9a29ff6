"""A block of the simulator without a program: tests make its accesses by hand, one record each."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilec.ir.llvm import Inst, Val
from tilec.ir.llvm_text import BYTES
from tilec.ir.loc import Loc
from tilec.sim.buffers import SHARED_BASE, SharedBuffer
from tilec.sim.clocks import Clocks, Order
from tilec.sim.counts import Counts
from tilec.sim.findings import Findings
from tilec.sim.memory import BlockMemory
from tilec.sim.program import LoadStore
from tilec.sim.regions import GlobalMemory
from tilec.sim.tensors import GlobalTensor
from tilec.sim.threads import Threads

SHARED = "ptr addrspace(3)"
GLOBAL = "ptr addrspace(1)"


class Block:
    """`threads` threads with `size` bytes of shared memory. Every access takes the next source
    line; `line` is the last one's."""

    def __init__(
        self,
        threads: int = 64,
        size: int = 4096,
        buffers: Any = (),
        tensors: Any = (),
        *,
        warp_size: int = 32,
        granule: int = 4,
        checks: bool = True,
        clocks: Clocks | None = None,
        rank: int = 0,
        globals: GlobalMemory | None = None,
        party: int = 1,
        cluster: list[BlockMemory] | None = None,
        findings: Findings | None = None,
    ) -> None:
        self.threads, self.warp_size, self.index = threads, warp_size, (0, 0, 0)
        clocks = clocks or Clocks(threads, warp_size, party=party)
        self.order = Order(clocks, rank)
        self.findings = Findings() if findings is None else findings
        self.counts = Counts()
        self.globals = globals or GlobalMemory(tensors, checks)
        self.memory = BlockMemory(
            self.order,
            self.globals,
            size,
            buffers,
            granule=granule,
            counts=self.counts,
            checks=checks,
            cluster=cluster,
        )
        self.shadow = self.memory.shared.shadow
        self.line = 0

    def report(
        self, active: Threads, kind: Any, message: str, *locations: Any, **about: Any
    ) -> None:
        self.findings.add(kind, message, locations, **about)

    # --- accesses ---

    def _inst(self, opcode: str, buffer: str) -> Inst:
        self.line += 1
        inst = Inst(opcode, None, (Val("i32", "0"),), opcode, "", Loc("kernel.py", self.line))
        inst.buffer = buffer
        return inst

    def active(self, lanes: Any, opcode: str = "call", buffer: str = "") -> Threads:
        """Threads that execute a record of its own line."""
        active = Threads(self, np.atleast_1d(np.asarray(lanes)))
        active.inst = self._inst(opcode, buffer)
        return active

    def all(self) -> Any:
        return np.arange(self.threads)

    def access(self, active: Threads, space: str, kind: str, count: int, align: int) -> LoadStore:
        size = BYTES[kind]
        return LoadStore(active.inst, space, kind, count, count > 1, align or size * count, size)

    def load(
        self, lanes: Any, at: Any, kind: str = "float", count: int = 1, *, align: int = 0,
        buffer: str = "", space: str = "shared",
    ) -> Any:  # fmt: skip
        """Threads read at byte `at` of shared memory, or at an address of a tensor."""
        active = self.active(lanes, "load", buffer)
        base = SHARED_BASE if space == "shared" else 0
        access = self.access(active, space, kind, count, align)
        return self.memory.load(active, np.int64(base) + np.asarray(at, np.int64), access)

    def store(
        self, lanes: Any, at: Any, value: Any, kind: str = "float", count: int = 1, *,
        align: int = 0, buffer: str = "", space: str = "shared",
    ) -> None:  # fmt: skip
        active = self.active(lanes, "store", buffer)
        base = SHARED_BASE if space == "shared" else 0
        access = self.access(active, space, kind, count, align)
        self.memory.store(active, np.int64(base) + np.asarray(at, np.int64), value, access)

    def engine_read(self, lanes: Any, at: Any, size: int, column: Any, issuers: Any = None) -> Any:
        active = self.active(lanes)
        return self.memory.engine_read(active, SHARED_BASE + np.asarray(at), size, column, issuers)

    def engine_write(
        self, lanes: Any, at: Any, data: Any, column: Any, issuers: Any = None
    ) -> None:
        active = self.active(lanes)
        self.memory.engine_write(active, SHARED_BASE + np.asarray(at), data, column, issuers)

    # --- order ---

    def barrier(self, lanes: Any = None) -> None:
        """All threads, or some, meet."""
        lanes = self.all() if lanes is None else np.asarray(lanes)
        self.order.acquire(lanes, self.order.release(lanes))

    def kinds(self) -> list[str]:
        return [f.kind for f in self.findings]


def numbers(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def tensor(
    array: np.ndarray[Any, Any], number: int = 0, *, name: str = "x", written: bool = True,
    output: bool = False,
) -> GlobalTensor:  # fmt: skip
    """A tensor over a NumPy array of any strides."""
    low, high = np.lib.array_utils.byte_bounds(array)
    start = array.__array_interface__["data"][0]

    class Span:
        __array_interface__ = {
            "data": (low, False), "shape": (high - low,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    return GlobalTensor(
        name,
        np.asarray(Span()),
        start - low,
        array.shape,
        tuple(s // array.itemsize for s in array.strides),
        str(array.dtype),
        array.itemsize,
        written,
        output,
        number,
        owner=array,
    )


def buffer(name: str, start: int, shape: tuple[int, ...], bits: int = 32) -> SharedBuffer:
    return SharedBuffer(name, start, start + int(np.prod(shape)) * bits // 8, bits, shape)
