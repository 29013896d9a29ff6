"""Sums along an axis that an author has written as loops of single threads are warned of."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")


def by_hand(rows: int, trips: Any, threads: int, form: str, source: str = "fragment"):
    """S = what `form` says of each of A's rows, of 64 elements."""

    @tilec.kernel
    def sums(A: T.Tensor((M, 64), "float32"), S: T.Tensor((M,), "float32"), n: T.int32):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as b:
            x = T.alloc_fragment((rows, 64), "float32")
            s = T.alloc_fragment((rows,), "float32")
            T.copy(A[b * rows, 0], x)
            T.fill(s, -T.infinity("float32") if form == "max" else 0)
            for i in T.Parallel(rows):
                if form == "carried":
                    total: T.float32 = 0
                    for j in T.serial(trips):
                        total += A[b * rows + i, j]
                    s[i] = total
                elif form == "max":
                    for j in T.serial(trips):
                        s[i] = T.max(s[i], x[i, j])
                elif form == "products":
                    for j in T.serial(n):
                        s[i] += x[i, j] * x[i, j]
                elif form == "iteration":  # no sum of elements
                    for j in T.serial(trips):
                        s[i] += T.cast(j, "float32")
                elif form == "own":  # an element each
                    for j in T.serial(trips):
                        x[i, j] = x[i, j] + A[b * rows + i, j]
                else:
                    for j in T.serial(trips):
                        s[i] += x[i, j]
            T.copy(s, S[b * rows])

    return sums


def told(kernel: Any, target: str = "cuda:sm_90a") -> list[str]:
    specs = [tilec.spec((40, 64), "float32"), tilec.spec((40,), "float32"), 64]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        kernel.compile(*specs, target=target)
    said = [str(w.message) for w in found if issubclass(w.category, tilec.CompileWarning)]
    return [s for s in said if "of this T.Parallel" in s]


WARNED = {
    "plain": ("sum", "64 elements", "s[i] += x[i, j]"),
    "carried": ("sum", "64 elements", "total += A[b * rows + i, j]"),
    "max": ("max", "64 elements", "s[i] = T.max(s[i], x[i, j])"),
    "products": ("sum", "all elements", "s[i] += x[i, j] * x[i, j]"),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("form", WARNED)
def test_what_is_said(form: str, target: str) -> None:
    kind, many, line = WARNED[form]
    (text,) = told(by_hand(4, 64, 128, form), target)
    assert f"(4) takes the {kind} of {many} by itself" in text and line in text
    assert "128 threads have 4 iterations" in text and f"T.reduce_{kind}" in text


@pytest.mark.parametrize(
    "rows, trips, threads, form",
    [
        (128, 64, 128, "plain"),  # a row for each thread
        (65, 64, 128, "plain"),
        (4, 15, 128, "plain"),  # short
        (4, 64, 128, "iteration"),
        (4, 64, 128, "own"),
    ],
)
def test_what_is_not(rows: int, trips: int, threads: int, form: str) -> None:
    assert not told(by_hand(rows, trips, threads, form))


def test_several_are_told_at_once() -> None:
    @tilec.kernel
    def sums(A: T.Tensor((M, 64), "float32"), S: T.Tensor((M,), "float32"), n: T.int32):
        with T.Kernel(T.ceildiv(M, 4), threads=128) as b:
            s = T.alloc_fragment((4,), "float32")
            T.clear(s)
            for i in T.Parallel(4):
                for j in T.serial(64):
                    s[i] += A[b * 4 + i, j]
            for i in T.Parallel(4):
                for j in T.serial(n):
                    s[i] += A[b * 4 + i, j]  # of as many elements
            T.copy(s, S[b * 4])

    (text,) = told(sums)
    first, second = re.findall(r"\.py:(\d+):|so in line (\d+)", text)
    assert int(second[1]) == int(first[0]) + 3, text


def test_on_a_cpu_threads_are_loops() -> None:
    assert not told(by_hand(4, 64, 128, "plain"), "cpu")


def test_the_reduction_itself_is_not() -> None:
    @tilec.kernel
    def reduced(A: T.Tensor((M, 64), "float32"), S: T.Tensor((M,), "float32"), n: T.int32):
        with T.Kernel(T.ceildiv(M, 4), threads=128) as b:
            x, s = T.alloc_fragment((4, 64), "float32"), T.alloc_fragment((4,), "float32")
            T.copy(A[b * 4, 0], x)
            T.reduce_sum(x, s, dim=1)
            T.copy(s, S[b * 4])

    assert not told(reduced)


@pytest.mark.filterwarnings("ignore::tilec.CompileWarning")
@pytest.mark.parametrize("form", WARNED)
def test_numbers_are_what_they_are(form: str) -> None:
    a = np.random.default_rng(0).standard_normal((37, 64)).astype(np.float32)
    s = np.zeros(37, np.float32)
    by_hand(4, 64, 128, form)(a, s, 64)
    exact = a.astype(float)
    wants = {"max": exact.max(1), "products": (exact**2).sum(1)}
    assert np.abs(s - wants.get(form, exact.sum(1))).max() < 1e-4


@pytest.mark.parametrize(
    ("target", "length", "threads", "enough"),
    [
        ("cuda:sm_90a", 3, 128, 32),
        ("cuda:sm_80", 40, 128, 64),
        ("hip:gfx942", 3, 128, 64),
        ("cuda:sm_90a", 3, 32, None),  # nor is there anything to gain
        ("hip:gfx942", 3, 64, None),
        ("cuda:sm_90a", 100, 128, None),
    ],
)
def test_loops_whose_length_a_call_gives(
    target: str, length: int, threads: int, enough: int | None
) -> None:
    """They have no tile that could be reduced."""

    @tilec.kernel
    def products(
        X: T.Tensor((M, 9), "float32"), W: T.Tensor((N, 9), "float32"),
        S: T.Tensor((M, N), "float32"), n: T.int32,
    ):  # fmt: skip
        with T.Kernel(M, threads=threads) as b:
            for o in T.Parallel(N):
                acc = T.alloc_local((2,), "float32")
                acc[0] = acc[1] = 0.0
                for k in range(n):
                    acc[0] += X[b, k] * W[o, k]
                    acc[1] += W[o, k]
                S[b, o] = acc[0] + acc[1]

    shapes = ((40, 9), (length, 9), (40, length))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        products.compile(*(tilec.spec(s, "float32") for s in shapes), 9, target=target)
    said = [str(w.message) for w in found if issubclass(w.category, tilec.CompileWarning)]
    assert len(said) == (enough is not None), said
    assert all(f"threads={enough} do as much" in s and "T.reduce" not in s for s in said)
