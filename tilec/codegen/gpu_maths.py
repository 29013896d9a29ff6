"""Functions of one and two floats on GPUs: no C library there, and a vendor's fast forms are too rough for most.

float32 is accurate to about 2 ulp: exponentials and logarithms, tanh and erf are the polynomials the CPU target
uses (`Elementary`); `pow` and `atan2` are computed in float64. sin, cos and tan of arguments beyond 2**20 lose
accuracy. Narrower types are computed in float32 and take the hardware's fast exponential, whose error is far
below their precision. float64 has only what is one instruction.
"""

from __future__ import annotations

import math

from tilec.codegen.cpu_elementary import FUNCTIONS, Elementary
from tilec.codegen.scalars import Scalars
from tilec.ir.llvm import Val, float_val, int_val
from tilec.ir.types import FLOAT64, DType

_LOG2_TERMS = 11
_EXP2_TERMS = 12
_ATAN_TERMS = 12


class GpuElementary(Elementary):
    """The CPU's polynomials without its library."""

    def _beyond(self, x: Val, symbol: str, near: Val) -> Val:
        return near


class GpuScalars(Scalars):
    """Scalars with functions; a vendor adds its three fast forms."""

    def maths1(self, kind: str, x: Val, dtype: DType) -> Val:
        """See Scalars."""
        if dtype == FLOAT64:
            raise self.unsupported(kind, dtype)
        if kind == "rsqrt":
            return self.f.binary("fdiv", float_val(1.0), self.call("sqrt", x))
        if kind not in FUNCTIONS:
            raise self.unsupported(kind, dtype)
        return GpuElementary(self.f, True).call(kind, x)

    def maths2(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        """See Scalars."""
        if dtype == FLOAT64:
            raise self.unsupported(kind, dtype)
        f = self.f
        x, y = f.cast("fpext", a, "double"), f.cast("fpext", b, "double")
        made = self._pow(x, y) if kind == "pow" else self._atan2(x, y)
        return f.cast("fptrunc", made, "float")

    # --- float64 pieces ---

    def _d(self, value: float) -> Val:
        return float_val(value, "double")

    def _series(self, coefficients: list[float], x: Val) -> Val:
        """sum of coefficients[i] * x ** i."""
        total = self._d(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = self.call("fma", total, x, self._d(c))
        return total

    def _log2(self, x: Val) -> Val:
        """log2 of a positive normal double, to 1e-13."""
        f = self.f
        bits = f.cast("bitcast", x, "i64")
        exponent = f.binary("sub", f.binary("lshr", bits, int_val(52, "i64")), int_val(1023, "i64"))
        mantissa = f.binary("or", f.binary("and", bits, int_val((1 << 52) - 1, "i64")), int_val(1023 << 52, "i64"))
        m = f.cast("bitcast", mantissa, "double")
        large = f.fcmp("ogt", m, self._d(math.sqrt(2)))
        m = f.select(large, f.binary("fmul", m, self._d(0.5)), m)
        exponent = f.add(exponent, f.cast("zext", large, "i64"))
        t = f.binary("fdiv", f.binary("fsub", m, self._d(1.0)), f.binary("fadd", m, self._d(1.0)))
        terms = [2 / math.log(2) / (2 * i + 1) for i in range(_LOG2_TERMS)]
        part = f.binary("fmul", t, self._series(terms, f.binary("fmul", t, t)))
        return f.binary("fadd", f.cast("sitofp", exponent, "double"), part)

    def _exp2(self, x: Val) -> Val:
        """2 ** x of a double, clamped to the normal range, to 1e-13."""
        f = self.f
        x = self.call("maxnum", self.call("minnum", x, self._d(1020.0)), self._d(-1020.0))
        n = self.call("rint", x)
        terms = [math.log(2) ** i / math.factorial(i) for i in range(_EXP2_TERMS)]
        part = self._series(terms, f.binary("fsub", x, n))
        whole = f.cast("fptosi", n, "i64")
        scale = f.binary("shl", f.add(whole, int_val(1023, "i64")), int_val(52, "i64"))
        return f.binary("fmul", part, f.cast("bitcast", scale, "double"))

    def _pow(self, x: Val, y: Val) -> Val:
        """x ** y with C's special cases: x ** 0 is 1, 1 ** y is 1, a negative base needs a whole exponent."""
        f = self.f
        zero, one, nan = self._d(0.0), self._d(1.0), self._d(math.nan)
        size = self.call("fabs", x)
        tiny = self._d(2.0**-1000)
        made = self._exp2(f.binary("fmul", y, self._log2(self.call("maxnum", size, tiny))))
        infinite = f.fcmp("oeq", size, self._d(math.inf))
        positive = f.fcmp("ogt", y, zero)
        edge = f.select(positive, self._d(math.inf), zero)
        made = f.select(infinite, edge, made)
        at_zero = f.select(positive, zero, self._d(math.inf))
        made = f.select(f.fcmp("oeq", size, zero), at_zero, made)
        whole = f.fcmp("oeq", self.call("floor", y), y)
        half = f.binary("fmul", y, self._d(0.5))
        odd = f.binary("and", whole, f.fcmp("une", self.call("floor", half), half))
        sign = f.fcmp("olt", self.call("copysign", one, x), zero)
        flipped = self.negate(made)
        made = f.select(f.binary("and", sign, odd), flipped, made)
        finite_negative = f.binary("and", f.fcmp("olt", x, zero), f.fcmp("one", size, self._d(math.inf)))
        broken = f.binary("and", finite_negative, f.binary("xor", whole, int_val(1, "i1")))
        made = f.select(broken, nan, made)
        made = f.select(f.fcmp("uno", x, y), nan, made)
        trivial = f.binary("or", f.fcmp("oeq", y, zero), f.fcmp("oeq", x, one))
        return f.select(trivial, one, made)

    def _atan2(self, y: Val, x: Val) -> Val:
        """The angle of (x, y) in (-pi, pi]; the quadrants of C's atan2."""
        f = self.f
        ax, ay = self.call("fabs", x), self.call("fabs", y)
        steep = f.fcmp("ogt", ay, ax)
        low = f.select(steep, ax, ay)
        high = f.select(steep, ay, ax)
        both = f.fcmp("oeq", low, high)
        safe = f.select(f.fcmp("oeq", high, self._d(0.0)), self._d(1.0), high)
        t = f.select(both, self._d(1.0), f.binary("fdiv", low, safe))
        t = f.select(f.fcmp("oeq", high, self._d(0.0)), self._d(0.0), t)
        # atan t = 2 atan(t / (1 + sqrt(1 + t t))), twice: the series then converges fast
        scale = 1.0
        for _ in range(2):
            root = self.call("sqrt", self.call("fma", t, t, self._d(1.0)))
            t = f.binary("fdiv", t, f.binary("fadd", root, self._d(1.0)))
            scale *= 2
        terms = [(-1) ** i * scale / (2 * i + 1) for i in range(_ATAN_TERMS)]
        angle = f.binary("fmul", t, self._series(terms, f.binary("fmul", t, t)))
        angle = f.select(steep, f.binary("fsub", self._d(math.pi / 2), angle), angle)
        left = f.fcmp("olt", self.call("copysign", self._d(1.0), x), self._d(0.0))
        angle = f.select(left, f.binary("fsub", self._d(math.pi), angle), angle)
        angle = self.call("copysign", angle, y)
        return f.select(f.fcmp("uno", x, y), self._d(math.nan), angle)
