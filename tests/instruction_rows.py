"""All rows that are no matrix instruction, for tests that go through them, and the way between
tiles and the registers that hold them."""

from __future__ import annotations

import numpy as np

from tilec.ir.instr import Instruction, cluster, memory, sync
from tilec.ir.layout import Layout

CLUSTER_INSTRUCTIONS: tuple[Instruction, ...] = (
    cluster.CLUSTER_BARRIER,
    cluster.CLUSTER_ARRIVE,
    cluster.CLUSTER_WAIT,
    cluster.MBARRIER_ARRIVE_AT,
    cluster.MBARRIER_PUBLISH_AT,
    cluster.MBARRIER_WAIT_ACQUIRE,
    *(cluster.cluster_load(n) for n in cluster.LOAD_WORDS),
    *(cluster.cluster_store(n) for n in cluster.STORE_BYTES),
)

MEMORY_INSTRUCTIONS: tuple[Instruction, ...] = (
    *(memory.ldmatrix(n, t) for n in memory.MATRIX_COUNTS for t in (False, True)),
    *(memory.stmatrix(n, t) for n in memory.MATRIX_COUNTS for t in (False, True)),
    *(memory.cp_async(n, p) for n in memory.CP_ASYNC_BYTES for p in (False, True)),
    memory.CP_ASYNC_COMMIT,
    *(memory.tma_load(d, m) for d in memory.TMA_DIMS for m in (False, True)),
    *(memory.tma_store(d, guarded) for d in memory.TMA_DIMS for guarded in (False, True)),
    *(
        memory.tma_store(2, guarded, "", k)
        for k in memory.TMA_REDUCTIONS
        for guarded in (False, True)
    ),
    *(memory.load_if(n) for n in memory.LOAD_BYTES),
    memory.TMA_STORE_COMMIT,
    memory.TMA_PREFETCH,
)

SYNC_INSTRUCTIONS: tuple[Instruction, ...] = (
    sync.MBARRIER_ARRIVE,
    sync.MBARRIER_ARRIVE_IF,
    sync.MBARRIER_WAIT,
    sync.MBARRIER_INIT_FENCE,
    sync.PROXY_FENCE,
    sync.WARP_SYNC,
    sync.BARRIER_SYNC,
    sync.BARRIER_ARRIVE,
    sync.DEVICE_FENCE,
    sync.PAUSE,
    sync.COUNT_UP,
)


def tile_of(layout: Layout, registers: np.ndarray) -> np.ndarray:
    """The tile that registers hold: from an array (reg, lane, warp) to one of the layout's
    shape."""
    out = np.zeros(int(np.prod(layout.shape)), registers.dtype)
    out[layout.flat("reg", "lane", "warp").ravel()] = registers.ravel()
    return out.reshape(layout.shape)


def registers_of(layout: Layout, tile: np.ndarray) -> np.ndarray:
    """The registers that hold a tile: an array (reg, lane, warp), replicas included."""
    return tile.ravel()[layout.flat("reg", "lane", "warp")]
