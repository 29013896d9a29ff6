"""What scalar ops compute, in NumPy: the one meaning of their kinds.

`Op.evaluate` of the op classes is made of this, and so are constant folding (`tilec.ir.fold`), the
interpreters of the tests and the numbers of the fuzzer's reference. Functions take and return
arrays (0-d for one value) of the op's own dtype. Floats of 16 bits and less round after every op;
transcendental functions are computed in float64 and rounded once."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

from tilec.ir.intervals import dtype_range
from tilec.ir.types import (
    BFLOAT16,
    BOOL,
    FLOAT4_E2M1,
    FLOAT8_E4M3,
    FLOAT8_E5M2,
    FLOAT8_E8M0,
    FLOAT64,
    INT4,
    TFLOAT32,
    UINT4,
    UINT64,
    DType,
)
from tilec.support.lazy import Lazy

np: Any = Lazy("numpy")
ml_dtypes: Any = Lazy("ml_dtypes")

Array = Any  # numpy.ndarray, which is loaded at the first use

_OF_ML_DTYPES = {
    BFLOAT16: "bfloat16", FLOAT8_E4M3: "float8_e4m3fn", FLOAT8_E5M2: "float8_e5m2",
    FLOAT4_E2M1: "float4_e2m1fn", FLOAT8_E8M0: "float8_e8m0fnu", INT4: "int4", UINT4: "uint4",
}  # fmt: skip
SATURATING = (FLOAT8_E4M3, FLOAT8_E5M2, FLOAT4_E2M1)  # have no infinity to round to


@functools.cache
def numpy_dtype(dtype: DType, fnuz: bool = False) -> Any:
    """NumPy's type of an array of `dtype`. `fnuz`: float8 is AMD's."""
    if dtype in _OF_ML_DTYPES:
        name = _OF_ML_DTYPES[dtype]
        fnuz = fnuz and dtype in (FLOAT8_E4M3, FLOAT8_E5M2)
        return np.dtype(getattr(ml_dtypes, name.removesuffix("fn") + "fnuz" if fnuz else name))
    return np.dtype({BOOL: "bool", TFLOAT32: "float32"}.get(dtype, dtype.name))


def array(value: Any, dtype: DType) -> Array:
    """`value` (already representable) as an array of `dtype`."""
    return np.asarray(value).astype(numpy_dtype(dtype))


def literal(value: bool | int | float, dtype: DType) -> Array:
    """A constant of `dtype`: a float is rounded (infinity stays one), an integer wraps."""
    if dtype == FLOAT8_E5M2 and np.isinf(value):
        return np.asarray(value).astype(numpy_dtype(dtype))
    if dtype.is_float:
        return cast(np.asarray(value, np.float64), FLOAT64, dtype)
    return array(bool(value) if dtype == BOOL else wrap(int(value), dtype), dtype)


def wrap(n: int, dtype: DType) -> int:
    """`n` modulo 2**bits, in the range of an integer dtype."""
    if dtype.kind == "bool":
        return n & 1
    n &= (1 << dtype.bits) - 1
    return n - (1 << dtype.bits) if dtype.kind == "int" and n >> (dtype.bits - 1) else n


INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "mod": operator.mod, "min": min, "max": max, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor,
}  # fmt: skip
"""Ops on two integers as Python computes them, before `wrap`; divisors are above 0. (NumPy takes
ten times as long for one number.)"""


def neutral(kind: str, dtype: DType) -> int | float:
    """What a kind of `Binary` that folds numbers ("add", "max", "min", "and", "or", "xor") takes to
    the other operand."""
    if dtype.is_float:
        return {"max": -math.inf, "min": math.inf}.get(kind, 0.0)
    low, high = dtype_range(dtype)
    every_bit = -1 if dtype.kind == "int" else high
    return {"max": low, "min": high, "and": every_bit}.get(kind, 0)


COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    kind: getattr(operator, kind) for kind in ("eq", "ne", "lt", "le", "gt", "ge")
}
"""The kinds of `Compare` of two integers, likewise."""


# --- conversions ---


def round_tf32(x: Array) -> Array:
    """float32 rounded to the 10-bit mantissa of tfloat32, nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    even = ((bits + np.uint32(0xFFF) + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), even, x).astype(np.float32)


def cast(x: Array, source: DType, dest: DType, fnuz: bool = False) -> Array:
    """Convert: nearest even; float to int and anything to float8 and float4 saturates; int to int
    wraps. `fnuz`: float8 is AMD's."""
    if source == dest:
        return x
    if dest == BOOL:
        return np.asarray(x != np.zeros((), x.dtype))
    if source.is_float and dest.is_int:
        return _to_int(np.asarray(x).astype(np.float64), dest)
    kind = numpy_dtype(dest, fnuz)
    if dest in SATURATING:
        limit = float(ml_dtypes.finfo(kind).max)
        return np.asarray(np.clip(np.asarray(x).astype(np.float64), -limit, limit)).astype(kind)
    if dest == TFLOAT32:
        return round_tf32(np.asarray(x).astype(np.float32))
    if dest == BFLOAT16 and (source.bits > 32 or (source.bits == 32 and source.is_int)):
        return _to_odd_float32(np.asarray(x).astype(np.float64)).astype(kind)
    if source.is_int and source.bits < 8:
        x = np.asarray(x).astype(np.int8)
    return np.asarray(x).astype(kind)


def _to_int(wide: Array, dest: DType) -> Array:
    """float64 truncated to an integer type, cut off at its bounds; nan to 0."""
    low, high = dtype_range(dest)
    whole = np.nan_to_num(np.trunc(wide), nan=0.0, posinf=high, neginf=low)
    top = np.float64(high) if float(high) <= high else np.nextafter(np.float64(high), 0.0)
    inside = np.clip(whole, np.float64(low), top)
    done = inside.astype(np.uint64 if dest == UINT64 else np.int64)
    done = np.where(whole >= high, np.asarray(high, done.dtype), done)
    return np.asarray(done).astype(numpy_dtype(dest))


def _to_odd_float32(x: Array) -> Array:
    """float64 to float32, inexact results made odd, so that one more rounding is the only one."""
    near = x.astype(np.float32)
    toward_zero = np.where(
        np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near
    )
    inexact = toward_zero.astype(np.float64) != x
    odd = (toward_zero.astype(np.float32).view(np.uint32) | np.uint32(1)).view(np.float32)
    return np.where(inexact & np.isfinite(x), odd, near).astype(np.float32)


def bitcast(x: Array, dtype: DType) -> Array:
    """The same bits as another dtype of the same width."""
    return np.asarray(x).view(numpy_dtype(dtype))


def _narrow(x: Any, dtype: DType) -> Array:
    """A result, computed at least as wide, in its dtype."""
    got = np.asarray(x)
    if dtype == TFLOAT32:
        return round_tf32(got.astype(np.float32))
    if dtype == BFLOAT16 and got.dtype == np.float64:
        got = _to_odd_float32(got)
    if dtype in SATURATING:
        return cast(got, FLOAT64, dtype)
    return got.astype(numpy_dtype(dtype))


def _bytes_of(x: Array, dtype: DType) -> Array:
    """Packed integers, which NumPy cannot compute with, in bytes."""
    return x.astype(np.int8 if dtype.kind == "int" else np.uint8) if 1 < dtype.bits < 8 else x


# --- arithmetic ---


def _truncdiv(a: Array, b: Array) -> Array:
    down = np.floor_divide(a, b)
    return np.asarray(down + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(a.dtype))


_NAMES = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "true_divide",
    "floordiv": "floor_divide", "mod": "remainder", "truncmod": "fmod", "min": "minimum",
    "max": "maximum", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "shl": "left_shift", "shr": "right_shift", "pow": "power", "atan2": "arctan2",
    "fast_exp2": "exp2", "fast_log2": "log2", "fast_sin": "sin", "fast_cos": "cos",
    "fast_tanh": "tanh", "fast_rcp": "reciprocal", "eq": "equal", "ne": "not_equal", "lt": "less",
    "le": "less_equal", "gt": "greater", "ge": "greater_equal", "neg": "negative", "round": "rint",
}  # fmt: skip
_OWN: dict[str, Callable[..., Any]] = {
    "truncdiv": _truncdiv,
    "exp10": lambda x: np.power(10.0, x),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "erf": lambda x: np.vectorize(math.erf, otypes=[np.float64])(x),
}
_OF_FLOATS = {"min": np.fmin, "max": np.fmax}  # a nan is left out
EXACT = ("neg", "abs", "floor", "ceil", "round", "trunc", "isnan", "isinf")
"""Of the kinds of `Unary` on floats those whose result is never rounded."""
OF_BITS: dict[str, Callable[[int, int], int]] = {
    "popcount": lambda x, bits: x.bit_count(),
    "clz": lambda x, bits: bits - x.bit_length(),
    "ctz": lambda x, bits: (x & -x).bit_length() - 1 if x else bits,
    "brev": lambda x, bits: int(f"{x:0{bits}b}"[::-1], 2),
}
"""The kinds of `Unary` on the bits of ints, of an int from 0 and how many bits it has."""


@functools.cache
def function(kind: str) -> Callable[..., Any]:
    """What a kind of `Binary`, `Compare` or `Unary` is of arrays, before its result is rounded to
    a dtype; NumPy's function of the kind's name where this module says nothing else."""
    return _OWN.get(kind) or getattr(np, _NAMES.get(kind, kind))


def binary(kind: str, a: Array, b: Array, dtype: DType) -> Array:
    """One `Binary` op. Integers wrap, x // 0 and x % 0 are 0, shifts by too much leave no bit (or
    the sign's); a float minimum or maximum with one nan gives the other operand."""
    if dtype.is_int:
        if dtype.bits < 8:
            a, b = _bytes_of(a, dtype), _bytes_of(b, dtype)
        return np.asarray(function(kind)(a, b)).astype(numpy_dtype(dtype), copy=False)
    if kind in ("add", "sub", "mul", "div"):
        return _narrow(function(kind)(a, b), dtype)
    of_floats = _OF_FLOATS.get(kind) or function(kind)
    made = of_floats(a.astype(np.float64), b.astype(np.float64))
    return array(made, dtype) if kind in _OF_FLOATS else _narrow(made, dtype)


def reduce(kind: str, x: Array, axis: int, dtype: DType, nan: bool = False) -> Array:
    """All elements along `axis` combined by a kind of `Binary`: sums of floats in float64, rounded
    once; of integers modulo 2**bits. `nan`: a nan among them is the result."""
    if dtype.is_float:
        combine: Any = function(kind) if nan else _OF_FLOATS.get(kind) or function(kind)
        return _narrow(combine.reduce(x.astype(np.float64), axis=axis), dtype)
    x, combine = _bytes_of(x, dtype), function(kind)
    return array(combine.reduce(x, axis=axis, dtype=x.dtype), dtype)


def unary(kind: str, x: Array, dtype: DType) -> Array:
    """One `Unary` op."""
    if kind in OF_BITS:
        bits = [int(v) & ((1 << dtype.bits) - 1) for v in np.asarray(x).reshape(-1)]
        found = np.asarray([OF_BITS[kind](v, dtype.bits) for v in bits], np.uint64)
        return array(found, dtype).reshape(np.shape(x))
    if kind in ("isnan", "isinf"):
        return np.asarray(function(kind)(x.astype(np.float64)))
    if kind == "not":
        kind = "logical_not" if dtype == BOOL else "invert"
    if dtype.is_int:
        return array(function(kind)(_bytes_of(x, dtype)), dtype)
    if kind in ("neg", "abs"):
        return array(function(kind)(x), dtype)
    return _narrow(function(kind)(x if kind in EXACT else x.astype(np.float64)), dtype)


def fma(a: Array, b: Array, c: Array, dtype: DType) -> Array:
    """a * b + c. Exact up to float32 but for the (rare) second rounding of float64 to the dtype."""
    if dtype.is_int:
        return array(a * b + c, dtype)
    return _narrow(a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64), dtype)


def compare(kind: str, a: Array, b: Array) -> Array:
    """One `Compare` op: bool."""
    return np.asarray(function(kind)(a, b))


def product(a: Array, b: Array, c: Array | None, dtype: DType) -> Array:
    """c + a @ b (c: zeros if absent) in `dtype`: of integers modulo 2**bits, of floats in float64,
    rounded once."""
    wide = np.int64 if dtype.is_int else np.float64
    done = a.astype(wide) @ b.astype(wide)
    return (done if c is None else c.astype(wide) + done).astype(numpy_dtype(dtype))
