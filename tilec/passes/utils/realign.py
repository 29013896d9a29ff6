"""Tiles whose rows begin at any element, brought 16 bytes at a time.

Where nothing is known of the alignment of a tensor's rows, a thread loads the two pieces of 16
bytes, at multiples of 16 bytes, in which its 16 bytes of a row lie, and keeps them as they are
until the tile is stored; then it shifts out of them what it wants:

    memory   |  a  b  c  d  e  f  g  h |  i  j  k  l  m  n  o  p |
    wanted            c  d  e  f  g  h    i  j                      skip = 2

Two loads and some shifts stand for 8 loads and 8 stores of 2 bytes. The pieces hold neighbours of
the wanted elements; those that do not lie in the memory of the tensor, as may be at its first and
its last elements, are not loaded: what was wanted of them is stored element by element, over what
the shift has made of nothing. What is out of bounds is set to zero behind the shift, in front of a
row too: a convolution's padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.copy_engines import PIECE_REGISTERS, CopyEngines, piece_layout
from tilec.ir.core import Func, Region, Value
from tilec.ir.element_loops import element_indices
from tilec.ir.layout import Layout, blocked
from tilec.ir.types import INT64, UINT32, BufferType
from tilec.passes.check_registers import fragment_registers, registers_left
from tilec.passes.utils.addressing import Place, Tensors, coordinates, narrow, unique_replica
from tilec.passes.utils.building import copy_whole
from tilec.passes.utils.registers import MOST_LACKING
from tilec.target import Target

PIECE = 16  # bytes of a load
WORDS = 2 * PIECE // 4  # that wait for each 16 bytes of a thread's part of the tile
FEW = 120  # registers of a thread, up to which elements may wait beside pieces


class _Part(NamedTuple):
    """Consecutive elements that one thread brings: the place of the first one in the tile, its
    indices and its offset in the tensor, and how many elements that is past a piece's beginning."""

    place: tuple[Value, ...]
    indices: tuple[Value, ...]
    offset: Value
    skip: Value


class Tile(NamedTuple):
    """How the elements of a tile and the words that hold them are spread over the threads; how many
    of a thread's `parts` are loaded ahead of time, the others not before they are stored."""

    elements: BufferType
    words: BufferType
    parts: int
    ahead: int


class Held(NamedTuple):
    """The registers in which tiles wait, by buffer: `words`, and of tiles of few parts the elements
    of those parts whose pieces do not lie in memory (`ends`)."""

    words: Mapping[Value, Value]
    ends: Mapping[Value, Value]


class Pieces(NamedTuple):
    """Tiles that are brought together: the copies for them, whether all pieces of each lie in the
    memory of its tensor, and whether they do and the tile lies inside of the tensor (None: they
    are brought once, so that shorter code is better)."""

    copies: list[ops.Copy]
    tiles: list[Tile]
    reachable: list[Value]
    inside: list[Value | None]


class Realigner:
    """Brings tiles of `func`'s tensors with `threads` threads."""

    def __init__(self, func: Func, threads: int, target: Target) -> None:
        self.engines = CopyEngines(func, target)
        self.facts = self.engines.facts
        self.tensors = Tensors(func)
        self.warp_size = target.warp_size
        self.warps = threads // target.warp_size
        self.fragments = fragment_registers(func)
        self.room = registers_left(func, target)

    def tiles(self, copies: Iterable[ops.Copy]) -> dict[Value, Tile]:
        """How the tiles of run-ahead copies come, by buffer, of those that come so. As many parts
        are ahead as registers hold, if not all of them can be."""
        found = {o.dest.buffer: tile for o in copies if (tile := self._tile(o)) is not None}
        parts = sum(tile.ahead for tile in found.values())
        if PIECE_REGISTERS * parts <= self.room + MOST_LACKING:
            return found
        left = max(0, self.room // PIECE_REGISTERS)
        for dest, tile in found.items():
            found[dest] = tile._replace(ahead=min(left, tile.ahead))
            left -= found[dest].ahead
        return found

    def _tile(self, o: ops.Copy) -> Tile | None:
        if not self.engines.in_pieces(o):
            return None
        shape, dtype = o.dest.shape, o.source.dtype
        per = _per_piece(o)
        layout = piece_layout(shape, per, self.warp_size, self.warps)
        if layout is None:
            return None
        words = (*shape[:-1], shape[-1] // per * WORDS)
        waiting = blocked(words, self.warp_size, self.warps, WORDS)
        return Tile(
            BufferType(shape, dtype, "fragment", layout=layout),
            BufferType(words, UINT32, "fragment", layout=waiting),
            (parts := layout.size("reg") // per),
            parts,
        )

    def held(self, b: Builder, tiles: Mapping[Value, Tile]) -> Held:
        """Registers for `tiles`; where there is room, for their ends."""
        words = {v: b.value(ops.Alloc, t.words, name=f"{v.name}_next") for v, t in tiles.items()}
        beside = sum(
            t.parts * (PIECE_REGISTERS + PIECE * 8 // t.elements.dtype.bits) for t in tiles.values()
        )
        waiting = tiles.items() if self.fragments + beside <= FEW else ()
        ends = {v: b.value(ops.Alloc, t.elements, name=f"{v.name}_ends") for v, t in waiting}
        return Held(words, ends)

    def pieces(
        self, b: Builder, copies: list[ops.Copy], tiles: Mapping[Value, Tile], once: bool
    ) -> Pieces:
        """What is to be known of the regions that run-ahead `copies` name."""
        reachable = [self._reachable(b, o) for o in copies]
        inside: list[Value | None] = [None for _ in copies]
        if not once:
            inside = [b.all_of(r, *self._inside(b, o)) for o, r in zip(copies, reachable)]
        return Pieces(copies, [tiles[o.dest.buffer] for o in copies], reachable, inside)

    def load(self, b: Builder, found: Pieces, held: Held) -> None:
        """Load the pieces of each tile."""

        def each(b: Builder, o: ops.Copy, tile: Tile, inside: bool) -> None:
            for number, part in enumerate(self._parts(b, o, tile.elements.laid_out)):
                if number < tile.ahead:
                    for n, value in enumerate(self._words(b, o, part, inside), WORDS * number):
                        index = b.const(n)
                        b.emit(ops.RegWrite, held.words[o.dest.buffer], index, value)

        self._forms(b, found, each)
        if not held.ends:
            return
        ends = Builder(b.loc)
        for o, tile in zip(found.copies, found.tiles):
            v, register = held.ends[o.dest.buffer], count()
            zero = b.const(0, v.dtype)
            for e in range(tile.parts * _per_piece(o)):
                b.emit(ops.RegWrite, v, b.const(e), zero)
            for part in self._parts(ends, o, tile.elements.laid_out):
                wanted = ends.all_of(*self._lacking(ends, o, part))
                for value in self._elements(ends, o, part, wanted):
                    n = ends.const(next(register))
                    ends.emit(ops.RegWrite, v, n, value)
        self._unless_reachable(b, found, ends)

    def store(self, b: Builder, found: Pieces, held: Held, stage: Value) -> None:
        """What `load` has brought, to stage `stage` of each tile in shared memory."""
        tiles = {o.dest.buffer: tile for o, tile in zip(found.copies, found.tiles)}
        dest = {v: b.value(ops.RingStage, v, stage, name=v.name) for v in tiles}
        elements = {
            v: b.value(ops.Alloc, tile.elements, name=f"{v.name}_elements")
            for v, tile in tiles.items()
        }

        def each(b: Builder, o: ops.Copy, tile: Tile, inside: bool) -> None:
            v, per = o.dest.buffer, _per_piece(o)
            for number, part in enumerate(self._parts(b, o, tile.elements.laid_out)):
                valid = None if inside else self._valid(b, o, part)
                outside = None if inside else self._in_front(b, o, part)
                if number < tile.ahead:
                    numbers = range(WORDS * number, WORDS * (number + 1))
                    index = [b.const(n) for n in numbers]
                    read = [b.value(ops.RegRead, held.words[v], n) for n in index]
                else:
                    read = self._words(b, o, part, inside)
                packed = b.value(ops.Pack, tuple(read))
                got = b.value(ops.Realign, packed, part.skip, o.source.dtype, valid)
                there = self._in_memory(b, o, part) if held.ends and not inside else None
                for e in range(per):
                    n, value = b.const(per * number + e), b.value(ops.Extract, got, e)
                    if outside is not None:
                        value = b.select(b.compare("le", outside, e), value, b.zero(value.dtype))
                    if there is not None:
                        end = b.value(ops.RegRead, held.ends[v], n)
                        value = b.select(there, value, end)
                    b.emit(ops.RegWrite, elements[v], n, value)
            copy_whole(b, elements[v], dest[v], engine="threads", vector=1)

        self._forms(b, found, each)
        if not held.ends:
            edge = Builder(b.loc)
            self._edge(edge, found, dest)
            self._unless_reachable(b, found, edge)

    # --- the parts of a thread ---

    def _parts(self, b: Builder, o: ops.Copy, layout: Layout) -> Iterator[_Part]:
        """A thread's parts of the region. They are that many rows apart that their addresses are
        multiples of 16 bytes apart, or each has its own `skip`."""
        per, v = _per_piece(o), o.source.buffer
        first = self._part(b, o, layout, b.const(0))
        zeros = tuple(b.const(0, i.dtype) for i in first.indices)
        for away in layout.table("reg")[::per].tolist():
            coords = tuple(b.const(c) for c in away)
            moved = element_indices(b, Region(v, zeros, o.source.extents), coords)
            offset = b.binary("add", first.offset, self.tensors.offset(b, v.buffer, moved))
            own = any(c % per for c in away)
            skip = b.value(ops.Misaligned, v, offset) if own else first.skip
            indices = tuple(b.binary("add", i, m) for i, m in zip(first.indices, moved))
            yield _Part(first.place, indices, offset, skip)

    def _part(self, b: Builder, o: ops.Copy, layout: Layout, register: Value) -> _Part:
        """The part that begins in `register` of a thread."""
        place = tuple(coordinates(b, layout, Place(b), register))
        v = o.source.buffer
        indices = element_indices(b, o.source, place)
        offset = self.tensors.offset(b, v.buffer, indices)
        return _Part(place, indices, offset, b.value(ops.Misaligned, v, offset))

    def _words(self, b: Builder, o: ops.Copy, part: _Part, inside: bool) -> list[Value]:
        """Load the two pieces of a part, if they lie in memory."""
        per, found = _per_piece(o), []
        first = self._first(b, part)
        guard = None if inside else self._in_memory(b, o, part)
        for half in range(2):
            at = b.binary("add", first, half * per)
            got = b.value(ops.MemLoad, o.source.buffer, at, per, PIECE, guard, words=True)
            found += [b.value(ops.Extract, got, w) for w in range(WORDS // 2)]
        return found

    @staticmethod
    def _first(b: Builder, part: _Part) -> Value:
        """The offset at which the first piece of a part begins."""
        return b.binary("sub", part.offset, b.cast(part.skip, INT64))

    def _in_memory(self, b: Builder, o: ops.Copy, part: _Part) -> Value:
        """Whether the row of a part exists, and its two pieces lie in the memory of the tensor."""
        first = self._first(b, part)
        end = b.binary("add", first, 2 * _per_piece(o) - 1)
        return b.all_of(
            b.compare("ge", first, 0),
            b.compare("le", end, self._last(b, o)),
            *self._row_inside(b, o, part, 1),  # no row outside of the first extent lies there
        )

    def _lacking(self, b: Builder, o: ops.Copy, part: _Part) -> list[Value]:
        """Tests that the row of a part exists, and its pieces do not both lie in memory."""
        lacking = b.value(ops.Unary, "not", self._in_memory(b, o, part))
        return [lacking, *self._row_inside(b, o, part, 0)]

    def _elements(self, b: Builder, o: ops.Copy, part: _Part, wanted: Value) -> list[Value]:
        """The elements of a part, one by one, that lie inside of the tensor."""
        v, valid, found = o.source.buffer, self._valid(b, o, part), []
        outside = self._in_front(b, o, part)
        for e in range(_per_piece(o)):
            at = b.binary("add", part.offset, e)
            tests = [wanted, b.compare("gt", valid, e)]
            tests += [] if outside is None else [b.compare("le", outside, e)]
            guard = b.all_of(*tests)
            found.append(b.value(ops.MemLoad, v, at, 1, v.dtype.bits // 8, guard))
        return found

    def _unless_reachable(self, b: Builder, found: Pieces, made: Builder) -> None:
        """What is `made`, where not all pieces lie in memory."""
        b.branch(b.value(ops.Unary, "not", b.all_of(*found.reachable)), made.ops)

    def _edge(self, b: Builder, found: Pieces, dest: Mapping[Value, Value]) -> None:
        """Store the elements of a thread's parts whose pieces do not both lie in memory. A loop,
        and elements asked for no sooner than now: few tiles have any. Those of all tiles are asked
        for together."""
        loads, stores = Builder(b.loc), Builder(b.loc)
        some: Value | None = None
        most = max(tile.parts for tile in found.tiles)
        with b.counted(most, "part", "serial") as (number, body):
            for o, tile in zip(found.copies, found.tiles):
                layout, per = tile.elements.laid_out, _per_piece(o)
                register = body.binary("mul", number, per)
                part = self._part(body, o, layout, register)
                there = body.compare("lt", number, tile.parts)
                mine = unique_replica(body, layout, Place(body))
                own = [] if mine is None else [mine]
                wanted = body.all_of(there, *own, *self._lacking(body, o, part))
                some = wanted if some is None else body.binary("or", some, wanted)
                with stores.when(wanted) as inner:
                    zero = inner.const(0)
                    for e, value in enumerate(self._elements(loads, o, part, wanted)):
                        column = inner.binary("add", part.place[-1], e)
                        place = iter((*part.place[:-1], column))
                        index = tuple(zero if n == 1 else next(place) for n in o.dest.extents)
                        inner.emit(ops.Store, dest[o.dest.buffer], index, value)
            body.branch(some, loads.ops + stores.ops)

    def _row_inside(self, b: Builder, o: ops.Copy, part: _Part, first: int) -> list[Value]:
        """Whether the row of a part exists: tests for each dimension from `first` on but the
        last."""
        tests = []
        rows = [*zip(part.indices, o.source.type.shape, o.source.offsets)][first:-1]
        for i, n, at in rows:
            tests.append(b.compare("lt", i, self.tensors.number(b, n, i.dtype)))
            tests += self._from_zero(b, at, i)
        return tests

    def _from_zero(self, b: Builder, at: Value, index: Value) -> list[Value]:
        """A test that an index is not below 0, where the region's offset `at` may be."""
        return [] if self.facts.non_negative(at) else [b.compare("ge", index, 0)]

    def _valid(self, b: Builder, o: ops.Copy, part: _Part) -> Value:
        """How many elements of a part lie inside of the tensor, if its row does: i32. The same for
        all parts in one place of their rows."""
        column = part.indices[-1]
        end = self.tensors.number(b, o.source.type.shape[-1], column.dtype)
        left = b.binary("sub", end, column)
        most, none = (b.const(n, column.dtype) for n in (_per_piece(o), 0))
        return narrow(b, b.binary("max", b.binary("min", left, most), none))

    def _in_front(self, b: Builder, o: ops.Copy, part: _Part) -> Value | None:
        """How many elements of a part lie in front of their row, where some may: i32."""
        if self.facts.non_negative(o.source.offsets[-1]):
            return None
        column = part.indices[-1]
        least, most = (b.const(n, column.dtype) for n in (-_per_piece(o), 0))
        column = b.binary("min", b.binary("max", column, least), most)
        return narrow(b, b.binary("sub", most, column))

    # --- the forms ---

    def _forms(
        self, b: Builder, found: Pieces, each: Callable[[Builder, ops.Copy, Tile, bool], None]
    ) -> None:
        """`each` tile, in a form for tiles inside of their tensors and one for others."""
        for o, tile, cond in zip(found.copies, found.tiles, found.inside):
            if cond is None:
                each(b, o, tile, False)
                continue
            inside, other = Builder(b.loc), Builder(b.loc)
            each(inside, o, tile, True)
            each(other, o, tile, False)
            b.branch(cond, inside.ops, other.ops)

    def _inside(self, b: Builder, o: ops.Copy) -> list[Value]:
        """Tests that the region lies inside of its tensor."""
        tests = []
        r = o.source
        for at, extent, n in zip(r.offsets, r.extents, r.type.shape):
            end = b.binary("add", at, extent)
            tests.append(b.compare("le", end, self.tensors.number(b, n, at.dtype)))
            tests += self._from_zero(b, at, at)
        return tests

    def _reachable(self, b: Builder, o: ops.Copy) -> Value:
        """Whether every piece that a row of the region needs lies in the tensor's memory."""
        r, t = o.source, o.source.type
        per = b.const(_per_piece(o), INT64)
        sizes = self._sizes(b, r)
        ends = []
        for d, (at, extent) in enumerate(zip(r.offsets, r.extents)):
            end = b.binary("add", at, extent)
            if d < t.rank - 1:
                end = b.binary("min", end, sizes[d])
            ends.append(end)
        end = b.binary("add", self._before(b, t, ends), per)
        inside = b.compare("le", end, self._last(b, o))
        if t.align >= PIECE and all(map(self.facts.non_negative, r.offsets)):
            return inside
        first = self.tensors.offset(b, t, r.offsets)
        skip = b.cast(b.value(ops.Misaligned, r.buffer, first), INT64)
        return b.binary("and", inside, b.compare("ge", first, skip))

    def _last(self, b: Builder, o: ops.Copy) -> Value:
        """The offset of the tensor's last element; where its rows overlap, of the last one before
        another row would begin."""
        t = o.source.type
        sizes = self._sizes(b, o.source)
        last = self._before(b, t, sizes)
        if t.rank == 1:
            return last
        begins = [sizes[0], *(b.const(0, n.dtype) for n in sizes[1:])]
        row = self.tensors.offset(b, t, begins)
        return b.binary("min", last, b.binary("sub", row, 1))

    def _sizes(self, b: Builder, r: Region) -> list[Value]:
        """The extents of a region's tensor, in the dtypes of its offsets."""
        pairs = zip(r.type.shape, r.offsets)
        return [self.tensors.number(b, n, i.dtype) for n, i in pairs]

    def _before(self, b: Builder, t: BufferType, ends: list[Value]) -> Value:
        """The offset of the last element before these ends."""
        ones = [b.const(1, v.dtype) for v in ends]
        return self.tensors.offset(b, t, [b.binary("sub", v, n) for v, n in zip(ends, ones)])


def _per_piece(o: ops.Copy) -> int:
    return PIECE * 8 // o.source.dtype.bits
