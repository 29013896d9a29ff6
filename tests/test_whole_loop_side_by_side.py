"""Whole loops of threads whose loops do not ask for the last index: a thread has several of it."""

from typing import Any

import numpy as np
import pytest
from simulated import run, traced

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

M, N, E, D = T.dynamic("M, N, E, D")
f16, f32, i32 = "float16", "float32", "int32"


@tilec.kernel
def gathered(
    first: T.Tensor((M + 1,), i32), col: T.Tensor((E,), i32), val: T.Tensor((E,), f32),
    X: T.Tensor((N, D), f16), Y: T.Tensor((M, D), f16), top: T.Tensor((M, D), f32),
) -> None:  # fmt: skip
    """A name of one iteration, sums, the largest, and what all iterations share."""
    for i, d in T.Parallel(M, D):
        s, most, count = 0.0, -T.infinity("float32"), 0
        for e in range(first[i], first[i + 1]):
            if col[e] >= 0:
                x = T.float32(X[col[e], d])
                s += val[e] * x
                most = T.max(most, x)
                count += 1
        Y[i, d] = s / T.max(count, 1)
        top[i, d] = most


@tilec.kernel
def repeated(X: T.Tensor((M, D), i32), ends: T.Tensor((M,), i32), Y: T.Tensor((N, D), i32)) -> None:
    for i, d in T.Parallel(N, D):
        low = 0
        high = M
        while low < high:
            middle = (low + high) // 2
            if ends[middle] <= i:
                low = middle + 1
            else:
                high = middle
        Y[i, d] = X[low, d] + i


def csr(rng: np.random.Generator, m: int, n: int, d: int) -> tuple[list[np.ndarray], Any]:
    first = np.concatenate([[0], rng.integers(0, 5, m).cumsum()]).astype(i32)
    col = rng.integers(-1, n, first[-1]).astype(i32)
    val, x = rng.standard_normal(len(col)).astype(f32), rng.standard_normal((n, d)).astype(f16)
    y, top = np.zeros((m, d)), np.full((m, d), -np.inf)
    for i in range(m):
        at = [e for e in range(first[i], first[i + 1]) if col[e] >= 0]
        for e in at:
            y[i] += val[e].astype(float) * x[col[e]] / len(at)
            top[i] = np.maximum(top[i], x[col[e]])
    return [first, col, val, x], (y, top)


@pytest.mark.parametrize("target", ("cuda:sm_90a", "hip:gfx942"))
@pytest.mark.parametrize("m, d", ((9, 24), (5, 7), (0, 8)))
def test_numbers(
    target: str, m: int, d: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilec.frontend.whole_loops.side_by_side._ENOUGH", 1)
    arrays, wanted = csr(rng, m, 13, d)
    y, top = np.full((m, d), 77, f16), np.full((m, d), 77, f32)
    run(gathered, target, *arrays, y, top)
    np.testing.assert_allclose(y, wanted[0], rtol=2e-3, atol=2e-3)
    np.testing.assert_array_equal(top, wanted[1])
    counts = rng.integers(0, 4, 6)
    x, ends = rng.integers(0, 99, (6, d)).astype(i32), counts.cumsum().astype(i32)
    z = np.full((ends[-1], d), -7, i32)
    run(repeated, target, x, ends, z)
    assert (z == np.repeat(x, counts, 0) + np.arange(len(z))[:, None]).all()


def test_who_has_several() -> None:
    """Where there are enough of them, and their elements come as vectors."""

    def lanes(m: int, d: int) -> str:
        x, ends, y = (tilec.spec(s, i32) for s in ((m, d), (m,), (2 * m, d)))
        text = traced(repeated, x, ends, y, target="cuda:sm_90a")
        return "vectorized" if "for.vectorized" in text else "one"

    assert [lanes(60000, 64), lanes(60000, 63), lanes(16, 64)] == ["vectorized", "one", "one"]
