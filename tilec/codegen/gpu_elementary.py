"""Functions of float32 on GPUs (`tilec.codegen.gpu_maths` says how exact they are)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tilec.codegen.cpu_elementary import Elementary
from tilec.codegen.lanes import intrinsic
from tilec.ir.llvm import Val, float_val, int_val

_REDUCIBLE = 2.0**40
# atan(t) = t + t**3 * p(t**2) on [0, 1], highest power first: relative error 0.14 ulp.
_ATAN = (
    0.0029206917951979405, -0.016367926358276913, 0.043211858332864034, -0.0755221409514037,
    0.10666004560917262, -0.14211055288007138, 0.19993772832430634, -0.33333152735953714,
)  # fmt: skip
# Of log2((1 + t) / (1 - t)) / t in t**2 and of 2**r: their series, to 1e-11 where they are used.
_LOG2 = tuple(2 / math.log(2) / k for k in range(13, 0, -2))
_EXP2 = tuple(math.log(2) ** k / math.factorial(k) for k in range(9, -1, -1))


@dataclass(frozen=True)
class GpuElementary(Elementary):
    """The CPU's functions with the hardware's 2**x and 1/x, and without its C library."""

    fast: Callable[[str, Val], Val]

    def exp2(self, x: Val) -> Val:
        return self.fast("exp2", x)

    def exp(self, x: Val) -> Val:
        return self._power_of(x, math.log2(math.e))

    def exp10(self, x: Val) -> Val:
        return self._power_of(x, math.log2(10))

    def _power_of(self, x: Val, log2_base: float) -> Val:
        """2 ** (x * log2_base). The part of the exponent that rounding drops comes back as a
        factor, which is 1 within 2**-16. (Where the exponent is infinite it is infinite, of either
        sign, or nan: `minnum` drops that.)"""
        high: float = struct.unpack("<f", struct.pack("<f", log2_base))[0]
        exponent = self._mul(x, high)
        rest = self._mad(x, high, self._neg(exponent))
        rest = self._mad(x, log2_base - high, rest)
        factor = self._mad(rest, math.log(2), 1.0)
        factor = self.fn.intrinsic("float", "llvm.minnum.f32", (self._abs(factor), float_val(1.5)))
        return self._mul(self.fast("exp2", exponent), factor)

    def sigmoid(self, x: Val) -> Val:
        return self._inverse(self._add(self.exp(self._neg(x)), 1.0))

    def _inverse(self, a: Val) -> Val:
        return self.fast("rcp", a)

    def _beyond(self, x: Val, symbol: str, near: Val) -> Val:
        huge = self.fn.fcmp("ugt", self._abs(x), _REDUCIBLE)
        return self.fn.select(huge, math.nan, near)

    # --- of two values ---

    def pow(self, a: Val, b: Val) -> Val:
        """|a| ** b, then C's rules for signs and special values."""
        fn = self.fn
        zero, one, inf, nan = (self._c(a, x) for x in (0.0, 1.0, math.inf, math.nan))
        size = self._abs(a)
        made = self._positive_power(size, b)
        # 0 ** b and inf ** b, where the logarithm has no meaning; |a| ** inf.
        nothing, endless = fn.fcmp("oeq", size, zero), fn.fcmp("oeq", size, inf)
        grows = fn.binary("xor", nothing, fn.fcmp("ogt", b, zero))
        edge = fn.select(grows, inf, zero)
        made = fn.select(fn.binary("or", nothing, endless), edge, made)
        grows = fn.binary("xor", fn.fcmp("ogt", size, one), fn.fcmp("olt", b, zero))
        limit = fn.select(fn.fcmp("oeq", size, one), one, fn.select(grows, inf, zero))
        made = fn.select(fn.fcmp("oeq", self._abs(b), inf), limit, made)
        # A negative base takes whole exponents only, odd ones keep its sign.
        half = self._mul(b, 0.5)
        broken = fn.fcmp("une", self._floor(b), b)
        odd = fn.binary("and", self._not(broken), fn.fcmp("une", self._floor(half), half))
        made = fn.select(odd, self._with_sign(made, a), made)
        negative = fn.binary("and", fn.fcmp("olt", a, zero), self._not(endless))
        made = fn.select(fn.binary("and", negative, broken), nan, made)
        made = fn.select(fn.fcmp("uno", a, b), nan, made)
        trivial = fn.binary("or", fn.fcmp("oeq", b, zero), fn.fcmp("oeq", a, one))
        return fn.select(trivial, one, made)

    def _positive_power(self, size: Val, b: Val) -> Val:
        """size ** b as 2 ** (b * log2 size) in float64."""
        wide = self.fn.cast("fpext", b, "double")
        return self._exp2_wide(self._mul(wide, self._log2_wide(size)))

    def _log2_wide(self, size: Val) -> Val:
        """log2 of a positive float as a double: of m * 2**e with sqrt(1/2) <= m < sqrt(2)."""
        fn = self.fn
        bits = fn.cast("bitcast", fn.cast("fpext", size, "double"), "i64")
        root = int_val(0x3FE6A09E667F3BCD, "i64")  # sqrt(1/2): e steps where m wraps round
        moved = fn.binary("sub", bits, root)
        e = fn.cast("sitofp", fn.binary("ashr", moved, 52), "double")
        fraction = fn.binary("and", moved, (1 << 52) - 1)
        m = fn.cast("bitcast", fn.add(fraction, root), "double")
        t = fn.binary("fdiv", self._add(m, -1.0), self._add(m, 1.0))
        return self._mad(self._polynomial(_LOG2, self._mul(t, t)), t, e)

    def _exp2_wide(self, x: Val) -> Val:
        """2**x of a double as a float."""
        fn = self.fn
        x = self._clamp(x, -200.0, 200.0)
        n = fn.intrinsic("double", "llvm.rint.f64", (x,))
        y = self._polynomial(_EXP2, self._sub(x, n))
        up = fn.binary("shl", fn.cast("sext", self._whole(n), "i64"), 52)
        scaled = fn.cast("bitcast", fn.add(fn.cast("bitcast", y, "i64"), up), "double")
        return fn.cast("fptrunc", scaled, "float")

    def atan2(self, y: Val, x: Val) -> Val:
        """The angle of (x, y) in [-pi, pi], with C's rules for zeros and infinities."""
        fn = self.fn
        wide, tall = self._abs(x), self._abs(y)
        steep = fn.fcmp("ogt", tall, wide)
        low, high = fn.select(steep, wide, tall), fn.select(steep, tall, wide)
        t = fn.binary("fdiv", low, high)
        t = fn.select(self.fn.fcmp("oeq", high, 0.0), 0.0, t)
        t = fn.select(self.fn.fcmp("oeq", low, math.inf), 1.0, t)
        angle = self._first_angle(t)
        angle = fn.select(steep, self._from(math.pi / 2, angle), angle)
        bits = fn.cast("bitcast", x, "i64" if x.type == "double" else "i32")
        left = fn.icmp("slt", bits, 0)
        angle = self._with_sign(fn.select(left, self._from(math.pi, angle), angle), y)
        return fn.select(fn.fcmp("uno", x, y), math.nan, angle)

    def _first_angle(self, t: Val) -> Val:
        """atan(t), 0 <= t <= 1."""
        z = self._mul(t, t)
        return self._mad(self._mul(self._polynomial(_ATAN, z), z), t, t)

    def _from(self, total: float, angle: Val) -> Val:
        """total - angle, the total in two parts."""
        high: float = struct.unpack("<f", struct.pack("<f", total))[0]
        return self._add(self._add(self._neg(angle), total - high), high)

    def _floor(self, x: Val) -> Val:
        return intrinsic(self.fn, "floor", [x])

    def _not(self, x: Val) -> Val:
        return self.fn.binary("xor", x, 1)
