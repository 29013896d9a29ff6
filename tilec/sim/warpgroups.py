"""wgmma: matrix descriptors read from their bits, and the product of a warpgroup.

PTX ISA, section "Asynchronous Warpgroup Level Matrix Instructions", "Matrix Descriptor": bits 0 to
13 are the start address, 16 to 29 the leading and 32 to 45 the stride byte offset, all in units of
16 bytes; 62 and 63 the swizzling mode. What the offsets step over is said by "Strides" and
"Canonical layouts" there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.instr.row import MatrixRow
from tilec.ir.semantics import numpy_dtype
from tilec.ir.types import FLOAT32
from tilec.sim.matrices import (
    count_product,
    elements,
    held_of,
    split,
    spread,
    tiles,
    words,
)
from tilec.sim.memory import Memory
from tilec.sim.registers import tell_undefined
from tilec.sim.threads import Threads
from tilec.sim.tma import PIECE, swizzled
from tilec.sim.undefined import Lost, filled, is_undefined

Array = NDArray[Any]
Ints = NDArray[np.int64]

WARPS = 4
_SWIZZLES = (0, 128, 64, 32)
_FIELD = 0x3FFF
_UNIT = 16  # bytes, of all fields


@functools.cache
def _offsets(fields: int, size: int, bits: int, mn_major: bool) -> Ints:
    """From a descriptor without its address: where each 16 bytes of an operand of `size` rows or
    columns and 32 bytes of k are from its start, before swizzling. K-major: (size, 2 pieces); else
    (k, pieces of 8 along M or N)."""
    width = _SWIZZLES[fields >> 62 & 3]
    leading, stride = (fields >> 16 & _FIELD) * _UNIT, (fields >> 32 & _FIELD) * _UNIT
    if not mn_major:
        mn, piece = np.arange(size)[:, None], np.arange(2)
        if width == 0:
            return mn // 8 * stride + mn % 8 * _UNIT + piece * leading
        return mn // 8 * stride + mn % 8 * width + piece * PIECE
    k, piece = np.arange(256 // bits)[:, None], np.arange(size * bits // 8 // PIECE)
    if width == 0:
        return k // 8 * leading + k % 8 * _UNIT + piece * stride
    each = width // PIECE
    return k // 8 * stride + k % 8 * width + piece // each * leading + piece % each * PIECE


def operand_places(descriptor: int, size: int, bits: int, mn_major: bool) -> Ints:
    """The addresses in shared memory of the 16-byte pieces of an operand (see `_offsets`)."""
    value = descriptor & (1 << 64) - 1
    start = (value & _FIELD) * _UNIT
    fields = value & ~_FIELD
    return swizzled(start + _offsets(fields, size, bits, mn_major), _SWIZZLES[fields >> 62 & 3])


def read_operand(
    active: Threads,
    memory: Memory,
    column: int,
    lanes: Ints,
    descriptors: Sequence[int],
    size: int,
    kind: Any,
    mn_major: bool,
    buffer: str,
) -> Array:
    """The operand that successive descriptors name, k after k: (size, all of k)."""
    bits = np.dtype(kind).itemsize * 8
    places = np.stack([operand_places(d, size, bits, mn_major) for d in descriptors])
    data = memory.engine_read(active, places.ravel(), PIECE, column, lanes, buffer)
    read: Array = data.reshape(*places.shape[:2], -1).view(kind)  # steps, then as in `_offsets`
    if mn_major:
        return read.reshape(-1, size).T
    return np.ascontiguousarray(read.transpose(1, 0, 2)).reshape(size, -1)


def product(
    active: Threads,
    memory: Memory,
    columns: Sequence[int],
    row: MatrixRow,
    a: Sequence[Sequence[Any]],
    b: Sequence[Any],
    c: Sequence[Any] | None,
    transposed: tuple[bool, bool],
    keep: Any,
) -> tuple[Any, ...]:
    """The accumulators after the product; `columns`: the engine of each warpgroup. See
    `Machine.wgmma`."""
    size = active.block.warp_size * WARPS
    groups, at = split(active, WARPS)
    steps, blocks = len(b), len(a) // len(b)
    per_block = row.registers[2]
    out_kind = np.float32 if row.c_dtype == FLOAT32 else np.int32
    count = len(active.lanes)
    keeps = np.zeros(count, np.bool_) if c is None else active.full(keep) != 0
    sums = []
    if c is not None and keeps.any():
        for block in range(blocks):
            given = _defined(active, c[block * per_block : (block + 1) * per_block], out_kind)
            held = elements(given, count, numpy_dtype(row.c_dtype))
            sums.append(tiles(row.c, spread(active, groups, size, at, held)))
    in_registers = len(a[0]) > 1
    if in_registers:
        of_registers = [_fragments(active, row, part, groups, at) for part in a]
    count_product(memory.counts, active, row, count // size * blocks * steps)
    # Of A and B, unless A is in registers, or both are parts of one buffer.
    buffers = (active.inst.buffer if active.inst is not None else "").split(", ")
    members = np.arange(groups) if at is None else np.unique(at // size)
    made = np.zeros((groups, blocks, row.m, row.n), numpy_dtype(row.c_dtype))
    for g in members.tolist():
        mine = slice(g * size, (g + 1) * size) if at is None else np.flatnonzero(at // size == g)
        lanes = active.lanes[mine]
        names = [_one(active, d, mine) for d in b]
        b_kind = numpy_dtype(row.b_dtype)
        right = read_operand(
            active, memory, columns[g], lanes, names, row.n, b_kind, transposed[1], buffers[-1]
        ).T
        left = np.empty((blocks, row.m, row.k * steps), numpy_dtype(row.a_dtype))
        for block in range(blocks):
            part = range(block * steps, (block + 1) * steps)
            if in_registers:
                for s, i in enumerate(part):
                    left[block, :, s * row.k : (s + 1) * row.k] = of_registers[i][g]
            else:
                names = [_one(active, a[i][0], mine) for i in part]
                left[block] = read_operand(
                    active,
                    memory,
                    columns[g],
                    lanes,
                    names,
                    row.m,
                    left.dtype,
                    transposed[0],
                    buffers[0],
                )
        total = np.zeros((blocks, row.m, row.n), made.dtype)
        if sums and keeps[mine].any():
            for block in range(blocks):
                total[block] = sums[block][g]
        made[g] = row.meaning(left, right, total)
    results = []
    for block in range(blocks):
        held = held_of(row.c, made[:, block]).reshape(groups * size, -1)
        results += words(held if at is None else held[at], out_kind)
    return tuple(results)


def _fragments(
    active: Threads, row: MatrixRow, registers: Sequence[Any], groups: int, at: Array | None
) -> Array:
    size = active.block.warp_size * WARPS
    given = _defined(active, registers, np.int32)
    held = elements(given, len(active.lanes), numpy_dtype(row.a_dtype))
    return tiles(row.a, spread(active, groups, size, at, held))


def _one(active: Threads, descriptor: Any, mine: Any) -> int:
    """The descriptor of a warpgroup, which must be the same in all its threads."""
    if isinstance(descriptor, Lost):
        (descriptor,) = _defined(active, (descriptor,), np.int64)
    if np.ndim(descriptor) == 0:
        return int(descriptor)
    found = descriptor[mine]
    if (found != found[0]).any():
        active.block.report(
            active,
            "barrier divergence",
            "the threads of a warpgroup give different matrix descriptors",
            *([active.inst.loc] if active.inst else []),
        )
    return int(found[0])


def _defined(active: Threads, given: Sequence[Any], kind: Any) -> list[Any]:
    """The registers, zeros for those that were never written, which is reported."""
    if is_undefined(tuple(given)):
        assert active.inst is not None
        tell_undefined(active, active.inst, given)
    return [filled(x, kind(0)) for x in given]
