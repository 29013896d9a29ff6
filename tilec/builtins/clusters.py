"""Clusters by hand: which block of its cluster a block is, and where the cluster's blocks meet.

A kernel is launched in clusters by `T.Kernel(…, cluster_dims=2)`. What several blocks of a cluster
load tilec brings once, and orders, by itself; these are for what blocks tell one another, through
global memory or barriers of the cluster. They need a target with clusters, `cuda:sm_90a`, but for
`block_rank_in_cluster` (PTX ISA, "barrier.cluster", "mbarrier.arrive")."""

from __future__ import annotations

from builtins import int as _Int
from collections.abc import Sequence
from typing import Any

from tilec.builtins.annotations import only_inside

__all__ = [
    "alloc_cluster_barrier", "block_rank_in_cluster", "cluster_arrive", "cluster_sync",
    "cluster_wait",
]  # fmt: skip


def block_rank_in_cluster() -> Any:
    """The number of this block in its cluster, from 0, dimension 0 fastest: an index. 0 without
    `cluster_dims`; on targets without clusters the number that it would have."""
    only_inside("block_rank_in_cluster")


def cluster_sync() -> None:
    """All threads of all blocks of the cluster meet here; what each of them did before, in global
    memory too, all of them see behind it. It stands where all of them come."""
    only_inside("cluster_sync")


def cluster_arrive() -> None:
    """The first half of `cluster_sync`: arrive, and go on."""
    only_inside("cluster_arrive")


def cluster_wait() -> None:
    """The second half of `cluster_sync`: wait until all have arrived. Once for each
    `cluster_arrive`."""
    only_inside("cluster_wait")


def alloc_cluster_barrier(arrive_count: _Int | Sequence[_Int]) -> Any:
    """As `alloc_barrier`, for arrivals from all blocks of the cluster:
    `T.mbarrier_arrive(bar, rank)`. The blocks must meet, `T.cluster_sync()`, between the barrier
    and the first of these."""
    only_inside("alloc_cluster_barrier")
