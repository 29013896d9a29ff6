"""Sums of products of whole tensors that T.gemm does not give: they stay loops, and are told."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

B, L, M, N, K = T.dynamic("B, L, M, N, K")
f16, f32 = "float16", "float32"


@tilec.kernel
def sum_of_halves(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f16)
) -> None:
    for i, j in T.Parallel(M, N):
        acc = T.alloc_var(f16)
        acc = 0
        for k in range(K):
            acc += A[i, k] * W[k, j]
        C[i, j] = acc


@tilec.kernel
def halves_in_place(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f16)
) -> None:
    for i, j in T.Parallel(M, N):
        C[i, j] = T.cast(0, f16)
        for k in range(K):
            C[i, j] += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)


@tilec.kernel
def product_of_halves(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f16)
) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += A[i, k] * W[k, j]
        C[i, j] = acc


@tilec.kernel
def condition(A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f16)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            if A[i, k] > 0:
                acc += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)
        C[i, j] = acc


@tilec.kernel
def last_one(A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f16)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        a: T.float32 = 0
        for k in range(K):
            a = T.cast(A[i, k], f32)
            acc += a * T.cast(W[k, j], f32)
        C[i, j] = acc + a


@tilec.kernel
def series(A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f16)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 1
        for k in range(K):
            part = acc * T.cast(W[k, j], f32) / 64
            acc += part * T.cast(A[i, k], f32)
        C[i, j] = acc


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(f16)


def halves(a: np.ndarray, w: np.ndarray, single: bool) -> np.ndarray:
    c = np.zeros((len(a), w.shape[1]), np.float16)
    for k in range(len(w)):
        one, other = a[:, [k]], w[k]
        product = one.astype(f32) * other.astype(f32) if single else one * other
        c = (c + product).astype(np.float16)
    return c


LOOPS: dict[str, tuple[Any, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "of halves": (sum_of_halves, lambda a, w: halves(a, w, False)),
    "halves in place": (halves_in_place, lambda a, w: halves(a, w, True)),
    "condition": (condition, lambda a, w: np.maximum(a, 0).astype(np.float64) @ w),
    "last": (last_one, lambda a, w: a.astype(np.float64) @ w + a[:, -1:]),
    "series": (series, lambda a, w: (1 + a[:, :, None].astype(np.float64) * w / 64).prod(1)),
}


@pytest.mark.parametrize("kernel, wanted", LOOPS.values(), ids=LOOPS)
def test_what_a_product_would_not_give_stays_a_loop(
    kernel: Any, wanted: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> None:
    a, w = numbers(9, 21), numbers(21, 10)
    for target in ("cpu", "cuda:sm_90a"):
        c = np.full((9, 10), 77, f16)
        assert "gemm" not in kernel.compile(a, w, c, target=target).stages["tile"]
        run(kernel, target, a, w, c)
        np.testing.assert_allclose(c, wanted(a, w), rtol=5e-3, atol=2e-2)


@tilec.kernel
def strided(
    X: T.Tensor((B, K, L), f16), W: T.Tensor((N, K), f16), Y: T.Tensor((B, N, M), f16)
) -> None:
    for b, n, i in T.Parallel(B, N, M):
        acc: T.float32 = 0
        for k in range(K):
            acc += T.cast(X[b, k, 2 * i], f32) * T.cast(W[n, k], f32)
        Y[b, n, i] = acc


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a"])
def test_tiles_go_along_all_pixels_and_not_along_images(target: str) -> None:
    x, w, y = numbers(3, 21, 30), numbers(10, 21), np.full((3, 10, 15), 77, f16)
    assert "gemm" in strided.compile(x, w, y, target=target).stages["tile"]
    run(strided, target, x, w, y)
    wanted = np.einsum("bki,nk->bni", x[:, :, ::2].astype(np.float64), w)
    np.testing.assert_allclose(y, wanted, rtol=5e-3, atol=2e-2)


@tilec.kernel
def scaled(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), S: T.Tensor((K,), f16),
    C: T.Tensor((M, N), f16),
) -> None:  # fmt: skip
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            both = T.cast(A[i, k], f32) * T.cast(W[k, j], f32)
            acc += both * T.cast(S[k], f32)
        C[i, j] = acc


@tilec.kernel
def counted(A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), C: T.Tensor((M, N), f16)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        most: T.float32 = 0
        for k in range(K):
            acc += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)
            most = T.max(most, T.cast(A[i, k], f32))
        C[i, j] = acc * most


@tilec.kernel
def distances(A: T.Tensor((M, K), f16), W: T.Tensor((N, K), f16), C: T.Tensor((M, N), f16)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            d = T.cast(A[i, k], f32) - T.cast(W[j, k], f32)
            acc += d * d
        C[i, j] = acc


def told(kernel: Any, *shapes: tuple[int, ...], target: str = "cuda:sm_90a") -> set[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel.compile(*(tilec.spec(shape, f16) for shape in shapes), target=target)
    return {str(w.message) for w in caught if issubclass(w.category, tilec.PerformanceWarning)}


def test_a_large_sum_of_products_that_is_a_loop_is_told() -> None:
    a, w, c = (600, 512), (512, 700), (600, 700)
    rest = "scale what it gives behind"
    cast = "float32, and write acc += T.cast(A[i, k], 'float32') * T.cast(W[k, j], 'float32')"
    for kernel, shapes, why, help in (
        (scaled, (a, w, (512,), c), "3 factors go with k, and T.gemm takes two", rest),
        (condition, (a, w, c), "a condition says what is added", rest),
        (counted, (a, w, c), "the loop does something else, too", rest),
        (sum_of_halves, (a, w, c), "each is made float16 before it is added", cast),
        (product_of_halves, (a, w, c), "each is made float16 before it is added", cast),
    ):
        (said,) = told(kernel, *shapes)
        assert why in said and "acc += " in said and help in said
        assert not told(kernel, *shapes, target="cpu")
    assert not told(scaled, (600, 20), (20, 700), (20,), c)
    assert not told(distances, a, (700, 512), c)
