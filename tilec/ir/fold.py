"""Arithmetic on constants exactly as the machine does it: what `Const` means, and ops on constants.

A constant's value is normal when it is what a register of its dtype holds: an int wrapped into
range, a float rounded to the format. `fold` gives the normal value of an op on normal values, or
None where that is not one certain number: machines disagree (a minimum with a nan, float8, whose
format depends on the target), or the result depends on how a library rounds (exp, division that is
not exact). Integers have a result for all operands (`docs/language.md`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from tilec.ir.core import Op, Value
from tilec.ir.intervals import dtype_range
from tilec.ir.ops import Binary, Bitcast, Cast, Compare, Const, Select, Unary
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType, ScalarType

Number = bool | int | float


@dataclass(frozen=True, slots=True)
class _Format:
    """A binary format: bits of significand (with the hidden one), least exponent, largest
    finite value.
    """

    precision: int
    least: int
    most: float


_FORMATS = {
    FLOAT16: _Format(11, -14, 65504.0),
    BFLOAT16: _Format(8, -126, math.ldexp(2 - 2**-7, 127)),
    FLOAT32: _Format(24, -126, math.ldexp(2 - 2**-23, 127)),
}


def round_float(x: float, dtype: DType) -> float | None:
    """`x` rounded to nearest even in `dtype`; None for a format this module does not fold."""
    if dtype == FLOAT64 or not math.isfinite(x) or x == 0:
        return x if dtype == FLOAT64 or dtype in _FORMATS else None
    form = _FORMATS.get(dtype)
    if form is None:
        return None
    if abs(x) > 2 * form.most:
        return math.copysign(math.inf, x)
    exponent = max(math.frexp(x)[1] - 1, form.least) - (form.precision - 1)
    rounded = math.ldexp(float(round(math.ldexp(x, -exponent))), exponent)
    return math.copysign(rounded if abs(rounded) <= form.most else math.inf, x)


def wrap(n: int, dtype: DType) -> int:
    """`n` modulo 2**bits, in the range of an integer dtype."""
    if dtype.kind == "bool":
        return n & 1
    n &= (1 << dtype.bits) - 1
    return n - (1 << dtype.bits) if dtype.kind == "int" and n >> (dtype.bits - 1) else n


def normal(value: Number, dtype: DType) -> Number | None:
    """A constant's normal value, None where it has none here. Bools are 0 and 1."""
    if dtype.is_float:
        return round_float(float(value), dtype)
    if isinstance(value, float):
        return None
    return wrap(int(value) if dtype.kind != "bool" else int(bool(value)), dtype)


def literal(value: Number, dtype: DType) -> Number:
    """A normal value as `Const` writes it."""
    return bool(value) if dtype.kind == "bool" else value


def _truncmod(a: int, b: int) -> int:
    return (-1 if a < 0 else 1) * (abs(a) % abs(b))


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "truncdiv": lambda a, b: (a - _truncmod(a, b)) // b if b else 0,
    "truncmod": lambda a, b: _truncmod(a, b) if b else 0,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
_FLOAT: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}
_WHOLE: dict[str, Callable[[float], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
}
_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def fold(o: Op, known: Callable[[Value], Number | None]) -> Number | None:
    """The normal value of `o`'s one result where `known` gives enough of its operands' values."""
    if not all(isinstance(v.type, ScalarType) for v in o.operands):
        return None
    match o:
        case Const(value=value, dtype=dtype):
            return normal(value, dtype)
        case Binary(kind=kind, lhs=lhs, rhs=rhs):
            a, b = known(lhs), known(rhs)
            return None if a is None or b is None else _binary(kind, a, b, lhs.dtype)
        case Compare(kind=kind, lhs=lhs, rhs=rhs):
            a, b = known(lhs), known(rhs)
            return None if a is None or b is None else int(_COMPARE[kind](a, b))
        case Unary(kind=kind, operand=operand):
            a = known(operand)
            return None if a is None else _unary(kind, a, operand.dtype)
        case Select(cond=cond, on_true=on_true, on_false=on_false):
            c = known(cond)
            return None if c is None else known(on_true if c else on_false)
        case Cast(operand=operand, dtype=dtype):
            a = known(operand)
            return None if a is None else _cast(a, dtype)
        case Bitcast(operand=operand, dtype=dtype):
            a = known(operand)
            if a is None or operand.dtype.is_float or dtype.is_float:
                return None
            return wrap(int(a), dtype)
        case _:
            return None


def _binary(kind: str, a: Number, b: Number, dtype: DType) -> Number | None:
    if dtype.is_int:
        return _integer_binary(kind, int(a), int(b), dtype)
    if kind in ("min", "max"):
        if a != a or b != b or a == b:
            return None
        return min(a, b) if kind == "min" else max(a, b)
    if kind == "div":
        return _exact_division(float(a), float(b), dtype)
    rule = _FLOAT.get(kind)
    # double has more than twice the digits of the narrower formats, so rounding twice is harmless
    # (S. Figueroa, "When is double rounding innocuous?", 1995)
    return None if rule is None else round_float(rule(float(a), float(b)), dtype)


def _integer_binary(kind: str, a: int, b: int, dtype: DType) -> int | None:
    if dtype.kind == "bool" and kind not in ("and", "or", "xor"):
        return None  # one bit has no arithmetic
    if kind in ("shl", "shr"):
        by = b if 0 <= b < dtype.bits else dtype.bits
        return wrap(a << by if kind == "shl" else a >> by, dtype)
    rule = _INTEGER.get(kind)
    got = None if rule is None else rule(a, b)
    return None if got is None else wrap(got, dtype)


def _exact_division(a: float, b: float, dtype: DType) -> float | None:
    if b == 0 or not math.isfinite(a) or not math.isfinite(b):
        return None
    got = round_float(a / b, dtype)
    if got is None or not math.isfinite(got) or Fraction(got) * Fraction(b) != Fraction(a):
        return None
    return got


def _unary(kind: str, a: Number, dtype: DType) -> Number | None:
    if dtype.kind == "bool" and kind != "not":
        return None
    match kind:
        case "neg":
            return -a if dtype.is_float else wrap(-int(a), dtype)
        case "abs":
            return abs(a) if dtype.is_float else wrap(abs(int(a)), dtype)
        case "not" if dtype.is_int:
            return wrap(~int(a), dtype)
        case "popcount" if dtype.is_int:
            return (int(a) & ((1 << dtype.bits) - 1)).bit_count()
        case "isnan":
            return int(a != a)
        case "isinf":
            return int(math.isinf(a))
        case "floor" | "ceil" | "trunc" if math.isfinite(a) and dtype.is_float:
            return math.copysign(float(_WHOLE[kind](a)), a)
        case _:
            return None


def _cast(a: Number, dtype: DType) -> Number | None:
    if dtype.kind == "bool":
        return int(a != 0)
    if dtype.is_float:
        if isinstance(a, int) and abs(a) > 1 << 53:
            return None
        return round_float(float(a), dtype)
    if isinstance(a, int):
        return wrap(a, dtype)
    lo, hi = dtype_range(dtype)
    if a != a:
        return 0
    return int(min(max(a, lo), hi)) if math.isinf(a) else min(max(math.trunc(a), lo), hi)
