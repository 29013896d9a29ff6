"""block_order: which block of the user's grid a launched block works on, and when.

Before: `block_index` and `grid_size` mean the user's grid; at most one `use_swizzle` says how to
walk over it. After: no `use_swizzle` is left. In a persistent kernel the body stands in a loop
over the blocks `block_index(0), block_index(0) + grid_size(0), …` of the user's grid, numbered so
that `group` neighbours in dimension 1 follow each other (they share columns of one operand in the
L2 cache while the rows of the other stay there). Otherwise the two leading indices are renumbered
in place, where the user asks for it or the plan has panels and the blocks load tiles in a loop.

In a kernel launched in clusters (attribute `cluster`) it is whole clusters that are numbered so:
the blocks of one have neighbouring indices along the cluster's dimensions, and the others the same.
A persistent kernel is launched with its clusters in a row along dimension 0."""

from __future__ import annotations

from tilec.ir.clusters import SINGLE, cluster_of
from tilec.ir.core import Block, Builder, Func, Op, Substitution, Value, rewrite, walk
from tilec.ir.ops import (
    Binary,
    BlockIndex,
    ClusterIndex,
    Const,
    For,
    GridSize,
    UseSwizzle,
    Yield,
)
from tilec.ir.types import INT32, ScalarType
from tilec.passes.utils.cluster_grid import (
    UserGrid,
    is_whole,
    only_inside,
    rounded_grid,
    settle_cluster,
)
from tilec.target import Target


def block_order(func: Func, target: Target) -> Func:
    """See the module's opening. Raises ResourceError for a plan's cluster that the launch cannot
    have."""
    func = settle_cluster(func, target)
    swizzles = [o for o in walk(func.body) if isinstance(o, UseSwizzle)]
    persistent = bool(func.attrs.get("persistent")) and can_persist(func)
    if func.attrs.get("persistent") and not persistent:
        func = func.with_attrs(persistent=False)
    group = swizzles[0].panel_size if swizzles else int(func.attrs.get("panel", 1))
    if not swizzles and not persistent and not (group > 1 and _worth_panels(func)):
        return func if cluster_of(func) == SINGLE or is_whole(func) else _rounded(func)
    along = 0 if swizzles and swizzles[0].order == "column" else 1
    if persistent:
        return _persistent(func, group, along)
    return _renumber(func, group, along)


def _worth_panels(func: Func) -> bool:
    """Whether blocks that run at once had better be neighbours in two dimensions of the grid: they
    load tiles in a loop, and those of different blocks may be the same."""
    plane = any(isinstance(o, BlockIndex) and o.dim == 1 for o in walk(func.body))
    return plane and can_persist(func)


def can_persist(func: Func) -> bool:
    """Whether a launched block may run the body several times: it has a pipelined loop worth
    keeping busy, and does not walk over blocks by itself."""
    loops = [o for o in walk(func.body) if isinstance(o, For)]
    return any(o.kind == "pipelined" for o in loops) and not any(
        o.kind == "persistent" for o in loops
    )


class _Numbers:
    """Index arithmetic in i32, written at one place. What it divides by are extents of a grid that
    has a block, and parts of them."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def const(self, value: int) -> Value:
        return self.b.value(Const, value, INT32)

    def op(self, kind: str, x: Value, y: Value) -> Value:
        return self.b.value(Binary, kind, x, y, nonzero=kind in ("floordiv", "mod"))

    def grouped(self, tile: Value, across: Value, along: Value, group: int) -> tuple[Value, Value]:
        """The `tile`-th position of an `across` x `along` grid that is walked in panels of `group`
        along the second dimension: (index across, index along)."""
        size = self.const(group)
        panel = self.op("mul", across, size)
        number = self.op("floordiv", tile, panel)
        first = self.op("mul", number, size)
        width = self.op("min", self.op("sub", along, first), size)
        width = self.op("max", width, self.const(1))  # as it is; then no index can be below 0
        inside = self.op("mod", tile, panel)
        x = self.op("floordiv", inside, width)
        y = self.op("add", first, self.op("mod", inside, width))
        return x, y


def _decode(n: _Numbers, tile: Value, grid: list[Value], group: int, along: int) -> list[Value]:
    """The user's block indices of the `tile`-th block."""
    if len(grid) == 1:
        return [tile]
    plane = n.op("mul", grid[0], grid[1])
    indices: list[Value] = []
    if len(grid) == 3:
        z = n.op("floordiv", tile, plane)
        tile = n.op("mod", tile, plane)
        indices = [z]
    if along == 1:
        x, y = n.grouped(tile, grid[0], grid[1], group)
    else:
        y, x = n.grouped(tile, grid[1], grid[0], group)
    return [x, y, *indices]


def _replace_indices(func: Func, indices: list[Value], sizes: list[Value]) -> tuple[Op, ...]:
    """The body's ops with block indices and grid sizes taken from these values."""
    subst: Substitution = {}

    def visit(o: Op) -> None | list[Op]:
        match o:
            case BlockIndex(dim=d) if d < len(indices):
                subst[o.result] = indices[d]
                return []
            case GridSize(dim=d) if d < len(sizes):
                subst[o.result] = sizes[d]
                return []
            case UseSwizzle():
                return []
        return None

    return rewrite(func.body, visit, subst).ops


def _in_clusters(n: _Numbers, at: list[Value], func: Func) -> list[Value]:
    """This block's indices, where its cluster has these."""
    made = []
    for d, (index, c) in enumerate(zip(at, cluster_of(func))):
        if c > 1:
            first = n.op("mul", index, n.const(c))
            index = n.op("add", first, n.b.value(ClusterIndex, d))
        made.append(index)
    return made


def _share(n: _Numbers, v: Value, parts: int) -> Value:
    return v if parts == 1 else n.op("floordiv", v, n.const(parts))


def _rounded(func: Func) -> Func:
    """The grid rounded up to whole clusters; blocks beyond it do nothing that is seen."""
    b = Builder(func.loc)
    user = UserGrid(func, b)
    indices = [b.value(BlockIndex, d) for d in range(len(user.extents))]
    return _relaunched(func, b, user, indices)


def _renumber(func: Func, group: int, along: int) -> Func:
    b = Builder(func.loc)
    n = _Numbers(b)
    c = cluster_of(func)
    grid = [_share(n, b.value(GridSize, d), c[d]) for d in (0, 1)]
    mine = [_share(n, b.value(BlockIndex, d), c[d]) for d in (0, 1)]
    tile = n.op("add", n.op("mul", mine[1], grid[0]), mine[0])
    at = _decode(n, tile, grid, max(1, group // c[along]), along)
    indices = _in_clusters(n, at, func)
    if c == SINGLE or is_whole(func):
        return func.with_body(Block((), (*b.ops, *_replace_indices(func, indices, []))))
    user = UserGrid(func, b)
    indices += [b.value(BlockIndex, d) for d in range(2, len(user.extents))]
    return _relaunched(func, b, user, indices)


def _relaunched(func: Func, b: Builder, user: UserGrid, indices: list[Value]) -> Func:
    """The body with these block indices, launched with the grid rounded up."""
    inside = user.inside(b, indices)
    ops = only_inside(_replace_indices(func, indices, user.extents), inside)
    body = Block((), (*b.ops, *ops))
    return Func(func.name, user.params, rounded_grid(func), body, func.attrs, func.loc)


def _persistent(func: Func, group: int, along: int) -> Func:
    b = Builder(func.loc)
    n = _Numbers(b)
    c = cluster_of(func)
    user = UserGrid(func, b)
    clusters = user.clusters(b)
    total = clusters[0]
    for extent in clusters[1:]:
        total = n.op("mul", total, extent)
    start = _share(n, b.value(BlockIndex, 0), c[0])
    step = _share(n, b.value(GridSize, 0), c[0])
    tile = Value(ScalarType(INT32), "tile")
    inner = Builder(func.loc)
    m = _Numbers(inner)
    indices = _in_clusters(m, _decode(m, tile, clusters, max(1, group // c[along]), along), func)
    inside = user.inside(inner, indices)
    body = only_inside(_replace_indices(func, indices, user.extents), inside)
    inner.ops += [o for o in body if not isinstance(o, Yield)]
    inner.emit(Yield)
    b.emit(For, "persistent", start, total, step, (), inner.block([tile]))
    return Func(func.name, user.params, func.grid, b.block(), func.attrs, func.loc)
