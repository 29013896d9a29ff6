"""Slices whose extent is only known at run time, `A[first:first + n, 0:64]`: as a side of T.copy,
or filled.

A tile has compile-time extents; such a slice has those of the other side. What is behind its end is
out of bounds: it reads as zero and is not written. T.fill is the loop over its elements that
T.Parallel makes of such extents."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TypeGuard

from tilec.frontend.arithmetic import Arithmetic, static_int
from tilec.frontend.builtins.table import Call
from tilec.frontend.expressions import Expressions
from tilec.frontend.placements import along, for_each_element
from tilec.frontend.values import OPEN, LoopHeader, Number, Region, Scalar, Tile, as_syntax
from tilec.support.syntax import placed


def is_open(r: object) -> TypeGuard[Region]:
    """Whether the extent of a slice is only known at run time."""
    return isinstance(r, Region) and OPEN in r.extents


def closed(t: Expressions, c: Call) -> tuple[Tile, Tile]:
    """Both sides of a copy as tiles; a slice that is open has the other side's extents, of two that
    are it is the one of an on-chip buffer that goes to the buffer's end. Raises CompileError where
    the two cannot have the same."""
    source, dest = (r if is_open(r) else None for r in (c["src"], c["dst"]))
    tile = _to_the_end(source, dest) or _to_the_end(dest, source)
    name = "dst" if source and (tile is None or tile.buffer is not source.buffer) else "src"
    with t.at(c.place(name)):
        tile = tile or t.tile(c[name], "the source" if name == "src" else "the destination")
    part = _closed(t, c["src" if name == "dst" else "dst"], tile, t.tile_text(tile))
    return (part, tile) if name == "dst" else (tile, part)


def _to_the_end(r: Region | None, other: Region | None) -> Tile | None:
    """An open slice of an on-chip buffer whose start is known as a tile up to the buffer's end, if
    there is an `other` open side."""
    if r is None or other is None or r.buffer.is_global:
        return None
    extents = [1 if e is None else e for e in r.extents]
    for d in r.counts:
        start = static_int(r.offsets[d])
        if start is None:
            return None
        extents[d] = r.buffer.type.static_shape[d] - start
    return Tile(r.buffer, r.offsets, tuple(extents))


def _closed(t: Arithmetic, r: Region, other: Tile, text: str) -> Tile:
    """The slice as a tile, with extents of the other side's. Raises CompileError where the two
    cannot have the same."""
    extents = [1 if e is None else e for e in r.extents]
    sized = _matched(extents, other.extents) or _matched(extents, other.shape)
    if sized is None:
        shown = ", ".join("?" if e == OPEN else str(e) for e in extents)
        raise t.error(
            f"a ({shown}) slice of {r.buffer.name} and {text}: their extents differ",
            "name a tile with the other side's extents, of which one may be known at run time only",
            r.loc,
        )
    return Tile(r.buffer, r.offsets, sized)


def _matched(extents: Sequence[int], other: Sequence[int]) -> tuple[int, ...] | None:
    """`extents` with what is open filled in from `other`, ones left out or not."""
    kept = list(extents) if len(extents) == len(other) else [e for e in extents if e != 1]
    if len(kept) != len(other) or any(e not in (OPEN, o) for e, o in zip(kept, other)):
        return None
    left = iter(other)
    keep_ones = len(extents) == len(other)
    return tuple(next(left) if e != 1 or keep_ones else 1 for e in extents)


def copy_open(t: Expressions, c: Call, source: Tile, dest: Tile) -> None:
    """The copy of an open slice, or to one, or both, whose tiles are `source` and `dest`."""

    def move(at: list[Scalar]) -> None:
        here, there = along(t, source, at), along(t, dest, at)
        read, written = _inside(t, c["src"], source, at), _inside(t, c["dst"], dest, at)

        def value() -> Number:
            if not (read.keys() - written.keys()):
                return t.load(here)
            cond = _all(t, [*read.values()])
            if source.buffer.is_global:  # it is guarded: reading more costs nothing
                return t.select(cond, t.load(here), 0)
            return t.choose(cond, lambda: t.load(here), lambda: 0)

        if written:
            t.branch(_all(t, [*written.values()]), lambda: t.store(there, value()))
        else:
            t.store(there, value())

    for_each_element(t, dest.shape, move)


def _all(t: Expressions, conditions: Sequence[Scalar]) -> Scalar:
    found: Number = True
    for c in conditions:
        found = c if found is True else t.binary("and", found, c)
    return t.run_time(found)


def _inside(
    t: Expressions, r: object, tile: Tile, at: Sequence[Scalar]
) -> dict[tuple[object, object], Scalar]:
    """What holds for the indices of a tile that are in the slice, by index and bound."""
    found: dict[tuple[object, object], Scalar] = {}
    left = iter(at)
    if not is_open(r):
        return found
    for d, (given, extent) in enumerate(zip(r.extents, tile.extents)):
        index: Number = 0 if extent == 1 else next(left)
        if given == OPEN:
            count = r.counts[d]
            key = getattr(index, "value", index), getattr(count, "value", count)
            found[key] = t.run_time(t.compare("lt", index, count))
    return found


def fill_open(t: Expressions, r: Region, value: object, node: ast.Call) -> None:
    """Set all elements of an open slice to a number, in a loop over them; `node` is the call."""
    dims = [d for d, e in enumerate(r.extents) if e not in (None, 1)]
    extents = tuple(r.counts[d] if r.extents[d] == OPEN else r.extents[d] for d in dims)
    words = {"extents": extents, "coalesced_width": None, "loop_layout": None}
    index = {d: ast.Name(f".fill index{d}", ast.Load()) for d in dims}

    def at(d: int) -> ast.expr:
        offset = as_syntax(r.offsets[d])
        if d not in index:
            return offset
        step = ast.Constant(r.steps.get(d, 1))
        return ast.BinOp(offset, ast.Add(), ast.BinOp(index[d], ast.Mult(), step))

    where = ast.Tuple([at(d) for d in range(len(r.offsets))], ast.Load())
    element = ast.Subscript(as_syntax(r.buffer), where, ast.Store())
    stored = ast.Assign([element], as_syntax(t.number(value, "the value")))
    header = as_syntax(LoopHeader("Parallel", words, t.loc))
    loop = ast.For(ast.Tuple([*index.values()], ast.Store()), header, [stored], [])
    t.for_loop(placed(loop, node))
