"""spread_loops: rows of a fragment that follow one another are done at once, where they may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M = T.dynamic("M")


def softmax(rows: int, columns: int, kept: int) -> Any:
    """Of rows, the elements from `kept` on as they are."""

    @tilec.kernel
    def kernel(X: T.Tensor((M, columns), "float16"), Y: T.Tensor((M, columns), "float16")):
        with T.Kernel(T.ceildiv(M, rows), threads=64) as b:
            x = T.alloc_fragment((rows, columns), "float32")
            most = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            for i in T.serial(rows):
                for j in T.Parallel(columns):
                    x[i, j] = T.if_then_else(b * rows + i < M, X[b * rows + i, j], 0)
            T.reduce_max(x, most, dim=1)
            for i in range(rows):
                for j in T.Parallel(columns):
                    x[i, j] = T.exp(x[i, j] - most[i])
            T.reduce_sum(x, total, dim=1)
            for i in T.unroll(rows):
                for j in T.Parallel(columns):
                    if j < kept:
                        Y[b * rows + i, j] = x[i, j] / total[i]
                    else:
                        Y[b * rows + i, j] = X[b * rows + i, j]

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "columns", "kept"), [(4, 128, 128), (3, 96, 50), (2, 64, 64)])
def test_rows(target: str, rows: int, columns: int, kept: int) -> None:
    x = np.random.default_rng(0).standard_normal((11, columns)).astype(np.float16)
    y = np.zeros_like(x)
    kernel = softmax(rows, columns, kept)
    run_compiled(kernel, target, x, y)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    want = np.where(np.arange(columns) < kept, e / e.sum(1, keepdims=True), x)
    np.testing.assert_allclose(y, want, atol=1e-3)
    if target != "cpu":
        text = kernel.compile(x, y, target=target).stages["demote_fragments"]
        assert "shared<" not in text and "for serial" not in text


def loops(which: str) -> Any:
    @tilec.kernel
    def kernel(X: T.Tensor((8, 64), "float32"), Y: T.Tensor((8, 64), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((8, 64), "float32")
            s = T.alloc_shared((64,), "float32")
            T.copy(X, x)
            if which == "from the row before":
                for i in T.serial(8):
                    for j in T.Parallel(64):
                        x[i, j] = x[i, j] + (x[i - 1, j] if i > 0 else 0)
            elif which == "through another buffer":
                T.fill(s, 0)
                for i in T.serial(8):
                    for j in T.Parallel(64):
                        s[j] = s[j] + x[i, j]
                        x[i, j] = s[j]
            else:
                for i in T.serial(8):
                    for j in T.Parallel(64):
                        x[i, j] = x[i, j] + Y[0, j]
                        Y[0, j] = x[i, j]
            T.copy(x, Y)

    return kernel


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "which", ["from the row before", "through another buffer", "through a tensor"]
)
def test_rows_that_need_others(target: str, which: str) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (8, 64)).astype(np.float32)
    y = np.zeros((8, 64), np.float32)
    run_compiled(loops(which), target, x, y)
    assert np.array_equal(y, np.cumsum(x, axis=0))
