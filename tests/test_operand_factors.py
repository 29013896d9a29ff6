"""Scales of operands, done behind the product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K = T.dynamic("M, N, K")
BLOCK = 32


def scaled(space: str, by: str = "block", bk: int = BLOCK) -> Any:
    """float16 by int8 with a scale for `BLOCK` elements of a row, or a row, or an element."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"),
        W: T.Tensor((N, K), "int8"),
        S: T.Tensor((N, T.dynamic("S1")), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by_):
            a_s = T.alloc_shared((64, bk), "float16")
            w_s = T.alloc_shared((64, bk), "int8")
            alloc = T.alloc_shared if space == "shared" else T.alloc_fragment
            a, w = alloc((64, bk), "float32"), alloc((64, bk), "float32")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, bk), num_stages=2):
                T.copy(A[by_ * 64, k * bk], a_s)
                T.copy(W[bx * 64, k * bk], w_s)
                T.copy(a_s, a)
                for i, j in T.Parallel(64, bk):
                    x = T.float32(w_s[i, j])
                    if by == "block":
                        w[i, j] = S[bx * 64 + i, (k * bk + j) // BLOCK] * x
                    elif by == "row":
                        w[i, j] = x * S[bx * 64 + i, 0] * 0.5
                    else:
                        w[i, j] = x * S[bx * 64 + i, k * bk + j]
                T.gemm(a, w, acc, transpose_B=True)
            T.copy(acc, C[by_ * 64, bx * 64])

    return kernel


def arrays(columns: int, rng: np.random.Generator) -> list[np.ndarray]:
    m, n, k = 40, 70, 96
    a = rng.standard_normal((m, k)).astype(np.float16)
    w = rng.integers(-9, 9, (n, k)).astype(np.int8)
    s = rng.standard_normal((n, columns)).astype(np.float32)
    return [a, w, s, np.full((m, n), np.nan, np.float32)]


def product(a: np.ndarray, w: np.ndarray, s: np.ndarray) -> np.ndarray:
    each = np.repeat(s.astype(np.float64), a.shape[1] // s.shape[1], axis=1)
    return a.astype(np.float64) @ (w.astype(np.float64) * each).T


@pytest.mark.covering(1)
@pytest.mark.parametrize("space", ["shared", "fragment"])
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_a_scale_for_each_block(space: str, target: str, rng: np.random.Generator) -> None:
    a, w, s, c = arrays(3, rng)
    report = tilec.simulate(scaled(space), a, w, s, c, target=target)
    assert report.ok, str(report)
    np.testing.assert_allclose(c, product(a, w, s), atol=1e-4)


def test_the_product_is_of_float16(rng: np.random.Generator) -> None:
    given = arrays(3, rng)
    stages = scaled("fragment").compile(*given, target="cuda:sm_90a").stages
    assert "w_factors = alloc shared<64xf32>" in stages["tile"]
    assert "wgmma" in stages["select_gemm"] and "fragment<64x32xf32>" not in stages["tile"]


def test_a_scale_for_each_row(rng: np.random.Generator) -> None:
    a, w, s, c = arrays(1, rng)
    kernel = scaled("shared", "row")
    report = tilec.simulate(kernel, a, w, s, c, target="cuda:sm_80")
    assert report.ok, str(report)
    np.testing.assert_allclose(c, product(a, w, s) / 2, atol=1e-4)
    assert "w_factors" in kernel.compile(a, w, s, c, target="cuda:sm_80").stages["tile"]


@pytest.mark.parametrize("by, bk", [("element", BLOCK), ("block", 2 * BLOCK)])
def test_what_changes_along_k_stays(by: str, bk: int, rng: np.random.Generator) -> None:
    given = arrays(96 if by == "element" else 3, rng)
    stages = scaled("shared", by, bk).compile(*given, target="cuda:sm_80").stages
    assert "factors" not in stages["tile"]


def test_scales_of_both_operands_in_a_loop_over_whole_tensors(rng: np.random.Generator) -> None:
    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "int8"),
        W: T.Tensor((N, K), "int8"),
        P: T.Tensor((M,), "float32"),
        Q: T.Tensor((N,), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        for i, j in T.Parallel(M, N):
            acc = T.float32(0)
            for k in range(K):
                acc += T.float32(A[i, k]) * P[i] * (T.float32(W[j, k]) * Q[j])
            C[i, j] = acc

    a, w = (rng.integers(-99, 99, (rows, 50)).astype(np.int8) for rows in (30, 20))
    p, q = (rng.standard_normal(len(x)).astype(np.float32) for x in (a, w))
    c = np.full((30, 20), np.nan, np.float32)
    tiles = {"BM": 32, "BN": 32, "BK": 32}
    report = tilec.simulate(kernel, a, w, p, q, c, target="cuda:sm_80", **tiles)
    assert report.ok, str(report)
    want = a.astype(np.float64) * p[:, None] @ (w.astype(np.float64) * q[:, None]).T
    np.testing.assert_allclose(c, want, rtol=1e-4, atol=0.05)
    stages = kernel.compile(a, w, p, q, c, target="cuda:sm_80", **tiles).stages
    assert "mma.m16n8k16" in stages["select_gemm"]
