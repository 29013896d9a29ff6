"""block_order: which block of the user's grid a launched block works on, and when.

Before: `block_index` and `grid_size` mean the user's grid; at most one `use_swizzle` says how to
walk over it. After: no `use_swizzle` is left. In a persistent kernel the body stands in a loop
over the blocks `block_index(0), block_index(0) + grid_size(0), …` of the user's grid, numbered so
that `group` neighbours in dimension 1 follow each other (they share columns of one operand in the
L2 cache while the rows of the other stay there); otherwise the two leading indices are renumbered
in place."""

from __future__ import annotations

from tilec.ir.core import Builder, Func, Op, Param, Substitution, Value, clone, rewrite, walk
from tilec.ir.ops import (
    Binary,
    BlockIndex,
    Const,
    For,
    GridSize,
    UseSwizzle,
    Yield,
    yielded,
)
from tilec.ir.types import INT32, ScalarType
from tilec.passes.addressing import narrow
from tilec.target import Target


def block_order(func: Func, target: Target) -> Func:
    """See the module's opening."""
    swizzles = [o for o in walk(func.body) if isinstance(o, UseSwizzle)]
    persistent = bool(func.attrs.get("persistent")) and can_persist(func)
    if func.attrs.get("persistent") and not persistent:
        func = func.with_attrs(persistent=False)
    if not swizzles and not persistent:
        return func
    group = swizzles[0].panel_size if swizzles else int(func.attrs.get("panel", 1))
    along = 0 if swizzles and swizzles[0].order == "column" else 1
    if persistent:
        return _persistent(func, group, along)
    return _renumber(func, group, along)


def can_persist(func: Func) -> bool:
    """Whether a launched block may run the body several times: it has a pipelined loop worth
    keeping busy, and does not walk over blocks by itself."""
    loops = [o for o in walk(func.body) if isinstance(o, For)]
    return any(o.kind == "pipelined" for o in loops) and not any(
        o.kind == "persistent" for o in loops
    )


class _Numbers:
    """Index arithmetic in i32, written at one place."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def const(self, value: int) -> Value:
        return self.b.value(Const, value, INT32)

    def op(self, kind: str, x: Value, y: Value) -> Value:
        return self.b.value(Binary, kind, x, y)

    def grouped(self, tile: Value, across: Value, along: Value, group: int) -> tuple[Value, Value]:
        """The `tile`-th position of an `across` x `along` grid that is walked in panels of `group`
        along the second dimension: (index across, index along)."""
        size = self.const(group)
        panel = self.op("mul", across, size)
        number = self.op("floordiv", tile, panel)
        first = self.op("mul", number, size)
        width = self.op("min", self.op("sub", along, first), size)
        inside = self.op("sub", tile, self.op("mul", number, panel))
        x = self.op("floordiv", inside, width)
        y = self.op("add", first, self.op("sub", inside, self.op("mul", x, width)))
        return x, y


def _decode(n: _Numbers, tile: Value, grid: list[Value], group: int, along: int) -> list[Value]:
    """The user's block indices of the `tile`-th block."""
    if len(grid) == 1:
        return [tile]
    plane = n.op("mul", grid[0], grid[1])
    indices: list[Value] = []
    if len(grid) == 3:
        z = n.op("floordiv", tile, plane)
        tile = n.op("sub", tile, n.op("mul", z, plane))
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


def _renumber(func: Func, group: int, along: int) -> Func:
    b = Builder(func.loc)
    n = _Numbers(b)
    grid = [b.value(GridSize, d) for d in (0, 1)]
    tile = n.op("add", n.op("mul", b.value(BlockIndex, 1), grid[0]), b.value(BlockIndex, 0))
    indices = _decode(n, tile, grid, group, along)
    return func.with_body(type(func.body)((), (*b.ops, *_replace_indices(func, indices, []))))


def _persistent(func: Func, group: int, along: int) -> Func:
    b = Builder(func.loc)
    n = _Numbers(b)
    params = func.params
    if func.attrs.get("grid_from_launch"):
        used = {o.dim for o in walk(func.body) if isinstance(o, (BlockIndex, GridSize))} | {0}
        given = [
            Param(Value(ScalarType(INT32), f"grid{d}"), "grid", "", d) for d in range(max(used) + 1)
        ]
        params = (*params, *given)
        grid = [p.value for p in given]
    else:
        subst: Substitution = {}
        b.ops += [clone(o, subst) for o in func.grid.ops if not isinstance(o, Yield)]
        grid = [narrow(b, subst.get(v, v)) for v in yielded(func.grid)]
    total = grid[0]
    for extent in grid[1:]:
        total = n.op("mul", total, extent)
    start, step = b.value(BlockIndex, 0), b.value(GridSize, 0)
    tile = Value(ScalarType(INT32), "tile")
    inner = Builder(func.loc)
    indices = _decode(_Numbers(inner), tile, grid, group, along)
    body = _replace_indices(func, indices, grid)
    inner.ops += [o for o in body if not isinstance(o, Yield)]
    inner.emit(Yield)
    b.emit(For, "persistent", start, total, step, (), inner.block([tile]))
    made = Func(func.name, params, func.grid, b.block(), func.attrs, func.loc)
    return made
