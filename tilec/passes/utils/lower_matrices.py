"""Copies between fragments and shared memory by `stmatrix` and `ldmatrix`: four 8x8 matrices of
16-bit elements at a time, where the fragment holds them as the instruction takes or gives them."""

from __future__ import annotations

from tilec.ir.core import Builder, Func, Op, Value, walk
from tilec.ir.instr import find_row
from tilec.ir.layout import matrix_access, stmatrix_ok
from tilec.ir.ops import Binary, Cast, Const, Copy, Gemm, Ldmatrix, Pack, RegRead, Stmatrix
from tilec.ir.types import INT32
from tilec.passes.lower_gemm import close, unrolled
from tilec.passes.utils.addressing import Place, coordinates, shared_offset
from tilec.target import Target


def is_matrix_store(o: Copy, target: Target) -> bool:
    """Whether a copy of a whole fragment onto a whole shared tile can be made so."""
    s, d = o.source.buffer.buffer, o.dest.buffer.buffer
    return (
        target.has("stmatrix")
        and (s.space, d.space) == ("fragment", "shared")
        and o.source.is_whole
        and o.dest.is_whole
        and o.source.extents == o.dest.extents
        and s.layout is not None
        and d.layout is not None
        and s.layout.replicas("reg") * s.layout.replicas("warp") == 1
        and stmatrix_ok(s.layout, d.layout, d.dtype.bits)
    )


def store_matrices(o: Copy) -> list[Op]:
    """The ops of such a copy; elements are converted two at a time."""
    s, d = o.source.buffer.buffer, o.dest.buffer.buffer
    assert s.layout is not None and d.layout is not None
    access = matrix_access(s.layout, d.layout, d.dtype.bits)
    assert access is not None
    b = Builder(o.loc)
    place = Place(b)
    place.make(access.rows)
    per = 2 * access.count
    count = s.layout.size("reg") // per
    g, inner = unrolled(b, count, "matrices")
    row = inner.value(Binary, "mul", g, inner.value(Const, 8, INT32))
    offset = shared_offset(inner, d.layout, coordinates(inner, access.rows, place, row))
    first = inner.value(Binary, "mul", g, inner.value(Const, per, INT32))
    values = []
    for m in range(access.count):
        pair = []
        for e in range(2):
            step = inner.value(Const, 2 * m + e, INT32)
            at = inner.value(Binary, "add", first, step)
            pair.append(inner.value(RegRead, o.source.buffer, at))
        value = inner.value(Pack, tuple(pair))
        if value.dtype != d.dtype:
            value = inner.value(Cast, value, d.dtype)
        values.append(value)
    inner.emit(Stmatrix, o.dest.buffer, offset, tuple(values), access.transposed)
    close(b, "unroll", g, count, inner)
    return b.ops


def matrix_inputs(func: Func) -> set[Value]:
    """The fragments that matrix instructions take two elements at a time, as ldmatrix gives
    them."""
    found = set()
    for o in walk(func.body):
        if isinstance(o, Gemm) and not o.row.startswith("simt"):
            seen, row = o.turn(), find_row(o.row)
            for v, pack in zip((seen.a.buffer, seen.b.buffer), row.packs):
                if v.buffer.space == "fragment" and pack == 2:
                    found.add(v)
    return found


def is_matrix_load(o: Copy, inputs: set[Value], target: Target) -> bool:
    """Whether a copy of a whole shared tile onto one of the `inputs` can be made so."""
    s, d = o.source.buffer.buffer, o.dest.buffer.buffer
    return (
        target.has("ldmatrix")
        and o.dest.buffer in inputs
        and s.space == "shared"
        and s.dtype == d.dtype
        and o.source.is_whole
        and o.dest.is_whole
        and o.source.extents == o.dest.extents
        and s.layout is not None
        and d.layout is not None
        and d.layout.replicas("reg") == 1
        and matrix_access(d.layout, s.layout, d.dtype.bits) is not None
    )


def load_matrices(o: Copy) -> list[Op]:
    """The ops of such a copy."""
    s, d = o.source.buffer.buffer, o.dest.buffer.buffer
    assert s.layout is not None and d.layout is not None
    access = matrix_access(d.layout, s.layout, d.dtype.bits)
    assert access is not None
    b = Builder(o.loc)
    place = Place(b)
    place.make(access.rows)
    count = d.layout.size("reg") // (2 * access.count)
    g, inner = unrolled(b, count, "matrices")
    row = inner.value(Binary, "mul", g, inner.value(Const, 8, INT32))
    offset = shared_offset(inner, s.layout, coordinates(inner, access.rows, place, row))
    first = inner.value(Binary, "mul", g, inner.value(Const, access.count, INT32))
    sides = o.dest.buffer, first, o.source.buffer, offset
    inner.emit(Ldmatrix, *sides, access.count, access.transposed)
    close(b, "unroll", g, count, inner)
    return b.ops
