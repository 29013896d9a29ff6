"""What T.tma_copy says of threads and blocks: `leader_scope_threads`, a copy for each warp, and
`cluster_mask`, one copy for several blocks of a cluster."""

from __future__ import annotations

import math
from typing import Any

from tilec import language as T
from tilec.frontend.builtins import Call, int_argument
from tilec.frontend.builtins_threads import in_cluster, sources_of
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Scalar, Tile
from tilec.ir.ops import BlockIndex

WARP = 32  # threads; of targets with mbarriers


def is_for_each_warp(t: Expressions, c: Call) -> bool:
    """Whether each warp has a copy of its own. Raises CompileError for groups of other sizes."""
    if c["leader_scope_threads"] is None:
        return False
    threads = int_argument(t, c, "leader_scope_threads", 1)
    if threads == t.threads and threads != WARP:
        return False
    if threads != WARP:
        raise t.error(
            f"leader_scope_threads of T.tma_copy is {threads}: a copy is that of a warp, or of all "
            "threads that come here",
            f"write {WARP}, or leave it out in a group of its own: with T.ws(0): …",
            c.place("leader_scope_threads"),
        )
    return True


def copy_by_warp(t: Expressions, source: Tile, dest: Tile) -> None:
    """The lanes of each warp copy its tile, and meet: one that arrives then tells of all of them.
    Coordinates may be a warp's own, which those of a tile's copy are not."""

    def strides(tile: Tile) -> tuple[int, ...]:
        return tuple(math.prod(tile.extents[d + 1 :]) for d in range(len(tile.extents)))

    sides = [(side.buffer, side.offsets, strides(side), side.extents) for side in (source, dest)]
    t.trace_function(_by_lane, [*sides, math.prod(source.extents)], {})


def _by_lane(source: Any, dest: Any, count: int) -> None:
    """In the language of kernels."""
    src, src_at, src_strides, src_extents = source
    dst, dst_at, dst_strides, dst_extents = dest
    lane = T.get_lane_idx(32)
    for step in T.serial(T.ceildiv(count, 32)):
        n = step * 32 + lane
        if n < count:
            of_src = tuple(a + n // s % e for a, s, e in zip(src_at, src_strides, src_extents))
            of_dst = tuple(a + n // s % e for a, s, e in zip(dst_at, dst_strides, dst_extents))
            dst[of_dst] = src[of_src]
    T.sync_warp()


def check_cluster_mask(t: Expressions, c: Call, source: Tile) -> None:
    """`cluster_mask`: its blocks are given one tile. Where all of them name the same one, a copy by
    each of them does that; raises CompileError where they may not."""
    if c["cluster_mask"] is None:
        return
    in_cluster(t, c)
    mask, place = int_argument(t, c, "cluster_mask", 1), c.place("cluster_mask")
    blocks = math.prod(t.cluster or ())
    if mask >> blocks:
        message = f"cluster_mask of T.tma_copy is {mask:#b}; a cluster has {blocks} blocks"
        raise t.error(message, f"write {(1 << blocks) - 1:#b} for all of them", place)
    offsets = [o.value for o in source.offsets if isinstance(o, Scalar)]
    made, _, _ = sources_of(t, offsets)
    if any(isinstance(o, BlockIndex) for o in made):
        raise t.error(
            "cluster_mask of T.tma_copy brings one tile to several blocks, and this one is named "
            "by the index of each block",
            "compute where it starts without the index, or leave cluster_mask out",
            place,
        )
