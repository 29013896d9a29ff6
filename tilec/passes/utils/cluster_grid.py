"""Clusters and the grid: which cluster a kernel is launched in, and blocks that only fill one up.

A launch is made of whole clusters. Where the user's grid is not known to be a multiple of the
cluster that the compiler chose, the launch is rounded up: the blocks beyond the grid help to load
what their neighbours need, and every op of theirs that could be seen from outside is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir.analysis import Facts
from tilec.ir.clusters import SINGLE, Dims, cluster_of, size
from tilec.ir.core import Block, Builder, Func, Op, Param, Substitution, Value, clone, walk
from tilec.ir.errors import ResourceError
from tilec.ir.instr.cluster import MAX_BLOCKS
from tilec.ir.ops import (
    Binary,
    BlockIndex,
    Compare,
    Const,
    GridSize,
    If,
    Parallel,
    While,
    Yield,
    yielded,
)
from tilec.ir.types import INT32, ScalarType
from tilec.passes.utils.addressing import conjunction, narrow
from tilec.target import Target


def settle_cluster(func: Func, target: Target) -> Func:
    """`func` with the cluster it is launched in as its attribute `cluster`: the user's
    (`cluster_dims`), else the plan's. Where the target has no clusters, each block is alone.

    Raises ResourceError for a plan's cluster that the launch cannot have."""
    wanted = func.attrs.get("cluster_dims")
    dims = tuple(wanted) if wanted else cluster_of(func)
    if not target.has("cluster"):
        dims = SINGLE
    if not wanted and dims != SINGLE:
        _check(func, dims)
    return func if dims == cluster_of(func) else func.with_attrs(cluster=dims)


def _check(func: Func, dims: Dims) -> None:
    rank = 3 if func.attrs.get("grid_from_launch") else len(yielded(func.grid))
    shown = "x".join(map(str, dims))
    if size(dims) > MAX_BLOCKS:
        raise ResourceError(
            f"a cluster of {shown} has {size(dims)} blocks, the most is {MAX_BLOCKS}",
            func.loc,
            f"write cluster={MAX_BLOCKS} or less",
        )
    if any(c > 1 for c in dims[rank:]):
        raise ResourceError(
            f"a grid of {rank} dimensions has no clusters of {shown}",
            func.loc,
            f"give the cluster {rank} extents",
        )
    loops = [o for o in walk(func.body) if isinstance(o, While)]
    if loops and not all(_divides(func, dims)):
        raise ResourceError(
            f"the grid is not known to be a multiple of clusters of {shown}, and what the blocks "
            "beyond it do in a while loop is not known to end",
            loops[0].loc,
            "leave the cluster out, or make the grid a multiple of it",
        )


def _divides(func: Func, dims: Dims) -> list[bool]:
    """For each dimension, whether the grid's extent is known to be a multiple of the cluster's."""
    if dims == SINGLE or func.attrs.get("cluster_dims"):
        return [True] * 3  # the user's are checked at the launch
    extents = yielded(func.grid)
    facts = Facts(func.with_attrs(persistent=False))
    found = []
    for d, c in enumerate(dims):
        known = facts.constant(extents[d]) if d < len(extents) else None
        whole = known is not None and known % c == 0
        by_two = d < len(extents) and c & (c - 1) == 0 and facts.divisor(extents[d]) % c == 0
        found.append(c == 1 or whole or by_two)
    return found


class UserGrid:
    """The extents of the user's grid as values of the body, for kernels that are launched with
    another one. `params` are what the function takes for it."""

    def __init__(self, func: Func, b: Builder) -> None:
        self.func = func
        self.params = func.params
        self.cluster = cluster_of(func)
        if func.attrs.get("grid_from_launch"):
            used = {o.dim for o in walk(func.body) if isinstance(o, (BlockIndex, GridSize))}
            used |= {0, *(d for d, c in enumerate(self.cluster) if c > 1)}
            given = [
                Param(Value(ScalarType(INT32), f"grid{d}"), "grid", "", d)
                for d in range(max(used) + 1)
            ]
            self.params = (*func.params, *given)
            self.extents = [p.value for p in given]
        else:
            subst: Substitution = {}
            b.ops += [clone(o, subst) for o in func.grid.ops if not isinstance(o, Yield)]
            self.extents = [narrow(b, subst.get(v, v)) for v in yielded(func.grid)]

    def clusters(self, b: Builder) -> list[Value]:
        """How many clusters there are along each dimension, the last one perhaps not full."""
        return [clusters_in(b, e, c) for e, c in zip(self.extents, self.cluster)]

    def inside(self, b: Builder, indices: Sequence[Value]) -> Value | None:
        """Whether the block with these indices is one of the grid; None if it is known to be."""
        conds = [
            b.value(Compare, "lt", index, extent)
            for index, extent, known in zip(
                indices, self.extents, _divides(self.func, self.cluster)
            )
            if not known
        ]
        return conjunction(b, conds)


def clusters_in(b: Builder, extent: Value, cluster: int) -> Value:
    """`extent` blocks in clusters of `cluster`, rounded up."""
    if cluster == 1:
        return extent
    up = b.value(Binary, "add", extent, b.value(Const, cluster - 1, extent.dtype))
    return b.value(Binary, "floordiv", up, b.value(Const, cluster, extent.dtype))


def is_whole(func: Func) -> bool:
    """Whether the grid is known to be made of whole clusters."""
    return all(_divides(func, cluster_of(func)))


def rounded_grid(func: Func) -> Block:
    """The function's grid, rounded up to whole clusters: what is launched."""
    if not yielded(func.grid):
        return func.grid
    b = Builder(func.loc)
    b.ops += [o for o in func.grid.ops if not isinstance(o, Yield)]
    extents = []
    for extent, c in zip(yielded(func.grid), cluster_of(func)):
        if c > 1:
            count = clusters_in(b, extent, c)
            extent = b.value(Binary, "mul", count, b.value(Const, c, extent.dtype))
        extents.append(extent)
    b.emit(Yield, tuple(extents))
    return b.block()


# --- blocks beyond the grid ---


def only_inside(ops: Sequence[Op], inside: Value | None) -> list[Op]:
    """The ops with everything that can be seen from outside of the block done only where `inside`
    holds."""
    if inside is None:
        return list(ops)
    return [_guarded(o, inside) for o in ops]


def _guarded(o: Op, inside: Value) -> Op:
    if _is_seen(o):
        body = Block((), (o, Yield(loc=o.loc)))
        return If(inside, body, Block((), (Yield(loc=o.loc),)), loc=o.loc)
    if not o.regions:
        return o
    changed = {
        name: replace(region, ops=tuple(only_inside(region.ops, inside)))
        for name, region in zip(o.region_fields, o.regions)
    }
    return replace(o, **changed)  # type: ignore[arg-type]


def _is_seen(o: Op) -> bool:
    """Whether `o` acts outside of its block, and does nothing else."""
    if o.region_fields and not isinstance(o, Parallel):
        return False
    acts = [e for e in o.effects() if e.writes or e.kind == "output"]
    return bool(acts) and all(e.is_seen for e in acts)
