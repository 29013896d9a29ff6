"""Programs that a GPU gets wrong, and nothing is done about it yet.

On Hopper ptxas makes an mma of float8 of conversions to float16, and converts the upper half of a
register that it finds to be 0 from a number of no meaning where LLVM did not find it so (a shuffled
0): the second fault of `tilec.codegen.ptxas_faults`, inside of an instruction this time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as T


@tilec.kernel
def product(
    A: T.StridedTensor((16, 23), (26, 1), "float8_e4m3"),
    B: T.Tensor((8, 25), "float8_e4m3"),
    C: T.Tensor((10, 70), "float16"),
    D: T.Tensor((8, 96), "int16"),
):
    with T.Kernel(3, 1, threads=256) as (bx, by):
        s = T.alloc_shared((8, 32), "int64")
        a = T.alloc_fragment((32, 16), "float8_e4m3")
        b = T.alloc_shared((32, 24), "float8_e4m3")
        c = T.alloc_fragment((16, 24), "float32")
        for i, j in T.Parallel(8, 32):
            s[i, j] = T.cast(2.0, "int64")
        T.copy(A[by * 8, 2], a)
        T.copy(B[0, 0], b)
        T.gemm(a, b, c, transpose_A=True, policy=T.GemmWarpPolicy.FullCol, clear_accum=True)
        T.copy(c, C[by * 16, bx * 24])
        T.copy(s, D[by * 8, bx * 32])


def arguments(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    A = rng.integers(-4, 5, (16, 26)).astype(ml_dtypes.float8_e4m3fn)[:, :23]
    B = rng.integers(-4, 5, (8, 25)).astype(ml_dtypes.float8_e4m3fn)
    left, right = np.zeros((32, 16)), np.zeros((32, 24))
    left[:16], right[:8] = A[:, 2:18], B[:, :24]
    return A, B, np.tile(left.T @ right, 3)[:10, :70]


def test_in_the_simulator(rng: np.random.Generator) -> None:
    A, B, wanted = arguments(rng)
    C, D = np.zeros((10, 70), np.float16), np.zeros((8, 96), np.int16)
    assert not tilec.simulate(product, A, B, C, D, target="cuda:sm_90a").findings
    np.testing.assert_array_equal(C, wanted)


@pytest.mark.gpu
@pytest.mark.xfail(reason="nan on an H200 (fuzz, seed 78, program 1264); right in the simulator")
def test_float8_by_mma_of_a_fragment(rng: np.random.Generator, torch: Any) -> None:
    A, B, wanted = arguments(rng)
    wide = torch.zeros((16, 26), dtype=torch.uint8, device="cuda")
    wide[:, :23] = torch.from_numpy(A.view(np.uint8).copy()).cuda()
    a = wide.view(torch.float8_e4m3fn)[:, :23]
    b = torch.from_numpy(B.view(np.uint8)).cuda().view(torch.float8_e4m3fn)
    C = torch.full((10, 70), float("nan"), dtype=torch.float16, device="cuda")
    D = torch.zeros((8, 96), dtype=torch.int16, device="cuda")
    product(a, b, C, D)
    np.testing.assert_array_equal(C.cpu().numpy(), wanted)
