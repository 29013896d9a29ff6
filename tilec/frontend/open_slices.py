"""Slices whose extent is only known at run time, `A[first:first + n, 0:64]`: as a side of T.copy,
or filled.

A tile has compile-time extents; such a slice has those of the other side. What is behind its end is
out of bounds: it reads as zero and is not written. T.fill is the loop over its elements that
T.Parallel makes of such extents."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from tilec.frontend.arithmetic import Arithmetic
from tilec.frontend.expressions import Expressions
from tilec.frontend.placements import along, for_each_element
from tilec.frontend.values import OPEN, LoopHeader, Number, Region, Scalar, Tile, as_syntax
from tilec.support.syntax import placed


def is_open(r: object) -> bool:
    """Whether the extent of a slice is only known at run time."""
    return isinstance(r, Region) and OPEN in r.extents


def closed(t: Arithmetic, r: Region, other: Tile, text: str) -> Tile:
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


def copy_open(t: Expressions, r: Region, source: Tile, dest: Tile, reads: bool) -> None:
    """The copy of an open slice, the source if it `reads`, else the destination."""
    tile = source if reads else dest

    def move(at: list[Scalar]) -> None:
        here, there = along(t, source, at), along(t, dest, at)
        inside: Number = True
        for condition in _inside(t, r, tile, at):
            inside = condition if inside is True else t.binary("and", inside, condition)
        cond = t.run_time(inside)
        if not reads:
            t.branch(cond, lambda: t.store(there, t.load(here)))
        elif r.buffer.is_global:  # it is guarded: reading more costs nothing
            t.store(there, t.select(cond, t.load(here), 0))
        else:
            t.store(there, t.choose(cond, lambda: t.load(here), lambda: 0))

    for_each_element(t, tile.shape, move)


def _inside(t: Expressions, r: Region, tile: Tile, at: Sequence[Scalar]) -> Iterator[Scalar]:
    """What holds for the indices of a tile that are in the slice."""
    left = iter(at)
    for d, (given, extent) in enumerate(zip(r.extents, tile.extents)):
        index: Number = 0 if extent == 1 else next(left)
        if given == OPEN:
            yield t.run_time(t.compare("lt", index, r.counts[d]))


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
