"""Operands of products that hold numbers of float16 or bfloat16 only are of that dtype: the sums
are the same, and tensor cores compute them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

M, N, K = T.dynamic("M, N, K")
TARGETS = "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"


@tilec.kernel
def masked(
    A: T.Tensor((M, K), "float16"), mask: T.Tensor((M, K), "bool"),
    W: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32"),
    how: T.constexpr = "",
):  # fmt: skip
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        raw = T.alloc_shared((64, 32), "float16")
        seen = T.alloc_shared((64, 32), "bool")
        right = T.alloc_shared((32, 64), "float16")
        a, w = T.alloc_shared((64, 32), "float32"), T.alloc_shared((32, 64), "float32")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], raw)
            T.copy(mask[by * 64, k * 32], seen)
            T.copy(W[k * 32, bx * 64], right)
            for i, j in T.Parallel(64, 32):
                x = T.max(T.cast(raw[i, j], "float32"), 0.0)
                if how == "scaled":
                    x = x * (0.5 + j)  # not the same along K
                a[i, j] = T.if_then_else(seen[i, j], x, 0.0 if how != "constant" else 1e-9)
            for i, j in T.Parallel(32, 64):
                w[i, j] = right[i, j]
            T.gemm(a, w, acc)
            if how == "read":
                for i, j in T.Parallel(64, 32):
                    acc[i, j] += a[i, j]
        T.copy(acc, C[by * 64, bx * 64])


def specs(m: int = 70, n: int = 72, k: int = 104) -> list[Any]:
    shapes = ((m, k), "float16"), ((m, k), "bool"), ((k, n), "float16"), ((m, n), "float32")
    return [tilec.spec(*x) for x in shapes]


@pytest.mark.parametrize("target", TARGETS)
def test_operands_are_as_narrow_as_what_they_hold(target: str) -> None:
    text = masked.compile(*specs(), target=target).stages["infer_layouts"]
    (product,) = [line for line in text.splitlines() if " gemm %" in line]
    assert "%a[" in product and "%right[" in product, "the other operand is read where it lies"
    assert "instr=simt" not in product and "f16" in product
    assert "%w = alloc" not in text


@pytest.mark.parametrize("how", ["scaled", "constant", "read"])
def test_what_holds_other_numbers_stays(how: str) -> None:
    """Products, constants that float16 has not, and tiles that others read: of a tile that none
    reads there are pieces (`split_operands`)."""
    text = masked.compile(*specs(), target="cuda:sm_90a", how=how).stages["infer_layouts"]
    products = [line for line in text.splitlines() if " gemm %" in line]
    assert products and not any(".f16" in line for line in products)
    assert ("%a = alloc shared<64x32xf32" in text) == (how == "read")
    assert "%a_lower = alloc shared<64x32xtf32" in text


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", *TARGETS])
def test_numbers(target: str, rng: np.random.Generator) -> None:
    a = (rng.standard_normal((70, 104)) / 8).astype(np.float16)
    w = (rng.standard_normal((104, 72)) / 8).astype(np.float16)
    mask, c = rng.random((70, 104)) < 0.5, np.full((70, 72), np.nan, np.float32)
    run_compiled(masked, target, a, mask, w, c)
    want = np.where(mask, np.maximum(a, 0), 0).astype(float) @ w.astype(float)
    np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-5)


def of_two_bits(factor: int) -> Any:
    @tilec.kernel
    def kernel(
        X: T.Tensor((M, K), "int8"),
        W: T.Tensor((N, K // 4), "uint8"),
        Y: T.Tensor((M, N), "int32"),
    ):
        for i, j in T.Parallel(M, N):
            acc: T.int32 = 0
            for k in range(K):
                code = (W[j, k // 4] >> T.uint8(k % 4 * 2)) & 3
                acc += T.int32(X[i, k]) * (T.int32(code) * factor - 1)
            Y[i, j] = acc

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("factor", [1, 100])
@pytest.mark.parametrize("target", ["cpu", *TARGETS])
def test_ranges_tell_of_ints(target: str, factor: int, rng: np.random.Generator) -> None:
    """Codes less one are int8; times 100 they are not."""
    x, w = (rng.integers(0, 256, s).astype("uint8") for s in ((50, 104), (72, 26)))
    kernel, y = of_two_bits(factor), np.full((50, 72), 77, np.int32)
    if target != "cpu":
        made = kernel.compile(x.view(np.int8), w, y, target=target)
        text = made.stages["infer_layouts"]
        (product,) = [line for line in text.splitlines() if " gemm %" in line]
        assert ("instr=simt" in product) == (factor != 1)
    run_compiled(kernel, target, x.view(np.int8), w, y)
    codes = (w[..., None] >> np.arange(0, 8, 2) & 3).reshape(72, 104).astype(int) * factor - 1
    np.testing.assert_array_equal(y, x.view(np.int8).astype(int) @ codes.T)


@pytest.mark.covering(1)
@pytest.mark.parametrize("low", [8, 2044])
@pytest.mark.parametrize("target", ["cpu", *TARGETS])
def test_ranges_tell_of_ints_as_floats(target: str, low: int, rng: np.random.Generator) -> None:
    """Four bits less 8 are float16 in the dtype of the sum, too; less 2044 bfloat16 has not all."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((M, K), "bfloat16"), W: T.Tensor((N, K // 2), "uint8"),
        P: T.Tensor((N,), "float32"), Y: T.Tensor((M, N), "float32"),
    ):  # fmt: skip
        for i, j in T.Parallel(M, N):
            acc = 0.0
            for k in range(K):
                code = T.cast(W[j, k // 2] >> (k % 2 * 4), "int32") & 15
                acc += T.cast(X[i, k], "float32") * (T.cast(code - low, "float32") * P[j])
            Y[i, j] = acc

    w, p = rng.integers(0, 256, (72, 52)).astype(np.uint8), rng.random(72).astype(np.float32)
    x, y = (rng.standard_normal((50, 104))).astype(ml_dtypes.bfloat16), np.zeros((50, 72), "f")
    if target != "cpu":
        text = kernel.compile(x, w, p, y, target=target).stages["infer_layouts"]
        products = [line for line in text.splitlines() if " gemm %" in line]
        assert (len(products) == 1 and "bf16" in products[0]) == (low == 8)
    run_compiled(kernel, target, x, w, p, y)
    codes = (w[..., None] >> np.array([0, 4]) & 15).reshape(72, 104) - float(low)
    want = x.astype(float) @ (codes * p[:, None].astype(float)).T
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-3 * low)
