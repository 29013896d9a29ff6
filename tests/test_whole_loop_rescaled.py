"""Loops that scale a sum anew as the largest value grows, and fold something else beside it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

N, K, M = T.dynamic("N, K, M")
TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
f16, f32, i64 = "float16", "float32", "int64"
Rows, Columns, Picks = T.Tensor((M, K), f16), T.Tensor((N, K), f16), T.Tensor((M,), i64)
Line = T.Tensor((M,), f32)


@tilec.kernel
def cross_entropy(X: Rows, W: Columns, Y: Picks, L: Line) -> None:
    for i in T.Parallel(M):
        most, total, own = -T.infinity("float32"), 0.0, 0.0
        for j in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.float32(X[i, k]) * T.float32(W[j, k])
            new = T.max(most, acc)
            total = total * T.exp(most - new) + T.exp(acc - new)
            most = new
            if j == Y[i]:
                own += acc
        L[i] = most + T.log(total) - own


@tilec.kernel
def chosen(X: Rows, W: Columns, Y: Picks, L: Line) -> None:
    for i in T.Parallel(M):
        most, total, own = -T.infinity("float32"), 0.0, 0.0
        for j in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.float32(X[i, k]) * T.float32(W[j, k])
            own = own + T.if_then_else(j == Y[i], acc, 0.0)
            new = T.max(most, acc)
            scale = T.exp(most - new)
            most = new
            total = total * scale + T.exp(acc - new)
        L[i] = most + T.log(total) - own


@tilec.kernel
def gathered(X: Rows, W: Columns, Y: Picks, L: Line) -> None:
    for i in T.Parallel(M):
        most, total, own = -T.infinity("float32"), 0.0, 0.0
        for j in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.float32(X[i, k]) * T.float32(W[j, k])
            new = T.max(most, acc)
            total = total * T.exp(most - new) + T.exp(acc - new)
            most = new
        for k in range(K):
            own += T.float32(X[i, k]) * T.float32(W[Y[i], k])
        L[i] = most + T.log(total) - own


@tilec.kernel
def running(X: T.Tensor((M, N), f32), Y: Line, Z: Line) -> None:
    for i in T.Parallel(M):
        most, total, own = -T.infinity("float32"), 0.0, 0.0
        for j in range(N):
            before = own * 0.25
            new = T.max(most, X[i, j])
            total = total * T.exp(most - new) + T.exp(X[i, j] - new) * before
            most = new
            own += X[i, j] * X[i, j]
        Y[i] = total
        Z[i] = own


@tilec.kernel
def late(X: T.Tensor((M, N), f32), Y: Line, Z: Line) -> None:
    for i in T.Parallel(M):
        most, total, own = -T.infinity("float32"), 0.0, 0.0
        for j in range(N):
            new = T.max(most, X[i, j])
            total = total * T.exp(most - new) + T.exp(X[i, j] - new)
            most = new
            own += most
        Y[i] = total
        Z[i] = own


@tilec.kernel
def unscaled(X: T.Tensor((M, N), f32), Y: Line, Z: Line) -> None:
    for i in T.Parallel(M):
        most, total = -T.infinity("float32"), 0.0
        count = 0
        for j in range(N):
            new = T.max(most, X[i, j])
            most = new
            total = total * T.exp(most - new) + T.exp(X[i, j] - new)
            if X[i, j] > 0:
                count += 1
        Y[i] = total
        Z[i] = T.float32(count)


def _row_by_row(kind: str) -> Callable[[Any], tuple[Any, Any]]:
    def reference(x: Any) -> tuple[Any, Any]:
        out = []
        for row in x:
            most, total, own = -np.inf, 0.0, 0.0
            for v in row:
                new = max(most, v)
                before, own = own, own + (v * v if kind == "running" else 0)
                scale = 1 if kind == "unscaled" else np.exp(most - new)
                total = total * scale + np.exp(v - new) * (before / 4 if kind == "running" else 1)
                most = new
                own += {"late": most, "unscaled": v > 0}.get(kind, 0)
            out.append((total, own))
        return tuple(zip(*out))

    return reference


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", (cross_entropy, chosen, gathered), ids=lambda k: k.name)
def test_what_is_added_up_beside_a_rescaled_sum(kernel: Any, target: str) -> None:
    """Tiles of products for both, as for two loops."""
    rng = np.random.default_rng(5)
    x, w = (rng.normal(size=s).astype(f16) for s in ((37, 40), (75, 40)))
    picks, out = rng.integers(0, 75, 37), np.full(37, np.nan, f32)
    run(kernel, target, x, w, picks, out)
    sums = x.astype("float64") @ w.T.astype("float64")
    most = sums.max(1)
    want = most + np.log(np.exp(sums - most[:, None]).sum(1)) - sums[np.arange(37), picks]
    np.testing.assert_allclose(out, want, rtol=2e-3, atol=2e-3)
    if target != "cpu":
        shapes = (tilec.spec(s, f16) for s in ((2049, 512), (8001, 512)))
        made = kernel.compile(
            *shapes, tilec.spec((2049,), i64), tilec.spec((2049,), f32), target=target
        )
        assert "gemm" in made.stages["tile"] and not made.resources.spilled_bytes


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", (running, late, unscaled), ids=lambda k: k.name)
def test_what_hangs_on_the_running_values_stays_in_its_loop(kernel: Any, target: str) -> None:
    x = np.random.default_rng(6).normal(size=(19, 45)).astype(f32)
    got = tuple(np.full(19, np.nan, f32) for _ in "yz")
    run(kernel, target, x, *got)
    for a, b in zip(got, _row_by_row(kernel.name)(x.astype("float64"))):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
def test_rows_that_are_folded_beside_products_have_tiles_of_their_own(target: str) -> None:
    """Of 128 x 128 elements a thread would hold 64, and their addresses."""
    shapes = (tilec.spec(s, f16) for s in ((2049, 1024), (32001, 1024)))
    ends = tilec.spec((2049,), i64), tilec.spec((2049,), f32)
    made = gathered.compile(*shapes, *ends, target=target)
    assert made.stages["tile"].count("gemm") == 2 and not made.resources.spilled_bytes
