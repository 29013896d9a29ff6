"""Whole loops that compare rows of one tensor with rows of another: tiles of both in shared memory,
and what each pair keeps in registers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, H, M, N, K, R = T.dynamic("B, H, M, N, K, R")
TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
f16, f32, i8, i32 = "float16", "float32", "int8", "int32"


@tilec.kernel
def distances(X: T.Tensor((M, K), f32), Y: T.Tensor((N, K), f32), O: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        s: T.float32 = 0
        for e in range(K):
            t = X[i, e] - Y[j, e]
            s += t * t
        O[i, j] = T.sqrt(s)


@tilec.kernel
def columns(X: T.Tensor((K, M), f16), Y: T.Tensor((K, N), f16), O: T.Tensor((N, M), f32)) -> None:
    for i, j in T.Parallel(M, N):
        s = 0.0
        for row in range(K):
            s += T.abs(T.float32(X[row, i]) - T.float32(Y[row, j]))
        O[j, i] = s


@tilec.kernel
def shortest(X: T.Tensor((M, K), f32), Y: T.Tensor((K, N), f32), O: T.Tensor((M, N), f32)) -> None:
    for i, j in T.Parallel(M, N):
        best = T.infinity("float32")
        for k in range(K):
            best = T.min(best, X[i, k] + Y[k, j])
        O[i, j] = best


@tilec.kernel
def nearest(
    X: T.Tensor((M, K), f32), Y: T.Tensor((N, K), f32), O: T.Tensor((M, N), f32),
    at: T.Tensor((M, N), i32),
) -> None:  # fmt: skip
    for i, j in T.Parallel(M, N):
        least: T.float32 = 1e30
        where: T.int32 = -1
        for k in range(K):
            apart = T.abs(X[i, k] - Y[j, k])
            if apart < least:
                least = apart
                where = k
        O[i, j] = least
        at[i, j] = where


@tilec.kernel
def equal(
    X: T.Tensor((B, M, K), i8), Y: T.Tensor((B, N, K), i8), O: T.Tensor((B, M, N), i32)
) -> None:
    for b, i, j in T.Parallel(B, M, N):
        n: T.int32 = 0
        for k in range(K):
            if X[b, i, k] == Y[b, j, k]:
                n += 1
        O[b, i, j] = n * (j + 1)


@tilec.kernel
def horner(X: T.Tensor((M, K), f32), Y: T.Tensor((N, K), f32), O: T.Tensor((M, N), f32)) -> None:
    """What comes later depends on what came before."""
    for i, j in T.Parallel(M, N):
        s: T.float32 = 1
        for k in range(K):
            s = s * Y[j, k] + X[i, k]
        O[i, j] = s


@tilec.kernel
def windows(
    X: T.Tensor((H, M + 1, K), f32), Y: T.Tensor((R, N, K), f32), O: T.Tensor((M, N), f32)
) -> None:
    for i, j in T.Parallel(M, N):
        s: T.float32 = 0
        for r in range(R):
            for k in range(K):
                s += T.max(X[r, i + 1, k], Y[r, j, k])
        O[i, j] = s


@tilec.kernel
def bits(
    X: T.Tensor((M, K), "uint32"), Y: T.Tensor((N, K), "uint32"), O: T.Tensor((M, N), i32)
) -> None:
    """What is added to an int is unsigned."""
    for i, j in T.Parallel(M, N):
        n = 0
        for k in range(K):
            n += T.popcount((X[i, k] ^ Y[j, k]) >> 3)
        O[i, j] = n


def numbers(dtype: str, *shape: int) -> np.ndarray:
    random = np.random.default_rng(shape)
    if dtype == "uint32":
        return random.integers(0, 1 << 32, shape, dtype)
    if dtype == i8:
        return random.integers(-2, 2, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def polynomials(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    s = np.ones((len(x), len(y)))
    for k in range(x.shape[1]):
        s = s * y[:, k] + x[:, [k]]
    return s


def apart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x[..., :, None, :] - y[..., None, :, :]


CASES: dict[str, tuple[Any, list[np.ndarray], Callable[..., np.ndarray], str]] = {
    "distances": (
        distances, [numbers(f32, 50, 67), numbers(f32, 33, 67)],
        lambda x, y: np.sqrt((apart(x, y) ** 2).sum(-1)), f32,
    ),
    "columns": (
        columns, [numbers(f16, 41, 37), numbers(f16, 41, 50)],
        lambda x, y: np.abs(apart(y.T, x.T)).sum(-1), f32,
    ),
    "shortest": (
        shortest, [numbers(f32, 33, 45), numbers(f32, 45, 35)],
        lambda x, y: (x[:, :, None] + y).min(1), f32,
    ),
    "equal": (
        equal, [numbers(i8, 3, 33, 45), numbers(i8, 3, 35, 45)],
        lambda x, y: (apart(x, y) == 0).sum(-1) * (np.arange(35) + 1), i32,
    ),
    "bits": (
        bits, [numbers("uint32", 33, 40), numbers("uint32", 35, 40)],
        lambda x, y: np.bitwise_count((x[:, None] ^ y) >> 3).sum(-1, dtype=int), i32,
    ),
    "horner": (horner, [numbers(f32, 33, 41) / 2, numbers(f32, 35, 41) / 2], polynomials, f32),
    "windows": (
        windows, [numbers(f32, 5, 34, 40), numbers(f32, 3, 35, 40)],
        lambda x, y: np.maximum(x[:3, 1:, None], y[:, None]).sum((0, 3)), f32,
    ),
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel, operands, wanted, dtype", CASES.values(), ids=CASES)
def test_numbers(
    kernel: Any, operands: list[np.ndarray], wanted: Callable[..., np.ndarray], dtype: str,
    target: str,
) -> None:  # fmt: skip
    want = wanted(*(o.astype(np.float64 if o.dtype.kind == "f" else np.int64) for o in operands))
    c = np.full(want.shape, 77, dtype)
    if target != "cpu":
        made = kernel.compile(*operands, c, target=target).stages["tile"]
        assert made.count("alloc shared") == 2 and "alloc fragment" in made
    run(kernel, target, *operands, c)
    np.testing.assert_allclose(c, want, rtol=1e-4, atol=1e-4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (1, 40, 3), (70, 1, 9), (20, 20, 0), (0, 5, 5)])
def test_few_rows(m: int, n: int, k: int, target: str) -> None:
    x, y = numbers(f32, m, k), numbers(f32, n, k)
    want = np.sqrt((apart(x.astype(np.float64), y) ** 2).sum(-1))
    o = np.full((m, n), 77, f32)
    run(distances, target, x, y, o)
    np.testing.assert_allclose(o, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_several_variables_under_a_condition(target: str) -> None:
    x, y = numbers(f32, 33, 45), numbers(f32, 35, 45)
    gaps = np.abs(apart(x, y))
    x[3, 7] = np.nan  # which is never nearer
    gaps[3, :, 7] = np.inf
    o, at = np.full((33, 35), 77, f32), np.full((33, 35), 77, i32)
    run(nearest, target, x, y, o, at)
    np.testing.assert_array_equal(o, gaps.min(-1))
    np.testing.assert_array_equal(at, gaps.argmin(-1))


def test_rows_at_a_distance_and_in_place() -> None:
    """Views with gaps; and what is written is no tensor that the loop reads."""
    x, y = numbers(f32, 50, 80)[:, 7:74], numbers(f32, 66, 67)[::2]
    want = np.sqrt((apart(x.astype(np.float64), y) ** 2).sum(-1))
    o = np.full((50, 40), 77, f32)
    run(distances, "cuda:sm_90a", x, y, o[:, :33])
    np.testing.assert_allclose(o[:, :33], want, rtol=1e-4)
    assert (o[:, 33:] == 77).all()


@tilec.kernel
def assigned(
    X: T.Tensor((B, M, K), f32), C: T.Tensor((B, N, K), f32), A: T.Tensor((B, M), i32),
    D: T.Tensor((B, M), f32),
) -> None:  # fmt: skip
    for b, i in T.Parallel(B, M):
        best, at = T.infinity("float32"), 0
        for j in range(N):
            square = 0.0
            for k in range(K):
                t = X[b, i, k] - C[b, j, k]
                square += t * t
            if square < best:
                best = square
                at = j
        A[b, i] = at
        D[b, i] = best


@tilec.kernel
def kernels_of(
    X: T.Tensor((M, K), f16), Y: T.Tensor((K, N), f16), W: T.Tensor((N,), f32),
    S: T.Tensor((M,), f32),
) -> None:  # fmt: skip
    """Two variables of a pair, the largest and the sum, and what both say, folded twice, into a
    name that the tiles would give, too."""
    for i in T.Parallel(M):
        acc = 0.0
        for j in range(N):
            apart, most = 1.0, 0.0
            for k in range(K):
                gap = T.abs(T.float32(X[i, k]) - T.float32(Y[k, j]))
                apart += gap
                most = T.max(most, gap)
            acc += W[j] * T.exp(-apart / most)
        for j in range(N):
            gap = 0.0
            for k in range(K):
                gap = T.max(gap, T.abs(T.float32(X[i, k]) - T.float32(Y[k, j])))
            acc = T.max(acc, gap)
        S[i] = acc


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m, n, k", [(33, 70, 13), (5, 0, 3), (2, 1, 70)])
def test_what_a_loop_inside_folds(m: int, n: int, k: int, target: str) -> None:
    """Its tiles have what a pair of rows keeps in registers, of tiles in shared memory."""
    x, c = numbers(f32, 2, m, k), numbers(f32, 2, n, k)
    at, least = np.full((2, m), 77, i32), np.full((2, m), 77, f32)
    if target != "cpu" and k == 13:
        made = assigned.compile(x, c, at, least, target=target).stages["tile"]
        assert made.count("alloc shared") == 2 and made.count("load %X") == 0
    run(assigned, target, x, c, at, least)
    squares = ((x[:, :, None].astype(np.float64) - c[:, None]) ** 2).sum(-1)
    np.testing.assert_array_equal(at, squares.argmin(-1) if n else 0)
    np.testing.assert_allclose(least, squares.min(-1, initial=np.inf), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_several_things_that_a_loop_inside_folds(target: str) -> None:
    x, y, w, s = numbers(f16, 37, 75), numbers(f16, 75, 41), numbers(f32, 41), np.full(37, 77, f32)
    run(kernels_of, target, x, y, w, s)
    gaps = np.abs(x[:, :, None].astype(np.float64) - y)
    total = (w * np.exp(-(gaps.sum(1) + 1) / gaps.max(1))).sum(1)
    np.testing.assert_allclose(s, np.maximum(total, gaps.max((1, 2))), rtol=1e-4)
