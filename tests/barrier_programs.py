"""Kernels whose authors order asynchronous copies and products by hand. `cut` names one op of such
a program that is left out: what comes of it must be found."""

from __future__ import annotations

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def ring(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    BM: T.constexpr = 128,
    BN: T.constexpr = 64,
    BK: T.constexpr = 32,
    stages: T.constexpr = 2,
    cut: T.constexpr = "",
):
    """A producer group by TMA, a consumer group, in one loop."""
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
        A_s = T.alloc_shared((stages, BM, BK), "float16")
        B_s = T.alloc_shared((stages, BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        bars = T.alloc_barrier([128] * (2 * stages))
        with T.ws(0):
            T.clear(acc)
        for k in range(T.ceildiv(K, BK)):
            at = k % stages
            with T.ws(1):
                if cut != "wait_free":
                    T.mbarrier_wait_parity(bars[at + stages], k // stages % 2 ^ 1)
                T.tma_copy(A[by * BM, k * BK], A_s[at, :, :], barrier=bars[at])
                T.tma_copy(B[k * BK, bx * BN], B_s[at, :, :], barrier=bars[at])
                if cut != "arrive_full":
                    T.mbarrier_arrive(bars[at])
            with T.ws(0):
                if cut == "parity":
                    T.mbarrier_wait_parity(bars[at], k // stages % 2 ^ 1)
                elif cut != "wait_full":
                    T.mbarrier_wait_parity(bars[at], k // stages % 2)
                T.gemm(A_s[at, :, :], B_s[at, :, :], acc)
                if cut != "arrive_free":
                    T.mbarrier_arrive(bars[at + stages])
        with T.ws(0):
            T.copy(acc, C[by * BM, bx * BN])


@tilec.kernel
def apart(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    BK: T.constexpr = 32,
    stages: T.constexpr = 3,
    cut: T.constexpr = "",
):
    """Two groups with loops of their own; threads bring one of the tiles."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=256) as (bx, by):
        tx = T.get_thread_binding(0)
        A_s = T.alloc_shared((stages, 64, BK), "float16")
        B_s = T.alloc_shared((stages, BK, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        full = T.alloc_barrier([128 if cut != "count" else 127] * stages)
        free = T.alloc_barrier([128] * stages)
        if tx < 128:
            T.dec_max_nreg(104)
            for k in T.serial(T.ceildiv(K, BK)):
                if cut != "wait_free":
                    T.barrier_wait(free[k % stages], k // stages + 1)
                T.tma_copy(A[by * 64, k * BK], A_s[k % stages, :, :], barrier=full[k % stages])
                T.copy(B[k * BK, bx * 64], B_s[k % stages, :, :])
                T.barrier_arrive(full[k % stages])
        else:
            T.inc_max_nreg(152)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
                T.barrier_wait(full[k % stages], k // stages)
                T.gemm(A_s[k % stages, :, :], B_s[k % stages, :, :], acc)
                T.barrier_arrive(free[k % stages])
            T.copy(acc, C[by * 64, bx * 64])


@tilec.kernel
def together(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    threads: T.constexpr = 128,
    cut: T.constexpr = "",
):
    """All threads start, wait and compute."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=threads) as (bx, by):
        A_s = T.alloc_shared((64, 64), "float16")
        B_s = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        bar_a = T.alloc_barrier(threads)
        bar_b = T.alloc_barrier(arrive_count=threads)
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
            T.tma_copy(A[by * 64, k * 64], A_s, barrier=bar_a)
            T.barrier_arrive(bar_a)
            T.tma_copy(B[k * 64, bx * 64], B_s, barrier=bar_b)
            T.barrier_arrive(bar_b)
            if cut != "wait":
                T.barrier_wait(bar_a, k % 2)
            T.barrier_wait(bar_b, k % 2)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * 64, bx * 64])


@tilec.kernel
def handed_on(
    X: T.Tensor((M, N), "float32"),
    Y: T.Tensor((M, N), "float32"),
    rows: T.constexpr = 8,
    columns: T.constexpr = 96,
    cut: T.constexpr = "",
):
    """Four groups of 64 threads: two scale tiles, two others add to what they made."""
    with T.Kernel(T.ceildiv(M, rows), threads=256) as by:
        tx = T.get_thread_binding(0)
        tile = T.alloc_shared((2, rows, columns), "float32")
        made = T.alloc_barrier([64, 64])
        freed = T.alloc_barrier(64)
        part = tx // 64
        for c in T.serial(T.ceildiv(N, columns)):
            if part == 0:
                if cut != "freed":
                    T.barrier_wait(freed, c + 1)
                for i, j in T.Parallel(rows, columns):
                    tile[0, i, j] = X[by * rows + i, c * columns + j] * 2.0
                if cut != "arrive":
                    T.barrier_arrive(made[0])
            elif part == 1:
                T.barrier_wait(freed, c + 1)
                T.copy(X[by * rows, c * columns], tile[1, :, :])
                T.barrier_arrive(made[1])
            elif part == 2:
                T.barrier_wait(made[0], c)
                if cut != "wait":
                    T.barrier_wait(made[1], c)
                for i, j in T.Parallel(rows, columns):
                    Y[by * rows + i, c * columns + j] = tile[0, i, j] + tile[1, i, j]
                T.barrier_arrive(freed)


@tilec.kernel
def in_flight(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    BK: T.constexpr = 32,
    threads: T.constexpr = 128,
    cut: T.constexpr = "",
):
    """Two products in flight at once, one of them of a fragment; copies by cp.async."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=threads) as (bx, by):
        A_s = T.alloc_shared((2, 64, BK), "float16")
        B_s = T.alloc_shared((2, BK, 64), "float16")
        left = T.alloc_fragment((64, 64), "float32")
        right = T.alloc_fragment((64, 64), "float32")
        T.clear(left)
        T.clear(right)
        for k in T.Pipelined(T.ceildiv(K, 2 * BK), num_stages=2):
            for s in T.unroll(2):
                T.async_copy(A[by * 64, (2 * k + s) * BK], A_s[s, :, :])
                T.async_copy(B[(2 * k + s) * BK, bx * 64], B_s[s, :, :])
            if cut != "copies":
                T.ptx_wait_group(2)
            T.warpgroup_arrive()
            T.wgmma_gemm(A_s[0, :, :], B_s[0, :, :], left)
            T.ptx_wait_group(0)
            T.wgmma_gemm(A_s[1, :, :], B_s[1, :, :], right)
            T.wait_wgmma(1)
            for i, j in T.Parallel(64, 64):
                left[i, j] = left[i, j] * 1.0
            if cut != "products":
                T.wait_wgmma(0)
        if cut == "products":
            T.warpgroup_wait(0)
        for i, j in T.Parallel(64, 64):
            left[i, j] += right[i, j]
        T.copy(left, C[by * 64, bx * 64])


@tilec.kernel
def stored(
    X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"), threads: T.constexpr = 128
):
    """Tiles leave by TMA, and are written again."""
    with T.Kernel(T.ceildiv(M, 16), threads=threads) as by:
        tile = T.alloc_shared((16, 32), "float32")
        for c in T.serial(T.ceildiv(N, 32)):
            for i, j in T.Parallel(16, 32):
                tile[i, j] = X[by * 16 + i, c * 32 + j] + 1.0
            T.tma_copy(tile, Y[by * 16, c * 32])
            T.tma_store_arrive()
            T.tma_store_wait(0)


@tilec.kernel
def shared_tile(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    BK: T.constexpr = 64,
):
    """All threads bring what two groups multiply by tiles of their own."""
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 64), threads=256) as (bx, by):
        A_s = T.alloc_shared((64, BK), "float16")
        B_l = T.alloc_shared((BK, 64), "float16")
        B_r = T.alloc_shared((BK, 64), "float16")
        left = T.alloc_fragment((64, 64), "float32")
        right = T.alloc_fragment((64, 64), "float32")
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=0):
            T.copy(A[by * 64, k * BK], A_s)
            with T.ws(1):
                T.copy(B[k * BK, bx * 128 + 64], B_r)
                T.gemm(A_s, B_r, right, clear_accum=k == 0)
            with T.ws(0):
                T.copy(B[k * BK, bx * 128], B_l)
                T.gemm(A_s, B_l, left, clear_accum=k == 0)
        with T.ws(0):
            T.copy(left, C[by * 64, bx * 128])
        with T.ws(1):
            T.copy(right, C[by * 64, bx * 128 + 64])


@tilec.kernel
def parts(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    threads: T.constexpr = 128,
):
    """Tiles that come part by part, each counted on a barrier of its own."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=threads) as (bx, by):
        A_s = T.alloc_shared((64, 256), "float16")
        B_s = T.alloc_shared((256, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        bars = T.alloc_barrier([threads] * 4)
        T.clear(acc)
        for k in T.serial(T.ceildiv(K, 256)):
            for j in T.unroll(4):
                at = k * 256 + j * 64
                T.tma_copy(A[by * 64, at], A_s[:, j * 64 : (j + 1) * 64], barrier=bars[j])
                T.tma_copy(B[at, bx * 64], B_s[j * 64 : (j + 1) * 64, :], barrier=bars[j])
                T.barrier_arrive(bars[j])
            for j in T.serial(4):
                T.barrier_wait(bars[j], k)
                T.wgmma_gemm(A_s[:, j * 64 : (j + 1) * 64], B_s[j * 64 : (j + 1) * 64, :], acc)
            T.wait_wgmma(0)
        T.copy(acc, C[by * 64, bx * 64])


@tilec.kernel
def cleared(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    threads: T.constexpr = 128,
):
    """A product whose sum begins anew every other time."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=threads) as (bx, by):
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.fill(acc, 5)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], A_s)
            T.copy(B[k * 32, bx * 64], B_s)
            T.gemm(A_s, B_s, acc, clear_accum=k % 2 == 0)
        T.copy(acc, C[by * 64, bx * 64])
