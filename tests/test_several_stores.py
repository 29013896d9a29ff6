"""A loop over elements that fills several tiles is a copy of each."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

SM90 = "cuda:sm_90a"
M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def both(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            for i, j in T.Parallel(64, 64):
                a[i, j] = A[by * 64 + i, k * 64 + j]
                b[i, j] = B[bx * 64 + i, k * 64 + j]
            T.gemm(a, b, acc, transpose_B=True)
        T.copy(acc, C[by * 64, bx * 64])


@tilec.kernel
def chosen(
    A: T.Tensor((M, 64), "float32"), rows: T.Tensor((N,), "int32"), C: T.Tensor((64,), "float32")
):
    """Sums of products of rows that a table names with the next ones; not a product of matrices."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((32, 64), "float32")
        b = T.alloc_shared((32, 64), "float32")
        acc = T.alloc_fragment((32, 64), "float32")
        sums = T.alloc_fragment((64,), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(N, 32), num_stages=2):
            for i, j in T.Parallel(32, 64):
                row = rows[k * 32 + i]
                a[i, j] = T.if_then_else(k * 32 + i < N, A[row, j], 0)
                b[i, j] = T.if_then_else(k * 32 + i < N, A[row + 1, j], 0)
            for i, j in T.Parallel(32, 64):
                acc[i, j] += a[i, j] * b[i, j]
        T.reduce_sum(acc, sums, dim=0)
        T.copy(sums, C)


def test_both_tiles_of_a_product(rng: np.random.Generator) -> None:
    made = both.compile(
        *[tilec.spec((4096, 4096), d) for d in ("float16", "float16", "float32")], target=SM90
    )
    assert made.stages["plan"].count(", by tma") == 2 and made.plan.specialise
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((70, 96), (80, 96)))
    c = np.empty((70, 80), np.float32)
    report = tilec.simulate(both, a, b, c, target=SM90)
    assert report.ok, report
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float).T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", [SM90, "cuda:sm_80"])
def test_rows_of_a_table(target: str, rng: np.random.Generator) -> None:
    a, rows = rng.standard_normal((40, 64)).astype(np.float32), rng.integers(-1, 40, 70, np.int32)
    c = np.empty(64, np.float32)
    assert chosen.compile(a, rows, c, target=target).stages["plan"].count("by cp_async") == 2
    report = tilec.simulate(chosen, a, rows, c, target=target)
    assert report.ok, report
    padded = np.concatenate([a, np.zeros((2, 64), np.float32)])  # rows -1 and 40 are out of bounds
    np.testing.assert_allclose(c, (padded[rows] * padded[rows + 1]).sum(0), rtol=1e-4, atol=1e-4)
