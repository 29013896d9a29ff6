"""Scalar ops of the CPU target.

A float narrower than 32 bits is kept in a register as its bits, because not every host has
instructions (or even run-time routines) for it. Functions of float64, and `pow` and `atan2`, call
the C library once per lane; those of float32 are in `cpu_elementary`.
"""

from __future__ import annotations

from tilec.codegen.cpu_elementary import FUNCTIONS, Elementary
from tilec.codegen.lanes import literal_of, per_lane, register_type
from tilec.codegen.numerics import FORMATS, encode
from tilec.codegen.ranges import Ranges
from tilec.codegen.scalars import Scalars
from tilec.ir.llvm import Function, Val, constant, elem_of
from tilec.ir.types import FLOAT32, FLOAT64, DType

_LIBRARY = ("exp", "exp2", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "erf")


class CpuScalars(Scalars):
    """The scalar ops, appended to `f`. `half`: the machine converts float16 by an instruction;
    `fma`: it multiplies and adds in one rounding."""

    own = (FLOAT32, FLOAT64)
    roundings = {**Scalars.roundings, "round": "rint"}  # `roundeven` is young in C libraries

    def __init__(self, f: Function, half: bool, fma: bool) -> None:
        super().__init__(f, Ranges(), half)
        self.elementary = Elementary(f, fma)

    def register(self, dtype: DType) -> str:
        return register_type(dtype)

    def literal(self, value: bool | int | float, dtype: DType) -> Val:
        if dtype in FORMATS:
            return constant(register_type(dtype), encode(float(value), FORMATS[dtype]))
        return super().literal(value, dtype)

    def widen(self, x: Val, dtype: DType) -> Val:
        return self.numerics.widen(x, dtype)

    def narrow(self, x: Val, dtype: DType) -> Val:
        return self.numerics.narrow(x, dtype)

    def int_pow(self, a: Val, b: Val, signed: bool) -> Val:
        """By squaring, one step per bit of the exponent; a negative exponent gives 1."""
        fn = self.f
        zero, number = constant(b.type, 0), literal_of(b)
        if signed:
            b = fn.select(fn.icmp("slt", b, zero), zero, b)
        bits = int(elem_of(b.type)[1:])
        power, base = constant(a.type, 1), a
        for i in range(bits if number is None else max(number, 0).bit_length()):
            bit = fn.binary("and", fn.binary("lshr", b, i), 1)
            power = fn.select(fn.icmp("ne", bit, zero), fn.binary("mul", power, base), power)
            base = fn.binary("mul", base, base)
        return power

    def float_rest(self, a: Val, b: Val) -> Val:
        return self.f.binary("frem", a, b)

    def maths1(self, kind: str, x: Val, dtype: DType) -> Val:
        one = constant(x.type, 1.0)
        if kind == "fast_rcp":
            return self.f.binary("fdiv", one, x)
        kind = kind.removeprefix("fast_")
        if kind == "rsqrt":
            return self.f.binary("fdiv", one, self.call("sqrt", x))
        if dtype != FLOAT64 and kind in FUNCTIONS:
            return self.elementary.call(kind, x)
        if kind in _LIBRARY:
            return per_lane(self.f, kind, [x])
        if kind == "exp10":
            return per_lane(self.f, "pow", [constant(x.type, 10.0), x])
        if kind == "sigmoid":
            away = per_lane(self.f, "exp", [self.negate(x)])
            return self.f.binary("fdiv", one, self.f.binary("fadd", away, one))
        raise self.unsupported(kind, dtype)

    def maths2(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        if kind not in ("pow", "atan2"):
            raise self.unsupported(kind, dtype)
        return per_lane(self.f, kind if dtype == FLOAT64 else f"{kind}f", [a, b])
