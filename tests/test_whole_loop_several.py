"""Whole loops in which several loops add up products (`whole_loops/several.py`)."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from simulated import products_in, run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

M, N, K, R = T.dynamic("M, N, K, R")
f16, f32 = "float16", "float32"
TILES = {"BM": 16, "BN": 16, "BK": 16}


@tilec.kernel
def adapted(
    X: T.Tensor((M, K), f16), W: T.Tensor((N, K), f16), H: T.Tensor((M, R), f16),
    B: T.Tensor((R, N), f16), bias: T.Tensor((N,), f32), Y: T.Tensor((M, N), f32),
):  # fmt: skip
    for i, j in T.Parallel(M, N):
        s: T.float32 = bias[j]
        for k in range(K):
            x = T.float32(X[i, k])
            s += x * T.float32(W[j, k])
        low = 0.0
        for k in range(R):
            x = T.float32(H[i, k])
            s += x * T.float32(B[k, j])
            low += x * T.float32(B[k, j])
        Y[i, j] = s * T.abs(low)


@tilec.kernel
def apart(
    X: T.Tensor((M, K), f16), W: T.Tensor((N, K), f16), P: T.Tensor((M, R), f32),
    Q: T.Tensor((N, R), f32), Y: T.Tensor((M, N), f32),
):  # fmt: skip
    """Sums of their own, under a condition."""
    for i, j in T.Parallel(M, N):
        if j <= i:
            a, b = 0.0, 1.0
            for k in range(K):
                a += T.float32(X[i, k]) * T.float32(W[j, k])
            for r in range(R):
                b += P[i, r] * Q[j, r]
            Y[i, j] = a / b
        else:
            Y[i, j] = 5.0


@tilec.kernel
def followed(
    X: T.Tensor((M, K), f16), W: T.Tensor((N, K), f16), Y: T.Tensor((M, N), f32)
):  # fmt: skip
    """What the second loop adds follows from the first one's sum."""
    for i, j in T.Parallel(M, N):
        s, t = 0.0, 0.0
        for k in range(K):
            s += T.float32(X[i, k]) * T.float32(W[j, k])
        for k in range(K):
            t += s * T.float32(X[i, k]) * T.float32(W[j, k])
        Y[i, j] = t


def numbers(*shape: int, dtype: str = f16) -> NDArray[Any]:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("k, r", [(45, 7), (1, 20), (0, 3)])
def test_loops_add_to_one_sum(target: str, k: int, r: int) -> None:
    """Each by a T.gemm in a loop of its own; tiles that are alike are the same."""
    m, n = 21, 18
    x, w, h, b = numbers(m, k), numbers(n, k), numbers(m, r), numbers(r, n)
    bias, y = numbers(n, dtype=f32), np.full((m, n), 77, f32)
    if target != "cpu" and k == 45:
        made = adapted.compile(x, w, h, b, bias, y, target=target, **TILES).stages["tile"]
        assert products_in(made) == 3 and made.count("pipelined") == 2
        assert made.count("alloc shared") == 3  # B's goes down its columns
    run(adapted, target, x, w, h, b, bias, y, **TILES)
    x, w, h, b = (z.astype(np.float64) for z in (x, w, h, b))
    np.testing.assert_allclose(y, (x @ w.T + h @ b + bias) * abs(h @ b), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_loops_have_sums_of_their_own(target: str) -> None:
    x, w, (p, q) = numbers(21, 33), numbers(18, 33), (numbers(m, 9, dtype=f32) for m in (21, 18))
    y = np.full((21, 18), 77, f32)
    made = apart.compile(x, w, p, q, y, target=target, **TILES).stages["tile"]
    assert products_in(made) == 2
    run(apart, target, x, w, p, q, y, **TILES)
    x, w, p, q = (z.astype(np.float64) for z in (x, w, p, q))
    want = np.where(np.tri(21, 18), (x @ w.T) / (p @ q.T + 1), 5)
    np.testing.assert_allclose(y, want, rtol=1e-2, atol=1e-3)


def test_what_follows_from_another_sum_stays_a_loop() -> None:
    x, w, y = numbers(5, 9), numbers(4, 9), np.full((5, 4), 77, f32)
    assert "gemm" not in followed.compile(x, w, y, target="cpu").stages["tile"]
    followed(x, w, y)
    np.testing.assert_allclose(y, (x.astype(np.float64) @ w.T) ** 2, rtol=1e-3, atol=1e-4)
