"""Several loops over whole tensors in one function: launches in their order (`jit/parts`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.jit.parts import Parts

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, N, K, D = T.dynamic("M, N, K, D")
GPUS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
TARGETS = (*GPUS, "cpu")


@tilec.kernel
def standardised(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"), eps: T.float32):
    """As NumPy says it: means and deviations of columns, then each element."""
    mean = T.empty((N,), "float32")
    for j in T.Parallel(N):
        s = 0.0
        for i in range(M):
            s += X[i, j]
        mean[j] = s / M
    deviation = T.empty((N,), "float32")
    scale = 1.0 / M
    for j in T.Parallel(N):
        s = 0.0
        for i in range(M):
            s += (X[i, j] - mean[j]) * (X[i, j] - mean[j])
        deviation[j] = T.sqrt(s * scale + eps)
    for i, j in T.Parallel(M, N):
        Y[i, j] = (X[i, j] - mean[j]) / deviation[j]


@tilec.kernel
def attended(
    Q: T.Tensor((M, D), "float16"), Y: T.Tensor((N, D), "float16"), V: T.Tensor((N, K), "float16")
):
    """Two products, whose tiles are chosen for each, and rows between them."""
    S = T.empty((M, N), "float16")
    O = T.empty((M, K), "float32")
    for i, j in T.Parallel(M, N):
        acc: T.float32 = 0
        for d in range(D):
            acc += T.cast(Q[i, d], "float32") * T.cast(Y[j, d], "float32")
        S[i, j] = acc
    for i in T.Parallel(M):
        most = -T.infinity("float32")
        total = 0.0
        for j in range(N):
            most = T.max(most, S[i, j])
        for j in range(N):
            total += T.exp(S[i, j] - most)
        for j in range(N):
            S[i, j] = T.exp(S[i, j] - most) / total
    for i, k in T.Parallel(M, K):
        acc: T.float32 = 0
        for j in range(N):
            acc += T.cast(S[i, j], "float32") * T.cast(V[j, k], "float32")
        O[i, k] = acc
    return O, S


@tilec.kernel(out=["Y"])
def in_turn(X: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "int32"), n: T.int32 = 3):
    for i in T.Parallel(N):
        Y[i] = X[i] + n
    W = T.alloc_global((N,), "int32")
    for i in T.Parallel(N):
        W[i] = Y[N - 1 - i]
    m = n * 2
    for i in T.Parallel(N):
        Y[i] += W[i] * m


@pytest.mark.parametrize("m, n", ((40, 300), (3, 1), (300, 70)))
@pytest.mark.parametrize("target", TARGETS)
def test_arrays_between(target: str, m: int, n: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal((m, n)).astype(np.float32)
    y = np.full((m, n), np.nan, np.float32)
    run(standardised, target, x, y, 0.5)
    z = x.astype(float)
    np.testing.assert_allclose(y, (z - z.mean(0)) / np.sqrt(z.var(0) + 0.5), rtol=1e-4, atol=1e-5)


def attention(q: Any, y: Any, v: Any) -> Any:
    s = q.astype(float) @ y.astype(float).T
    e = np.exp(s - s.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True) @ v.astype(float)


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", ({}, {"BM": 64, "BN": 64, "BK": 32}))
@pytest.mark.parametrize("target", TARGETS)
def test_products_in_turn(target: str, sizes: dict[str, int], rng: np.random.Generator) -> None:
    q, y, v = (
        rng.standard_normal(s).astype(np.float16) / 4 for s in ((70, 64), (90, 64), (90, 40))
    )
    if target == "cpu":
        out, _ = attended(q, y, v, **sizes)
    else:
        report = tilec.simulate(attended, q, y, v, target=target, **sizes)
        assert report.ok, report
        out = report.outputs["O"]
    np.testing.assert_allclose(out, attention(q, y, v), rtol=2e-2, atol=4e-3)
    if target == "cuda:sm_90a":
        made = attended.parts.compile((q, y, v), target, sizes)
        tiles = [v.stages["tile"] for v in made]
        assert ["gemm " in text for text in tiles] == [True, False, True]
        assert [p.name for p in attended.parameters[3:]] == ["BM", "BN", "BK"]


def test_a_part_chooses_its_own_tiles_alone() -> None:
    """Those of another loop are no question for it."""
    args = tuple(tilec.spec(s, "float16") for s in ((70, 64), (90, 64), (90, 40)))
    asked = [k.described(a, "cuda:sm_90a", named) for k, a, named in attended.parts.described(
        args, "cuda:sm_90a", {})]  # fmt: skip
    assert [[*a.open] for a in asked] == [["BM", "BN", "BK"], [], ["BM", "BN", "BK"]]


@pytest.mark.parametrize("target", TARGETS)
def test_an_output_that_changes(target: str, rng: np.random.Generator) -> None:
    x = rng.integers(-99, 99, 1000).astype(np.int32)
    if target == "cpu":
        y = in_turn(x, n=5)
    else:
        y = tilec.simulate(in_turn, x, n=5, target=target).outputs["Y"]
    np.testing.assert_array_equal(y, x + 5 + (x + 5)[::-1] * 10)


def test_later_calls_go_through_one_path(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rng.integers(-99, 99, 100).astype(np.int32)
    want = x + 3 + (x + 3)[::-1] * 6
    for _ in range(3):
        np.testing.assert_array_equal(in_turn(x), want)
    q, y, v = (rng.standard_normal(s).astype(np.float16) / 4 for s in ((7, 64), (9, 64), (9, 40)))
    first, _ = attended(q, y, v)
    for sizes in ({}, {}, {"BM": 16}, {"BM": 16}):
        np.testing.assert_allclose(attended(q, y, v, **sizes)[0], first, rtol=1e-3, atol=1e-4)

    def never(*given: object) -> None:
        raise AssertionError("the parts are launched anew")

    monkeypatch.setattr(Parts, "launch", never)
    np.testing.assert_array_equal(in_turn(x), want)
    np.testing.assert_array_equal(attended(q, y, v)[0], first)


@tilec.kernel
def named_as_ours(X_: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
    for i in T.Parallel(N):
        Y[i] = X_[i] + 1.0
    for i in T.Parallel(N):
        Y[i] = Y[i] * 2.0


def test_names_that_have_no_path() -> None:
    y = np.zeros(3, np.float32)
    for _ in range(2):
        named_as_ours(np.ones(3, np.float32), y)
        assert [*y] == [4, 4, 4]


def test_empty_arrays() -> None:
    assert in_turn(np.zeros(0, np.int32)).shape == (0,)
    y = np.zeros((0, 4), np.float32)
    standardised(np.zeros((0, 4), np.float32), y, 1.0)


@tilec.kernel
def with_rest(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
    for i in T.Parallel(N):
        Y[i] = X[i]
    for i in T.serial(N):
        Y[i] = Y[i] + 1.0
    for i in T.Parallel(N):
        Y[i] = Y[i] * 2.0


def test_another_loop_between_them() -> None:
    x = np.zeros(8, np.float32)
    with pytest.raises(tilec.CompileError, match="is not loops over whole tensors alone"):
        with_rest(x, x.copy())
