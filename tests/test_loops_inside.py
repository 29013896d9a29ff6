"""Loops inside of loops over elements: neighbours run them together, and load once what they
share."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
N, L, TAPS, F = 8, 64, 12, 32
WIDE = 256


def convolution(how: str) -> Any:
    """O[n, l, f] = sum over k of X[n, l + k] W[k, f], in forms of the loop over k."""

    @tilec.kernel
    def kernel(
        X: T.Tensor((N, L), "float16"),
        W: T.Tensor((TAPS, F), "float16"),
        O: T.Tensor((N, L, F), "float32"),
        taps: T.int32,
    ):
        with T.Kernel(N // 4, L // 16, threads=64) as (bn, bl):
            x, w = T.alloc_shared((4, 16 + TAPS), "float16"), T.alloc_shared((TAPS, F), "float16")
            o = T.alloc_fragment((4, 16, F), "float32")
            T.copy(X[bn * 4, bl * 16], x)
            T.copy(W, w)
            T.clear(o)
            for i, j, f in T.Parallel(4, 16, F):
                if how == "known":
                    for k in T.serial(TAPS):
                        o[i, j, f] += T.cast(x[i, j + k], "float32") * w[k, f]
                elif how == "run time":
                    for k in T.serial(taps):
                        o[i, j, f] += T.cast(x[i, j + k], "float32") * w[k, f]
                elif how == "conditions":
                    for k in T.serial(TAPS):
                        if j + k < 16:
                            o[i, j, f] += T.cast(x[i, j + k], "float32") * w[k, f]
                elif how == "of each":  # neighbours go different ways
                    for k in T.serial(f % taps + 1):
                        if k != f:
                            o[i, j, f] += T.cast(x[i, j + k], "float32") * w[k, f]
                elif how == "nested":
                    for k in T.serial(3):
                        for m in T.serial(4):
                            o[i, j, f] += T.cast(x[i, j + k * 4 + m], "float32") * w[k * 4 + m, f]
                elif how == "stored":
                    for k in T.serial(taps):
                        O[bn * 4 + i, bl * 16 + j, f] = T.cast(x[i, j + k], "float32") * w[k, f]
            if how != "stored":
                T.copy(o, O[bn * 4, bl * 16, 0])

    return kernel


def expected(how: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    padded = np.pad(x.astype(float), ((0, 0), (0, TAPS)))
    parts = np.stack([padded[:, k : k + L, None] * w[k].astype(float) for k in range(TAPS)])
    k, j, f = np.arange(TAPS)[:, None, None, None], np.arange(L)[:, None], np.arange(F)
    if how == "conditions":
        parts = np.where(j % 16 + k < 16, parts, 0)
    if how == "of each":
        parts = np.where((k <= f % TAPS) & (k != f), parts, 0)
    return parts[-1] if how == "stored" else parts.sum(0)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["known", "run time", "conditions", "of each", "nested", "stored"])
def test_numbers(how: str, target: str, rng: np.random.Generator) -> None:
    x, w = rng.random((N, L)).astype(np.float16), rng.random((TAPS, F)).astype(np.float16)
    o = np.full((N, L, F), np.nan, np.float32)
    run(convolution(how), target, x, w, o, TAPS)
    np.testing.assert_allclose(o, expected(how, x, w), rtol=1e-5)


@pytest.mark.parametrize("how", ["known", "run time", "nested"])
def test_what_elements_share_is_loaded_once(how: str) -> None:
    """A thread's 32 elements are four groups of eight neighbours: eight weights at once for all. A
    loop whose ends are known is written out."""
    specs = [tilec.spec((N, L), "float16"), tilec.spec((TAPS, F), "float16")]
    made = convolution(how).compile(
        *specs, tilec.spec((N, L, F), "float32"), 4, target="cuda:sm_90a"
    )
    loads = re.findall(r"ld\.shared(\.v4)?\.b(?:16|32)", made.asm)
    times = 1 if how == "run time" else TAPS
    assert loads.count(".v4") <= 3 * times and 0 < len(loads) <= 16 * times


def stencil(how: str) -> Any:
    """Each element is the sum of its neighbours', those beyond the edges 0."""
    B, H, W = T.dynamic("B, H, W")

    @tilec.kernel
    def kernel(
        X: T.Tensor((B, H, W), "float16"),
        K: T.Tensor((B, 9), "float16"),
        Y: T.Tensor((B, H, W), "float16"),
        taps: T.int32,
    ):
        with T.Kernel(T.ceildiv(H, 4), B, threads=64) as (bh, b):
            for i, j in T.Parallel(4, W):
                total = T.alloc_var("float32", init=0.0)
                for k in T.serial(9 if how == "known" else taps):
                    y, x = bh * 4 + i + k // 3 - 1, j + k % 3 - 1
                    inside = (y >= 0) & (y < H) & (x >= 0) & (x < W)
                    total += T.if_then_else(inside, T.cast(X[b, y, x], "float32"), 0.0) * K[b, k]
                if bh * 4 + i < H:
                    Y[b, bh * 4 + i, j] = total

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["known", "run time"])
@pytest.mark.parametrize("shape", [(2, 9, 40), (1, 4, 33), (3, 1, 1)])
def test_neighbours_carry_a_sum_each(
    how: str, shape: tuple[int, int, int], target: str, rng: np.random.Generator
) -> None:
    x = rng.random(shape).astype(np.float16)
    k = rng.random((shape[0], 9)).astype(np.float16)
    y = np.full(shape, np.nan, np.float16)
    run(stencil(how), target, x, k, y, 9)
    padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1)))
    h, w = shape[1:]
    parts = [
        padded[:, n // 3 : n // 3 + h, n % 3 : n % 3 + w] * k[:, n, None, None].astype(float)
        for n in range(9)
    ]
    np.testing.assert_allclose(y, sum(parts), rtol=2e-3)


def rows_of(
    A: T.Tensor((N,), "int32"),
    P: T.Tensor((L,), "int32"),
    V: T.Tensor((L,), "float32"),
    X: T.Tensor((TAPS, WIDE), "float16"),
    Y: T.Tensor((N - 1, WIDE), "float16"),
):
    with T.Kernel(N - 1, threads=32) as r:
        for j in T.Parallel(WIDE):
            total = T.alloc_var("float32", init=0.0)
            for p in T.serial(A[r], A[r + 1]):
                total += V[p] * X[P[p], j]
            Y[r, j] = total


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_a_sparse_matrix(target: str, rng: np.random.Generator) -> None:
    """Neighbours run a loop together whose ends, and whose places, all of them have loaded once."""
    counts = rng.integers(0, 5, N - 1)
    a = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    p, v = rng.integers(0, TAPS, L).astype(np.int32), rng.random(L).astype(np.float32)
    x, y = rng.random((TAPS, WIDE)).astype(np.float16), np.full((N - 1, WIDE), np.nan, np.float16)
    run(tilec.kernel(rows_of), target, a, p, v, x, y)
    want = [
        sum((v[q] * x[p[q]].astype(float) for q in range(a[r], a[r + 1])), np.zeros(WIDE))
        for r in range(N - 1)
    ]
    np.testing.assert_allclose(y, want, rtol=2e-3)
    if target == "cuda:sm_90a":
        asm = tilec.kernel(rows_of).compile(a, p, v, x, y, target=target).asm
        assert "ld.global.nc.v4.b32" in asm  # eight neighbours


@tilec.kernel
def taps_in_front(
    X: T.Tensor((L, WIDE), "float16"),
    W: T.Tensor((4, WIDE), "float16"),
    Y: T.Tensor((L, WIDE), "float16"),
):
    with T.Kernel(L // 8, threads=64) as b:
        for i, j in T.Parallel(8, WIDE):
            total = T.alloc_var("float32", init=0.0)
            for w in T.serial(4):
                at = b * 8 + i + w - 3
                if at >= 0:
                    total += T.cast(X[at, j], "float32") * W[w, j]
            Y[b * 8 + i, j] = total


@pytest.mark.parametrize("target", TARGETS)
def test_neighbours_take_a_branch_that_gives_a_value(target: str, rng: np.random.Generator) -> None:
    x, w = (rng.random((n, WIDE)).astype(np.float16) for n in (L, 4))
    y = np.full((L, WIDE), np.nan, np.float16)
    run(taps_in_front, target, x, w, y)
    padded = np.pad(x.astype(float), ((3, 0), (0, 0)))
    want = sum(padded[n : n + L] * w[n].astype(float) for n in range(4))
    np.testing.assert_allclose(y, want, rtol=2e-3)
