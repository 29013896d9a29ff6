"""Numbers as kernels compute them, with a bound of the error that a target may make.

A `Number` holds an array of a dtype: integers and bools in NumPy's type of that dtype, floats in
float64. `error` bounds how far a target's result may be from it. Where it is 0 the result is fixed
to the bit: whatever is only moved or converted, and sums and products that the dtype holds without
rounding, in whatever order they are made. This is running error analysis (Higham, Accuracy and
Stability of Numerical Algorithms, 3.3). The error is infinite where a result hangs on how others
were rounded, and where it leaves the dtype's range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tilec.frontend.arithmetic import common_dtype
from tilec.ir.semantics import SATURATING, binary, cast, function, numpy_dtype
from tilec.ir.types import BOOL, FLOAT32, FLOAT64, INT32, TFLOAT32, DType

Array = np.ndarray[Any, Any]

MANTISSA = {"f64": 53, "f32": 24, "tf32": 11, "f16": 11, "bf16": 8, "e4m3": 4, "e5m2": 3}
_NO_ERROR = np.zeros(())
_finfo: Any = ml_dtypes.finfo


class Unclear(Exception):
    """The program's meaning hangs on how its numbers are rounded."""


def held(dtype: DType) -> np.dtype[Any]:
    """NumPy's type in which a Number of `dtype` holds its values."""
    made: np.dtype[Any] = np.dtype(np.float64) if dtype.is_float else numpy_dtype(dtype)
    return made


def rounded(value: Array, dtype: DType, fnuz: bool = False) -> Array:
    """float64 values to nearest even in `dtype`; float8 saturates."""
    kept = FLOAT32 if dtype is TFLOAT32 else dtype  # rounded when it is used, see `Number.to`
    with np.errstate(all="ignore"):
        made: Array = cast(value, FLOAT64, kept, fnuz).astype(np.float64)
    return made


def largest(dtype: DType, fnuz: bool = False) -> float:
    return float(_finfo(numpy_dtype(dtype, fnuz)).max)


def unit(dtype: DType) -> float:
    """Relative error of one rounding to a float dtype."""
    return float(2.0 ** -MANTISSA[dtype.short])


def smallest(dtype: DType) -> float:
    """The smallest normal number: what targets do below it may differ."""
    return float(_finfo(numpy_dtype(dtype)).tiny)


_ARITHMETIC = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "floor_divide": "floordiv",
    "remainder": "mod", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
    "left_shift": "shl", "right_shift": "shr",
}  # fmt: skip
_COMPARISONS = {
    "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq",
    "not_equal": "ne",
}  # fmt: skip


class Number(NDArrayOperatorsMixin):
    """`value` with `error`, of `dtype`; see the module's opening. Arithmetic follows the rules of
    `tilec.language`."""

    __slots__ = ("value", "error", "dtype")

    def __init__(self, value: Any, dtype: DType, error: Any = _NO_ERROR) -> None:
        self.value = np.asarray(value, held(dtype))
        self.error = np.asarray(error, np.float64)
        unknown = np.isnan(self.error)  # of infinity times nothing
        if unknown.any():
            self.error = np.where(unknown, np.inf, self.error)
        self.dtype = dtype

    def errors(self) -> Array:
        """The error of every element."""
        return np.broadcast_to(self.error, self.value.shape)

    def exact(self) -> bool:
        return not self.error.any()

    def reshape(self, shape: tuple[int, ...]) -> Number:
        return Number(self.value.reshape(shape), self.dtype, self.errors().reshape(shape))

    def to(self, dtype: DType, fnuz: bool = False) -> Number:
        """`T.cast`: to nearest even; float to int truncates and saturates. `fnuz`: float8 is
        AMD's."""
        if dtype is self.dtype:
            return self
        if dtype is BOOL:
            unclear = (self.error > 0) & (np.abs(self.value) <= self.error)
            return Number(self.value != 0, BOOL, np.where(unclear, np.inf, 0.0))
        if not dtype.is_float:
            return self._to_int(dtype)
        wide = self.value.astype(np.float64)
        made = rounded(wide, dtype, fnuz)
        if self.exact():
            error = np.where(np.isnan(wide) & (dtype in SATURATING), np.inf, 0.0)
            if dtype is TFLOAT32:  # rounded when it is stored, or when it is used, or never
                error = np.where(inexact_tf32(made), _half_step(wide, dtype), error)
            if dtype.bits < 32:  # some convert by way of float32
                twice = rounded(wide, FLOAT32) != wide
                error = np.where(twice & (made != wide), 2 * _half_step(wide, dtype), error)
            return Number(made, dtype, error)
        slack = self.error + np.where(self.error > 0, _half_step(wide, dtype), 0.0)
        beyond = np.abs(wide) + slack >= largest(dtype, fnuz)
        return Number(made, dtype, np.where(beyond, np.inf, slack))

    def _to_int(self, dtype: DType) -> Number:
        if not self.dtype.is_float:
            return Number(cast(self.value, self.dtype, dtype), dtype, self.error)
        low, made, high = (
            cast(x, FLOAT64, dtype)
            for x in (self.value - self.error, self.value, self.value + self.error)
        )
        steady = (low == high) & ~np.isnan(self.value)
        return Number(made, dtype, np.where(steady, 0.0, self.error + 1))

    def __bool__(self) -> bool:
        if not self.exact():
            raise Unclear("a branch hangs on a number that is rounded")
        return bool(self.value)

    def __index__(self) -> int:
        if not self.exact():
            raise Unclear("an index hangs on a number that is rounded")
        return int(self.value)

    __int__ = __index__

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **out: Any) -> Any:
        """What an operator of Python does, by NumPy's name of it."""
        name = ufunc.__name__
        if name in _COMPARISONS:
            return compare(_COMPARISONS[name], *operands)
        if name in ("negative", "invert", "absolute"):
            return Number(ufunc(self.value), self.dtype, self.error)
        return arithmetic(_ARITHMETIC[name], *operands) if name in _ARITHMETIC else NotImplemented


def inexact_tf32(value: Array) -> Array:
    """Where float32 values have more bits than TF32 keeps."""
    made: Array = value.astype(np.float32).view(np.uint32) & 0x1FFF != 0
    return made


def _half_step(value: Array, dtype: DType) -> Array:
    """What rounding to `dtype` may add to an error."""
    made: Array = np.abs(value) * unit(dtype) + smallest(dtype)
    return made


def index(value: Any) -> Number:
    """An index or a size."""
    return Number(value, INT32)


def pair(a: Any, b: Any) -> tuple[Number, Number]:
    """Two operands in the dtype that the language computes in: a literal takes the other's."""
    if not isinstance(a, Number):
        a = _literal(a, b) if isinstance(b, Number) else _literal(a, None)
    if not isinstance(b, Number):
        b = _literal(b, a)
    dtype = common(a.dtype, b.dtype)
    return a.to(dtype), b.to(dtype)


def _literal(value: Any, other: Number | None) -> Number:
    if other is None or (isinstance(value, float) and not other.dtype.is_float):
        dtype = BOOL if isinstance(value, bool) else FLOAT32 if isinstance(value, float) else INT32
    elif other.dtype is BOOL and not isinstance(value, bool):
        dtype = INT32
    else:
        dtype = other.dtype
    return literal(value, dtype)


def literal(value: Any, dtype: DType, fnuz: bool = False) -> Number:
    """A number of Python in a dtype."""
    made = np.asarray(value, held(dtype))
    return Number(rounded(made, dtype, fnuz) if dtype.is_float else made, dtype)


def common(a: DType, b: DType) -> DType:
    """The dtype of a result of two dtypes (rules: `tilec.language`)."""
    found = common_dtype(a, b)
    if found is None:
        raise TypeError(f"{a.name} and {b.name} have no common dtype")
    return found


def settle(value: Array, error: Array, dtype: DType, ulps: float = 1) -> Number:
    """A float result, computed in float64 from operands off by `error` in all, as `dtype`: exact
    where nothing is rounded, else within `ulps` roundings."""
    made = rounded(value, dtype)
    whole = dtype is FLOAT64 and np.all((value == np.trunc(value)) & (np.abs(value) < 2**52))
    same = (made == value) if dtype is not FLOAT64 or whole else np.zeros(np.shape(value), bool)
    error = np.where(same & (error == 0), 0.0, error + ulps * _half_step(value, dtype))
    beyond = ~(np.abs(value) + error < largest(dtype))  # and where there is no number
    return Number(made, dtype, np.where(beyond, np.inf, error))


def arithmetic(kind: str, left: Any, right: Any) -> Number:
    """`left kind right` for two numbers, one of which may be a literal."""
    a, b = pair(left, right)
    if kind == "div" and not a.dtype.is_float:
        a, b = a.to(FLOAT32), b.to(FLOAT32)
    x, y, ea, eb, dtype = a.value, b.value, a.error, b.error, a.dtype
    with np.errstate(all="ignore"):
        if not dtype.is_float:
            made = binary(kind, x, y, dtype)
            if a.exact() and b.exact():
                return Number(made, dtype)
            linear = kind in ("add", "sub", "min", "max")
            return Number(made, dtype, np.where(ea + eb > 0, (ea + eb) if linear else np.inf, 0.0))
        match kind:
            case "add" | "sub":
                r = settle(x + y if kind == "add" else x - y, ea + eb, dtype)
                # it may stand for a part of a long sum that is made in another order
                more = (np.abs(x) + np.abs(y)) * unit(dtype)
                return Number(r.value, dtype, np.where(r.error > 0, r.error + more, 0.0))
            case "mul":
                return settle(x * y, np.abs(x) * eb + np.abs(y) * ea + ea * eb, dtype)
            case "div":
                q = x / y
                room = np.abs(y) - eb
                error = np.where(room > 0, (ea + np.abs(q) * eb) / room, np.inf)
                error = np.where((ea == 0) & (eb == 0) & (y != 0), 0.0, error)
                return settle(q, error, dtype, 4)
            case "min" | "max":
                made = binary(kind, x, y, FLOAT64)
                error = np.where(np.abs(x - y) > ea + eb, np.where(made == x, ea, eb), ea + eb)
                same = (x == y) & (ea == 0) & (eb == 0)  # of infinities, too
                return Number(made, dtype, np.where(np.isnan(x - y) & ~same, np.inf, error))
    raise TypeError(f"{kind} of {dtype.name}")


def compare(kind: str, left: Any, right: Any) -> Number:
    """A bool, whose error is infinite where it hangs on rounding."""
    a, b = pair(left, right)
    e = a.error + b.error
    made = function(kind)(a.value, b.value)
    if not e.any():
        return Number(made, BOOL)
    gap = np.abs(a.value.astype(np.float64) - b.value.astype(np.float64))
    return Number(made, BOOL, np.where((e > 0) & ~(gap > e), np.inf, 0.0))


def select(cond: Any, on_true: Any, on_false: Any) -> Number:
    """`on_true` where `cond`, else `on_false`."""
    a, b = pair(on_true, on_false)
    if not isinstance(cond, Number):
        return a if cond else b
    error = np.where(cond.error > 0, np.inf, np.where(cond.value, a.error, b.error))
    return Number(np.where(cond.value, a.value, b.value), a.dtype, error)


def function_of(
    x: Number, f: Callable[..., Any], slope: Callable[[Array, Array], Array], ulps: float
) -> Number:
    """`f(x)`, whose derivative is at most `slope(value, error)` around x, good to `ulps`."""
    with np.errstate(all="ignore"):
        y = f(x.value)
        moved = np.where(x.error > 0, x.error * slope(x.value, x.error), 0.0)
        if x.dtype is not FLOAT64:
            moved = moved + np.abs(y) * 2.0**-18  # of fast functions of float32, and narrower ones
        return settle(y, moved, x.dtype, ulps)


def grain(x: Array) -> float:
    """A power of two of which all elements are multiples; 0 where there is none of size."""
    for step in (1.0, 2.0**-4, 2.0**-10):
        scaled = x / step
        if np.all(scaled == np.trunc(scaled)):
            return step
    return 0.0
