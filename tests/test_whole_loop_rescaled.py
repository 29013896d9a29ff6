"""Kernels of mathematics only whose loops scale a sum anew as the largest value grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

M, N = T.dynamic("M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
SIZES = ((5, 300), (1, 1), (0, 40), (130, 37))


@tilec.kernel
def logsumexp(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32")):
    for i in T.Parallel(M):
        m: T.float32 = -T.infinity("float32")
        l: T.float32 = 0  # noqa: E741
        for j in range(N):
            new = T.max(m, X[i, j])
            l = l * T.exp(m - new) + T.exp(X[i, j] - new)  # noqa: E741
            m = new
        Y[i] = m + T.log(l)


@tilec.kernel
def softmax(X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float32")):
    for i in T.Parallel(M):
        most, total = -1e30, 0.0
        for j in range(N):
            x = T.cast(X[i, j], "float32")
            before = most
            most = T.max(most, x)
            scale = T.exp2((before - most) * 1.4426950408889634)
            total *= scale
            total += T.exp2((x - most) * 1.4426950408889634)
        for j in range(N):
            x = T.cast(X[i, j], "float32")
            Y[i, j] = T.exp2((x - most) * 1.4426950408889634) / total


@tilec.kernel
def entropy(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, 2), "float32")):
    for i in T.Parallel(M):
        m, s, t = -T.infinity("float32"), 0.0, 0.0
        for j in range(N):
            x = X[i, j]
            old, m = m, max(x, m)
            p = T.exp(x - m)
            s, t = s * T.exp(old - m) + p, p * x + T.exp(old - m) * t
        Y[i, 0] = m + T.log(s) - t / s
        Y[i, 1] = m


def softmax_of(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def given(name: str, x: np.ndarray) -> tuple[Any, list[np.ndarray], np.ndarray]:
    """A kernel, what it is given, and what it must leave in the last one."""
    if name == "logsumexp":
        return logsumexp, [x, x[:, 0] * np.nan], np.log(np.exp(x.astype(float)).sum(1))
    if name == "softmax":
        half = x.astype(np.float16)
        return softmax, [half, x * np.nan], softmax_of(half.astype(float))
    p = softmax_of(x.astype(float))
    want = np.stack([-(p * np.log(p)).sum(1), x.max(1)], 1)
    return entropy, [x, np.full((len(x), 2), np.nan, np.float32)], want


NAMES = ("logsumexp", "softmax", "entropy")


@pytest.mark.covering(2)
@pytest.mark.parametrize("m, n", SIZES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", TARGETS)
def test_numbers(target: str, name: str, m: int, n: int, rng: np.random.Generator) -> None:
    kernel, arrays, want = given(name, 5 * rng.standard_normal((m, n)).astype(np.float32))
    run(kernel, target, *arrays)
    np.testing.assert_allclose(arrays[-1], want, rtol=1e-4, atol=1e-5)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS[:3])
@pytest.mark.parametrize("name", NAMES)
def test_a_block_does_it_together(name: str, target: str, rng: np.random.Generator) -> None:
    kernel, arrays, _ = given(name, rng.standard_normal((50, 3000)).astype(np.float32))
    text = kernel.compile(*arrays, target=target).stages["tile"]
    assert "reduce" in text and "thread_index" not in text


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_without_elements(target: str) -> None:
    y = np.full(3, np.nan, np.float32)
    run(logsumexp, target, np.zeros((3, 0), np.float32), y)
    np.testing.assert_array_equal(y, -np.inf)


@tilec.kernel
def another_factor(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32")):
    """Its terms do not grow as the sum is scaled."""
    for i in T.Parallel(M):
        m: T.float32 = -1e30
        s: T.float32 = 0
        for j in range(N):
            new = T.max(m, X[i, j])
            s = s * T.exp((m - new) * 0.5) + T.exp(X[i, j] - new)
            m = new
        Y[i] = s


@tilec.kernel
def another_begin(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32")):
    for i in T.Parallel(M):
        m: T.float32 = 0
        s: T.float32 = 1
        for j in range(N):
            new = T.max(m, X[i, j])
            s = s * T.exp(m - new) + T.exp(X[i, j] - new)
            m = new
        Y[i] = s


@tilec.kernel
def begins_at_one(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32")):
    """By a call that has a 0 to itself."""
    for i in T.Parallel(M):
        m: T.float32 = 0
        s: T.float32 = T.exp(0.0)
        for j in range(N):
            new = T.max(m, X[i, j])
            s = s * T.exp(m - new) + T.exp(X[i, j] - new)
            m = new
        Y[i] = s


@pytest.mark.covering(1)
@pytest.mark.parametrize("kernel", [another_factor, another_begin, begins_at_one])
@pytest.mark.parametrize("target", TARGETS)
def test_others_are_one_threads(target: str, kernel: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 90)).astype(np.float32)
    y = np.full(4, np.nan, np.float32)
    run(kernel, target, x, y)
    m, s = np.full(4, -1e30), np.zeros(4)
    power = 0.5
    if kernel is not another_factor:
        m, s, power = np.zeros(4), np.ones(4), 1.0
    for column in x.T.astype(float):
        new = np.maximum(m, column)
        s, m = s * np.exp((m - new) * power) + np.exp(column - new), new
    np.testing.assert_allclose(y, s, rtol=1e-5)
    if target != "cpu":
        assert "thread_index" in kernel.compile(x, y, target=target).stages["tile"]
