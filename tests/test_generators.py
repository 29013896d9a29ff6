"""sum, max, min, any and all of elements: the loops that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec import spec

M, N, K = T.dynamic("M, N, K")
SIZES = [(1, 1, 1), (5, 7, 9), (33, 20, 130)]


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")
):
    for i, j in T.Parallel(M, N):
        C[i, j] = 2 * sum(T.float32(A[i, k]) * T.float32(B[j, k]) for k in range(K))


@tilec.kernel
def product_in_loops(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")
):
    for i, j in T.Parallel(M, N):
        sum_1 = 0
        for k in range(K):
            sum_1 += T.float32(A[i, k]) * T.float32(B[j, k])
        C[i, j] = 2 * sum_1


@pytest.mark.parametrize("m, n, k", SIZES)
def test_sums_of_products(m: int, n: int, k: int, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(s).astype("float16") for s in ((m, k), (n, k)))
    c = np.full((m, n), np.nan, "float32")
    product(a, b, c)
    assert np.allclose(c, 2 * a.astype("float64") @ b.T.astype("float64"), atol=1e-3)


def test_they_are_the_loops_that_one_writes() -> None:
    args = [spec((512, 256), "float16"), spec((512, 256), "float16"), spec((512, 512), "float32")]
    one, other = (k.compile(*args, target="cuda:sm_90a") for k in (product, product_in_loops))
    assert one.stages["ptx"].count("wgmma.mma_async") == other.stages["ptx"].count(
        "wgmma.mma_async"
    )
    assert "wgmma.mma_async" in one.stages["ptx"]
    assert one.resources == other.resources


@tilec.kernel
def softmax(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    for i, j in T.Parallel(M, N):
        most = max(X[i, k] for k in range(N))
        Y[i, j] = T.exp(X[i, j] - most) / sum(T.exp(X[i, k] - most) for k in range(N))


@tilec.kernel
def facts(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, 6), "int32")):
    for i in T.Parallel(M):
        Y[i, 0] = sum(X[i, k] > 0 for k in range(N))
        Y[i, 1] = any(X[i, k] > 1.5 for k in range(N))
        Y[i, 2] = all(X[i, k] > -1 for k in T.serial(N))
        Y[i, 3] = sum((k for k in range(N) if X[i, k] > 0), 7)
        Y[i, 4] = max(T.int32(100 * X[i, k]) for k in range(N // 2, N))
        Y[i, 5] = 0 if N < 2 else min(T.int32(X[i, k] * 10) for k in [0, 1])


@tilec.kernel
def nested(
    A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), Y: T.Tensor((M,), "float32")
):
    for i in T.Parallel(M):
        k = T.float32(i)
        inner = sum(A[i, k] * sum(B[k, j] for j in range(N)) for k in range(K))
        both = sum(A[i, k] * B[k, j] for k in range(K) for j in range(k, N) if j != 1)
        if sum(B[0, j] for j in range(N)) > 0:
            inner += min(A[i, k] for k in range(K))
        elif max(B[0, j] for j in range(N)) > 0:
            inner -= 1
        Y[i] = inner + 2 * both + k


@tilec.kernel
def in_blocks(A: T.Tensor((M, K), "float32"), Y: T.Tensor((M,), "float32"), n: T.constexpr = 32):
    with T.Kernel(T.ceildiv(M, n), threads=n) as b:
        x = T.alloc_shared((64,), "float32")
        for t in T.Parallel(64):
            x[t] = t
        for t in T.Parallel(n):
            if b * n + t < M:
                own = sum(A[b * n + t, k] for k in range(K)) + sum(x[q] for q in range(64))
                Y[b * n + t] = own + sum(A.shape[d] for d in range(2)) + max(x[q] for q in range(2))


@pytest.mark.parametrize("m, n, k", SIZES)
def test_numbers(m: int, n: int, k: int, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((m, n)).astype("float32"), np.full((m, n), np.nan, "float32")
    softmax(x, y)
    e = np.exp(x.astype("float64") - x.max(1, keepdims=True))
    assert np.allclose(y, e / e.sum(1, keepdims=True))

    found = np.full((m, 6), -77, "int32")
    facts(x, found)
    expected = [
        (x > 0).sum(1), (x > 1.5).any(1), (x > -1).all(1), 7 + ((x > 0) * np.arange(n)).sum(1),
        (100 * x).astype("int32")[:, n // 2 :].max(1),
        (10 * x).astype("int32")[:, :2].min(1) if n > 1 else np.zeros(m),
    ]  # fmt: skip
    assert np.array_equal(found, np.stack(expected, 1))

    a, b = (rng.standard_normal(s).astype("float32") for s in ((m, k), (k, n)))
    out = np.full(m, np.nan, "float32")
    nested(a, b, out)
    seen = np.triu(np.ones((k, n))) * (np.arange(n) != 1)
    more = a.min(1) if b[0].sum() > 0 else -1.0 * (b[0].max() > 0)
    expected = a @ b.astype("float64").sum(1) + 2 * a @ (b * seen).sum(1) + more + np.arange(m)
    assert np.allclose(out, expected, atol=1e-3)

    out = np.full(m, np.nan, "float32")
    in_blocks(a, out)
    assert np.allclose(out, a.sum(1) + 63 * 32 + m + k + 1, rtol=1e-5)


def test_rows_are_folded_by_warps() -> None:
    args = [spec((4096, 4096), "float32"), spec((4096, 4096), "float32")]
    ptx = softmax.compile(*args, target="cuda:sm_90a").stages["ptx"]
    assert "shfl.sync" in ptx and ".v4" in ptx  # not a loop of one thread for each element


def test_what_is_asked_on_a_condition_stays_where_it_is() -> None:
    @tilec.kernel
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=1):
            Y[0] = max(X[k] for k in range(N)) if N > 1 else 0.0

    with pytest.raises(tilec.CompileError, match="a comprehension over a run-time range"):
        main.compile(spec((8,), "float32"), spec((1,), "float32"), target="cpu")
