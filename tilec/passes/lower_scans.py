"""lower_scans: running sums and maxima become loops over elements in shared memory.

Before: TILE. After: TILE without `scan`. A row is cut into pieces, each a thread's work, twice:
first what its elements make together, then, from what the pieces before it make, the running
values. What pieces make is a row, too, with a scan of its own:

    scan x, y            parallel (rows, pieces)   totals[row, piece] = combined elements
                   ->    scan totals, totals
                         parallel (rows, pieces)   y[…] = running values from totals[row, piece - 1]

The elements of a piece are an odd number, so that threads find theirs in other banks; a thread asks
for all of them before it adds up the first two, and before it writes one, so `y` may be `x`.
Fragments are copied to shared memory and back, but on a target whose blocks are one thread. Of rows
that are cut into segments a piece says, too, whether one begins in it: what is before that does not
count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region, Value
from tilec.ir.element_loops import shifted
from tilec.ir.ops import Alloc, Copy, Load, Scan, Store
from tilec.ir.types import BOOL, BufferType
from tilec.passes.utils.building import beside
from tilec.target import Target

SHORT = 16  # a row of so many elements is not cut,
MORE = 32  # or of so many, where threads find theirs in other banks as they are
PIECE = 17  # elements


def lower_scans(func: Func, target: Target) -> Func:
    return func.rewrite(Scan, lambda o: _lowered(o, target))


def _lowered(o: Scan, target: Target) -> list[Op]:
    b = Builder(o.loc)
    source, dest = o.source, o.dest
    begins = o.begins
    if target.kind != "cpu" and begins is not None and _space(begins) == "fragment":
        begins = beside(b, begins, "shared", "begins")
        b.emit(Copy, o.begins, begins)
    if target.kind != "cpu" and "fragment" in (_space(source), _space(dest)):
        if _space(source) == "fragment":
            source = beside(b, source, "shared", "scanned")
            b.emit(Copy, o.source, source)
        if _space(dest) == "fragment":
            same = dest.dtype == source.dtype and source is not o.source
            dest = source if same else beside(b, dest, "shared", "scanned")
    _Rows(b, o, source, dest, begins).loops()
    if dest is not o.dest:
        b.emit(Copy, dest, o.dest)
    return b.ops


def _space(r: Region) -> str:
    return r.type.space


class _Rows:
    """The loops of one scan from a region in memory to another."""

    def __init__(
        self, b: Builder, o: Scan, source: Region, dest: Region, begins: Region | None
    ) -> None:
        self.b = b
        self.o = o
        self.source = source
        self.dest = dest
        self.begins = begins
        self.count = o.source.extents[o.dim]
        apart = self.count % 2 or math.prod(o.source.extents) == self.count
        short = self.count <= (MORE if apart else SHORT)
        self.pieces = 1 if short else -(-self.count // PIECE)

    def loops(self) -> None:
        o, dim = self.o, self.o.dim
        shape = tuple(self.pieces if d == dim else e for d, e in enumerate(o.source.extents))
        if self.pieces == 1:
            with self.b.each_element(shape) as (inner, at):
                self._run(inner, at, None)
            return
        made = BufferType(shape, o.accumulator, "shared")
        totals = self.b.value(Alloc, made, name=f"{o.source.buffer.name}_totals")
        cut = None
        if self.begins is not None:
            name = f"{self.begins.buffer.name}_totals"
            cut = self.b.value(Alloc, replace(made, dtype=BOOL), name=name)
        with self.b.each_element(shape) as (inner, at):
            self._total(inner, at, totals)
            if cut is not None:
                self._total_begins(inner, at, cut)
        of_totals = self.b.whole(totals)
        of_begins = None if cut is None else self.b.whole(cut)
        again = replace(o, source=of_totals, dest=of_totals, reverse=False, begins=of_begins)
        _Rows(self.b, again, of_totals, of_totals, of_begins).loops()
        with self.b.each_element(shape) as (inner, at):
            self._run(inner, at, totals)

    def _total(self, b: Builder, at: Sequence[Value], totals: Value) -> None:
        """What the elements of a piece make together."""
        places = self._places(b, at[self.o.dim])
        values = [self._element(b, at, k) for k, _ in places]
        so_far = values[0]
        for (k, inside), value in zip(places[1:], values[1:]):
            so_far = self._or(b, inside, self._combined(b, at, k, so_far, value), so_far)
        b.emit(Store, totals, tuple(at), so_far)

    def _total_begins(self, b: Builder, at: Sequence[Value], cut: Value) -> None:
        """Whether a segment begins in a piece: an element behind the last is the last again."""
        begins = [self._begins(b, at, k) for k, _ in self._places(b, at[self.o.dim])]
        b.emit(Store, cut, tuple(at), b.any_of(*begins))

    def _run(self, b: Builder, at: Sequence[Value], totals: Value | None) -> None:
        """The running values of a piece."""
        dim = self.o.dim
        places = self._places(b, b.const(0) if totals is None else at[dim])
        values = [self._element(b, at, k) for k, _ in places]
        so_far = values[0]
        if totals is not None:
            zero = b.const(0)
            before = b.binary("max", b.binary("sub", at[dim], 1), zero)
            earlier = b.value(Load, totals, (*at[:dim], before, *at[dim + 1 :]))
            is_first = b.compare("eq", at[dim], zero)
            combined = self._combined(b, at, places[0][0], earlier, so_far)
            so_far = b.select(is_first, so_far, combined)
        found = [so_far]
        for (k, _), value in zip(places[1:], values[1:]):
            found.append(self._combined(b, at, k, found[-1], value))
        for (k, inside), value in zip(places, found):
            with b.when(inside) as inner:
                self._store(inner, at, k, value)

    def _places(self, b: Builder, piece: Value) -> list[tuple[Value, Value | None]]:
        """The numbers of a piece's elements, which are asked for together, and whether the row has
        so many, where it may not; if not, the number is the last one's. No piece is empty."""
        size = self.count if self.pieces == 1 else PIECE
        begin, last = b.binary("mul", piece, size), b.const(self.count - 1)
        found: list[tuple[Value, Value | None]] = [(begin, None)]
        for n in range(1, size):
            k = b.binary("add", begin, n)
            if self.count % size:
                found.append((b.binary("min", k, last), b.compare("le", k, last)))
            else:
                found.append((k, None))
        return found

    def _or(self, b: Builder, cond: Value | None, x: Value, y: Value) -> Value:
        """`x` where `cond` holds (None: it does), else `y`."""
        return x if cond is None else b.select(cond, x, y)

    def _combined(self, b: Builder, at: Sequence[Value], k: Value, x: Value, y: Value) -> Value:
        """What is before the row's element number `k` and what begins there, `y`."""
        both = b.binary(self.o.combine, x, y)
        return both if self.begins is None else b.select(self._begins(b, at, k), y, both)

    def _begins(self, b: Builder, at: Sequence[Value], k: Value) -> Value:
        assert self.begins is not None
        place = self._place(b, self.begins, at, k)
        return b.cast(b.value(Load, self.begins.buffer, place), BOOL)

    def _element(self, b: Builder, at: Sequence[Value], k: Value) -> Value:
        value = b.value(Load, self.source.buffer, self._place(b, self.source, at, k))
        return b.cast(value, self.o.accumulator)

    def _store(self, b: Builder, at: Sequence[Value], k: Value, value: Value) -> None:
        place = self._place(b, self.dest, at, k)
        b.emit(Store, self.dest.buffer, place, b.cast(value, self.dest.dtype))

    def _place(self, b: Builder, r: Region, at: Sequence[Value], k: Value) -> tuple[Value, ...]:
        """The indices of the row's element number `k` in the scan's order."""
        if self.o.reverse:
            k = b.binary("sub", b.const(self.count - 1), k)
        own = (*at[: self.o.dim], k, *at[self.o.dim + 1 :])
        return tuple(shifted(b, offset, arg) for offset, arg in zip(r.offsets, own))
