"""Tiles whose rows begin at any element, brought 16 bytes at a time.

Where nothing is known of the alignment of a tensor's rows, a thread loads the two pieces of 16
bytes, at multiples of 16 bytes, in which its 16 bytes of a row lie, and keeps them as they are
until the tile is stored; then it shifts out of them what it wants:

    memory   |  a  b  c  d  e  f  g  h |  i  j  k  l  m  n  o  p |
    wanted            c  d  e  f  g  h    i  j                      skip = 2

Two loads and some shifts stand for 8 loads and 8 stores of 2 bytes. The pieces hold neighbours of
the wanted elements, so a tile comes so only where all its pieces lie in the memory of its tensor:
the tile with the tensor's last elements is copied element by element. What is out of bounds is
set to zero behind the shift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from tilec.ir.agents import PIECE_REGISTERS, Agents
from tilec.ir.core import Builder, Func, Value, walk
from tilec.ir.layout import Layout, blocked
from tilec.ir.ops import (
    Alloc,
    Binary,
    Cast,
    Compare,
    Const,
    Copy,
    Extract,
    If,
    Load,
    MemLoad,
    Misaligned,
    Pack,
    Parallel,
    Realign,
    RegRead,
    RegWrite,
    Select,
    Store,
    Version,
    Yield,
    squeeze,
)
from tilec.ir.types import INT32, INT64, UINT32, BufferType, ScalarType
from tilec.passes.addressing import Place, Tensors, conjunction, coordinates, narrow
from tilec.passes.distribution import covering, idle
from tilec.passes.lower_copies import element_indices
from tilec.passes.registers import MOST_LACKING, OTHER_REGISTERS, at_launch
from tilec.target import Target

PIECE = 16  # bytes of a load
WORDS = 2 * PIECE // 4  # that wait for each 16 bytes of a thread's part of the tile


class _Part(NamedTuple):
    """Consecutive elements that one thread brings: which part of the thread's it is, the indices
    and the offset of the first one, and how many elements that is past a piece's beginning."""

    number: int
    indices: tuple[Value, ...]
    offset: Value
    skip: Value


class Tile(NamedTuple):
    """How the elements of a tile and the words that hold them are spread over the threads; how many
    of a thread's parts are loaded ahead of time, the others not before they are stored."""

    elements: BufferType
    words: BufferType
    ahead: int


class Pieces(NamedTuple):
    """Tiles that are brought together: the copies for them, whether all pieces of each lie in the
    memory of its tensor, and whether they do for all tiles, and all tiles inside of their
    tensors (None: they are brought once, so that shorter code is better)."""

    copies: list[Copy]
    tiles: list[Tile]
    reachable: list[Value]
    inside: Value | None


class Realigner:
    """Brings tiles of `func`'s tensors with `threads` threads."""

    def __init__(self, func: Func, threads: int, target: Target) -> None:
        self.agents = Agents(func, target)
        self.tensors = Tensors(func)
        self.warp_size = target.warp_size
        self.warps = threads // target.warp_size
        held = sum(
            o.type.layout.size("reg") * o.type.dtype.bits
            for o in walk(func.body)
            if isinstance(o, Alloc) and o.type.space == "fragment" and o.type.layout is not None
        )
        launched = int(func.attrs["launch_threads"])
        self.room = at_launch(launched, target) - OTHER_REGISTERS - held // 32

    def tiles(self, copies: Iterable[Copy]) -> dict[Value, Tile]:
        """How the tiles of run-ahead copies come, by buffer, of those that come so. As many parts
        are ahead as registers hold, if not all of them can be."""
        found = {o.dest: tile for o in copies if (tile := self._tile(o)) is not None}
        parts = sum(tile.ahead for tile in found.values())
        if PIECE_REGISTERS * parts <= self.room + MOST_LACKING:
            return found
        left = max(0, self.room // PIECE_REGISTERS)
        for dest, tile in found.items():
            found[dest] = tile._replace(ahead=min(left, tile.ahead))
            left -= found[dest].ahead
        return found

    def _tile(self, o: Copy) -> Tile | None:
        if not self.agents.in_pieces(o):
            return None
        shape, dtype = squeeze(o.dest_extents), o.source.dtype
        per = _per_piece(o)
        layout = blocked(shape, self.warp_size, self.warps, per)
        if idle(layout) > 1 and layout.size("reg") > per:
            return None
        words = (*shape[:-1], shape[-1] // per * WORDS)
        waiting = blocked(words, self.warp_size, self.warps, WORDS)
        return Tile(
            BufferType(shape, dtype, "fragment", layout=layout),
            BufferType(words, UINT32, "fragment", layout=waiting),
            layout.size("reg") // per,
        )

    def pieces(
        self, b: Builder, copies: list[Copy], tiles: Mapping[Value, Tile], once: bool
    ) -> Pieces:
        """What is to be known of the regions that run-ahead `copies` name."""
        reachable = [self._reachable(b, o) for o in copies]
        inside = None
        if not once:
            inside = conjunction(b, [*reachable, *(c for o in copies for c in self._inside(b, o))])
        return Pieces(copies, [tiles[o.dest] for o in copies], reachable, inside)

    def load(self, b: Builder, found: Pieces, words: Mapping[Value, Value]) -> None:
        """Load the pieces into the `words` of each tile."""

        def each(b: Builder, o: Copy, tile: Tile, inside: bool) -> None:
            for part in self._parts(b, o, tile.elements.layout):
                if part.number < tile.ahead:
                    for w, value in enumerate(self._words(b, o, part, inside)):
                        n = b.value(Const, WORDS * part.number + w, INT32)
                        b.emit(RegWrite, words[o.dest], n, value)

        self._forms(b, found, each, lambda b, o: None)

    def store(self, b: Builder, found: Pieces, words: Mapping[Value, Value], slot: Value) -> None:
        """What `load` has brought, to version `slot` of each tile in shared memory."""
        zero = b.value(Const, 0, INT32)
        dest = {o.dest: b.value(Version, o.dest, slot, name=o.dest.name) for o in found.copies}
        elements = {
            o.dest: b.value(Alloc, tile.elements, name=f"{o.dest.name}_elements")
            for o, tile in zip(found.copies, found.tiles)
        }

        def each(b: Builder, o: Copy, tile: Tile, inside: bool) -> None:
            per, held = _per_piece(o), elements[o.dest]
            for part in self._parts(b, o, tile.elements.layout):
                valid = None if inside else self._valid(b, o, part)
                if part.number < tile.ahead:
                    numbers = range(WORDS * part.number, WORDS * (part.number + 1))
                    index = [b.value(Const, n, INT32) for n in numbers]
                    read = [b.value(RegRead, words[o.dest], n) for n in index]
                else:
                    read = self._words(b, o, part, inside)
                packed = b.value(Pack, tuple(read))
                got = b.value(Realign, packed, part.skip, o.source.dtype, valid)
                for e in range(per):
                    n = b.value(Const, per * part.number + e, INT32)
                    b.emit(RegWrite, held, n, b.value(Extract, got, e))
            shape, full = tile.elements.static_shape, o.dest.buffer.static_shape
            at = (zero,) * len(full)
            b.emit(
                Copy, held, (zero,) * len(shape), shape, dest[o.dest], at, full,
                agent="threads", vector=1,
            )  # fmt: skip

        self._forms(b, found, each, lambda b, o: self._by_element(b, replace(o, dest=dest[o.dest])))

    # --- the parts of a thread ---

    def _parts(self, b: Builder, o: Copy, layout: Layout | None) -> Iterator[_Part]:
        """A thread's parts of the region. They are that many rows apart that their addresses are
        multiples of 16 bytes apart, or each has its own `skip`."""
        assert layout is not None
        per, t = _per_piece(o), o.source.buffer
        here = coordinates(b, layout, Place(b), b.value(Const, 0, INT32))
        first = element_indices(b, o.source, o.source_offsets, o.source_extents, tuple(here))
        start = self.tensors.offset(b, t, first)
        skip = b.value(Misaligned, o.source, start)
        zeros = tuple(b.value(Const, 0, i.dtype) for i in first)
        for number, away in enumerate(layout.table("reg")[::per].tolist()):
            coords = tuple(b.value(Const, c, INT32) for c in away)
            moved = element_indices(b, o.source, zeros, o.source_extents, coords)
            offset = b.value(Binary, "add", start, self.tensors.offset(b, t, moved))
            own = b.value(Misaligned, o.source, offset) if any(c % per for c in away) else skip
            indices = tuple(b.value(Binary, "add", i, m) for i, m in zip(first, moved))
            yield _Part(number, indices, offset, own)

    def _words(self, b: Builder, o: Copy, part: _Part, inside: bool) -> list[Value]:
        """Load the two pieces of a part."""
        per, found = _per_piece(o), []
        guard = None if inside else self._row_inside(b, o, part)
        first = b.value(Binary, "sub", part.offset, b.value(Cast, part.skip, INT64))
        for half in range(2):
            at = b.value(Binary, "add", first, b.value(Const, half * per, INT64))
            got = b.value(MemLoad, o.source, at, per, PIECE, guard, words=True)
            found += [b.value(Extract, got, w) for w in range(WORDS // 2)]
        return found

    def _row_inside(self, b: Builder, o: Copy, part: _Part) -> Value | None:
        """Whether the row of a part exists: one test for each dimension but the last."""
        rows = zip(part.indices, o.source.buffer.shape[:-1])
        numbers = [(i, self.tensors.number(b, n, i.dtype)) for i, n in rows]
        return conjunction(b, [b.value(Compare, "lt", i, n) for i, n in numbers])

    def _valid(self, b: Builder, o: Copy, part: _Part) -> Value:
        """How many elements of a part lie inside of the tensor: i32."""
        column = part.indices[-1]
        end = self.tensors.number(b, o.source.buffer.shape[-1], column.dtype)
        left = b.value(Binary, "sub", end, column)
        most, none = (b.value(Const, n, column.dtype) for n in (_per_piece(o), 0))
        left = b.value(Binary, "max", b.value(Binary, "min", left, most), none)
        inside = self._row_inside(b, o, part)
        if inside is not None:
            left = b.value(Select, inside, left, none)
        return narrow(b, left)

    # --- the forms ---

    def _forms(
        self,
        b: Builder,
        found: Pieces,
        each: Callable[[Builder, Copy, Tile, bool], None],
        otherwise: Callable[[Builder, Copy], None],
    ) -> None:
        """`each` tile, for tiles inside of their tensors and for others, or `otherwise`, where one
        cannot be brought by pieces."""

        def general(b: Builder) -> None:
            for o, tile, reachable in zip(found.copies, found.tiles, found.reachable):
                with _branches(b, reachable) as (some, none):
                    each(some, o, tile, False)
                    otherwise(none, o)

        if found.inside is None:
            general(b)
            return
        with _branches(b, found.inside) as (inside, other):
            for o, tile in zip(found.copies, found.tiles):
                each(inside, o, tile, True)
            general(other)

    def _inside(self, b: Builder, o: Copy) -> list[Value]:
        """Tests that the region lies inside of its tensor."""
        tests = []
        for at, extent, n in zip(o.source_offsets, o.source_extents, o.source.buffer.shape):
            end = b.value(Binary, "add", at, b.value(Const, extent, at.dtype))
            tests.append(b.value(Compare, "le", end, self.tensors.number(b, n, at.dtype)))
        return tests

    def _reachable(self, b: Builder, o: Copy) -> Value:
        """Whether every piece that a row of the region needs lies in the tensor's memory."""
        t, per = o.source.buffer, b.value(Const, _per_piece(o), INT64)
        sizes = [self.tensors.number(b, n, i.dtype) for n, i in zip(t.shape, o.source_offsets)]
        ends = []
        for d, (at, extent) in enumerate(zip(o.source_offsets, o.source_extents)):
            end = b.value(Binary, "add", at, b.value(Const, extent, at.dtype))
            if d < t.rank - 1:
                end = b.value(Binary, "min", end, sizes[d])
            ends.append(end)
        ones = [b.value(Const, 1, v.dtype) for v in ends]
        last, end = (
            self.tensors.offset(b, t, [b.value(Binary, "sub", v, one) for v, one in zip(vs, ones)])
            for vs in (ends, sizes)
        )
        inside = b.value(Compare, "le", b.value(Binary, "add", last, per), end)
        if t.align >= PIECE:
            return inside
        first = self.tensors.offset(b, t, o.source_offsets)
        return b.value(Binary, "and", inside, b.value(Compare, "ge", first, per))

    def _by_element(self, b: Builder, o: Copy) -> None:
        """The region element by element, without anything held: few tiles come so."""
        extents = squeeze(o.dest_extents)
        layout = covering(extents, self.warp_size, self.warps, 1)
        args = tuple(Value(ScalarType(INT32), f"i{d}") for d in range(len(extents)))
        inner = Builder(o.loc)
        source = element_indices(inner, o.source, o.source_offsets, o.source_extents, args)
        dest = element_indices(inner, o.dest, o.dest_offsets, o.dest_extents, args)
        inner.emit(Store, o.dest, dest, inner.value(Load, o.source, source))
        b.emit(Parallel, extents, inner.block(args), layout=layout, rare=True)


def _per_piece(o: Copy) -> int:
    return PIECE * 8 // o.source.dtype.bits


@contextmanager
def _branches(b: Builder, cond: Value) -> Iterator[tuple[Builder, Builder]]:
    """Builders of what is done where `cond` holds, and where it does not."""
    sides = Builder(b.loc), Builder(b.loc)
    yield sides
    for side in sides:
        side.emit(Yield)
    b.emit(If, cond, *(side.block() for side in sides))
