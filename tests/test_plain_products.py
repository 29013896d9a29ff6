"""Products whose author only says when they have ended (T.wgmma_gemm, T.wait_wgmma) in a pipelined
loop: they are plain ones there, so that tiles run ahead and tilec waits for what is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

N = T.dynamic("N")
SM90 = "cuda:sm_90a"


def gradients(wait: int, how: str = "") -> Any:
    """Of attention's backward pass, without its softmax: P = K Q^T, dS = P * (V D^T), and from them
    dV, dK and dQ. With `wait` 1 scores are read before anyone has waited for their product."""

    @tilec.kernel
    def kernel(
        K: T.Tensor((128, 64), "float16"),
        V: T.Tensor((128, 64), "float16"),
        Q: T.Tensor((N, 64), "float16"),
        D: T.Tensor((N, 64), "float16"),
        DK: T.Tensor((128, 64), "float32"),
        DV: T.Tensor((128, 64), "float32"),
        DQ: T.Tensor((N, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            k, v = T.alloc_shared((128, 64), "float16"), T.alloc_shared((128, 64), "float16")
            q, d = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            t = T.alloc_shared((128, 64), "float16")
            s, ds = T.alloc_fragment((128, 64), "float32"), T.alloc_fragment((128, 64), "float32")
            p, dp = T.alloc_fragment((128, 64), "float16"), T.alloc_fragment((128, 64), "float16")
            dk, dv = T.alloc_fragment((128, 64), "float32"), T.alloc_fragment((128, 64), "float32")
            dq = T.alloc_fragment((64, 64), "float32")
            part = T.alloc_shared((64, 64), "float32") if how == "shared" else None
            bar = T.alloc_barrier(256) if how == "barrier" else None
            T.copy(K, k)
            T.copy(V, v)
            T.clear(dk)
            T.clear(dv)
            lists = {"stage": [0] * 5 + [1] * 12, "order": [*range(17)]} if how == "lists" else {}
            steps = T.ceildiv(N, 64)
            for i in (
                T.serial(steps) if how == "no stages" else T.Pipelined(steps, num_stages=2, **lists)
            ):
                T.copy(Q[i * 64, 0], q)
                T.clear(s)
                T.wgmma_gemm(k, q, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(D[i * 64, 0], d)
                T.clear(ds)
                T.wgmma_gemm(v, d, ds, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.wait_wgmma(wait)
                T.copy(s, p)
                T.wgmma_gemm(p, d, dv, policy=T.GemmWarpPolicy.FullRow)
                for x, y in T.Parallel(128, 64):
                    dp[x, y] = s[x, y] * ds[x, y]
                T.wait_wgmma(0)
                T.wgmma_gemm(dp, q, dk, policy=T.GemmWarpPolicy.FullRow)
                T.copy(dp, t)
                if how == "barrier":
                    T.barrier_arrive(bar)
                    T.barrier_wait(bar, i % 2)
                T.clear(dq)
                T.wgmma_gemm(t, k, dq, transpose_A=True)
                T.wait_wgmma(0)
                if how == "shared":
                    T.copy(dq, part)
                    T.atomic_add(DQ[i * 64 : i * 64 + 64, 0:64], part)
                else:
                    T.copy(dq, DQ[i * 64, 0])
            if how == "shared":
                for sums, tensor in ((dv, DV), (dk, DK)):
                    place = T.alloc_shared((128, 64), "float32")
                    T.copy(sums, place)
                    T.atomic_add(tensor[0:128, :], place)
            else:
                T.copy(dv, DV)
                T.copy(dk, DK)

    return kernel


def arrays(rows: int, rng: np.random.Generator) -> list[np.ndarray]:
    given = [(rng.standard_normal((n, 64)) / 8).astype(np.float16) for n in (128, 128, rows, rows)]
    return [*given, *(np.full((n, 64), np.nan, np.float32) for n in (128, 128, rows))]


def check(a: list[np.ndarray]) -> None:
    k, v, q, d = (x.astype(np.float64) for x in a[:4])
    s, ds = k @ q.T, v @ d.T
    ds = (s * ds).astype(np.float16).astype(np.float64)
    for got, want in zip(a[4:], (ds @ q, s @ d, ds.T @ k)):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


@pytest.mark.covering(1)
@pytest.mark.parametrize("rows", [0, 64, 100, 6 * 64])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", SM90, "hip:gfx942"])
def test_numbers_are_those_of_plain_products(
    target: str, rows: int, rng: np.random.Generator
) -> None:
    a = arrays(rows, rng)
    run_compiled(gradients(1), target, *a)
    check(a)


def test_tiles_run_ahead_and_nothing_waits_by_hand(rng: np.random.Generator) -> None:
    made = gradients(1).compile(*arrays(640, rng), target=SM90)
    assert made.plan is not None and made.plan.specialise
    assert "ahead: q, by tma" in made.stages["plan"] and "ahead: d, by tma" in made.stages["plan"]
    assert "by_hand=true" not in made.stages["group_threads"]


@pytest.mark.parametrize("how", ["barrier", "no stages", "lists"])
def test_what_else_is_ordered_by_hand_stays(how: str, rng: np.random.Generator) -> None:
    """Threads that wait for one another, a loop without stages, a list that counts statements.
    Products end for both warpgroups behind a barrier that follows the wait: one that stands before
    it did for the next iteration's tile, which the other warpgroup had yet to read."""
    a = arrays(128, rng)
    kernel = gradients(0, how)
    made = kernel.compile(*a, target=SM90)
    assert "by_hand=true" in made.stages["group_threads"]
    run_compiled(kernel, SM90, *a)
    check(a)


def test_sums_leave_through_what_the_loop_has_read(rng: np.random.Generator) -> None:
    """Memory of the loop's tiles, in an overlapped plan."""
    a = arrays(640, rng)
    for x in a[4:]:
        x[:] = 0
    kernel = gradients(1, "shared")
    run_compiled(kernel, SM90, *a)
    check(a)
    assert kernel.compile(*a, target=SM90).plan.overlap


def test_a_product_outside_of_such_loops_stays(rng: np.random.Generator) -> None:
    @tilec.kernel
    def alone(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.clear(c)
            T.wgmma_gemm(a, a, c)
            T.wait_wgmma(0)
            T.copy(c, C)

    a = (rng.standard_normal((64, 64)) / 8).astype(np.float16)
    c = np.full((64, 64), np.nan, np.float32)
    run_compiled(alone, SM90, a, c)
    np.testing.assert_allclose(c, a.astype(float) @ a.astype(float), atol=1e-3)
    made = alone.compile(a, c, target=SM90).stages
    assert "wgmma_wait 0" in made["tile"] and "asynchronous=true" in made["tile"]


def test_products_of_a_loop_overlap(rng: np.random.Generator) -> None:
    """All five run beside threads: one whose warpgroups have 32 columns each reads K in 64-byte
    swizzles, and what is zero before a product costs nothing."""
    made = gradients(1).compile(*arrays(640, rng), target=SM90)
    assert made.plan is not None and made.plan.overlap
    assert "wgmma.m64n32k16.f16, warps=(4, 2), swizzle=64" in made.stages["select_gemm"]
    assert made.stages["fold_clears"].count("replaced=true") == 3
    assert "serialized" not in made.stages["plan"] and "mma.sync" not in made.stages["ptx"]
