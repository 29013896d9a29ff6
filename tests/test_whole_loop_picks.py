"""Kernels of mathematics only that look for what is largest or smallest by conditions, begin it by
a word, and assign several names at once."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import run, traced

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, N = T.dynamic("M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
SIZES = ((5, 300), (1, 1), (3, 0), (0, 40), (130, 37))

PLACE = """
import math
import tilec
import tilec.language as T

M, N = T.dynamic("M, N")

@tilec.kernel
def first(X: T.Tensor((M, N), "{dtype}"), P: T.Tensor((M,), "int64")):
    for i in T.Parallel(M):
        best = {begin}
        at: T.int32 = -1
        for j in range(N):
            if X[i, j] {than} best:
                best = X[i, j]
                at = j
        P[i] = at
"""
WORDS = (
    ("float16", '-T.infinity("float16")', ">"),
    ("float16", "-T.infinity(X.dtype)", ">"),
    ("float32", "T.infinity()", "<"),
    ("bfloat16", '-float("inf")', ">"),
    ("float16", 'float("-inf")', ">"),
    ("float32", "-math.inf", ">"),
    ("float16", 'T.min_value("float16")', ">"),
    ("int8", 'T.max_value("int8")', "<"),
    ("int16", "T.min_value(X.dtype)", ">"),
    ("int32", 'T.min_value("int32")', ">"),
)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Any]:
    def made(source: str) -> Any:
        path = tmp_path / "program.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("program", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.first

    return made


def is_over_tiles(kernel: Any, *arrays: np.ndarray) -> bool:
    text = traced(kernel, *arrays, target="cuda:sm_90a")
    return "alloc fragment" in text and "thread_index" not in text


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype, begin, than", WORDS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_word_tells_what_a_place_begins_with(
    target: str, dtype: str, begin: str, than: str, written: Any, rng: np.random.Generator
) -> None:
    kernel = written(PLACE.format(dtype=dtype, begin=begin, than=than))
    small = dtype == "bfloat16"  # whose numbers are made of those of float32
    x = rng.integers(-50, 50, (7, 301)).astype("float32" if small else dtype)
    given: Any = x
    if small:
        given = pytest.importorskip("ml_dtypes") and x.astype("bfloat16")
    p = np.full(7, -7)
    run(kernel, target, given, p)
    np.testing.assert_array_equal(p, x.argmax(1) if than == ">" else x.argmin(1))
    assert target != "cuda:sm_90a" or is_over_tiles(kernel, given, p)


@tilec.kernel
def ends(
    X: T.Tensor((M, N), "float16"), A: T.Tensor((M,), "float32"),
    B: T.Tensor((M,), "float32"), C: T.Tensor((M,), "float16"), D: T.Tensor((M,), "float32"),
    H: T.Tensor((M,), "float32"),
):  # fmt: skip
    for i in T.Parallel(M):
        top, low = 0.5, T.infinity("float32")
        near: T.float16 = 1
        high: T.float32 = H[i]
        for j in range(N):
            v = T.abs(X[i, j])
            if v > top:
                top = v
            if X[i, j] > 0:
                if low >= T.exp(X[i, j]):
                    low = T.exp(X[i, j])
            if T.float32(X[i, j]) * 0.3 < near:
                near = T.float32(X[i, j]) * 0.3
            if j >= 0:
                if high <= X[i, j]:
                    high = X[i, j]
        A[i] = top
        B[i] = low
        C[i] = near
        D[i] = high


@tilec.kernel
def ends_of_bytes(
    X: T.Tensor((M, N), "int8"), A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int8")
):
    for j in T.Parallel(N):
        top, low = -99, T.int8(99)
        for i in range(M):
            x = X[i, j]
            if x > 0:
                if x >= top:
                    top = x
            if low > x:
                low = x
        A[j], B[j] = top, low


def bound(x: Any, begin: Any, more: Callable[[Any, Any], bool]) -> Any:
    """As the loop says it, for each row."""
    best = np.array(begin)
    for i, row in enumerate(x):
        for value in row:
            if more(value, best[i]):
                best[i] = value
    return best


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("m, n", SIZES)
@pytest.mark.parametrize("target", TARGETS)
def test_what_a_condition_leaves(target: str, m: int, n: int, rng: np.random.Generator) -> None:
    """What is no number is never taken, and stays where a variable begins with it."""
    x = rng.standard_normal((m, n)).astype(np.float16)
    x[rng.random(x.shape) < 0.1] = np.nan
    begin = rng.standard_normal(m).astype(np.float32)
    begin[::3] = np.nan
    a, b, d = (np.full(m, -7, np.float32) for _ in range(3))
    c = np.full(m, -7, np.float16)
    run(ends, target, x, a, b, c, d, begin)
    more, less = np.greater, np.less
    np.testing.assert_array_equal(a, bound(np.abs(x), np.full(m, np.float32(0.5)), more))
    e = np.where(x > 0, np.exp(x.astype(float)), np.inf)
    np.testing.assert_allclose(b, bound(e, np.full(m, np.inf), less), rtol=2e-3)
    third = (x.astype(np.float32) * np.float32(0.3)).astype(np.float16)
    np.testing.assert_array_equal(c, bound(third, np.ones(m, np.float16), less))
    np.testing.assert_array_equal(d, bound(x, begin, more))
    assert n != 300 or target != "cuda:sm_90a" or is_over_tiles(ends, x, a, b, c, d, begin)


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("m, n", ((300, 5), (1, 1), (0, 3), (90, 130)))
@pytest.mark.parametrize("target", TARGETS)
def test_what_a_condition_leaves_of_ints(
    target: str, m: int, n: int, rng: np.random.Generator
) -> None:
    x = rng.integers(-128, 128, (m, n)).astype(np.int8)
    a, b = np.zeros(n, np.int32), np.zeros(n, np.int8)
    run(ends_of_bytes, target, x, a, b)
    np.testing.assert_array_equal(a, np.where(x > 0, x, -99).max(0, initial=-99))
    np.testing.assert_array_equal(b, np.minimum(x.min(0, initial=127), 99))
    assert m != 300 or target != "cuda:sm_90a" or is_over_tiles(ends_of_bytes, x, a, b)


@tilec.kernel
def divergence(
    P: T.Tensor((M, N), "float16"), Q: T.Tensor((M, N), "float16"), Y: T.Tensor((M, 2), "float32")
):
    for i in T.Parallel(M):
        first, second = 0.0, T.float32(0)
        count = other = 0
        for j in range(N):
            p, q = T.exp(T.cast(P[i, j], "float32")), T.exp(T.cast(Q[i, j], "float32"))
            p, q = q, p + q
            first, second = first + p * q, second + q
            count, other = count + 1, other + 2
        total, scale = first + second, 1.0 / (count + other)
        Y[i, 0], Y[i, 1] = total * scale, second


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("m, n", ((5, 300), (1, 1), (0, 40), (130, 37)))
@pytest.mark.parametrize("target", TARGETS)
def test_several_names_at_once(target: str, m: int, n: int, rng: np.random.Generator) -> None:
    p, q = (rng.standard_normal((m, n)).astype(np.float16) for _ in range(2))
    y = np.full((m, 2), np.nan, np.float32)
    run(divergence, target, p, q, y)
    a, b = (np.exp(x.astype(float)) for x in (p, q))
    want = ((b * (a + b)).sum(1) + (a + b).sum(1)) / (3 * n), (a + b).sum(1)
    np.testing.assert_allclose(y.T, want, rtol=1e-4)
    assert n != 300 or target != "cuda:sm_90a" or is_over_tiles(divergence, p, q, y)


@tilec.kernel
def of_all(X: T.Tensor((M, N), "float32"), Y: T.Tensor((2,), "float32")):
    for z in T.Parallel(1):
        top, low = -1.0, X[0, 0]
        for i in range(M):
            for j in range(N):
                if T.abs(X[i, j]) > top:
                    top = T.abs(X[i, j])
                if X[i, j] < low:
                    low = X[i, j]
        Y[z], Y[z + 1] = top, low


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", TARGETS)
def test_blocks_look_together(target: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((64, 3001)).astype(np.float32)
    y = np.full(2, np.nan, np.float32)
    run(of_all, target, x, y)
    np.testing.assert_array_equal(y, [abs(x).max(), x.min()])
    if target == "cuda:sm_90a":
        assert "combine_parts" in of_all.compile(x, y, target=target).stages["tile"]


@tilec.kernel
def cast_in_loops(X: T.Tensor((M, N), "float16"), P: T.Tensor((M, 3), "int64")):
    for i in T.Parallel(M):
        top, low, far = -T.infinity("float32"), T.infinity("float32"), 0.0
        a = b = c = -1
        for j in range(N):
            v = X[i, j]
            if X[i, j] > top:
                top = T.float32(X[i, j])
                a = j
            if T.cast(v, "float32") <= low:
                low = v
                b = j
            d = T.abs(v)
            if float(d) > far:
                far = T.abs(X[i, j]).astype("float32")
                c = j
        P[i, 0], P[i, 1], P[i, 2] = a, b, c


@tilec.kernel
def cast_in_all(X: T.Tensor((N,), "bfloat16"), P: T.Tensor((1,), "int64")):
    for _ in T.Parallel(1):
        hi = -T.infinity("float32")
        at = 0
        for i in range(N):
            if X[i] > hi:
                hi = T.float32(X[i])
                at = i
        P[0] = at


@tilec.kernel
def another_number(X: T.Tensor((M, N), "float32"), P: T.Tensor((M, 2), "float32")):
    """Casts that lose something, and a name for what has changed since, are other numbers."""
    for i in T.Parallel(M):
        top, old, last = -100.0, -100.0, 0.0
        for j in range(N):
            v = last
            last = X[i, j]
            if X[i, j] > top:
                top = T.float32(T.float16(X[i, j]))
            if last > old:
                old = v
        P[i, 0], P[i, 1] = top, old


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("m, n", ((5, 300), (1, 1), (3, 0), (130, 37)))
@pytest.mark.parametrize("target", TARGETS)
def test_casts_that_lose_nothing(target: str, m: int, n: int, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 10, (m, n)).astype(np.float16)
    p = np.full((m, 3), -7)
    run(cast_in_loops, target, x, p)
    want = np.full((3, m), -1)
    if n:
        most = np.abs(x).max(1)
        far = np.where(most > 0, np.abs(x).argmax(1), -1)
        want = np.stack([x.argmax(1), n - 1 - x[:, ::-1].argmin(1), far])
    np.testing.assert_array_equal(p.T, want)
    assert n != 300 or target != "cuda:sm_90a" or is_over_tiles(cast_in_loops, x, p)


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", TARGETS)
def test_casts_of_a_whole_vector(target: str, rng: np.random.Generator) -> None:
    x = pytest.importorskip("ml_dtypes") and rng.standard_normal(5003).astype("bfloat16")
    p = np.full(1, -7)
    run(cast_in_all, target, x, p)
    assert p[0] == x.astype(np.float32).argmax()
    assert target != "cuda:sm_90a" or is_over_tiles(cast_in_all, x, p)


@pytest.mark.parametrize("target", TARGETS)
def test_other_numbers_are_not_the_most(target: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((5, 300)).astype(np.float32)
    p = np.full((5, 2), np.nan, np.float32)
    run(another_number, target, x, p)
    want = []
    for row in x:
        top, old, last = np.float32(-100), np.float32(-100), np.float32(0)
        for value in row:
            v, last = last, value
            top = np.float32(np.float16(value)) if value > top else top
            old = v if last > old else old
        want.append((top, old))
    np.testing.assert_array_equal(p, want)


@tilec.kernel
def sampled(
    X: T.Tensor((M, N), "bfloat16"), Z: T.Tensor((M, N), "float32"),
    R: T.Tensor((M,), "float32"), A: T.Tensor((M,), "int64"),
):  # fmt: skip
    for i in T.Parallel(M):
        best = -T.infinity("float32")
        at = 0
        for j in range(N):
            y = T.float32(X[i, j]) / R[i] - T.log(Z[i, j])
            if y > best:
                best = y
                at = j
        A[i] = at


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_tiles_of_long_rows_hold_what_is_folded(target: str) -> None:
    """A thread of 1024 has 64 registers: 16 of two fragments beside the rest spill 444 bytes."""
    long, row = (64, 151936), (64,)
    specs = tilec.spec(long, "bfloat16"), tilec.spec(long, "float32"), tilec.spec(row, "float32")
    made = sampled.compile(*specs, tilec.spec(row, "int64"), target=target)
    assert "fragment<1x8192xf32>" in made.stages["tile"]
