"""Sums of products of whole loops whose ends and conditions follow from rows and columns: T.gemm of
what tiles have of them, and the PerformanceWarning where there is none."""

import warnings
from typing import Any

import numpy as np
import pytest
from simulated import run, traced

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, H, M, N, K = T.dynamic("B, H, M, N, K")
TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
f16, f32, i32 = "float16", "float32", "int32"
TILES = {"BM": 32, "BN": 32, "BK": 32}


def numbers(dtype: str, *shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def is_product(kernel: Any, target: str, *args: Any, **sizes: int) -> bool:
    return "gemm" in traced(kernel, *args, target=target, **sizes)


@tilec.kernel
def lower(L: T.Tensor((M, M), f16), X: T.Tensor((M, N), f16), Y: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(i + 1):
            acc += T.cast(L[i, k], f32) * T.cast(X[k, j], f32)
        Y[i, j] = acc


@tilec.kernel
def upper(L: T.Tensor((M, M), f16), X: T.Tensor((M, N), f16), Y: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(M):
            if k >= i:
                acc += T.cast(L[i, k], f32) * T.cast(X[k, j], f32)
        Y[i, j] = acc


@tilec.kernel
def band(L: T.Tensor((M, M), f16), X: T.Tensor((M, N), f16), Y: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(T.min(i + 9, M)):
            if i - 5 < k:
                acc += T.cast(L[i, k], f32) * T.cast(X[k, j], f32)
        Y[i, j] = acc


@tilec.kernel
def by_columns(
    L: T.Tensor((M, M), f16), X: T.Tensor((M, M), f16), Y: T.Tensor((M, M), f32)
) -> None:
    for i, j in T.Parallel(M, M):
        acc: T.float32 = 0
        for k in range(j + 1):
            acc += T.cast(L[i, k], f32) * T.cast(X[k, j], f32)
        Y[i, j] = acc


PARTS = {"lower": np.tril, "upper": np.triu, "band": lambda x: np.triu(np.tril(x, 8), -4)}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [lower, upper, band])
def test_ends_that_follow_from_rows(kernel: Any, target: str) -> None:
    a, x = numbers(f16, 77, 77), numbers(f16, 77, 45)
    y = np.full((77, 45), 77, f32)
    assert is_product(kernel, target, a, x, y, **TILES)
    run(kernel, target, a, x, y, **TILES)
    want = PARTS[kernel.__name__](a.astype(np.float64)) @ x
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("target", TARGETS)
def test_ends_that_follow_from_columns(target: str) -> None:
    a, x = numbers(f16, 77, 77), numbers(f16, 77, 77)
    y = np.full((77, 77), 77, f32)
    assert is_product(by_columns, target, a, x, y, **TILES)
    run(by_columns, target, a, x, y, **TILES)
    np.testing.assert_allclose(y, a.astype(np.float64) @ np.triu(x), rtol=1e-3, atol=1e-3)


def test_a_tile_has_no_more_steps_than_its_rows_say() -> None:
    """Else both halves of all products would be added up."""
    large = tilec.spec((1024, 1024), f16)
    made = lower.compile(large, large, tilec.spec((1024, 1024), f32), target="cuda:sm_90a", **TILES)
    assert "min" in made.stages["tile"]
    a, x = numbers(f16, 77, 77), numbers(f16, 77, 45)
    x[64:] = np.nan  # which rows below do not add
    y = np.full((77, 45), 77, f32)
    run(lower, "cuda:sm_90a", a, x, y, **TILES)
    want = np.tril(a.astype(np.float64))[:64, :64] @ x[:64]
    np.testing.assert_allclose(y[:64], want, rtol=1e-3, atol=1e-3)


@tilec.kernel
def ragged(
    A: T.Tensor((B, M, K), f16), W: T.Tensor((B, K, N), f16), length: T.Tensor((B,), i32),
    Y: T.Tensor((B, M, N), f32),
) -> None:  # fmt: skip
    for b, i, j in T.Parallel(B, M, N):
        acc: T.float32 = 0
        for k in range(length[b]):
            acc += T.cast(A[b, i, k], f32) * T.cast(W[b, k, j], f32)
        Y[b, i, j] = acc


@tilec.kernel
def ragged_rows(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), length: T.Tensor((M,), i32),
    Y: T.Tensor((M, N), f32),
) -> None:  # fmt: skip
    for i, j in T.Parallel(M, N):
        end = T.min(length[i], K)
        acc: T.float32 = 0
        for k in range(end):
            acc += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)
        Y[i, j] = acc


@pytest.mark.parametrize("target", TARGETS)
def test_ends_that_are_read(target: str) -> None:
    """What is behind the end may be anything, of a batch in both operands."""
    a, w = numbers(f16, 3, 37, 45), numbers(f16, 3, 45, 20)
    length = np.array([45, 0, 17], i32)
    want = np.zeros((3, 37, 20))
    for b, n in enumerate(length):
        want[b] = a[b, :, :n].astype(np.float64) @ w[b, :n]
        a[b, :, n:] = w[b, n:] = np.nan
    y = np.full((3, 37, 20), 77, f32)
    assert is_product(ragged, target, a, w, length, y, **TILES)
    run(ragged, target, a, w, length, y, **TILES)
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-3)
    a, w = numbers(f16, 37, 45), numbers(f16, 45, 20)
    length = (np.arange(37) * 5 % 49).astype(i32)
    part = a * (np.arange(45) < length[:, None])
    y = np.full((37, 20), 77, f32)
    assert is_product(ragged_rows, target, a, w, length, y, **TILES)
    run(ragged_rows, target, a, w, length, y, **TILES)
    np.testing.assert_allclose(y, part.astype(np.float64) @ w, rtol=1e-3, atol=1e-3)


@tilec.kernel
def mirrored(A: T.Tensor((N, K), f16), Y: T.Tensor((N, N), f32)) -> None:
    for i, j in T.Parallel(N, N):
        if j <= i:
            acc: T.float32 = 0
            for k in range(K):
                acc += T.cast(A[i, k], f32) * T.cast(A[j, k], f32)
            Y[i, j] = acc
            Y[j, i] = acc


@tilec.kernel
def below(A: T.Tensor((M, K), f16), W: T.Tensor((K, M), f16), Y: T.Tensor((M, M), f32)) -> None:
    for i, j in T.Parallel(M, M):
        if j < i and i < M - 1:
            acc: T.float32 = 1
            for k in range(K):
                acc += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)
            Y[i, j] = acc
        else:
            Y[i, j] = -1


@pytest.mark.parametrize("target", TARGETS)
def test_conditions_around_sums(target: str) -> None:
    a, w = numbers(f16, 77, 45), numbers(f16, 45, 77)
    y = np.full((77, 77), 77, f32)
    assert is_product(mirrored, target, a, y, **TILES)
    run(mirrored, target, a, y, **TILES)
    np.testing.assert_allclose(y, a.astype(np.float64) @ a.T, rtol=1e-3, atol=1e-3)
    assert is_product(below, target, a, w, y, **TILES)
    run(below, target, a, w, y, **TILES)
    want = np.where(np.tri(77, 77, -1) > 0, a.astype(np.float64) @ w + 1, -1)
    want[76] = -1
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-3)


@tilec.kernel
def diagonals(
    D: T.Tensor((M, 33), f16), X: T.Tensor((M, N), f16), Y: T.Tensor((M, N), f32)
) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for d in range(33):
            k = i + d - 16
            if 0 <= k < M:
                acc += T.cast(D[i, d], f32) * T.cast(X[k, j], f32)
        Y[i, j] = acc


@tilec.kernel
def filtered(W: T.Tensor((K,), f16), X: T.Tensor((M, N), f16), Y: T.Tensor((M, N), f32)) -> None:
    """A causal convolution with one filter."""
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for d in range(T.min(i + 1, K)):
            acc += T.cast(W[d], f32) * T.cast(X[i - d, j], f32)
        Y[i, j] = acc


@pytest.mark.parametrize("target", TARGETS)
def test_sums_along_diagonals(target: str) -> None:
    d, x = numbers(f16, 77, 33), numbers(f16, 77, 45)
    y = np.full((77, 45), 77, f32)
    full = np.zeros((77, 77 + 32))
    for i in range(77):
        full[i, i : i + 33] = d[i]
    assert is_product(diagonals, target, d, x, y, **TILES)
    run(diagonals, target, d, x, y, **TILES)
    np.testing.assert_allclose(y, full[:, 16:-16] @ x, rtol=1e-3, atol=1e-3)
    w = numbers(f16, 20)
    full = np.array([[w[i - k] if 0 <= i - k < 20 else 0 for k in range(77)] for i in range(77)])
    assert is_product(filtered, target, w, x, y, **TILES)
    run(filtered, target, w, x, y, **TILES)
    np.testing.assert_allclose(y, full.astype(np.float64) @ x, rtol=1e-3, atol=1e-3)


@tilec.kernel
def chosen(A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), Y: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(i + 1):
            if A[i, k] > 0:
                acc += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)
        Y[i, j] = acc


@tilec.kernel
def chosen_around(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), Y: T.Tensor((M, N), f32)
) -> None:
    for i, j in T.Parallel(M, N):
        if Y[i, j] > 0:
            acc: T.float32 = 0
            for k in range(K):
                acc += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)
            Y[i, j] = acc


@pytest.mark.parametrize("kernel", [chosen, chosen_around])
def test_what_stays_a_loop_is_told(kernel: Any) -> None:
    args = [tilec.spec((1000, 1000), f16)] * 2 + [tilec.spec((1000, 1000), f32)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not is_product(kernel, "cuda:sm_90a", *args)
    assert any(issubclass(w.category, tilec.PerformanceWarning) for w in caught)


@tilec.kernel
def depthwise(
    X: T.Tensor((B, M, N), "float16"), W: T.Tensor((4, N), "float16"),
    Y: T.Tensor((B, M, N), "float32"),
) -> None:  # fmt: skip
    for b, t, c in T.Parallel(B, M, N):
        acc = 0.0
        for k in range(4):
            if t + k >= 3:
                acc += T.float32(X[b, t + k - 3, c]) * T.float32(W[k, c])
        Y[b, t, c] = acc


def test_few_taps_are_no_product(rng: np.random.Generator) -> None:
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((2, 37, 20), (4, 20)))
    y = np.full(x.shape, np.nan, np.float32)
    text = depthwise.compile(x, w, y, target="cuda:sm_90a").stages["tile"]
    assert "gemm" not in text and "parallel" in text
    run(depthwise, "cuda:sm_90a", x, w, y)
    padded = np.pad(x.astype(float), ((0, 0), (3, 0), (0, 0)))
    expected = sum(padded[:, k : k + 37] * w[k].astype(float) for k in range(4))
    np.testing.assert_allclose(y, expected, atol=1e-5)
