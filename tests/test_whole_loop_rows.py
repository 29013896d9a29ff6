"""Kernels of mathematics only whose iterations go along rows: those of a simple form over tiles
(`test_whole_loop_tiles`), a warp for each of the others that can be shared."""

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

B, M, N = T.dynamic("B, M, N")
TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
Row = T.Tensor((M,), "float32")
Tile = T.Tensor((M, N), "float32")


@tilec.kernel
def softmax(X: Tile, Y: Tile):
    for i in T.Parallel(M):
        top: T.float32 = -T.infinity("float32")
        for j in range(N):
            top = T.max(top, X[i, j])
        total: T.float32 = 0
        for j in range(N):
            total += T.exp(X[i, j] - top)
        for j in range(N):
            Y[i, j] = T.exp(X[i, j] - top) / total


@tilec.kernel
def norm_in_place(X: Tile, S: Row, Q: Row):
    for i in T.Parallel(M):
        total: T.float32 = 1.0
        squares: T.float32 = 0
        for j in T.serial(N):
            x = X[i, j]
            total = total + x
            squares += x * x
        mean = total / T.cast(N, "float32")
        for j in range(0, N):
            x = X[i, j] - mean
            X[i, j] = x
        S[i] = total
        Q[i] = squares


@tilec.kernel
def least_of_a_batch(X: T.Tensor((3, M, N), "int32"), Y: T.Tensor((3, M), "int32")):
    for b, i in T.Parallel(3, M):
        least: T.int32 = 7
        for j in range(N):
            least = T.min(X[b, i, j] + j, least)
        Y[b, i] = least


@tilec.kernel
def down_columns(X: Tile, Y: T.Tensor((N,), "float32")):
    for j in T.Parallel(N):
        total: T.float32 = 0
        for i in range(M):
            total += X[i, j]
        Y[j] = total


@tilec.kernel
def running(X: Tile, Y: Tile):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(N):
            total += X[i, j]
            Y[i, j] = total


@tilec.kernel
def neighbours(X: Tile, Y: Tile):
    for i in T.Parallel(M):
        for j in range(N):
            Y[i, j] = X[i, j]
        for j in range(N - 1):
            Y[i, j] = Y[i, j] + Y[i, j + 1]


@tilec.kernel
def read_again(X: Tile, S: Row, Y: Tile):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(N):
            total += X[i, j]
        S[i] = total
        for j in range(N):
            Y[i, j] = X[i, j] - S[i]


@tilec.kernel
def last_one(X: Tile, S: Row):
    for i in T.Parallel(M):
        last: T.float32 = 0
        for j in range(N):
            last = X[i, j]
        S[i] = last


@tilec.kernel
def carried(X: Tile, Y: Tile):
    for i in T.Parallel(M):
        before = X[i, 0]
        for j in range(N):
            Y[i, j] = before
            before = X[i, j]


FOUR = 4


@tilec.kernel
def short(X: T.Tensor((M, FOUR), "float32"), S: Row):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for j in range(FOUR):
            total += X[i, j]
        S[i] = total


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _moved(x: np.ndarray) -> list[np.ndarray]:
    return [
        x - (x.sum(1, keepdims=True) + 1) / x.shape[1],
        x.sum(1) + 1,
        (x * x).sum(1),
    ]


# what is called with a tile and outputs, what these are then, whether a warp shares a row
CASES: dict[str, tuple[Any, Any, bool]] = {
    "softmax": (softmax, lambda x: [x, _softmax(x)], False),
    "in place": (norm_in_place, _moved, True),
    "columns": (down_columns, lambda x: [x, x.sum(0)], False),
    "running": (running, lambda x: [x, np.cumsum(x, 1)], False),
    "neighbours": (
        neighbours, lambda x: [x, x + np.pad(x[:, 1:], ((0, 0), (0, 1)))], False,
    ),
    "read again": (
        read_again, lambda x: [x, x.sum(1), x - x.sum(1, keepdims=True)], False,
    ),
    "the last one": (last_one, lambda x: [x, x[:, -1]], False),
    "carried": (carried, lambda x: [x, np.concatenate((x[:, :1], x[:, :-1]), 1)], False),
    "short": (short, lambda x: [x, x.sum(1)], False),
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", *TARGETS])
@pytest.mark.parametrize("kernel, want, shared", CASES.values(), ids=CASES)
def test_rows(kernel: Any, want: Any, shared: bool, target: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((7, 4 if kernel is short else 77)).astype(np.float32)
    expected = want(x.astype(np.float64))
    given = [x, *(np.full(e.shape, np.nan, np.float32) for e in expected[1:])]
    if target == "cpu":
        kernel(*given)
    else:
        report = tilec.simulate(kernel, *given, target=target, schedules=2, check_outputs=True)
        assert report.ok, str(report)
    for got, e in zip(given, expected):
        np.testing.assert_allclose(got, e, rtol=1e-4, atol=1e-4)
    made = kernel.compile(*given, target=target).stages["tile"]
    assert ("%lane" in made) == (shared and target != "cpu")


@pytest.mark.parametrize("target", ["cpu", *TARGETS])
def test_ints_and_batches(target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-99, 99, (3, 5, 130)).astype(np.int32)
    y = np.zeros((3, 5), np.int32)
    if target == "cpu":
        least_of_a_batch(x, y)
    else:
        assert tilec.simulate(least_of_a_batch, x, y, target=target, schedules=2).ok
    np.testing.assert_array_equal(y, np.minimum((x + np.arange(130)).min(2), 7))


@tilec.kernel
def shifted(X: Tile, Y: Tile):
    for i in T.Parallel(M):
        for j in range(N):
            Y[i, j] = X[i, j] + 1.0


def test_rows_that_overlap_are_one_threads() -> None:
    apart = np.zeros((4, 70), np.float32), np.zeros((4, 70), np.float32)
    text = shifted.compile(*apart, target="cuda:sm_90a").stages["tile"]
    assert "parallel" in text and "thread_index" not in text
    rows = np.zeros((2, 80), np.float32)
    assert tilec.simulate(shifted, rows[:, :70], rows[:, 1:71], target="cuda:sm_90a").ok
    np.testing.assert_array_equal(rows[:, :71], np.stack([np.arange(71)] * 2))


def test_sums_of_short_rows_stay_loops_on_the_cpu(rng: np.random.Generator) -> None:
    """Written out each element is a load for each lane: 33,000 lines, 24 seconds. Taps that go
    along the rows are written out."""

    @tilec.kernel
    def dots(
        X: T.Tensor((B, N, 112), "float16"),
        Y: T.Tensor((B, N, 112), "float16"),
        Z: T.Tensor((N, B), "float32"),
    ):
        for n, b in T.Parallel(N, B):
            total = 0.0
            for k in range(112):
                total += T.float32(X[b, n, k]) * T.float32(Y[b, n, k])
            Z[n, b] = total

    @tilec.kernel
    def taps(
        X: T.Tensor((B, N), "float32"),
        K: T.Tensor((9,), "float32"),
        Y: T.Tensor((B, N - 8), "float32"),
    ):
        for b, n in T.Parallel(B, N - 8):
            total = 0.0
            for k in range(9):
                total += X[b, n + k] * K[k]
            Y[b, n] = total

    x, y = (rng.normal(size=(3, 37, 112)).astype("float16") for _ in "xy")
    z = np.zeros((37, 3), "float32")
    dots(x, y, z)
    want = np.einsum("bnk,bnk->nb", x.astype("float32"), y.astype("float32"))
    np.testing.assert_allclose(z, want, rtol=1e-5, atol=1e-4)
    made = dots.compile(x, y, z, target="cpu").stages
    assert len(made["llvm"].splitlines()) < 600 and "for.serial" in made["tile"]
    rows, weights, out = (np.ones(s, "float32") for s in ((3, 40), (9,), (3, 32)))
    assert "for.serial" not in taps.compile(rows, weights, out, target="cpu").stages["tile"]
