"""Kernels of mathematics only that ask whether any element holds, or all do, that fold whole
matrices in several ways at once, and whose loops add to elements that they share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run, traced

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, N = T.dynamic("M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
SIZES = ((5, 300), (1, 1), (3, 0), (0, 4), (130, 37))


@tilec.kernel
def in_rows(
    X: T.Tensor((M, N), "uint8"), A: T.Tensor((M,), "bool"), B: T.Tensor((M,), "bool"),
    C: T.Tensor((M,), "bool"), D: T.Tensor((M,), "bool"),
):  # fmt: skip
    for i in T.Parallel(M):
        a: T.bool = False
        b: T.bool = True
        c: T.bool = X[i, 0] == 3
        d: T.bool = True
        for j in range(N):
            a = X[i, j] == 7 or a or X[i, j] == 9
            b &= X[i, j] > 0
            if X[i, j] == 5 and j > 2:
                c = True
            if X[i, j] > 250:
                d = False
        A[i] = a
        B[i] = b
        C[i] = c
        D[i] = not d


@tilec.kernel
def in_columns(
    X: T.Tensor((M, N), "uint8"), A: T.Tensor((N,), "bool"), B: T.Tensor((N,), "bool")
):  # fmt: skip
    for j in T.Parallel(N):
        a: T.bool = False
        b: T.bool = True
        for i in range(M):
            if i % 2 == 0:
                a = a | (X[i, j] == 7)
            b = b and X[i, j]  # a number that is not 0
        A[j] = a
        B[j] = b


@tilec.kernel
def of_all(
    X: T.Tensor((M, N), "float16"), S: T.Tensor((1,), "float32"), H: T.Tensor((1,), "float16"),
    K: T.Tensor((1,), "int64"), A: T.Tensor((1,), "bool"),
):  # fmt: skip
    for z in T.Parallel(1):
        s: T.float32 = 0
        h: T.float16 = -T.infinity("float16")
        k: T.int64 = 0
        a: T.bool = False
        for i in range(M):
            for j in range(N):
                s += T.abs(T.float32(X[i, j]))
                h = T.max(h, X[i, j])
                if X[i, j] > 0.5:
                    k += 1
                a = a or X[i, j] > 3
        S[z] = s
        H[z] = h
        K[z] = k
        A[z] = a


@tilec.kernel
def shared_sums(
    X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"), W: T.Tensor((N,), "float32"),
    K: T.Tensor((N,), "int32"),
):  # fmt: skip
    for i in T.Parallel(M):
        s: T.float32 = 0
        for j in range(N):
            s += X[i, j]
        for j in range(N):
            x = X[i, j] - s / N
            Y[i, j] = x
            T.atomic_add(W[j], x * x)
            T.atomic_max(K[j], i)


def given(name: str, m: int, n: int, rng: np.random.Generator) -> tuple[Any, list[Any], list[Any]]:
    """A kernel, what it is given, and what it must leave in the last ones."""
    x = rng.integers(0, 256, (m, n)).astype(np.uint8)
    if name == "in_rows":
        x[x == 0] = 1
        if x.size:
            x.flat[0], x[m // 2, n // 2] = 3, 0
        first = x[:, 0] == 3 if n else np.zeros(m, bool)
        want = [((x == 7) | (x == 9)).any(1), (x > 0).all(1)]
        want += [first | (x == 5)[:, 3:].any(1), (x > 250).any(1)]
        return in_rows, [x, *(np.zeros(m, bool) for _ in range(4))], want
    if name == "in_columns":
        x[x == 0] = 1
        if x.size:
            x[m // 2, n // 2] = 0
        want = [(x[::2] == 7).any(0), (x > 0).all(0)]
        return in_columns, [x, np.zeros(n, bool), np.zeros(n, bool)], want
    half = rng.standard_normal((m, n)).astype(np.float16)
    if name == "of_all":
        outs = [np.zeros(1, d) for d in (np.float32, np.float16, np.int64, bool)]
        want = [np.abs(half.astype(float)).sum(), half.max(initial=-np.inf), (half > 0.5).sum()]
        return of_all, [half, *outs], [*want, (half > 3).any()]
    x = half.astype(np.float32)
    y = x - (x.astype(float).sum(1, keepdims=True) / n if n else 0)
    last = np.full(n, m - 1 if m else 0, np.int32)
    arrays = [x, np.full_like(x, np.nan), np.ones(n, np.float32), np.zeros(n, np.int32)]
    return shared_sums, arrays, [y, 1 + (y * y).sum(0), last]


NAMES = ("in_rows", "in_columns", "of_all", "shared_sums")


@pytest.mark.covering(1)
@pytest.mark.parametrize("m, n", SIZES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_numbers(name: str, target: str, m: int, n: int, rng: np.random.Generator) -> None:
    kernel, arrays, want = given(name, m, n, rng)
    run(kernel, target, *arrays)
    for got, expected in zip(arrays[-len(want) :], want):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_block_does_it_together(name: str, rng: np.random.Generator) -> None:
    kernel, arrays, _ = given(name, 130, 300, rng)
    text = traced(kernel, *arrays, target="cuda:sm_90a")
    assert "reduce" in text and "alloc fragment" in text


@pytest.mark.parametrize(
    ("name", "kinds"), [("of_all", "add max add max"), ("in_columns", "max min")]
)
def test_blocks_share_folds_of_several_kinds(
    name: str, kinds: str, rng: np.random.Generator
) -> None:
    kernel, arrays, want = given(name, 5000, 9, rng)
    compiled = kernel.compile(*arrays, target="cuda:sm_90a")
    named = ", ".join(f'"{kind}"' for kind in kinds.split())
    assert f"kinds=({named})" in compiled.stages["tile"]
    if name == "of_all":
        assert compiled.image.grid.endswith(", 1, 128)")  # T.Parallel(1) is one, not few
    kernel, arrays, want = given(name, 210, 9, rng)  # what may be shared out need not be many
    report = tilec.simulate(kernel, *arrays, target="cuda:sm_90a")
    assert not report.findings, str(report)
    for got, expected in zip(arrays[-len(want) :], want):
        np.testing.assert_allclose(got, expected, rtol=1e-4)


@tilec.kernel
def one_after_the_other(X: T.Tensor((M, N), "uint8"), A: T.Tensor((M,), "bool")):
    for i in T.Parallel(M):
        a: T.bool = False
        for j in range(N):
            if X[i, j] == 7:
                a = True
            elif X[i, j] == 9:
                a = False
        A[i] = a


@pytest.mark.parametrize("target", TARGETS)
def test_what_has_an_order_keeps_it(target: str, rng: np.random.Generator) -> None:
    x = rng.integers(5, 11, (20, 40)).astype(np.uint8)
    a = np.zeros(20, bool)
    if target == "cpu":
        one_after_the_other(x, a)
    else:
        assert tilec.simulate(one_after_the_other, x, a, target=target).ok
    last = [next((v for v in row[::-1] if v in (7, 9)), 9) for row in x]
    np.testing.assert_array_equal(a, np.array(last) == 7)
