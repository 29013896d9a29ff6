"""Scalar ops of the CPU target, on scalars and on vectors alike.

Values are in register form (`lanes.register_type`). float16, bfloat16 and float8 are computed in
float32 and rounded after every op. Functions of float64, and `pow` and `atan2`, call the C library
once per lane; those of float32 are in `cpu_elementary`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilec.codegen.cpu_elementary import FUNCTIONS, Elementary
from tilec.codegen.divisions import (
    DIVISIONS,
    divide,
    float_quotient,
    float_remainder,
    shift,
)
from tilec.codegen.lanes import constant, convert, elem_of, intrinsic, like, literal_of, per_lane
from tilec.codegen.numerics import Numerics
from tilec.ir.errors import CompileError
from tilec.ir.llvm import Function, Val
from tilec.ir.types import BOOL, FLOAT64, DType

_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_BOOL_OPS = {
    "and": "and", "or": "or", "xor": "xor", "add": "or", "mul": "and", "min": "and", "max": "or",
    "sub": "xor",
}  # fmt: skip
_FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint", "sqrt": "sqrt"}
_DOUBLE = ("exp", "exp2", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "erf")


@dataclass(frozen=True)
class Maths:
    """The scalar ops, appended to `fn`."""

    fn: Function
    num: Numerics
    elementary: Elementary

    # --- one value ---

    def unary(self, kind: str, x: Val, dtype: DType) -> Val:
        """`kind` of `UNARY_KINDS`."""
        if dtype.is_int:
            return self._int_unary(kind, x, dtype)
        if kind in ("neg", "abs"):
            return self._sign_bit(kind, x, dtype)
        wide = self.num.widen(x, dtype)
        if kind == "isnan":
            return self.fn.fcmp("uno", wide, wide)
        if kind == "isinf":
            infinity = constant(wide.type, math.inf)
            return self.fn.fcmp("oeq", intrinsic(self.fn, "fabs", [wide]), infinity)
        return self.num.narrow(self._float_unary(kind, wide, dtype), dtype)

    def _float_unary(self, kind: str, x: Val, dtype: DType) -> Val:
        if kind in _ROUNDINGS:
            return intrinsic(self.fn, _ROUNDINGS[kind], [x])
        one = constant(x.type, 1.0)
        if kind == "rsqrt":
            return self.fn.binary("fdiv", one, intrinsic(self.fn, "sqrt", [x]))
        if dtype != FLOAT64 and kind in FUNCTIONS:
            return self.elementary.call(kind, x)
        if kind in _DOUBLE:
            return per_lane(self.fn, kind, [x])
        if kind == "exp10":
            return per_lane(self.fn, "pow", [constant(x.type, 10.0), x])
        if kind == "sigmoid":
            away = per_lane(self.fn, "exp", [self.fn.binary("fsub", constant(x.type, -0.0), x)])
            return self.fn.binary("fdiv", one, self.fn.binary("fadd", away, one))
        raise self._refuse(kind, dtype)

    def _sign_bit(self, kind: str, x: Val, dtype: DType) -> Val:
        top = 1 << (dtype.bits - 1)
        bits = convert(self.fn, "bitcast", x, f"i{dtype.bits}")
        if kind == "neg":
            bits = self.fn.binary("xor", bits, constant(bits.type, top))
        else:
            bits = self.fn.binary("and", bits, constant(bits.type, top - 1))
        return self.fn.cast("bitcast", bits, x.type)

    def _int_unary(self, kind: str, x: Val, dtype: DType) -> Val:
        fn = self.fn
        never = constant("i1", 0)
        match kind:
            case "not":
                return fn.binary("xor", x, constant(x.type, -1))
            case "neg":
                return fn.binary("sub", constant(x.type, 0), x)
            case "abs":
                return intrinsic(fn, "abs", [x], [never]) if dtype.kind == "int" else x
            case "popcount":
                return intrinsic(fn, "ctpop", [x])
            case "clz":
                return intrinsic(fn, "ctlz", [x], [never])
            case "floor" | "ceil" | "trunc" | "round":
                return x
            case "isnan" | "isinf":
                return constant(like(x.type, "i1"), 0)
            case _:
                raise self._refuse(kind, dtype)

    # --- two and three values ---

    def binary(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        """`kind` of `BINARY_KINDS` on two values of one shape."""
        if dtype == BOOL:
            if kind not in _BOOL_OPS:
                raise self._refuse(kind, dtype)
            return self.fn.binary(_BOOL_OPS[kind], a, b)
        if dtype.is_int:
            return self._int_binary(kind, a, b, dtype)
        wide = self._float_binary(kind, self.num.widen(a, dtype), self.num.widen(b, dtype), dtype)
        return self.num.narrow(wide, dtype)

    def _float_binary(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        fn = self.fn
        if kind in _FLOAT_OPS:
            return fn.binary(_FLOAT_OPS[kind], a, b)
        if kind in ("floordiv", "truncdiv"):
            return float_quotient(fn, kind, a, b)
        if kind in ("mod", "truncmod"):
            rest = fn.binary("frem", intrinsic(fn, "fabs", [a]), intrinsic(fn, "fabs", [b]))
            return float_remainder(fn, kind, a, b, rest)
        match kind:
            case "min" | "max":
                return intrinsic(fn, f"{kind}num", [a, b])
            case "pow" | "atan2":
                return per_lane(fn, kind if elem_of(a.type) == "double" else f"{kind}f", [a, b])
            case _:
                raise self._refuse(kind, dtype)

    def _int_binary(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        fn, signed = self.fn, dtype.kind == "int"
        match kind:
            case "add" | "sub" | "mul" | "and" | "or" | "xor":
                return fn.binary(kind, a, b)
            case "min" | "max":
                order = "lt" if kind == "min" else "gt"
                return fn.select(fn.icmp(("s" if signed else "u") + order, a, b), a, b)
            case "shl" | "shr":
                return shift(fn, "shl" if kind == "shl" else "ashr" if signed else "lshr", a, b)
            case _ if kind in DIVISIONS:
                number = literal_of(b)
                by_zero, wraps = number in (None, 0), signed and number in (None, -1)
                return divide(fn, kind, a, b, signed, by_zero=by_zero, wraps=wraps)
            case "pow":
                return self._int_pow(a, b, signed)
            case _:
                raise self._refuse(kind, dtype)

    def _int_pow(self, a: Val, b: Val, signed: bool) -> Val:
        """By squaring, one step per bit of the exponent; a negative exponent gives 1."""
        fn = self.fn
        zero, number = constant(b.type, 0), literal_of(b)
        if signed:
            b = fn.select(fn.icmp("slt", b, zero), zero, b)
        bits = int(elem_of(b.type)[1:])
        power, base = constant(a.type, 1), a
        for i in range(bits if number is None else max(number, 0).bit_length()):
            bit = fn.binary("and", fn.binary("lshr", b, constant(b.type, i)), constant(b.type, 1))
            power = fn.select(fn.icmp("ne", bit, zero), fn.binary("mul", power, base), power)
            base = fn.binary("mul", base, base)
        return power

    def fma(self, a: Val, b: Val, c: Val, dtype: DType) -> Val:
        """a * b + c, rounded once (float16 and narrower: float32's, rounded again)."""
        if dtype.is_int:
            return self.fn.binary("add", self.fn.binary("mul", a, b), c)
        wide = [self.num.widen(v, dtype) for v in (a, b, c)]
        return self.num.narrow(intrinsic(self.fn, "fma", wide), dtype)

    def compare(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        """`kind` of `COMPARE_KINDS`: i1 in the operands' shape."""
        if dtype.is_float:
            wide_a, wide_b = self.num.widen(a, dtype), self.num.widen(b, dtype)
            return self.fn.fcmp(_FLOAT_COMPARE[kind], wide_a, wide_b)
        pred = kind if kind in ("eq", "ne") else ("s" if dtype.kind == "int" else "u") + kind
        return self.fn.icmp(pred, a, b)

    def _refuse(self, kind: str, dtype: DType) -> CompileError:
        other = "float32" if dtype.is_int else "an integer dtype"
        return CompileError(
            f"{kind} of {dtype.name} has no meaning",
            self.fn.loc,
            f"cast the operand to {other} first",
        )
