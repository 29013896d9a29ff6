"""What threads store under conditions on their elements: vectors where a condition holds for the
outer two neighbours, and so for all; elements where it may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import If, MemStore

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
L, M, N = T.dynamic("L, M, N")


def widths(kernel: Any, *args: Any, **meta: Any) -> set[int]:
    """How many elements its stores to memory have."""
    made = kernel.compile(*args, target="cuda:sm_90a", **meta)
    stores = [o for o in walk(made.lowered.body) if isinstance(o, MemStore)]
    return {o.align // o.dest.buffer.dtype.bytes for o in stores if o.dest.buffer.space == "global"}


CONDITIONS = {
    "between": lambda i, lo, hi: lo <= i and i < hi,
    "outside": lambda i, lo, hi: i < lo or i >= hi,
    "falling": lambda i, lo, hi: 255 - i >= lo and hi > 255 - i,
    "but one": lambda i, lo, hi: i != hi,
    "one": lambda i, lo, hi: i == lo,
    "squares": lambda i, lo, hi: i * i >= lo and i < hi,
    "odd": lambda i, lo, hi: i % 2 == lo % 2,
}


@tilec.kernel
def some(
    X: T.Tensor((256,), "float16"),
    Y: T.Tensor((256,), "float16"),
    lo: T.int32,
    hi: T.int32,
    which: T.constexpr,
):
    with T.Kernel(1, threads=32) as _:
        for i in T.Parallel(256):
            if CONDITIONS[which](i, lo, hi):
                Y[i] = X[i] * 2


def held(which: str, i: np.ndarray, lo: int, hi: int) -> np.ndarray:
    return np.array([bool(CONDITIONS[which](int(n), lo, hi)) for n in i])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("which", CONDITIONS)
def test_elements_under_conditions(which: str, target: str) -> None:
    x = np.random.default_rng(3).standard_normal(256).astype(np.float16)
    for lo, hi in [(0, 256), (1, 255), (8, 16), (7, 9), (100, 101), (50, 50), (60, 3), (-4, 500)]:
        y = np.full(256, 7, np.float16)
        run(some, target, x, y, lo, hi, which=which)
        want = np.where(held(which, np.arange(256), lo, hi), x * 2, np.float16(7))
        np.testing.assert_array_equal(y, want, err_msg=f"{which} {lo} {hi}")


@pytest.mark.parametrize("which", ["between", "falling", "one"])
def test_comparisons_hold_for_vectors(which: str) -> None:
    specs = [tilec.spec((256,), "float16")] * 2
    assert widths(some, *specs, 3, 9, which=which) == {8, 1}


@pytest.mark.parametrize("which", ["outside", "but one", "squares", "odd"])
def test_what_may_fail_between_is_stored_by_elements(which: str) -> None:
    specs = [tilec.spec((256,), "float16")] * 2
    assert widths(some, *specs, 3, 9, which=which) == {1}


@tilec.kernel
def scaled_rows(X: T.Tensor((L,), "float16"), Y: T.Tensor((L,), "float16"), n: T.int32):
    """Rows of odd length, read and written from the vector on in which they begin."""
    with T.Kernel(L // n, threads=32) as row:
        start = T.cast(row, "int64") * n
        base = start // 8 * 8
        x = T.alloc_fragment((256,), "float32")
        T.copy(X[base], x)
        for i in T.Parallel(256):
            if base + i >= start and base + i < start + n:
                Y[base + i] = x[i] * row


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m, n", [(5, 1), (3, 7), (4, 33), (7, 249), (2, 248), (1, 8)])
def test_rows_of_odd_length(m: int, n: int, target: str) -> None:
    x = np.random.default_rng(n).standard_normal((m, n)).astype(np.float16)
    y = np.full(m * n, np.nan, np.float16)
    run(scaled_rows, target, x.reshape(-1), y, n)
    want = x.astype(np.float32) * np.arange(m, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(y.reshape(m, n), want.astype(np.float16))


def test_starts_of_64_bits_are_of_vectors() -> None:
    specs = [tilec.spec((1 << 20,), "float16")] * 2
    assert widths(scaled_rows, *specs, 249) == {8, 1}


@tilec.kernel
def either(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"), k: T.int32):
    with T.Kernel(1, threads=64) as _:
        for i, j in T.Parallel(8, 128):
            if i * 16 + j < k:
                Y[i, j] = X[i, j] + 1
                X[i, j] = 0
            else:
                Y[i, j] = -X[i, j]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m, n", [(8, 128), (7, 100), (8, 33)])
def test_two_branches(m: int, n: int, target: str) -> None:
    x = np.random.default_rng(m + n).standard_normal((m, n)).astype(np.float32)
    for k in (0, 1, 70, 131, 500):
        y, left = np.full((m, n), np.nan, np.float32), x.copy()
        run(either, target, left, y, k)
        some = np.arange(m)[:, None] * 16 + np.arange(n) < k
        np.testing.assert_array_equal(y, np.where(some, x + 1, -x))
        np.testing.assert_array_equal(left, np.where(some, 0, x))


def test_both_branches_are_there() -> None:
    made = either.compile(*[tilec.spec((8, 128), "float32")] * 2, 9, target="cuda:sm_90a")
    assert any(isinstance(o, If) and len(o.orelse.ops) > 1 for o in walk(made.lowered.body))
    assert widths(either, *[tilec.spec((8, 128), "float32")] * 2, 9) == {4, 1}
