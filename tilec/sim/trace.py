"""Following the values of some elements of a buffer through time.

A trace is asked for as a buffer's element is written in a kernel: "acc[0, :4]". Each line of the
kernel that writes one of the elements makes one row of the table: what they hold from there on."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.core import Func
from tilec.ir.errors import LaunchError, did_you_mean
from tilec.ir.loc import Loc
from tilec.ir.semantics import numpy_dtype
from tilec.ir.types import BufferType, DType, find_dtype
from tilec.sim.buffers import RegisterBuffer, SharedBuffer, first_warps, shared_buffers
from tilec.sim.findings import Index
from tilec.sim.tensors import GlobalTensor
from tilec.support.rich import aligned
from tilec.target import Target

MOST_ELEMENTS = 64
MOST_CHANGES = 500

Number = float | int | bool | None


@dataclass(frozen=True, slots=True)
class Change:
    """A line that has written some of the elements: what all of them hold from there on (None: not
    written yet). `step` counts what the block has done."""

    step: int
    block: Index
    loc: Loc
    values: tuple[Number, ...]


@dataclass
class Trace:
    """The followed elements of one buffer. `asked`: as the caller wrote it. `missed`: changes after
    the first `MOST_CHANGES`."""

    asked: str
    buffer: str
    elements: tuple[Index, ...]
    changes: list[Change] = field(default_factory=list)
    missed: int = 0

    def text(self, sources: Mapping[tuple[str, int], str]) -> str:
        """A table for people; `sources` has the lines' texts where they were kept."""
        heads = [f"[{', '.join(map(str, e))}]" for e in self.elements]
        rows = [["step", "block", "line", *heads, ""]]
        for c in self.changes:
            known = sources.get((c.loc.file, c.loc.line))
            line = (c.loc.source_line() if known is None else known).strip()
            where = f"{c.loc.file.rpartition('/')[2]}:{c.loc.line}"
            block = ", ".join(map(str, c.block))
            rows.append([str(c.step), block, where, *map(_shown, c.values), line])
        last = len(rows[0]) - 1
        table = aligned(rows, right=(i for i in range(last) if i != 2))
        lines = [f"values of {self.asked}:", *(f"  {line}" for line in table.split("\n"))]
        if not self.changes:
            lines[1:] = ["  nothing has written it"]
        if self.missed:
            lines.append(f"  and {self.missed} changes more")
        return "\n".join(lines)


OnChange = Callable[[Trace, Change], object]


def _shown(value: Number) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- what to follow ---


def parse_trace(asked: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, tuple[Index, ...]]:
    """Name and elements of "acc[0, :4]"; `shapes` are those of the buffers that exist. Raises
    LaunchError."""
    example = "write it as in the kernel, e.g. trace='acc[0, :4]'"
    try:
        node = ast.parse(asked.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise LaunchError(f"trace {asked!r} is not a buffer's element", hint=example) from None
    name, parts = "", list[ast.expr]()
    match node:
        case ast.Name(id=name):
            pass
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=parts)):
            pass
        case ast.Subscript(value=ast.Name(id=name), slice=one):
            parts = [one]
        case _:
            raise LaunchError(f"trace {asked!r} is not a buffer's element", hint=example)
    if name not in shapes:
        near = did_you_mean(name, shapes)
        known = ", ".join(sorted(shapes))
        raise LaunchError(
            f"trace {asked!r}: there is no buffer {name!r}{near}", hint=f"it has {known}"
        )
    shape = shapes[name]
    if len(parts) > len(shape):
        message = f"trace {asked!r}: {name} has {len(shape)} dimensions, {len(parts)} are indexed"
        raise LaunchError(message, hint="leave out the last of them")
    ranges = [_range(asked, part, dim, n) for dim, (part, n) in enumerate(zip(parts, shape))]
    ranges += [range(n) for n in shape[len(parts) :]]
    count = prod(map(len, ranges))
    if not 0 < count <= MOST_ELEMENTS:
        message = f"trace {asked!r} selects {count} elements; 1 to {MOST_ELEMENTS} can be followed"
        hint = f"name fewer, e.g. trace='{name}[{', '.join(['0'] * len(shape))}]'"
        raise LaunchError(message, hint=hint)
    return name, tuple(itertools.product(*ranges))


def _range(asked: str, part: ast.expr, dim: int, extent: int) -> range:
    """The positions that an index or slice selects."""
    try:
        if isinstance(part, ast.Slice):
            ends = [None if e is None else int(ast.literal_eval(e))
                    for e in (part.lower, part.upper, part.step)]  # fmt: skip
            return range(extent)[slice(*ends)]
        at = int(ast.literal_eval(part))
        return range(extent)[at : at + 1 or None] if at < 0 else range(at, range(extent)[at] + 1)
    except IndexError:
        raise LaunchError(
            f"trace {asked!r}: index {ast.unparse(part)} is outside of dimension {dim}, "
            f"which has {extent} elements",
            hint=f"its indices are 0 to {extent - 1}; negative ones count from the end",
        ) from None
    except (ValueError, TypeError):
        raise LaunchError(
            f"trace {asked!r}: {ast.unparse(part)} is not a number",
            hint="indices are ints and slices of ints",
        ) from None


# --- following ---


@dataclass(frozen=True, slots=True)
class _InSlot:
    """Where an element is held: position `part` of a stack slot of `thread` (-1: of whichever
    thread writes it)."""

    trace: int
    element: int
    thread: int
    part: int


class Tracer:
    """Follows the elements that `asked` names, in a run of one LOWERED function.

    `registers` are its fragments and local buffers, `tensors` the arrays in global memory,
    `on_change` is told of each row when it is complete. Raises LaunchError for what cannot be
    followed."""

    def __init__(
        self,
        asked: Sequence[str],
        func: Func,
        target: Target,
        registers: Sequence[RegisterBuffer],
        tensors: Sequence[GlobalTensor],
        on_change: OnChange | None = None,
    ) -> None:
        self.traces: list[Trace] = []
        self._on_change = on_change
        self._row: dict[int, Change] = {}  # of each trace, what `on_change` has not been told yet
        self.watched: dict[str, list[_InSlot]] = {}
        self._dtypes: list[DType] = []
        self._memory: dict[str, list[tuple[int, int, int]]] = {"shared": [], "global": []}
        self._held: dict[tuple[int, Index], list[Number]] = {}
        self._open: dict[tuple[int, Index], tuple[Loc, set[int]]] = {}
        memory: dict[str, GlobalTensor | SharedBuffer] = {t.name: t for t in tensors}
        memory |= {b.name: b for b in shared_buffers(func) if b.dtype is not None}
        shapes = {name: m.shape for name, m in memory.items()}
        shapes |= {r.value.name: r.value.buffer.static_shape for r in registers}
        scopes = first_warps(func.body)
        warp_size = target.warp_size
        self._fnuz = target.has("float8_fnuz")
        for number, text in enumerate(asked):
            name, elements = parse_trace(text, shapes)
            self.traces.append(Trace(text, name, elements))
            if name in memory:
                held = memory[name]
                dtype = find_dtype(held.dtype) if isinstance(held, GlobalTensor) else held.dtype
                assert dtype is not None  # else the call would have been refused
                self._dtypes.append(dtype)
                self._memory["global" if isinstance(held, GlobalTensor) else "shared"] += [
                    (at, number, e)
                    for e, index in enumerate(elements)
                    for at in held.addresses(index)
                ]
                continue
            found = [r for r in registers if r.value.name == name]
            self._dtypes.append(found[0].value.dtype)
            for r in found:
                warp = scopes.get(r.value, 0)
                self._watch_slots(number, elements, r, warp * warp_size, warp_size)

    def _watch_slots(
        self, number: int, elements: Sequence[Index], r: RegisterBuffer, first: int, warp_size: int
    ) -> None:
        t: BufferType = r.value.buffer
        for e, index in enumerate(elements):
            if t.layout is not None and t.space == "fragment":
                reg, lane, warp = (int(owner[index]) for owner in t.layout.owners_of())
                thread = first + warp * warp_size + lane
            else:
                reg, thread = int(np.ravel_multi_index(index, t.static_shape)), -1
            slot = r.slots[0] if r.is_array else r.slots[reg // r.pack]
            part = reg if r.is_array else reg % r.pack
            self.watched.setdefault(slot, []).append(_InSlot(number, e, thread, part))

    def register_written(
        self, slot: str, value: Any, lanes: NDArray[Any], block: Index, loc: Loc, step: int
    ) -> None:
        """The threads `lanes` have put `value` into a stack slot."""
        for place in self.watched.get(slot, ()):
            at = 0
            if place.thread >= 0:
                at = int(np.searchsorted(lanes, place.thread))
                if at == len(lanes) or lanes[at] != place.thread:
                    continue
            one = value[place.part] if type(value) is tuple else value
            if np.ndim(one):
                one = one[at]
            dtype = self._dtypes[place.trace]
            number = self._number(one, dtype)
            whole = type(value) is not tuple
            self._set(place.trace, place.element, number, block, loc, step, always=whole)

    def memory_written(
        self,
        space: str,
        addresses: NDArray[Any],
        width: int,
        peek: Callable[[int, int], bytes],
        block: Index,
        loc: Loc,
        step: int,
    ) -> None:
        """`width` bytes from each of `addresses` on have been written; `peek(address, bytes)` reads
        them. Addresses of shared memory count from the start of the block's."""
        for at, trace, element in self._memory[space]:
            if ((addresses <= at) & (at < addresses + width)).any():
                dtype = self._dtypes[trace]
                kind = numpy_dtype(dtype, self._fnuz)
                raw = np.frombuffer(peek(at, dtype.bits // 8), kind)[0]
                number = self._number(raw, dtype)
                self._set(trace, element, number, block, loc, step, always=True)

    def tell(self, *traces: int) -> None:
        """The last rows of these traces are complete (of all: the block has ended)."""
        for trace in traces or range(len(self.traces)):
            row = self._row.pop(trace, None)
            if row is not None and self._on_change is not None:
                self._on_change(self.traces[trace], row)

    def _number(self, value: Any, dtype: DType) -> Number:
        """A NumPy scalar as records and memory hold it; None where it was never written."""
        if not isinstance(value, (np.generic, np.ndarray)):
            return None
        if dtype.kind == "bool":
            return bool(value)
        if dtype.is_float:
            return float(value.view(numpy_dtype(dtype, self._fnuz)) if dtype.bits == 8 else value)
        return int(value) & ((1 << dtype.bits) - 1) if dtype.kind == "uint" else int(value)

    def _set(
        self,
        trace: int,
        element: int,
        value: Number,
        block: Index,
        loc: Loc,
        step: int,
        always: bool,
    ) -> None:
        """An element holds `value`. What one line writes is one row, until it writes an element
        again."""
        key = trace, block
        found = self.traces[trace]
        held = self._held.setdefault(key, [None] * len(found.elements))
        if not always and held[element] == value:
            return
        held[element] = value
        line, written = self._open.get(key, (None, set[int]()))
        last = found.changes[-1] if found.changes else None
        if (
            line == loc
            and element not in written
            and last
            and (last.block, last.loc) == (block, loc)
        ):
            written.add(element)
            found.changes[-1] = self._row[trace] = Change(last.step, block, loc, tuple(held))
            return
        self.tell(trace)
        self._open[key] = loc, {element}
        self._row[trace] = Change(step, block, loc, tuple(held))
        if len(found.changes) < MOST_CHANGES:
            found.changes.append(self._row[trace])
        else:
            found.missed += 1
