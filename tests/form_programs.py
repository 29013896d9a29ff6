"""Forms of matrix products, as their users would write them: functions of options that give a
kernel's function."""

from collections.abc import Callable
from typing import Any

import tilec.language as T

M, N, K, B, G = T.dynamic("M, N, K, B, G")
Kernel = Callable[..., Any]


def product(ta: bool, tb: bool, dtype: str = "float16", out: str = "float16") -> Kernel:
    """C = A @ B; A is stored as (K, M) if `ta`, B as (N, K) if `tb`."""
    a_shape, b_shape = ((K, M) if ta else (M, K)), ((N, K) if tb else (K, N))

    def matmul(
        A: T.Tensor(a_shape, dtype),
        B: T.Tensor(b_shape, dtype),
        C: T.Tensor((M, N), out),
        BM: T.constexpr = 64,
        BN: T.constexpr = 64,
        BK: T.constexpr = 32,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            A_s = T.alloc_shared((BK, BM) if ta else (BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK) if tb else (BK, BN), dtype)
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
                if ta:
                    T.copy(A[k * BK, by * BM], A_s)
                else:
                    T.copy(A[by * BM, k * BK], A_s)
                if tb:
                    T.copy(B[bx * BN, k * BK], B_s)
                else:
                    T.copy(B[k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, acc, transpose_A=ta, transpose_B=tb)
            T.copy(acc, C[by * BM, bx * BN])

    return matmul


def batched(
    A: T.Tensor((B, M, K), "float16"),
    W: T.Tensor((B, K, N), "float16"),
    C: T.Tensor((B, M, N), "float16"),
):
    """One product per entry of a batch, along the grid's third dimension."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), B, threads=128) as (bx, by, b):
        A_s = T.alloc_shared((64, 32), "float16")
        W_s = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[b, by * 64, k * 32], A_s)
            T.copy(W[b, k * 32, bx * 64], W_s)
            T.gemm(A_s, W_s, acc)
        T.copy(acc, C[b, by * 64, bx * 64])


def batched_one_weight(
    A: T.Tensor((B, M, K), "float16"),
    W: T.Tensor((N, K), "float16"),
    bias: T.Tensor((N,), "float32"),
    C: T.Tensor((B, M, N), "float32"),
):
    """A batch of A, one W (N x K) and one bias for all of it."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), B, threads=128) as (bx, by, b):
        A_s = T.alloc_shared((64, 32), "float16")
        W_s = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[b, by * 64, k * 32], A_s)
            T.copy(W[bx * 64, k * 32], W_s)
            T.gemm(A_s, W_s, acc, transpose_B=True)
        for i, j in T.Parallel(64, 64):
            acc[i, j] += bias[bx * 64 + j]
        T.copy(acc, C[b, by * 64, bx * 64])


def grouped(transposed: bool, dtype: str = "float16", persistent: bool = True) -> Kernel:
    """C[offsets[g]:offsets[g + 1]] = A[offsets[g]:offsets[g + 1]] @ B[g]; B is (G, N, K) if
    `transposed`. Each block walks over tiles and takes its group along with it; or, not
    `persistent`, each tile searches its group."""
    b_shape = (G, N, K) if transposed else (G, K, N)

    def walking(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor(b_shape, dtype),
        offsets: T.Tensor((G + 1,), "int32"),
        C: T.Tensor((M, N), dtype),
        BM: T.constexpr = 64,
        BN: T.constexpr = 64,
        BK: T.constexpr = 32,
        blocks: T.constexpr = 3,
    ):
        with T.Kernel(blocks, threads=128) as block:
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK) if transposed else (BK, BN), dtype)
            acc = T.alloc_fragment((BM, BN), "float32")
            across = T.ceildiv(N, BN)
            g = 0  # the group of the tile
            before = 0  # tiles of the groups before it
            for tile in T.Persistent([(T.ceildiv(M, BM) + G) * across], blocks, block):
                while (
                    g < G and tile >= before + T.ceildiv(offsets[g + 1] - offsets[g], BM) * across
                ):
                    before += T.ceildiv(offsets[g + 1] - offsets[g], BM) * across
                    g += 1
                if g < G:
                    first, end = offsets[g], offsets[g + 1]
                    down = T.ceildiv(end - first, BM)
                    row = first + (tile - before) % down * BM
                    column = (tile - before) // down * BN
                    T.clear(acc)
                    for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
                        T.copy(A[row, k * BK], A_s)
                        if transposed:
                            T.copy(B[g, column, k * BK], B_s)
                        else:
                            T.copy(B[g, k * BK, column], B_s)
                        T.gemm(A_s, B_s, acc, transpose_B=transposed)
                    for i, j in T.Parallel(BM, BN):
                        if row + i < end:
                            C[row + i, column + j] = acc[i, j]

    def searching(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor(b_shape, dtype),
        offsets: T.Tensor((G + 1,), "int32"),
        C: T.Tensor((M, N), dtype),
        BM: T.constexpr = 64,
        BN: T.constexpr = 64,
        BK: T.constexpr = 32,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM) + G, threads=128) as (bx, by):
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK) if transposed else (BK, BN), dtype)
            acc = T.alloc_fragment((BM, BN), "float32")
            tile = by
            group = -1
            for g in range(G):
                tiles = T.ceildiv(offsets[g + 1] - offsets[g], BM)
                if tile < tiles:
                    group = g
                    break
                tile -= tiles
            if group >= 0:
                row = offsets[group] + tile * BM
                T.clear(acc)
                for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
                    T.copy(A[row, k * BK], A_s)
                    if transposed:
                        T.copy(B[group, bx * BN, k * BK], B_s)
                    else:
                        T.copy(B[group, k * BK, bx * BN], B_s)
                    T.gemm(A_s, B_s, acc, transpose_B=transposed)
                for i, j in T.Parallel(BM, BN):
                    if row + i < offsets[group + 1]:
                        C[row + i, bx * BN + j] = acc[i, j]

    return walking if persistent else searching


def block_scaled(sa_by_columns: bool, dtype: str = "float8_e4m3") -> Kernel:
    """C = sum over blocks kb of 128 of K: (A @ W.T over the block) * SA[i, kb] * SW[j // 128, kb],
    in two accumulators, as DeepSeek-V3 trains. SA is (K blocks, M) if `sa_by_columns`."""
    sa_shape = (T.ceildiv(K, 128), M) if sa_by_columns else (M, T.ceildiv(K, 128))

    def scaled(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K), dtype),
        SA: T.Tensor(sa_shape, "float32"),
        SW: T.Tensor((T.ceildiv(N, 128), T.ceildiv(K, 128)), "float32"),
        C: T.Tensor((M, N), "bfloat16"),
        BM: T.constexpr = 64,
        BN: T.constexpr = 128,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            A_s = T.alloc_shared((BM, 128), dtype)
            W_s = T.alloc_shared((BN, 128), dtype)
            scale = T.alloc_shared((BM,), "float32")
            part = T.alloc_fragment((BM, BN), "float32")
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 128), num_stages=2):
                T.copy(A[by * BM, k * 128], A_s)
                T.copy(W[bx * BN, k * 128], W_s)
                if sa_by_columns:
                    T.copy(SA[k, by * BM], scale)
                else:
                    for i in T.Parallel(BM):
                        scale[i] = SA[by * BM + i, k]
                T.gemm(A_s, W_s, part, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(BM, BN):
                    acc[i, j] = T.fma(part[i, j], scale[i] * SW[bx * BN // 128, k], acc[i, j])
            T.copy(acc, C[by * BM, bx * BN])

    return scaled


def tensor_row_column_scaled(dtype: str = "float8_e4m3") -> Kernel:
    """C = (A @ W.T) * alpha[0] * rows[i] * columns[j]: scales per tensor, row and column."""

    def scaled(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K), dtype),
        alpha: T.Tensor((1,), "float32"),
        rows: T.Tensor((M,), "float32"),
        columns: T.Tensor((N,), "float32"),
        C: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            A_s = T.alloc_shared((64, 64), dtype)
            W_s = T.alloc_shared((64, 64), dtype)
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
                T.copy(A[by * 64, k * 64], A_s)
                T.copy(W[bx * 64, k * 64], W_s)
                T.gemm(A_s, W_s, acc, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                acc[i, j] *= alpha[0] * rows[by * 64 + i] * columns[bx * 64 + j]
            T.copy(acc, C[by * 64, bx * 64])

    return scaled


def grouped_with_break(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((G, K, N), "float16"),
    offsets: T.Tensor((G + 1,), "int32"),
    C: T.Tensor((M, N), "float16"),
    blocks: T.constexpr = 3,
):
    """Groups until there is none left."""
    with T.Kernel(blocks, threads=128) as block:
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        across = T.ceildiv(N, 64)
        g = 0
        before = 0
        for tile in T.Persistent([(T.ceildiv(M, 64) + G) * across], blocks, block):
            while g < G and tile >= before + T.ceildiv(offsets[g + 1] - offsets[g], 64) * across:
                before += T.ceildiv(offsets[g + 1] - offsets[g], 64) * across
                g += 1
            if g >= G:
                break
            first, end = offsets[g], offsets[g + 1]
            down = T.ceildiv(end - first, 64)
            row = first + (tile - before) % down * 64
            column = (tile - before) // down * 64
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                T.copy(A[row, k * 32], A_s)
                T.copy(B[g, k * 32, column], B_s)
                T.gemm(A_s, B_s, acc)
            for i, j in T.Parallel(64, 64):
                if row + i < end:
                    C[row + i, column + j] = acc[i, j]


def grouped_in_while(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((G, K, N), "float16"),
    offsets: T.Tensor((G + 1,), "int32"),
    C: T.Tensor((M, N), "float16"),
    blocks: T.constexpr = 3,
):
    """Groups in a `while`, the place in variables."""
    with T.Kernel(blocks, threads=128) as block:
        A_s = T.alloc_shared((64, 32), "float16")
        B_s = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        g = T.alloc_var("int32")
        tile = T.alloc_var("int32")
        across = T.ceildiv(N, 64)
        g[0] = 0
        tile[0] = block
        while g[0] < G:
            tiles = T.ceildiv(offsets[g[0] + 1] - offsets[g[0]], 64) * across
            if tile[0] >= tiles:
                tile[0] = tile[0] - tiles
                g[0] = g[0] + 1
            else:
                end = offsets[g[0] + 1]
                row = offsets[g[0]] + tile[0] // across * 64
                column = tile[0] % across * 64
                T.clear(acc)
                for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                    T.copy(A[row, k * 32], A_s)
                    T.copy(B[g[0], k * 32, column], B_s)
                    T.gemm(A_s, B_s, acc)
                for i, j in T.Parallel(64, 64):
                    if row + i < end:
                        C[row + i, column + j] = acc[i, j]
                tile[0] = tile[0] + blocks


def gathered(
    A: T.Tensor((M, K), "float16"),
    index: T.Tensor((B,), "int32"),
    expert: T.Tensor((T.ceildiv(B, 64),), "int32"),
    W: T.Tensor((G, N, K), "float16"),
    C: T.Tensor((M, N), "float16"),
):
    """A mixture of experts' layer: rows of A in the order of `index`, 64 of them to an expert; the
    results go back to where the rows came from. A negative index is no row."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(B, 64), threads=128) as (bx, by):
        A_s = T.alloc_shared((64, 32), "float16")
        W_s = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            for i, j in T.Parallel(64, 32):
                A_s[i, j] = A[index[by * 64 + i], k * 32 + j]
            T.copy(W[expert[by], bx * 64, k * 32], W_s)
            T.gemm(A_s, W_s, acc, transpose_B=True)
        for i, j in T.Parallel(64, 64):
            if by * 64 + i < B:
                C[index[by * 64 + i], bx * 64 + j] = acc[i, j]
