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

    def min(self, a: Any, b: Any) -> Any:
        return arithmetic("min", a, b)

    def max(self, a: Any, b: Any) -> Any:
        return arithmetic("max", a, b)

    def ceildiv(self, a: Any, b: Any) -> Any:
        if not isinstance(a, Number) and not isinstance(b, Number):
            return -(-a // b)
        return a // b + (arithmetic("mod", a, b) != 0)

    cdiv = ceildiv

    def floordiv(self, a: Any, b: Any) -> Any:
        return a // b

    def floormod(self, a: Any, b: Any) -> Any:
        return a % b

    def truncdiv(self, a: Any, b: Any) -> Any:
        x, y = pair(a, b)
        with np.errstate(all="ignore"):
            down, rest = np.floor_divide(x.value, y.value), np.remainder(x.value, y.value)
        exact = x.exact() and y.exact()
        error = np.zeros(()) if exact else np.full(down.shape, np.inf)
        short = (rest != 0) & ((x.value < 0) != (y.value < 0))
        return Number(down + short.astype(down.dtype), x.dtype, error, x.fnuz)

    def truncmod(self, a: Any, b: Any) -> Any:
        return self.if_then_else(b == 0, 0 * a, a - b * self.truncdiv(a, b))

    def bitwise_and(self, a: Any, b: Any) -> Any:
        return arithmetic("and", a, b)

    def bitwise_or(self, a: Any, b: Any) -> Any:
        return arithmetic("or", a, b)

    def bitwise_xor(self, a: Any, b: Any) -> Any:
        return arithmetic("xor", a, b)

    def shift_left(self, a: Any, b: Any) -> Any:
        return arithmetic("shl", a, b)

    def shift_right(self, a: Any, b: Any) -> Any:
        return arithmetic("shr", a, b)

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

    # --- of integers ---

    def bitwise_not(self, a: Number) -> Number:
        return Number(~a.value, a.dtype, a.error, a.fnuz)

    def popcount(self, x: Number) -> Number:
        return _of_bits(x, lambda b: b.sum(-1))

    def clz(self, x: Number) -> Number:
        return _of_bits(x, lambda b: np.where(b.any(-1), b.argmax(-1), b.shape[-1]))

    # --- of floats ---

    def isnan(self, x: Number) -> Number:
        return Number(np.isnan(x.value), BOOL, np.where(np.isinf(x.error), np.inf, 0.0), x.fnuz)

    def isinf(self, x: Number) -> Number:
        return Number(np.isinf(x.value), BOOL, np.where(np.isinf(x.error), np.inf, 0.0), x.fnuz)

    def abs(self, x: Number) -> Number:
        return Number(np.abs(x.value), x.dtype, x.error, x.fnuz)

    def floor(self, x: Number) -> Number:
        return _whole(np.floor, x)

    def ceil(self, x: Number) -> Number:
        return _whole(np.ceil, x)

    def trunc(self, x: Number) -> Number:
        return _whole(np.trunc, x)

    def round(self, x: Number) -> Number:
        return _whole(np.rint, x)

    def exp(self, x: Number) -> Number:
        return function_of(x, np.exp, lambda v, e: np.exp(v + e), 4)

    def exp2(self, x: Number) -> Number:
        return function_of(x, np.exp2, lambda v, e: np.exp2(v + e), 4)

    def exp10(self, x: Number) -> Number:
        return function_of(x, lambda v: 10.0**v, lambda v, e: 10.0 ** (v + e) * 2.31, 4)

    def log(self, x: Number) -> Number:
        return function_of(x, np.log, _inverse, 4)

    def log2(self, x: Number) -> Number:
        return function_of(x, np.log2, lambda v, e: _inverse(v, e) / math.log(2), 4)

    def log10(self, x: Number) -> Number:
        return function_of(x, np.log10, _inverse, 4)

    def log1p(self, x: Number) -> Number:
        return function_of(x, np.log1p, lambda v, e: _inverse(v + 1, e), 4)

    def sqrt(self, x: Number) -> Number:
        return function_of(x, np.sqrt, lambda v, e: 0.5 * np.sqrt(_inverse(v, e)), 4)

    def rsqrt(self, x: Number) -> Number:
        return function_of(x, lambda v: 1 / np.sqrt(v), lambda v, e: _inverse(v, e) ** 1.5, 4)

    def tanh(self, x: Number) -> Number:
        return function_of(x, np.tanh, _one, 4)

    def sigmoid(self, x: Number) -> Number:
        return function_of(x, lambda v: 1 / (1 + np.exp(-v)), _one, 8)

    def erf(self, x: Number) -> Number:
        return function_of(
            x, np.vectorize(math.erf, otypes=[np.float64]), lambda v, e: _one(v, e) * 1.13, 4
        )

    def sin(self, x: Number) -> Number:
        return function_of(x, np.sin, _one, 8)

    def cos(self, x: Number) -> Number:
        return function_of(x, np.cos, _one, 8)

    def tan(self, x: Number) -> Number:
        def slope(v: Array, e: Array) -> Array:
            return _inverse(np.abs(np.cos(v)), e) ** 2

        return function_of(x, np.tan, slope, 8)


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


def _of_bits(x: Number, function: Callable[[Array], Array]) -> Number:
    """A function of an integer's bits, the highest one first."""
    item = x.value.dtype.itemsize
    raw = np.ascontiguousarray(x.value).reshape(*x.value.shape, 1).view(np.uint8)
    bits = np.unpackbits(raw.reshape(*x.value.shape, item)[..., ::-1], axis=-1)
    error = np.where(x.errors() > 0, np.inf, 0.0)
    return Number(function(bits), x.dtype, error, x.fnuz)


def _whole(f: Callable[..., Any], x: Number) -> Number:
    low, high = f(x.value - x.error), f(x.value + x.error)
    return Number(f(x.value), x.dtype, np.where(low == high, 0.0, x.error + 1), x.fnuz)
