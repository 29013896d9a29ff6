"""What T.tma_copy says of threads and blocks: `leader_scope_threads`, a copy for each warp, and
`cluster_mask`, one tile for several blocks of a cluster."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tilec import language as T
from tilec.frontend.builtins.table import Call
from tilec.frontend.builtins.threads import rank_in_cluster, sources_of
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Number, Scalar, Tile
from tilec.ir.core import Substitution, Value
from tilec.ir.ops import Alloc, BlockIndex, MbarrierInit
from tilec.ir.types import INT32, INT64, BufferType, contiguous_strides

WARP = 32  # threads; of targets with mbarriers


def is_for_each_warp(t: Expressions, c: Call) -> bool:
    """Whether each warp has a copy of its own. Raises CompileError for groups of other sizes."""
    if c["leader_scope_threads"] is None:
        return False
    threads = c.integer("leader_scope_threads", 1)
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
    sides = [
        (side.buffer, side.offsets, contiguous_strides(side.extents), side.extents)
        for side in (source, dest)
    ]
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


def of_first_block(t: Expressions, c: Call, source: Tile) -> Tile:
    """`cluster_mask`: the tile that its blocks are given, which the first of them names; a block
    that is not among them has its own. Raises CompileError for no mask of the cluster's blocks, and
    where the tile begins somewhere that only its own block can compute."""
    mask, place = c.integer("cluster_mask", 1), c.place("cluster_mask")
    cluster = t.cluster or ()
    blocks = math.prod(cluster)
    if mask >> blocks:
        message = f"cluster_mask of T.{c.builtin} is {mask:#b}; a cluster has {blocks} blocks"
        raise t.error(message, f"write {(1 << blocks) - 1:#b} for all of them", place)
    offsets = [o for o in source.offsets if isinstance(o, Scalar)]
    made, _, unknown = sources_of(t, [o.value for o in offsets])
    if not any(isinstance(o, BlockIndex) for o in made):
        return source
    if unknown or not all(o.pure for o in made):
        raise t.error(
            f"cluster_mask of T.{c.builtin} brings the tile that the first of its blocks names, "
            "and no other block can compute where this one begins",
            "compute it of block indices and sizes alone, without variables and tensors",
            place,
        )
    subst: Substitution = {}
    for o in made:
        if isinstance(o, BlockIndex):
            own = Scalar(o.result)
            moved = t.number(_of_first(t, own, o.dim, mask), "the index")
            subst[o.result] = t.run_time(moved, INT32).value
        else:
            t.builders[-1].ops.append(o.clone(subst))
    there = [Scalar(subst[o.value]) if isinstance(o, Scalar) else o for o in source.offsets]
    return replace(source, offsets=tuple(there))


def gate_of(t: Expressions, c: Call) -> tuple[int, Value, Value] | None:
    """The mask of a copy for several blocks, the barrier where they tell one another that their
    tiles are free, and this block's number; None where each has its own."""
    mask = c.integer("cluster_mask", 1)
    count = mask.bit_count()
    if count < 2:
        return None
    top, made = t.builders[0], BufferType((2,), INT64, "barrier")
    gate = top.value(Alloc, made, name="gate")
    top.emit(MbarrierInit, gate, count, 0)
    top.emit(MbarrierInit, gate, 1, 1)
    return mask, gate, t.run_time(rank_in_cluster(t), INT32).value


def _of_first(t: Expressions, own: Scalar, dim: int, mask: int) -> Number:
    """The index along `dim` of the first block of `mask`; that of this block outside of it."""
    cluster = t.cluster or ()
    first = (mask & -mask).bit_length() - 1
    along = first // math.prod(cluster[:dim]) % cluster[dim]
    rank = t.binary("mod", own, cluster[dim])
    there = t.binary("add", t.binary("sub", own, rank), along)
    if mask + 1 == 1 << math.prod(cluster):
        return there
    number = rank_in_cluster(t)
    among = t.binary("and", t.binary("shr", mask, number), 1)
    return t.binary("add", own, t.binary("mul", among, t.binary("sub", there, own)))
