"""Buffers: subscripts, elements, and the regions that tile builtins work on."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from tilec import language as T
from tilec.frontend import narrow
from tilec.frontend.arithmetic import Arithmetic, affine_of, static_int
from tilec.frontend.guards import find_escape, find_run_time_escape
from tilec.frontend.index import Reach
from tilec.frontend.values import (
    OPEN,
    Buffer,
    Method,
    Number,
    Region,
    Scalar,
    Tile,
    describe,
    is_number,
)
from tilec.ir import core
from tilec.ir.affine import Affine
from tilec.ir.core import Value
from tilec.ir.errors import BoundsWarning, warn
from tilec.ir.ops import Binary, Load, Store
from tilec.ir.types import INT64, MOST_NARROW, DType


@dataclass(frozen=True, eq=False, slots=True)
class Slice:
    """`lower:upper:step` in a subscript; None where left out."""

    lower: Number | None
    upper: Number | None
    step: int = 1


class Memory(Arithmetic):
    """Reads, writes and names parts of buffers."""

    # --- values -----------------------------------------------------------------------------------

    def convert(self, x: Number, dtype: DType) -> Scalar:
        """A run-time number of `dtype`; of one of four bits as it is on chip."""
        if dtype in narrow.ON_CHIP:
            return narrow.rounded(self, x, dtype)
        return super().convert(x, dtype)

    def size_value(self, size: T.Size) -> int | Scalar | T.Size:
        """The value of a size, or of arithmetic on sizes."""
        if not size.op:
            return self.size(size)
        a, b = (self.size_value(x) if isinstance(x, T.Size) else x for x in size.args)
        assert not isinstance(a, T.Size) and not isinstance(b, T.Size)
        found = self.binary(size.op, a, b)
        assert not isinstance(found, float)
        return found

    def number(self, value: object, what: str) -> Number:
        """`value` as a number: elements and variables are read. `what` names it in a message."""
        match value:
            case Region() | Buffer() if barrier_of(value) is not None:
                hint = "barriers are for T.barrier_arrive, T.barrier_wait and T.tma_copy"
            case Region(is_element=True):
                return self.load(value)
            case Buffer(variable=True):
                return self.load(self.whole_element(value))
            case _ if is_number(value):
                return value
            case T.Size() if not isinstance(size := self.size_value(value), T.Size):
                return size
            case Buffer():
                dims = ", ".join("ijklmn"[: value.type.rank])
                loop = ", ".join(map(str, value.shape)) if not value.is_global else "…"
                hint = (
                    f"name an element: for {dims} in T.Parallel({loop}): … {value.name}[{dims}] …"
                )
            case Region():
                hint = "index every dimension: a slice names a tile, for T.copy and the like"
            case Method():
                hint = f"call it: .{value.name}(…)"
            case tuple():
                hint = "take it apart: x, y = …, or with T.Kernel(…) as (bx, by)"
            case str() if value.isdigit():
                hint = f"write {value} without quotes"
            case str():
                hint = 'text is for T.print: T.print(f"… {x}")'
            case list():
                hint = "name one of its items, or loop over it: for x in …"
            case None:
                hint = "give it a value: x = 0; a macro gives what its last line returns"
            case _:
                hint = "numbers are literals, elements of buffers, and arithmetic on these"
        raise self.error(f"{what} is {describe(value)}, not a number", hint)

    def whole_element(self, variable: Buffer) -> Region:
        """The one element of a variable."""
        return Region(variable, (0,), (None,), self.loc)

    # --- subscripts -------------------------------------------------------------------------------

    def subscript(self, buffer: Buffer, items: list[Number | Slice]) -> Region:
        """`buffer[items]`. Raises CompileError for a wrong rank, a bad slice, a float index."""
        rank = buffer.type.rank
        if len(items) != rank:
            dims = ", ".join(f"{'ijklmn'[d % 6]}" if d < len(items) else ":" for d in range(rank))
            hint = f"write {buffer.name}[{dims}]"
            if len(items) < rank:
                every = ", ".join("ijklmn"[d % 6] for d in range(rank))
                hint = f"write {buffer.name}[{dims}] for a tile, [{every}] for an element"
            raise self.error(
                f"{_count(len(items), 'index', 'indices')} into {describe(buffer)}, "
                f"which has {_count(rank, 'dimension', 'dimensions')}",
                hint,
            )
        offsets: list[int | Scalar] = []
        extents: list[int | None] = []
        counts: dict[int, Number] = {}
        steps: dict[int, int] = {}
        for dim, item in enumerate(items):
            if isinstance(item, Slice):
                lower = 0 if item.lower is None else self._from_the_end(buffer, dim, item.lower)
                upper = buffer.shape[dim]
                if item.upper is not None:
                    upper = self._from_the_end(buffer, dim, item.upper)
                offsets.append(lower)
                extent = self._slice_extent(buffer, lower, upper)
                extents.append(OPEN if extent == OPEN else -(-extent // item.step))
                if item.step != 1:
                    steps[dim] = item.step
                if extent == OPEN:
                    if dim in steps:
                        raise self.error(
                            f"the extent of this slice of {describe(buffer)} is only known at run "
                            "time, and it has a step",
                            "write start:start + n:step with a compile-time n",
                        )
                    counts[dim] = self.binary("sub", upper, lower)
            else:
                offsets.append(self._from_the_end(buffer, dim, item))
                extents.append(None)
        return Region(buffer, tuple(offsets), tuple(extents), self.loc, counts, steps)

    def _from_the_end(self, buffer: Buffer, dim: int, item: Number) -> int | Scalar:
        """An index; one that is negative at compile time counts from the end, as Python's."""
        index = self.index_number(item)
        if isinstance(index, Scalar) or index >= 0:
            return index
        extent = buffer.shape[dim]
        if not isinstance(extent, Scalar):
            return extent + index
        counted = self.binary("add", extent, index)
        assert isinstance(counted, Scalar)
        return counted

    def _slice_extent(self, buffer: Buffer, lower: int | Scalar, upper: int | Scalar) -> int:
        extent = _difference(self, upper, lower)
        if extent is None:
            return OPEN
        if extent <= 0:
            hint = "write start:stop with a stop behind the start"
            raise self.error(f"this slice of {describe(buffer)} has {extent} elements", hint)
        return extent

    def index_number(self, item: Number) -> int | Scalar:
        """A number as an index. Raises CompileError for a float."""
        if isinstance(item, Scalar):
            if item.dtype.is_float:
                hint = "write T.int32(x), or // instead of /"
                raise self.error(f"an index is {describe(item)}, not an integer", hint)
            return item
        if isinstance(item, float):
            hint = "write // instead of /" if item.is_integer() else "elements are counted by ints"
            raise self.error(f"an index is {describe(item)}, not an integer", hint)
        return int(item)

    def index_value(self, x: int | Scalar) -> Value:
        """An index or offset as an op takes it: of the kernel's index dtype.

        A wider integer is clamped first, so that what was out of bounds stays so, and what was a
        multiple of a power of two as well."""
        if not isinstance(x, Scalar):
            low, high = -(1 << (self.index_dtype.bits - 1)), (1 << (self.index_dtype.bits - 1)) - 1
            return self.constant(min(max(x, low), high), self.index_dtype).value
        return self.to_index(x).value

    def to_index(self, x: Scalar) -> Scalar:
        """An integer in the kernel's index dtype."""
        d, wanted = x.dtype, self.index_dtype
        unsigned_top = d.kind == "uint" and d.bits >= wanted.bits
        if d.kind == "int" and d.bits > wanted.bits or unsigned_top:
            beyond = (1 << 31) - MOST_NARROW  # no tile is longer, and vectors' lengths divide it
            top = (1 << (wanted.bits - 1)) - beyond
            x = self.emit_scalar(Binary, "min", x.value, self.constant(top, d).value)
            if d.kind == "int":
                x = self.emit_scalar(Binary, "max", x.value, self.constant(-beyond, d).value)
        return self.convert(x, wanted)

    # --- elements ---------------------------------------------------------------------------------

    def neighbour(self, element: Region, n: int) -> Region:
        """The element `n` behind another along the last dimension."""
        *outer, last = element.offsets
        there = self.binary("add", last, n)
        assert isinstance(there, int | Scalar)
        return Region(element.buffer, (*outer, there), element.extents, element.loc)

    def load(self, element: Region) -> Scalar:
        """Read one element."""
        buffer = element.buffer
        if buffer.packed is not None and buffer.is_global:
            return narrow.load(self, element)
        with self.at(element.loc):
            sure = self._check_indices(element, "reads")
            self.hazards += not sure
            indices = self.indices_at(element)
            return self.scalar(self.emit(Load, buffer.value, indices).result)

    def store(self, element: Region, value: Number) -> None:
        """Write one element, converting to the buffer's dtype."""
        buffer = element.buffer
        if buffer.type.space == "barrier":
            hint = "arrive at it with T.barrier_arrive, wait for it with T.barrier_wait"
            raise self.error(f"{describe(element)} cannot be assigned to", hint)
        if buffer.packed is not None and buffer.is_global:
            narrow.store(self, element, value)
            return
        converted = self.convert(value, buffer.dtype)
        with self.at(element.loc):
            self._check_indices(element, "writes")
            indices = self.indices_at(element)
        self.emit(Store, buffer.value, indices, converted.value)

    def indices_at(self, element: Region) -> tuple[Value, ...]:
        """The indices of an element as an op takes them: where it is in a tensor's memory."""
        offsets, placed = element.offsets, self.placements.get(element.buffer.value)
        if placed is not None:
            offsets = placed.place(self, element.buffer.shape, offsets)
        wide = element.buffer.is_global  # where memory is has 64 bits in any case
        return tuple(
            x.value if wide and isinstance(x, Scalar) and x.dtype == INT64 else self.index_value(x)
            for x in offsets
        )

    def check_element(self, element: Region) -> None:
        """Raise CompileError where an index of an on-chip buffer is known to be out of bounds."""
        with self.at(element.loc):
            self._check_indices(element, "uses")

    def _check_indices(self, element: Region, does: str) -> bool:
        """Whether every index is known to be in bounds. Raises CompileError where one is not, in
        an iteration that will run (on-chip buffers; global tensors are guarded, and no more than
        a warning is given)."""
        if element.buffer.is_global:
            self._warn_if_outside(
                element.buffer, element.offsets, (1,) * len(element.offsets), does
            )
            return True
        sure = True
        for dim, offset in enumerate(element.offsets):
            sure = self._check_extent(element.buffer, dim, offset, 1, does) and sure
        return sure

    def reach_of(self, index: int | Scalar) -> Reach:
        """Where an index lies."""
        return self.indices.reach_of(affine_of(index))

    def _warn_if_outside(
        self,
        buffer: Buffer,
        offsets: tuple[int | Scalar, ...],
        extents: tuple[int, ...],
        does: str,
    ) -> None:
        """Warn of an access of a global tensor that no iteration makes inside its bounds."""
        for dim, (offset, extent) in enumerate(zip(offsets, extents)):
            reach, size = self.reach_of(offset), static_int(buffer.shape[dim])
            # A tensor without elements has no bounds worth a mention: nothing of it is ever
            # touched.
            below = reach.hi is not None and reach.hi + extent <= 0 and size != 0
            above = reach.lo is not None and size is not None and reach.lo >= size > 0
            if below or above:
                what = "the safe value is read" if does == "reads" else "nothing is written"
                last = f"{buffer.type.shape[dim]} - 1" if size is None else size - 1
                hint = f"valid indices are 0 to {last}"
                if below:
                    hint += "; only what is negative at compile time counts from the end"
                warn(
                    BoundsWarning,
                    f"this {does} index {reach.hi if below else reach.lo} in dimension {dim} of "
                    f"{describe(buffer)}: always out of bounds, so {what}",
                    self.loc,
                    hint,
                )
                return
            if size != 0 and self.guards and buffer.value not in self.padded:
                self._warn_if_escaping(buffer, dim, affine_of(offset), size, does)

    def _warn_if_escaping(
        self, buffer: Buffer, dim: int, index: Affine, size: int | None, does: str
    ) -> None:
        """Warn of an access that the user has guarded, and that is out of bounds nevertheless."""
        if size is None:
            extent, name = affine_of(buffer.shape[dim]), str(buffer.type.shape[dim])
            found = find_run_time_escape(
                index, extent, name, self.guards, self.block_quotients, self.indices
            )
        else:
            found, name = find_escape(index, size, self.guards, self.indices), str(size)
        if found is None:
            return
        at, where = found
        what = "the safe value is read" if does == "reads" else "nothing is written"
        last = f"{name} - 1" if size is None else size - 1
        hint = f"valid indices are 0 to {last}: let the condition around it say so"
        warn(
            BoundsWarning,
            f"this {does} index {at} in dimension {dim} of {describe(buffer)} where "
            f"{where}, although a condition guards it: out of bounds, so {what}",
            self.loc,
            hint,
        )

    def _check_extent(
        self, buffer: Buffer, dim: int, offset: int | Scalar, extent: int, does: str
    ) -> bool:
        size = buffer.type.static_shape[dim]
        reach = self.reach_of(offset)
        below = reach.lo is not None and reach.lo < 0
        above = reach.hi is not None and reach.hi + extent > size
        always = (reach.hi is not None and reach.hi < 0) or (
            reach.lo is not None and reach.lo + extent > size
        )
        runs = reach.attained and reach.depth >= self.depth
        if always or (runs and (below or above)):
            at = reach.lo if below else None if reach.hi is None else reach.hi + extent - 1
            at = reach.lo + extent - 1 if at is None and reach.lo is not None else at
            hint = f"valid indices are 0 to {size - 1}"
            if at is not None and at < 0:
                hint += "; only what is negative at compile time counts from the end"
            raise self.error(
                f"this {does} index {at} in dimension {dim} of {describe(buffer)}: out of bounds",
                hint,
            )
        known = reach.lo is not None and reach.hi is not None
        return known and not below and not above

    # --- regions ----------------------------------------------------------------------------------

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
            raise self.error(
                f"the extent of this slice of {describe(r.buffer)} is only known at run time",
                f"dimension {r.extents.index(OPEN)}: write start:start + n with a compile-time n",
                r.loc,
            )
        if r.is_element:
            raise self.error(
                f"{what} says where a tile of {describe(r.buffer)} starts, not how large it is",
                "name the extents: A[i:i + m, j:j + n], or pass the whole buffer",
            )
        return self._sized(r, tuple(1 if e is None else e for e in r.extents), what)

    def element_tile(self, element: Region, what: str) -> Tile:
        """One element as a tile."""
        return self._sized(element, (1,) * len(element.offsets), what)

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
        if a.shape != b.shape:
            raise self.error(
                f"the source is {self.tile_text(a)}, the destination {self.tile_text(b)}: "
                "their extents differ",
                self._agreeing(a, b),
            )
        return a, b

    def _agreeing(self, source: Tile, dest: Tile) -> str:
        """How the two sides of a copy could be given the same extents."""
        other, wanted = (source, dest) if source.buffer.is_global else (dest, source)
        extents = ", ".join(map(str, wanted.extents))
        if not other.buffer.is_global:
            t = other.buffer.type
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
                f"copy a tile of {_count(rank, 'dimension', 'dimensions')}, or give "
                f"{start.buffer.name} {len(extents)} of them",
            )
        return self._sized(start, (1,) * (rank - len(extents)) + extents, what)

    def _sized(self, r: Region, extents: tuple[int, ...], what: str) -> Tile:
        spans = tuple((e - 1) * r.steps.get(d, 1) + 1 for d, e in enumerate(extents))
        if not r.buffer.is_global:
            does = "reads" if what == "the source" else "touches"
            for dim, (offset, span) in enumerate(zip(r.offsets, spans)):
                self._check_extent(r.buffer, dim, offset, span, does)
        else:
            does = "reads" if what == "the source" else "writes"
            self._warn_if_outside(r.buffer, r.offsets, spans, does)
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
            raise self.error(
                f"{self.tile_text(t)} has a step, and this works on tiles without gaps",
                "copy it to a tile of its own with T.copy, and use that",
            )
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


def barrier_of(value: Region | Buffer) -> Buffer | None:
    """The barriers that a value is, or is one of; None for what is in memory."""
    buffer = value.buffer if isinstance(value, Region) else value
    return buffer if buffer.type.space == "barrier" else None


def _count(n: int, one: str, more: str) -> str:
    return f"{n} {one if n == 1 else more}"


def _difference(t: Arithmetic, a: Scalar | int, b: Scalar | int) -> int | None:
    """`a - b` where it is known. An element that both read, with nothing written between, counts as
    one and the same."""
    found = affine_of(a) - affine_of(b)
    ops = t.builder.ops
    made = {o.result: n for n, o in enumerate(ops) if isinstance(o, Load)}
    first: list[tuple[int, Load]] = []
    for v in [*found.terms]:
        n = made.get(v)
        if n is None:
            continue
        o = ops[n]
        assert isinstance(o, Load)
        for m, other in first:
            between = ops[min(m, n) + 1 : max(m, n)]
            alike = o.source is other.source and all(
                (t.indices.form(x) - t.indices.form(y)).constant == 0
                for x, y in zip(o.indices, other.indices)
            )
            if alike and all(x.pure or isinstance(x, Load) for x in between):
                one = found.terms[v]
                found = found.without(v) + t.indices.form(other.result).scaled(one)
                break
        else:
            first.append((n, o))
    return found.constant
