"""Ops that say by hand what passes otherwise work out: who waits for whom, and who runs what.

They stand beside the barriers of `schedule`, which are the same for users and passes."""

from __future__ import annotations

from tilec.ir.core import Block, Effect, Effects, Op, Region, Value
from tilec.ir.effects import ORDER, effects_in, update
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import op
from tilec.ir.ops import schedule
from tilec.ir.ops.peers import ClusterCopy
from tilec.ir.ops.tile import Gemm

__all__ = ["TmaCopy", "MbarrierExpectTx", "SetRegisters", "BarrierArrive", "is_by_hand"]


@op("tma_copy")
class TmaCopy(Op):
    """One thread of the scope starts TMA boxes that copy a region of a tensor into a shared tile,
    and announces their bytes on slot `stage` of `barrier` without arriving there. Who has waited
    for that phase may read the tile. `cache` as of `mem_load`.

    `mask`, where it is not 0: the blocks of the cluster that it has the bits of all come here, and
    the first of them starts one copy for all (multicast), when all have come to slot 0 of its
    barrier `gate`. At slot 1 of each block's it tells that they have, so that none comes twice
    while another has yet to come. `rank` (i32) is this block's number. A block that is not among
    them starts its own."""

    source: Region
    dest: Region
    barrier: Value
    stage: Value
    cache: str = ""
    mask: int = 0
    gate: Value | None = None
    rank: Value | None = None

    def verify(self) -> None:
        schedule.check_barrier(self, self.barrier)
        if self.gate is not None:
            schedule.check_barrier(self, self.gate)
        if (self.mask > 0) != (self.gate is not None and self.rank is not None):
            raise InternalError(f"a copy for the blocks {self.mask:#b}", self.loc)
        if self.source.shape != self.dest.shape:
            boxes = f"{self.source.extents} onto {self.dest.extents}"
            raise InternalError(f"tma_copy of {boxes}", self.loc)

    def effects(self) -> Effects:
        return (
            Effect("read", self.source, "tma"),
            Effect("write", self.dest, "tma"),
            update(self.barrier),
            *ORDER,
        )


@op("mbarrier_expect_tx", updates="barrier", effects=ORDER)
class MbarrierExpectTx(Op):
    """Announce `bytes` that asynchronous copies will bring in the running phase of `stage`; no
    arrival."""

    barrier: Value
    stage: Value
    bytes: int

    def verify(self) -> None:
        schedule.check_barrier(self, self.barrier)


@op("set_registers", effects=ORDER)
class SetRegisters(Op):
    """Each thread of the warpgroup has `registers` from here on: more than before (`increase`) or
    fewer (setmaxnreg)."""

    registers: int
    increase: bool


@op("barrier_arrive", effects=ORDER)
class BarrierArrive(Op):
    """Arrive at the block's barrier number `id` (1 to 15), for which `threads` threads wait or
    arrive, without waiting there."""

    id: int
    threads: int


_ORDERED = (
    BarrierArrive, ClusterCopy, SetRegisters, TmaCopy, schedule.ClusterBarrier,
    schedule.CpAsyncCommit, schedule.CpAsyncWait, schedule.GridSync, schedule.MbarrierInit,
    schedule.Scope, schedule.TmaStoreWait, schedule.WgmmaWait,
)  # fmt: skip


def is_by_hand(body: Block) -> bool:
    """Whether the author of a kernel (TILE) orders by himself what groups of its threads, or
    asynchronous engines, do."""
    return (
        body.has(*_ORDERED)
        or any(o.asynchronous for o in body.every(Gemm))
        or any(o.number is not None for o in body.every(schedule.Barrier))
        or any(e.engine != "threads" for _, e in effects_in(body))
    )
