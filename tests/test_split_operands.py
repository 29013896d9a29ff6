"""Products of float32 numbers by those of float16 or bfloat16: two or three of TF32."""

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K = T.dynamic("M, N, K")
f16, f32 = "float16", "float32"


@tilec.kernel
def left(
    A: T.Tensor((M, K), f32), B: T.Tensor((K, N), f16), C: T.Tensor((M, N), f32),
    rows: T.constexpr = 64, tf32: T.constexpr = False,
) -> None:  # fmt: skip
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, rows), threads=128) as (bx, by):
        a = T.alloc_shared((rows, 32), f32)
        b = T.alloc_shared((32, 32), f32)
        c = T.alloc_fragment((rows, 32), f32)
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * rows, k * 32], a)
            for i, j in T.Parallel(32, 32):
                b[i, j] = T.float32(B[k * 32 + i, bx * 32 + j])
            T.gemm(a, b, c, allow_tf32=tf32)
        T.copy(c, C[by * rows, bx * 32])


def normed(gains: str) -> Any:
    @tilec.kernel
    def main(
        X: T.Tensor((M, K), f16), G: T.Tensor((K,), gains), W: T.Tensor((N, K), f16),
        Y: T.Tensor((M, N), f32),
    ) -> None:  # fmt: skip
        for i, j in T.Parallel(M, N):
            acc = 0.0
            for k in range(K):
                acc += T.float32(X[i, k]) * (T.float32(G[k]) * T.float32(W[j, k]))
            Y[i, j] = acc

    return main


def products(kernel: Any, target: str, *arrays: Any, **given: Any) -> list[str]:
    """Those of a kernel's loop, as it is traced."""
    text = kernel.compile(*arrays, target=target, **given).stages["tile"]
    return [line for line in text.splitlines() if line.strip().startswith("gemm")]


def arrays(m: int, n: int, k: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    scales = np.exp2(rng.integers(-20, 20, (m, k)))
    a = (rng.standard_normal((m, k)) * scales).astype(f32)
    return a, rng.standard_normal((k, n)).astype(f16), np.full((m, n), np.nan, f32)


@pytest.mark.parametrize("target", ("cuda:sm_90a", "cuda:sm_80"))
def test_products_are_exact(target: str, rng: np.random.Generator) -> None:
    a, b, c = arrays(70, 35, 100, rng)
    a[3, 5], a[4, 6], a[5, 7] = np.inf, np.nan, np.finfo(f32).max
    found = products(left, target, a, b, c)
    assert len(found) == 3 and all("allow_tf32" in line for line in found)
    run(left, target, a, b, c)
    expected = a.astype(float) @ b.astype(float)
    sizes = np.abs(a).astype(float) @ np.abs(b).astype(float)
    for row in (3, 4):
        np.testing.assert_array_equal(c[row], expected[row].astype(f32))
    rest = [r for r in range(70) if r not in (3, 4)]
    with np.errstate(over="ignore"):
        expected = expected.astype(f32).astype(float)
    finite = np.isfinite(expected[rest])
    errors = np.abs(c[rest].astype(float)[finite] - expected[rest][finite])
    assert (errors <= 6 * 2.0**-24 * sizes[rest][finite]).all()


@pytest.mark.parametrize("gains, pieces", [(f16, 2), (f32, 3)])
def test_the_other_operand(gains: str, pieces: int, rng: np.random.Generator) -> None:
    """What whole loops compute on its way into a tile, of which there is none but its pieces': a
    product of two halves has 22 bits."""
    x, w = (rng.standard_normal(s).astype(f16) for s in ((33, 80), (40, 80)))
    g = rng.standard_normal(80).astype(gains)
    w[:, 0], w[3, 5], x[:, 5] = 6e-8, np.inf, abs(x[:, 5]) + 1
    y = np.full((33, 40), np.nan, f32)
    sizes, kernel = {"BM": 64, "BN": 64, "BK": 32}, normed(gains)
    assert len(products(kernel, "cuda:sm_90a", x, g, w, y, **sizes)) == pieces
    text = kernel.compile(x, g, w, y, target="cuda:sm_90a", **sizes).stages["tile"]
    assert text.count("alloc shared<64x32xtf32>") == pieces
    assert text.count("alloc shared<64x32xf32>") == 1  # x's
    run(kernel, "cuda:sm_90a", x, g, w, y, **sizes)
    expected = x.astype(float) @ (g.astype(float) * w.astype(float)).T
    np.testing.assert_allclose(y, expected, atol=2e-5)


def test_what_is_not_split(rng: np.random.Generator) -> None:
    """Where TF32 is asked for, no instruction takes the tile, or there is no TF32."""
    a, b, c = arrays(40, 32, 64, rng)
    assert len(products(left, "cuda:sm_90a", a, b, c, tf32=True)) == 1
    assert len(products(left, "cuda:sm_90a", a, b, c, rows=40)) == 1
    assert len(products(left, "hip:gfx942", a, b, c)) == 1
