"""Buffers: subscripts and elements."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilec import language as T
from tilec.frontend import narrow
from tilec.frontend.arithmetic import Arithmetic, affine_of, integer, static_int
from tilec.frontend.guards import decided, find_escape, find_run_time_escape
from tilec.frontend.index import Reach
from tilec.frontend.values import (
    OPEN,
    Buffer,
    LoopIndex,
    Method,
    Number,
    Region,
    Scalar,
    describe,
    is_number,
)
from tilec.ir.affine import Affine
from tilec.ir.core import Value
from tilec.ir.effects import buffers_written, effects_in
from tilec.ir.errors import BoundsWarning, warn
from tilec.ir.loc import Loc
from tilec.ir.ops import Alloc, Binary, Load, Store
from tilec.ir.types import INT64, MOST_NARROW, ON_CHIP, UINT8, BufferType, DType


@dataclass(frozen=True, eq=False, slots=True)
class SliceIndex:
    """`lower:upper:step` in a subscript; None where left out."""

    lower: Number | None
    upper: Number | None
    step: int = 1


class Memory(Arithmetic):
    """Reads, writes and names parts of buffers."""

    # --- values -----------------------------------------------------------------------------------

    def convert(self, x: Number, dtype: DType) -> Scalar:
        """A run-time number of `dtype`; of one of four bits as it is on chip."""
        if dtype in ON_CHIP:
            return narrow.rounded(self, x, dtype)
        return super().convert(x, dtype)

    def size_value(self, size: T.Size) -> int | Scalar | T.Size:
        """The value of a size, or of arithmetic on sizes."""
        if not size.op:
            return self.size(size)
        a, b = (self.size_value(x) if isinstance(x, T.Size) else x for x in size.args)
        assert not isinstance(a, T.Size) and not isinstance(b, T.Size)
        return integer(self.binary(size.op, a, b))

    def number(self, value: object, what: str, at: ast.AST | Loc | None = None) -> Number:
        """`value`, written `at` a place, as a number: elements and variables are read. `what` names
        it in a message."""
        if at is not None:
            with self.at(at):
                return self.number(value, what)
        match value:
            case Region() | Buffer() if barrier_of(value) is not None:
                hint = "barriers are for T.barrier_arrive, T.barrier_wait and T.tma_copy"
            case Region(is_element=True):
                return self._read(value)
            case Buffer() if value.variable or value.single:
                return self.load(self.first_element(value))
            case _ if is_number(value):
                return value
            case enum.Enum() if isinstance(value, int | float):  # of an IntEnum
                return int(value) if isinstance(value, int) else float(value)
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

    def allocated(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        space: str,
        variable: bool = False,
        node: ast.expr | None = None,
    ) -> Buffer:
        """A new on-chip buffer. `node`: what asks for it, where its elements may stay as narrow as
        those of tensors."""
        packed = dtype if dtype in ON_CHIP else None
        own, stored = narrow.on_chip(dtype), None
        whole = packed is not None and shape[-1] * packed.bits % 8 == 0
        if whole and node in (self.left_out.in_bytes or ()):
            own, stored = UINT8, (*shape[:-1], shape[-1] * dtype.bits // 8)
        value = self.emit(Alloc, BufferType(stored or shape, own, space)).result
        if whole and node is not None:
            self.narrow_tiles[value] = node
        return Buffer(value, shape, self.loc, (), variable, packed, stored)

    def element(self, buffer: Buffer, offsets: Iterable[Number], loc: Loc | None = None) -> Region:
        """An element of a buffer, by its indices; named at `loc`, or where the code is."""
        at = tuple(map(integer, offsets))
        return Region(buffer, at, (None,) * len(at), loc or self.loc)

    def first_element(self, buffer: Buffer) -> Region:
        """The element where a buffer begins, a variable's only one."""
        return self.element(buffer, (0,) * buffer.type.rank)

    # --- subscripts -------------------------------------------------------------------------------

    def subscript(self, buffer: Buffer, items: list[Number | SliceIndex]) -> Region:
        """`buffer[items]`. Raises CompileError for a wrong rank, a bad slice, a float index."""
        rank = buffer.type.rank
        if buffer.single and not items:
            return self.first_element(buffer)
        if len(items) != rank:
            dims = ", ".join(f"{'ijklmn'[d % 6]}" if d < len(items) else ":" for d in range(rank))
            hint = f"write {buffer.name}[{dims}]"
            if len(items) < rank:
                every = ", ".join("ijklmn"[d % 6] for d in range(rank))
                hint = f"write {buffer.name}[{dims}] for a tile, [{every}] for an element"
            raise self.error(
                f"{counted(len(items), 'index', 'indices')} into {describe(buffer)}, "
                f"which has {counted(rank, 'dimension', 'dimensions')}",
                hint,
            )
        offsets: list[int | Scalar] = []
        extents: list[int | None] = []
        counts: dict[int, Number] = {}
        steps: dict[int, int] = {}
        for dim, item in enumerate(items):
            if isinstance(item, SliceIndex):
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
        # In TileLang's programs an item or argument is read where it is used.
        ops, lazy = self.builder.ops, self.options.tilelang
        named = None if lazy else (self.builder, ops[-1] if ops else None)
        return Region(buffer, tuple(offsets), tuple(extents), self.loc, counts, steps, named)

    def _from_the_end(self, buffer: Buffer, dim: int, item: Number) -> int | Scalar:
        """An index; a number below zero counts from the end, as Python's."""
        index = self.index_number(item)
        if isinstance(index, Scalar) or index >= 0 or isinstance(index, LoopIndex):
            return index
        extent = buffer.shape[dim]
        return integer(self.binary("add", extent, index))

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
        return item if isinstance(item, LoopIndex) else int(item)

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

    def neighbour(self, element: Region, n: Number) -> Region:
        """The element `n` behind another along the last dimension."""
        *outer, last = element.offsets
        there = self.binary("add", last, n)
        return self.element(element.buffer, (*outer, there), element.loc)

    def _read(self, element: Region) -> Scalar:
        """What an element was where the author named it: an item of a list, or an argument, may be
        used behind a statement that changes the element."""
        around, last = element.named or (None, None)
        level = next((n for n, b in enumerate(self.builders) if b is around), None)
        if level is None:
            return self.load(element)
        builder, inside = self.builders[level], self.builders[level + 1 :]
        at = next((n for n in range(len(builder.ops), 0, -1) if builder.ops[n - 1] is last), 0)
        since = [*builder.ops[at:], *(o for b in inside for o in b.ops)]
        changed = (e for o in since for _, e in effects_in(o))
        buffer = element.buffer.value
        if buffer not in self.read_early and buffer not in buffers_written(changed):
            for b in inside:
                b.late.add(buffer)
            return self.load(element)
        behind, constants = builder.ops[at:], builder.constants
        del builder.ops[at:]
        builder.constants = {}  # some may be made behind
        self.builders.append(builder)
        try:
            return self.load(element)
        finally:
            self.builders.pop()
            builder.ops += behind
            builder.constants = constants

    def load(self, element: Region) -> Scalar:
        """Read one element."""
        buffer = element.buffer
        if buffer.stored is not None:
            return narrow.load(self, element)
        with self.at(element.loc):
            sure = self._check_indices(element, "reads")
            self.hazards += not sure
            indices = self.indices_at(element)
            return self.scalar(self.emit(Load, buffer.value, indices).result)

    def store(self, element: Region, value: Number, engine: str = "threads") -> None:
        """Write one element, converting to the buffer's dtype. `engine` as of the op."""
        buffer = element.buffer
        if buffer.type.space == "barrier":
            hint = "arrive at it with T.barrier_arrive, wait for it with T.barrier_wait"
            raise self.error(f"{describe(element)} cannot be assigned to", hint)
        if buffer.stored is not None:
            narrow.store(self, element, value)
            return
        converted = self.convert(value, buffer.dtype)
        with self.at(element.loc):
            self._check_indices(element, "writes")
            indices = self.indices_at(element)
        if self.asynchronous and self._brings(buffer, converted):
            engine = "cp_async"
        self.emit(Store, buffer.value, indices, converted.value, engine)

    def _brings(self, buffer: Buffer, value: Scalar) -> bool:
        """Whether a store brings an element of a tensor to shared memory as it is, and a thread
        does so by itself."""
        made = next((o for o in reversed(self.builder.ops) if value.value in o.results), None)
        brought = isinstance(made, Load) and made.source.space == "global"
        return brought and buffer.type.space == "shared" and self.parallel is None

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
            self.warn_if_outside(element.buffer, element.offsets, (1,) * len(element.offsets), does)
            return True
        sure = True
        for dim, offset in enumerate(element.offsets):
            sure = self.check_extent(element.buffer, dim, offset, 1, does) and sure
        return sure

    def reach_of(self, index: int | Scalar) -> Reach:
        """Where an index lies."""
        return self.indices.reach_of(affine_of(index))

    def warn_if_outside(
        self, buffer: Buffer, offsets: tuple[int | Scalar, ...], extents: tuple[int, ...], does: str
    ) -> None:
        """Warn of an access of a global tensor that no iteration makes inside its bounds."""
        for dim, (offset, extent) in enumerate(zip(offsets, extents)):
            reach, size = self.reach_of(offset), static_int(buffer.shape[dim])
            # A tensor without elements has no bounds worth a mention: nothing of it is ever
            # touched.
            below = reach.hi is not None and reach.hi + extent <= 0 and size != 0
            above = reach.lo is not None and size is not None and reach.lo >= size > 0
            if (below or above) and (self._never_runs() or self._copied()):
                return
            if below or above:
                what = "the safe value is read" if does == "reads" else "nothing is written"
                last = f"{buffer.type.shape[dim]} - 1" if size is None else size - 1
                hint = f"valid indices are 0 to {last}"
                if below:
                    hint += "; only what is negative at compile time counts from the end"
                message = (
                    f"this {does} index {reach.hi if below else reach.lo} in dimension {dim} of "
                    f"{describe(buffer)}: always out of bounds, so {what}"
                )
                warn(BoundsWarning, message, self.loc, hint)
                return
            if size != 0 and self.guards and buffer.value not in self.padded:
                self._warn_if_escaping(buffer, dim, affine_of(offset), size, does)

    def _copied(self) -> bool:
        """Whether this is one of a loop body's copies, others of which may be inside."""
        return any(flags.builtin == "for" for frame in self.frames for flags in frame.loops)

    def _never_runs(self) -> bool:
        """Whether a condition around the code is known not to hold."""
        return any(decided(g, self.indices, None) is False for g in self.guards)

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
            named = self._iteration()
            found, name = find_escape(index, size, self.guards, self.indices, named), str(size)
        if found is None:
            return
        at, where = found
        what = "the safe value is read" if does == "reads" else "nothing is written"
        last = f"{name} - 1" if size is None else size - 1
        hint = f"valid indices are 0 to {last}: let the condition around it say so"
        why = ", although a condition guards it"
        if self.whole_indices:  # whose loop has its tests from tilec
            hint = f"valid indices are 0 to {last}: let the loop end before, or a condition"
            why = ""
        message = (
            f"this {does} index {at} in dimension {dim} of {describe(buffer)} where "
            f"{where}{why}: out of bounds, so {what}"
        )
        warn(BoundsWarning, message, self.loc, hint)

    def _iteration(self) -> dict[str, Affine]:
        """The indices of a loop over whole tensors."""
        values = ((n, self.names.get(n)) for n in self.whole_indices)
        return {n: affine_of(v) for n, v in values if isinstance(v, Scalar)}

    def check_extent(
        self, buffer: Buffer, dim: int, offset: int | Scalar, extent: int, does: str
    ) -> bool:
        size = static_int(buffer.shape[dim])
        assert size is not None, "on-chip buffers have extents that are known"
        reach = self.reach_of(offset)
        below = reach.lo is not None and reach.lo < 0
        above = reach.hi is not None and reach.hi + extent > size
        always = (reach.hi is not None and reach.hi < 0) or (
            reach.lo is not None and reach.lo + extent > size
        )
        runs = reach.attained and reach.depth >= self.depth
        if (always or (runs and (below or above))) and not self._never_runs():
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


def barrier_of(value: Region | Buffer) -> Buffer | None:
    """The barriers that a value is, or is one of; None for what is in memory."""
    buffer = value.buffer if isinstance(value, Region) else value
    return buffer if buffer.type.space == "barrier" else None


def counted(n: int, one: str, more: str) -> str:
    return f"{n} {one if n == 1 else more}"


def _difference(t: Arithmetic, a: Scalar | int, b: Scalar | int) -> int | None:
    """`a - b` where it is known. An element that both read, with nothing written between, counts as
    one and the same, and so does what is computed from it in the same way."""
    found = affine_of(a) - affine_of(b)
    numbers = (o.results if o.pure or isinstance(o, Load) else () for o in t.builder.ops)
    made = {v: n for n, results in enumerate(numbers) for v in results}
    first: list[Value] = []
    for v in [*found.terms]:
        same = next((x for x in first if _is_same(t, made, v, x)), None)
        if same is None:
            first.append(v)
        else:
            found = found.without(v) + t.indices.form(same).scaled(found.terms[v])
    return found.constant


def _is_same(t: Arithmetic, made: Mapping[Value, int], v: Value, other: Value) -> bool:
    """Whether two numbers that this block has `made` are one."""
    apart = (t.indices.form(v) - t.indices.form(other)).constant
    if apart is not None or v not in made or other not in made:
        return apart == 0
    ops = t.builder.ops
    n, m = sorted((made[v], made[other]))
    one, two = ops[n], ops[m]
    if type(one) is not type(two) or len(one.operands) != len(two.operands):
        return False
    if isinstance(one, Load):
        kept = all(o.pure or isinstance(o, Load) for o in ops[n + 1 : m])
    else:
        kept = one.attributes == two.attributes
    return kept and all(
        x is y or _is_same(t, made, x, y) for x, y in zip(one.operands, two.operands)
    )
