"""Kernels of mathematics only whose loops fold into elements, vectors and parts of a last axis, and
products: tiles do them together, and blocks share all that goes around tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run, traced
from user_case import wide

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

B, C, H, W, K, M, N = T.dynamic("B, C, H, W, K, M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")


@tilec.kernel
def vectors(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32"),
            S: T.Tensor((1,), "float32"), L: T.Tensor((1,), "float32")):  # fmt: skip
    for z in T.Parallel(1):
        s: T.float32 = 0
        low: T.float32 = T.infinity("float32")
        for i in range(N):
            s += X[i] * Y[i]
            low = T.min(low, X[i])
        S[z] = s
        L[z] = low


@tilec.kernel
def ends(X: T.Tensor((B, C, H, W), "float16"), Y: T.Tensor((2,), "float16")):
    for _ in T.Parallel(1):
        low: T.float16 = T.infinity("float16")
        high: T.float16 = -T.infinity("float16")
        for b in range(B):
            for c in range(C):
                for h in range(H):
                    for w in range(W):
                        low = T.min(low, X[b, c, h, w])
                        high = T.max(high, X[b, c, h, w])
        Y[0] = low
        Y[1] = high


@tilec.kernel
def channel_groups(X: T.Tensor((B, H, C), "float32"), Y: T.Tensor((B, H, C), "float32")):
    for b, g in T.Parallel(B, 2):
        n = C // 2
        total = n * H
        s: T.float32 = 0
        for h in range(H):
            for c in range(n):
                s += X[b, h, g * n + c]
        for h in range(H):
            for c in range(n):
                Y[b, h, g * n + c] = X[b, h, g * n + c] - s / total


@tilec.kernel
def flattened(X: T.Tensor((K,), "float16"), R: T.Tensor((M,), "float32"),
              n: T.int32):  # fmt: skip
    for i in T.Parallel(M):
        s: T.float32 = 0
        for j in range(n):
            s = T.float32(X[i * n + j]) + s
        R[i] = s


@tilec.kernel
def bias_gradient(G: T.Tensor((B, C, H, W), "float16"), D: T.Tensor((C,), "float16")):
    for c in T.Parallel(C):
        for b in range(B):
            for h in range(H):
                for w in range(W):
                    T.atomic_add(D[c], G[b, c, h, w])


@tilec.kernel
def losses(X: T.Tensor((M, N), "float32"), P: T.Tensor((M, N), "float32"),
           L: T.Tensor((2,), "float32"), K: T.Tensor((1,), "int32")):  # fmt: skip
    for i, j in T.Parallel(M, N):
        d = X[i, j] - P[i, j]
        if d > 0.5:
            T.atomic_add(L[1], d * d)
            T.atomic_add(K[0], 1)


@tilec.kernel
def largest_of_columns(X: T.Tensor((M, N), "int32"), Y: T.Tensor((N,), "int32")):
    for i, j in T.Parallel(M, N):
        T.atomic_max(Y[j], X[i, j])


@tilec.kernel
def norms(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32")):
    for i in T.Parallel(M):
        Y[i] = 1
        for j in range(N):
            Y[i] += X[i, j] * X[i, j]
        Y[i] = T.sqrt(Y[i])


@tilec.kernel
def added_to(X: T.Tensor((M, N), "float64"), Y: T.Tensor((N,), "float64")):
    for j in T.Parallel(N):
        for i in range(M):
            if X[i, j] > 0:
                Y[j] += X[i, j]


@tilec.kernel
def products(X: T.Tensor((M, N), "float32"), I: T.Tensor((M, N), "int32"),  # noqa: E741
             P: T.Tensor((M,), "float32"), Q: T.Tensor((M,), "int32"),
             A: T.Tensor((M,), "int32"), O: T.Tensor((M,), "uint32"),  # noqa: E741
             R: T.Tensor((M,), "int32")):  # fmt: skip
    for i in T.Parallel(M):
        p: T.float32 = 2
        q: T.int32 = 3
        every: T.int32 = 0xFFFF
        some: T.uint32 = 4
        odd: T.int32 = 9
        for j in range(N):
            if X[i, j] > 1:
                p *= X[i, j]
                q = I[i, j] * q
            every &= I[i, j] | 0xFF00
            some = some | T.cast(I[i, j], "uint32")
            odd ^= I[i, j]
        P[i] = p
        Q[i] = q
        A[i] = every
        O[i] = some
        R[i] = odd


@tilec.kernel
def product_of_columns(X: T.Tensor((M, N), "float64"), Y: T.Tensor((N,), "float64")):
    for j in T.Parallel(N):
        p: T.float64 = 1
        for i in range(M):
            p *= X[i, j]
        Y[j] = p


@tilec.kernel
def chosen(X: T.Tensor((M, N), "float32"), I: T.Tensor((M, N), "int32"),  # noqa: E741
           Y: T.Tensor((7,), "float32")):  # fmt: skip
    for i, j in T.Parallel(M, N):
        T.atomic_add(Y[I[i, j]], X[i, j])


def given(name: str, size: tuple[int, int], rng: np.random.Generator) -> tuple[Any, list[Any]]:
    """What a kernel is given, and what it must leave in the last ones."""
    m, n = size
    x = rng.standard_normal(size).astype(np.float32)
    many = rng.integers(1, 1 << 12, size).astype(np.int32)
    nan = np.full((m,), np.nan, np.float32)
    if name == "vectors":
        x, y = x.reshape(-1), rng.standard_normal(m * n).astype(np.float32)
        want = [np.array([wide(x) @ wide(y)]), np.array([x.min(initial=np.inf)])]
        return [x, y, np.zeros(1, np.float32), np.zeros(1, np.float32)], want
    if name in ("ends", "bias_gradient"):
        x = rng.standard_normal((2, m, 3, n)).astype(np.float16)
        if name == "ends":
            bounds = np.array([x.min(initial=np.inf), x.max(initial=-np.inf)])
            return [x, np.zeros(2, np.float16)], [bounds]
        return [x, np.ones(m, np.float16)], [1 + wide(x).sum((0, 2, 3))]
    if name == "channel_groups":
        x = rng.standard_normal((3, m, 2 * n)).astype(np.float32)
        z = wide(x).reshape(3, m, 2, n)
        mean = z.sum((1, 3), keepdims=True) / max(1, m * n)
        return [x, np.full_like(x, np.nan)], [(z - mean).reshape(x.shape)]
    if name == "flattened":
        x = x.astype(np.float16)
        return [x.reshape(-1), nan, n], [wide(x).sum(1)]
    if name == "losses":
        p = rng.standard_normal(size).astype(np.float32)
        d = np.where(x - p > np.float32(0.5), x - p, 0)
        want = [np.array([0, (wide(d) ** 2).sum()]), np.array([(d > 0).sum()])]
        return [x, p, np.zeros(2, np.float32), np.zeros(1, np.int32)], want
    if name == "largest_of_columns":
        return [many, np.full(n, 50, np.int32)], [many.max(0, initial=50)]
    if name == "norms":
        return [x, nan], [np.sqrt(1 + (wide(x) ** 2).sum(1))]
    if name == "added_to":
        x64, y = wide(x), rng.standard_normal(n)
        return [x64, y], [y + np.where(x64 > 0, x64, 0).sum(0)]
    if name == "product_of_columns":
        x64 = 1 + wide(x) / 10
        return [x64, np.full(n, np.nan)], [x64.prod(0)]
    x = (1 + x / 5).astype(np.float32)
    want = [
        2 * np.where(x > 1, wide(x), 1).prod(1),
        3 * np.where(x > 1, many, 1).prod(1, dtype=np.int32),
        0xFFFF & np.bitwise_and.reduce(many | 0xFF00, 1),
        4 | np.bitwise_or.reduce(many, 1).astype(np.uint32),
        9 ^ np.bitwise_xor.reduce(many, 1),
    ]
    return [x, many, nan, *(np.zeros(m, d) for d in ("int32", "int32", "uint32", "int32"))], want


KERNELS = {
    k.name: k
    for k in (
        vectors, ends, channel_groups, flattened, bias_gradient, losses, largest_of_columns, norms,
        added_to, products, product_of_columns,
    )
}  # fmt: skip
SIZES = ((5, 70), (1, 1), (33, 37), (3, 0), (0, 4), (1, 700))


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_numbers(name: str, target: str, rng: np.random.Generator) -> None:
    for size in SIZES if target in TARGETS[::3] else SIZES[:1]:
        arrays, want = given(name, size, rng)
        run(KERNELS[name], target, *arrays)
        outputs = [a for a in arrays if isinstance(a, np.ndarray)][-len(want) :]
        loose = 1e-2 if name == "bias_gradient" else 1e-4  # halfs, as the result is rounded to
        if name == "bias_gradient" and target == "cpu":
            loose = 1  # where each addition is
        for got, expected in zip(outputs, want):
            np.testing.assert_allclose(wide(got), wide(expected), rtol=loose, atol=loose / 10)


@pytest.mark.parametrize("name", KERNELS)
def test_a_block_does_it_together(name: str, rng: np.random.Generator) -> None:
    """Over tiles, whose elements are folded at the end, and few atomics behind them."""
    arrays, _ = given(name, SIZES[0], rng)
    text = traced(KERNELS[name], *arrays, target="cuda:sm_90a")
    assert "reduce" in text and "alloc fragment" in text
    if name in ("bias_gradient", "losses", "largest_of_columns"):
        assert text.index("atomic") > text.index("reduce")


def large(*shape: int, dtype: str = "float32") -> Any:
    return tilec.spec(shape, dtype)


@pytest.mark.parametrize(
    "name, arrays, parts",
    [
        ("vectors", [large(1 << 26), large(1 << 26), large(1), large(1)], 128),
        ("ends", [large(4, 3, 1024, 1024, dtype="float16"), large(2, dtype="float16")], 128),
        ("losses", [large(512, 512), large(512, 512), large(2), large(1, dtype="int32")], 128),
    ],
)
def test_blocks_share_it(name: str, arrays: list[Any], parts: int) -> None:
    """All tiles there are, where the outermost loop has few iterations, too; and a nest whose one
    iteration is all there is has no tile with rows beyond it."""
    text = traced(KERNELS[name], *arrays, target="cuda:sm_90a")
    (combined,) = (line for line in text.splitlines() if "combine_parts" in line)
    assert f", {parts}, kinds" in combined, combined
    tiles = [line for line in text.splitlines() if "alloc fragment<" in line]
    assert all("fragment<1x" in line or "fragment<1" in line for line in tiles), tiles


def test_an_index_that_is_read_stays_as_it_is(rng: np.random.Generator) -> None:
    """Each element has a place of its own: no tile folds them."""
    x, y = rng.standard_normal((9, 40)).astype(np.float32), np.zeros(7, np.float32)
    at = rng.integers(0, 7, x.shape).astype(np.int32)
    assert "combine_parts" not in chosen.compile(x, at, y, target="cuda:sm_90a").stages["tile"]
    run(chosen, "cuda:sm_90a", x, at, y)
    want = np.zeros(7)
    np.add.at(want, at, wide(x))
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


@tilec.kernel
def centred(
    X: T.Tensor((M, C, N), "float16"), W: T.Tensor((C,), "float32"),
    Y: T.Tensor((M, C, N), "float16"), groups: T.constexpr = 2,
) -> None:  # fmt: skip
    """One name for places in both loops, before and in the loop along the row."""
    for i, g in T.Parallel(M, groups):
        total = 0.0
        for c in range(C // groups):
            at = g * (C // groups) + c
            for j in range(N):
                total += X[i, at, j]
        for c in range(C // groups):
            for j in range(N):
                at = g * (C // groups) + c
                y = X[i, at, j] - total / (C // groups * N)
                Y[i, at, j] = y * W[at]


@tilec.kernel
def changing(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32")) -> None:
    """Names that stay: one that is read behind its loop, one whose parts change before it is."""
    for i in T.Parallel(M):
        total = 0.0
        last = 0
        step = 0
        for j in range(N):
            last = N - 1 - j
            total += X[i, last]
            step += 2
            at = step - 2 - j
            step = step + 0
            total += 2.0 * X[i, at]
        Y[i] = total + last


@tilec.kernel
def drawn(P: T.Tensor((M, 3), "float32"), E: T.Tensor((M,), "float32")) -> None:
    """Rows of so few elements that they are written out: vectors, for what goes along them."""
    for i in T.Parallel(M):
        e = 0.0
        for j in range(M):
            x = P[i, 0] - P[j, 0]
            y = P[i, 2] - P[j, 2]
            if j != i:
                e += P[j, 1] / (x * x + y * y + 1.0)
        E[i] = e


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m, c, n", [(3, 4, 70), (1, 2, 1)])
def test_names_for_places_in_loops(m: int, c: int, n: int, target: str) -> None:
    rng = np.random.default_rng(n)
    x, w = rng.standard_normal((m, c, n)).astype(np.float16), np.arange(c, dtype=np.float32)
    y = np.empty_like(x)
    if target != "cpu":
        made = centred.compile(x, w, y, target=target).stages["tile"]
        assert "reduce" in made or n == 1
    run(centred, target, x, w, y)
    wide = x.astype(np.float64).reshape(m, 2, -1)
    want = (wide - wide.mean(2, keepdims=True)).reshape(x.shape) * w[:, None]
    np.testing.assert_allclose(y, want, atol=5e-3)
    s = np.empty(m, np.float32)
    run(changing, target, x[:, 0].astype(np.float32), s)
    np.testing.assert_allclose(s, 3 * x[:, 0].astype(np.float64).sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 70])
def test_numbers_at_the_end_of_places(n: int, target: str) -> None:
    p = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
    e = np.empty(n, np.float32)
    if target != "cpu" and n > 1:
        assert "reduce" in drawn.compile(p, e, target=target).stages["tile"]
    run(drawn, target, p, e)
    d = p[:, None].astype(np.float64) - p[None]
    part = p[None, :, 1] / (d[..., 0] ** 2 + d[..., 2] ** 2 + 1)
    np.testing.assert_allclose(e, part.sum(1) - np.diag(part), rtol=1e-4, atol=1e-4)
