"""T.Parallel with extents that only a call gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import For, Parallel
from tilec.jit.build import trace_variant

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N = T.dynamic("M, N")


@tilec.kernel
def rows(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32"), v: T.int32):
    with T.Kernel(M, threads=64) as r:
        for i in T.Parallel(N):
            B[r, i] = 0.0
        span = T.min(v, N)
        for i in T.Parallel(span):
            x = A[r, i]
            B[r, i] = x - 1


@tilec.kernel
def whole(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
    with T.Kernel(1, threads=64):
        for i, j in T.Parallel(M, N):
            if A[i, j] > 0:
                B[i, j] = A[i, j] * 2
        for i, j in T.Parallel(M, 3):
            B[i, j] += 1
        for j, i in T.Parallel(2, M - 1):
            B[i + 1, N - 2 + j] = 7


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(3, 5), (4, 200), (1, 3), (70, 64)])
def test_numbers(target: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
    A = rng.standard_normal(shape).astype(np.float32)
    for v in (7, 0, 1000):
        B = np.full(shape, 9, np.float32)
        run(rows, target, A, B, v)
        wanted = np.zeros(shape, np.float32)
        wanted[:, :v] = A[:, :v] - 1
        np.testing.assert_array_equal(B, wanted)
    B = np.zeros(shape, np.float32)
    run(whole, target, A, B)
    wanted = np.where(A > 0, A * 2, 0).astype(np.float32)
    wanted[:, :3] += 1
    wanted[1:, -2:] = 7
    np.testing.assert_array_equal(B, wanted)


def test_they_are_tiles_of_the_threads() -> None:
    specs = [tilec.spec((64, 64), "float32")] * 2
    func = trace_variant(whole.signature, whole.key_of(specs, "cuda:sm_90a", {}))
    loops = [o.extents for o in walk(func.body) if isinstance(o, Parallel)]
    assert loops == [(64,), (21, 3), (2, 32)]
    assert len([o for o in walk(func.body) if isinstance(o, For)]) == 4


def test_a_fragment_has_so_many_elements() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((64,), "float32")
            for i in T.Parallel(T.min(N, 64)):
                s[i] = A[i] + 1
            T.sync_threads()
            for i in T.Parallel(T.min(N, 64)):
                A[i] = s[i]

    A = np.arange(50, dtype=np.float32)
    kernel(A)
    np.testing.assert_array_equal(A, np.arange(50) + 1)


def test_a_layout_needs_extents() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            layout = T.Fragment((32,), forward_fn=lambda i: (i, 0))
            for i in T.Parallel(N, loop_layout=layout):
                A[i] = 1

    with pytest.raises(tilec.CompileError, match="run-time extents has no loop_layout"):
        kernel(np.zeros(5, np.float32))


@pytest.mark.gpu
def test_on_the_gpu(rng: np.random.Generator, torch: Any) -> None:
    A = rng.standard_normal((70, 333)).astype(np.float32)
    B = torch.full((70, 333), 9.0, device="cuda")
    rows(torch.from_numpy(A).cuda(), B, 100)
    wanted = np.zeros((70, 333), np.float32)
    wanted[:, :100] = A[:, :100] - 1
    np.testing.assert_array_equal(B.cpu().numpy(), wanted)
