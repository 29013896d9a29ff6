"""Algebraic identities of scalar ops, used by `simplify`.

`reduce(o, env)` gives an existing value that `o` always equals, or a cheaper op to put in its
place, or None. A rule holds for every operand of its dtype, bit for bit: integers wrap, floats
keep signed zeros, infinities and nans (a nan may lose its payload). `x + 0.0`, `x * 0.0` and
regrouping are no identities of floats and do not appear.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilec.ir.core import Op, Value
from tilec.ir.fold import Number, fold
from tilec.ir.ops import MIRRORED, NEGATED, Binary, Cast, Compare, Select, Unary
from tilec.ir.semantics import wrap
from tilec.ir.types import DType, ScalarType

COMMUTATIVE = frozenset({"add", "mul", "and", "or", "xor", "min", "max"})
_FLOAT_DIGITS = {
    **{"f16": (11, 5), "bf16": (8, 8), "f32": (24, 8), "f64": (53, 11)},
    **{"e4m3": (4, 4), "e5m2": (3, 5)},
}


@dataclass(frozen=True)
class Env:
    """What a rule may ask and make: the constant a value is, the op that made it, a new
    constant.
    """

    known: Callable[[Value], Number | None]
    made_by: Callable[[Value], Op | None]
    constant: Callable[[Number, DType], Value]


def reduce(o: Op, env: Env) -> Value | Op | None:
    """A value equal to the result of `o`, a simpler op, or None."""
    if not o.results or not isinstance(o.results[0].type, ScalarType):
        return None
    value = fold(o, env.known)
    if value is not None:
        return env.constant(value, o.results[0].type.dtype)
    match o:
        case Binary() if o.lhs.dtype.is_float:
            return _float_binary(o, env)
        case Binary():
            return _integer_binary(o, env)
        case Compare():
            return _compare(o, env)
        case Select():
            return _select(o, env)
        case Unary(kind="neg" | "not"):
            return _involution(o, env)
        case Cast():
            return _cast(o, env)
        case _:
            return None


def _float_binary(o: Binary, env: Env) -> Value | Op | None:
    a, b = env.known(o.lhs), env.known(o.rhs)
    match o.kind:
        case "mul" if b == 1:
            return o.lhs
        case "mul" if a == 1:
            return o.rhs
        case "div" if b == 1:
            return o.lhs
        case "sub" if b == 0 and math.copysign(1, b) > 0:
            return o.lhs
        case "add" if b == 0 and math.copysign(1, b) < 0:
            return o.lhs
        case "add" if a == 0 and math.copysign(1, a) < 0:
            return o.rhs
        case "min" | "max" if o.lhs is o.rhs:
            return o.lhs
        case _:
            return None


def _integer_binary(o: Binary, env: Env) -> Value | Op | None:
    if o.kind in COMMUTATIVE and env.known(o.lhs) is not None and env.known(o.rhs) is None:
        o = replace(o, lhs=o.rhs, rhs=o.lhs)
        return _with_constant(o, env) or o
    if o.lhs is o.rhs:
        match o.kind:
            case "sub" | "xor":
                return env.constant(0, o.lhs.dtype)
            case "and" | "or" | "min" | "max":
                return o.lhs
    return _with_constant(o, env)


def _with_constant(o: Binary, env: Env) -> Value | Op | None:
    """Rules for `x kind b` with `b` a constant."""
    b = env.known(o.rhs)
    if b is None:
        return None
    ones = wrap(-1, o.lhs.dtype)
    match o.kind:
        case "add" | "sub" | "or" | "xor" | "shl" | "shr" if b == 0:
            return o.lhs
        case "mul" | "floordiv" | "truncdiv" if b == 1:
            return o.lhs
        case "mul" | "and" if b == 0:
            return env.constant(0, o.lhs.dtype)
        case "mod" | "truncmod" if b == 1:
            return env.constant(0, o.lhs.dtype)
        case "and" if b == ones:
            return o.lhs
        case "or" if b == ones:
            return env.constant(ones, o.lhs.dtype)
    return _regrouped(o, int(b), env)


def _regrouped(o: Binary, b: int, env: Env) -> Op | None:
    """`(x + a) + b` as `x + (a + b)`, and likewise for mul and the bitwise ops: exact, as they
    wrap.
    """
    inner = env.made_by(o.lhs)
    if not isinstance(inner, Binary):
        return None
    a = env.known(inner.rhs)
    if a is None:
        return None
    dtype = o.lhs.dtype
    match inner.kind, o.kind:
        case "add" | "sub", "add" | "sub":
            total = (a if inner.kind == "add" else -a) + (b if o.kind == "add" else -b)
            return replace(
                o, kind="add", lhs=inner.lhs, rhs=env.constant(wrap(int(total), dtype), dtype)
            )
        case ("mul", "mul"):
            both = wrap(int(a) * b, dtype)
        case ("and", "and"):
            both = int(a) & b
        case ("or", "or"):
            both = int(a) | b
        case ("xor", "xor"):
            both = int(a) ^ b
        case _:
            return None
    return replace(o, lhs=inner.lhs, rhs=env.constant(both, dtype))


def _compare(o: Compare, env: Env) -> Value | Op | None:
    if o.lhs is o.rhs and not o.lhs.dtype.is_float:
        return env.constant(int(o.kind in ("eq", "le", "ge")), o.results[0].dtype)
    if env.known(o.lhs) is not None and env.known(o.rhs) is None:
        return replace(o, kind=MIRRORED[o.kind], lhs=o.rhs, rhs=o.lhs)
    return None


def _select(o: Select, env: Env) -> Value | Op | None:
    c = env.known(o.cond)
    if c is not None:
        return o.on_true if c else o.on_false
    if o.on_true is o.on_false:
        return o.on_true
    if o.on_true.dtype.kind == "bool":
        match env.known(o.on_true), env.known(o.on_false):
            case (1, 0):
                return o.cond
            case (0, 1):
                return Unary("not", o.cond, results=o.results, loc=o.loc)
    inner = env.made_by(o.cond)
    if isinstance(inner, Unary) and inner.kind == "not":
        return replace(o, cond=inner.operand, on_true=o.on_false, on_false=o.on_true)
    return None


def _involution(o: Unary, env: Env) -> Value | Op | None:
    inner = env.made_by(o.operand)
    if isinstance(inner, Unary) and inner.kind == o.kind:
        return inner.operand
    if o.kind == "not" and isinstance(inner, Compare):
        # a float `lt` and `ge` are both false of a nan; `eq` and `ne` are opposites of one another
        if not inner.lhs.dtype.is_float or inner.kind in ("eq", "ne"):
            return replace(inner, kind=NEGATED[inner.kind], results=o.results, loc=o.loc)
    return None


def _cast(o: Cast, env: Env) -> Value | Op | None:
    source = o.operand.dtype
    if source == o.dtype:
        return o.operand
    inner = env.made_by(o.operand)
    if isinstance(inner, Cast) and holds(source, inner.operand.dtype):
        first = inner.operand.dtype
        if first == o.dtype:
            return inner.operand
        if holds(o.dtype, source):
            return replace(o, operand=inner.operand)
    return None


def digits_of(dtype: DType) -> int:
    """How many bits its numbers have at most, from the first that is set to the last."""
    return _FLOAT_DIGITS.get(dtype.short, (dtype.bits, 0))[0]


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is one of `wide`."""
    if wide == narrow:
        return True
    if wide.is_float:
        digits, exponent = _FLOAT_DIGITS.get(wide.short, (0, 0))
        if narrow.is_float:
            digits2, exponent2 = _FLOAT_DIGITS.get(narrow.short, (99, 99))
            return digits >= digits2 and exponent >= exponent2
        return digits >= narrow.bits
    if narrow.is_float or wide.kind == "bool":
        return False
    if narrow.kind == "bool":
        return True
    if wide.kind == "uint":
        return narrow.kind == "uint" and wide.bits >= narrow.bits
    return wide.bits >= narrow.bits + (narrow.kind == "uint")
