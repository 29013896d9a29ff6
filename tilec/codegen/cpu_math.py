"""Scalar ops of the CPU target, on scalars and on vectors alike.

Values are in register form (`lanes.register_type`). float16, bfloat16 and float8 are computed in
float32 and rounded after every op. Functions of float64, and `pow` and `atan2`, call the C library
once per lane; those of float32 are in `cpu_elementary`. Nothing here can trap: division by zero
gives 0, shifts by the width or more leave no bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilec.codegen.cpu_elementary import FUNCTIONS, Elementary
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
        match kind:
            case "min" | "max":
                return intrinsic(fn, f"{kind}num", [a, b])
            case "truncmod":
                return fn.binary("frem", a, b)
            case "truncdiv":
                return intrinsic(fn, "trunc", [fn.binary("fdiv", a, b)])
            case "mod":
                rest, wrong = self._float_rest(a, b)
                return fn.select(wrong, fn.binary("fadd", rest, b), rest)
            case "floordiv":
                return self._float_floordiv(a, b)
            case "pow" | "atan2":
                return per_lane(fn, kind if elem_of(a.type) == "double" else f"{kind}f", [a, b])
            case _:
                raise self._refuse(kind, dtype)

    def _float_rest(self, a: Val, b: Val) -> tuple[Val, Val]:
        """C's remainder, and whether its sign is not the divisor's, so that Python's is one divisor
        away."""
        fn = self.fn
        rest = fn.binary("frem", a, b)
        word = "i64" if elem_of(a.type) == "double" else "i32"
        signs = fn.binary(
            "xor", convert(fn, "bitcast", rest, word), convert(fn, "bitcast", b, word)
        )
        opposite = fn.icmp("slt", signs, constant(signs.type, 0))
        return rest, fn.binary("and", fn.fcmp("une", rest, constant(rest.type, 0.0)), opposite)

    def _float_floordiv(self, a: Val, b: Val) -> Val:
        """The floor of the exact quotient, which a rounded quotient may have passed."""
        fn = self.fn
        rest, wrong = self._float_rest(a, b)
        whole = intrinsic(fn, "rint", [fn.binary("fdiv", fn.binary("fsub", a, rest), b)])
        below = fn.binary("fsub", whole, constant(whole.type, 1.0))
        by_zero = fn.fcmp("oeq", b, constant(b.type, 0.0))
        return fn.select(by_zero, fn.binary("fdiv", a, b), fn.select(wrong, below, whole))

    def _int_binary(self, kind: str, a: Val, b: Val, dtype: DType) -> Val:
        fn, signed = self.fn, dtype.kind == "int"
        match kind:
            case "add" | "sub" | "mul" | "and" | "or" | "xor":
                return fn.binary(kind, a, b)
            case "min" | "max":
                order = "lt" if kind == "min" else "gt"
                return fn.select(fn.icmp(("s" if signed else "u") + order, a, b), a, b)
            case "shl":
                return self._shift("shl", a, b)
            case "shr":
                return self._shift("ashr" if signed else "lshr", a, b)
            case "truncdiv" | "truncmod" | "floordiv" | "mod":
                return self._divide(kind, a, b, signed)
            case "pow":
                return self._int_pow(a, b, signed)
            case _:
                raise self._refuse(kind, dtype)

    def _shift(self, opcode: str, a: Val, b: Val) -> Val:
        fn, bits = self.fn, int(elem_of(a.type)[1:])
        by = literal_of(b)
        if by is not None and 0 <= by < bits:
            return fn.binary(opcode, a, b)
        inside = fn.icmp("ult", b, constant(b.type, bits))
        moved = fn.binary(opcode, a, fn.select(inside, b, constant(b.type, bits - 1)))
        return moved if opcode == "ashr" else fn.select(inside, moved, constant(a.type, 0))

    def _divide(self, kind: str, a: Val, b: Val, signed: bool) -> Val:
        """The processor traps at x / 0 and at the least number / -1: both are taken out of its way,
        the first giving 0 and the second wrapping.
        """
        fn = self.fn
        zero, one, minus = (constant(a.type, n) for n in (0, 1, -1))
        number = literal_of(b)
        plain = number is not None and number != 0 and (number != -1 or not signed)
        divisor, by_minus = b, None
        by_zero = fn.icmp("eq", b, zero)
        if not plain:
            bad = by_zero
            if signed:
                by_minus = fn.icmp("eq", b, minus)
                bad = fn.binary("or", bad, by_minus)
            divisor = fn.select(bad, one, b)
        quotient = fn.binary("sdiv" if signed else "udiv", a, divisor)
        rest = fn.binary("sub", a, fn.binary("mul", quotient, divisor))
        if signed and kind in ("floordiv", "mod"):
            opposite = fn.icmp("slt", fn.binary("xor", rest, divisor), zero)
            wrong = fn.binary("and", fn.icmp("ne", rest, zero), opposite)
            quotient = fn.select(wrong, fn.binary("sub", quotient, one), quotient)
            rest = fn.select(wrong, fn.binary("add", rest, divisor), rest)
        if kind in ("mod", "truncmod"):
            return rest
        if by_minus is not None:
            quotient = fn.select(by_minus, fn.binary("sub", zero, a), quotient)
        return quotient if plain else fn.select(by_zero, zero, quotient)

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
