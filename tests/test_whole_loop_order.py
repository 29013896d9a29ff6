"""Loops of folds in another order than memory's, with conditions that choose between folds, and
elements that are changed in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run, traced

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

B, C, H, W, M, N = T.dynamic("B, C, H, W, M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
SIZES = ((5, 300), (1, 1), (3, 0), (0, 4), (130, 37))


@tilec.kernel
def weighted(X: T.Tensor((B, 3, H, W), "float32"), Y: T.Tensor((B,), "float32")):
    for b in T.Parallel(B):
        s: T.float32 = 0
        for w in range(W):
            for h in range(H):
                for c in range(3):
                    s += X[b, c, h, w] * (c + 1)
        Y[b] = s


@tilec.kernel
def scaled(X: T.Tensor((B, H, W), "float32"), Y: T.Tensor((B, H, W), "float32")):
    for b in T.Parallel(B):
        s: T.float32 = 0
        for w in range(W):
            for h in range(H):
                s += X[b, h, w]
        for w in range(W):
            for h in range(H):
                Y[b, h, w] = X[b, h, w] - s


@tilec.kernel
def turned(
    X: T.Tensor((M, N), "float16"), R: T.Tensor((N,), "float32"), Y: T.Tensor((M, N), "float32")
):
    for j, i in T.Parallel(N, M):
        Y[i, j] = X[i, j] * R[j]


@tilec.kernel
def by_sign(
    X: T.Tensor((M, N), "float32"), P: T.Tensor((M,), "float32"),
    Q: T.Tensor((M,), "float32"), K: T.Tensor((M,), "int32"),
):  # fmt: skip
    for i in T.Parallel(M):
        p: T.float32 = 0
        q: T.float32 = 1
        k: T.int32 = 0
        for j in range(N):
            if X[i, j] > 0:
                p += X[i, j]
                k += 1
            else:
                q -= X[i, j]
        P[i] = p
        Q[i] = q
        K[i] = k


@tilec.kernel
def narrow(
    X: T.Tensor((M, N), "int32"), Y: T.Tensor((M,), "int16"), Z: T.Tensor((M,), "int32"),
    F: T.Tensor((M,), "float32"),
):  # fmt: skip
    for i in T.Parallel(M):
        s: T.int32 = 0
        u: T.uint32 = 7
        f: T.float32 = 1
        n: T.int8 = 3
        for j in range(N):
            if X[i, j] > 2:
                s -= X[i, j]
                if X[i, j] > 4:
                    n -= 1
                else:
                    f = f - 0.5
            elif X[i, j] < -2:
                u -= 1
            else:
                pass
        Y[i] -= s
        Z[i] = Z[i] * 3 + T.cast(u, "int32") + n
        F[i] *= f


@tilec.kernel
def running(
    X: T.Tensor((B, C, N), "float32"), R: T.Tensor((C,), "float32"),
    Y: T.Tensor((B, C, N), "float32"),
):  # fmt: skip
    for c in T.Parallel(C):
        s: T.float32 = 0
        for b in range(B):
            for n in range(N):
                s += X[b, c, n]
        mean = s / (B * N)
        R[c] = 0.75 * R[c] + 0.25 * mean
        for b in range(B):
            for n in range(N):
                Y[b, c, n] = X[b, c, n] - mean


BIAS: Any = None


@tilec.kernel
def gathered(
    X: T.Tensor((M, N), "float32"), A: T.Tensor((B, N), "float32"), R: T.Tensor((M,), "int32"),
    Y: T.Tensor((M,), "float32"),
):  # fmt: skip
    for i in T.Parallel(M):
        s = 0.0
        own = R[i]
        if BIAS is not None:
            for j in range(N):
                s += BIAS[i, j]
        if own >= 0:
            twice = T.float32(own) * 2
            for j in range(N):
                s += X[i, j] * A[own, j] + twice
            for j in range(N):
                if BIAS is not None:
                    s += BIAS[i, j]
        else:
            for j in range(N):
                s -= X[i, j]
        Y[i] = s


@tilec.kernel
def old_and_new(X: T.Tensor((M, N), "float32"), R: T.Tensor((M,), "float32")):
    for i in T.Parallel(M):
        s: T.float32 = 0
        for j in range(N):
            s += X[i, j]
        old = R[i]
        R[i] = s
        R[i] = R[i] * 2 + old


@tilec.kernel
def whole_number(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "int32")):
    for i in T.Parallel(M):
        s: T.int32 = 0
        for j in range(N):
            s -= X[i, j]
        Y[i] = s


def given(name: str, m: int, n: int, rng: np.random.Generator) -> tuple[Any, list[Any], list[Any]]:
    """A kernel, what it is given, and what it must leave in the last ones."""
    x = rng.standard_normal((m, n)).astype(np.float32)
    r = rng.standard_normal(m).astype(np.float32)
    row = np.full(m, np.nan, np.float32)
    if name == "weighted":
        x = rng.standard_normal((m, 3, n, 5)).astype(np.float32)
        return weighted, [x, row], [np.einsum("bchw,c->b", x.astype(float), [1, 2, 3])]
    if name == "scaled":
        x = rng.standard_normal((m, n, 7)).astype(np.float32)
        return scaled, [x, x * np.nan], [x - x.astype(float).sum((1, 2), keepdims=True)]
    if name == "turned":
        h, c = x.astype(np.float16), rng.standard_normal(n).astype(np.float32)
        return turned, [h, c, x * np.nan], [h.astype(float) * c]
    if name == "by_sign":
        x[:, ::40] = np.nan  # which is not more than 0
        want = [np.where(x > 0, x, 0).sum(1), 1 - np.where(x > 0, 0, x).sum(1), (x > 0).sum(1)]
        return by_sign, [x, row, row.copy(), np.zeros(m, np.int32)], want
    if name == "narrow":
        k = rng.integers(-6, 7, (m, n)).astype(np.int32)
        y = rng.integers(-100, 100, m).astype(np.int16)
        s = np.where(k > 2, -k, 0).sum(1)
        few = (3 - (k > 4).sum(1)).astype(np.int8)
        u = 7 - (k < -2).sum(1)
        z = rng.integers(-9, 9, m).astype(np.int32)
        want = [
            (y - s).astype(np.int16),
            z * 3 + u + few,
            r * (1 - 0.5 * ((k > 2) & (k <= 4)).sum(1)),
        ]
        return narrow, [k, y, z, r], want
    if name == "running":
        x = rng.standard_normal((4, m, n)).astype(np.float32)
        with np.errstate(all="ignore"):
            mean = x.astype(float).sum((0, 2)) / (4 * n)
        return running, [x, r, x * np.nan], [0.75 * r + 0.25 * mean, x - mean[:, None]]
    if name == "gathered":
        a = rng.standard_normal((3, n)).astype(np.float32)
        own = (np.arange(m) % 4 - 1).astype(np.int32)
        some = (x * (a[own] * 1.0)).sum(1) + 2 * own * n
        return gathered, [x, a, own, row], [np.where(own < 0, -x.astype(float).sum(1), some)]
    if name == "old_and_new":
        return old_and_new, [x, r], [x.astype(float).sum(1) * 2 + r]
    want = np.zeros(m, np.int32)
    for i, row in enumerate(x * 3):
        for v in row:
            want[i] = int(np.float32(want[i]) - v)
    return whole_number, [x * 3, np.zeros(m, np.int32)], [want]


NAMES = (
    "turned",
    "weighted",
    "scaled",
    "by_sign",
    "narrow",
    "running",
    "gathered",
    "old_and_new",
    "whole_number",
)


@pytest.mark.covering(1)
@pytest.mark.parametrize("m, n", SIZES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_numbers(name: str, target: str, m: int, n: int, rng: np.random.Generator) -> None:
    kernel, arrays, want = given(name, m, n, rng)
    run(kernel, target, *arrays)
    for got, expected in zip(arrays[-len(want) :], want):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES[1:-2])
def test_a_block_does_it_together(name: str, rng: np.random.Generator) -> None:
    kernel, arrays, _ = given(name, 5, 300, rng)
    text = traced(kernel, *arrays, target="cuda:sm_90a")
    assert "reduce" in text and "alloc fragment" in text


@pytest.mark.parametrize("name", NAMES[-2:])
def test_what_is_read_before_or_cut_off_is_done_by_one(name: str, rng: np.random.Generator) -> None:
    """A name for an element that changes later; a sum of floats in an int, whose order counts."""
    kernel, arrays, _ = given(name, 5, 300, rng)
    assert "alloc fragment" not in traced(kernel, *arrays, target="cuda:sm_90a")


def test_loops_go_as_memory_lies() -> None:
    """Neighbours load neighbours."""
    specs = [tilec.spec((5, 300, 256), "float32")] * 2
    assert "ld.global.nc.v4" in scaled.compile(*specs, target="cuda:sm_90a").stages["ptx"]
    specs = [tilec.spec((512, 4096), "float16"), tilec.spec((4096,), "float32")]
    specs.append(tilec.spec((512, 4096), "float32"))
    assert "ld.global.nc.v4" in turned.compile(*specs, target="cuda:sm_90a").stages["ptx"]
