"""The tilec kernels that are measured: plain sequential source, one factory per form.

Tile sizes, threads, stages and schedule are left to tilec; only `scheduled` says them.
"""

# mypy: ignore-errors
# (kernels: their annotations and arithmetic are not Python's)
from __future__ import annotations

import functools
from typing import Any

import tilec
import tilec.language as T

M, N, K, G = T.dynamic("M, N, K, G")

# dtype of the operands -> (dtype of shared tiles, of the accumulator, of the result)
DTYPES = {
    "float16": ("float32", "float16"),
    "bfloat16": ("float32", "bfloat16"),
    "float8_e4m3": ("float32", "bfloat16"),
    "int8": ("int32", "int32"),
    "float32": ("float32", "float32"),
}


@functools.cache
def product(dtype: str, ta: bool = False, tb: bool = False) -> Any:
    """C = A B; A is stored as (K, M) if `ta`, B as (N, K) if `tb`. float32 operands are rounded to
    TF32."""
    accumulate, result = DTYPES[dtype]
    a_shape, b_shape = ((K, M) if ta else (M, K)), ((N, K) if tb else (K, N))
    tf32 = dtype == "float32"

    @tilec.kernel
    def matmul(
        A: T.Tensor(a_shape, dtype),
        B: T.Tensor(b_shape, dtype),
        C: T.Tensor((M, N), result),
        BM: T.constexpr = T.auto,
        BN: T.constexpr = T.auto,
        BK: T.constexpr = T.auto,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
            A_s = T.alloc_shared((BK, BM) if ta else (BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK) if tb else (BK, BN), dtype)
            acc = T.alloc_fragment((BM, BN), accumulate)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK)):
                if ta:
                    T.copy(A[k * BK, by * BM], A_s)
                else:
                    T.copy(A[by * BM, k * BK], A_s)
                if tb:
                    T.copy(B[bx * BN, k * BK], B_s)
                else:
                    T.copy(B[k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, acc, transpose_A=ta, transpose_B=tb, allow_tf32=tf32)
            T.copy(acc, C[by * BM, bx * BN])

    return matmul


@tilec.macro
def activate(x, activation):
    if activation == "relu":
        x = T.max(x, 0.0)
    elif activation == "gelu":
        x = 0.5 * x * (1.0 + T.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
    return x


@functools.cache
def linear(dtype: str, activation: str) -> Any:
    """C = activation(A Bᵀ + bias), as torch.nn.Linear stores B; GELU in its tanh form."""

    @tilec.kernel
    def linear_layer(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K), dtype),
        bias: T.Tensor((N,), dtype),
        C: T.Tensor((M, N), dtype),
        BM: T.constexpr = T.auto,
        BN: T.constexpr = T.auto,
        BK: T.constexpr = T.auto,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK), dtype)
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK)):
                T.copy(A[by * BM, k * BK], A_s)
                T.copy(B[bx * BN, k * BK], B_s)
                T.gemm(A_s, B_s, acc, transpose_B=True)
            for i, j in T.Parallel(BM, BN):
                acc[i, j] = activate(acc[i, j] + bias[bx * BN + j], activation)
            T.copy(acc, C[by * BM, bx * BN])

    return linear_layer


@functools.cache
def residual(dtype: str) -> Any:
    """C = A Bᵀ + R."""

    @tilec.kernel
    def linear_residual(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K), dtype),
        R: T.Tensor((M, N), dtype),
        C: T.Tensor((M, N), dtype),
        BM: T.constexpr = T.auto,
        BN: T.constexpr = T.auto,
        BK: T.constexpr = T.auto,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK), dtype)
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK)):
                T.copy(A[by * BM, k * BK], A_s)
                T.copy(B[bx * BN, k * BK], B_s)
                T.gemm(A_s, B_s, acc, transpose_B=True)
            for i, j in T.Parallel(BM, BN):
                acc[i, j] += R[by * BM + i, bx * BN + j]
            T.copy(acc, C[by * BM, bx * BN])

    return linear_residual


@functools.cache
def swiglu(dtype: str) -> Any:
    """C = silu(A Gᵀ) * (A Uᵀ): the gated half of a feed-forward layer."""

    @tilec.kernel
    def gated(
        A: T.Tensor((M, K), dtype),
        gate: T.Tensor((N, K), dtype),
        up: T.Tensor((N, K), dtype),
        C: T.Tensor((M, N), dtype),
        BM: T.constexpr = T.auto,
        BN: T.constexpr = T.auto,
        BK: T.constexpr = T.auto,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
            A_s = T.alloc_shared((BM, BK), dtype)
            G_s = T.alloc_shared((BN, BK), dtype)
            U_s = T.alloc_shared((BN, BK), dtype)
            g = T.alloc_fragment((BM, BN), "float32")
            u = T.alloc_fragment((BM, BN), "float32")
            T.clear(g)
            T.clear(u)
            for k in T.Pipelined(T.ceildiv(K, BK)):
                T.copy(A[by * BM, k * BK], A_s)
                T.copy(gate[bx * BN, k * BK], G_s)
                T.copy(up[bx * BN, k * BK], U_s)
                T.gemm(A_s, G_s, g, transpose_B=True)
                T.gemm(A_s, U_s, u, transpose_B=True)
            for i, j in T.Parallel(BM, BN):
                g[i, j] = g[i, j] / (1.0 + T.exp(-g[i, j])) * u[i, j]
            T.copy(g, C[by * BM, bx * BN])

    return gated


@functools.cache
def batched(dtype: str) -> Any:
    """C[g] = A[g] B[g] for every g."""

    @tilec.kernel
    def bmm(
        A: T.Tensor((G, M, K), dtype),
        B: T.Tensor((G, K, N), dtype),
        C: T.Tensor((G, M, N), dtype),
        BM: T.constexpr = T.auto,
        BN: T.constexpr = T.auto,
        BK: T.constexpr = T.auto,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), G) as (bx, by, g):
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BK, BN), dtype)
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK)):
                T.copy(A[g, by * BM, k * BK], A_s)
                T.copy(B[g, k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, acc)
            T.copy(acc, C[g, by * BM, bx * BN])

    return bmm


@functools.cache
def grouped(dtype: str) -> Any:
    """C[offsets[g]:offsets[g + 1]] = A[offsets[g]:offsets[g + 1]] B[g]ᵀ for every g, the offsets
    on the device; as many blocks as `blocks` walk over the tiles of all groups, in order."""

    @tilec.kernel
    def grouped_matmul(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((G, N, K), dtype),
        offsets: T.Tensor((G + 1,), "int32"),
        C: T.Tensor((M, N), dtype),
        blocks: T.constexpr = 132,
        BM: T.constexpr = T.auto,
        BN: T.constexpr = T.auto,
        BK: T.constexpr = T.auto,
    ):
        with T.Kernel(blocks) as block:
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK), dtype)
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
                    for k in T.Pipelined(T.ceildiv(K, BK)):
                        T.copy(A[row, k * BK], A_s)
                        T.copy(B[g, column, k * BK], B_s)
                        T.gemm(A_s, B_s, acc, transpose_B=True)
                    for i, j in T.Parallel(BM, BN):
                        if row + i < end:
                            C[row + i, column + j] = acc[i, j]

    return grouped_matmul


@functools.cache
def scheduled(dtype: str, tb: bool, schedule: tuple[tuple[str, Any], ...], threads: int) -> Any:
    """`product` of A (M, K) with the keywords of T.annotate_schedule fixed."""
    b_shape = (N, K) if tb else (K, N)
    wish = dict(schedule)
    persistent, specialise = wish.get("persistent"), wish.get("specialise")
    consumers, cluster, split = wish.get("consumers"), wish.get("cluster"), wish.get("split")
    raster_group, store = wish.get("raster_group"), wish.get("store")

    @tilec.kernel
    def scheduled_matmul(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor(b_shape, dtype),
        C: T.Tensor((M, N), dtype),
        BM: T.constexpr = 128,
        BN: T.constexpr = 256,
        BK: T.constexpr = 64,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
            T.annotate_schedule(
                persistent=persistent,
                specialise=specialise,
                consumers=consumers,
                cluster=cluster,
                split=split,
                raster_group=raster_group,
                store=store,
            )
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK) if tb else (BK, BN), dtype)
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK)):
                T.copy(A[by * BM, k * BK], A_s)
                if tb:
                    T.copy(B[bx * BN, k * BK], B_s)
                else:
                    T.copy(B[k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, acc, transpose_B=tb)
            T.copy(acc, C[by * BM, bx * BN])

    return scheduled_matmul


@functools.cache
def added(dtype: str) -> Any:
    """C = A + B, element by element."""

    @tilec.kernel
    def sums(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 32), threads=256) as (bx, by):
            for i, j in T.Parallel(32, 128):
                y, x = by * 32 + i, bx * 128 + j
                C[y, x] = A[y, x] + B[y, x]

    return sums


@functools.cache
def gated(dtype: str) -> Any:
    """C = silu(A) B, element by element."""

    @tilec.kernel
    def gates(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 32), threads=256) as (bx, by):
            for i, j in T.Parallel(32, 128):
                y, x = by * 32 + i, bx * 128 + j
                a = T.cast(A[y, x], "float32")
                C[y, x] = a / (1.0 + T.exp(-a)) * T.cast(B[y, x], "float32")

    return gates


@functools.cache
def summed(dtype: str) -> Any:
    """S = the sums of A's rows: of every 1024th element first, of every 16th of these, then of
    those."""

    @tilec.kernel
    def row_sums(A: T.Tensor((M, N), dtype), S: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, 2), threads=256) as by:
            part = T.alloc_fragment((2, 1024), "float32")
            T.clear(part)
            for k in T.serial(T.ceildiv(N, 1024)):
                for i, j in T.Parallel(2, 1024):
                    part[i, j] += A[by * 2 + i, k * 1024 + j]
            parts = T.alloc_shared((2, 1024), "float32")
            T.copy(part, parts)
            few = T.alloc_fragment((2, 16), "float32")
            T.clear(few)
            for i, j in T.Parallel(2, 16):
                for q in T.serial(64):
                    few[i, j] += parts[i, q * 16 + j]
            last = T.alloc_shared((2, 16), "float32")
            T.copy(few, last)
            total = T.alloc_fragment((2,), "float32")
            T.clear(total)
            for i in T.Parallel(2):
                for j in T.serial(16):
                    total[i] += last[i, j]
            T.copy(total, S[by * 2])

    return row_sums


@functools.cache
def copied(dtype: str) -> Any:
    """B = A."""

    @tilec.kernel
    def copies(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 32), threads=256) as (bx, by):
            for i, j in T.Parallel(32, 128):
                B[by * 32 + i, bx * 128 + j] = A[by * 32 + i, bx * 128 + j]

    return copies


@functools.cache
def transposed(dtype: str, down: int = 64, across: int = 128, threads: int = 512) -> Any:
    """B = A^T, by tiles of `down` x `across` that lie in shared memory in between. Neighbouring
    blocks have tiles below one another: a tile's rows in B are short (`down`), and together the
    blocks that run at a time write B's rows on, which costs more if torn than what they read."""

    @tilec.kernel
    def transposes(A: T.Tensor((M, N), dtype), B: T.Tensor((N, M), dtype)):
        with T.Kernel(T.ceildiv(M, down), T.ceildiv(N, across), threads=threads) as (by, bx):
            tile = T.alloc_shared((down, across), dtype)
            T.copy(A[by * down, bx * across], tile)
            for i, j in T.Parallel(across, down):
                B[bx * across + i, by * down + j] = tile[j, i]

    return transposes


@functools.cache
def total(dtype: str, blocks: int = 1056, width: int = 4096) -> Any:
    """S = the sum of all of A: `blocks` walk over it, `width` elements at a time, each of which has
    a sum of its own; then each block adds one number to S, by an atomic."""

    @tilec.kernel
    def tensor_sum(A: T.Tensor((N,), dtype), S: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            T.clear(S)
        with T.Kernel(T.min(T.ceildiv(N, width), blocks), threads=256) as block:
            x = T.alloc_fragment((width,), dtype)
            sums = T.alloc_fragment((width,), "float32")
            sum = T.alloc_fragment((1,), "float32")
            T.clear(sums)
            for n in T.serial(T.ceildiv(T.ceildiv(N, width) - block, blocks)):
                T.copy(A[(n * blocks + block) * width], x)
                for i in T.Parallel(width):
                    sums[i] += x[i]
            T.reduce_sum(sums, sum)
            T.atomic_add(S[0], sum)

    return tensor_sum


@functools.cache
def reduced(dtype: str, columns: int, threads: int = 256) -> Any:
    """S = the sums of A's rows of `columns` elements, a block for each, by `T.reduce_sum`."""

    @tilec.kernel
    def reduced_rows(A: T.Tensor((M, columns), dtype), S: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as row:
            x = T.alloc_fragment((1, columns), dtype)
            total = T.alloc_fragment((1,), "float32")
            T.copy(A[row, 0], x)
            T.reduce_sum(x, total, dim=1)
            T.copy(total, S[row])

    return reduced_rows


@functools.cache
def shuffled(dtype: str, columns: int, threads: int = 256) -> Any:
    """The same, by what each thread does: it adds up its vectors of 16 bytes, lanes exchange by
    shuffles, warps through shared memory."""
    each = 128 // tilec.language.dtype(dtype).bits
    step = threads * each
    warps = threads // 32

    @tilec.kernel
    def shuffled_rows(A: T.Tensor((M, columns), dtype), S: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as row:
            tx = T.get_thread_binding()
            v = T.alloc_local((columns // step, each), dtype)
            parts = T.alloc_shared((warps,), "float32")
            for k in T.unroll(columns // step):
                T.copy(A[row, k * step + tx * each], v[k, 0:each])
            sum: T.float32 = 0
            for k in T.unroll(columns // step):
                for e in T.unroll(each):
                    sum += T.cast(v[k, e], "float32")
            for step_of in (16, 8, 4, 2, 1):
                sum += T.shfl_xor(sum, step_of)
            if T.get_lane_idx() == 0:
                parts[T.get_warp_idx()] = sum
            T.sync_threads()
            if tx == 0:
                whole: T.float32 = 0
                for w in T.unroll(warps):
                    whole += parts[w]
                S[row] = whole

    return shuffled_rows
