"""Shared tiles that several copies fill, each for readers of its own: loops' copies run ahead."""

import re
import warnings
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, N, K = T.dynamic("M, N, K")
TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
f16, f32 = "float16", "float32"


@tilec.kernel
def behind(A: T.Tensor((M, K), f16), B: T.Tensor((N, K), f16), C: T.Tensor((M, 64), f32)):
    """C = (A @ B.T) @ B[:, :64], whose second product's B lies where the first one's did."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as m:
        a, b = T.alloc_shared((64, 64), f16), T.alloc_shared((32, 64), f16)
        p = T.alloc_shared((64, 32), f16)
        s, c = T.alloc_fragment((64, 32), f32), T.alloc_fragment((64, 64), f32)
        T.clear(c)
        for n in T.serial(T.ceildiv(N, 32)):
            T.clear(s)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[m * 64, k * 64], a)
                T.copy(B[n * 32, k * 64], b)
                T.gemm(a, b, s, transpose_B=True)
            T.copy(s, p)
            T.copy(B[n * 32, 0], b)
            T.gemm(p, b, c)
        T.copy(c, C[m * 64, 0])


@tilec.kernel
def nested(A: T.Tensor((M, K), f16), B: T.Tensor((N, K), f16), C: T.Tensor((M, 64), f32)):
    """What reads one tile that is filled again stands around what fills another."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as m:
        a, b = T.alloc_shared((64, 64), f16), T.alloc_shared((32, 64), f16)
        p = T.alloc_shared((64, 32), f16)
        s, c = T.alloc_fragment((64, 32), f32), T.alloc_fragment((64, 64), f32)
        T.clear(c)
        for n in T.serial(T.ceildiv(N, 32)):
            T.clear(s)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[m * 64, k * 64], a)
                T.copy(B[n * 32, k * 64], b)
                T.gemm(a, b, s, transpose_B=True)
            T.copy(s, p)
            T.copy(B[n * 32, 0], b)
            for h in T.serial(2):
                T.copy(A[m * 64, h * 64], a)
                T.gemm(p, b, c)
                for i, j in T.Parallel(64, 64):
                    c[i, j] += a[i, j]
        T.copy(c, C[m * 64, 0])


@tilec.kernel
def within(A: T.Tensor((M, K), f16), B: T.Tensor((N, K), f16), C: T.Tensor((M, 64), f32)):
    """C = (A[:, :64] @ B[:, :64].T) @ B[:, 64:], both of whose Bs have one tile."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as m:
        a, b = T.alloc_shared((64, 64), f16), T.alloc_shared((32, 64), f16)
        s, c = T.alloc_fragment((64, 32), f32), T.alloc_fragment((64, 64), f32)
        p = T.alloc_fragment((64, 32), f16)
        T.copy(A[m * 64, 0], a)
        T.clear(c)
        for n in T.Pipelined(T.ceildiv(N, 32), num_stages=2):
            T.copy(B[n * 32, 0], b)
            T.gemm(a, b, s, transpose_B=True, clear_accum=True)
            T.copy(s, p)
            T.copy(B[n * 32, 64], b)
            T.gemm(p, b, c)
        T.copy(c, C[m * 64, 0])


@tilec.kernel
def carried(A: T.Tensor((M, 64), f16), B: T.Tensor((N, 64), f16), C: T.Tensor((M, 64), f32)):
    """The last tile of the loop is read behind it: there is one name for it."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as m:
        a, b = T.alloc_shared((64, 64), f16), T.alloc_shared((64, 64), f16)
        c = T.alloc_fragment((64, 64), f32)
        T.copy(A[m * 64, 0], a)
        T.copy(B[0, 0], b)
        T.clear(c)
        for n in T.Pipelined(T.ceildiv(N, 64) - 1, num_stages=2):
            T.gemm(a, b, c, transpose_B=True)
            T.copy(B[n * 64 + 64, 0], b)
        T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[m * 64, 0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", (behind, nested, within, carried), ids=lambda k: k.name)
def test_a_tile_that_is_filled_again(kernel: Any, target: str) -> None:
    rng = np.random.default_rng(3)
    k = 64 if kernel is carried else 128
    a, b = (rng.integers(-2, 3, (n, k)).astype(f16) for n in (100, 128))
    c = np.full((100, 64), np.nan, f32)
    run(kernel, target, a, b, c)
    wide = b.astype(f32)
    if kernel is within:
        want = a[:, :64].astype(f32) @ wide[:, :64].T @ wide[:, 64:]
    else:
        s = a.astype(f32) @ wide.T
        want = s[:, :64] + s[:, 64:] if kernel is carried else s @ wide[:, :64]
    if kernel is nested:
        want = 2 * want + 4 * (a[:, :64].astype(f32) + a[:, 64:].astype(f32))
    np.testing.assert_array_equal(c, want)


@pytest.mark.turns("cuda:sm_90a")
@pytest.mark.parametrize("target", TARGETS[1:])
def test_copies_of_one_tile_run_ahead(target: str) -> None:
    for kernel, k in ((behind, 512), (nested, 512), (within, 128), (carried, 64)):
        ends = tilec.spec((4096, k), f16), tilec.spec((4096, k), f16), tilec.spec((4096, 64), f32)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", tilec.PerformanceWarning)
            stage = kernel.compile(*ends, target=target).stages["plan_pipeline"]
        ahead = kernel is not carried
        assert ("%b_again = alloc" in stage) == ahead
        if target != "hip:gfx942" or not ahead:  # it brings them through registers
            assert bool(re.search(r"%b = alloc shared<32x64xf16, stages=\d", stage)) == ahead
        assert any("cannot run ahead" in str(w.message) for w in told) != ahead
