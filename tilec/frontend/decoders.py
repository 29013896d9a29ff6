"""Functions of tilec's own that TileLang's programs import as CUDA C++, by their names: packed ints
of 1, 2 and 4 bits, and floats of 4, decoded by a thread into the elements of its own array.

    decode_i4u_to_f16(src, dst, N)                       values 0 to 15 (i4s: less 8; i2s: less 2;
                                                         i1s: -1 and 1)
    …_scale(src, dst, scale, N)                          x * scale[0]
    …_scale_zeros_original(src, dst, scale, zeros, N)    (x - zeros[0]) * scale[0]
    …_scale_zeros_rescale                                x * scale[0] - zeros[0]
    …_scale_zeros_quantized                              (x - z) * scale[0], z the 16 bits at zeros
    …_offset(…, offset, N)                               the second half by scale[offset], too
    decode_i2u_to_i8s, decode_i4s_to_i8s (less 7), …     16 values as int8
    decode_i2u_to_i4s                                    16 values as packed ints of 4 bits
    decode_fp4_to_bf16(src, dst, N), …_twiddling         8 values of each of N groups of 4 bytes
    fast_decode_int4(src, dst)                           decode_i4u_to_f16

Values lie interleaved, so that what becomes a pair of float16 lies 16 bits apart: of the 32 bits
that decode_i4u_to_f16 reads the nibbles are elements 0 2 4 6 1 3 5 7."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.pointers import as_bits, moved, place_of, regrouped
from tilec.frontend.builtins.table import Call
from tilec.frontend.expressions import Expressions
from tilec.frontend.narrow import first_byte
from tilec.frontend.values import Number, Region, Scalar, describe
from tilec.ir.ops import Bitcast, Fma
from tilec.ir.types import BFLOAT16, DTYPES, FLOAT16, INT8, INT32, UINT8, UINT16, UINT32, DType

_INTS = re.compile(
    r"decode_i([124])([su])_to_(f16|i8s|i4s)(_scale)?(_zeros_(original|rescale|quantized))?"
    r"(_offset)?"
)
_FP4 = re.compile(r"decode_fp4_to_bf16(_twiddling)?")
_SAME = {"fast_decode_int4": "decode_i4u_to_f16"}
EXAMPLES = ("fast_decode_int4", "decode_i4u_to_f16", "decode_i4s_to_f16_scale", "decode_i2s_to_i8s")

_BIASED = 0x64006400  # two float16: 1024, and what lies in their lowest bits
_LESS = {("f16", 4): 8, ("f16", 2): 2, ("i8s", 4): 7, ("i8s", 2): 2}  # of signed ones


@dataclass(frozen=True)
class Decoder:
    """`parameters` are names for messages; the last may be left out. `decode` takes the places and
    ints that they stand for."""

    parameters: tuple[str, ...]
    count: int
    decode: Callable[[Expressions, Sequence[Region], Sequence[Number], int], None]
    dtypes: tuple[DType, ...]
    most: int


def decoder(name: str) -> Decoder | None:
    """The function of tilec's own that is called so."""
    name = _SAME.get(name, name)
    found = _FP4.fullmatch(name)
    if found is not None:
        decode = _twiddled if found[1] else _fp4
        return Decoder(("src", "dst", "N"), 8, decode, (BFLOAT16,), 1 << 10)
    found = _INTS.fullmatch(name)
    if found is None:
        return None
    bits, signed, to, scaled, zeros, offset = (
        int(found[1]),
        found[2] == "s",
        *found.group(3, 4, 6, 7),
    )
    if (zeros and (signed or not scaled)) or (offset and not scaled):
        return None
    if to != "f16":
        if scaled or (to == "i4s" and bits != 2):
            return None
        made = _to_int4 if to == "i4s" else _to_int8(bits, signed)
        dtypes = (INT8, UINT8) if to == "i8s" else (INT8, UINT8, INT32, UINT32)
        return Decoder(("src", "dst", "N"), 16, made, dtypes, 16)
    more = ("scale",) * bool(scaled) + ("zeros",) * bool(zeros)
    if offset:
        whole = ("scale_offset", "zero_offset", "group_offset")
        more += whole if zeros == "quantized" else ("offset",)
    make = _to_float16(bits, signed, bool(scaled), zeros, bool(offset))
    return Decoder(("src", "dst", *more, "N"), 8, make, (FLOAT16,), 8)


def call_decoder(t: Expressions, c: Call, name: str, args: Sequence[object]) -> None:
    """Emit a call of one of tilec's own functions."""
    found = decoder(name)
    assert found is not None
    shown = f"{name}({', '.join(found.parameters)})"
    least = len(found.parameters) - 1
    if not least <= len(args) <= least + 1:
        message = f"{name} takes {least} or {least + 1} arguments, {len(args)} were given"
        raise t.error(message, f"write T.{c.builtin}(dtype, …) of {shown}")
    places: list[Region] = []
    numbers: list[Number] = []
    for parameter, given in zip(found.parameters[:-1], args):
        what = f"{parameter} of {name}"
        if parameter in ("src", "dst", "scale", "zeros"):
            places.append(place_of(t, given, what, c.node))
        else:
            numbers.append(t.number(given, what))
    count = static_int(args[-1]) if len(args) > least else found.count
    if count is None or not 1 <= count <= found.most:
        hint = f"write an int from 1 to {found.most}"
        raise t.error(f"N of {name} is {describe(args[-1])}", hint)
    dtype = places[1].buffer.type.dtype
    if dtype not in found.dtypes:
        wanted = " or ".join(d.name for d in found.dtypes)
        hint = f"allocate it as {found.dtypes[0].name}"
        raise t.error(f"{name} writes {wanted}, dst is in {describe(places[1].buffer)}", hint)
    found.decode(t, places, numbers, count)


# --- bits -----------------------------------------------------------------------------------------


def _bits_at(t: Expressions, place: Region, bits: int, skip: int = 0) -> Scalar:
    """So many bits from a place on, behind `skip` words of as many: a uint."""
    place = first_byte(t, place)
    own = place.buffer.type.dtype.bits
    to = DTYPES[f"uint{bits}"]
    if own < 8 or (place.buffer.packed is not None and not place.buffer.is_global):
        raise t.error(
            f"packed bits are read from elements of a byte or more, not from "
            f"{describe(place.buffer)}",
            "allocate the array as uint8, or int32",
        )
    count = max(1, bits // own)
    first = skip * bits // own
    read = [t.load(moved(t, place, first + n, first + count)) for n in range(count)]
    parts = [as_bits(t, x) for x in read]
    if own >= bits:
        return t.convert(t.binary("shr", parts[0], skip * bits % own), to)
    return regrouped(t, parts, bits)[0]


def _write(t: Expressions, place: Region, values: Sequence[Scalar]) -> None:
    dtype = place.buffer.type.dtype
    for n, x in enumerate(values):
        stored = as_bits(t, x, dtype) if x.dtype.bits == dtype.bits else x
        t.store(moved(t, place, n, len(values)), stored)


def _shifted(t: Expressions, word: Scalar, by: int, mask: int) -> Scalar:
    return t.run_time(t.binary("and", t.binary("shr", word, by), t.constant(mask, word.dtype)))


# --- ints of 1, 2 and 4 bits ----------------------------------------------------------------------


def _halves(t: Expressions, place: Region, bits: int) -> Scalar:
    """Eight ints, four from bit 0 on and four from bit 16 on."""
    word = _bits_at(t, place, 8 * bits)
    if bits == 4:
        return word
    wide = t.convert(word, UINT32)
    low = _shifted(t, wide, 0, (1 << 4 * bits) - 1)
    high = t.binary("shl", _shifted(t, wide, 4 * bits, (1 << 4 * bits) - 1), 16)
    return t.run_time(t.binary("or", low, high))


def _half(t: Expressions, place: Region, at: Number = 0) -> Scalar:
    return t.convert(t.load(moved(t, place, at)), FLOAT16)


def _to_float16(
    bits: int, signed: bool, scaled: bool, zeros: str | None, offset: bool
) -> Callable[[Expressions, Sequence[Region], Sequence[Number], int], None]:
    less = 1024.0 + (_LESS.get(("f16", bits), 0) if signed else 0)

    def decode(t: Expressions, places: Sequence[Region], at: Sequence[Number], count: int) -> None:
        src, dst, *more = places
        word = _halves(t, src, bits)
        sides = []  # scale and zero of the first half of the values, and of the second
        for n in range(1 + offset):
            scale = _half(t, more[0], at[0] if n else 0) if scaled else None
            sides.append((scale, _zero(t, more[1], at, bool(n)) if zeros else None))

        def value(x: Scalar, times: int, scale: Scalar | None, zero: Scalar | None) -> Scalar:
            if zero is None:
                zero = t.constant(0.0, FLOAT16)
            if times > 1:
                by, far = (t.constant(c, FLOAT16) for c in (1 / times, 1024 - 1024 / times - less))
                y: Number = t.emit_scalar(Fma, x.value, by.value, far.value)
            elif zeros == "quantized":
                y = t.binary("add", x, zero)
            else:
                y = t.binary("sub", x, less)
            if bits == 1 and signed:
                y = t.binary("sub", t.binary("add", y, y), 1.0)
            if zeros == "original":
                y = t.binary("sub", y, zero)
            if scale is None:
                return t.run_time(y)
            added: Number = t.constant(0.0, FLOAT16)
            if zeros == "rescale" and bits != 2:  # its sign bit is set, whatever it is
                added = t.binary("sub", t.constant(0.0, FLOAT16), t.unary("abs", zero))
            y = t.emit_scalar(Fma, t.run_time(y).value, scale.value, t.run_time(added).value)
            if zeros == "rescale" and bits == 2:
                y = t.binary("sub", y, zero)
            return t.run_time(y)

        found: list[Scalar] = []
        for pair in range((count + 1) // 2):
            # 16 n from bit 4 on is as good as n: what divides by 16 subtracts, too.
            times = 16 if bits == 4 and zeros != "quantized" and pair % 2 else 1
            shift = bits * pair - (4 if times > 1 else 0)
            both = _shifted(t, word, shift, ((1 << bits) - 1) * times * 0x10001)
            both = t.run_time(t.binary("or", both, t.constant(_BIASED, UINT32)))
            side = sides[offset and pair >= count // 4]
            for half in (both, t.run_time(t.binary("shr", both, 16))):
                x = t.emit_scalar(Bitcast, t.convert(half, UINT16).value, FLOAT16)
                found.append(value(x, times, *side))
        _write(t, dst, found[:count])

    def _zero(t: Expressions, place: Region, at: Sequence[Number], second: bool) -> Scalar:
        if zeros != "quantized":
            return _half(t, place, at[0] if second else 0)
        if not offset:
            zero = _bits_at(t, place, 16)
        else:
            packed = as_bits(t, t.load(moved(t, place, at[1] if second else 0)))
            shift = t.binary("mul", at[2], 4)
            zero = t.convert(t.binary("and", t.binary("shr", packed, shift), 0xF), UINT16)
        biased = t.run_time(t.binary("or", zero, t.constant(0xE400, UINT16)))  # -1024 - zero
        return t.emit_scalar(Bitcast, biased.value, FLOAT16)

    return decode


def _to_int8(
    bits: int, signed: bool
) -> Callable[[Expressions, Sequence[Region], Sequence[Number], int], None]:
    def decode(t: Expressions, places: Sequence[Region], at: Sequence[Number], count: int) -> None:
        src, dst = places
        if bits == 1:  # four from bits 0, 8, 16 and 24 on
            read = t.convert(_bits_at(t, src, 16), UINT32)
            high = t.binary("shl", _shifted(t, read, 0, 0xF0F0), 12)
            words = [t.run_time(t.binary("or", _shifted(t, read, 0, 0x0F0F), high))]
        else:
            words = [_bits_at(t, src, 32, n) for n in range(bits // 2)]
        found = []
        each = 4 // len(words)
        for n in range(-(-count // 4)):
            word, step = words[n // each], n % each * bits
            for byte in range(4):
                x: Number = _shifted(t, word, step + 8 * byte, (1 << bits) - 1)
                x = t.convert(x, INT8)
                if signed and bits == 1:
                    x = t.binary("sub", t.binary("add", x, x), 1)
                elif signed:
                    x = t.binary("sub", x, _LESS["i8s", bits])
                found.append(t.run_time(x))
        _write(t, dst, found[:count])

    return decode


def _to_int4(t: Expressions, places: Sequence[Region], at: Sequence[Number], count: int) -> None:
    src, dst = places
    read = _bits_at(t, src, 32)
    words = [_shifted(t, read, 2 * n, 0x33333333) for n in range(-(-count // 8))]
    _write(t, dst, regrouped(t, words, dst.buffer.type.dtype.bits))


# --- floats of 4 bits -----------------------------------------------------------------------------


def _e2m1(t: Expressions, word: Scalar | Number) -> Scalar:
    """The bfloat16 of an exponent of 2 bits and a fraction of one, which stand in bits 8 to 6 of a
    word of 16, where those of bfloat16 end, with the sign at bit 15: so they are the number, but
    for what its exponent is less by. A product makes 0.5 of what is below the least exponent."""
    bits = t.run_time(t.binary("and", t.run_time(word), t.constant(0x81C0, UINT16)))
    small = t.emit_scalar(Bitcast, bits.value, BFLOAT16)
    return t.run_time(t.binary("mul", small, t.constant(2.0**126, BFLOAT16)))


def _bytes(t: Expressions, src: Region, count: int) -> list[Scalar]:
    word = [_bits_at(t, src, 8, n) for n in range(4 * count)]
    return [t.convert(x, UINT16) for x in word]


def _fp4(t: Expressions, places: Sequence[Region], at: Sequence[Number], count: int) -> None:
    src, dst = places
    read = _bytes(t, src, count)
    found = []
    for group in range(count):
        for step in (0, 4):
            for x in read[4 * group : 4 * group + 4]:
                sign = t.run_time(t.binary("shl", _shifted(t, x, step + 3, 1), 15))
                size = t.run_time(t.binary("shl", _shifted(t, x, step, 7), 6))
                found.append(_e2m1(t, t.binary("or", sign, size)))
    _write(t, dst, found)


def _twiddled(t: Expressions, places: Sequence[Region], at: Sequence[Number], count: int) -> None:
    """Of 16 bits, the first byte the higher, a value has its sign at bit 15, 12, 9 or 14 and its
    other bits from 8, 5, 2 on downwards, or at 11, 10 and 13."""
    src, dst = places
    read = _bytes(t, src, count)
    found = []
    for group in range(count):
        for high, low in ((0, 1), (2, 3)):
            both = t.binary("shl", read[4 * group + high], 8)
            x = t.run_time(t.binary("or", both, read[4 * group + low]))
            found += [_e2m1(t, t.binary("shl", x, 3 * n) if n else x) for n in range(3)]
            sign = t.binary("and", t.binary("shl", x, 1), t.constant(0x8000, UINT16))
            size = t.binary("and", t.binary("shr", x, 3), t.constant(0x180, UINT16))
            last = t.binary("and", t.binary("shr", x, 7), t.constant(0x40, UINT16))
            found.append(_e2m1(t, t.binary("or", t.binary("or", sign, size), last)))
    _write(t, dst, found)
