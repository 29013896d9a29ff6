"""Constant folding against NumPy: every op on every dtype, bit for bit."""

from __future__ import annotations

import itertools
import math
from typing import Any

import interp_scalar as num
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilec.ir import types as t
from tilec.ir.core import Builder, Op
from tilec.ir.fold import fold, round_float
from tilec.ir.ops import Binary, Cast, Compare, Const, Unary
from tilec.ir.ops.scalar import BINARY_KINDS, COMPARE_KINDS, UNARY_KINDS

INTS = [t.BOOL, t.INT8, t.UINT8, t.INT16, t.INT32, t.UINT32, t.INT64, t.UINT64, t.INT4, t.UINT4]
FLOATS = [t.FLOAT16, t.BFLOAT16, t.FLOAT32, t.FLOAT64]


def interesting(dtype: t.DType, rng: np.random.Generator) -> list[Any]:
    if dtype.is_float:
        made = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, 3.0, 65504.0, 1e-8, 6e-8, 2049.0, 1e38]
        return [*made, *map(float, rng.standard_normal(6)), float(rng.standard_normal() * 1e30)]
    lo, hi = num.int_range(dtype)
    few = {lo, lo + 1, hi, hi - 1, 0, 1, 2, 5, -1, -7}
    drawn = [lo + int(v) % (hi - lo + 1) for v in rng.integers(0, 1 << 62, 3)]
    return [v for v in sorted(few) if lo <= v <= hi] + drawn


def folded(o: Op, *consts: Op) -> Any:
    values = {c.results[0]: fold(c, lambda v: None) for c in consts}
    return fold(o, values.get)


def same_bits(got: Any, want: np.ndarray, dtype: t.DType) -> bool:
    if dtype.is_float:
        a, b = float(got), float(want.astype(np.float64))
        return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return int(got) == int(want)


@pytest.mark.parametrize("dtype", INTS + FLOATS, ids=str)
def test_folding_is_what_the_machine_does(dtype: t.DType, rng: np.random.Generator) -> None:
    counted = 0
    values = interesting(dtype, rng)
    build = Builder()
    consts = [build.emit(Const, v, dtype) for v in values]
    with np.errstate(all="ignore"):
        arrays = [num.cast(np.asarray(v, np.float64), t.FLOAT64, dtype) if dtype.is_float
                  else np.asarray(v).astype(num.NUMPY[dtype]) for v in values]  # fmt: skip
        for (a, x), (b, y) in itertools.product(zip(consts, arrays), repeat=2):
            for kind in BINARY_KINDS:
                got = folded(Binary(kind, a.result, b.result), a, b)
                if got is not None:
                    counted += 1
                    want = num.binary(kind, x, y, dtype)
                    assert same_bits(got, want, dtype), (kind, x, y, got, want)
            for kind in COMPARE_KINDS:
                got = folded(Compare(kind, a.result, b.result), a, b)
                assert bool(got) == bool(num.compare(kind, x, y)), (kind, x, y)
        for a, x in zip(consts, arrays):
            for kind in UNARY_KINDS:
                got = folded(Unary(kind, a.result), a)
                if got is not None:
                    counted += 1
                    result = t.BOOL if kind in ("isnan", "isinf") else dtype
                    want = num.unary(kind, x, dtype)
                    assert same_bits(got, want, result), (kind, x, got, want)
            for dest in INTS + FLOATS:
                got = folded(Cast(a.result, dest), a)
                if got is not None:
                    counted += 1
                    assert same_bits(got, num.cast(x, dtype, dest), dest), (x, dest, got)
    assert counted > len(values) * 10


@given(st.floats(width=64), st.sampled_from(FLOATS))
def test_rounding_is_nearest_even(x: float, dtype: t.DType) -> None:
    with np.errstate(all="ignore"):
        want = num.cast(np.asarray(x), t.FLOAT64, dtype)
    got = round_float(x, dtype)
    assert got is not None and same_bits(got, want, dtype)
