"""The primitives of `tilec.ir.instr.machine.Machine` for an agent, handed on to the parts of its
block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from tilec.ir.instr.meaning import Waits, Where, Word
from tilec.ir.instr.row import MatrixRow
from tilec.ir.layout import Layout
from tilec.ir.llvm import Inst
from tilec.sim import matrices

if TYPE_CHECKING:
    from tilec.sim.agent import Agent
    from tilec.sim.block import Block


def _agent(m: Primitives) -> Agent:
    """Agents are the only ones that have these primitives."""
    return cast("Agent", m)


class Primitives:
    """What an agent can do besides arithmetic. See `Machine` for what each of it means."""

    __slots__ = ()

    block: Block
    lanes: NDArray[np.int64]
    inst: Inst | None

    def full(self, x: Any) -> NDArray[Any]:
        raise NotImplementedError

    # --- threads, mbarriers, barriers, registers ---

    def warp_sync(self) -> None:
        self.block.barriers.warp_sync(_agent(self))

    def mbarrier_init(self, address: Word, count: int) -> None:
        self.block.barriers.init(_agent(self), address, count)

    def mbarrier_init_fence(self) -> None:
        self.block.barriers.init_fence(_agent(self))

    def mbarrier_arrive(
        self,
        address: Word,
        *,
        expect: int = 0,
        block: Word | None = None,
        cluster_scope: bool = False,
        where: Where = None,
    ) -> None:
        self.block.barriers.arrive(_agent(self), address, expect, block, cluster_scope, where)

    def mbarrier_wait(self, address: Word, parity: Word, *, cluster_scope: bool = False) -> Waits:
        return self.block.barriers.wait(_agent(self), address, parity, cluster_scope)

    def barrier_sync(self, number: Word, threads: Word) -> Waits:
        return self.block.barriers.named_sync(_agent(self), number, threads)

    def barrier_arrive(self, number: Word, threads: Word) -> None:
        self.block.barriers.named_arrive(_agent(self), number, threads)

    def cluster_sync(self) -> Waits:
        return self.block.barriers.cluster_sync(_agent(self))

    def block_barrier(self) -> Waits:
        return self.block.barriers.block_barrier(_agent(self))

    def proxy_fence(self) -> None:
        self.block.order.fence(self.lanes)

    def device_fence(self) -> None:
        order = self.block.order
        if order.clocks.across is not None:
            order.clocks.across.fence(order, self.lanes)

    def count_up(self, address: Word, last: Word) -> Word:
        at = np.ascontiguousarray(self.full(address), np.int64)
        memory = self.block.memory
        return memory.globals.count_up(memory, _agent(self), at, self.full(last))

    def setmaxnreg(self, registers: int, increase: bool) -> Waits | None:
        return self.block.barriers.setmaxnreg(_agent(self), registers, increase)

    # --- asynchronous copies ---

    def cp_async(self, dest: Word, source: Word, bytes: int, valid: Word | None = None) -> None:
        self.block.engines.cp_async(_agent(self), dest, source, bytes, valid)

    def cp_async_commit(self) -> None:
        self.block.engines.cp_async_commit(_agent(self))

    def cp_async_wait(self, pending: int) -> None:
        self.block.engines.cp_async_wait(_agent(self), pending)

    def tma_load(
        self,
        dest: Word,
        map: Word,
        corner: Sequence[Word],
        barrier: Word,
        blocks: Word | None = None,
    ) -> None:
        self.block.engines.tma_load(_agent(self), dest, map, corner, barrier, blocks)

    def tma_store(
        self, map: Word, corner: Sequence[Word], source: Word, where: Where = None
    ) -> None:
        self.block.engines.tma_store(_agent(self), map, corner, source, where)

    def tma_store_commit(self) -> None:
        self.block.engines.tma_store_commit(_agent(self))

    def tma_store_wait(self, pending: int, read: bool) -> None:
        self.block.engines.tma_store_wait(_agent(self), pending, read)

    # --- matrices ---

    def ldmatrix(self, fragment: Layout, address: Word) -> tuple[Word, ...]:
        return matrices.ldmatrix(_agent(self), fragment, address)

    def stmatrix(self, fragment: Layout, address: Word, values: Sequence[Word]) -> None:
        matrices.stmatrix(_agent(self), fragment, address, values)

    def mma(
        self, row: MatrixRow, a: Sequence[Word], b: Sequence[Word], c: Sequence[Word]
    ) -> tuple[Word, ...]:
        return matrices.mma(_agent(self), row, a, b, c)

    def wgmma(
        self,
        row: MatrixRow,
        a: Sequence[Sequence[Word]],
        b: Sequence[Word],
        c: Sequence[Word] | None,
        *,
        a_transposed: bool = False,
        b_transposed: bool = False,
        keep: Word = 1,
    ) -> tuple[Word, ...]:
        return self.block.engines.wgmma(
            _agent(self), row, a, b, c, (a_transposed, b_transposed), keep
        )

    def wgmma_wait(self, pending: int, registers: Sequence[Word]) -> tuple[Word, ...]:
        return self.block.engines.wgmma_wait(_agent(self), pending, registers)

    # --- other blocks ---

    def cluster_load(self, address: Word, block: Word, words: int) -> tuple[Word, ...]:
        return self.block.engines.cluster_load(_agent(self), address, block, words)
