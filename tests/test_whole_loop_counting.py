"""Kernels of mathematics only whose loops count from another number than 0, or by another than 1:
they are those that count so (`whole_loops/counting`)."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest
from simulated import run, traced

import tilec
import tilec.language as T
from tilec.frontend.whole_loops.counting import counted_from

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

B, M, N, K, H, W, G = T.dynamic("B, M, N, K, H, W, G")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
SIZES = ((5, 300), (3, 1), (2, 0), (130, 37))


@pytest.mark.parametrize(
    "loop, extent, begin, step",
    (
        ("range(1, n)", "n - 1", "1", 1),
        ("range(a, 7)", "7 - a", "a", 1),
        ("range(-1, 2)", "3", "-1", 1),
        ("range(i + 1, i + n)", "n - 1", "i + 1", 1),
        ("range(g * n, (g + 1) * n)", "n", "g * n", 1),
        ("range((g - 1) * n, (g + 1) * n)", "n * 2", "(g - 1) * n", 1),
        ("range(a, a)", "0", "a", 1),
        ("range(1, n, 2)", "n // 2", "1", 2),
        ("range(0, n, 4)", "(n + 3) // 4", "0", 4),
        ("range(n - 1, -1, -1)", "n", "n - 1", -1),
        ("range(n - 2, -1, -1)", "n - 1", "n - 2", -1),
        ("range(n - 1, 0, -2)", "n // 2", "n - 1", -2),
    ),
)
def test_what_loops_count(loop: str, extent: str, begin: str, step: int) -> None:
    words = {"range": range}
    found = counted_from(
        ast.parse(loop, mode="eval").body, lambda e: words.get(getattr(e, "id", ""))
    )
    assert found is not None
    assert (ast.unparse(found[0]), ast.unparse(found[1]), found[2]) == (extent, begin, step)


@pytest.mark.parametrize("loop", ("range(n)", "range(0, n)", "range(a, b, s)", "range(0, 8, 0)"))
def test_loops_that_stay(loop: str) -> None:
    words = {"range": range}
    node = ast.parse(loop, mode="eval").body
    assert counted_from(node, lambda e: words.get(getattr(e, "id", ""))) is None


def is_over_tiles(kernel: Any, *arrays: Any) -> bool:
    text = traced(kernel, *arrays, target="cuda:sm_90a")
    return "alloc fragment" in text and "thread_index" not in text


@tilec.kernel
def sums(
    X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, 5), "float32"), P: T.Tensor((M, 2), "int32"),
    first: T.int32,
):  # fmt: skip
    for i in T.Parallel(M):
        s, more, even, back = 0.0, 0.0, 0.0, 0.0
        best = -T.infinity("float32")
        low = T.infinity("float32")
        at, last = -1, -1
        for j in range(1, N):
            s += X[i, j] * X[i, j - 1]
        for j in range(first, N):
            more += X[i, j]
            if X[i, j] > best:
                best = X[i, j]
                at = j
        for j in range(1, N, 2):
            even += X[i, j]
        for j in range(N - 2, -1, -1):
            back += X[i, j + 1] - X[i, j]
            if X[i, j] < low:
                low = X[i, j]
                last = j
        Y[i, 0], Y[i, 1], Y[i, 2], Y[i, 3], Y[i, 4] = s, more, even, back, best
        P[i, 0], P[i, 1] = at, last


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("first", (0, 3, 400))
@pytest.mark.parametrize("m, n", SIZES)
@pytest.mark.parametrize("target", TARGETS)
def test_folds(target: str, m: int, n: int, first: int, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 10, (m, n)).astype(np.float32)
    y, p = np.full((m, 5), np.nan, np.float32), np.full((m, 2), -7, np.int32)
    run(sums, target, x, y, p, first)
    rest, but_last = x[:, first:], x[:, : max(n - 1, 0)]
    back = x[:, -1] - x[:, 0] if n else np.zeros(m)
    want = [(x[:, 1:] * but_last).sum(1), rest.sum(1), x[:, 1::2].sum(1), back]
    want.append(rest.max(1, initial=-np.inf))
    np.testing.assert_array_equal(y, np.stack(want, 1))
    none = np.full(m, -1)
    at = rest.argmax(1) + first if rest.size else none
    last = n - 2 - but_last[:, ::-1].argmin(1) if but_last.size else none
    np.testing.assert_array_equal(p, np.stack([at, last], 1))
    assert n != 300 or target != "cuda:sm_90a" or is_over_tiles(sums, x, y, p)


@tilec.kernel
def running(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    for i in T.Parallel(M):
        s = X[i, 0]
        for j in range(1, N):
            s += X[i, j] + X[i, j - 1]
            Y[i, j] = s
        Y[i, 0] = X[i, 0]


@tilec.kernel
def parts(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, G), "float32")):
    for i, g in T.Parallel(M, G):
        n = N // G
        s: T.float32 = 0
        for j in range(g * n, (g + 1) * n):
            s += X[i, j]
        Y[i, g] = s


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("m, n", ((5, 320), (3, 4), (70, 64)))
@pytest.mark.parametrize("target", TARGETS)
def test_running_values_and_parts(target: str, m: int, n: int, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 10, (m, n)).astype(np.float32)
    y, z = np.full((m, n), np.nan, np.float32), np.full((m, 4), np.nan, np.float32)
    run(running, target, x, y)
    steps = np.concatenate([x[:, :1], x[:, 1:] + x[:, :-1]], 1)
    np.testing.assert_array_equal(y, steps.cumsum(1))
    run(parts, target, x, z)
    np.testing.assert_array_equal(z, x.reshape(m, 4, -1).sum(2))
    if n == 320 and target == "cuda:sm_90a":
        assert is_over_tiles(running, x, y) and is_over_tiles(parts, x, z)


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"), W_: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for k in range(1, K):
            acc += T.cast(A[i, k], "float32") * T.cast(W_[k - 1, j], "float32")
        C[i, j] = acc


@tilec.kernel
def convolved(
    X: T.Tensor((B, H, W, K), "float16"), F: T.Tensor((3, 3, K, N), "float16"),
    Y: T.Tensor((B, H, W, N), "float32"),
):  # fmt: skip
    for b, y, x, n in T.Parallel(B, H, W, N):
        acc: T.float32 = 0
        for r in range(-1, 2):
            for s in range(-1, 2):
                for c in range(K):
                    if y + r >= 0 and y + r < H and x + s >= 0 and x + s < W:
                        v = T.cast(X[b, y + r, x + s, c], "float32")
                        acc += v * T.cast(F[r + 1, s + 1, c, n], "float32")
        Y[b, y, x, n] = acc


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("k", (1, 0, 40))
@pytest.mark.parametrize("target", TARGETS)
def test_products(target: str, k: int, rng: np.random.Generator) -> None:
    a = rng.integers(-4, 5, (33, k)).astype(np.float16)
    w = rng.integers(-4, 5, (k, 70)).astype(np.float16)
    c = np.full((33, 70), np.nan, np.float32)
    run(product, target, a, w, c)
    np.testing.assert_array_equal(c, a[:, 1:].astype(int) @ w[: max(k - 1, 0)].astype(int))
    x = rng.integers(-4, 5, (2, 5, 7, k)).astype(np.float16)
    f = rng.integers(-4, 5, (3, 3, k, 24)).astype(np.float16)
    y = np.full((2, 5, 7, 24), np.nan, np.float32)
    run(convolved, target, x, f, y)
    padded = np.pad(x.astype(int), ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = [
        padded[:, r : r + 5, s : s + 7] @ f[r, s].astype(int) for r in range(3) for s in range(3)
    ]
    np.testing.assert_array_equal(y, sum(taps))
    if k == 40 and target == "cuda:sm_90a":
        for kernel, given in ((product, (a, w, c)), (convolved, (x, f, y))):
            assert "gemm" in kernel.compile(*given, target=target).stages["tile"]


@tilec.kernel
def triangles(
    A: T.Tensor((N, N), "float32"), X: T.Tensor((N,), "float32"), Y: T.Tensor((N, 2), "float32")
):
    for i in T.Parallel(N):
        s: T.float32 = 0
        t: T.float32 = 0
        for j in range(i, N):
            s += A[i, j] * X[j]
        for j in range(i - 1, -1, -1):
            t += A[i, j] * X[j]
        Y[i, 0] = s
        Y[i, 1] = t


@tilec.kernel
def planes(X: T.Tensor((B, H, W), "float32"), Y: T.Tensor((B,), "float32")):
    """Of two extents below 0 the product is above it."""
    for b in T.Parallel(B):
        s = 0.0
        for y in range(1, H):
            for x in range(1, W):
                s += X[b, y, x] + 1.0
        Y[b] = s


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("n", (77, 1))
@pytest.mark.parametrize("target", TARGETS)
def test_triangles(target: str, n: int, rng: np.random.Generator) -> None:
    a = rng.integers(-9, 10, (n, n)).astype(np.float32)
    x = rng.integers(-9, 10, n).astype(np.float32)
    y = np.full((n, 2), np.nan, np.float32)
    run(triangles, target, a, x, y)
    np.testing.assert_array_equal(y[:, 0], np.triu(a) @ x)
    np.testing.assert_array_equal(y[:, 1], np.tril(a, -1) @ x)
    if n == 77 and target == "cuda:sm_90a":  # a warp for each row
        assert "shuffle" in triangles.compile(a, x, y, target=target).stages["tile"]


@pytest.mark.parametrize("h, w", ((0, 0), (1, 3), (5, 90)))
@pytest.mark.parametrize("target", TARGETS)
def test_planes(target: str, h: int, w: int, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 10, (3, h, w)).astype(np.float32)
    y = np.full(3, np.nan, np.float32)
    run(planes, target, x, y)
    np.testing.assert_array_equal(y, (x[:, 1:, 1:] + 1).sum((1, 2)))
