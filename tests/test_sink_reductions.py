"""sink_reductions: contributions of a loop's iterations are reduced behind the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from form_help import SM90, tile_func
from simulated import run_compiled

import tilec
import tilec.language as T
from tilec.ir.core import Func
from tilec.ir.ops import For, Reduce
from tilec.ir.verify import verify
from tilec.passes.sink_reductions import sink_reductions
from tilec.passes.split_fragments import split_fragments

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

TARGETS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu")
M, N = T.dynamic("M, N")


def program(how: str, op: str = "sum") -> Any:
    """Y[m] = sum over n of A[m, n] X[n], by a reducer; W holds what is between."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, N), "float32"),
        X: T.Tensor((N,), "float32"),
        Y: T.Tensor((M,), "float32"),
        W: T.Tensor((M,), "float32"),
        trips: T.int32,
    ):
        with T.Kernel(T.ceildiv(M, 8), threads=64) as b:
            r = T.alloc_reducer((8,), "float32", op=op)
            a, x = T.alloc_fragment((8, 32), "float32"), T.alloc_fragment((32,), "float32")
            T.reducer_init(r)
            for k in T.Pipelined(trips, num_stages=2):
                T.copy(A[b * 8, k * 32], a)
                T.copy(X[k * 32], x)
                if how == "rows":
                    for m in range(8):
                        for j in T.Parallel(32):
                            T.reducer_update(r[m], a[m, j] * x[j])
                elif how == "nested":
                    for _ in range(2):
                        for i, j in T.Parallel(8, 32):
                            T.reducer_update(r[i], a[i, j] * x[j] * 0.5)
                elif how == "chosen":  # another element in each iteration
                    m = k % 8
                    for j in T.Parallel(32):
                        T.reducer_update(r[m], x[j])
                else:
                    for i, j in T.Parallel(8, 32):
                        T.reducer_update(r[i], a[i, j] * x[j])
                if how == "read":
                    for i in T.Parallel(8):
                        W[b * 8 + i] = r[i]
                elif how == "again":
                    T.reducer_init(r)
            T.finalize_reducer(r)
            T.copy(r, Y[b * 8])

    return kernel


def held(rng: np.random.Generator, trips: int) -> dict[str, Any]:
    a, x = rng.random((19, 32 * trips + 5), np.float32), rng.random(32 * trips + 5, np.float32)
    y, w = np.full(19, np.nan, np.float32), np.full(19, np.nan, np.float32)
    return {"A": a, "X": x, "Y": y, "W": w, "trips": trips}


def expected(how: str, op: str, given: dict[str, Any]) -> np.ndarray:
    n, x = 32 * given["trips"], given["X"].astype(float)
    each = given["A"].astype(float)[:, :n] * x[:n]
    if how == "chosen":
        want = np.zeros(24)
        for k in range(given["trips"]):
            want[k % 8 :: 8] += x[k * 32 : k * 32 + 32].sum()
        return want[:19]
    if how == "again":
        return np.zeros(19)
    return each.sum(1) if op == "sum" else each.max(1, initial=-np.inf)


HOW = ("plain", "rows", "nested", "chosen", "read", "again")


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", HOW)
def test_numbers(how: str, target: str, rng: np.random.Generator) -> None:
    for trips in (0, 1, 5):
        given = held(rng, trips)
        run_compiled(program(how), target, **given)
        np.testing.assert_allclose(given["Y"], expected(how, "sum", given), rtol=1e-5)
        if how == "read" and trips:
            np.testing.assert_array_equal(given["W"], given["Y"])


@pytest.mark.parametrize("target", TARGETS)
def test_maxima(target: str, rng: np.random.Generator) -> None:
    given = held(rng, 3)
    run_compiled(program("plain", "max"), target, **given)
    np.testing.assert_allclose(given["Y"], expected("plain", "max", given), rtol=1e-6)


def inside(func: Func) -> int:
    return sum(o.body.has(Reduce) for o in func.body.every(For))


@pytest.mark.parametrize("target", TARGETS)
def test_what_comes_behind_the_reduction_does_not_count(target: str) -> None:
    @tilec.kernel
    def kernel(X: T.Tensor((4, 8, 32), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=64):
            total = T.alloc_fragment((8,), "float32")
            T.clear(total)
            for k in T.serial(4):
                s = T.alloc_fragment((8, 32), "float32")
                T.fill(s, 0.0)
                T.reduce_sum(s, total, dim=1, clear=False)
                for i, j in T.Parallel(8, 32):
                    s[i, j] = s[i, j] + X[k, i, j]
            T.copy(total, Y)

    y = np.full(8, np.nan, np.float32)
    run_compiled(kernel, target, np.ones((4, 8, 32), np.float32), y)
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize("how", HOW)
def test_which_leave_their_loop(how: str, rng: np.random.Generator) -> None:
    """A total that the loop reads, sets, or of which another element is meant each time, stays."""
    func = split_fragments(tile_func(program(how), held(rng, 3)), SM90)
    after = sink_reductions(func, SM90)
    verify(after)
    assert inside(func) >= 1
    assert inside(after) == (inside(func) if how in ("chosen", "read", "again") else 0)
