"""Elements that are narrower in tensors than where they are computed with: int4, uint4,
float4_e2m1, and scales that are powers of two, float8_e8m0.

Of elements of four bits tensors hold two in a byte, the one with the even index in the lower bits;
the last extent is even. On chip each element is the number that it stands for, in a type that has
all of them (`ON_CHIP`), so that everything computes with it. What is stored is rounded to the
narrow type. A thread that writes both elements of a byte writes the byte; one that writes a single
one changes half of it, by atomics.

A shared tile that only copies of a tensor's whole bytes (and fills) write, and of which only
elements are read, holds the bytes: so they may come ahead of their readers, past the registers, and
are taken apart where they are read. Who uses a tile how is known when the kernel has been traced;
it is traced again then (`Again`).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilec import language as T
from tilec.frontend.arithmetic import affine_of, static_int
from tilec.frontend.placements import along, copy_elements, fill_elements, for_each_element
from tilec.frontend.values import Buffer, Number, Region, Scalar, Tile, describe
from tilec.ir.core import Block, Op, Value, walk
from tilec.ir.effects import buffers_written
from tilec.ir.ops import Copy, Fill, Load
from tilec.ir.types import FLOAT4_E2M1, FLOAT8_E8M0, INT4, ON_CHIP, UINT4, UINT8, DType


def on_chip(dtype: DType) -> DType:
    """What elements of `dtype` are while they are computed with."""
    return ON_CHIP.get(dtype, dtype)


def in_bytes(t: Any, shape: Sequence[int | Scalar], dtype: DType) -> tuple[int | Scalar, ...]:
    """The extents of a tensor's bytes. Raises CompileError for a last extent that is odd."""
    if dtype.bits == 8:
        return tuple(shape)
    *outer, last = shape
    known = static_int(last)
    if known is not None and known % 2:
        message = f"the last extent is {known}: elements of {dtype.name} come in pairs, a byte each"
        hint = "write an even extent, and leave the last element out where it is used"
        raise t.error(message, hint)
    return (*outer, t.binary("floordiv", last, 2))


# --- elements -------------------------------------------------------------------------------------


def load(t: Any, element: Region) -> Scalar:
    """Read an element of a tensor."""
    packed = element.buffer.packed
    assert packed is not None
    place, shift = _byte_of(t, element)
    return _decoded(t, packed, t.load(place), shift)


def store(t: Any, element: Region, value: Number) -> None:
    """Write an element of a tensor, and leave its neighbour as it is."""
    packed = element.buffer.packed
    assert packed is not None
    place, shift = _byte_of(t, element)
    code = _encoded(t, packed, value)
    if packed.bits == 8:
        t.store(place, t.convert(code, UINT8))
    else:
        t.trace_function(_change_half, [place, shift, code], {})


def rounded(t: Any, value: Number, dtype: DType) -> Scalar:
    """`value` as a number of `dtype`, in the type that it has on chip."""
    code = _encoded(t, dtype, value)
    found = _decoded(t, dtype, code, 0)
    t.codes[found.value] = code
    return found


def reinterpreted(t: Any, value: Scalar, dtype: DType) -> Scalar | None:
    """The bits of a number of four bits as one of eight, or the other way around; None for what is
    neither."""
    if dtype in ON_CHIP and value.dtype.bits == 8:
        return _decoded(t, dtype, value, 0)
    code = t.codes.get(value.value)
    return t.convert(code, dtype) if code is not None and dtype.bits == 8 else None


def _byte_of(t: Any, element: Region) -> tuple[Region, Number]:
    """The byte that an element is in, and by how many bits it is shifted there."""
    *outer, last = element.offsets
    stored, shift = _bytes(element.buffer), 0
    if element.buffer.dtype.bits < 8:
        shift = t.binary("mul", t.binary("mod", last, 2), 4)
        last = t.binary("floordiv", last, 2)
    return Region(stored, (*outer, last), element.extents, element.loc), shift


def first_byte(t: Any, element: Region) -> Region:
    """Where the bytes of a tensor are from an element on. Raises CompileError for one that is known
    to begin in the middle of a byte, or not known to begin one."""
    if element.buffer.stored is None:
        return element
    if element.buffer.dtype.bits < 8 and not _is_even(element.offsets[-1]):
        message = f"this element of {describe(element.buffer)} may be the upper half of a byte"
        raise t.error(message, "name one whose last index is even: A[i, 2 * j]")
    return _byte_of(t, element)[0]


def _bytes(buffer: Buffer) -> Buffer:
    """The tensor as it is in memory."""
    assert buffer.stored is not None
    return replace(buffer, shape=buffer.stored, packed=None, stored=None)


def _decoded(t: Any, dtype: DType, byte: Scalar, shift: Number) -> Scalar:
    function = {INT4: _int4, UINT4: _uint4, FLOAT4_E2M1: _e2m1, FLOAT8_E8M0: _e8m0}[dtype]
    found: Scalar = t.trace_function(function, [byte, shift], {})
    return found


def _encoded(t: Any, dtype: DType, value: Number) -> Scalar:
    function = {FLOAT4_E2M1: _e2m1_code, FLOAT8_E8M0: _e8m0_code}.get(dtype, _low_bits)
    found: Scalar = t.trace_function(function, [t.run_time(value)], {})
    return found


# In the language of kernels:


def _int4(byte, shift):  # type: ignore[no-untyped-def]
    return T.int8((((T.int32(byte) >> shift) & 15) ^ 8) - 8)


def _uint4(byte, shift):  # type: ignore[no-untyped-def]
    return T.uint8((T.int32(byte) >> shift) & 15)


def _e2m1(byte, shift):  # type: ignore[no-untyped-def]
    """Its exponent and fraction stand for themselves in a float16, 2**14 times too small."""
    code = (T.int32(byte) >> shift) & 15
    bits = ((code & 8) << 12) | ((code & 7) << 9)
    return T.reinterpret(T.uint16(bits), "float16") * T.float16(16384)


def _e8m0(byte, shift):  # type: ignore[no-untyped-def]
    """The exponent of a float32; 0 is that of the largest number below the normal ones."""
    bits = T.if_then_else(byte == 0, T.uint32(1 << 22), T.uint32(byte) << 23)
    bits = T.if_then_else(byte == 255, T.uint32(0x7FC00000), bits)
    return T.reinterpret(bits, "float32")


def _e8m0_code(x):  # type: ignore[no-untyped-def]
    """To the nearest, halfway up, without the sign; what is too large, and no number, to 255."""
    bits = T.reinterpret(T.float32(x), "uint32") & 0x7FFFFFFF
    exponent, fraction = bits >> 23, bits & 0x7FFFFF
    above = T.if_then_else(exponent > 0, fraction >= 1 << 22, fraction > 1 << 22)
    return T.int32(T.if_then_else(above & (exponent < 255), exponent + 1, exponent))


def _low_bits(x):  # type: ignore[no-untyped-def]
    return T.int32(x) & 15


def _e2m1_code(x):  # type: ignore[no-untyped-def]
    """To the nearest, ties to even; beyond 6, and what is no number, to 6."""
    bits = T.reinterpret(T.float32(x), "uint32")
    a = T.reinterpret(bits & 0x7FFFFFFF, "float32")
    code = T.int32((bits >> 28) & 8)
    for n, limit in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        below = a < limit if n % 2 else a <= limit  # to the even one
        code += T.if_then_else(below, 0, 1)
    return code


def _change_half(place, shift, code):  # type: ignore[no-untyped-def]
    T.atomic_and(place, T.cast(240 >> shift, "uint8"))
    T.atomic_or(place, T.cast(code << shift, "uint8"))


# --- tiles ----------------------------------------------------------------------------------------


def is_packed(*tiles: Tile) -> bool:
    """Whether one of the tiles is in a buffer of narrow elements."""
    return any(x.buffer.stored is not None for x in tiles)


def rounds(source: Tile, dest: Tile) -> bool:
    """Whether a copy changes numbers to those that four bits hold."""
    return dest.buffer.packed is not None and dest.buffer.packed is not source.buffer.packed


def are_bytes(source: Tile, dest: Tile) -> bool:
    """Whether a copy moves bytes of narrow elements as they are."""
    same = source.buffer.packed is dest.buffer.packed
    return same and all(is_packed(x) and _of_whole_bytes(x) for x in (source, dest))


def bytes_of(t: Any, tile: Tile) -> Tile:
    """The bytes of a tile that begins and ends with one."""
    stored, per = _bytes(tile.buffer), 8 // tile.buffer.dtype.bits
    last = t.binary("floordiv", tile.offsets[-1], per)
    extents = (*tile.extents[:-1], tile.extents[-1] // per)
    return Tile(stored, (*tile.offsets[:-1], last), extents)


def move(t: Any, source: Tile, dest: Tile) -> None:
    """Copy a tile element by element; where both elements of each byte of a tensor are in it, by
    bytes."""
    shape = source.shape or (1,)
    by_bytes = all(_by_bytes(x, shape) for x in (source, dest))

    def move_pair(at: list[Scalar]) -> None:
        src, dst = (_first_of_two(t, x, at) for x in (source, dest))
        packed = source.buffer.packed
        if packed is not None and is_packed(source):
            byte = t.load(_byte_of(t, src)[0])
            low, high = (_decoded(t, packed, byte, shift) for shift in (0, 4))
        else:
            low, high = t.load(src), t.load(t.neighbour(src, 1))
        _store_two(t, dst, low, high)

    if by_bytes:
        for_each_element(t, (*shape[:-1], shape[-1] // 2), move_pair)
    else:
        copy_elements(t, source, dest)
    if is_packed(source) and source.buffer.packed is dest.buffer.packed:
        if _of_whole_bytes(source):
            note_whole(t, dest)


def fill(t: Any, tile: Tile, value: Number) -> None:
    """Set all elements of a tile of narrow elements."""
    if not _of_whole_bytes(tile):
        fill_elements(t, tile, value)
        return
    assert tile.buffer.packed is not None
    code = byte = _encoded(t, tile.buffer.packed, value)
    if tile.buffer.packed.bits < 8:
        byte = t.binary("or", code, t.binary("shl", code, 4))
    t.emit(Fill, t.box(bytes_of(t, tile)), t.convert(byte, UINT8).value)


def _of_whole_bytes(tile: Tile) -> bool:
    """Whether a tile of narrow elements begins and ends with a byte."""
    if tile.steps:
        return False
    return tile.buffer.dtype.bits == 8 or (tile.extents[-1] % 2 == 0 and _is_even(tile.offsets[-1]))


def _by_bytes(tile: Tile, shape: tuple[int, ...]) -> bool:
    """Whether a loop over pairs of elements of a tile, which has this shape, is one over bytes."""
    rows_end_even = tile.extents[-1] == shape[-1] and shape[-1] % 2 == 0
    if not is_packed(tile):
        return rows_end_even
    four_bits = tile.buffer.dtype.bits < 8 and tile.buffer.is_global
    return rows_end_even and four_bits and _of_whole_bytes(tile)


def _is_even(offset: int | Scalar) -> bool:
    return affine_of(offset).quotient(2) is not None


def _first_of_two(t: Any, tile: Tile, at: list[Scalar]) -> Region:
    *outer, last = at
    return along(t, tile, [*outer, t.binary("mul", last, 2)])


def _store_two(t: Any, first: Region, low: Number, high: Number) -> None:
    packed = first.buffer.packed
    if packed is None or first.buffer.stored is None:
        t.store(first, low)
        t.store(t.neighbour(first, 1), high)
        return
    upper = t.binary("shl", _encoded(t, packed, high), 4)
    both = t.binary("or", _encoded(t, packed, low), upper)
    t.store(_byte_of(t, first)[0], t.convert(both, UINT8))


# --- tiles that hold bytes ------------------------------------------------------------------------


def note_whole(t: Any, tile: Tile) -> None:
    """What was emitted last writes whole bytes of a tile, were it to hold bytes."""
    if tile.buffer.value in t.narrow_tiles and _of_whole_bytes(tile):
        t.whole_writes.add(t.builder.ops[-1])


def tiles_of_bytes(t: Any, body: Block) -> set[ast.expr]:
    """What asks for the narrow tiles of a kernel that may as well hold bytes: they come from
    tensors by whole bytes, and all else that is done to them is to read elements."""
    asked: dict[Value, ast.expr] = t.narrow_tiles
    whole = {x for o in t.whole_writes for x in walk(o)}
    brought = {*buffers_written(e for o in t.whole_writes for e in o.effects())}
    other = {v for o in walk(body) if o not in whole for v in _used_otherwise(o)}
    found = {asked[v] for v in brought & asked.keys()}
    return found - {asked[v] for v in other & asked.keys()}


def _used_otherwise(o: Op) -> tuple[Value, ...]:
    """The buffers of which an op does more than to read elements."""
    match o:
        case Load():
            return ()
        case Copy():
            return (o.dest.buffer,)
    return o.operands
