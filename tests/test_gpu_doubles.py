"""Functions of float64 on GPUs: their code, run on this machine, against numbers of fifty
digits."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import scalar_jit as jit
from mpmath import mpf

import tilec
import tilec.language as T
from tilec.ir import types as t

N = T.dynamic("N")
SPREAD = 300
ULPS = {"tan": 4.0, "tanh": 3.0, "sigmoid": 3.0, "log1p": 3.0}
RANGES = {
    "exp": (-740, 709), "exp2": (-1070, 1023), "exp10": (-320, 308), "sin": (-1e6, 1e6),
    "cos": (-1e6, 1e6), "tan": (-1e5, 1e5), "tanh": (-20, 20), "erf": (-6, 6),
    "sigmoid": (-700, 700),
}  # fmt: skip
POSITIVE = ("log", "log2", "log10", "log1p", "rsqrt")
EXACT = {
    "exp2": lambda x: mpf(2) ** x,
    "exp10": lambda x: mpf(10) ** x,
    "log2": lambda x: mpmath.log(x, 2),
    "log10": lambda x: mpmath.log(x, 10),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
}


@pytest.fixture(autouse=True)
def fifty_digits() -> Any:
    with mpmath.workdps(50):
        yield


def ulps(got: np.ndarray, want: list[Any]) -> float:
    """The largest distance in units in the last place; of subnormals, in their unit."""
    found = 0.0
    for g, w in zip(got.tolist(), want):
        near = float(w)
        assert math.isfinite(g) == math.isfinite(near), (g, w)
        if math.isfinite(near):
            found = max(found, float(abs(mpf(g) - w) / math.ulp(near)))
    return found


@pytest.mark.parametrize("kind", [*RANGES, *POSITIVE])
def test_of_one(rng: np.random.Generator, kind: str) -> None:
    tiny = rng.standard_normal(SPREAD) * np.exp(rng.uniform(-40, 0, SPREAD))
    if kind in POSITIVE:
        small = [5e-324, 1e-310, 2.3e-308]
        x = np.concatenate([np.exp(rng.uniform(-700, 700, SPREAD)), np.abs(1 + tiny), small])
    else:
        spread = rng.uniform(*RANGES[kind], SPREAD), rng.uniform(-2, 2, SPREAD)
        x = np.concatenate([*spread, tiny, [1e-300]])
    if kind == "log1p":
        x = np.append(x, tiny[np.abs(tiny) < 1])
    if kind in ("sin", "cos"):
        x = np.append(x, [2.0**39 + 0.5, 1e12])
    got = jit.run(lambda s, v: s.unary(kind, v, t.FLOAT64), [x], [t.FLOAT64], t.FLOAT64)
    exact = EXACT.get(kind) or getattr(mpmath, kind)
    assert ulps(got, [exact(mpf(v)) for v in x.tolist()]) <= ULPS.get(kind, 2.0)


@pytest.mark.parametrize("kind", [*RANGES, *POSITIVE])
def test_of_special_values(kind: str) -> None:
    x = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, -1.0, 1.0, 2000.0, -2000.0, 1e308])
    got = jit.run(lambda s, v: s.unary(kind, v, t.FLOAT64), [x], [t.FLOAT64], t.FLOAT64)
    nan, e = math.nan, math.e
    if kind in ("sin", "cos", "tan"):
        x, got = x[:7], got[:7]  # beyond 2**40: nan, as documented
    with np.errstate(all="ignore"):
        want = {
            "exp10": lambda: 10.0**x,
            "rsqrt": lambda: 1 / np.sqrt(x),
            "sigmoid": lambda: np.array(
                [0.5, 0.5, 1, 0, nan, 1 / (1 + e), 1 / (1 + 1 / e), 1, 0, 1]
            ),
            "erf": lambda: np.array([0.0, -0.0, 1, -1, nan, -math.erf(1), math.erf(1), 1, -1, 1]),
        }.get(kind, lambda: getattr(np, kind)(x))()
    np.testing.assert_allclose(got, want, rtol=1e-15)
    if kind not in ("sin", "tan"):  # 0.0 of -0.0
        np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("kind", ["pow", "atan2"])
def test_of_two(rng: np.random.Generator, kind: str) -> None:
    tiny = 1e-3 * rng.standard_normal(SPREAD)
    a = np.concatenate(
        [np.exp(rng.uniform(-200, 200, SPREAD)), rng.uniform(0.5, 2, SPREAD), 1 + tiny]
    )
    b = np.concatenate([rng.uniform(-most, most, SPREAD) for most in (3, 1e3, 1e5)])
    if kind == "atan2":
        a = a * rng.choice([-1, 1], len(a))
    dtypes = [t.FLOAT64] * 2
    got = jit.run(lambda s, x, y: s.binary(kind, x, y, t.FLOAT64), [a, b], dtypes, t.FLOAT64)
    exact = mpmath.power if kind == "pow" else mpmath.atan2
    assert ulps(got, [exact(mpf(x), mpf(y)) for x, y in zip(a.tolist(), b.tolist())]) <= 2.0
    edges = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1.5, 1e300])
    a, b = (g.ravel() for g in np.meshgrid(edges, edges))
    got = jit.run(lambda s, x, y: s.binary(kind, x, y, t.FLOAT64), [a, b], dtypes, t.FLOAT64)
    with np.errstate(all="ignore"):
        want = (np.power if kind == "pow" else np.arctan2)(a, b)
    np.testing.assert_allclose(got, want, rtol=1e-15)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@tilec.kernel
def all_of_them(X: T.Tensor((N,), "float64"), Y: T.Tensor((N, 8), "float64")):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as block:
        for t in T.Parallel(64):
            x = X[block * 64 + t]
            Y[block * 64 + t, 0] = T.exp(x)
            Y[block * 64 + t, 1] = T.log(T.abs(x))
            Y[block * 64 + t, 2] = T.sin(x) * T.cos(x)
            Y[block * 64 + t, 3] = T.tanh(x) + T.erf(x)
            Y[block * 64 + t, 4] = T.pow(T.abs(x), 1.75)
            Y[block * 64 + t, 5] = T.atan2(x, 0.5)
            Y[block * 64 + t, 6] = T.sigmoid(x) + T.expm1(x)
            Y[block * 64 + t, 7] = T.rsqrt(T.abs(x)) + T.cbrt(x)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_in_a_kernel(rng: np.random.Generator, target: str) -> None:
    x = rng.uniform(-3, 3, 100)
    y = np.empty((100, 8))
    if target == "cpu":
        all_of_them(x, y)
    else:
        assert not tilec.simulate(all_of_them, x, y, target=target).findings
        assert all_of_them.compile(x, y, target=target).binary
    a = np.abs(x)
    want = [
        np.exp(x), np.log(a), np.sin(x) * np.cos(x), np.tanh(x) + np.vectorize(math.erf)(x),
        a**1.75, np.arctan2(x, 0.5), 1 / (1 + np.exp(-x)) + np.expm1(x), 
        1 / np.sqrt(a) + np.cbrt(x),
    ]  # fmt: skip
    np.testing.assert_allclose(y, np.stack(want, 1), rtol=3e-15, atol=3e-15)
