"""The regions that tile builtins work on, and both sides of a copy."""

from __future__ import annotations

import ast
import functools
import operator
from dataclasses import replace
from typing import Any

from tilec.frontend.arithmetic import affine_of, static_int
from tilec.frontend.memory import Memory, barrier_of, counted
from tilec.frontend.values import OPEN, Buffer, Region, Tile, describe, is_number
from tilec.ir import core
from tilec.ir.types import contiguous_strides
from tilec.support.lazy import Lazy

np: Any = Lazy("numpy")


class Regions(Memory):
    """Names tiles."""

    def region(self, operand: object, what: str) -> Region:
        """The operand of a tile builtin as a region; a bare buffer is the whole of it."""
        match operand:
            case Region() | Buffer() if barrier_of(operand) is not None:
                raise self.error(
                    f"{what} is {describe(operand)}, not a tile",
                    "pass a shared tile or fragment; barriers are for T.barrier_arrive, "
                    "T.barrier_wait and T.tma_copy(…, barrier=)",
                )
            case Region():
                return operand
            case Buffer():
                zeros = (0,) * operand.type.rank
                extents: list[int] = []
                for dim, extent in enumerate(operand.shape):
                    known = static_int(extent)
                    if known is None:
                        raise self.error(
                            f"{what} is the whole of {describe(operand)}, whose extent "
                            f"{operand.type.shape[dim]} is only known at run time",
                            f"name a tile: {operand.name}[start, …] or {operand.name}[a:a + n, …]",
                        )
                    extents.append(known)
                return Region(operand, zeros, tuple(extents), self.loc)
            case _:
                hint = "pass a buffer, A[i, j] (where a tile starts) or A[i:i + m, j:j + n]"
                if is_number(operand) and what == "the source":
                    hint = "T.fill(buffer, value) sets all elements of a tile"
                elif is_number(operand):
                    hint = 'name a tile: T.alloc_shared((m, n), "float32") makes one'
                raise self.error(f"{what} is {describe(operand)}, not a buffer or region", hint)

    def tile(self, operand: object, what: str) -> Tile:
        """A region whose extents stand by themselves. Raises CompileError for a bare start."""
        r = self.region(operand, what)
        if OPEN in r.extents:
            message = f"the extent of this slice of {describe(r.buffer)} is only known at run time"
            hint = f"dimension {r.extents.index(OPEN)}: write start:start + n with a compile-time n"
            raise self.error(message, hint, r.loc)
        if r.is_element:
            raise self.error(
                f"{what} says where a tile of {describe(r.buffer)} starts, not how large it is",
                "name the extents: A[i:i + m, j:j + n], or pass the whole buffer",
            )
        return self._sized(r, tuple(1 if e is None else e for e in r.extents), what)

    def element_tile(self, operand: object, what: str) -> Tile:
        """As `tile`; a bare start is one element."""
        r = self.region(operand, what)
        return self._sized(r, (1,) * len(r.offsets), what) if r.is_element else self.tile(r, what)

    def tiles(
        self, source: object, dest: object, places: tuple[ast.AST, ast.AST]
    ) -> tuple[Tile, Tile]:
        """Both sides of a copy, at `places`; a bare start takes the other side's extents, two are
        an element each."""
        with self.at(places[0]):
            src = self.region(source, "the source")
        with self.at(places[1]):
            dst = self.region(dest, "the destination")
        if src.is_element and dst.is_element:
            to = self.element_tile(dst, "the destination")
            return self.started(src, to, "the source"), to
        if src.is_element:
            to = self.tile(dst, "the destination")
            return self.started(src, to, "the source"), to
        if dst.is_element:
            tile = self.tile(src, "the source")
            return tile, self.started(dst, tile, "the destination")
        a, b = self.tile(src, "the source"), self.tile(dst, "the destination")
        if self.options.tilelang:
            a, b = self._over_the_end(a, b), self._over_the_end(b, a)
        if a.shape != b.shape:
            raise self.error(
                f"the source is {self.tile_text(a)}, the destination {self.tile_text(b)}: "
                "their extents differ",
                self._agreeing(a, b),
            )
        return a, b

    def same_memory(self, a: Tile, b: Tile) -> bool:
        """Whether two tiles are of one buffer, or of views of it."""
        one, other = (self.shown.get(x.buffer.value, x.buffer.value) for x in (a, b))
        return one is other

    def check_overlap(self, what: str, source: Tile, dest: Tile) -> None:
        """Raises CompileError if two tiles certainly share elements, through views, too, and are
        not the same."""
        if self.same_memory(source, dest) and not source.steps and not dest.steps:
            one_buffer = source.buffer.value is dest.buffer.value
            if (_share if one_buffer else _views_share)(source, dest):
                raise self.error(
                    f"{what} onto a part of itself: elements would be read after they are written",
                    "copy it to another buffer, and from there",
                )

    def _over_the_end(self, tile: Tile, other: Tile) -> Tile:
        """A slice up to the end of a tensor with the extents of the tile on chip, the larger ones:
        what is behind the end is out of bounds."""
        named = [d for d, e in enumerate(tile.extents) if e != 1]
        on_chip = tile.buffer.is_global and not other.buffer.is_global
        if not on_chip or tile.steps or len(named) != len(other.shape):
            return tile
        extents = list(tile.extents)
        for d, wanted in zip(named, other.shape):
            start, size = static_int(tile.offsets[d]), static_int(tile.buffer.shape[d])
            if start is not None and start + extents[d] == size and extents[d] < wanted:
                extents[d] = wanted
        return replace(tile, extents=tuple(extents))

    def _agreeing(self, source: Tile, dest: Tile) -> str:
        """How the two sides of a copy could be given the same extents."""
        other, wanted = (source, dest) if source.buffer.is_global else (dest, source)
        if other.steps and other.buffer.is_global and not wanted.buffer.is_global:
            other, wanted = wanted, other  # a start alone would lose the steps
        if not other.buffer.is_global:
            t, extents = other.buffer.type, ", ".join(map(str, wanted.extents))
            return (
                f'allocate {other.buffer.name} as T.alloc_{t.space}(({extents}), "{t.dtype.name}")'
            )
        starts = ", ".join("ijklmn"[: other.buffer.type.rank])
        return f"name where the tile starts only: {other.buffer.name}[{starts}]"

    def started(self, start: Region, other: Tile, what: str) -> Tile:
        """The tile that starts there, with the other side's extents."""
        rank = start.buffer.type.rank
        extents = other.extents
        while len(extents) > rank and extents[0] == 1:
            extents = extents[1:]
        if len(extents) > rank:
            raise self.error(
                f"{what} is {describe(start.buffer)}, the other side {self.tile_text(other)}: "
                "it has too few dimensions for that tile",
                f"copy a tile of {counted(rank, 'dimension', 'dimensions')}, or give "
                f"{start.buffer.name} {len(extents)} of them",
            )
        return self._sized(start, (1,) * (rank - len(extents)) + extents, what)

    def _sized(self, r: Region, extents: tuple[int, ...], what: str) -> Tile:
        spans = tuple((e - 1) * r.steps.get(d, 1) + 1 for d, e in enumerate(extents))
        if not r.buffer.is_global:
            does = "reads" if what == "the source" else "touches"
            for dim, (offset, span) in enumerate(zip(r.offsets, spans)):
                self.check_extent(r.buffer, dim, offset, span, does)
        else:
            does = "reads" if what == "the source" else "writes"
            self.warn_if_outside(r.buffer, r.offsets, spans, does)
        return Tile(r.buffer, r.offsets, extents, r.steps)

    def tile_text(self, t: Tile) -> str:
        extents = f"({', '.join(map(str, t.extents))})"
        if not t.buffer.is_global and t.extents == t.buffer.type.static_shape:
            return describe(t.buffer)
        return f"a {extents} tile of {describe(t.buffer)}"

    def box(self, t: Tile) -> core.Region:
        """A tile as an op takes it. Raises CompileError for a tensor with a layout, and for one of
        which a byte holds two elements."""
        if t.steps:
            message = f"{self.tile_text(t)} has a step, and this works on tiles without gaps"
            raise self.error(message, "copy it to a tile of its own with T.copy, and use that")
        if t.buffer.stored is not None:
            raise self.error(
                f"{describe(t.buffer)} has elements that are narrower in memory, and this works on "
                "tiles of memory as it is",
                "copy the tile to a shared one with T.copy",
            )
        if t.buffer.value in self.placements:
            raise self.error(
                f"{describe(t.buffer)} has a layout, and this works on tiles of memory as it is",
                "copy the tile to a shared one with T.copy, or write a loop over its elements: "
                "for i, j in T.Parallel(m, n): …",
            )
        return core.Region(t.buffer.value, tuple(map(self.index_value, t.offsets)), t.extents)


def _share(a: Tile, b: Tile) -> bool:
    apart = [(affine_of(x) - affine_of(y)).constant for x, y in zip(a.offsets, b.offsets)]
    inside = (n is not None and -m < n < k for n, k, m in zip(apart, b.extents, a.extents))
    return any(apart) and all(inside)


def _views_share(a: Tile, b: Tile) -> bool:
    types = a.buffer.type, b.buffer.type
    if types[0].dtype.bits != types[1].dtype.bits or not all(
        isinstance(e, int) for t in types for e in t.shape
    ):
        return False
    steps = [contiguous_strides(t.static_shape) for t in types]
    firsts = (
        functools.reduce(operator.add, (affine_of(o).scaled(n) for o, n in zip(x.offsets, s)))
        for x, s in zip((a, b), steps)
    )
    apart = functools.reduce(operator.sub, firsts).constant
    if apart is None:
        return False
    one, other = (np.tensordot(s, np.indices(x.extents), 1).ravel() for x, s in zip((a, b), steps))
    one = one + apart
    return not np.array_equal(one, other) and bool(np.isin(one, other).any())
