"""Copies between fragments and shared memory by `stmatrix` and `ldmatrix`: four 8x8 matrices of
16-bit elements at a time, where the fragment holds them as the instruction takes or gives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilec.ir.core import Builder, Func, Op, Region, Value, walk
from tilec.ir.instr import find_instruction
from tilec.ir.layout import MatrixAccess, matrix_access, stmatrix_ok
from tilec.ir.ops import Copy, Gemm, Ldmatrix, Stmatrix
from tilec.passes.utils.addressing import Numbers, Place, coordinates, shared_offset
from tilec.passes.utils.building import counted, read_packed
from tilec.target import Target


def is_matrix_store(o: Copy, target: Target) -> bool:
    """Whether a copy of a whole fragment onto a whole shared tile, or one of several in a buffer,
    can be made so."""
    s, d = o.source.buffer.buffer, o.dest.buffer.buffer
    return (
        target.has("stmatrix")
        and (s.space, d.space) == ("fragment", "shared")
        and _is_tile(o.source, o.dest)
        and s.layout is not None
        and d.layout is not None
        and s.layout.replicas("reg") * s.layout.replicas("warp") == 1
        and stmatrix_ok(s.layout, d.layout, d.dtype.bits)
    )


def _is_tile(fragment: Region, tile: Region) -> bool:
    """Whether a fragment and a tile are whole, and alike."""
    rank, shape = len(fragment.extents), tile.buffer.buffer.shape
    last = tile.extents[-rank:]
    front = tile.extents[:-rank]
    return fragment.is_whole and fragment.extents == last == shape[-rank:] and {*front} <= {1}


def store_matrices(o: Copy) -> list[Op]:
    """The ops of such a copy; elements are converted two at a time."""
    with _groups(o, o.source.buffer, o.dest) as (b, inner, g, offset, access):
        x = Numbers(inner)
        per = 2 * access.count
        first = x.op("mul", g, per)
        registers = [x.op("add", first, e) for e in range(per)]
        values = tuple(
            read_packed(inner, o.source.buffer, registers[e : e + 2], o.dest.dtype)
            for e in range(0, per, 2)
        )
        inner.emit(Stmatrix, o.dest.buffer, offset, values, access.transposed)
    return b.ops


@contextmanager
def _groups(
    o: Copy, fragment: Value, tile: Region
) -> Iterator[tuple[Builder, Builder, Value, Value, MatrixAccess]]:
    """A loop over the groups of matrices that one instruction moves between a fragment and a shared
    tile: builders at the copy and in the loop, the group's number, the offset of this lane's row in
    the tile, and what is moved."""
    t, layout = tile.buffer.buffer, fragment.buffer.layout
    assert layout is not None and t.layout is not None
    access = matrix_access(layout, t.layout, t.dtype.bits)
    assert access is not None
    b = Builder(o.loc)
    place = Place(b)
    place.make(access.rows)
    with counted(b, layout.size("reg") // (2 * access.count), "matrices") as (g, inner):
        row = inner.binary("mul", g, 8)
        coords = [*tile.offsets[: -layout.rank], *coordinates(inner, access.rows, place, row)]
        offset = shared_offset(inner, t.layout, coords)
        yield b, inner, g, offset, access


def matrix_inputs(func: Func) -> set[Value]:
    """The fragments that matrix instructions take two elements at a time, as ldmatrix gives
    them."""
    found = set()
    for o in walk(func.body):
        if isinstance(o, Gemm) and not o.instr.startswith("simt"):
            seen, row = o.swap_operands(), find_instruction(o.instr)
            for v, pack in zip((seen.a.buffer, seen.b.buffer), row.packs):
                if v.buffer.space == "fragment" and pack == 2:
                    found.add(v)
    return found


def is_matrix_load(o: Copy, inputs: set[Value], target: Target) -> bool:
    """Whether a copy of a whole shared tile, or one of several in a buffer, onto one of the
    `inputs` can be made so."""
    s, d = o.source.buffer.buffer, o.dest.buffer.buffer
    return (
        target.has("ldmatrix")
        and o.dest.buffer in inputs
        and s.space == "shared"
        and s.dtype == d.dtype
        and _is_tile(o.dest, o.source)
        and s.layout is not None
        and d.layout is not None
        and d.layout.replicas("reg") == 1
        and matrix_access(d.layout, s.layout, d.dtype.bits) is not None
    )


def load_matrices(o: Copy) -> list[Op]:
    """The ops of such a copy."""
    with _groups(o, o.dest.buffer, o.source) as (b, inner, g, offset, access):
        first = inner.binary("mul", g, access.count)
        sides = o.dest.buffer, first, o.source.buffer, offset
        inner.emit(Ldmatrix, *sides, access.count, access.transposed)
    return b.ops
