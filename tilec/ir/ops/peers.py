"""Ops on the shared memory of the other blocks of a cluster: a copy of a tile, and what it and the
exchange of partial sums become."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Effect, Effects, Op, Region, Value
from tilec.ir.effects import ORDER, update
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import op
from tilec.ir.ops.schedule import check_barrier
from tilec.ir.types import Type, VectorType, scalar_type

__all__ = ["ClusterCopy", "ClusterLoad", "ClusterStore", "ClusterSend"]


@op("cluster_copy")
class ClusterCopy(Op):
    """Copy a part of this block's shared memory into that of the block with number `block` (i32) in
    the cluster: `dest` names a buffer of that one's. Who has waited there for the phase of slot
    `stage` of its `barrier`, which counts this as one arrival, may read it; without a barrier, who
    has met the cluster since. `engine`, decided by `select_copies`: "tma" (one thread starts bulk
    copies, which complete on the barrier) or "threads"."""

    source: Region
    dest: Region
    block: Value
    barrier: Value | None = None
    stage: Value | None = None
    engine: str = ""

    def verify(self) -> None:
        if self.barrier is not None:
            check_barrier(self, self.barrier)
        if self.source.shape != self.dest.shape or self.source.dtype != self.dest.dtype:
            boxes = f"{self.source.extents} onto {self.dest.extents}"
            raise InternalError(f"cluster_copy of {boxes}", self.loc)

    def effects(self) -> Effects:
        engine = self.engine or "threads"
        told = () if self.barrier is None else (update(self.barrier),)
        return (
            Effect("read", self.source, engine),
            Effect("write", self.dest, engine),
            *told,
            *ORDER,
        )


@op("cluster_load", reads="source")
class ClusterLoad(Op):
    """`mem_load` from the shared memory of the block with number `block` (i32) in the cluster."""

    source: Value
    offset: Value
    block: Value
    lanes: int = 1

    def infer(self) -> Sequence[Type]:
        dtype = self.source.dtype
        return (scalar_type(dtype) if self.lanes == 1 else VectorType(dtype, self.lanes),)

    def verify(self) -> None:
        bits = self.source.dtype.bits * self.lanes
        if self.source.space != "shared" or bits not in (32, 64, 128):
            raise InternalError(f"a load of {bits} bits from {self.source.type}", self.loc)


@op("cluster_store", writes="dest")
class ClusterStore(Op):
    """`mem_store`, aligned to its size, to the shared memory of the block with number `block` (i32)
    in the cluster."""

    dest: Value
    offset: Value
    value: Value
    block: Value

    def verify(self) -> None:
        if self.dest.space != "shared" or self.value.dtype != self.dest.dtype:
            raise InternalError(f"store of {self.value.type} into {self.dest.type}", self.loc)


@op("cluster_send", reads="source", writes="dest", updates="barrier", engine="tma")
class ClusterSend(Op):
    """Start an asynchronous copy of `bytes` (a multiple of 16, as both places are) from `source`,
    `source_offset` elements from its start, to `dest` of the block with number `block` (i32) in the
    cluster; its bytes are counted on slot `stage` of that block's `barrier`. Executed by one
    thread."""

    source: Value
    source_offset: Value
    bytes: int
    dest: Value
    dest_offset: Value
    block: Value
    barrier: Value
    stage: Value
