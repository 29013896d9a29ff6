"""The words about single numbers, in NumPy, by name: `WORDS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tilec.language as T
from tilec.fuzz.numbers import Array, Number, arithmetic, function_of, index, pair, select
from tilec.ir.semantics import OF_BITS, function, unary
from tilec.ir.types import BOOL

Slope = Callable[[Array, Array], Array]


def logical(reduced: Callable[..., Any], *conditions: Any) -> Any:
    """Conditions taken together: uncertain where one of them is. All are looked at, as nothing that
    a condition does can be seen."""
    if not any(isinstance(c, Number) for c in conditions):
        return bool(reduced([bool(c) for c in conditions]))
    made = [(c if isinstance(c, Number) else index(int(c))).to(BOOL) for c in conditions]
    values = np.broadcast_arrays(*(m.value for m in made))
    return Number(reduced(values, axis=0), BOOL, sum(m.error for m in made))


def opposite(condition: Any) -> Any:
    return ~condition.to(BOOL) if isinstance(condition, Number) else not condition


def ceildiv(a: Any, b: Any) -> Any:
    if not isinstance(a, Number) and not isinstance(b, Number):
        return -(-a // b)
    return a // b + (arithmetic("mod", a, b) != 0)


def power(a: Any, b: Any) -> Number:
    """For a > 0."""

    def moved(x: Array, y: Array, ex: Array, ey: Array) -> Array:
        low, high = np.maximum(x - ex, 0.0), x + ex
        ends = [base**exponent for base in (low, high) for exponent in (y - ey, y + ey)]
        steep = np.abs(y) / low * ex + np.abs(np.log(low)) * ey
        return np.where(low > 0, np.maximum.reduce(ends) * (steep + ex + ey), np.inf)

    return _of_two(np.power, moved, a, b)


def atan2(a: Any, b: Any) -> Number:
    def moved(y: Array, x: Array, ey: Array, ex: Array) -> Array:
        room = np.hypot(x, y) - ex - ey
        cut = (x < ex) & (np.abs(y) <= ey)  # on either side of it the angle is +-pi
        return np.where((room > 0) & ~cut, (ex + ey) / np.maximum(room, 1e-300), np.inf)

    made = _of_two(np.arctan2, moved, a, b)
    y, x = pair(a, b)
    unsigned = (y.value == 0) & (x.value <= 0)  # of a zero, whose sign may be either
    return Number(made.value, made.dtype, np.where(unsigned, np.inf, made.error))


def _of_two(f: Callable[..., Any], moved: Callable[..., Array], a: Any, b: Any) -> Number:
    """A function of two floats, whose result operands that are off by their errors move by at most
    `moved(x, y, ex, ey)`."""
    x, y = pair(a, b)
    with np.errstate(all="ignore"):
        error = np.where(x.error + y.error > 0, moved(x.value, y.value, x.error, y.error), 0.0)
        made = function_of(Number(f(x.value, y.value), x.dtype), lambda v: v, _one, 8)
    return Number(made.value, made.dtype, made.error + error)


def _one(v: Array, e: Array) -> Array:
    return np.ones_like(v)


def _inverse(v: Array, e: Array) -> Array:
    """1 / v where v is smallest; infinite where it may not be positive."""
    return np.where(v > e, 1 / np.maximum(v - e, 1e-300), np.inf)


# --- words that are a kind of op ---


def _tested(kind: str, x: Number) -> Number:
    return Number(function(kind)(x.value), BOOL, np.where(np.isinf(x.error), np.inf, 0.0))


def _counted(kind: str, x: Number) -> Number:
    return Number(unary(kind, x.value, x.dtype), x.dtype, np.where(x.error > 0, np.inf, 0.0))


def _whole(kind: str, x: Number) -> Number:
    low, made, high = (function(kind)(v) for v in (x.value - x.error, x.value, x.value + x.error))
    return Number(made, x.dtype, np.where(low == high, 0.0, x.error + 1))


def _smooth(kind: str, slope: Slope, ulps: float, x: Number) -> Number:
    return function_of(x, function(kind), slope, ulps)


_SLOPES: dict[str, tuple[Slope, float]] = {
    "exp": (lambda v, e: np.exp(v + e), 4),
    "exp2": (lambda v, e: np.exp2(v + e), 4),
    "exp10": (lambda v, e: 10.0 ** (v + e) * 2.31, 4),
    "log": (_inverse, 4),
    "log2": (lambda v, e: _inverse(v, e) / math.log(2), 4),
    "log10": (_inverse, 4),
    "log1p": (lambda v, e: _inverse(v + 1, e), 4),
    "sqrt": (lambda v, e: 0.5 * np.sqrt(_inverse(v, e)), 4),
    "rsqrt": (lambda v, e: _inverse(v, e) ** 1.5, 4),
    "tanh": (_one, 4),
    "sigmoid": (_one, 8),
    "erf": (lambda v, e: _one(v, e) * 1.13, 4),
    "sin": (_one, 8),
    "cos": (_one, 8),
    "tan": (lambda v, e: _inverse(np.abs(np.cos(v)), e) ** 2, 8),
}
"""Of each function how steep it is at most within an error of a number, and how many roundings a
target's result may be off."""

_TWO = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "shift_left": "shl",
        "shift_right": "shr", "min": "min", "max": "max", "truncdiv": "truncdiv",
        "truncmod": "truncmod", "floordiv": "floordiv", "floormod": "mod"}  # fmt: skip

WORDS: dict[str, Callable[..., Any]] = {
    "infinity": T.infinity,
    "max_value": T.max_value,
    "min_value": T.min_value,
    "if_then_else": select,
    "Select": select,
    "both": partial(logical, np.logical_and.reduce),
    "either": partial(logical, np.logical_or.reduce),
    "opposite": opposite,
    "ceildiv": ceildiv,
    "cdiv": ceildiv,
    "fma": lambda a, b, c: arithmetic("add", arithmetic("mul", a, b), c),
    "pow": power,
    "atan2": atan2,
    "abs": np.abs,
    "bitwise_not": np.invert,
    **{kind: partial(_tested, kind) for kind in ("isnan", "isinf")},
    **{kind: partial(_counted, kind) for kind in OF_BITS},
    **{kind: partial(_whole, kind) for kind in ("floor", "ceil", "trunc", "round")},
    **{word: partial(arithmetic, kind) for word, kind in _TWO.items()},
    **{kind: partial(_smooth, kind, *how) for kind, how in _SLOPES.items()},
}
