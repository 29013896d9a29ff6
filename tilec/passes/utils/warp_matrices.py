"""Matrices of shared memory for the lanes of a warp: by `ldmatrix` where rows lie in one piece, by
loads of elements elsewhere."""

from __future__ import annotations

from tilec.ir.builder import Builder
from tilec.ir.core import Op, Value
from tilec.ir.layout import has_runs
from tilec.ir.ops import CheckIndex, LdmatrixValues, Load, LoadMatrices, ThreadIndex
from tilec.passes.utils.addressing import narrow, shared_offset
from tilec.passes.utils.memory_access import MemoryFacts

LANES = 32
_ROWS = 8  # of a matrix
_CHUNK_BITS = 128  # of a row


def by_elements(o: LoadMatrices) -> list[Op]:
    """What `o` gives, each element by a load of its own."""
    b = Builder(o.loc)
    lane = b.binary("mod", b.value(ThreadIndex), LANES)
    row, quarter = b.fold("floordiv", lane, 4), b.fold("mod", lane, 4)
    results = iter(o.results)
    for down, right in zip(o.rows, o.columns):
        for e in range(o.per):
            along = b.fold("add", b.fold("mul", quarter, o.per), e)
            r, c = (along, row) if o.transposed else (row, along)
            at = _moved(b, o, b.fold("add", r, down), b.fold("add", c, right))
            b.ops.append(Load(o.source, at, results=(next(results),), loc=o.loc))
    return b.ops


def _moved(b: Builder, o: LoadMatrices, down: Value, right: Value) -> tuple[Value, ...]:
    *outer, row, column = (narrow(b, v) for v in o.indices)
    there = (b.binary("add", v, by) for v, by in ((row, down), (column, right)))
    return (*outer, *there)


def by_ldmatrix(o: LoadMatrices, known: MemoryFacts) -> list[Op] | None:
    """`o` by ldmatrix; None where rows of 16 bytes are not in one piece of shared memory, at a
    multiple of that."""
    layout = o.source.buffer.layout
    chunk = _CHUNK_BITS // o.source.dtype.bits
    if layout is None or not has_runs(layout, chunk):
        return None
    if known.facts.divisor(o.indices[-1]) % chunk or any(c % chunk for c in o.columns):
        return None
    b = Builder(o.loc)
    lane = b.binary("mod", b.value(ThreadIndex), LANES)
    matrix, row = b.fold("floordiv", lane, _ROWS), b.fold("mod", lane, _ROWS)
    down, right = _by_matrix(b, matrix, o.rows), _by_matrix(b, matrix, o.columns)
    at = _moved(b, o, b.fold("add", down, row), right)
    whole = Load(o.source, at)
    if known.checks(whole, o.source.buffer):
        b.emit(CheckIndex, o.source, at)
    offset = shared_offset(b, layout, at)
    count = len(o.rows)
    made = LdmatrixValues(o.source, offset, count, o.transposed, results=o.results, loc=o.loc)
    return [*b.ops, made]


def _by_matrix(x: Builder, matrix: Value, places: tuple[int, ...]) -> Value:
    """`places` by the number of a matrix, of 1, 2 or 4: what each bit of the number adds."""
    found = x.const(places[0])
    for bit in range((len(places) - 1).bit_length()):
        step = places[1 << bit] - places[0]
        digit = x.fold("mod", x.fold("floordiv", matrix, 1 << bit), 2)
        found = x.fold("add", found, x.fold("mul", digit, step))
    return found
