"""Ops of the SCHEDULED contract: who runs what, ring buffers, barriers, waits and fences.

A *ring* is a shared buffer with `stages` > 1 and two barrier buffers ("full", "empty") of as
many stages. Its position is a pair of scalars (stage, phase) that each scope carries for itself and
advances once per acquire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir.core import Block, Op, Value
from tilec.ir.effects import ORDER, OUTPUT
from tilec.ir.errors import InternalError
from tilec.ir.op_classes import op
from tilec.ir.types import BOOL, INT32, BufferType, Type

__all__ = [
    "Scope", "ConsumerGroup", "OrderedWait", "OrderedArrive", "RingStage", "Barrier", "GridSync",
    "Pause", "WarpSync", "ProxyFence", "MbarrierInit", "MbarrierInitFence", "MbarrierExpect",
    "MbarrierArrive", "MbarrierWait", "ClusterIndex", "ClusterBarrier", "ClusterSum",
    "CombineParts", "DeviceFence", "CpAsyncCommit", "CpAsyncWait", "WgmmaWait", "TmaStoreCommit",
    "TmaStoreWait",
]  # fmt: skip


@op("scope")
class Scope(Op):
    """`body` is run by the block's warps `first_warp` … `first_warp + warps - 1` only. `registers`
    > 0: each thread's share of the register file from here on (setmaxnreg).

    With `groups` > 1 the warps are that many equal sets, and each set runs the body by itself. The
    `lane`, `warp` and `thread_index` ops inside count from the group's first warp; a `barrier` is
    each group's own (its `id` is the first group's, the next ids are the others')."""

    name: str
    first_warp: int
    warps: int
    body: Block
    registers: int = 0
    consumer_groups: int = 1


@op("consumer_group", pure=True, result=INT32)
class ConsumerGroup(Op):
    """Which group of its scope a thread belongs to: i32, the same in all threads of the group."""


@op("ordered_wait", effects=ORDER)
class OrderedWait(Op):
    """Wait until it is this group's turn: the group before it (the last one's, for the first group)
    has passed it on. The scope begins with the first group's turn.

    Two groups that take turns at starting asynchronous products keep the tensor cores busy with one
    while the other does something else; and the order keeps a group from waiting for a phase of a
    ring's barrier that is more than one turn of the ring away. `id`: the first group's named
    barrier; the others' follow. With `warpgroups` it is so many warpgroups of one group that take
    turns, and the last one has given its turn on before (`ordered_arrive`)."""

    id: int
    warpgroups: int = 0


@op("ordered_arrive", effects=ORDER)
class OrderedArrive(Op):
    """Give the turn to the next group, or warpgroup. See `ordered_wait`."""

    id: int
    warpgroups: int = 0


@op("ring_stage", pure=True)
class RingStage(Op):
    """Stage `stage` (i32) of a ring: a buffer of the same type with one stage. Its root is
    `root`."""

    root: Value
    stage: Value

    def infer(self) -> Sequence[Type]:
        return (replace(self.root.buffer, stages=1),)


@op("barrier", effects=ORDER)
class Barrier(Op):
    """Wait until `threads` threads of the block are here (0: all of them), their shared-memory
    accesses done. `id` (0 to 15) tells barriers apart that are in use at once; with `number` (i32,
    the same in a warp) it is the author's, known at run time."""

    id: int = 0
    threads: int = 0
    number: Value | None = None


@op("grid_sync", effects=ORDER)
class GridSync(Op):
    """Wait for all blocks of the grid; they run at once (attribute `cooperative`). All threads of
    the block come here."""


@op("pause", effects=ORDER)
class Pause(Op):
    """Let others go on: this thread waits for what a thread of another block does to memory."""


@op("warp_sync", effects=ORDER)
class WarpSync(Op):
    """Wait for all lanes of this warp, their shared-memory accesses done."""


@op("proxy_fence", effects=ORDER)
class ProxyFence(Op):
    """Put what this thread has behind it before what asynchronous engines (wgmma, TMA) do after it:
    they see its writes to shared memory, and do not overtake its reads."""


@op("mbarrier_init", updates="barrier")
class MbarrierInit(Op):
    """Set every stage of `barrier` (or the one named `slot`) to expect `count` arrivals (one thread
    executes it). After the last one, the emitter's `mbarrier_init_fence` and a block barrier make
    them known."""

    barrier: Value
    count: int
    slot: int = -1

    def verify(self) -> None:
        check_barrier(self, self.barrier)


@op("mbarrier_init_fence", effects=ORDER)
class MbarrierInitFence(Op):
    """Make initialised mbarriers known to the asynchronous proxy."""


@op("mbarrier_expect", updates="barrier", effects=ORDER)
class MbarrierExpect(Op):
    """Arrive once at `stage` and announce `bytes` that asynchronous copies will bring; at the
    barrier of the block with number `block` (i32) in the cluster, if it is given."""

    barrier: Value
    stage: Value
    bytes: int
    block: Value | None = None


@op("mbarrier_arrive", updates="barrier", effects=ORDER)
class MbarrierArrive(Op):
    """Arrive once at `stage`; only where `guard` (bool) holds, if it is given (no branch).

    `block` (i32): at the barrier of the block with this number in the cluster (see
    `cluster_index`). `publish`: what this thread wrote, or saw written, is known to those of the
    cluster who wait for the phase with `acquire`; without it only accesses by asynchronous engines
    are in order, as a ring needs it. `copies`: the arrival comes when the cp.async copies that this
    thread has started are done; it does not wait for that itself."""

    barrier: Value
    stage: Value
    guard: Value | None = None
    block: Value | None = None
    publish: bool = False
    copies: bool = False

    def verify(self) -> None:
        check_barrier(self, self.barrier)
        if self.copies and (self.guard or self.block):
            raise InternalError("an arrival of copies is this block's, of each thread", self.loc)
        if self.publish and self.block is None:
            raise InternalError("an arrival that publishes names its block", self.loc)


@op("mbarrier_wait", reads="barrier", effects=ORDER)
class MbarrierWait(Op):
    """Wait until the phase of `stage` with this parity (i32: 0 or 1) has completed. `acquire`: and
    see what other blocks of the cluster published."""

    barrier: Value
    stage: Value
    parity: Value
    acquire: bool = False


@op("cluster_index", pure=True, result=INT32)
class ClusterIndex(Op):
    """Index of this block in its cluster along grid dimension `dim` (0, 1 or 2): i32, the same in
    the whole block. The blocks of a cluster are numbered with dimension 0 fastest."""

    dim: int

    def verify(self) -> None:
        if self.dim not in (0, 1, 2):
            raise InternalError(f"a grid has no dimension {self.dim}", self.loc)


@op("cluster_barrier", effects=ORDER)
class ClusterBarrier(Op):
    """Wait for all threads of all blocks of the cluster, their accesses to shared memory done, and
    to global memory. `part`: only "arrive" there, or "wait" for those who have."""

    part: str = ""


@op("cluster_sum", updates="fragments", effects=ORDER)
class ClusterSum(Op):
    """In the cluster's first block, add to each of `fragments` those of the other blocks, element
    by element in the order of their numbers; what the others' fragments hold afterwards is of no
    use. All threads of the scope execute it, once."""

    fragments: tuple[Value, ...]

    def verify(self) -> None:
        _check_fragments(self, self.fragments)


@op("combine_parts", result=BOOL, updates="fragments", effects=OUTPUT)
class CombineParts(Op):
    """Leave `fragments` in global memory, as part number `part` of the `parts` that make up the sum
    number `sum` (i32, both), and count who has come: true in the block that is the last one, the
    same in the whole block. There `fragments` hold what all parts make by the binary operations
    `kinds`, one for each (none: sums), in the order of their numbers. `everywhere`: each of them
    waits for the others, and has that; the result is true. All threads of the scope execute it,
    once."""

    fragments: tuple[Value, ...]
    sum: Value
    part: Value
    parts: int
    kinds: tuple[str, ...] = ()
    everywhere: bool = False

    def verify(self) -> None:
        _check_fragments(self, self.fragments)
        if self.kinds and len(self.kinds) != len(self.fragments):
            raise InternalError(f"{self.kinds} for {len(self.fragments)} fragments", self.loc)


@op("device_fence", effects=ORDER)
class DeviceFence(Op):
    """Put what this thread has behind it before what it does after it, for all threads of the
    device that learn of the latter."""


@op("cp_async_commit", effects=ORDER)
class CpAsyncCommit(Op):
    """Close the group of this thread's `cp_async` ops issued so far."""


@op("cp_async_wait", effects=ORDER)
class CpAsyncWait(Op):
    """Wait until at most `pending` of this thread's newest cp.async groups are unfinished."""

    pending: int


@op("wgmma_wait", effects=ORDER)
class WgmmaWait(Op):
    """Wait until at most `pending` of this warpgroup's newest wgmma groups are unfinished.
    `fragments` are those whose registers may be touched again, or may not be touched before."""

    pending: int
    fragments: tuple[Value, ...]


@op("tma_store_commit", effects=ORDER)
class TmaStoreCommit(Op):
    """Close the group of this thread's TMA stores issued so far."""


@op("tma_store_wait", effects=ORDER)
class TmaStoreWait(Op):
    """Wait until at most `pending` of this thread's newest TMA store groups are unfinished;
    `read`: until they have only read their shared memory."""

    pending: int
    read: bool = True


def _check_fragments(o: Op, values: Sequence[Value]) -> None:
    for v in values:
        if not isinstance(v.type, BufferType) or v.type.space != "fragment":
            raise InternalError(f"{v.type} is not a fragment", o.loc)


def check_barrier(o: Op, barrier: Value) -> None:
    """Raise InternalError for anything but a barrier buffer."""
    t = barrier.type
    if not isinstance(t, BufferType) or t.space != "barrier":
        raise InternalError(f"{t} is not a barrier", o.loc)
