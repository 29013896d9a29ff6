"""Operands of products of whole loops that are no elements at places of a tile: computed on their
way into it, gathered at a stride, 0 where a condition does not hold."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run, traced

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, C, H, L, M, N, K = T.dynamic("B, C, H, L, M, N, K")
TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
f16, f32, f64, i32 = "float16", "float32", "float64", "int32"
TILES = {"BM": 32, "BN": 32, "BK": 32}


@tilec.kernel
def covariance(
    X: T.Tensor((N, K), f32), mean: T.Tensor((K,), f32), Y: T.Tensor((K, K), f32)
) -> None:
    for i, j in T.Parallel(K, K):
        s: T.float32 = 0
        for n in range(N):
            s += (X[n, i] - mean[i]) * (X[n, j] - mean[j])
        Y[i, j] = s / (N - 1)


@tilec.kernel
def reciprocals(
    X: T.Tensor((M, K), f32), W: T.Tensor((K, N), f32), Y: T.Tensor((M, N), f32)
) -> None:
    for i, j in T.Parallel(M, N):
        s: T.float32 = 0
        for k in range(K):
            s += (1.0 / X[i, k]) * T.exp(W[k, j])
        Y[i, j] = s


@tilec.kernel
def scaled(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), S: T.Tensor((K,), f16),
    Y: T.Tensor((M, N), f16),
) -> None:  # fmt: skip
    for at, turn in T.Parallel(M, N):
        acc: T.float32 = 0
        for own in range(K):
            part = T.cast(A[at, own], f32) * T.cast(S[own], f32)
            acc += part * T.cast(W[own, turn], f32)
        Y[at, turn] = acc


@tilec.kernel
def mixed(A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f32), Y: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += A[i, k] * W[k, j]
        Y[i, j] = acc


@tilec.kernel
def doubles(X: T.Tensor((M, K), f64), W: T.Tensor((N, K), f64), Y: T.Tensor((M, N), f64)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float64 = 0
        for k in range(K):
            acc += (X[i, k] + 1) * W[j, k]
        Y[i, j] = acc


@tilec.kernel
def fewer(
    A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), Y: T.Tensor((M, N), f16), last: T.int32
) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(last):
            acc += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)
        Y[i, j] = acc


@tilec.kernel
def masked(
    A: T.Tensor((B, M, K), f16), W: T.Tensor((B, K, N), f16), keep: T.Tensor((B, K), i32),
    Y: T.Tensor((B, M, N), f16),
) -> None:  # fmt: skip
    for b, i, j in T.Parallel(B, M, N):
        acc: T.float32 = 0
        for k in range(K):
            if keep[b, k] != 0 and k > 1:
                acc += T.cast(A[b, i, k], f32) * T.cast(W[b, k, j], f32)
        Y[b, i, j] = acc


@tilec.kernel
def cosines(X: T.Tensor((K, N), f32), Y: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        acc = 0.0
        for k in range(K):
            acc += T.cos(T.cast(i * k, f32) * 0.25) * X[k, j]
        Y[i, j] = acc


@tilec.kernel
def strided(
    X: T.Tensor((B, 2 * M + 1, 2 * H + 1, K), f16), W: T.Tensor((3, 3, K, N), f16),
    Y: T.Tensor((B, M, H, N), f32),
) -> None:  # fmt: skip
    for b, p, q, n in T.Parallel(B, M, H, N):
        acc: T.float32 = 0
        for r in range(3):
            for s in range(3):
                for c in range(K):
                    x = T.float32(X[b, 2 * p + r, 2 * q + s, c])
                    acc += x * T.float32(W[r, s, c, n])
        Y[b, p, q, n] = acc


@tilec.kernel
def channels_first(
    X: T.Tensor((B, C, 2 * M + 1, 2 * H + 1), f16), W: T.Tensor((N, C, 3, 3), f16),
    Y: T.Tensor((B, N, M, H), f16),
) -> None:  # fmt: skip
    for b, n, p, q in T.Parallel(B, N, M, H):
        acc: T.float32 = 0
        for c in range(C):
            for r, s in T.grid(3, 3):
                acc += T.float32(X[b, c, 2 * p + r, 2 * q + s]) * T.float32(W[n, c, r, s])
        Y[b, n, p, q] = acc


@tilec.kernel
def padded(
    X: T.Tensor((B, M, H, K), f16), W: T.Tensor((3, 3, K, N), f16), Y: T.Tensor((B, M, H, N), f16)
) -> None:
    for b, p, q, n in T.Parallel(B, M, H, N):
        acc: T.float32 = 0
        for r in range(3):
            for s in range(3):
                if p + r - 1 >= 0 and p + r - 1 < M and 0 <= q + s - 1 < H:
                    for c in range(K):
                        x = T.float32(X[b, p + r - 1, q + s - 1, c])
                        acc += x * T.float32(W[r, s, c, n])
        Y[b, p, q, n] = acc


@tilec.kernel
def transposed(
    X: T.Tensor((B, C, L), f32), W: T.Tensor((C, N, 4), f32), Y: T.Tensor((B, N, 2 * L), f32)
) -> None:
    for b, n, t in T.Parallel(B, N, 2 * L):
        acc = 0.0
        for k in range(4):
            u = t + 1 - k
            if u % 2 == 0 and u >= 0 and u < 2 * L:
                for c in range(C):
                    acc += X[b, c, u // 2] * W[c, n, k]
        Y[b, n, t] = acc


def numbers(dtype: str, *shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(dtype)


def slid(x: np.ndarray, w: np.ndarray, step: int = 2) -> np.ndarray:
    """A convolution of 3x3 of images whose channels are last."""
    m, h = (x.shape[1] - 3) // step + 1, (x.shape[2] - 3) // step + 1
    parts = [
        x[:, r : r + step * (m - 1) + 1 : step, s : s + step * (h - 1) + 1 : step] @ w[r, s]
        for r in range(3)
        for s in range(3)
    ]
    return np.sum(parts, axis=0)


def spread_out(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    b, _, length = x.shape
    y = np.zeros((b, w.shape[1], 2 * length + 2))
    for k in range(4):
        y[:, :, k : k + 2 * length : 2] += np.einsum("bcl,cn->bnl", x, w[:, :, k])
    return y[:, :, 1:-1]


def kept(a: np.ndarray, w: np.ndarray, keep: np.ndarray) -> np.ndarray:
    rows = (keep != 0) & (np.arange(keep.shape[1]) > 1)
    return (a * rows[:, None]) @ np.where(rows[:, :, None], w, 0)


def first_last(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 2, 3, 1)


KEEP = (np.arange(2 * 43).reshape(2, 43) % 3).astype(i32)
NAN = np.where(KEEP[:, :, None] == 0, np.nan, numbers(f16, 2, 43, 35)).astype(f16)
CASES: dict[str, tuple[Any, list[np.ndarray], Callable[..., np.ndarray], str]] = {
    "covariance": (
        covariance, [numbers(f32, 57, 33) + 3, np.full(33, 3, f32)],
        lambda x, m: (x - m).T @ (x - m) / (len(x) - 1), f32,
    ),
    "what is beyond a sum": (
        reciprocals, [np.abs(numbers(f32, 33, 45)) + 0.5, numbers(f32, 45, 35)],
        lambda x, w: (1 / x) @ np.exp(w), f32,
    ),
    "three factors": (
        scaled, [numbers(f16, 33, 45), numbers(f16, 45, 35), numbers(f16, 45)],
        lambda a, w, s: (a * s) @ w, f16,
    ),
    "two dtypes": (
        mixed, [numbers(f16, 33, 45), numbers(f32, 45, 35)], lambda a, w: a @ w, f32
    ),
    "doubles": (
        doubles, [numbers(f64, 33, 45), numbers(f64, 35, 45)], lambda x, w: (x + 1) @ w.T, f64
    ),
    "mask": (masked, [numbers(f16, 2, 33, 43), NAN, KEEP], kept, f16),
    "of indices": (
        cosines, [numbers(f32, 20, 35)],
        lambda x: np.cos(np.outer(np.arange(33), np.arange(20)) * 0.25) @ x, f32,
    ),
    "channels first": (
        channels_first, [numbers(f16, 2, 24, 11, 15), numbers(f16, 40, 24, 3, 3)],
        lambda x, w: slid(first_last(x), w.transpose(2, 3, 1, 0)).transpose(0, 3, 1, 2), f16,
    ),
    "padded": (
        padded, [numbers(f16, 2, 5, 34, 24), numbers(f16, 3, 3, 24, 40)],
        lambda x, w: slid(np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), w, 1), f16,
    ),
    "transposed": (
        transposed, [numbers(f32, 2, 21, 19), numbers(f32, 21, 35, 4)], spread_out, f32
    ),
}  # fmt: skip
LOOSE = {f16: 2e-2, f32: 1e-4, f64: 1e-12}


def check(
    kernel: Any, operands: list[np.ndarray], want: np.ndarray, dtype: str, target: str, *more: Any
) -> None:
    c = np.full(want.shape, 77, dtype)
    made = kernel.compile(*operands, c, *more, target=target, **TILES)
    assert "gemm" in made.stages["tile"]
    run(kernel, target, *operands, c, *more, **TILES)
    loose = LOOSE[dtype]
    np.testing.assert_allclose(c, want, rtol=loose, atol=loose * np.abs(want).max(initial=1))


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel, operands, wanted, dtype", CASES.values(), ids=CASES)
def test_what_is_computed_is_multiplied(
    kernel: Any, operands: list[np.ndarray], wanted: Callable[..., np.ndarray], dtype: str,
    target: str,
) -> None:  # fmt: skip
    wide = [o if o.dtype == np.int32 else o.astype(np.float64) for o in operands]
    check(kernel, operands, wanted(*wide), dtype, target)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("last", [0, 1, 37, 45])
def test_a_sum_that_ends_before_its_tensors(last: int, target: str) -> None:
    a, w = numbers(f16, 33, 45), numbers(f16, 45, 35)
    w[last:] = np.nan
    check(fewer, [a, w], a[:, :last].astype(np.float64) @ w[:last], f16, target, last)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [24, 21, 1])
@pytest.mark.parametrize("images, m, h", [(2, 5, 7), (1, 1, 1), (3, 1, 40)])
def test_pixels_at_a_stride(target: str, channels: int, images: int, m: int, h: int) -> None:
    x = numbers(f16, images, 2 * m + 1, 2 * h + 1, channels + 3)[..., :channels]  # a view
    w = numbers(f16, 3, 3, channels, 40)
    check(strided, [x, w], slid(x.astype(np.float64), w), f32, target)


def test_pixels_run_ahead_and_fill_tiles() -> None:
    """Rows of all images, 7 x 7 each, are rows of one tile, brought by cp.async."""
    shapes = (32, 15, 15, 64), (3, 3, 64, 128), (32, 7, 7, 128)
    specs = [tilec.spec(s, d) for s, d in zip(shapes, (f16, f16, f32))]
    made = strided.compile(*specs, target="cuda:sm_90a", BM=128, BN=64, BK=64)
    assert "gather" in made.stages["recognise_gathers"]
    assert "ahead: a_tile, by cp_async" in made.stages["plan"]
    assert "alloc shared<128x64xf16>" in made.stages["tile"]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n, k", [(2, 1), (40, 1), (2, 40)])
def test_covariance_of_few(n: int, k: int, target: str) -> None:
    x, mean = numbers(f32, n, k), numbers(f32, k)
    wide = x.astype(np.float64) - mean
    y = np.full((k, k), 77, f32)
    run(covariance, target, x, mean, y, **TILES)
    np.testing.assert_allclose(y, wide.T @ wide / (n - 1), rtol=1e-4, atol=1e-4)


@tilec.kernel
def triangle(A: T.Tensor((M, K), f16), W: T.Tensor((K, N), f16), Y: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(K):
            if k <= i:
                acc += T.cast(A[i, k], f32) * T.cast(W[k, j], f32)
        Y[i, j] = acc


@pytest.mark.turns
@pytest.mark.parametrize("target", TARGETS[:2])
def test_what_other_rows_leave_out_may_be_nan(target: str) -> None:
    """Zero times it would be nan: what no row adds is left out."""
    a, w = numbers(f16, 33, 45), numbers(f16, 45, 35)
    w[33:] = np.nan
    want = np.tril(a.astype(np.float64))[:, :33] @ w[:33]
    y = np.full((33, 35), 77, f32)
    assert "gemm" in triangle.compile(a, w, y, target=target).stages["tile"]
    run(triangle, target, a, w, y)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


@tilec.kernel
def any_stride(
    X: T.Tensor((B, H, L, K), f16), W: T.Tensor((3, 3, K, C), f16), Y: T.Tensor((B, M, N, C), f32),
    step: T.int32, pad: T.int32,
) -> None:  # fmt: skip
    for b, p, q, n in T.Parallel(B, M, N, C):
        acc: T.float32 = 0
        for r in range(3):
            for s in range(3):
                y = p * step + r - pad
                x = q * step + s - pad
                if y >= 0 and y < H and x >= 0 and x < L:
                    for c in range(K):
                        acc += T.float32(X[b, y, x, c]) * T.float32(W[r, s, c, n])
        Y[b, p, q, n] = acc


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("h, step, pad", [(9, 3, 1), (5, 2, 1), (3, 1, 0)])
def test_a_stride_and_padding_of_run_time(h: int, step: int, pad: int, target: str) -> None:
    """Conditions that a pixel is inside are those of its tensor."""
    x, w = numbers(f16, 2, h, h + 4, 17), numbers(f16, 3, 3, 17, 20)
    around = np.pad(x.astype(np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    check(any_stride, [x, w], slid(around, w, step), f32, target, step, pad)
    y = np.zeros(slid(around, w, step).shape, f32)
    assert "select" not in traced(any_stride, x, w, y, step, pad, target="cuda:sm_90a", **TILES)


@tilec.kernel
def weight_gradient(
    X: T.Tensor((B, M, K), f16), dY: T.Tensor((B, M, N), f16), dW: T.Tensor((3, K, N), f32)
) -> None:
    for r, c, n in T.Parallel(3, K, N):
        acc = 0.0
        for b in range(B):
            for y in range(M):
                if 0 <= y + r - 1 < M:
                    acc += T.float32(X[b, y + r - 1, c]) * T.float32(dY[b, y, n])
        dW[r, c, n] = acc


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("images, pixels, along", [(3, 37, "(1, 32, 32)"), (40, 5, "(32, 1, 32)")])
def test_a_short_loop_is_not_what_tiles_go_along(
    images: int, pixels: int, along: str, target: str
) -> None:
    """A few images, but many pixels, though a condition tells apart what rows add of these."""
    x, dy = (numbers(f16, images, pixels, n) for n in (20, 18))
    w = np.full((3, 20, 18), 77, f32)
    if target != "cpu":
        text = weight_gradient.compile(x, dy, w, target=target, **TILES).stages["tile"]
        (brought,) = (line for line in text.splitlines() if "copy %dY" in line)
        assert along in brought
    run(weight_gradient, target, x, dy, w, **TILES)
    x = np.pad(x.astype(np.float64), [(0, 0), (1, 1), (0, 0)])
    want = [np.einsum("byc,byn->cn", x[:, r : r + pixels], dy) for r in range(3)]
    np.testing.assert_allclose(w, want, rtol=1e-3, atol=1e-2)
