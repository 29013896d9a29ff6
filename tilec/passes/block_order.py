"""block_order: which block of the user's grid a launched block works on, and when.

Before: `block_index` and `grid_size` mean the user's grid; at most one `use_swizzle` says how to
walk over it. After: no `use_swizzle` is left. In a persistent kernel the body stands in a loop over
the blocks `block_index(0), block_index(0) + grid_size(0), …` of the user's grid, numbered so that
`group` neighbours in dimension 1 follow each other (they share columns of one operand in the L2
cache while the rows of the other stay there). Otherwise the two leading indices are renumbered in
place, where the user asks for it or the plan has rasterisation groups and the blocks load tiles in
a loop. Where a pipelined loop is the longer the larger a block index is (a causal mask), that index
runs backwards, so that the longest blocks begin first and short ones fill up the end.

In a kernel launched in clusters (attribute `cluster`) it is whole clusters that are numbered so:
the blocks of one have neighbouring indices along the cluster's dimensions, and the others the same.
A persistent kernel is launched with its clusters in a row along dimension 0.

A launch is made of whole clusters. Where the user's grid is not known to be a multiple of the
cluster that the compiler chose, the launch is rounded up: the blocks beyond the grid help to load
what their neighbours need, and every op of theirs that could be seen from outside is left out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.clusters import SINGLE, Dims, cluster_of, groups_of, size
from tilec.ir.core import Block, Func, Op, Param, Substitution, Value, walk, within
from tilec.ir.errors import ResourceError
from tilec.ir.instr.cluster import MAX_BLOCKS
from tilec.ir.neighbours import trend
from tilec.ir.types import INT32, ScalarType
from tilec.passes.utils.addressing import narrow
from tilec.passes.utils.building import under
from tilec.passes.utils.plans import pipelined
from tilec.passes.utils.raster_groups import (
    Counter,
    InLoop,
    backwards,
    decode,
    left_halved,
    left_together,
)
from tilec.target import Target


def block_order(func: Func, target: Target) -> Func:
    """Raises ResourceError for a plan's cluster that the launch cannot have."""
    func = settle_cluster(func, target)
    swizzles = [o for o in func.body.every(ops.UseSwizzle)]
    persistent = bool(func.attrs.get("persistent")) and can_persist(func)
    if func.attrs.get("persistent") and not persistent:
        func = func.with_attrs(persistent=False)
    group = swizzles[0].panel_size if swizzles else int(func.attrs.get("raster_group", 1))
    if not swizzles and not persistent and not (group > 1 and _worth_groups(func)):
        return func if cluster_of(func) == SINGLE or is_whole(func) else _rounded(func)
    along = 0 if swizzles and swizzles[0].order == "column" else 1
    if persistent:
        return _persistent(func, group, along)
    return _renumber(func, group, along, bool(swizzles))


def _worth_groups(func: Func) -> bool:
    """Whether blocks that run at once had better be neighbours in two dimensions of the grid: they
    load tiles in a loop, and those of different blocks may be the same."""
    plane = any(o.dim == 1 for o in func.body.every(ops.BlockIndex))
    by_hand = any(o.has(ops.TmaCopy) for o in func.body.every(ops.For))
    return plane and (can_persist(func) or by_hand)


def meets_others(func: Func) -> bool:
    """Whether blocks wait for one another, for what each of them has folded: all run at once."""
    return any(o.everywhere for o in func.body.every(ops.CombineParts))


def can_persist(func: Func) -> bool:
    """Whether a launched block may run the body several times: it has a pipelined loop worth
    keeping busy, does not walk over blocks by itself, and waits for no others."""
    walks = any(o.kind == "persistent" for o in func.body.every(ops.For))
    return bool(pipelined(func.body)) and not walks and not meets_others(func)


def growing(func: Func) -> frozenset[int]:
    """The dimensions of the grid along which a pipelined loop gets longer."""
    facts = facts_of(func)
    indices = {o.dim: o.result for o in func.body.every(ops.BlockIndex)}
    loops = pipelined(func.body)
    return frozenset(
        d
        for d, v in indices.items()
        if any(trend(facts, o.hi, v) == 1 and trend(facts, o.lo, v) == 0 for o in loops)
    )


def uneven(func: Func) -> bool:
    """Whether some blocks of the grid have more to do than others: a pipelined loop's range, or a
    condition that such a loop stands under or has copies under, depends on the block."""
    facts = facts_of(func)
    indices = [o.result for o in func.body.every(ops.BlockIndex)]

    def differs(*values: Value) -> bool:
        return any(trend(facts, v, x) != 0 for v in values for x in indices)

    loops = {*pipelined(func.body)}
    for o, around in within(func.body):
        if isinstance(o, ops.For) and o in loops and differs(o.lo, o.hi):
            return True
        held = isinstance(o, ops.If) and (pipelined(o) or not loops.isdisjoint(around))
        if held and differs(*ops.decides(o)):
            return True
    return False


def _replace_indices(func: Func, indices: list[Value], sizes: list[Value]) -> tuple[Op, ...]:
    """The body's ops with block indices and grid sizes taken from these values."""
    subst: Substitution = {}

    def visit(o: Op) -> None | list[Op]:
        match o:
            case ops.BlockIndex(dim=d) if d < len(indices):
                subst[o.result] = indices[d]
                return []
            case ops.GridSize(dim=d) if d < len(sizes):
                subst[o.result] = sizes[d]
                return []
            case ops.UseSwizzle():
                return []
        return None

    return func.body.rewrite(Op, visit, subst).ops


def _in_clusters(n: Builder, at: list[Value], func: Func) -> list[Value]:
    """This block's indices, where its cluster has these."""
    made = []
    for d, (index, c) in enumerate(zip(at, cluster_of(func))):
        if c > 1:
            first = n.fold("mul", index, c)
            index = n.fold("add", first, n.value(ops.ClusterIndex, d))
        made.append(index)
    return made


def _rounded(func: Func) -> Func:
    """The grid rounded up to whole clusters; blocks beyond it do nothing that is seen."""
    b = Builder(func.loc)
    user = UserGrid(func, b)
    indices = [b.value(ops.BlockIndex, d) for d in range(len(user.extents))]
    return _relaunched(func, b, user, indices)


def _renumber(func: Func, group: int, along: int, wished: bool) -> Func:
    """`wished`: by the author, in the order that he knows. Otherwise rows that are left over are
    one group; in a grid of three dimensions groups half as wide, and so on, which need no
    reciprocals: rows are batches or heads there, mostly multiples of a group."""
    b = Counter(func.loc)
    c = cluster_of(func)
    grid = [b.fold("floordiv", b.value(ops.GridSize, d), c[d]) for d in (0, 1)]
    mine = [b.fold("floordiv", b.value(ops.BlockIndex, d), c[d]) for d in (0, 1)]
    group = max(1, group // c[along])
    if not wished:
        flat = len(ops.yielded(func.grid)) < 3 and not func.attrs.get("grid_from_launch")
        at = (left_together if flat else left_halved)(b, mine, grid, group)
        at = backwards(b, at, grid, growing(func))
    else:
        tile = b.fold("add", b.fold("mul", mine[1], grid[0]), mine[0])
        at = decode(b, tile, grid, group, along, growing(func))
    indices = _in_clusters(b, at, func)
    if c == SINGLE or is_whole(func):
        return func.with_body(Block((), (*b.ops, *_replace_indices(func, indices, []))))
    user = UserGrid(func, b)
    indices += [b.value(ops.BlockIndex, d) for d in range(2, len(user.extents))]
    return _relaunched(func, b, user, indices)


def _relaunched(func: Func, b: Builder, user: UserGrid, indices: list[Value]) -> Func:
    """The body with these block indices, launched with the grid rounded up."""
    inside = user.inside(b, indices)
    statements = only_inside(_replace_indices(func, indices, user.extents), inside)
    body = Block((), (*b.ops, *statements))
    return Func(func.name, user.params, rounded_grid(func), body, func.attrs, func.loc)


def _persistent(func: Func, group: int, along: int) -> Func:
    b = Counter(func.loc)
    c = cluster_of(func)
    user = UserGrid(func, b)
    clusters = user.clusters(b)
    total = functools.reduce(functools.partial(b.fold, "mul"), clusters)
    start = b.fold("floordiv", b.value(ops.BlockIndex, 0), c[0])
    step = b.fold("floordiv", b.value(ops.GridSize, 0), c[0])
    tile = Value(ScalarType(INT32), "tile")
    inner = Counter(func.loc)
    if len(clusters) == 3:  # three divisions, one behind the other, before a tile begins
        inner = InLoop(func.loc, b, clusters)
    at = decode(inner, tile, clusters, max(1, group // c[along]), along, growing(func))
    indices = _in_clusters(inner, at, func)
    inside = user.inside(inner, indices)
    body = only_inside(_replace_indices(func, indices, user.extents), inside)
    inner.ops += Block((), tuple(body)).statements
    inner.emit(ops.Yield)
    b.emit(ops.For, "persistent", start, total, step, (), inner.block([tile]))
    made = Func(func.name, user.params, func.grid, b.block(), func.attrs, func.loc)
    specialise = bool(func.attrs.get("specialise"))
    groups = groups_of(func)
    claimed = takes_as_they_come(specialise, groups, c) and uneven(func)
    return made.with_attrs(claimed=True) if claimed else made


def takes_as_they_come(specialise: bool, consumer_groups: int, cluster: Dims) -> bool:
    """Whether blocks of a persistent kernel take tiles as they come (`claim_blocks`), where some
    are longer than others: there are warps that ask while others compute."""
    return specialise and consumer_groups == 1 and cluster == SINGLE


# --- clusters and the grid ---


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
    rank = 3 if func.attrs.get("grid_from_launch") else len(ops.yielded(func.grid))
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
    loops = [o for o in func.body.every(ops.While)]
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
    extents = ops.yielded(func.grid)
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
            used = {o.dim for o in walk(func.body) if isinstance(o, (ops.BlockIndex, ops.GridSize))}
            used |= {0, *(d for d, c in enumerate(self.cluster) if c > 1)}
            given = [
                Param(Value(ScalarType(INT32), f"grid{d}"), "grid", "", d)
                for d in range(max(used) + 1)
            ]
            self.params = (*func.params, *given)
            self.extents = [p.value for p in given]
        else:
            subst: Substitution = {}
            b.ops += [o.clone(subst) for o in func.grid.statements]
            self.extents = [narrow(b, subst.get(v, v)) for v in ops.yielded(func.grid)]

    def clusters(self, b: Builder) -> list[Value]:
        """How many clusters there are along each dimension, the last one perhaps not full."""
        return [clusters_in(b, e, c) for e, c in zip(self.extents, self.cluster)]

    def inside(self, b: Builder, indices: Sequence[Value]) -> Value | None:
        """Whether the block with these indices is one of the grid; None if it is known to be."""
        conds = [
            b.compare("lt", index, extent)
            for index, extent, known in zip(
                indices, self.extents, _divides(self.func, self.cluster)
            )
            if not known
        ]
        return b.conjunction(conds)


def clusters_in(b: Builder, extent: Value, cluster: int) -> Value:
    """`extent` blocks in clusters of `cluster`, rounded up."""
    if cluster == 1:
        return extent
    up = b.binary("add", extent, cluster - 1)
    return b.binary("floordiv", up, cluster)


def is_whole(func: Func) -> bool:
    """Whether the grid is known to be made of whole clusters."""
    return all(_divides(func, cluster_of(func)))


def rounded_grid(func: Func) -> Block:
    """The function's grid, rounded up to whole clusters: what is launched."""
    if not ops.yielded(func.grid):
        return func.grid
    b = Builder(func.loc, func.grid.statements)
    sides = zip(ops.yielded(func.grid), cluster_of(func))
    b.emit(ops.Yield, tuple(b.fold("mul", clusters_in(b, e, c), c) for e, c in sides))
    return b.block()


# --- blocks beyond the grid ---


def only_inside(statements: Sequence[Op], inside: Value | None) -> list[Op]:
    """The ops with everything that can be seen from outside of the block done only where `inside`
    holds."""
    if inside is None:
        return list(statements)
    return [_guarded(o, inside) for o in statements]


def _guarded(o: Op, inside: Value) -> Op:
    if _is_seen(o):
        return under(inside, [o])
    return o.with_regions(lambda r: replace(r, ops=tuple(only_inside(r.ops, inside))))


def _is_seen(o: Op) -> bool:
    """Whether `o` acts outside of its block, and does nothing else."""
    if o.region_fields and not isinstance(o, ops.Parallel):
        return False
    acts = [e for e in o.effects() if e.writes or e.kind == "output"]
    return bool(acts) and all(e.is_seen for e in acts)
