"""Whole loops of few long rows: blocks share these, and wait for one another behind each loop."""

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.runtime import devices
from tilec.runtime.cuda import CudaDriver
from tilec.target import find_target

pytestmark = pytest.mark.turns

M, N, K = T.dynamic("M, N, K")
f16, f32, i32 = "float16", "float32", "int32"


@tilec.kernel
def entropy(
    X: T.Tensor((M, K), f16), W: T.Tensor((N, K), f16), At: T.Tensor((M,), i32),
    L: T.Tensor((M,), f32), rows: T.Tensor((1,), f32),
) -> None:  # fmt: skip
    for i in T.Parallel(M):
        most, at = -T.infinity("float32"), -1
        for j in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.float32(X[i, k]) * T.float32(W[j, k])
            if acc > most:
                most = acc
                at = j
        total = 0.0
        for j in range(N):
            acc = 0.0
            for k in range(K):
                acc += T.float32(X[i, k]) * T.float32(W[j, k])
            total += T.exp(acc - most)
        L[i] = most + T.log(total)
        if at >= 0:
            At[i] = at
        T.atomic_add(rows[0], 1.0)


@tilec.kernel
def whitened(
    X: T.Tensor((M, N), f32), Y: T.Tensor((M, N), f32), S: T.Tensor((N,), f32),
    At: T.Tensor((2, N), i32),
) -> None:  # fmt: skip
    for j in T.Parallel(N):
        total, square = 0.0, 0.0
        low, high = T.infinity("float32"), -T.infinity("float32")
        first, last = -1, -1
        for i in range(M):
            total += X[i, j]
            if X[i, j] < low:
                low = X[i, j]
                first = i
            if X[i, j] >= high:
                high = X[i, j]
                last = i
        mean = total / M
        for i in range(M):
            square += (X[i, j] - mean) * (X[i, j] - mean)
        S[j] = square
        At[0, j] = first
        At[1, j] = last
        for i in range(M):
            Y[i, j] = (X[i, j] - mean) * T.rsqrt(square / M)


@tilec.kernel
def spread(X: T.Tensor((M, N), f32), At: T.Tensor((M, 2), i32), Y: T.Tensor((M, N), f32)) -> None:
    for i in T.Parallel(M):
        low, high = T.infinity("float32"), -T.infinity("float32")
        first, last = -1, -1
        for j in range(N):
            if X[i, j] < low:
                low = X[i, j]
                first = j
            if X[i, j] >= high:
                high = X[i, j]
                last = j
        At[i, 0] = first
        At[i, 1] = last
        for j in range(N):
            Y[i, j] = (X[i, j] - low) / (high - low)


def meetings(kernel: Any, target: str, *arrays: Any) -> int:
    """How often a block waits, of a kernel that is launched so that all blocks run at once."""
    compiled = kernel.compile(*arrays, target=target)
    count = int(compiled.stages["tile"].count("everywhere=true"))
    assert compiled.image.cooperative == bool(count) and not compiled.image.persistent
    return count


@pytest.mark.parametrize("target", ("cuda:sm_90a", "hip:gfx942"))
def test_sums_of_products_of_few_rows(target: str, rng: np.random.Generator) -> None:
    m, n, k = 20, 801, 24
    x, w = (rng.standard_normal((r, k)).astype(f16) for r in (m, n))
    at, loss, rows = np.full(m, -7, i32), np.full(m, np.nan, f32), np.zeros(1, f32)
    assert meetings(entropy, target, x, w, at, loss, rows) == 3  # the most, its place, the sum
    run(entropy, target, x, w, at, loss, rows)
    scores = x.astype(float) @ w.astype(float).T
    expected = scores.max(1) + np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1))
    np.testing.assert_allclose(loss, expected, atol=1e-5)
    assert (at == scores.argmax(1)).all() and rows[0] == m


@pytest.mark.parametrize("target", ("cuda:sm_90a", "cuda:sm_80"))
def test_few_long_columns(target: str, rng: np.random.Generator) -> None:
    x = np.round(rng.standard_normal((900, 33)) + 1, 1).astype(f32)  # many are equal
    y, s, at = np.full_like(x, np.nan), np.full(33, np.nan, f32), np.zeros((2, 33), i32)
    assert meetings(whitened, target, x, y, s, at) == 3  # the first folds, the places, the squares
    run(whitened, target, x, y, s, at)
    apart = x.astype(float) - x.astype(float).mean(0)
    np.testing.assert_allclose(y, apart / apart.std(0), atol=1e-5)
    np.testing.assert_allclose(s, (apart * apart).sum(0), rtol=1e-6)
    assert (at == [x.argmin(0), len(x) - 1 - x[::-1].argmax(0)]).all()


def test_who_waits() -> None:
    """Neither many rows nor short ones."""

    def asked(m: int, n: int) -> int:
        x, at, y = tilec.spec((m, n), f32), tilec.spec((m, 2), i32), tilec.spec((m, n), f32)
        return meetings(spread, "cuda:sm_90a", x, at, y)

    assert [asked(1, 8192), asked(200, 200000), asked(4, 200000)] == [0, 0, 2]


def test_a_smaller_gpu_gets_fewer_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a part of a GPU, say: the blocks of a launch have to run at once."""

    def blocks() -> int:
        arrays = [tilec.spec(s, d) for s, d in (((1, 1 << 20), f32), ((1, 2), i32))]
        kernel = tilec.kernel(spread.function)
        image = kernel.compile(*arrays, arrays[0], target="cuda:sm_90a").image
        return int(str(image.grid).rpartition(", ")[2].rstrip(")"))

    usual = blocks()
    driver = object.__new__(CudaDriver)
    driver.device_count = 2
    monkeypatch.setattr(driver, "multiprocessors", lambda index: (132, 16)[index])
    monkeypatch.setitem(devices._drivers, "cuda", driver)
    monkeypatch.setattr(devices, "device_target", lambda kind, index: "cuda:sm_90a")
    monkeypatch.setattr(devices, "_fewest", devices._fewest.__wrapped__)
    assert devices.blocks_at_once("cuda:sm_90a") == 12 >= blocks()
    assert 12 < usual <= find_target("cuda:sm_90a").multiprocessors * 3 // 4


@tilec.kernel
def running(X: T.Tensor((N,), f32), top: T.Tensor((N,), f32), E: T.Tensor((1,), f32)) -> None:
    for z in T.Parallel(1):
        total, most, least = 3.0, -2.0, 0.0
        for i in range(N):
            x = X[i] * 2.0
            X[i] = total
            total += x
            least = T.min(least, x)
            most = T.max(most, x)
            top[i] = most
        E[z] = total + least


@tilec.kernel
def of_the_other(X: T.Tensor((N,), f32), Y: T.Tensor((N,), f32)) -> None:
    for _z in T.Parallel(1):
        a, b = 0.0, 0.0
        for i in range(N):
            a += X[i]
            b += a
            Y[i] = b


def test_running_values(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block begins with what those before it have, and every variable ends as what all have;
    a running value of another one is one block's."""
    monkeypatch.setattr("tilec.jit.build.blocks_at_once", lambda target: 3)
    x = rng.integers(-3, 5, 66000).astype(f32)
    s, top, e = x.copy(), np.full_like(x, np.nan), np.full(1, np.nan, f32)
    assert meetings(running, "cuda:sm_90a", s, top, e) == 3  # for two of them, and the least
    run(running, "cuda:sm_90a", s, top, e)
    ends = np.cumsum(2 * x) + 3
    assert (s == ends - 2 * x).all() and e[0] == ends[-1] - 6
    assert (top == np.maximum(np.maximum.accumulate(2 * x), -2)).all()
    assert meetings(of_the_other, "cuda:sm_90a", s, top) == 0
