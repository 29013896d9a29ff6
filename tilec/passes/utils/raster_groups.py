"""Which tile of a grid is the n-th, where neighbours along its second dimension follow one another
in rasterisation groups: the arithmetic of `block_order`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilec.ir.builder import Builder
from tilec.ir.core import Value
from tilec.ir.loc import Loc
from tilec.ir.types import INT32, UINT32, DType

_MOST = 2**32 - 1  # a reciprocal is this over the divisor
_FEW = 16  # reciprocals that are looked up


class Counter(Builder):
    """Arithmetic on numbers that are not negative: it divides by nothing that may be 0 or -1."""

    def fold(self, kind: str, x: Value, y: Value | int, **more: Any) -> Value:
        return super().fold(kind, x, y, nonzero=kind in ("floordiv", "mod"), **more)


class InLoop(Counter):
    """The same inside of a loop. What does not change there is computed `before` it, reciprocals of
    divisors too."""

    def __init__(self, loc: Loc, before: Builder, fixed: Sequence[Value]) -> None:
        super().__init__(loc)
        self.before, self.known = before, before.known
        self.fixed = {*fixed}
        self.reciprocals: dict[Value, Value] = {}

    def const(self, number: bool | int | float, dtype: DType = INT32) -> Value:
        made = self.before.const(number, dtype)
        self.fixed.add(made)
        return made

    def fold(self, kind: str, x: Value, y: Value | int, **more: Any) -> Value:
        y = y if isinstance(y, Value) else self.const(y, x.dtype)
        if x in self.fixed and y in self.fixed:
            made = self.before.fold(kind, x, y)
            self.fixed.add(made)
            return made
        if kind in ("floordiv", "mod") and y in self.fixed and y not in self.known:
            more["reciprocal"] = self._reciprocal(y)
        return super().fold(kind, x, y, **more)

    def _reciprocal(self, d: Value) -> Value:
        if d not in self.reciprocals:
            self.reciprocals[d] = reciprocal(self.before, self.before.fold("max", d, 1))
        return self.reciprocals[d]


def reciprocal(n: Builder, d: Value) -> Value:
    """As a `Binary` takes it, of a positive number."""
    return n.binary("floordiv", n.const(_MOST, UINT32), n.cast(d, UINT32), nonzero=True)


def _known_reciprocal(n: Builder, d: Value, most: int) -> Value:
    """The same of a number from 1 to `most`: without a division where these are few."""
    if most > _FEW:
        return reciprocal(n, d)
    found = n.const(_MOST // most, UINT32)
    for number in range(1, most):
        found = n.select(n.compare("eq", d, number), n.const(_MOST // number, UINT32), found)
    return found


def _grouped(
    n: Builder, tile: Value, across: Value, along: Value, group: int
) -> tuple[Value, Value]:
    """The `tile`-th position of an `across` x `along` grid that is walked in rasterisation groups
    of `group` along the second dimension: (index across, index along)."""
    size = n.const(group)
    raster_group = n.fold("mul", across, size)
    number = n.fold("floordiv", tile, raster_group)
    first = n.fold("mul", number, size)
    width = n.fold("min", n.fold("sub", along, first), size)
    width = n.fold("max", width, 1)  # as it is; then no index can be below 0
    inside = n.fold("mod", tile, raster_group)
    x = n.fold("floordiv", inside, width)
    y = n.fold("add", first, n.fold("mod", inside, width))
    return x, y


def decode(
    n: Builder,
    tile: Value,
    grid: list[Value],
    group: int,
    along: int,
    reversed_dims: frozenset[int],
) -> list[Value]:
    """The block indices of the `tile`-th tile; those along `reversed_dims` run backwards."""
    return backwards(n, _forwards(n, tile, grid, group, along), grid, reversed_dims)


def backwards(
    n: Builder, found: list[Value], grid: list[Value], dims: frozenset[int]
) -> list[Value]:
    """The indices `found`, of which those along `dims` run from the last to the first."""
    for d in dims & {*range(len(found))}:
        last = n.fold("sub", grid[d], 1)
        found[d] = n.fold("max", n.fold("sub", last, found[d]), 0)
    return found


def _forwards(n: Builder, tile: Value, grid: list[Value], group: int, along: int) -> list[Value]:
    if len(grid) == 1:
        return [tile]
    plane = n.fold("mul", grid[0], grid[1])
    indices: list[Value] = []
    if len(grid) == 3:
        z = n.fold("floordiv", tile, plane)
        tile = n.fold("mod", tile, plane)
        indices = [z]
    if along == 1 and len(grid) == 3:
        size = n.const(group)
        blocks = n.fold("mul", grid[0], size)
        first = n.fold("mul", n.fold("floordiv", tile, blocks), size)
        inside = n.fold("mod", tile, blocks)
        y = n.fold("add", first, n.fold("floordiv", inside, grid[0]))
        left = n.fold("mod", inside, grid[0]), y
        indices = [*_whole_groups(n, (first, inside), left, grid, group), *indices]
        return indices
    if along == 1:
        x, y = _grouped(n, tile, grid[0], grid[1], group)
    else:
        y, x = _grouped(n, tile, grid[1], grid[0], group)
    return [x, y, *indices]


def _whole_groups(
    n: Builder, at: tuple[Value, Value], left: Sequence[Value], grid: list[Value], group: int
) -> list[Value]:
    """The indices in a plane that is walked in rasterisation groups of `group` along the second
    dimension, where `at` says: the group's first row, and how many blocks of the group come before;
    rows that make no whole group are walked as they are (`left`). There is no division but by
    `group`: a block cannot ask for its tiles before it knows which they are."""
    size = n.const(group)
    first, inside = at
    whole = n.compare("le", n.fold("add", first, size), grid[1])
    y = n.fold("add", first, n.fold("mod", inside, size))
    x = n.select(whole, n.fold("floordiv", inside, size), left[0])
    return [x, n.select(whole, y, left[1])]


def _in_group(n: Builder, mine: list[Value], grid: list[Value], group: int) -> tuple[Value, Value]:
    """Of the block at `mine` in a plane: the first row of its group, and how many blocks of that
    come before it, row by row."""
    size = n.const(group)
    first = n.fold("mul", n.fold("floordiv", mine[1], size), size)
    return first, n.fold("add", n.fold("mul", n.fold("mod", mine[1], size), grid[0]), mine[0])


def left_halved(n: Builder, mine: list[Value], grid: list[Value], group: int) -> list[Value]:
    """The indices of the block launched at `mine` in a plane that is walked in rasterisation groups
    of `group` along the second dimension. Rows that are left over are groups half as wide, and so
    on, while that divides it."""
    halved = group > 2 and group % 2 == 0
    left = left_halved(n, mine, grid, group // 2) if halved else mine
    return _whole_groups(n, _in_group(n, mine, grid, group), left, grid, group)


def left_together(n: Builder, mine: list[Value], grid: list[Value], group: int) -> list[Value]:
    """The same, but rows that are left over are one group, as wide as they are many: blocks that
    run at once are neighbours in a grid of few rows, too. The reciprocal of the width is looked up,
    for a block cannot ask for its tiles before it knows which they are."""
    first, inside = _in_group(n, mine, grid, group)
    width = n.fold("min", n.fold("sub", grid[1], first), group)
    width = n.fold("max", width, 1)  # as it is; then no index can be below 0
    by = {"reciprocal": _known_reciprocal(n, width, group), "nonzero": True}
    x, y = (n.binary(kind, inside, width, **by) for kind in ("floordiv", "mod"))
    return [x, n.fold("add", first, y)]
