"""Elementary float32 functions for the CPU, on scalars and on vectors alike.

Each is a range reduction and a polynomial, so that a vector costs little more than a number.
Accuracy is about two units in the last place over the whole range, subnormals and special values
included; the tests measure it.

Sources: W. Cody and W. Waite, "Software Manual for the Elementary Functions" (1980) for the
reductions; S. Moshier's Cephes library (expf, logf, tanhf) and Sun's fdlibm (k_sin.c, k_cos.c) for
those coefficients; those of erf are weighted least-squares fits on Chebyshev nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilec.codegen.lanes import convert, intrinsic, mangled, per_lane
from tilec.ir.llvm import Function, Operand, Val, constant, lanes_of

_PI_2 = (1.57079632673412561417, 6.07710050650619224932e-11)
# Polynomials, highest power first.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_TANH = (
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1,
)  # fmt: skip
_ERF_NEAR = (
    -0.000595373916439712, 0.0049859401769936085, -0.026761719956994057, 0.11281682550907135,
    -0.3761247992515564, 0.12837915122509003,
)  # fmt: skip
_ERF_FAR = (
    1.1231465578021016e-05, -0.000322805397445336, 0.0036424649879336357, -0.02376207523047924,
    0.10623688995838165, 0.6351513266563416, 0.12864848971366882,
)  # fmt: skip
SIN = (
    1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
    -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01,
)  # fmt: skip
COS = (
    -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
    2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02,
)  # fmt: skip
_REDUCIBLE = 2.0**20  # up to here the two-part reduction by pi / 2 is exact enough


@dataclass(frozen=True)
class Elementary:
    """Functions of float32 values appended to `fn`. `has_fma`: the machine multiplies and adds in
    one rounding.
    """

    LN2: ClassVar = (0.693359375, -2.12194440e-4)  # high part of few bits, rest
    LG2: ClassVar = (0.301025390625, 4.605038981195214e-06)  # log10(2)
    EXP: ClassVar[tuple[float, ...]] = _EXP
    # Below, the exponential of that base is 0; above, infinite.
    LIMITS: ClassVar[Mapping[str, tuple[float, float]]] = {
        "exp": (-104.0, 89.0), "exp2": (-151.0, 129.0), "exp10": (-46.0, 39.0),
    }  # fmt: skip

    fn: Function
    has_fma: bool

    def call(self, kind: str, x: Val) -> Val:
        """`kind` of `FUNCTIONS`."""
        return FUNCTIONS[kind](self, x)

    # --- exponentials ---

    def exp(self, x: Val) -> Val:
        x = self._clamp(x, *self.LIMITS["exp"])
        n = self._nearest(self._mul(x, math.log2(math.e)))
        return self._scaled_exp(self._reduce(x, n, self.LN2), n)

    def exp2(self, x: Val) -> Val:
        x = self._clamp(x, *self.LIMITS["exp2"])
        n = self._nearest(x)
        return self._scaled_exp(self._mul(self._sub(x, n), math.log(2)), n)

    def exp10(self, x: Val) -> Val:
        x = self._clamp(x, *self.LIMITS["exp10"])
        n = self._nearest(self._mul(x, math.log2(10)))
        return self._scaled_exp(self._mul(self._reduce(x, n, self.LG2), math.log(10)), n)

    def sigmoid(self, x: Val) -> Val:
        e = self.exp(self._neg(self._abs(x)))
        above = self.fn.select(self.fn.fcmp("olt", x, 0.0), e, 1.0)
        return self.fn.binary("fdiv", above, self._add(e, 1.0))

    def _scaled_exp(self, r: Val, n: Val) -> Val:
        """exp(r) * 2**n for |r| <= 0.35 and a whole n whose halves are exponents."""
        return self._scaled(self._add(self._less_one(r), 1.0), n)

    def _less_one(self, r: Val) -> Val:
        """exp(r) - 1 for |r| <= 0.35."""
        return self._mad(self._polynomial(self.EXP, r), self._mul(r, r), r)

    def _scaled(self, y: Val, n: Val) -> Val:
        """y * 2**n, in two factors: 2**n itself may be out of range where the result is not."""
        whole = self._whole(n)
        half = self.fn.binary("ashr", whole, 1)
        rest = self.fn.binary("sub", whole, half)
        return self._mul(self._mul(y, self._two_to(half)), self._two_to(rest))

    # --- logarithms ---

    def log(self, x: Val) -> Val:
        t, y, e = self._log_parts(x)
        y = self._mad(e, self.LN2[1], y)
        y = self._add(t, y)
        return self._edges_of_log(x, self._mad(e, self.LN2[0], y))

    def log2(self, x: Val) -> Val:
        t, y, e = self._log_parts(x)
        return self._edges_of_log(x, self._mad(self._add(t, y), math.log2(math.e), e))

    def log10(self, x: Val) -> Val:
        t, y, e = self._log_parts(x)
        low = self._mad(self._add(t, y), math.log10(math.e), self._mul(e, self.LG2[1]))
        return self._edges_of_log(x, self._mad(e, self.LG2[0], low))

    def log1p(self, x: Val) -> Val:
        """log(u) * x / (u - 1) with u = 1 + x rounded: the two roundings cancel (W. Kahan)."""
        u = self._add(x, 1.0)
        y = self._mul(self.log(u), self.fn.binary("fdiv", x, self._add(u, -1.0)))
        y = self.fn.select(self.fn.fcmp("oeq", u, 1.0), x, y)
        return self.fn.select(self.fn.fcmp("oeq", x, math.inf), x, y)

    def _log_parts(self, x: Val) -> tuple[Val, Val, Val]:
        """(t, y, e): x = (1 + t) * 2**e, sqrt(1/2) <= 1 + t < sqrt(2), log(1 + t) = t + y."""
        fn = self.fn
        small = self.fn.fcmp("olt", x, 2.0**-126)
        x = fn.select(small, self._mul(x, 2.0**23), x)
        # With the bits of sqrt(1/2) subtracted, the exponent field steps where 1 + t shall wrap
        # round.
        bits = convert(fn, "bitcast", x, "i32")
        root = constant(bits.type, 0x3F3504F3)
        moved = fn.binary("sub", bits, root)
        fraction = fn.binary("and", moved, 0x7F_FFFF)
        t = self._add(convert(fn, "bitcast", fn.binary("add", fraction, root), "float"), -1.0)
        e = convert(fn, "sitofp", fn.binary("ashr", moved, 23), "float")
        e = fn.select(small, self._add(e, -23.0), e)
        z = self._mul(t, t)
        y = self._mul(self._mul(t, z), self._polynomial(_LOG, t))
        return t, self._mad(z, -0.5, y), e

    def _edges_of_log(self, x: Val, y: Val) -> Val:
        y = self.fn.select(self.fn.fcmp("oeq", x, math.inf), x, y)
        y = self.fn.select(self.fn.fcmp("oeq", x, 0.0), -math.inf, y)
        return self.fn.select(self.fn.fcmp("ult", x, 0.0), math.nan, y)

    # --- tanh, erf ---

    def tanh(self, x: Val) -> Val:
        z = self._mul(x, x)
        near = self._mad(self._mul(self._polynomial(_TANH, z), z), x, x)
        size = self._abs(x)
        away = self._inverse(self._add(self.exp(self._add(size, size)), 1.0))
        far = self._add(self._mul(away, -2.0), 1.0)
        return self.fn.select(self.fn.fcmp("olt", size, 0.625), near, self._with_sign(far, x))

    def erf(self, x: Val) -> Val:
        near = self._mad(self._polynomial(_ERF_NEAR, self._mul(x, x)), x, x)
        size = self._abs(x)
        t = self.fn.select(self.fn.fcmp("ogt", size, 4.0), 4.0, size)
        far = self.exp(self._neg(self._mad(self._polynomial(_ERF_FAR, t), t, t)))
        far = self.fn.binary("fsub", self._c(far, 1.0), far)
        return self.fn.select(self.fn.fcmp("olt", size, 0.92), near, self._with_sign(far, x))

    # --- circular functions, in float64 ---

    def sin(self, x: Val) -> Val:
        return self._circular(x, "sinf", lambda s, c, n: self._quadrant(s, c, n))

    def cos(self, x: Val) -> Val:
        return self._circular(x, "cosf", lambda s, c, n: self._quadrant(s, c, self.fn.add(n, 1)))

    def tan(self, x: Val) -> Val:
        def ratio(s: Val, c: Val, n: Val) -> Val:
            return self.fn.binary(
                "fdiv", self._quadrant(s, c, n), self._quadrant(s, c, self.fn.add(n, 1))
            )

        return self._circular(x, "tanf", ratio)

    def _circular(self, x: Val, symbol: str, finish: Callable[[Val, Val, Val], Val]) -> Val:
        """`finish(sin r, cos r, n)` for x = r + n * pi / 2; the C library's function where any x is
        huge.
        """
        fn = self.fn
        wide = convert(fn, "fpext", x, "double")
        n = intrinsic(fn, "rint", [self._mul(wide, 2 / math.pi)])
        r = self._reduce(wide, n, _PI_2)
        z = self._mul(r, r)
        sine = self._mad(self._mul(self._polynomial(SIN, z), z), r, r)
        cosine = self._mad(
            self._polynomial(COS, z), self._mul(z, z), self._add(self._mul(z, -0.5), 1.0)
        )
        near = convert(fn, "fptrunc", finish(sine, cosine, self._whole(n)), "float")
        return self._beyond(x, symbol, near)

    def _beyond(self, x: Val, symbol: str, near: Val) -> Val:
        """`near` where the reduction was exact enough, else the C library's `symbol`."""
        fn = self.fn
        huge = fn.fcmp("ugt", self._abs(x), _REDUCIBLE)
        if lanes_of(x.type) > 1:
            huge = fn.intrinsic("i1", f"llvm.vector.reduce.or.{mangled(huge.type)}", [huge])
        before, library, done = fn.block.label, fn.label("huge"), fn.label("reduced")
        fn.cbr(huge, library, done, done)
        fn.start(library)
        far = per_lane(fn, symbol, [x])
        fn.br(done)
        fn.start(done)
        merged = fn.phi(x.type)
        merged.incoming = [(near, before), (far, library)]
        return merged.result

    def _quadrant(self, sine: Val, cosine: Val, n: Val) -> Val:
        """sin(r + n * pi / 2)."""
        fn = self.fn
        odd = fn.icmp("ne", fn.binary("and", n, 1), 0)
        value = fn.select(odd, cosine, sine)
        flip = fn.icmp("ne", fn.binary("and", n, 2), 0)
        return fn.select(flip, self._neg(value), value)

    # --- spelling ---

    def _c(self, shape: Val, value: float) -> Val:
        return constant(shape.type, value)

    def _add(self, a: Val, b: Operand) -> Val:
        return self.fn.binary("fadd", a, b)

    def _sub(self, a: Val, b: Operand) -> Val:
        return self.fn.binary("fsub", a, b)

    def _mul(self, a: Val, b: Operand) -> Val:
        return self.fn.binary("fmul", a, b)

    def _neg(self, a: Val) -> Val:
        return self.fn.inst("fneg", a.type, (a,), f"fneg {a}")

    def _inverse(self, a: Val) -> Val:
        return self.fn.binary("fdiv", self._c(a, 1.0), a)

    def _mad(self, a: Val, b: Operand, c: Operand) -> Val:
        factors = [x if isinstance(x, Val) else constant(a.type, x) for x in (a, b, c)]
        return intrinsic(self.fn, "fma" if self.has_fma else "fmuladd", factors)

    def _abs(self, a: Val) -> Val:
        return intrinsic(self.fn, "fabs", [a])

    def _with_sign(self, a: Val, sign: Val) -> Val:
        return intrinsic(self.fn, "copysign", [a, sign])

    def _polynomial(self, coefficients: Sequence[float], x: Val) -> Val:
        """Horner's rule."""
        y = self._c(x, coefficients[0])
        for c in coefficients[1:]:
            y = self._mad(y, x, c)
        return y

    def _clamp(self, x: Val, low: float, high: float) -> Val:
        """Into [low, high]; nan stays."""
        x = self.fn.select(self.fn.fcmp("olt", x, low), low, x)
        return self.fn.select(self.fn.fcmp("ogt", x, high), high, x)

    def _nearest(self, x: Val) -> Val:
        """The nearest whole number of a small float, by pushing the fraction out of the mantissa:
        unlike `llvm.rint` this needs no instruction newer than addition.
        """
        return self._add(self._add(x, 1.5 * 2.0**23), -1.5 * 2.0**23)

    def _whole(self, n: Val) -> Val:
        """A whole float as i32 (any number for nan)."""
        fn = self.fn
        magic = 1.5 * 2.0**23 if "float" in n.type else 1.5 * 2.0**52
        bits = convert(fn, "bitcast", self._add(n, magic), "i32" if "float" in n.type else "i64")
        low = convert(fn, "trunc", bits, "i32")
        return self.fn.add(low, -0x4B400000) if "float" in n.type else low

    def _reduce(self, x: Val, n: Val, unit: tuple[float, ...]) -> Val:
        """x - n * unit, the unit given in parts."""
        for part in unit:
            x = self._mad(n, -part, x)
        return x

    def _two_to(self, n: Val) -> Val:
        """2**n for -127 < n < 128."""
        biased = self.fn.binary("shl", self.fn.add(n, 127), 23)
        return convert(self.fn, "bitcast", biased, "float")


FUNCTIONS: dict[str, Callable[[Elementary, Val], Val]] = {
    name: getattr(Elementary, name)
    for name in (
        "exp", "exp2", "exp10", "sigmoid", "log", "log2", "log10", "log1p", "tanh", "erf", "sin",
        "cos", "tan",
    )
}  # fmt: skip
