"""Arithmetic on constants exactly as the machine does it: what `Const` means, and ops on constants.

A constant's value is normal when it is what a register of its dtype holds: an int wrapped into
range, a float rounded to the format. `fold` gives the normal value of an op on normal values, which
is what the op computes (`Op.evaluate`), or None where that is not one certain number: machines
disagree (a minimum with a nan, float8, whose format depends on the target), or the result depends
on how a library rounds (exp, division that is not exact). Integers have a result for all operands
(`docs/language.md`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from tilec.ir import semantics
from tilec.ir.core import Op, Value
from tilec.ir.ops import Binary, Bitcast, Cast, Compare, Const, Select, Unary
from tilec.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, DType, ScalarType

Number = bool | int | float

_FORMATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)  # the same on all machines
_BITWISE = ("and", "or", "xor")
_UNCERTAIN = ("div", "pow", "atan2")  # of integers: not defined
_ROUNDED_ONCE = ("add", "sub", "mul", "div", "min", "max")  # of floats


def normal(value: Number, dtype: DType) -> Number | None:
    """A constant's normal value, None where it has none here. Bools are 0 and 1."""
    if dtype.is_int:
        given = bool(value) if dtype == BOOL else value
        return None if isinstance(value, float) else semantics.wrap(int(given), dtype)
    if not _is_certain(dtype):
        return None
    with semantics.np.errstate(all="ignore"):
        return _number(semantics.literal(value, dtype), dtype)


def fold(o: Op, known: Callable[[Value], Number | None]) -> Number | None:
    """The normal value of `o`'s one result where `known` gives enough of its operands' values."""
    match o:
        case Const(value=value, dtype=dtype):
            return normal(value, dtype)
        case Select(cond=cond, on_true=on_true, on_false=on_false):
            c = known(cond) if isinstance(cond.type, ScalarType) else None
            return None if c is None else known(on_true if c else on_false)
        case Binary(kind=kind, lhs=lhs, rhs=rhs) if kind in semantics.INTEGERS and _is_integer(lhs):
            x, y = known(lhs), known(rhs)
            if x is None or y is None:
                return None
            if kind in ("floordiv", "mod") and y <= 0:
                return _evaluated(o, known)
            return semantics.wrap(semantics.INTEGERS[kind](int(x), int(y)), lhs.dtype)
        case Compare(kind=kind, lhs=lhs, rhs=rhs) if _is_integer(lhs):
            x, y = known(lhs), known(rhs)
            return (
                None if x is None or y is None else int(semantics.COMPARISONS[kind](int(x), int(y)))
            )
        case Cast(operand=source) if _is_integer(source) and _is_integer(o.result):
            x = known(source)
            return None if x is None else semantics.wrap(int(x), o.dtype)
        case Binary() | Compare() | Unary() | Cast() | Bitcast():
            return _evaluated(o, known)
    return None


def _is_integer(v: Value) -> bool:
    return isinstance(v.type, ScalarType) and v.dtype.kind in ("int", "uint")


def _evaluated(o: Op, known: Callable[[Value], Number | None]) -> Number | None:
    operands, found = o.operands, list[Number]()
    for v in operands:
        value = known(v) if isinstance(v.type, ScalarType) else None
        if value is None:
            return None
        found.append(value)
    if not _folds(o, found):
        return None
    with semantics.np.errstate(all="ignore"):
        arrays = (semantics.array(x, v.dtype) for x, v in zip(found, operands))
        got = o.evaluate(**dict(zip(o.operand_fields, arrays)))
        (t,) = o.infer()
        assert isinstance(t, ScalarType)
        result = _number(got, t.dtype)
    if isinstance(o, Binary) and o.kind == "div" and not _is_exact(result, *found):
        return None
    return result


def _is_certain(dtype: DType) -> bool:
    return dtype.is_int or dtype in _FORMATS


def _number(x: semantics.Array, dtype: DType) -> Number:
    return float(x) if dtype.is_float else int(x)


def _folds(o: Op, values: Sequence[Number]) -> bool:
    """Whether all machines compute one number of `values`."""
    dtypes = [v.dtype for v in o.operands]
    if not all(map(_is_certain, dtypes)):
        return False
    dtype = dtypes[0]
    is_bool = dtype.kind == "bool"  # one bit has no arithmetic
    match o:
        case Binary(kind="min" | "max") if dtype.is_float:
            a, b = values
            return a == a and b == b and a != b
        case Binary(kind=kind) if dtype.is_float:
            return kind in _ROUNDED_ONCE
        case Binary(kind=kind):
            return kind in _BITWISE if is_bool else kind not in _UNCERTAIN
        case Unary(kind=kind) if dtype.is_float:
            return kind in semantics.EXACT
        case Unary(kind=kind):
            return kind == "not" or (not is_bool and kind in ("neg", "abs", *semantics.OF_BITS))
        case Cast() | Bitcast():
            nan = any(v != v for v in values)
            return _is_certain(o.dtype) and not (nan and isinstance(o, Bitcast))
    return True


def _is_exact(quotient: Number, a: Number, b: Number) -> bool:
    """Whether a division has no remainder: a library's may round otherwise."""
    if b == 0 or not all(map(math.isfinite, (quotient, a, b))):
        return False
    return Fraction(quotient) * Fraction(b) == Fraction(a)
