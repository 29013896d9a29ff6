"""Products whose result is a part of a fragment: a fragment of its own meanwhile."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError

pytestmark = [
    pytest.mark.usefixtures("unassembled"),
    pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning"),
    pytest.mark.turns,
]

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


@tilec.kernel
def of_experts(
    A: T.Tensor((4, 16, 64), "float16"), B: T.Tensor((4, 64, 32), "float16"),
    C: T.Tensor((4, 16, 32), "float32"), n: T.int32,
):  # fmt: skip
    with T.Kernel(1, threads=64):
        a, b = T.alloc_shared((16, 64), "float16"), T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((4, 16, 32), "float32")
        T.fill(acc, 1.0)
        for e in T.serial(n):
            T.copy(A[e, :, :], a)
            T.copy(B[e, :, :], b)
            T.gemm(a, b, acc[e, :, :])
        T.copy(acc, C)


@pytest.mark.parametrize("target", TARGETS)
def test_one_of_a_number_of_the_run_time(target: str, rng: np.random.Generator) -> None:
    a = rng.integers(-3, 4, (4, 16, 64)).astype(np.float16)
    b = rng.integers(-3, 4, (4, 64, 32)).astype(np.float16)
    c = np.zeros((4, 16, 32), np.float32)
    run(of_experts, target, a, b, c, 3)
    want = 1 + a.astype(np.float64) @ b.astype(np.float64)
    want[3] = 1
    np.testing.assert_array_equal(c, want)


@tilec.kernel
def of_quarters(
    A: T.Tensor((32, 32), "float16"), B: T.Tensor((32, 64), "float16"),
    C: T.Tensor((32, 64), "float32"),
):  # fmt: skip
    with T.Kernel(1, threads=64):
        a, b = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((32, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(acc)
        for h in T.unroll(2):
            T.gemm(a[h * 16 : h * 16 + 16, :], b[:, 0:32], acc[h * 16 : h * 16 + 16, 0:32])
        T.gemm(a, b[:, 32:64], acc[:, 32:64], clear_accum=True)
        T.copy(acc, C)


@pytest.mark.parametrize("target", TARGETS)
def test_rows_and_columns(target: str, rng: np.random.Generator) -> None:
    a = rng.integers(-3, 4, (32, 32)).astype(np.float16)
    b = rng.integers(-3, 4, (32, 64)).astype(np.float16)
    c = np.zeros((32, 64), np.float32)
    run(of_quarters, target, a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))
    tile = of_quarters.compile(a, b, c, target="cpu").stages["tile"]
    assert tile.count("alloc fragment<16x32xf32>") == 1  # of the loop, whose index is known
    # What is set is not read; the last copy is C's.
    assert tile.count("copy %acc[") == tile.count("copy %acc_part") == 2


def test_another_shape() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((16, 32), "float16")):
        with T.Kernel(1, threads=64):
            a, acc = T.alloc_shared((16, 32), "float16"), T.alloc_fragment((32, 64), "float32")
            T.copy(A, a)
            T.gemm(a, a, acc[0:16, 0:32], transpose_B=True)

    with pytest.raises(CompileError, match=r"gemm gives a \(16, 16\) tile, but C is acc_part"):
        kernel.compile(tilec.spec((16, 32), "float16"), target="cpu")
