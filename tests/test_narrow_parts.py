"""Products of which each warpgroup has fewer columns than a row of 128 bytes holds, where these are
contiguous in memory: operands lie in narrower swizzles, whose rows are a warpgroup's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

SM90 = "cuda:sm_90a"


def both(n: int, k: int, dtype: str, swapped: bool) -> Any:
    """C = A^T B, and S = B B^T, which reads B the other way."""
    m = 64

    @tilec.kernel
    def kernel(
        A: T.Tensor((k, m), dtype),
        B: T.Tensor((k, n), dtype),
        C: T.Tensor((m, n) if not swapped else (n, m), "float32"),
        S: T.Tensor((k, k), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a, b = T.alloc_shared((k, m), dtype), T.alloc_shared((k, n), dtype)
            c = T.alloc_fragment((m, n) if not swapped else (n, m), "float32")
            s = T.alloc_fragment((k, k), "float32")
            T.copy(A, a)
            T.copy(B, b)
            if swapped:
                T.gemm(b, a, c, transpose_A=True, clear_accum=True)
            else:
                T.gemm(a, b, c, transpose_A=True, clear_accum=True)
            T.gemm(b, b, s, transpose_B=True, clear_accum=True)
            T.copy(c, C)
            T.copy(s, S)

    return kernel


def arrays(n: int, k: int, dtype: str, swapped: bool, rng: np.random.Generator) -> list[np.ndarray]:
    a, b = ((rng.standard_normal((k, x)) / 4).astype(np.float16) for x in (64, n))
    c = np.full((64, n) if not swapped else (n, 64), np.nan, np.float32)
    return [a, b, c, np.full((k, k), np.nan, np.float32)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("n, row", [(64, 32), (32, 16), (192, 96), (48, 24)])
@pytest.mark.parametrize("swapped", [False, True])
def test_warpgroups_read_parts_of_rows(
    n: int, row: int, swapped: bool, rng: np.random.Generator
) -> None:
    a = arrays(n, 128, "float16", swapped, rng)
    kernel = both(n, 128, "float16", swapped)
    run_compiled(kernel, SM90, *a)
    x, y = a[0].astype(float), a[1].astype(float)
    want = x.T @ y
    np.testing.assert_allclose(a[2], want.T if swapped else want, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(a[3], y @ y.T, rtol=1e-3, atol=1e-3)
    chosen = str(kernel.compile(*a, target=SM90).stages["select_gemm"])
    if not swapped and n * 2 % 64 == 0:
        swizzle = 64 if row % 32 == 0 else 32
        assert f"wgmma.m64n{row}k16.f16, warps=(4, 2), swizzle={swizzle}" in chosen
    if n in (32, 64):
        assert "mma.m16n8k16.f16" not in chosen.replace("wgmma", "")
