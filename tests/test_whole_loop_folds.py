"""Kernels of mathematics only that fold under conditions and in loops of loops, and that look for
the place of an element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run, traced
from user_case import wide

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

B, C, H, W, M, N = T.dynamic("B, C, H, W, M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")


@tilec.kernel
def group_norm(X: T.Tensor((B, C, H, W), "float32"), Y: T.Tensor((B, C, H, W), "float32")):
    for b, c in T.Parallel(B, C):
        s: T.float32 = 0
        q: T.float32 = 0
        for h in range(H):
            for w in range(W):
                s += X[b, c, h, w]
                q += X[b, c, h, w] * X[b, c, h, w]
        mean = s / (H * W)
        scale = T.rsqrt(q / (H * W) - mean * mean + 1e-5)
        for h in range(H):
            for w in range(W):
                Y[b, c, h, w] = (X[b, c, h, w] - mean) * scale


@tilec.kernel
def channels(X: T.Tensor((B, C, H, W), "float16"), Y: T.Tensor((C,), "float32")):
    for c in T.Parallel(C):
        s: T.float32 = 0
        for b in range(B):
            for h in range(H):
                for w in range(W):
                    s += T.cast(X[b, c, h, w], "float32")
        Y[c] = s / (B * H * W)


@tilec.kernel
def last_channels(X: T.Tensor((B, H, W, C), "float16"), Y: T.Tensor((C,), "float32")):
    for c in T.Parallel(C):
        s: T.float32 = 0
        for b in range(B):
            for h in range(H):
                for w in range(W):
                    s += T.cast(X[b, h, w, c], "float32")
        Y[c] = s / (B * H * W)


@tilec.kernel
def first_most(X: T.Tensor((M, N), "float16"), I: T.Tensor((M,), "int64")):  # noqa: E741
    for i in T.Parallel(M):
        best: T.float32 = -T.infinity("float32")
        at: T.int32 = 0
        for j in range(N):
            if X[i, j] > best:
                best = X[i, j]
                at = j
        I[i] = at


@tilec.kernel
def last_least(
    X: T.Tensor((M, N), "int32"), I: T.Tensor((M,), "int32"), V: T.Tensor((M,), "int32")
):  # noqa: E501, E741
    for i in T.Parallel(M):
        best: T.int32 = 5
        at: T.int32 = -1
        for j in range(N):
            if best >= X[i, j]:
                at = j
                best = X[i, j]
        I[i] = at
        V[i] = best


@tilec.kernel
def most_of_columns(X: T.Tensor((M, N), "float32"), I: T.Tensor((N,), "int32")):  # noqa: E741
    for j in T.Parallel(N):
        best: T.float32 = -T.infinity("float32")
        at: T.int32 = 0
        for i in range(M):
            if X[i, j] > best:
                best = X[i, j]
                at = i
        I[j] = at


@tilec.kernel
def largest_size(
    X: T.Tensor((M, N), "float16"), I: T.Tensor((M,), "int32"), S: T.Tensor((M,), "float32")  # noqa: E741
):  # fmt: skip
    for i in T.Parallel(M):
        best: T.float32 = -T.infinity("float32")
        at: T.int32 = -3
        s: T.float32 = 0
        for j in range(N):
            v = T.abs(T.cast(X[i, j], "float32"))
            s += v
            if v >= best:
                best = v
                at = j
        I[i] = at
        S[i] = s


def rounded(best: str, at: str) -> tilec.Kernel:
    """Keeps the most in what has not all numbers that the elements have, or its place."""

    @tilec.kernel
    def largest_rounded(X: T.Tensor((M, N), "float32"), I: T.Tensor((M,), "int32")):  # noqa: E741
        for i in T.Parallel(M):
            most: best = 0
            place: at = 1
            for j in range(N):
                if X[i, j] >= most:
                    most = X[i, j]
                    place = j
            I[i] = place

    return largest_rounded


def largest_by_one(x: np.ndarray, best: str) -> np.ndarray:
    """As the loop says it."""
    found = np.full(len(x), 1)
    for i, row in enumerate(x):
        most = np.zeros((), best)
        for j, value in enumerate(row):
            if value >= most:
                most, found[i] = value.astype(best), j
    return found


@tilec.kernel
def where_marked(
    X: T.Tensor((M, N), "float32"), K: T.Tensor((M, N), "int8"),
    Y: T.Tensor((M,), "float32"), Z: T.Tensor((M,), "float32"), P: T.Tensor((M,), "int32"),
):  # fmt: skip
    for i in T.Parallel(M):
        s: T.float32 = 0
        m: T.float32 = -1e30
        c: T.int32 = 0
        for j in range(N):
            if K[i, j] != 0:
                s += X[i, j]
            if K[i, j] != 0:
                m = T.max(m, X[i, j])
            if X[i, j] > 0:
                c += 1
        Y[i] = s
        Z[i] = m
        P[i] = c


@tilec.kernel
def entropy(
    X: T.Tensor((M, N), "float16"), K: T.Tensor((M,), "int64"),
    Y: T.Tensor((M,), "float32"), Z: T.Tensor((1,), "int32"),
):  # fmt: skip
    for i in T.Parallel(M):
        m: T.float32 = -T.infinity("float32")
        for j in range(N):
            m = T.max(m, T.cast(X[i, j], "float32"))
        s: T.float32 = 0
        for j in range(N):
            s += T.exp(T.cast(X[i, j], "float32") - m)
        if K[i] == -100:
            Y[i] = 0
        else:
            Y[i] = T.log(s) + m - T.cast(X[i, K[i]], "float32")
            T.atomic_add(Z[0], 1)


def given(name: str, rng: np.random.Generator) -> tuple[Any, list[np.ndarray], list[np.ndarray]]:
    """A kernel, what it is given, and what it must leave in the last ones."""
    if name == "group_norm":
        x = rng.standard_normal((2, 3, 4, 25)).astype(np.float32)
        x64 = wide(x)
        mean, scale = x64.mean((2, 3), keepdims=True), x64.var((2, 3), keepdims=True)
        return group_norm, [x, np.full_like(x, np.nan)], [(x64 - mean) / np.sqrt(scale + 1e-5)]
    if name in ("channels", "last_channels"):
        x = rng.standard_normal((3, 5, 6, 7)).astype(np.float16)
        kernel, axes = (channels, (0, 2, 3)) if name == "channels" else (last_channels, (0, 1, 2))
        want = wide(x).mean(axes)
        return kernel, [x, np.full(want.shape, np.nan, np.float32)], [want]
    if name == "first_most":
        x = rng.standard_normal((11, 301)).astype(np.float16)
        x[0], x[2] = -np.inf, 3
        x[1, [5, 200]] = 9
        x[3, [7, 9]] = np.inf
        return first_most, [x, np.full(11, -7, np.int64)], [x.argmax(1)]
    if name == "last_least":
        x = rng.integers(-9, 9, (10, 70)).astype(np.int32)
        x[4] = 6
        least = x.min(1)
        at = 69 - x[:, ::-1].argmin(1)
        want = [np.where(least <= 5, at, -1), np.minimum(least, 5)]
        return last_least, [x, np.zeros(10, np.int32), np.zeros(10, np.int32)], want
    if name == "most_of_columns":
        x = rng.standard_normal((100, 37)).astype(np.float32)
        return most_of_columns, [x, np.zeros(37, np.int32)], [x.argmax(0)]
    if name == "largest_size":
        x = rng.standard_normal((9, 133)).astype(np.float16)
        x[1], x[2, [7, 90]], x[3] = np.nan, -9, -np.inf  # no last one; two; all
        size = np.where(np.isnan(x), -1, np.abs(x))
        last = np.where(np.isnan(x).all(1), -3, 132 - size[:, ::-1].argmax(1))
        outputs = [np.zeros(9, np.int32), np.full(9, np.nan, np.float32)]
        return largest_size, [x, *outputs], [last, np.abs(wide(x)).sum(1)]
    if name == "where_marked":
        x = rng.standard_normal((7, 133)).astype(np.float32)
        k = rng.integers(0, 2, x.shape).astype(np.int8)
        outputs = [np.full(7, np.nan, np.float32) for _ in range(2)] + [np.zeros(7, np.int32)]
        want = [(wide(x) * k).sum(1), np.where(k != 0, x, -1e30).max(1), (x > 0).sum(1)]
        return where_marked, [x, k, *outputs], want
    x = rng.standard_normal((10, 77)).astype(np.float16)
    k = rng.integers(0, 77, 10)
    k[::3] = -100
    x64 = wide(x)
    loss = np.log(np.exp(x64).sum(1)) - x64[np.arange(10), np.maximum(k, 0)]
    want = [np.where(k == -100, 0, loss), np.array([(k != -100).sum()])]
    return entropy, [x, k, np.full(10, np.nan, np.float32), np.zeros(1, np.int32)], want


NAMES = (
    "group_norm", "channels", "last_channels", "first_most", "last_least", "most_of_columns",
    "largest_size", "where_marked", "entropy",
)  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_numbers(name: str, target: str, rng: np.random.Generator) -> None:
    kernel, arrays, want = given(name, rng)
    run(kernel, target, *arrays)
    for got, expected in zip(arrays[-len(want) :], want):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_block_does_it_together(name: str, rng: np.random.Generator) -> None:
    """Over tiles, whose elements are folded at the end; one thread for each iteration has none."""
    kernel, arrays, _ = given(name, rng)
    text = traced(kernel, *arrays, target="cuda:sm_90a")
    assert "reduce" in text and "alloc fragment" in text


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "best, at",
    [
        ("int32", "int32"),
        ("float16", "int32"),
        ("float32", "uint32"),
        ("float32", "int16"),
        ("float32", "float16"),
    ],
)
def test_what_is_rounded_is_looked_for_by_one(
    best: str, at: str, target: str, rng: np.random.Generator
) -> None:
    """An element that is more than the most of all, rounded, is so behind it alone; and no
    unsigned place says that there is none; a narrow one may not hold it."""
    x = (1 + rng.random((7, 90)) / 100).astype(np.float32)
    x[0], x[1] = -1, rng.random(90)
    got, kernel = np.full(7, -7, np.int32), rounded(best, at)
    if target == "cpu":
        kernel(x, got)
    else:
        report = tilec.simulate(kernel, x, got, target=target)
        assert not report.findings, str(report)
        assert "reduce" not in kernel.compile(x, got, target=target).stages["tile"]
    np.testing.assert_array_equal(got, largest_by_one(x, best))
