"""join_iterations: tiles' rows are whole lines of memory where the author's are parts of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from form_help import SM80, SM90, close, on_cpu, tile_func

import tilec
import tilec.language as T
from tilec.ir.core import Func
from tilec.ir.ops import Copy, For, Gemm
from tilec.passes.join_iterations import join_iterations
from tilec.passes.simplify import simplify

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K, L = T.dynamic("M, N, K, L")


def product(deep: int, dtype: str = "float16", **how: Any) -> Any:
    """C = A^T B^T in steps of `deep`; how it may differ from what can be joined."""
    a_shape = (deep, 64) if "across" not in how else (64, deep)

    def kernel(
        A: T.Tensor((K, M) if "across" not in how else (M, K), dtype),
        B: T.Tensor((N, L if "longer" in how else K), dtype),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 64), threads=128) as (bx, by):
            a, b = T.alloc_shared(a_shape, dtype), T.alloc_shared((32, deep), dtype)
            acc = T.alloc_fragment((64, 32), "float32")
            if "safe" in how:
                T.annotate_safe_value({B: 1.0})
            T.clear(acc)
            trips = T.ceildiv(K, deep) if "short" not in how else K // deep
            for k in T.Pipelined(trips, num_stages=how.get("stages", 3)):
                if "across" in how:
                    T.copy(A[by * 64, k * deep], a)
                else:
                    T.copy(A[k * deep, by * 64], a)
                T.copy(B[bx * 32, k * deep], b)
                T.gemm(a, b, acc, transpose_A="across" not in how, transpose_B=True)
                if "seen" in how:
                    for i, j in T.Parallel(64, 32):
                        acc[i, j] += 1
            T.copy(acc, C[by * 64, bx * 32])

    return kernel


def held(rng: np.random.Generator, k: int, dtype: str = "float16", **how: Any) -> dict[str, Any]:
    a = np.asarray(rng.standard_normal((70, k) if "across" in how else (k, 70)), dtype)
    b = np.asarray(rng.standard_normal((40, k)), dtype)
    return {"A": a, "B": b, "C": np.full((70, 40), np.nan, np.float32)}


def joined(function: Any, arrays: dict[str, Any], target: Any = SM90) -> tuple[Func, Func]:
    func = simplify(tile_func(function, arrays), target)
    return func, join_iterations(func, target)


@pytest.mark.parametrize("k", [8, 64, 72, 136, 200])
@pytest.mark.parametrize("deep", [16, 32])
def test_rows_are_whole_lines(deep: int, k: int, rng: np.random.Generator) -> None:
    arrays = held(rng, k)
    _, after = joined(product(deep), arrays)
    (loop,) = after.body.every(For)
    copies, (gemm,) = [*loop.body.every(Copy)], loop.body.every(Gemm)
    assert [c.dest.extents for c in copies] == [(64, 64), (32, 64)] and gemm.shape == (64, 32, 64)
    assert loop.num_stages == 2
    want = arrays["A"].astype(np.float64).T @ arrays["B"].astype(np.float64).T
    report = tilec.simulate(tilec.kernel(product(deep)), *arrays.values(), target="cuda:sm_90a")
    assert report.ok, report
    close(arrays["C"], want)
    close(on_cpu(product(deep), held(rng, k) | {"A": arrays["A"], "B": arrays["B"]})["C"], want)


@pytest.mark.parametrize(
    "how",
    [
        {"longer": True}, {"safe": True}, {"short": True}, {"seen": True}, {"stages": 1},
        {"deep": 64},
    ],
    ids=str,
)  # fmt: skip
def test_others_stay(how: dict[str, Any], rng: np.random.Generator) -> None:
    """What is behind the end is not 0 for both, the sum is seen in each iteration, nothing is to
    run ahead, or rows are lines already."""
    how = dict(how)
    function, arrays = product(how.pop("deep", 32), **how), held(rng, 96)
    before, after = joined(function, arrays)
    assert after is before


def test_columns_are_lines_already(rng: np.random.Generator) -> None:
    """Rows of 64 halves of both operands; and a target without TMA has its own way."""
    arrays = held(rng, 96)
    before, after = joined(product(32), arrays, SM80)
    assert after is before
    before, after = joined(product(32, across=True), held(rng, 96, across=True))
    assert after is not before
