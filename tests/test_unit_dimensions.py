"""Threads that write elements of their own need not meet between two statements that do; a tile's
dimensions of one iteration, and views by them, change nothing; results that many threads have are
combined by few each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

M, N = T.dynamic("M, N")
GPUS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
TARGETS = (*GPUS, "cpu")


def marks(at: str) -> Any:
    """Two stores of each thread to a tensor in a loop; the second one's place is `at`: "own", or
    that of the "other" end of the row, another thread's."""

    @tilec.kernel
    def marked(X: T.Tensor((M, N), "float32"), lo: T.int32, hi: T.int32):
        with T.Kernel(M, threads=128) as bx:
            tx = T.get_thread_binding()
            for k in T.serial(T.ceildiv(N, 128)):
                i = k * 128 + tx
                if i < N and i == lo:
                    X[bx, i] = 1.0
                j = i if at == "own" else k * 128 + (127 - tx)
                if j < N and j >= hi:
                    X[bx, j] = -1.0

    return marked


def barriers(kernel: tilec.Kernel, target: str, *arrays: Any) -> int:
    made = kernel.plan_launch(target, None, arrays, {}).variant
    return str(made.stages["insert_sync"]).count("barrier")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("at", ["own", "other"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 300), (2, 128)])
def test_marks(shape: tuple[int, int], at: str, target: str) -> None:
    x = np.zeros(shape, np.float32)
    want = x.copy()
    want[:, 5:6] = 1
    want[:, 40:] = -1
    run(marks(at), target, x, 5, 40)
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("target", GPUS)
def test_who_writes_his_own_elements_does_not_meet(target: str) -> None:
    x = np.zeros((3, 300), np.float32)
    assert barriers(marks("own"), target, x, 5, 40) == 0
    assert barriers(marks("other"), target, x, 5, 40) > 0


@tilec.kernel
def scored(
    A: T.Tensor((M, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    W: T.Tensor((1, 64), "float32"),
    Y: T.Tensor((M,), "float32"),
):
    """A weighted sum of each row of a product, by a view with a dimension of 1."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        s, w = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((1, 64), "float32")
        total = T.alloc_fragment((64, 1), "float32")
        view = T.reshape(s, (64, 1, 64))
        T.copy(A[bx * 64, 0], a)
        T.copy(B, b)
        T.copy(W, w)
        T.gemm(a, b, s, clear_accum=True)
        for i, one, j in T.Parallel(64, 1, 64):
            view[i, one, j] = T.max(view[i, one, j], 0) * w[one, j]
        T.reduce_sum(view, total, dim=-1)
        for i in T.Parallel(64):
            Y[bx * 64 + i] = total[i, 0]


@pytest.mark.parametrize("target", TARGETS)
def test_dimensions_of_one(target: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((100, 64), (64, 64)))
    w, y = rng.standard_normal((1, 64)).astype(np.float32), np.full(100, np.nan, np.float32)
    run(scored, target, a, b, w, y)
    want = (np.maximum(a.astype(float) @ b.astype(float), 0) * w).sum(1)
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-2)
    if target in GPUS:
        made = scored.plan_launch(target, None, (a, b, w, y), {}).variant
        laid_out = str(made.stages["infer_layouts"])
        assert "parallel (64, 64)" in laid_out and "64, 1, 64" not in laid_out
        assert "_converted" not in laid_out and "64x1x64" not in laid_out


@tilec.kernel
def columns(X: T.Tensor((M, 128), "float16"), Y: T.Tensor((M, 128), "float32")):
    """Each row less the sum of its tile's columns."""
    with T.Kernel(T.ceildiv(M, 64), threads=256) as bx:
        x, total = T.alloc_fragment((64, 128), "float16"), T.alloc_fragment((128,), "float32")
        T.copy(X[bx * 64, 0], x)
        T.fill(total, 1)
        T.reduce_sum(x, total, dim=0, clear=False)
        for i, j in T.Parallel(64, 128):
            Y[bx * 64 + i, j] = x[i, j] - total[j]


@pytest.mark.turns("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
@pytest.mark.parametrize("target", TARGETS)
def test_results_that_many_threads_have(target: str) -> None:
    x = np.random.default_rng(1).standard_normal((130, 128)).astype(np.float16)
    y = np.full(x.shape, np.nan, np.float32)
    run(columns, target, x, y)
    wide = x.astype(float)
    sums = [1 + wide[i : i + 64].sum(0) for i in (0, 64, 128)]
    np.testing.assert_allclose(y, wide - np.repeat(sums, 64, 0)[:130], rtol=1e-5, atol=1e-3)
    if target.startswith("cuda"):  # others' threads have half as many each
        made = columns.plan_launch(target, None, (x, y), {}).variant
        assert str(made.stages["split_reductions"]).count("alloc shared") == 2


@tilec.kernel
def narrowed(X: T.Tensor((M, 2, 72), "float32"), Y: T.Tensor((M, 2, 72), "bfloat16")):
    with T.Kernel(T.ceildiv(M, 16), 2, threads=64) as (bx, by):
        T.copy(X[bx * 16 : bx * 16 + 16, by, :], Y[bx * 16 : bx * 16 + 16, by, :])


def test_a_copy_between_tensors_loads_wide_and_together() -> None:
    specs = tilec.spec((50, 2, 72), "float32"), tilec.spec((50, 2, 72), "bfloat16")
    for target in ("cuda:sm_90a", "cuda:sm_80"):
        ptx = narrowed.compile(*specs, target=target).stages["ptx"]
        first = ptx[: ptx.index("st.global")]
        assert first.count("ld.global.nc.v4") >= 4
