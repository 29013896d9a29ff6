"""Kernels of mathematics only that use running sums, products and ends of rows: tiles scan them."""

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
SIZES = ((5, 300), (1, 1), (3, 0), (0, 40), (130, 37), (2, 3001))


@tilec.kernel
def sums(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    for i in T.Parallel(M):
        acc = 0.0
        for j in range(N):
            acc += X[i, j]
            Y[i, j] = acc


@tilec.kernel
def sums_before(
    X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float16"), S: T.Tensor((M,), "float32")
):
    for i in T.Parallel(M):
        acc: T.float32 = 1
        for j in range(N):
            Y[i, j] = acc
            acc += T.float32(X[i, j])
        S[i] = acc


@tilec.kernel
def products(
    X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"), Z: T.Tensor((M, N), "float32")
):
    for i in T.Parallel(M):
        acc = 1.0
        for j in range(N):
            Z[i, j] = acc * X[i, j]
            acc *= X[i, j]
            Y[i, j] = acc


@tilec.kernel
def ends(
    X: T.Tensor((M, N), "float16"), A: T.Tensor((M, N), "float16"), B: T.Tensor((M, N), "float32")
):
    for i in T.Parallel(M):
        top, low = -T.infinity("float16"), T.float32(0.5)
        for j in range(N):
            x = X[i, j]
            top = T.max(top, x)
            low = T.min(T.cast(x, "float32"), low)
            A[i, j] = top
            B[i, j] = low / 2


@tilec.kernel
def counts(X: T.Tensor((M, N), "int8"), Y: T.Tensor((M, N), "int32"), S: T.Tensor((M,), "int64")):
    for i in T.Parallel(M):
        n = 0
        total: T.int64 = i
        for j in range(N):
            if X[i, j] > 0:
                n += 1
                total += X[i, j]
            Y[i, j] = n * 2 + T.cast(total, "int32")
        S[i] = total


@tilec.kernel
def drawdown(
    X: T.Tensor((M, N), "float32"), Y: T.Tensor((M,), "float32"),
    P: T.Tensor((M,), "int32"), Z: T.Tensor((M, N), "float32"),
):  # fmt: skip
    """Running values of running values, and folds of these."""
    for i in T.Parallel(M):
        level, top, worst = 1.0, -T.infinity("float32"), -1.0
        at = -1
        for j in range(N):
            before = level
            level += X[i, j]
            top = T.max(top, level)
            fall = top - level
            if fall > worst:
                worst, at = fall, j
            Z[i, j] = fall + before
        Y[i] = worst
        P[i] = at


@tilec.kernel
def share(X: T.Tensor((3, M, N), "float32"), Y: T.Tensor((3, M, N), "float32")):
    """A sum first, then the shares up to each element."""
    for b, i in T.Parallel(3, M):
        total, upto = 0.0, 0.0
        for j in range(N):
            total += X[b, i, j]
        for j in range(N):
            upto += X[b, i, j] / total
            Y[b, i, j] = upto


@tilec.kernel
def from_the_end(
    X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"),
    Z: T.Tensor((M, N), "float32"), S: T.Tensor((M,), "float32"),
):  # fmt: skip
    for i in T.Parallel(M):
        acc, total, most = 0.0, 0.0, -1.0
        for j in range(N - 1, -1, -1):
            acc += X[i, j]
            Y[i, j] = acc
        for j in range(N):
            most = T.max(most, X[i, N - 1 - j])
            Z[i, N - j - 1] = most
        for j in range(N - 1, -1, -1):
            total += X[i, j] * (j % 3)
        S[i] = total


@tilec.kernel
def by_conditions(
    X: T.Tensor((M, N), "float32"), B: T.Tensor((M,), "float32"),
    Y: T.Tensor((M, N), "float32"), Z: T.Tensor((M, N), "int32"),
):  # fmt: skip
    for i in T.Parallel(M):
        top: T.float32 = B[i]
        low = 9
        for j in range(N):
            if X[i, j] < 9:
                if top <= X[i, j]:
                    top = X[i, j]
            Y[i, j] = top
            Z[i, j] = low
            if T.int32(j - 5) < low:
                low = T.int32(j - 5)


@tilec.kernel
def windows(
    X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"), Z: T.Tensor((M, N), "int32"),
    S: T.Tensor((M, N), "float32"),
):  # fmt: skip
    """Two sums into one variable; sums that begin anew as a choice, and on either side of one."""
    for i in T.Parallel(M):
        total, count, since = 0.0, 0, 1.0
        for j in range(N):
            total += X[i, j]
            if j >= 7:
                total -= X[i, j - 7]
            Y[i, j] = total
            count = count + 2 if X[i, j] < 1 else 5
            Z[i, j] = count
            if X[i, j] < -1:
                since = X[i, j]
            else:
                since += X[i, j]
            S[i, j] = since


def given(name: str, m: int, n: int, rng: np.random.Generator) -> tuple[Any, list[Any], list[Any]]:
    """A kernel, what it is given, and what it must leave in the last ones."""
    x = rng.standard_normal((m, n)).astype(np.float32)
    first = np.zeros((m, 1))
    if name == "sums":
        return sums, [x], [x.astype(float).cumsum(1)]
    if name == "sums_before":
        half = x.astype(np.float16)
        upto = np.hstack([first, half.astype(float).cumsum(1)]) + 1
        return sums_before, [half], [upto[:, :-1].astype(np.float16), upto[:, -1]]
    if name == "products":
        x = np.exp2(rng.integers(-1, 2, (m, n))).astype(np.float32) * np.sign(x)
        made = x.astype(float).cumprod(1)
        return products, [x], [made, made]
    if name == "ends":
        half = x.astype(np.float16)
        if n > 30:
            half[::2, :20], half[:, 25] = np.nan, np.nan
        low = np.fmin.accumulate(np.fmin(half.astype(np.float32), 0.5), 1)
        top = np.fmax.accumulate(np.fmax(half, np.float16(-np.inf)), 1)
        return ends, [half], [top, low / 2]
    if name == "counts":
        k = rng.integers(-9, 99, (m, n)).astype(np.int8)
        some = np.where(k > 0, k, 0).astype(np.int64)
        total = np.hstack([np.arange(m)[:, None], some]).cumsum(1)
        return counts, [k], [(k > 0).cumsum(1) * 2 + total[:, 1:], total[:, -1]]
    if name == "drawdown":
        x = rng.integers(-5, 6, (m, n)).astype(np.float32)
        level = np.hstack([first, x.astype(float)]).cumsum(1) + 1
        fall = np.maximum.accumulate(level[:, 1:], 1) - level[:, 1:]
        at = fall.argmax(1) if n else np.full(m, -1)
        worst = fall.max(1) if n else np.full(m, -1.0)
        return drawdown, [x], [worst, at.astype(np.int32), fall + level[:, :-1]]
    if name == "by_conditions":
        x[rng.random(x.shape) < 0.1] = np.nan
        begun = np.where(np.arange(m) % 3 == 1, np.nan, rng.standard_normal(m)).astype(np.float32)
        top = np.fmax.accumulate(np.hstack([begun[:, None], x]), 1)[:, 1:]
        top[np.isnan(begun)] = np.nan
        low = np.where(np.arange(n) > 0, -5, 9) + first.astype(int)
        return by_conditions, [x, begun], [top, low]
    if name == "windows":
        x = rng.integers(-2, 3, (m, n)).astype(np.float32)
        total = x.cumsum(1) - np.hstack([np.zeros((m, 7)), x]).cumsum(1)[:, :n]
        count, since, a, b = np.zeros((m, n)), np.zeros((m, n)), np.zeros(m), np.ones(m)
        for j in range(n):
            count[:, j] = a = np.where(x[:, j] < 1, a + 2, 5)
            since[:, j] = b = np.where(x[:, j] < -1, 0, b) + x[:, j]
        return windows, [x], [total, count, since]
    if name == "from_the_end":
        wide = x.astype(float)[:, ::-1]
        most = np.maximum.accumulate(np.maximum(wide, -1), 1)
        total = (x.astype(float) * (np.arange(n) % 3)).sum(1)
        return from_the_end, [x], [wide.cumsum(1)[:, ::-1], most[:, ::-1], total]
    x = rng.random((3, m, n)).astype(np.float32) + 0.1
    return share, [x], [(x / x.sum(2, keepdims=True, dtype=float)).cumsum(2)]


DTYPES = {
    "sums_before": ("float16", "float32"), "ends": ("float16", "float32"),
    "counts": ("int32", "int64"), "drawdown": ("float32", "int32", "float32"),
    "by_conditions": ("float32", "int32"), "windows": ("float32", "int32", "float32"),
}  # fmt: skip
NAMES = (
    "sums", "sums_before", "products", "ends", "counts", "drawdown", "share", "from_the_end",
    "by_conditions", "windows",
)  # fmt: skip


def outputs(name: str, want: list[Any]) -> list[np.ndarray]:
    dtypes = DTYPES.get(name, ("float32",) * len(want))
    return [np.full(w.shape, 77, dtype) for w, dtype in zip(want, dtypes)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("m, n", SIZES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", TARGETS)
def test_numbers(target: str, name: str, m: int, n: int, rng: np.random.Generator) -> None:
    kernel, arrays, want = given(name, m, n, rng)
    got = outputs(name, want)
    run(kernel, target, *arrays, *got)
    near = 2e-3 if name == "sums_before" else 2e-4
    for g, w in zip(got, want):
        np.testing.assert_allclose(g.astype(float), w, rtol=near, atol=near)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS[:3])
@pytest.mark.parametrize("name", NAMES)
def test_a_block_does_it_together(name: str, target: str, rng: np.random.Generator) -> None:
    kernel, arrays, want = given(name, 50, 3000, rng)
    got = outputs(name, want)
    text = traced(kernel, *arrays, *got, target=target)
    assert "scan" in text and "thread_index" not in text


@tilec.kernel
def long_rows(X: T.Tensor((M, N), "float64"), Y: T.Tensor((M, N), "float64")):
    for i in T.Parallel(M):
        a: T.float64 = 0
        b: T.float64 = 0
        for j in range(N):
            a += X[i, j]
            b += T.abs(X[i, j])
            Y[i, j] = a / (b + 1)


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_fits_shared_memory(target: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 5000))
    y = np.full(x.shape, np.nan)
    run(long_rows, target, x, y)
    np.testing.assert_allclose(y, x.cumsum(1) / (abs(x).cumsum(1) + 1), rtol=1e-9, atol=1e-9)
    if target != "cpu":
        long = np.zeros((1, 200_000))
        kernel = long_rows.compile(long, long.copy(), target=target)
        assert "scan" in kernel.stages["tile"]


@tilec.kernel
def smoothed(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    """A recurrence is no scan."""
    for i in T.Parallel(M):
        acc = 0.0
        for j in range(N):
            acc += (X[i, j] - acc) * 0.25
            Y[i, j] = acc


@tilec.kernel
def entwined(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    for i in T.Parallel(M):
        a, b = 1.0, 1.0
        for j in range(N):
            a += b / 1024
            b += a * X[i, j] / 1024
            Y[i, j] = a + b


@tilec.kernel
def by_way_of_a_name(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    for i in T.Parallel(M):
        a = 1.0
        for j in range(N):
            b = a / 1024
            a += b * X[i, j]
            Y[i, j] = a


@pytest.mark.covering(1)
@pytest.mark.parametrize("kernel", [smoothed, entwined, by_way_of_a_name])
@pytest.mark.parametrize("target", TARGETS)
def test_a_recurrence_is_one_threads(target: str, kernel: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 90)).astype(np.float32)
    y = np.full(x.shape, np.nan, np.float32)
    run(kernel, target, x, y)
    a, b, want = np.zeros(4) + (kernel is not smoothed), np.ones(4), np.zeros((4, 90))
    for j, column in enumerate(x.T.astype(float)):
        if kernel is smoothed:
            a = a + (column - a) / 4
        elif kernel is entwined:
            a = a + b / 1024
            b = b + a * column / 1024
        else:
            a = a + a / 1024 * column
        want[:, j] = a + b * (kernel is entwined)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    if target != "cpu":
        assert "thread_index" in kernel.compile(x, y, target=target).stages["tile"]


@tilec.kernel
def begun_anew(
    X: T.Tensor((M, N), "float32"), F: T.Tensor((M, N), "bool"), Y: T.Tensor((M, N), "float32"),
    Z: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "int32"), S: T.Tensor((M,), "float32"),
):  # fmt: skip
    """Sums, the largest and counts since a flag: by a condition, a name for one, and a choice."""
    for i in T.Parallel(M):
        total, most, back, count = 0.5, -T.infinity("float32"), 0.0, 0
        for j in range(N):
            x = X[i, j] * 2.0
            if F[i, j]:
                total = 1.0
            total += x
            begins = x > 8.0
            if begins:
                most = X[i, j] - 3.0
            most = T.max(most, X[i, j])
            Y[i, j] = total + most
            count = (0 if F[i, j] else count) + 1
            C[i, j] = count
        for j in range(N - 1, -1, -1):
            back = T.if_then_else(F[i, j], back, 0.0) + X[i, j]
            Z[i, j] = back
        S[i] = total


def since_flags(x: Any, f: Any) -> tuple[Any, ...]:
    """As the loops say it."""
    y, z, c = np.zeros_like(x), np.zeros_like(x), np.zeros(x.shape, np.int32)
    s = np.full(len(x), 0.5, np.float32)
    for i in range(len(x)):
        most, back, count = -np.inf, 0.0, 0
        for j in range(x.shape[1]):
            s[i] = (1.0 if f[i, j] else s[i]) + x[i, j] * 2
            most = max(x[i, j] - 3 if x[i, j] * 2 > 8 else most, x[i, j])
            count = (0 if f[i, j] else count) + 1
            y[i, j], c[i, j] = s[i] + most, count
        for j in reversed(range(x.shape[1])):
            back = (back if f[i, j] else 0.0) + x[i, j]
            z[i, j] = back
    return y, z, c, s


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("m, n", ((5, 300), (3, 1), (2, 0), (2, 3000)))
@pytest.mark.parametrize("target", TARGETS)
def test_rows_of_segments(target: str, m: int, n: int, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 10, (m, n)).astype(np.float32)
    f = rng.random((m, n)) < 0.05
    y, z = (np.full((m, n), np.nan, np.float32) for _ in range(2))
    c, s = np.full((m, n), -7, np.int32), np.full(m, np.nan, np.float32)
    run(begun_anew, target, x, f, y, z, c, s)
    for got, want in zip((y, z, c, s), since_flags(x, f)):
        np.testing.assert_array_equal(got, want)
    if n == 300 and target == "cuda:sm_90a":
        text = begun_anew.compile(x, f, y, z, c, s, target=target).stages["tile"]
        assert text.count("scan %") == 4 and "begins=" in text and "thread_index" not in text


@tilec.kernel
def no_segments(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    """Where rows begin anew follows from what runs: a recurrence."""
    for i in T.Parallel(M):
        total = 0.0
        for j in range(N):
            if total > 20.0:
                total = 0.0
            total += X[i, j]
            Y[i, j] = total


@tilec.kernel
def read_between(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    """What a variable was before it began anew is read, and what it is then."""
    for i in T.Parallel(M):
        total = 0.0
        for j in range(N):
            was = total
            if X[i, j] > 5.0:
                total = 1.0
            is_now = total
            total += X[i, j]
            Y[i, j] = total + was * 100.0 + is_now * 10000.0


@pytest.mark.parametrize("target", ("cuda:sm_90a", "cpu"))
def test_no_segments(target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-9, 12, (3, 300)).astype(np.float32)
    y, z = (np.full((3, 300), np.nan, np.float32) for _ in range(2))
    run(no_segments, target, x, y)
    run(read_between, target, x, z)
    for row, got, other in zip(x, y, z):
        a = b = 0.0
        for j, v in enumerate(row):
            a = (0.0 if a > 20 else a) + v
            was, now = b, 1.0 if v > 5 else b
            b = now + v
            assert got[j] == a and other[j] == b + was * 100 + now * 10000
