"""Asynchrony by hand: mbarriers, TMA copies, groups of threads of the author's own, clusters.

Tile builtins order themselves; these are for kernels whose groups of threads do different things at
the same time. What is ordered by tilec then, and what by the author, stands in docs/language.md."""

from __future__ import annotations

from builtins import int as _Int
from collections.abc import Sequence
from typing import Any

__all__ = [
    "WarpSpecialize", "alloc_barrier", "annotate_consumer_reg_alloc",
    "annotate_producer_reg_dealloc", "async_copy", "barrier_arrive", "barrier_wait", "dec_max_nreg",
    "disable_warp_group_reg_alloc", "fence_proxy_async", "inc_max_nreg", "mbarrier_arrive",
    "mbarrier_arrive_expect_tx", "mbarrier_expect_tx", "mbarrier_wait_parity",
    "named_barrier_arrive", "no_set_max_nreg", "ptx_commit_group", "ptx_fence_barrier_init",
    "ptx_wait_group", "set_max_nreg", "tma_copy", "tma_store_arrive", "tma_store_wait",
    "wait_wgmma", "warpgroup_arrive", "warpgroup_commit_batch", "warpgroup_fence_operand",
    "warpgroup_wait", "ws", "alloc_cluster_barrier", "block_rank_in_cluster", "cluster_arrive",
    "cluster_sync", "cluster_wait", "copy_cluster", "cp_async_barrier_noinc",
]  # fmt: skip


def alloc_barrier(arrive_count: _Int | Sequence[_Int]) -> Any:
    """An mbarrier in shared memory whose phases end after `arrive_count` arrivals (1 to 2^20 - 1)
    and the bytes announced for them; a list of counts makes as many barriers, `bars[i]`.

    Every thread that executes `barrier_arrive` counts once. Stands outside of loops and conditions.
    Raises CompileError for a target that has no mbarriers.
    """


def barrier_arrive(mbarrier: Any, cta_id: Any = None) -> None:
    """Arrive: each thread that comes here counts once, what it did before is known to those who
    wait for the phase. `cta_id`: at the barrier of the block with this number in the cluster, one
    made by `alloc_cluster_barrier`."""


def mbarrier_arrive(mbarrier: Any, cta_id: Any = None) -> None:
    """As `barrier_arrive`; at the barrier of block number `cta_id` of the cluster, one's own
    too."""


def cp_async_barrier_noinc(barrier: Any) -> None:
    """Arrive, as `barrier_arrive`, when the asynchronous copies that this thread has started
    (`ptx_cp_async`, `async_copy`) are done. The thread goes on at once; who has waited for the
    phase may read what they brought."""


def barrier_wait(mbarrier: Any, parity: Any) -> None:
    """Wait until the last phase of this parity (0 for the first, then 1, 0, …; its lowest bit
    counts) has ended. Of a barrier that has ended no phase yet, the one of parity 1 counts as
    ended."""


def mbarrier_wait_parity(mbarrier: Any, parity: Any) -> None:
    """As `barrier_wait`."""


def mbarrier_expect_tx(mbarrier: Any, tx: _Int) -> None:
    """Announce `tx` bytes that the running phase waits for; each thread that comes here does, so
    let one do it. No arrival. `tma_copy` announces its own bytes."""


def mbarrier_arrive_expect_tx(mbarrier: Any, tx: _Int) -> None:
    """`mbarrier_expect_tx` and an arrival."""


def fence_proxy_async() -> None:
    """Put this thread's accesses of shared memory before those of asynchronous engines (TMA, wgmma)
    that are started after it."""


def ptx_fence_barrier_init() -> None:
    """Make initialised barriers known: tilec does that itself, behind `alloc_barrier`."""


def named_barrier_arrive(barrier_id: _Int, thread_count: _Int) -> None:
    """Arrive at the block's barrier number `barrier_id` (1 to 15) without waiting there. Whole
    warps arrive; `thread_count` threads, a multiple of 32, arrive or wait in all. NVIDIA GPUs
    only."""


def tma_copy(
    src: Any,
    dst: Any,
    barrier: Any = None,
    cluster_mask: _Int | None = None,
    leader_scope_threads: _Int | None = None,
    eviction_policy: Any = None,
    annotations: Any = None,
) -> None:
    """Copy a tile of a tensor to a shared tile of its dtype by TMA, without waiting.

    One of the threads that come here starts the copy and announces its bytes on `barrier`; nobody
    arrives there. Who has waited for that phase may read the tile. What lies out of the tensor's
    bounds arrives as 0. Where TMA cannot bring it the threads copy.

    `leader_scope_threads=32`: each warp has a tile of its own, which its lanes copy. `cluster_mask`
    names blocks of the cluster (bit n is block number n) that are given one tile, that which the
    first of them names; the others have their own. One copy brings it to all (multicast) when all
    those blocks have come here, which they must. `eviction_policy` as of `copy`. `annotations` are
    accepted and decide nothing.

    From a whole shared tile to a tensor there is no barrier: the tile may be written again, by the
    threads that come here, when the copy has read it, and what it writes is there when the kernel
    ends.
    """


def copy_cluster(
    src: Any,
    dst: Any,
    *,
    dst_block: Any = None,
    cluster_mask: _Int | None = None,
    remote_barrier: Any = None,
    eviction_policy: Any = None,
    coalesced_width: _Int | None = None,
    annotations: Any = None,
    loop_layout: Any = None,
) -> None:
    """Copy between the blocks of a cluster: a shared tile into another block's shared memory, or
    one tile of a tensor for several blocks.

    With `dst_block`, the number of a block in the cluster, `src` is a shared tile of this block and
    `dst`, of its shape and dtype, names a tile of that block. `remote_barrier`, one made by
    `alloc_cluster_barrier`, is that block's, too: the copy counts there as one arrival, and who has
    waited for that phase may read the tile. Where the bytes lie in at most 64 pieces of multiples
    of 16 bytes one thread starts asynchronous copies (`cp.async.bulk`); elsewhere, and without a
    barrier, the threads store them (`st.shared::cluster`). Without a barrier `cluster_sync` lets
    the other block know. That `dst` is free, and when `src` may be written again, is the author's
    to order: both are so when the other block has waited and the cluster has met. The blocks of a
    kernel with such copies begin and end together.

    With `cluster_mask` it is a `copy` of a tile of a tensor to shared memory: blocks whose bit is
    set are given the tile that the first of them names, each other block has its own.
    `eviction_policy` is that of `copy`.

    `coalesced_width`, `annotations` and `loop_layout` are accepted and decide nothing.

    Raises CompileError outside of clusters, for both or none of `dst_block` and `cluster_mask`, for
    a block that the cluster has not, a tile elsewhere or of another dtype, and, with `dst_block`,
    for a target without clusters (all but `cuda:sm_90a`).
    """


def tma_store_arrive() -> None:
    """Nothing: each `tma_copy` to a tensor is a group of its own."""


def tma_store_wait(count: _Int = 0, read: Any = True) -> None:
    """Wait until at most `count` of this thread's newest `tma_copy` stores are unfinished, or, with
    `read`, have still to read their tile. (The next op that writes the tile waits by itself.)"""


def async_copy(
    src: Any,
    dst: Any,
    coalesced_width: _Int | None = None,
    loop_layout: Any = None,
    annotations: Any = None,
) -> None:
    """Copy a tile of a tensor to a shared tile of its dtype without waiting (cp.async), as one
    group: after `ptx_wait_group` the tile is there. Where the target, or the tensor's alignment,
    does not suit cp.async it is `copy`. `loop_layout` and `annotations` are accepted and decide
    nothing."""


def ptx_commit_group() -> None:
    """Close the group of this thread's asynchronous copies started so far; `async_copy` does."""


def ptx_wait_group(num: _Int) -> None:
    """Wait until at most `num` of this thread's newest groups of asynchronous copies are
    unfinished; the threads meet where one reads what another has waited for."""


def wait_wgmma(id: _Int) -> None:
    """Wait until at most `id` of this group's newest `wgmma_gemm` are unfinished."""


def warpgroup_wait(num_mma: _Int) -> None:
    """As `wait_wgmma`."""


def warpgroup_arrive() -> None:
    """Nothing: each `wgmma_gemm` begins with it."""


def warpgroup_commit_batch() -> None:
    """Nothing: each `wgmma_gemm` is a group of its own."""


def warpgroup_fence_operand(
    buffer: Any, offset: Any = 0, num_regs: Any = None, dtype: Any = None
) -> None:
    """Nothing: `wgmma_gemm` and `wait_wgmma` hold their registers in place."""


def ws(*group: _Int) -> Any:
    """`with T.ws(0):` the statements are run by the first 128 threads of the block, with
    `T.ws(1)` by the next 128, with `T.ws(0, 1)` by the first 256. The same as an `if` on the thread
    index: tile builtins inside work on these threads only."""


WarpSpecialize = ws


def set_max_nreg(reg_count: _Int, is_inc: _Int) -> None:
    """Each thread of the warpgroup (128 threads, all of which come here) has `reg_count` registers
    from here on, a multiple of 8 from 24 to 256: more (`is_inc` = 1) or fewer (0) than before.
    Nothing on targets whose registers do not move."""


def inc_max_nreg(reg_count: _Int) -> None:
    """`set_max_nreg(reg_count, 1)`."""


def dec_max_nreg(reg_count: _Int) -> None:
    """`set_max_nreg(reg_count, 0)`."""


def annotate_producer_reg_dealloc(reg_count: _Int = 24) -> None:
    """A hint: tilec shares registers out between the warps that it adds itself."""


def annotate_consumer_reg_alloc(reg_count: _Int = 240) -> None:
    """A hint: tilec shares registers out between the warps that it adds itself."""


def no_set_max_nreg() -> None:
    """A hint: registers move only where a kernel says `set_max_nreg`, or for warps that tilec adds
    itself."""


def disable_warp_group_reg_alloc() -> None:
    """As `no_set_max_nreg`."""


# --- blocks of a cluster --------------------------------------------------------------------------
#
# A kernel is launched in clusters by `T.Kernel(…, cluster_dims=2)`. What several blocks of a
# cluster load tilec brings once, and orders, by itself; these are for what blocks tell one another,
# through global memory or barriers of the cluster. They need a target with clusters,
# `cuda:sm_90a`, but for `block_rank_in_cluster` (PTX ISA, "barrier.cluster", "mbarrier.arrive").


def block_rank_in_cluster() -> Any:
    """The number of this block in its cluster, from 0, dimension 0 fastest: an index. 0 without
    `cluster_dims`; on targets without clusters the number that it would have."""


def cluster_sync() -> None:
    """All threads of all blocks of the cluster meet here; what each of them did before, in global
    memory too, all of them see behind it. It stands where all of them come."""


def cluster_arrive() -> None:
    """The first half of `cluster_sync`: arrive, and go on."""


def cluster_wait() -> None:
    """The second half of `cluster_sync`: wait until all have arrived. Once for each
    `cluster_arrive`."""


def alloc_cluster_barrier(arrive_count: _Int | Sequence[_Int]) -> Any:
    """As `alloc_barrier`, for arrivals from all blocks of the cluster:
    `T.mbarrier_arrive(bar, rank)`. The blocks must meet, `T.cluster_sync()`, between the barrier
    and the first of these."""
