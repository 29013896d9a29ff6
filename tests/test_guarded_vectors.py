"""What threads load and store at the ends of rows and under conditions on their elements: vectors
where rows end between two of them, or a condition holds for all neighbours if it does for the outer
two; elements where that may not be so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import If, MemLoad, MemStore
from tilec.ir.types import VectorType

pytestmark = pytest.mark.usefixtures("unassembled")

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


# --- the ends of rows -----------------------------------------------------------------------------


@tilec.kernel
def weighted_rows(
    X: T.Tensor((M, N), "float16"), W: T.Tensor((N,), "float16"), Y: T.Tensor((M, N), "float16")
):
    with T.Kernel(M, threads=64) as row:
        x = T.alloc_fragment((1, 512), "float32")
        for i, j in T.Parallel(1, 512):
            x[i, j] = T.cast(X[row, j], "float32") * 2
        for i, j in T.Parallel(1, 512):
            Y[row, j] = x[i, j] * T.cast(W[j], "float32")


@tilec.kernel
def earlier_rows(X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float16")):
    """A sum over taps of which the first rows have fewer: a condition that neighbours share."""
    for i, j in T.Parallel(M, N):
        total: T.float32 = 0
        for k in range(3):
            if i + k - 2 >= 0:
                total += T.cast(X[i + k - 2, j], "float32")
        Y[i, j] = total


def loads(kernel: Any, *args: Any) -> tuple[set[int], int]:
    """How many elements its loads of the first tensor have, and how many branches give vectors."""
    made = kernel.compile(*args, target="cuda:sm_90a")
    found = [o for o in walk(made.lowered.body) if isinstance(o, MemLoad)]
    branches = [o for o in walk(made.lowered.body) if isinstance(o, If)]
    several = sum(isinstance(t, VectorType) for o in branches for t in o.types)
    return {o.lanes for o in found if o.source.name == "X"}, several


@pytest.mark.parametrize(
    ("columns", "lanes"), [(504, {8}), (500, {4}), (498, {2}), (499, {1})], ids=str
)
def test_rows_that_end_between_vectors(columns: int, lanes: set[int]) -> None:
    """Rows without gaps are as long as they are apart: of one that begins at a multiple of 16
    bytes, all begin and end there, and no vector is loaded element by element."""
    x, w = tilec.spec((9, columns), "float16"), tilec.spec((columns,), "float16")
    assert loads(weighted_rows, x, w, x)[0] == lanes
    assert loads(earlier_rows, x, x)[0] == lanes


def test_a_vector_that_crosses_the_end_is_taken_apart_behind_its_branch() -> None:
    """What a branch loads is waited for in it where it is taken apart in it."""
    x = tilec.spec((9, 501), "float16", strides=(512, 1))
    w = tilec.spec((501,), "float16")
    lanes, several = loads(weighted_rows, x, w, x)
    assert lanes == {1, 8} and several > 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stride", [0, 512])
@pytest.mark.parametrize("columns", [504, 500, 498, 499, 8, 4, 1])
@pytest.mark.parametrize("kernel", [weighted_rows, earlier_rows], ids=["rows", "taps"])
def test_ends_of_rows(kernel: Any, columns: int, stride: int, target: str) -> None:
    rng = np.random.default_rng(columns)
    x, y = (np.full((9, stride or columns), 7, np.float16)[:, :columns] for _ in range(2))
    x[:] = rng.standard_normal(x.shape)
    w = rng.standard_normal(columns).astype(np.float16)
    want = x.astype(np.float64)
    if kernel is weighted_rows:
        run(kernel, target, x, w, y)
        want = want * 2 * w
    else:
        run(kernel, target, x, y)
        want = sum(np.pad(want, ((n, 0), (0, 0)))[:9] for n in range(3))
    np.testing.assert_allclose(y, want, rtol=2e-3, atol=2e-3)
    if stride:
        assert (y.base[:, columns:] == 7).all()
