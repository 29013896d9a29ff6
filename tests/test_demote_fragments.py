"""Operands of products that are indexed as only shared memory can be.

An instruction used to be chosen for A in registers, which was put into shared memory later: wgmma
cannot read 8-bit elements there that have M contiguous, and the compiler gave up (program 436 of
seed 112226 of the fuzzer, on an H200)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M = T.dynamic("M")
SUMS = {"int8": "int32", "float8_e4m3": "float32", "float16": "float32", "float32": "float32"}


def product(dtype: str, ta: bool, tb: bool) -> Any:
    a_shape, b_shape = (32, 64) if ta else (64, 32), (32, 32)

    @tilec.kernel
    def kernel(
        A: T.Tensor(a_shape, dtype),
        B: T.Tensor(b_shape, dtype),
        C: T.Tensor((64, 32), SUMS[dtype]),
        D: T.Tensor((1,), SUMS[dtype]),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment(a_shape, dtype)
            b = T.alloc_shared(b_shape, dtype)
            acc = T.alloc_fragment((64, 32), SUMS[dtype])
            for i, j in T.Parallel(*a_shape):
                a[i, j] = A[i, j]
            T.copy(B, b)
            T.gemm(a, b, acc, transpose_A=ta, transpose_B=tb, clear_accum=True)
            T.copy(acc, C)
            D[0] = T.cast(a[3, 5], SUMS[dtype])  # of one thread, whichever it is

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("dtype", SUMS)
def test_an_operand_that_threads_index(dtype: str, ta: bool, tb: bool, target: str) -> None:
    if "float8" in dtype and target == "hip:gfx942":
        pytest.skip("gfx942 has another float8")
    rng = np.random.default_rng(0)
    shape = (32, 64) if ta else (64, 32)
    a, b = (rng.integers(-3, 4, s).astype("float32") for s in (shape, (32, 32)))
    if "float8" in dtype:
        import ml_dtypes

        a, b = (x.astype(ml_dtypes.float8_e4m3fn) for x in (a, b))
    else:
        a, b = (x.astype(dtype) for x in (a, b))
    c, d = np.zeros((64, 32), SUMS[dtype]), np.zeros(1, SUMS[dtype])
    kernel = product(dtype, ta, tb)
    report = tilec.simulate(kernel, a, b, c, d, target=target)
    assert not report.findings, report
    x, y = a.astype("float64"), b.astype("float64")
    np.testing.assert_array_equal(c, (x.T if ta else x) @ (y.T if tb else y))
    assert d[0] == x[3, 5]
    stages = kernel.compile(a, b, c, d, target=target).stages
    alloc = re.search(r"%a = alloc (\w+)<", stages["demote_fragments"])
    assert alloc is not None and alloc[1] == "shared"


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_a_part_of_an_accumulator_by_the_index_of_a_loop_inside(target: str) -> None:
    """Such a part is not one box of the loop's: it is no loop over all of the accumulator."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((16, 16), "float16"),
        B: T.Tensor((16, 16), "float16"),
        Y: T.Tensor((16, 16), "float32"),
    ):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((16, 16), "float16")
            b = T.alloc_shared((16, 16), "float16")
            c = T.alloc_fragment((16, 16), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.clear(c)
            T.gemm(a, b, c)
            for i in T.Parallel(4):
                for v in T.vectorized(2):
                    c[i, v] = 3.0 + i
            T.copy(c, Y)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (16, 16)).astype("float16") for _ in range(2))
    y = np.full((16, 16), np.nan, "float32")
    run(kernel, target, a, b, y)
    want = a.astype("float32") @ b.astype("float32")
    want[:4, :2] = 3 + np.arange(4)[:, None]
    assert (y == want).all()


@tilec.kernel
def normalised(
    A: T.Tensor((M, 256), "float32"), C: T.Tensor((M, 256), "float32"), D: T.Tensor((M,), "float32")
):
    """Rows over their sums, twice that where the sum is large: elements and branches ask for it."""
    with T.Kernel(M, threads=128) as i:
        s, x = T.alloc_fragment((1,), "float32"), T.alloc_fragment((256,), "float32")
        T.copy(A[i, 0], x)
        T.reduce_sum(x, s, dim=0)
        for j in T.Parallel(256):
            x[j] = x[j] / s[0]
        if s[0] > 128.0:
            for j in T.Parallel(256):
                x[j] = x[j] * 2
        D[i] = s[0] * 2
        T.copy(x, C[i, 0])


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_the_one_element_of_a_fragment_is_held_by_all(target: str) -> None:
    a = np.random.default_rng(0).random((20, 256), np.float32)
    c, d = np.full_like(a, np.nan), np.full(20, np.nan, np.float32)
    run(normalised, target, a, c, d)
    sums = a.astype(float).sum(1, keepdims=True)
    np.testing.assert_allclose(c, a / sums * np.where(sums > 128, 2, 1), rtol=1e-5)
    np.testing.assert_allclose(d, 2 * sums[:, 0], rtol=1e-5)
    if target != "cpu":
        stages = normalised.compile(a, c, d, target=target).stages
        assert "shared<1xf32" not in stages["insert_sync"]
        assert stages["insert_sync"].count(" barrier") == 1  # that of the sum
