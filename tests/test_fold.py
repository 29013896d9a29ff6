"""Constant folding against Python's own numbers: every op on every dtype, bit for bit. (What the
ops compute is in NumPy, see `tilec.ir.semantics`; nothing here is.)"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.ir import types as t
from tilec.ir.builder import Builder
from tilec.ir.core import Op
from tilec.ir.fold import fold, normal
from tilec.ir.intervals import dtype_range
from tilec.ir.ops import Binary, Cast, Compare, Const, Unary
from tilec.ir.ops.scalar import BINARY_KINDS, COMPARE_KINDS, UNARY_KINDS
from tilec.ir.semantics import OF_BITS

INTS = [t.BOOL, t.INT8, t.UINT8, t.INT16, t.INT32, t.UINT32, t.INT64, t.UINT64, t.INT4, t.UINT4]
FLOATS = [t.FLOAT16, t.BFLOAT16, t.FLOAT32, t.FLOAT64]
# Bits of significand (with the hidden one), least exponent, largest finite value.
FORMATS = {
    t.FLOAT16: (11, -14, 65504.0),
    t.BFLOAT16: (8, -126, math.ldexp(2 - 2**-7, 127)),
    t.FLOAT32: (24, -126, math.ldexp(2 - 2**-23, 127)),
}


def interesting(dtype: t.DType, rng: np.random.Generator) -> list[Any]:
    if dtype.is_float:
        made = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, 3.0, 65504.0, 1e-8, 6e-8, 2049.0, 1e38]
        return [*made, *map(float, rng.standard_normal(6)), float(rng.standard_normal() * 1e30)]
    lo, hi = dtype_range(dtype)
    few = {lo, lo + 1, hi, hi - 1, 0, 1, 2, 5, -1, -7}
    drawn = [lo + int(v) % (hi - lo + 1) for v in rng.integers(0, 1 << 62, 3)]
    return [v for v in sorted(few) if lo <= v <= hi] + drawn


# --- the same in Python ---


def wrapped(n: int, dtype: t.DType) -> int:
    lo, hi = dtype_range(dtype)
    return (n - lo) % (hi - lo + 1) + lo


def rounded(x: float, dtype: t.DType) -> float:
    """To nearest even."""
    if dtype not in FORMATS or not math.isfinite(x) or x == 0:
        return x
    precision, least, most = FORMATS[dtype]
    if abs(x) > 2 * most:
        return math.copysign(math.inf, x)
    exponent = max(math.frexp(x)[1] - 1, least) - (precision - 1)
    near = math.ldexp(float(round(math.ldexp(x, -exponent))), exponent)
    return math.copysign(near if abs(near) <= most else math.inf, x)


def truncdiv(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "floordiv": lambda a, b: a // b if b else 0, "mod": lambda a, b: a % b if b else 0,
    "truncdiv": lambda a, b: truncdiv(a, b) if b else 0,
    "truncmod": lambda a, b: a - b * truncdiv(a, b) if b else 0,
}  # fmt: skip


def binary(kind: str, a: Any, b: Any, dtype: t.DType) -> Any:
    if dtype == t.BOOL:
        return INTEGER[kind](a, b) if kind in ("and", "or", "xor") else None
    if dtype.is_int:
        if kind in ("shl", "shr"):
            by = b if 0 <= b < dtype.bits else dtype.bits
            return wrapped(a << by if kind == "shl" else a >> by, dtype)
        return wrapped(INTEGER[kind](a, b), dtype) if kind in INTEGER else None
    if kind in ("min", "max"):
        return None if a == b else INTEGER[kind](a, b)
    if kind == "div":
        if b == 0 or not math.isfinite(a) or not math.isfinite(b):
            return None
        got = rounded(a / b, dtype)
        exact = math.isfinite(got) and Fraction(got) * Fraction(b) == Fraction(a)
        return got if exact else None
    return rounded(INTEGER[kind](a, b), dtype) if kind in ("add", "sub", "mul") else None


def unary(kind: str, a: Any, dtype: t.DType) -> Any:
    if dtype.is_float:
        whole = {"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, "round": round}
        exact = {"neg": operator.neg, "abs": abs, "isnan": math.isnan, "isinf": math.isinf}
        if kind in whole:
            return math.copysign(float(whole[kind](a)), a) if math.isfinite(a) else a
        return exact[kind](a) if kind in exact else None
    if kind == "not":
        return wrapped(~a, dtype)
    if dtype == t.BOOL or kind not in ("neg", "abs", *OF_BITS):
        return None
    bits = a & ((1 << dtype.bits) - 1)
    spelled = f"{bits:0{dtype.bits}b}"
    ones = {
        "popcount": spelled.count("1"),
        "clz": len(spelled) - len(spelled.lstrip("0")),
        "ctz": len(spelled) - len(spelled.rstrip("0")),
        "brev": int(spelled[::-1], 2),
    }
    return wrapped(ones[kind] if kind in ones else -a if kind == "neg" else abs(a), dtype)


def cast(a: Any, source: t.DType, dest: t.DType) -> Any:
    if dest == t.BOOL:
        return int(a != 0)
    if dest.is_float:
        return rounded(float(a), dest) if abs(a) < 1 << 53 or source.is_float else None
    if not source.is_float:
        return wrapped(a, dest)
    lo, hi = dtype_range(dest)
    return int(min(max(a, lo), hi)) if math.isinf(a) else min(max(math.trunc(a), lo), hi)


def same_bits(got: Any, want: Any) -> bool:
    both = (got is None) == (want is None)
    if got is None or want is None:
        return both
    if got != got or want != want:
        return got != got and want != want
    return got == want and math.copysign(1, got) == math.copysign(1, want)


@pytest.mark.parametrize("dtype", INTS + FLOATS, ids=str)
def test_folding_is_what_the_machine_does(dtype: t.DType, rng: np.random.Generator) -> None:
    build = Builder()
    consts = [build.emit(Const, v, dtype) for v in interesting(dtype, rng)]
    values = {c.result: fold(c, lambda v: None) for c in consts}
    counted = 0

    def check(want: Any, cls: type[Op], *args: Any) -> None:
        nonlocal counted
        got = fold(build.emit(cls, *args), values.get)
        counted += got is not None
        assert same_bits(got, want), (cls.opname, args, got, want)

    for (x, a), (y, b) in itertools.product(values.items(), repeat=2):
        for kind in BINARY_KINDS:
            check(binary(kind, a, b, dtype), Binary, kind, x, y)
        for kind in COMPARE_KINDS:
            check(getattr(operator, kind)(a, b), Compare, kind, x, y)
    for x, a in values.items():
        for kind in UNARY_KINDS:
            check(unary(kind, a, dtype), Unary, kind, x)
        for dest in INTS + FLOATS:
            want = cast(a, dtype, dest)
            if want is not None:  # of long integers Python would round twice
                check(want, Cast, x, dest)
    assert counted > len(values) * 10


@given(st.floats(width=64), st.sampled_from(FLOATS))
def test_rounding_is_nearest_even(x: float, dtype: t.DType) -> None:
    assert same_bits(normal(x, dtype), rounded(x, dtype))
