"""What each scalar op means, in NumPy: the arithmetic half of the reference interpreter
(`interp.py`).

Every function takes and returns arrays (0-d for one value) of the op's own dtype. 16-bit and
narrower floats round after every op; transcendental functions are computed in float64 and rounded
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilec.ir import types as t

NUMPY: dict[t.DType, np.dtype[Any]] = {
    d: np.dtype(made)
    for d, made in (
        (t.BOOL, np.bool_), (t.INT8, np.int8), (t.INT16, np.int16), (t.INT32, np.int32),
        (t.INT64, np.int64), (t.UINT8, np.uint8), (t.UINT16, np.uint16), (t.UINT32, np.uint32),
        (t.UINT64, np.uint64), (t.INT4, ml_dtypes.int4), (t.UINT4, ml_dtypes.uint4),
        (t.FLOAT16, np.float16), (t.BFLOAT16, ml_dtypes.bfloat16), (t.FLOAT32, np.float32),
        (t.FLOAT64, np.float64), (t.TFLOAT32, np.float32), (t.FLOAT8_E4M3, ml_dtypes.float8_e4m3fn),
        (t.FLOAT8_E5M2, ml_dtypes.float8_e5m2), (t.FLOAT4_E2M1, ml_dtypes.float4_e2m1fn),
    )
}  # fmt: skip
SATURATING = {t.FLOAT8_E4M3: 448.0, t.FLOAT8_E5M2: 57344.0, t.FLOAT4_E2M1: 6.0}


def array(value: Any, dtype: t.DType) -> np.ndarray:
    """`value` (already representable) as an array of `dtype`."""
    return np.asarray(value).astype(NUMPY[dtype])


def round_tf32(x: np.ndarray) -> np.ndarray:
    """float32 rounded to the 10-bit mantissa of tfloat32, nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    even = ((bits + np.uint32(0xFFF) + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), even, x).astype(np.float32)


def cast(x: np.ndarray, source: t.DType, dest: t.DType) -> np.ndarray:
    """Convert: nearest even; float to int and anything to float8/float4 saturates; int to int
    wraps.
    """
    if source == dest:
        return x
    if dest == t.BOOL:
        return np.asarray(x != np.zeros((), x.dtype))
    if source.is_float and dest.is_int:
        wide = np.asarray(x).astype(np.float64)
        low, high = int_range(dest)
        whole = np.nan_to_num(np.trunc(wide), nan=0.0, posinf=high, neginf=low)
        top = np.float64(high) if float(high) <= high else np.nextafter(np.float64(high), 0.0)
        inside = np.clip(whole, np.float64(low), top)
        done = inside.astype(np.uint64 if dest == t.UINT64 else np.int64)
        done = np.where(whole >= high, np.asarray(high, done.dtype), done)
        return np.asarray(done).astype(NUMPY[dest])
    if dest in SATURATING:
        limit = SATURATING[dest]
        wide = np.asarray(x).astype(np.float64)
        return np.asarray(np.clip(wide, -limit, limit)).astype(NUMPY[dest])
    if dest == t.TFLOAT32:
        return round_tf32(np.asarray(x).astype(np.float32))
    if (
        dest == t.BFLOAT16
        and source.bits > 32
        or dest == t.BFLOAT16
        and source.bits == 32
        and source.is_int
    ):
        return to_odd_float32(np.asarray(x).astype(np.float64)).astype(NUMPY[dest])
    got = np.asarray(x)
    if source.is_int and source.bits < 8:
        got = got.astype(np.int8)
    return got.astype(NUMPY[dest])


def to_odd_float32(x: np.ndarray) -> np.ndarray:
    """float64 to float32, inexact results made odd, so that one more rounding is the only one."""
    near = x.astype(np.float32)
    toward_zero = np.where(
        np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near
    )
    inexact = toward_zero.astype(np.float64) != x
    odd = (toward_zero.astype(np.float32).view(np.uint32) | np.uint32(1)).view(np.float32)
    return np.where(inexact & np.isfinite(x), odd, near).astype(np.float32)


def int_range(dtype: t.DType) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype."""
    if dtype.kind == "int":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, 1 if dtype == t.BOOL else (1 << dtype.bits) - 1


def _truncdiv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    down = np.floor_divide(a, b)
    return np.asarray(down + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(a.dtype))


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
    "floordiv": np.floor_divide, "mod": np.remainder, "truncdiv": _truncdiv, "truncmod": np.fmod,
    "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift, "pow": np.power,
    "atan2": np.arctan2,
}  # fmt: skip
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
EXACT_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "isnan": np.isnan, "isinf": np.isinf,
}  # fmt: skip
ROUNDED_UNARY: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(10.0, x), "log": np.log,
    "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "tanh": np.tanh, "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}  # fmt: skip


def binary(kind: str, a: np.ndarray, b: np.ndarray, dtype: t.DType) -> np.ndarray:
    """One `Binary` op. Integers wrap; a float minimum or maximum with one nan gives the other
    operand.
    """
    if dtype.is_int:
        if dtype.bits < 8:  # NumPy has no packed integers: compute in bytes and wrap
            wide = np.int8 if dtype.kind == "int" else np.uint8
            return np.asarray(BINARY[kind](a.astype(wide), b.astype(wide))).astype(NUMPY[dtype])
        return np.asarray(BINARY[kind](a, b)).astype(NUMPY[dtype])
    if kind in ("min", "max"):
        fn = np.fmin if kind == "min" else np.fmax
        return np.asarray(fn(a.astype(np.float64), b.astype(np.float64))).astype(NUMPY[dtype])
    if kind in ("add", "sub", "mul", "div"):
        return _narrow(BINARY[kind](a, b), dtype)
    return _narrow(BINARY[kind](a.astype(np.float64), b.astype(np.float64)), dtype)


def unary(kind: str, x: np.ndarray, dtype: t.DType) -> np.ndarray:
    """One `Unary` op."""
    if kind == "not" and dtype.bits >= 8:
        return np.logical_not(x) if dtype == t.BOOL else np.invert(x)
    if kind in ("popcount", "clz"):
        bits = [int(v) & ((1 << dtype.bits) - 1) for v in np.asarray(x).reshape(-1)]
        count = [v.bit_count() if kind == "popcount" else dtype.bits - v.bit_length() for v in bits]
        return np.asarray(count, NUMPY[dtype]).reshape(np.shape(x))
    if dtype.is_int and dtype.bits < 8:
        wide = np.int8 if dtype.kind == "int" else np.uint8
        return unary(kind, x.astype(wide), t.INT8).astype(wide).astype(NUMPY[dtype])
    if kind in ("isnan", "isinf"):
        return np.asarray(EXACT_UNARY[kind](x.astype(np.float64)))
    if kind in EXACT_UNARY:
        return (
            _narrow(EXACT_UNARY[kind](x), dtype)
            if dtype.is_float
            else array(EXACT_UNARY[kind](x), dtype)
        )
    return _narrow(ROUNDED_UNARY[kind](x.astype(np.float64)), dtype)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: t.DType) -> np.ndarray:
    """a * b + c. Exact up to float32 but for the (rare) second rounding of float64 to the dtype."""
    if dtype.is_int:
        return array(a * b + c, dtype)
    return _narrow(a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64), dtype)


def compare(kind: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One `Compare` op: bool."""
    return np.asarray(COMPARE[kind](a, b))


def bitcast(x: np.ndarray, dtype: t.DType) -> np.ndarray:
    """The same bits as another dtype of the same width."""
    return np.asarray(x).view(NUMPY[dtype])


def _narrow(x: Any, dtype: t.DType) -> np.ndarray:
    got = np.asarray(x)
    if dtype == t.TFLOAT32:
        return round_tf32(got.astype(np.float32))
    if dtype == t.BFLOAT16 and got.dtype == np.float64:
        return to_odd_float32(got).astype(NUMPY[dtype])
    return got.astype(NUMPY[dtype])
