"""Matrix instructions: registers of warps to tiles and back, and what ldmatrix, stmatrix and
mma/mfma do. Products are the rows' own (`MatrixRow.meaning`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.instr.row import MatrixRow
from tilec.ir.layout import Layout
from tilec.ir.semantics import numpy_dtype
from tilec.sim.counts import Counts
from tilec.sim.memory import Memory
from tilec.sim.threads import Threads, whole_warps

Array = NDArray[Any]


@functools.cache
def _places(layout: Layout) -> Array:
    """By (lane of the instruction, register): the row-major number of the element held."""
    flat = layout.flat("warp", "lane", "reg")
    return flat.reshape(-1, flat.shape[-1])


def tiles(layout: Layout, registers: Array) -> Array:
    """The tiles that registers hold: (groups, lanes of the instruction, elements per lane) to
    (groups, rows, columns)."""
    out = np.empty((len(registers), int(np.prod(layout.shape))), registers.dtype)
    out[:, _places(layout)] = registers
    return out.reshape(-1, *layout.shape)


def held_of(layout: Layout, made: Array) -> Array:
    """The inverse of `tiles`, replicas included."""
    held: Array = made.reshape(len(made), -1)[:, _places(layout)]
    return held


def elements(words: Sequence[Any], count: int, kind: Any) -> Array:
    """Registers, each in `count` threads, as elements of `kind`: (count, elements per thread)."""
    flat = [e for w in words for e in (w if type(w) is tuple else (w,))]
    held = np.empty((count, len(flat)), flat[0].dtype)
    for i, word in enumerate(flat):
        held[:, i] = word
    return held.view(kind)


def words(made: Array, like: Any) -> list[Array]:
    """(threads, elements) as registers of NumPy's type `like`, one array over the threads each."""
    packed = np.ascontiguousarray(made).view(like)
    return list(np.ascontiguousarray(packed.T))


def split(m: Threads, warps: int) -> tuple[int, Array | None]:
    """How many instructions of `warps` warps the threads execute, and, where warps are not whole
    (which is reported), the places of the threads among those of whole ones."""
    size = m.block.warp_size * warps
    if whole_warps(m) and len(m.lanes) % size == 0:
        return len(m.lanes) // size, None
    groups, at = np.unique(m.lanes // size, return_inverse=True)
    return len(groups), at * size + m.lanes % size


def spread(m: Threads, groups: int, size: int, at: Array | None, held: Array) -> Array:
    """(threads, n) as (groups, size, n); threads that are elsewhere hold zeros."""
    if at is None:
        return held.reshape(groups, size, -1)
    out = np.zeros((groups * size, held.shape[1]), held.dtype)
    out[at] = held
    return out.reshape(groups, size, -1)


# --- ldmatrix, stmatrix ---


def _row_places(m: Threads, rows: int) -> Array:
    """Of each thread the place, among the active ones, of the one that gives the address of the row
    that it stands for: the first `rows` lanes of a warp do, the others repeat them."""
    lanes, size = m.lanes, m.block.warp_size
    wanted = lanes // size * size + lanes % size % rows
    found: Array = np.minimum(np.searchsorted(lanes, wanted), len(lanes) - 1)
    return found


def ldmatrix(m: Threads, memory: Memory, fragment: Layout, address: Any) -> tuple[Any, ...]:
    """See `Machine.ldmatrix`."""
    rows, columns = fragment.shape
    size = m.block.warp_size
    warps, at = split(m, 1)
    where = m.full(address)[_row_places(m, rows)]
    got = memory.warp_read(m, where).view(np.uint16)
    read = spread(m, warps, size, at, got)[:, :rows].reshape(warps, rows * columns)
    held = read[:, _places(fragment)].reshape(warps * size, -1)
    if at is not None:
        held = held[at]
    return tuple(words(held, np.int32))


def stmatrix(
    m: Threads, memory: Memory, fragment: Layout, address: Any, values: Sequence[Any]
) -> None:
    """See `Machine.stmatrix`."""
    rows, columns = fragment.shape
    size = m.block.warp_size
    warps, at = split(m, 1)
    held = elements(values, len(m.lanes), np.uint16)
    made = tiles(fragment, spread(m, warps, size, at, held))
    place = np.arange(len(m.lanes)) if at is None else at
    data = made[place // size, place % size % rows]
    where = m.full(address)[_row_places(m, rows)]
    memory.warp_write(m, where, np.ascontiguousarray(data).view(np.uint8))


# --- mma, mfma ---


def count_product(counts: Counts | None, m: Threads, row: MatrixRow, times: int) -> None:
    """Count what `times` of the instruction compute."""
    if counts is not None:
        counts.flops(m.inst, row.a_dtype.name, 2 * row.m * row.n * row.k * times)


def mma(
    m: Threads,
    counts: Counts | None,
    row: MatrixRow,
    a: Sequence[Any],
    b: Sequence[Any],
    c: Sequence[Any],
) -> tuple[Any, ...]:
    """See `Machine.mma`."""
    size = m.block.warp_size
    warps, at = split(m, row.warps)
    count_product(counts, m, row, len(m.lanes) // (size * row.warps))
    fnuz = m.block.target.has("float8_fnuz")
    parts = []
    dtypes = (row.a_dtype, row.b_dtype, row.c_dtype)
    for operand, layout, dtype in zip((a, b, c), (row.a, row.b, row.c), dtypes):
        held = elements(operand, len(m.lanes), numpy_dtype(dtype, fnuz))
        parts.append(tiles(layout, spread(m, warps, size, at, held)))
    made = held_of(row.c, row.meaning(*parts)).reshape(warps * size, -1)
    if at is not None:
        made = made[at]
    first = c[0]
    if type(first) is tuple:
        return tuple(words(made, first[0].dtype))
    return tuple(words(made, first.dtype))
