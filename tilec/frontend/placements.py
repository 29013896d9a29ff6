"""Tensors whose elements are elsewhere than their indices say (`T.annotate_layout({dQ: …})`).

The layout of a tensor maps the indices that a kernel writes to coordinates, and these, counted row
by row, are the number of the element in the tensor's memory. Every access goes through it: elements
where they are read, written or updated, tiles in a loop over their elements. An index out of the
tensor's bounds stays out of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partialmethod
from math import prod
from typing import Any

from tilec.frontend.arithmetic import Arithmetic, affine_of, integer, static_int
from tilec.frontend.index import Reach
from tilec.frontend.values import Number, Region, Scalar, Tile, describe
from tilec.ir.core import Value
from tilec.ir.errors import CompileError, LayoutError
from tilec.ir.intervals import RANGES
from tilec.ir.layout import Layout
from tilec.ir.loc import Loc
from tilec.ir.ops import Parallel, Yield
from tilec.ir.types import INT32, ScalarType


@dataclass(frozen=True, eq=False)
class IndexMap:
    """What T.Layout gave for a shape of which only a tensor can be: sizes known when the kernel
    runs, or more elements than a tile has. `function` takes a coordinate for each dimension."""

    shape: tuple[int | Scalar, ...]
    function: Callable[..., Any]
    loc: Loc


def map_of(layout: Layout, loc: Loc) -> IndexMap:
    """The function from coordinates to the offset of a layout of memory."""
    terms = layout.inverse_terms()

    def offset(*at: Any) -> Any:
        total: Any = 0
        for term in terms:
            value = term(at[int(term.source)])
            total = total ^ value if term.xor else total + value
        return total

    return IndexMap(layout.shape, offset, loc)


@dataclass(frozen=True, eq=False)
class Placement:
    """A tensor's index map, and the extents of all its coordinates but the first."""

    map: IndexMap
    inner: tuple[int | Scalar, ...]

    def place(
        self, t: Arithmetic, shape: tuple[int | Scalar, ...], offsets: tuple[int | Scalar, ...]
    ) -> tuple[int | Scalar, ...]:
        """Where the element at `offsets` is: its indices in a tensor of `shape`, row by row."""
        given = [_Coordinate(t, x) for x in offsets]
        first, *rest = _coordinates(self.map, given)
        flat: Number = _number(first)
        for x, extent in zip(rest, self.inner):
            flat = t.binary("add", t.binary("mul", flat, extent), _number(x))
        found: list[Number] = []
        for size in reversed(shape[1:]):
            # A tensor without elements is asked for none; division by 0 would trap all the same.
            extent = integer(t.binary("max", size, 1)) if isinstance(size, Scalar) else size
            found.append(t.binary("mod", flat, extent))
            flat = t.binary("floordiv", flat, extent)
        inside = [c for x, extent in zip(offsets, shape) for c in _bounds(t, x, extent)]
        for c in inside:
            flat = t.select(c, t.run_time(flat, t.index_dtype), shape[0])
        return tuple(map(integer, (flat, *reversed(found))))


def placement(t: Arithmetic, given: IndexMap) -> Placement:
    """The placement of a tensor. Raises LayoutError where the extents of the map's coordinates are
    not known, or another size than the tensor's."""
    spans = [_Span(t, 0, e) for e in given.shape]
    _, *rest = _coordinates(given, spans)
    inner: list[int | Scalar] = []
    for n, x in enumerate(rest):
        extent = x.extent if isinstance(x, _Span) and x.least == 0 else None
        if not isinstance(x, _Span):  # it is the same everywhere
            extent = x + 1
        if extent is None:
            raise LayoutError(
                f"how far coordinate {n + 1} of this layout reaches is not known",
                given.loc,
                "coordinates are dimensions, their quotients and remainders by ints, and sums of "
                "those of known size, from 0 on",
            )
        inner.append(extent)
    whole = [static_int(e) for e in given.shape]
    held = [static_int(e) for e in inner]
    if all(e is not None for e in (*whole, *held)):
        size, row = prod(e or 0 for e in whole), prod(e or 0 for e in held)
        first = _coordinates(given, spans)[0]
        outer = first.extent if isinstance(first, _Span) else None
        known = static_int(outer) if outer is not None else None
        if row and known is not None and known * row > size:
            raise LayoutError(
                f"the coordinates of this layout reach {known} x {row} elements, the tensor has "
                f"{size}",
                given.loc,
                "each element needs a place of its own inside of the tensor",
            )
    return Placement(given, tuple(inner))


def for_each_element(
    t: Arithmetic, extents: tuple[int, ...], body: Callable[[list[Scalar]], None]
) -> None:
    """A T.Parallel over `extents` (none: of one iteration), whose body `body` emits for its
    indices."""
    extents, place = extents or (1,), t.loc
    args = [Value(ScalarType(INT32), "ijklmn"[d % 6]) for d in range(len(extents))]
    with t.inside() as builder:
        indices = []
        for arg, extent in zip(args, extents):
            reach = Reach(0, extent - 1, True, t.depth, dense=True, name=arg.name)
            indices.append(t.scalar(arg, reach))
        body(indices)
        builder.emit(Yield, loc=place)
    t.emit(Parallel, extents, builder.block(args))


# --- evaluation -----------------------------------------------------------------------------------


def _coordinates(given: IndexMap, at: Sequence[Any]) -> list[Any]:
    try:
        found = given.function(*at)
    except CompileError:
        raise
    except Exception as e:  # of whatever kind, it is the author's
        message = f"the layout function fails on indices: {type(e).__name__}: {e}"
        hint = "a tensor's layout is arithmetic of its indices: + - * // % & | ^ << >>"
        raise LayoutError(message, given.loc, hint) from None
    several = list(found) if isinstance(found, tuple | list) and found else [found]
    for x in several:
        if not isinstance(x, _Coordinate | _Span | int) or isinstance(x, bool):
            message = f"a layout function gives ints or tuples of them, not {describe(x)}"
            raise LayoutError(message, given.loc, "write lambda i, j: (i // 8, j, i % 8), say")
    return several


def _number(x: Any) -> Number:
    return x.value if isinstance(x, _Coordinate) else int(x)


def _bounds(t: Arithmetic, x: int | Scalar, extent: int | Scalar) -> list[Scalar]:
    """What must hold for `x` to be an index below `extent`, as far as it is not known to."""
    reach = t.indices.reach_of(affine_of(x))
    size = static_int(extent)
    found = []
    if reach.lo is None or reach.lo < 0:
        found.append(t.compare("ge", x, 0))
    if reach.hi is None or size is None or reach.hi >= size:
        found.append(t.compare("lt", x, extent))
    return [t.run_time(c) for c in found if c is not True]


class _Coordinate:
    """A number at run time, with Python's operators."""

    def __init__(self, t: Arithmetic, value: Number) -> None:
        self.t, self.value = t, value

    def _with(self, kind: str, other: Any, swap: bool = False) -> Any:
        if not isinstance(other, int | _Coordinate):
            return NotImplemented
        a, b = self.value, _number(other)
        return _Coordinate(self.t, self.t.binary(kind, *((b, a) if swap else (a, b))))


_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "floordiv": "floordiv", "mod": "mod",
    "and": "and", "or": "or", "xor": "xor", "lshift": "shl", "rshift": "shr",
}  # fmt: skip


class _Span:
    """The integers from `least` on, `extent` in all; None where it is not known how many."""

    def __init__(self, t: Arithmetic, least: int, extent: int | Scalar | None) -> None:
        self.t, self.least, self.extent = t, least, extent

    @property
    def most(self) -> int | None:
        known = None if self.extent is None else static_int(self.extent)
        return None if known is None else self.least + known - 1

    def _with(self, kind: str, other: Any, swap: bool = False) -> Any:
        if not isinstance(other, int | _Span):
            return NotImplemented
        theirs = other if isinstance(other, _Span) else _Span(self.t, int(other), 1)
        a, b = (theirs, self) if swap else (self, theirs)
        return _Span(self.t, *_reach(self.t, kind, a, b))


def _reach(t: Arithmetic, kind: str, a: _Span, b: _Span) -> tuple[int, int | Scalar | None]:
    """From where on, and how many, the results of an operation on two spans are."""
    by = b.least if b.most == b.least else None  # a number
    if by is not None and a.most is None and a.extent is not None and a.least == 0:
        match kind:
            case "add" | "sub" | "or" | "xor" | "shl" | "shr" if by == 0:
                return 0, a.extent
            case "mul" | "floordiv" if by == 1:
                return 0, a.extent
            case "floordiv" if by > 1:
                return 0, integer(t.binary("ceildiv", a.extent, by))
    if by is not None and by > 0 and kind == "mod":
        inside = a.most is not None and 0 <= a.least and a.most < by
        return (a.least, a.extent) if inside else (0, by)
    if a.most is None or b.most is None:
        return 0, None
    low, high = RANGES[kind]((a.least, a.most), (b.least, b.most))
    return (0, None) if low is None or high is None else (low, high - low + 1)


for _class in (_Coordinate, _Span):
    for _python, _kind in _OPERATORS.items():
        setattr(_class, f"__{_python}__", partialmethod(_class._with, _kind))
        setattr(_class, f"__r{_python}__", partialmethod(_class._with, _kind, swap=True))


# --- tiles ----------------------------------------------------------------------------------------


def is_placed(t: Arithmetic, *tiles: Tile) -> bool:
    """Whether one of the tiles has steps, or is in a tensor with a layout."""
    return any(x.steps or x.buffer.value in t.placements for x in tiles)


def along(t: Any, tile: Tile, indices: Sequence[Number]) -> Region:
    """The element of a tile at the indices of its extents that are not 1."""
    left = iter(indices)
    offsets = []
    for d, (start, extent) in enumerate(zip(tile.offsets, tile.extents)):
        behind: Number = 0 if extent == 1 else next(left)
        if d in tile.steps:
            behind = t.binary("mul", behind, tile.steps[d])
        offsets.append(behind if static_int(start) == 0 else t.binary("add", start, behind))
    element: Region = t.element(tile.buffer, offsets)
    return element


def copy_elements(t: Any, source: Tile, dest: Tile) -> None:
    """Copy a tile element by element."""
    for_each_element(
        t, source.shape, lambda at: t.store(along(t, dest, at), t.load(along(t, source, at)))
    )


def fill_elements(t: Any, tile: Tile, value: Number) -> None:
    """Set the elements of a tile one by one."""
    for_each_element(t, tile.shape, lambda at: t.store(along(t, tile, at), value))
