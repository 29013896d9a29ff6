"""The words about single numbers, in NumPy: one method a word."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tilec.language as T
from tilec.builtins.annotations import dtype_of
from tilec.fuzz.buffers import Place
from tilec.fuzz.numbers import Array, Number, arithmetic, function_of, index, pair, select
from tilec.ir.semantics import function, unary
from tilec.ir.types import BOOL, FLOAT32, INT32

Slope = Callable[[Array, Array], Array]


class Maths:
    """Half of `meaning.Words`."""

    infinity = staticmethod(T.infinity)
    max_value = staticmethod(T.max_value)
    min_value = staticmethod(T.min_value)

    def __init__(self, place: Place) -> None:
        self._place = place

    # --- choices and conversions ---

    def if_then_else(self, cond: Any, on_true: Any, on_false: Any) -> Any:
        return select(cond, on_true, on_false)

    Select = if_then_else

    def both(self, *conditions: Any) -> Any:
        """`a and b`: both are looked at, as nothing a condition does can be seen."""
        return _logical(np.logical_and, conditions)

    def either(self, *conditions: Any) -> Any:
        return _logical(np.logical_or, conditions)

    def opposite(self, condition: Any) -> Any:
        if not isinstance(condition, Number):
            return not condition
        truth = condition.to(BOOL)
        return Number(~truth.value, BOOL, truth.error, truth.fnuz)

    def cast(self, value: Any, dtype: Any) -> Number:
        if isinstance(value, Number):
            return value.to(dtype_of(dtype))
        default = FLOAT32 if isinstance(value, float) else INT32
        literal = BOOL if isinstance(value, bool) else default
        return Number(value, literal, fnuz=self._place.fnuz).to(dtype_of(dtype))

    def Cast(self, dtype: Any, value: Any) -> Number:
        return self.cast(value, dtype)

    # --- of two numbers and more ---

    def fma(self, a: Any, b: Any, c: Any) -> Number:
        return arithmetic("add", arithmetic("mul", a, b), c)

    def ceildiv(self, a: Any, b: Any) -> Any:
        if not isinstance(a, Number) and not isinstance(b, Number):
            return -(-a // b)
        return a // b + (arithmetic("mod", a, b) != 0)

    cdiv = ceildiv

    def floordiv(self, a: Any, b: Any) -> Any:
        return a // b

    def floormod(self, a: Any, b: Any) -> Any:
        return a % b

    def pow(self, a: Any, b: Any) -> Number:
        """For a > 0."""

        def moved(x: Array, y: Array, ex: Array, ey: Array) -> Array:
            low, high = np.maximum(x - ex, 0.0), x + ex
            most = np.maximum(low ** (y - ey), high ** (y + ey))
            most = np.maximum(most, np.maximum(low ** (y + ey), high ** (y - ey)))
            steep = np.abs(y) / low * ex + np.abs(np.log(low)) * ey
            return np.where(low > 0, most * (steep + ex + ey), np.inf)

        return _of_two(np.power, moved, a, b)

    def atan2(self, a: Any, b: Any) -> Number:
        def moved(y: Array, x: Array, ey: Array, ex: Array) -> Array:
            room = np.hypot(x, y) - ex - ey
            cut = (x < ex) & (np.abs(y) <= ey)  # on either side of it the angle is +-pi
            return np.where((room > 0) & ~cut, (ex + ey) / np.maximum(room, 1e-300), np.inf)

        made = _of_two(np.arctan2, moved, a, b)
        y, x = pair(a, b)
        unsigned = (y.value == 0) & (x.value <= 0)  # of a zero, whose sign may be either
        made.error = np.where(unsigned, np.inf, made.error)
        return made

    # --- of one number ---

    def bitwise_not(self, a: Number) -> Number:
        return Number(~a.value, a.dtype, a.error, a.fnuz)

    def abs(self, x: Number) -> Number:
        return Number(np.abs(x.value), x.dtype, x.error, x.fnuz)


def _one(v: Array, e: Array) -> Array:
    return np.ones_like(v)


def _inverse(v: Array, e: Array) -> Array:
    """1 / v where v is smallest; infinite where it may not be positive."""
    return np.where(v > e, 1 / np.maximum(v - e, 1e-300), np.inf)


def _logical(function: Callable[..., Any], conditions: tuple[Any, ...]) -> Any:
    """Conditions taken together: uncertain where one of them is."""
    if not any(isinstance(c, Number) for c in conditions):
        return bool(function.reduce([bool(c) for c in conditions]))  # type: ignore[attr-defined]
    made = [c if isinstance(c, Number) else index(int(c)) for c in conditions]
    value, error = made[0].to(BOOL).value, made[0].to(BOOL).error
    for m in made[1:]:
        value, error = function(value, m.to(BOOL).value), error + m.to(BOOL).error
    return Number(value, BOOL, error, any(m.fnuz for m in made))


def _of_two(function: Callable[..., Any], moved: Callable[..., Array], a: Any, b: Any) -> Number:
    """A function of two floats, whose result operands that are off by their errors move by at most
    `moved(x, y, ex, ey)`."""
    x, y = pair(a, b)
    with np.errstate(all="ignore"):
        error = np.where(x.error + y.error > 0, moved(x.value, y.value, x.error, y.error), 0.0)
        wide = Number(function(x.value, y.value), x.dtype, fnuz=x.fnuz)
        made = function_of(wide, lambda v: v, _one, 8)
        made.error = made.error + error
    return made


def _whole(f: Callable[..., Any], x: Number) -> Number:
    low, high = f(x.value - x.error), f(x.value + x.error)
    return Number(f(x.value), x.dtype, np.where(low == high, 0.0, x.error + 1), x.fnuz)


# --- words that are a kind of op ---


def _tested(kind: str) -> Callable[[Maths, Number], Number]:
    def test(self: Maths, x: Number) -> Number:
        return Number(function(kind)(x.value), BOOL, _unclear(np.isinf(x.error)), x.fnuz)

    return test


def _counted(kind: str) -> Callable[[Maths, Number], Number]:
    def count(self: Maths, x: Number) -> Number:
        return Number(unary(kind, x.value, x.dtype), x.dtype, _unclear(x.errors() > 0), x.fnuz)

    return count


def _unclear(where: Array) -> Array:
    return np.where(where, np.inf, 0.0)


def _combined(kind: str) -> Callable[[Maths, Any, Any], Number]:
    return lambda self, a, b: arithmetic(kind, a, b)


def _made_whole(kind: str) -> Callable[[Maths, Number], Number]:
    return lambda self, x: _whole(function(kind), x)


def _rounded(kind: str, slope: Slope, ulps: float) -> Callable[[Maths, Number], Number]:
    return lambda self, x: function_of(x, function(kind), slope, ulps)


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
        "truncmod": "truncmod"}  # fmt: skip

_WORDS: dict[str, Callable[..., Number]] = {
    **{kind: _tested(kind) for kind in ("isnan", "isinf")},
    **{kind: _counted(kind) for kind in ("popcount", "clz")},
    **{kind: _made_whole(kind) for kind in ("floor", "ceil", "trunc", "round")},
    **{word: _combined(kind) for word, kind in _TWO.items()},
    **{kind: _rounded(kind, *how) for kind, how in _SLOPES.items()},
}
for _word, _meaning in _WORDS.items():
    setattr(Maths, _word, _meaning)
