"""Tiles that TMA brings ahead of time and threads change where they lie: masks, running sums."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T

SM90 = "cuda:sm_90a"
M, N = T.dynamic("M, N")


@tilec.kernel
def lower(
    A: T.Tensor((M, M), "float16"), X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float16")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 64), "float16")
        x = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(by + 1, num_stages=2):
            T.copy(A[by * 64, k * 64], a)
            T.copy(X[k * 64, bx * 64], x)
            for i, j in T.Parallel(64, 64):
                if k * 64 + j > by * 64 + i:
                    a[i, j] = 0
            T.gemm(a, x, acc)
        T.copy(acc, Y[by * 64, bx * 64])


@tilec.kernel
def running(X: T.Tensor((M, 64), "float32"), Y: T.Tensor((1, 64), "float32")):
    with T.Kernel(1, threads=128):
        x = T.alloc_shared((32, 64), "float32")
        part = T.alloc_fragment((64,), "float32")
        T.clear(part)
        for k in T.Pipelined(T.ceildiv(M, 32), num_stages=3):
            T.copy(X[k * 32, 0], x)
            T.cumsum(x, dim=0)
            T.reduce_sum(x, part, dim=0, clear=False)
        for j in T.Parallel(64):
            Y[0, j] = part[j]


def brought(made: tilec.CompiledKernel, name: str) -> bool:
    return f"ahead: {name}, by tma" in made.stages["plan"]


def test_masked_tiles_of_a_product(rng: np.random.Generator) -> None:
    """The mask's writes are before the product that reads them by wgmma, and before TMA's next copy
    to the stage."""
    made = lower.compile(*[tilec.spec((4096, 4096), "float16")] * 3, target=SM90)
    assert brought(made, "a") and brought(made, "x")
    consumer = made.stages["insert_sync"].split("scope producer")[0]
    loop = consumer[consumer.index("mbarrier_wait %ring") :]
    places = [loop.index(x) for x in ("parallel", "proxy_fence", "gemm", "mbarrier_arrive")]
    assert places == sorted(places), loop
    a, x = (rng.standard_normal(s).astype(np.float16) for s in ((200, 200), (200, 72)))
    y = np.empty((200, 72), np.float16)
    report = tilec.simulate(lower, a, x, y, target=SM90)
    assert report.ok, report
    np.testing.assert_allclose(y, np.tril(a).astype(float) @ x.astype(float), rtol=2e-3, atol=5e-2)


def test_running_sums(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((150, 64)).astype(np.float32), np.empty((1, 64), np.float32)
    assert brought(running.compile(x, y, target=SM90), "x")
    report = tilec.simulate(running, x, y, target=SM90)
    assert report.ok, report
    parts = np.concatenate([np.cumsum(x[i : i + 32], 0) for i in range(0, 150, 32)])
    parts = np.concatenate([parts, np.repeat(parts[-1:], 10, 0)])  # rows of zeros behind the end
    np.testing.assert_allclose(y[0], parts.sum(0), rtol=1e-4, atol=1e-3)


def test_where_threads_bring_tiles_they_do_not_run_ahead() -> None:
    specs = [tilec.spec((4096, 4096), "float16")] * 3
    with pytest.warns(tilec.PerformanceWarning, match="threads change it where it lies"):
        made = lower.compile(*specs, target="cuda:sm_80")
    assert "ahead: x, by cp_async" in made.stages["plan"] and "ahead: a" not in made.stages["plan"]
