"""Functions of float32 on GPUs: what the hardware gives fast, made accurate.

The GPU has 2**x, 1/x and 1/sqrt(x) to about 2 ulp; the logarithm's fast form is not accurate near 1, the
sine's nowhere, so those are the polynomials that the CPU uses too. Accuracy, measured by the tests:
exp, exp2, exp10, log, log2, log10, log1p, sqrt, rsqrt, sin, cos, tanh, erf, pow, atan2 within 2 ulp, tan and
sigmoid within 3. Results and operands below 2**-126 may be taken as zero; sin, cos and tan give nan for
|x| > 2**48.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilec.codegen.cpu_elementary import Elementary
from tilec.ir.llvm import Function, Val, float_val, int_val

_LOG2_E = math.log2(math.e)
_LOG2_10 = math.log2(10)
_HUGE = 2.0**48  # up to here the two-part reduction by pi / 2 leaves float32's accuracy
_PI_2 = (1.5707963267948966, 6.123233995736766e-17)
# atan(t) = t + t**3 * p(t**2) on [0, 1]: weighted least squares on Chebyshev nodes, highest power first.
_ATAN = (
    0.0027856871012250146, -0.01586657470297158, 0.04247221422893045, -0.07497521793058404,
    0.10644869868598193, -0.14207133943402705, 0.19993351380544028, -0.33333148000235265,
)  # fmt: skip


@dataclass(frozen=True)
class GpuElementary(Elementary):
    """`exp2_fast` and `reciprocal`: the hardware's forms."""

    exp2_fast: Callable[[Val], Val]
    reciprocal: Callable[[Val], Val]

    def exp2(self, x: Val) -> Val:
        return self.exp2_fast(x)

    def exp(self, x: Val) -> Val:
        return self._scaled(x, _LOG2_E)

    def exp10(self, x: Val) -> Val:
        return self._scaled(x, _LOG2_10)

    def _scaled(self, x: Val, log2_base: float) -> Val:
        """2 ** (x * log2_base): the part of the exponent that rounding drops comes back as a factor, which
        is 1 within 2**-16. (An infinite x makes that nan; `maxnum` drops it.)"""
        high = _float32(log2_base)
        exponent = self._times(x, high)
        rest = self._mad(x, self._c(x, high), self._neg(exponent))
        rest = self._mad(x, self._c(x, log2_base - high), rest)
        factor = self._mad(rest, self._c(x, math.log(2)), self._c(x, 1.0))
        factor = self.fn.intrinsic("float", "llvm.maxnum.f32", (factor, float_val(0.5)))
        return self._mul(self.exp2_fast(exponent), factor)

    def sigmoid(self, x: Val) -> Val:
        return self._inverse(self._plus(self.exp(self._neg(x)), 1.0))

    def _inverse(self, a: Val) -> Val:
        return self.reciprocal(a)

    def _circular(self, x: Val, symbol: str, finish: Callable[[Val, Val, Val], Val]) -> Val:
        """`finish(sin r, cos r, n)` for x = r + n * pi / 2, computed in float64; nan where |x| is huge."""
        fn = self.fn
        wide = fn.cast("fpext", x, "double")
        n = fn.intrinsic("double", "llvm.rint.f64", (self._times(wide, 2 / math.pi),))
        near = fn.cast("fptrunc", finish(*self._sine_cosine(self._reduce(wide, n, _PI_2)), n), "float")
        huge = fn.fcmp("ugt", self._abs(x), self._c(x, _HUGE))
        return fn.select(huge, self._c(x, math.nan), near)

    def pow(self, a: Val, b: Val) -> Val:
        """|a| ** b as 2 ** (b * log2 |a|) in float64, then C's rules for signs and special values."""
        fn = self.fn
        size = self._abs(a)
        power = self._mul(fn.cast("fpext", b, "double"), self._log2_wide(size))
        made = self._exp2_wide(power)
        zero, one, inf = self._c(a, 0.0), self._c(a, 1.0), self._c(a, math.inf)
        # 0 ** b and inf ** b, where the logarithm has no meaning.
        small = fn.fcmp("oeq", size, zero)
        edge = fn.binary("or", small, fn.fcmp("oeq", size, inf))
        up = fn.binary("xor", small, fn.fcmp("ogt", b, zero))
        made = fn.select(edge, fn.select(up, inf, zero), made)
        # b = +-inf: |a| against 1.
        endless = fn.fcmp("oeq", self._abs(b), inf)
        grows = fn.binary("xor", fn.fcmp("ogt", size, one), fn.fcmp("olt", b, zero))
        limit = fn.select(fn.fcmp("oeq", size, one), one, fn.select(grows, inf, zero))
        made = fn.select(endless, limit, made)
        # A negative base: whole exponents only, odd ones keep the sign.
        whole = fn.fcmp("oeq", fn.intrinsic("float", "llvm.floor.f32", (b,)), b)
        half = self._times(b, 0.5)
        even = fn.fcmp("oeq", fn.intrinsic("float", "llvm.floor.f32", (half,)), half)
        odd = fn.binary("and", whole, fn.binary("xor", even, int_val(1, "i1")))
        made = fn.select(odd, self._with_sign(made, a), made)
        finite = fn.fcmp("olt", size, inf)
        negative = fn.binary("and", fn.fcmp("olt", a, zero), finite)
        bad = fn.binary("and", negative, fn.binary("xor", whole, int_val(1, "i1")))
        made = fn.select(bad, self._c(a, math.nan), made)
        made = fn.select(fn.fcmp("uno", a, b), self._c(a, math.nan), made)
        trivial = fn.binary("or", fn.fcmp("oeq", b, zero), fn.fcmp("oeq", a, one))
        return fn.select(trivial, one, made)

    def _log2_wide(self, size: Val) -> Val:
        """log2 of a positive float as a double: log2(m * 2**e) = e + 2 / ln 2 * atanh((m - 1) / (m + 1))."""
        fn = self.fn
        bits = fn.cast("bitcast", fn.cast("fpext", size, "double"), "i64")
        root = int_val(0x3FE6A09E667F3BCD, "i64")  # sqrt(1/2)
        moved = fn.binary("sub", bits, root)
        e = fn.cast("sitofp", fn.binary("ashr", moved, int_val(52, "i64")), "double")
        fraction = fn.binary("and", moved, int_val((1 << 52) - 1, "i64"))
        m = fn.cast("bitcast", fn.add(fraction, root), "double")
        t = fn.binary("fdiv", self._plus(m, -1.0), self._plus(m, 1.0))
        z = self._mul(t, t)
        series = [2 / math.log(2) / k for k in range(19, 0, -2)]
        return self._mad(self._polynomial(series, z), t, e)

    def _exp2_wide(self, x: Val) -> Val:
        """2**x of a double as a float."""
        fn = self.fn
        x = self._clamp(x, -200.0, 200.0)
        n = fn.intrinsic("double", "llvm.rint.f64", (x,))
        r = self._sub(x, n)
        series = [math.log(2) ** k / math.factorial(k) for k in range(11, -1, -1)]
        y = self._polynomial(series, r)
        shift = fn.binary("shl", fn.cast("sext", self._whole(n), "i64"), int_val(52, "i64"))
        scaled = fn.add(fn.cast("bitcast", y, "i64"), shift)
        return fn.cast("fptrunc", fn.cast("bitcast", scaled, "double"), "float")

    def atan2(self, y: Val, x: Val) -> Val:
        """The angle of (x, y) in (-pi, pi]."""
        fn = self.fn
        ay, ax = self._abs(y), self._abs(x)
        steep = fn.fcmp("ogt", ay, ax)
        low, high = fn.select(steep, ax, ay), fn.select(steep, ay, ax)
        t = fn.binary("fdiv", low, high)
        # 0 / 0 is the angle 0 and inf / inf 1, as if both were equal or nothing.
        t = fn.select(fn.fcmp("oeq", high, self._c(x, 0.0)), self._c(x, 0.0), t)
        t = fn.select(fn.fcmp("oeq", low, self._c(x, math.inf)), self._c(x, 1.0), t)
        z = self._mul(t, t)
        angle = self._mad(self._mul(self._polynomial(_ATAN, z), z), t, t)
        angle = fn.select(steep, self._from(math.pi / 2, angle), angle)
        left = fn.icmp("slt", fn.cast("bitcast", x, "i32"), int_val(0))
        angle = fn.select(left, self._from(math.pi, angle), angle)
        angle = self._with_sign(angle, y)
        return fn.select(fn.fcmp("uno", x, y), self._c(x, math.nan), angle)

    def _from(self, total: float, angle: Val) -> Val:
        """total - angle, the total in two parts."""
        high = _float32(total)
        low = self.fn.binary("fsub", self._c(angle, total - high), angle)
        return self._plus(low, high)


def _float32(x: float) -> float:
    """`x` rounded to float32."""
    bits = float_val(x).ref
    return float(__import__("struct").unpack(">d", bytes.fromhex(bits[2:]))[0])
