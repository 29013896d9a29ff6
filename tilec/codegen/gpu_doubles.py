"""Functions of float64 on GPUs, which have no instruction for any but the square root.

The same reductions as in float32 (`tilec.codegen.cpu_elementary`) with longer polynomials. Against
numbers of fifty digits the tests measure, of this code run on the host: exp, exp2, exp10, log,
rsqrt, erf, sin, cos, atan2, pow within 2 ulp, log2, log10, log1p, sigmoid, tanh, tan within 4.
Subnormals are exact to their last bit or two; sin, cos and tan give nan for |x| > 2**40, as in
float32.

Sources: Sun's fdlibm (e_log.c, k_sin.c, k_cos.c, s_atan.c) for those coefficients; exp is the
series; those of erf are Chebyshev fits made with fifty digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tilec.codegen.cpu_elementary import COS, SIN, Elementary
from tilec.codegen.gpu_elementary import GpuElementary
from tilec.codegen.lanes import intrinsic
from tilec.ir.llvm import Val

_PI_2 = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
_PI = (math.pi, 1.2246467991473532e-16)
_LOG2E = (1.4426950408889634, 2.0355273740931033e-17)
_THIRD = (1 / 3, 1.850371707708594e-17)
# Polynomials, highest power first.
_LOG = (
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
    2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
    6.666666666666735130e-01,
)  # fmt: skip
_ATAN = (
    -1.62858201153657823623e-02, 3.65315727442169155270e-02, -4.97687799461593236017e-02,
    5.83357013379057348645e-02, -6.66107313738753120669e-02, 7.69187620504482999495e-02,
    -9.09088713343650656196e-02, 1.11111104054623557880e-01, -1.42857142725034663711e-01,
    1.99999999998764832476e-01, -3.33333333333329318027e-01,
)  # fmt: skip
# atanh(t) = t + t**3 / 3 + t**5 * p(t**2): the series, to 1e-22 for |t| < 0.172.
_ATANH = tuple(1 / k for k in range(25, 3, -2))
# erf(x) / x - 1 in x**2, |x| < 1; exp(x**2) * erfc(x) in (x - 2.5) / (x + 2.5), 1 <= x <= 6.
_ERF_NEAR = (
    -7.795898827002142e-10, 1.3720064546777686e-08, -1.6208483801871705e-07,
    1.6447424703317362e-06, -1.492473690741966e-05, 0.00012055294904839707,
    -0.0008548325975389692, 0.0052239776071164225, -0.02686617064323777, 0.11283791670945006,
    -0.37612638903183543, 0.12837916709551256,
)  # fmt: skip
_ERF_FAR = (
    8.134380709229634e-08, -1.5625258507743158e-06, -2.2842173094341345e-06,
    7.48480117852628e-06, 1.8609712314617464e-05, -3.4172229273553035e-05,
    -0.00012887649615317198, 0.00022837955896605415, 0.0008759154019168855,
    -0.002642365927759658, -0.0039937011641469865, 0.0399225390747838, -0.12503305237885554,
    0.251713193217456, -0.3717367339489732, 0.21080636406114356,
)  # fmt: skip
_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)

Pair = tuple[Val, Val]
"""A number as a float64 and what is left of it."""


@dataclass(frozen=True)
class GpuDoubles(GpuElementary):
    """`GpuElementary` of float64; the hardware's fast forms are of float32 and unused."""

    LN2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
    LG2 = (3.01029995663611771306e-01, 3.69423907715893078616e-13)
    # Of (exp(r) - 1 - r) / r**2: the series, to 4e-18 for |r| < 0.35.
    EXP = tuple(1 / math.factorial(k) for k in range(13, 1, -1))
    LIMITS: ClassVar = {"exp": (-746.0, 710.0), "exp2": (-1076.0, 1025.0), "exp10": (-324.0, 309.0)}

    # --- exponentials ---

    exp, exp2, exp10 = Elementary.exp, Elementary.exp2, Elementary.exp10

    def _two_to(self, n: Val) -> Val:
        wide = self.fn.cast("sext", self.fn.add(n, 1023), "i64")
        return self.fn.cast("bitcast", self.fn.binary("shl", wide, 52), "double")

    # --- logarithms ---

    def _log_parts(self, x: Val) -> tuple[Val, Val, Val]:
        """See Elementary. log(1 + t) is t - h + s * (h + R) with s = t / (2 + t) and h = t**2 / 2
        (e_log.c)."""
        m, e = self._mantissa(x)
        t = self._add(m, -1.0)
        s = self.fn.binary("fdiv", t, self._add(t, 2.0))
        z, half = self._mul(s, s), self._mul(self._mul(t, 0.5), t)
        rest = self._mad(z, self._polynomial(_LOG, z), half)
        return t, self._sub(self._mul(s, rest), half), e

    def _mantissa(self, x: Val) -> Pair:
        """(m, e): x = m * 2**e, sqrt(1/2) <= m < sqrt(2)."""
        fn = self.fn
        small = self.fn.fcmp("olt", x, 2.0**-1022)
        bits = fn.cast("bitcast", fn.select(small, self._mul(x, 2.0**54), x), "i64")
        moved = fn.binary("sub", bits, _ROOT_HALF)
        fraction = fn.binary("and", moved, (1 << 52) - 1)
        m = fn.cast("bitcast", fn.binary("add", fraction, _ROOT_HALF), "double")
        e = fn.cast("sitofp", fn.binary("ashr", moved, 52), "double")
        return m, fn.select(small, self._add(e, -54.0), e)

    # --- tanh, erf ---

    def tanh(self, x: Val) -> Val:
        """With y = exp(2 * |x|) - 1: y / (y + 2)."""
        twice = self._clamp(self._mul(self._abs(x), 2.0), 0.0, 44.0)
        n = self._nearest(self._mul(twice, math.log2(math.e)))
        near = self._less_one(self._reduce(twice, n, self.LN2))
        up = self._scaled(self._c(x, 1.0), n)
        y = self._mad(near, up, self._add(up, -1.0))
        return self._with_sign(self.fn.binary("fdiv", y, self._add(y, 2.0)), x)

    def erf(self, x: Val) -> Val:
        """See Elementary."""
        near = self._mad(self._polynomial(_ERF_NEAR, self._mul(x, x)), x, x)
        size = self._abs(x)
        size = self.fn.select(self.fn.fcmp("ogt", size, 6.0), 6.0, size)
        t = self.fn.binary("fdiv", self._add(size, -2.5), self._add(size, 2.5))
        rest = self._mul(self.exp(self._neg(self._mul(size, size))), self._polynomial(_ERF_FAR, t))
        far = self._with_sign(self._sub(self._c(x, 1.0), rest), x)
        return self.fn.select(self.fn.fcmp("olt", size, 1.0), near, far)

    # --- circular functions ---

    def _circular(self, x: Val, symbol: str, finish: Callable[[Val, Val, Val], Val]) -> Val:
        n = self._nearest(self._mul(x, 2 / math.pi))
        r = self._reduce(x, n, _PI_2)
        z = self._mul(r, r)
        sine = self._mad(self._mul(self._polynomial(SIN, z), z), r, r)
        half = self._mul(z, 0.5)
        one = self._sub(self._c(z, 1.0), half)
        lost = self._sub(self._sub(self._c(z, 1.0), one), half)
        cosine = self._add(one, self._mad(self._mul(z, z), self._polynomial(COS, z), lost))
        return self._beyond(x, symbol, finish(sine, cosine, self._whole(n)))

    # --- of two values ---

    def _positive_power(self, size: Val, b: Val) -> Val:
        """The logarithm has 64 bits or more, so that its product with `b` keeps 53 behind the
        point."""
        high, low = self._log2_pair(size)
        high, low = self._scaled_pair((high, low), b)
        beyond = self._clamp(high, -1100.0, 1100.0)
        n = self._nearest(beyond)
        r = self._add(self._sub(beyond, n), low)
        r = self.fn.select(self.fn.fcmp("olt", self._abs(high), 1100.0), r, 0.0)
        return self._scaled_exp(self._mul(r, math.log(2)), n)

    def _log2_pair(self, size: Val) -> Pair:
        """log2 of m * 2**e: with t = (m - 1) / (m + 1), 2 * atanh(t) / ln 2 + e."""
        m, e = self._mantissa(size)
        below, above = self._add(m, -1.0), self._add(m, 1.0)
        lost = self._sub(m, self._add(above, -1.0))
        t = self.fn.binary("fdiv", below, above)
        left = self._mad(self._neg(t), above, below)
        t_low = self.fn.binary("fdiv", self._mad(self._neg(t), lost, left), above)
        z, z_low = self._product(t, t)
        z_low = self._mad(self._mul(t, 2.0), t_low, z_low)
        third, third_low = self._scaled_pair((z, z_low), self._c(z, _THIRD[0]))
        third_low = self._mad(z, _THIRD[1], third_low)
        rest = self._mul(self._mul(z, z), self._polynomial(_ATANH, z))
        p, p_low = self._sum(third, self._add(third_low, rest))
        grown, grown_low = self._scaled_pair((p, p_low), t)
        grown_low = self._mad(t_low, p, grown_low)
        high, low = self._sum(t, grown)
        low = self._add(low, self._add(grown_low, t_low))
        # Times 2 / ln 2, plus e.
        found, found_low = self._scaled_pair((high, low), self._c(high, 2 * _LOG2E[0]))
        found_low = self._mad(high, 2 * _LOG2E[1], found_low)
        total, total_low = self._sum(e, found)
        return self._sum(total, self._add(total_low, found_low))

    def _product(self, a: Val, b: Val) -> Pair:
        high = self._mul(a, b)
        return high, self._mad(a, b, self._neg(high))

    def _scaled_pair(self, pair: Pair, b: Val) -> Pair:
        high, low = self._product(pair[0], b)
        return high, self._mad(pair[1], b, low)

    def _sum(self, a: Val, b: Val) -> Pair:
        """Exact where `a` is 0 or not less than `b` in magnitude."""
        high = self._add(a, b)
        return high, self._add(self._sub(a, high), b)

    def _first_angle(self, t: Val) -> Val:
        """atan(t), 0 <= t <= 1: beyond tan(pi / 8) as pi / 4 + atan((t - 1) / (t + 1))."""
        far = self.fn.fcmp("ogt", t, math.tan(math.pi / 8))
        moved = self.fn.binary("fdiv", self._add(t, -1.0), self._add(t, 1.0))
        t = self.fn.select(far, moved, t)
        z = self._mul(t, t)
        series = self._mul(self._mul(self._polynomial(_ATAN, z), z), t)
        low = self._add(series, _PI[1] / 4)
        turned = self._add(self._add(t, low), _PI[0] / 4)
        return self.fn.select(far, turned, self._add(t, series))

    def _from(self, total: float, angle: Val) -> Val:
        """total, pi or half of it, less angle."""
        part = total / math.pi
        return self._add(self._neg(self._add(angle, -_PI[1] * part)), _PI[0] * part)

    # --- spelling ---

    _inverse = Elementary._inverse

    def _nearest(self, x: Val) -> Val:
        return intrinsic(self.fn, "rint", [x])
