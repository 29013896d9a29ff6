"""Matrix instructions: registers of warps to tiles and back, and what ldmatrix, stmatrix,
mma, mma.sp, mfma and wgmma do. Products are the rows' own (`MatrixInstruction.semantics`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.instr.instruction import MatrixInstruction
from tilec.ir.layout import Layout
from tilec.ir.semantics import numpy_dtype
from tilec.ir.sparse import expand, ordered
from tilec.ir.types import FLOAT32
from tilec.sim.clocks import Ints
from tilec.sim.counts import Counts
from tilec.sim.faults import tell_undefined
from tilec.sim.memory import BlockMemory
from tilec.sim.tensors import PIECE, swizzled
from tilec.sim.threads import Threads, whole_warps
from tilec.sim.undefined import Lost, filled, is_undefined

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


def ldmatrix(memory: BlockMemory, m: Threads, fragment: Layout, address: Any) -> tuple[Any, ...]:
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
    memory: BlockMemory, m: Threads, fragment: Layout, address: Any, values: Sequence[Any]
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


def count_product(counts: Counts | None, m: Threads, instr: MatrixInstruction, times: int) -> None:
    """Count what `times` of the instruction compute."""
    if counts is not None:
        counts.flops(m.inst, instr.a_dtype.name, 2 * instr.m * instr.n * instr.k * times)


def mma(
    memory: BlockMemory,
    m: Threads,
    instr: MatrixInstruction,
    a: Sequence[Any],
    b: Sequence[Any],
    c: Sequence[Any],
    metadata: Any = None,
    selector: int = 0,
) -> tuple[Any, ...]:
    """See `Machine.mma`, and with `metadata` `Machine.mma_sp`."""
    size = m.block.warp_size
    warps, at = split(m, instr.warps)
    count_product(memory.counts, m, instr, len(m.lanes) // (size * instr.warps))
    fnuz = m.block.target.has("float8_fnuz")
    parts = []
    dtypes = (instr.a_dtype, instr.b_dtype, instr.c_dtype)
    for operand, layout, dtype in zip((a, b, c), (instr.a, instr.b, instr.c), dtypes):
        held = elements(operand, len(m.lanes), numpy_dtype(dtype, fnuz))
        parts.append(tiles(layout, spread(m, warps, size, at, held)))
    if metadata is not None:
        units = _metadata(m, instr, metadata, warps, at)
        own = np.split(units, instr.selectors, axis=-1)[selector]
        parts[0] = _expanded(m, instr, parts[0], own)
    made = held_of(instr.c, instr.semantics(*parts)).reshape(warps * size, -1)
    if at is not None:
        made = made[at]
    first = c[0]
    if type(first) is tuple:
        return tuple(words(made, first[0].dtype))
    return tuple(words(made, first.dtype))


def _metadata(
    m: Threads, instr: MatrixInstruction, word: Any, groups: int, at: Array | None
) -> Array:
    """The units of metadata that a word holds, (groups, rows, units)."""
    assert instr.metadata is not None
    size = m.block.warp_size * instr.warps
    (word,) = _defined(m, (word,), np.int32)
    held = elements([m.full(word)], len(m.lanes), f"uint{instr.unit}")
    return tiles(instr.metadata, spread(m, groups, size, at, held))


def _expanded(m: Threads, instr: MatrixInstruction, kept: Array, units: Array) -> Array:
    """The dense A of what is kept of it and its metadata."""
    units = np.ascontiguousarray(units)
    if not ordered(units, instr.a_dtype.bits).all():
        m.report(
            "unordered metadata",
            "the two indices of a group of four elements are not in ascending order, "
            "or those of two 32-bit elements neither (0, 1) nor (2, 3)",
        )
    return expand(kept, units, instr.a_dtype.bits)


# --- wgmma ---
#
# Matrix descriptors read from their bits, and the product of a warpgroup.
#
# PTX ISA, section "Asynchronous Warpgroup Level Matrix Instructions", "Matrix Descriptor": bits 0
# to 13 are the start address, 16 to 29 the leading and 32 to 45 the stride byte offset, all in
# units of 16 bytes; 62 and 63 the swizzling mode. What the offsets step over is said by "Strides"
# and "Canonical layouts" there.

WARPS = 4
_SWIZZLES = (0, 128, 64, 32)
_FIELD = 0x3FFF
_UNIT = 16  # bytes, of all fields


@functools.cache
def _offsets(fields: int, size: int, bits: int, mn_major: bool, depth: int) -> Ints:
    """From a descriptor without its address: where each 16 bytes of an operand of `size` rows or
    columns and `depth` bytes of k are from its start, before swizzling. K-major: (size, pieces);
    else (k, pieces of 8 along M or N)."""
    width = _SWIZZLES[fields >> 62 & 3]
    leading, stride = (fields >> 16 & _FIELD) * _UNIT, (fields >> 32 & _FIELD) * _UNIT
    if not mn_major:
        mn, piece = np.arange(size)[:, None], np.arange(depth // PIECE)
        if width == 0:
            return mn // 8 * stride + mn % 8 * _UNIT + piece * leading
        return mn // 8 * stride + mn % 8 * width + piece * PIECE
    k, piece = np.arange(8 * depth // bits)[:, None], np.arange(size * bits // 8 // PIECE)
    if width == 0:
        return k // 8 * leading + k % 8 * _UNIT + piece * stride
    each = width // PIECE
    return k // 8 * stride + k % 8 * width + piece // each * leading + piece % each * PIECE


def operand_places(descriptor: int, size: int, bits: int, mn_major: bool, depth: int = 32) -> Ints:
    """The addresses in shared memory of the 16-byte pieces of an operand (see `_offsets`)."""
    value = descriptor & (1 << 64) - 1
    start = (value & _FIELD) * _UNIT
    fields = value & ~_FIELD
    return swizzled(
        start + _offsets(fields, size, bits, mn_major, depth), _SWIZZLES[fields >> 62 & 3]
    )


def read_operand(
    active: Threads,
    memory: BlockMemory,
    column: int,
    lanes: Ints,
    descriptors: Sequence[int],
    size: int,
    kind: Any,
    mn_major: bool,
    buffer: str,
    depth: int = 32,
) -> Array:
    """The operand that successive descriptors name, `depth` bytes of k after one another: (size,
    all of k)."""
    bits = np.dtype(kind).itemsize * 8
    places = np.stack([operand_places(d, size, bits, mn_major, depth) for d in descriptors])
    data = memory.engine_read(active, places.ravel(), PIECE, column, lanes, buffer)
    read: Array = data.reshape(*places.shape[:2], -1).view(kind)  # steps, then as in `_offsets`
    if mn_major:
        return read.reshape(-1, size).T
    return np.ascontiguousarray(read.transpose(1, 0, 2)).reshape(size, -1)


def product(
    active: Threads,
    memory: BlockMemory,
    columns: Sequence[int],
    instr: MatrixInstruction,
    a: Sequence[Sequence[Any]],
    b: Sequence[Any],
    c: Sequence[Any] | None,
    transposed: tuple[bool, bool],
    keep: Any,
    metadata: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """The accumulators after the product; `columns`: the engine of each warpgroup. See
    `Machine.wgmma`."""
    size = active.block.warp_size * WARPS
    groups, at = split(active, WARPS)
    steps, blocks = len(b), len(a) // len(b)
    per_block = instr.registers[2]
    out_kind = np.float32 if instr.c_dtype == FLOAT32 else np.int32
    count = len(active.lanes)
    keeps = np.zeros(count, np.bool_) if c is None else active.full(keep) != 0
    sums = []
    if c is not None and keeps.any():
        for block in range(blocks):
            given = _defined(active, c[block * per_block : (block + 1) * per_block], out_kind)
            held = elements(given, count, numpy_dtype(instr.c_dtype))
            sums.append(tiles(instr.c, spread(active, groups, size, at, held)))
    in_registers = len(a[0]) > 1
    if in_registers:
        of_registers = [_fragments(active, instr, part, groups, at) for part in a]
    described = []  # of each m block the units of all steps
    for block in range(blocks if metadata else 0):
        each = len(metadata) // blocks
        found = [
            _metadata(active, instr, word, groups, at)
            for word in metadata[block * each : (block + 1) * each]
        ]
        if each == steps:  # each word serves one step, the first one's selector
            found = [np.split(units, instr.selectors, axis=-1)[0] for units in found]
        described.append(np.concatenate(found, axis=-1))
    count_product(memory.counts, active, instr, count // size * blocks * steps)
    # Of A and B, unless A is in registers, or both are parts of one buffer.
    buffers = active.buffer.split(", ")
    members = np.arange(groups) if at is None else np.unique(at // size)
    made = np.zeros((groups, blocks, instr.m, instr.n), numpy_dtype(instr.c_dtype))
    for g in members.tolist():
        mine = slice(g * size, (g + 1) * size) if at is None else np.flatnonzero(at // size == g)
        read = functools.partial(read_operand, active, memory, columns[g], active.lanes[mine])
        names = [_one(active, d, mine) for d in b]
        right = read(
            names, instr.n, numpy_dtype(instr.b_dtype), transposed[1], buffers[-1],
            instr.k * instr.b_dtype.bits // 8,
        ).T  # fmt: skip
        left = np.empty((blocks, instr.m, instr.a_k * steps), numpy_dtype(instr.a_dtype))
        for block in range(blocks):
            part = range(block * steps, (block + 1) * steps)
            if in_registers:
                for s, i in enumerate(part):
                    left[block, :, s * instr.a_k : (s + 1) * instr.a_k] = of_registers[i][g]
            else:
                names = [_one(active, a[i][0], mine) for i in part]
                left[block] = read(names, instr.m, left.dtype, transposed[0], buffers[0])
        total = np.zeros((blocks, instr.m, instr.n), made.dtype)
        if sums and keeps[mine].any():
            for block in range(blocks):
                total[block] = sums[block][g]
        if described:
            left = _expanded(active, instr, left, np.stack([d[g] for d in described]))
        made[g] = instr.semantics(left, right, total)
    results = []
    for block in range(blocks):
        held = held_of(instr.c, made[:, block]).reshape(groups * size, -1)
        results += words(held if at is None else held[at], out_kind)
    return tuple(results)


def _fragments(
    active: Threads,
    instr: MatrixInstruction,
    registers: Sequence[Any],
    groups: int,
    at: Array | None,
) -> Array:
    size = active.block.warp_size * WARPS
    given = _defined(active, registers, np.int32)
    held = elements(given, len(active.lanes), numpy_dtype(instr.a_dtype))
    return tiles(instr.a, spread(active, groups, size, at, held))


def _one(active: Threads, descriptor: Any, mine: Any) -> int:
    """The descriptor of a warpgroup, which must be the same in all its threads."""
    if isinstance(descriptor, Lost):
        (descriptor,) = _defined(active, (descriptor,), np.int64)
    if np.ndim(descriptor) == 0:
        return int(descriptor)
    found = descriptor[mine]
    if (found != found[0]).any():
        message = "the threads of a warpgroup give different matrix descriptors"
        active.report("barrier divergence", message)
    return int(found[0])


def _defined(active: Threads, given: Sequence[Any], kind: Any) -> list[Any]:
    """The registers, zeros for those that were never written, which is reported."""
    if is_undefined(tuple(given)):
        assert active.inst is not None
        tell_undefined(active, active.inst, given)
    return [filled(x, kind(0)) for x in given]
