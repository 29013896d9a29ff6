"""Conversions between number formats, as integer arithmetic where the host may have no instruction.

A float narrower than 32 bits lives in a register as its bits (an i16 or i8). `widen` makes a float
of them, exactly; `narrow` rounds a float to them: nearest even, and for float8 saturating.
Everything works on scalars and on vectors.

One pair of routines serves every format, because all of them are the same picture with other field
widths:

    float32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
    format    s  e...e    m...m                       shift = 23 - m, rebias = 127 - bias

Moving the fields by `shift` and adding `rebias` to the exponent is the whole conversion of a normal
number. A subnormal one has no leading 1, so it is made (or taken apart) by one float addition with
a power of two whose last bit has the weight of the format's last bit. The rounding of normals adds
half of the last kept bit, less one, plus that bit itself. Source: F. Giesen, "float->half variants"
(2016), generalised over the field widths.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from tilec.codegen.lanes import convert, intrinsic
from tilec.ir.llvm import Function, Val, constant
from tilec.ir.types import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, TFLOAT32, DType


@dataclass(frozen=True, slots=True)
class Format:
    """Field widths of a small float. `largest`: bits of the largest finite value; `nan`: bits of a
    nan; `infinity`: bits of infinity, None where the format has none; `saturates`: conversions to
    it give the largest value instead of infinity.
    """

    bits: int
    mantissa: int
    bias: int
    largest: int
    nan: int
    infinity: int | None
    saturates: bool

    @property
    def overflow(self) -> int:
        """Bits of what a number beyond the largest becomes."""
        return self.largest if self.saturates or self.infinity is None else self.infinity

    @property
    def has_sign(self) -> bool:
        """Whether one bit alone makes any number its negative (AMD's -0 is the nan)."""
        return self.nan != 1 << self.bits - 1

    @property
    def most(self) -> float:
        """The largest finite value."""
        exponent, fraction = divmod(self.largest, 1 << self.mantissa)
        return math.ldexp(1 + math.ldexp(fraction, -self.mantissa), exponent - self.bias)


# IEEE 754-2019 binary16; bfloat16; OCP 8-bit Floating Point Specification 1.0 (conversions
# saturate).
FORMATS: dict[DType, Format] = {
    FLOAT16: Format(16, 10, 15, 0x7BFF, 0x7E00, 0x7C00, False),
    BFLOAT16: Format(16, 7, 127, 0x7F7F, 0x7FC0, 0x7F80, False),
    FLOAT8_E4M3: Format(8, 3, 7, 0x7E, 0x7F, None, True),
    FLOAT8_E5M2: Format(8, 2, 15, 0x7B, 0x7E, 0x7C, True),
}
# AMD Instinct MI300 ISA, "FP8 and BF8 formats": the nan has the bits that would be negative zero.
FORMATS_FNUZ = FORMATS | {
    FLOAT8_E4M3: Format(8, 3, 8, 0x7F, 0x80, None, True),
    FLOAT8_E5M2: Format(8, 2, 16, 0x7F, 0x80, None, True),
}


@dataclass(frozen=True)
class Numerics:
    """Conversions appended to `fn`. `half`: the machine converts float to half and back by an
    instruction.
    """

    fn: Function
    half: bool = False

    # --- small floats ---

    def widen(self, v: Val, dtype: DType) -> Val:
        """The float32 (float64 stays) that a value of `dtype` stands for, exactly."""
        fn = self.fn
        if dtype not in FORMATS:
            return v
        if dtype == FLOAT16 and self.half:
            return convert(fn, "fpext", convert(fn, "bitcast", v, "half"), "float")
        if dtype == BFLOAT16:
            return self._float(fn.binary("shl", self._zext(v), 16))
        return self._widen(v, FORMATS[dtype])

    def narrow(self, v: Val, dtype: DType) -> Val:
        """A float32 rounded to `dtype`'s register form."""
        if dtype == TFLOAT32:
            return self.round_tf32(v)
        if dtype not in FORMATS:
            return v
        if dtype == FLOAT16 and self.half:
            return convert(self.fn, "bitcast", convert(self.fn, "fptrunc", v, "half"), "i16")
        if dtype == BFLOAT16:
            return self._narrow_bfloat16(v)
        return self._narrow(v, FORMATS[dtype])

    def _widen(self, v: Val, form: Format) -> Val:
        fn = self.fn
        shift, rebias = 23 - form.mantissa, (127 - form.bias) << 23
        bits = self._zext(v)
        size = fn.binary("and", bits, (1 << form.bits - 1) - 1)
        moved = fn.binary("add", fn.binary("shl", size, shift), rebias)
        # Read as a normal number of the smallest exponent, a subnormal is too large by that power
        # of two.
        least = rebias + (1 << 23)
        tiny = fn.binary("fsub", self._float(fn.binary("add", moved, 1 << 23)), _float_of(least))
        subnormal = fn.icmp("ult", size, 1 << form.mantissa)
        wide = fn.select(subnormal, self._bits(tiny), moved)
        if form.infinity is not None:
            special = fn.icmp("ugt", size, form.largest)
            wide = fn.select(special, fn.binary("or", wide, 0x7F80_0000), wide)
        else:
            wide = fn.select(fn.icmp("eq", size, form.nan), 0x7FC0_0000, wide)
        sign = fn.binary("shl", fn.binary("and", bits, 1 << form.bits - 1), 32 - form.bits)
        return self._float(fn.binary("or", wide, sign))

    def _narrow(self, v: Val, form: Format) -> Val:
        fn = self.fn
        shift, rebias = 23 - form.mantissa, (127 - form.bias) << 23
        bits = self._bits(v)
        sign = fn.binary("and", fn.binary("lshr", bits, 32 - form.bits), 1 << form.bits - 1)
        size = fn.binary("and", bits, 0x7FFF_FFFF)
        last = fn.binary("and", fn.binary("lshr", size, shift), 1)
        half = fn.binary("add", fn.binary("add", size, last), (1 << shift - 1) - 1 - rebias)
        normal = fn.binary("lshr", half, shift)
        weight = rebias + (shift + 1 << 23)  # its last bit weighs as much as the format's last bit
        small = self._float(size)
        sum = fn.binary("fadd", small, _float_of(weight))
        tiny = fn.binary("sub", self._bits(sum), weight)
        made = fn.select(fn.icmp("ult", size, rebias + (1 << 23)), tiny, normal)
        midpoint = (form.largest << shift) + rebias + (1 << shift - 1)
        beyond = fn.icmp("uge", size, midpoint)  # at the midpoint both roundings give `overflow`
        made = fn.select(beyond, form.overflow, made)
        made = fn.select(fn.icmp("ugt", size, 0x7F80_0000), form.nan, made)
        return convert(fn, "trunc", fn.binary("or", made, sign), f"i{form.bits}")

    def _narrow_bfloat16(self, v: Val) -> Val:
        fn = self.fn
        bits = self._bits(v)
        last = fn.binary("and", fn.binary("lshr", bits, 16), 1)
        up = fn.binary("add", fn.binary("add", bits, last), 0x7FFF)
        quiet = fn.binary("or", bits, 0x40_0000)
        made = fn.select(fn.fcmp("uno", v, v), quiet, up)
        return convert(fn, "trunc", fn.binary("lshr", made, 16), "i16")

    def round_tf32(self, v: Val) -> Val:
        """A float32 rounded to tfloat32's 10 bits of mantissa, nearest even; inf and nan stay."""
        fn = self.fn
        bits = self._bits(v)
        last = fn.binary("and", fn.binary("lshr", bits, 13), 1)
        up = fn.binary("add", fn.binary("add", bits, last), 0xFFF)
        nan = fn.fcmp("uno", v, v)  # whose bits might overflow
        return self._float(fn.select(nan, bits, fn.binary("and", up, ~0x1FFF)))

    def round_to_odd(self, v: Val) -> Val:
        """A float64 as a float32 whose last bit is set where it is inexact, so that rounding it
        again to fewer bits is the only rounding (Boldo and Melquiond, "Emulation of FMA and
        correctly rounded sums", 2008).
        """
        fn = self.fn
        near = convert(fn, "fptrunc", v, "float")
        back = convert(fn, "fpext", near, "double")
        far = fn.fcmp("ogt", intrinsic(fn, "fabs", [back]), intrinsic(fn, "fabs", [v]))
        bits = self._bits(near)
        toward_zero = fn.binary("sub", bits, convert(fn, "zext", far, "i32"))
        exact = fn.fcmp("ueq", back, v)
        return self._float(fn.select(exact, bits, self.fn.binary("or", toward_zero, 1)))

    def fold_low_bits(self, v: Val) -> Val:
        """An i64 whose 11 lowest bits, where it has more than 53 bits, are folded into one sticky
        bit above them: its conversion to float64 is then exact or decides no later rounding.
        """
        fn = self.fn
        low = fn.binary("and", v, 0x7FF)
        sticky = fn.icmp("ne", low, 0)
        kept = fn.binary("and", v, ~0x7FF)
        odd = fn.select(sticky, constant(v.type, 0x800), 0)
        folded = fn.binary("or", kept, odd)
        shifted = fn.binary("add", v, 1 << 53)
        small = fn.icmp("ult", shifted, 1 << 54)
        return fn.select(small, v, folded)

    # --- spelling ---

    def _zext(self, v: Val) -> Val:
        return convert(self.fn, "zext", v, "i32")

    def _bits(self, v: Val) -> Val:
        return convert(self.fn, "bitcast", v, "i32")

    def _float(self, v: Val) -> Val:
        return convert(self.fn, "bitcast", v, "float")


def encode(value: float, form: Format) -> int:
    """The bits of `value` rounded to a small format, nearest even; infinity stays where the format
    has one, and zero has no sign where those bits are the nan."""
    sign = 1 << form.bits - 1 if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return sign | form.nan
    size = abs(value)
    if math.isinf(size):
        return sign | (form.overflow if form.infinity is None else form.infinity)
    exponent = max(math.frexp(size)[1] - 1, 1 - form.bias) if size else 1 - form.bias
    units = round(math.ldexp(size, form.mantissa - exponent))
    bits = units + (exponent + form.bias - 1 << form.mantissa)
    made = sign | (bits if bits <= form.largest else form.overflow)
    return 0 if made == form.nan else made


def _float_of(bits: int) -> float:
    """The float32 with these bits."""
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


def round_to_bits(value: float, digits: int) -> float:
    """`value` with `digits` significant bits, nearest even."""
    if not math.isfinite(value) or value == 0:
        return value
    exponent = math.frexp(value)[1]
    return math.ldexp(round(math.ldexp(value, digits - exponent)), exponent - digits)
