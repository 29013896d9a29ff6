"""C = (A * scales of A) @ (W * scales of W)^T with float8 operands, as DeepSeek-V3 multiplies them:
A has one scale for each row and 128 columns, W one for each block of 128 x 128.

Products of a block of K stay in float8's own range, so each block is summed by the tensor cores
into `part` and then added to `acc` with its scales. That also keeps the sum exact where the tensor
cores round sums of float8 products to fewer bits than float32 has. A's scales are stored by blocks
of K (`(K / 128, M)`), so that a tile's come in one piece.
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")
BLOCK = 128  # columns of A, and rows and columns of W, that share a scale


@tilec.kernel
def block_scaled_gemm(
    A: T.Tensor((M, K), "float8_e4m3"),
    W: T.Tensor((N, K), "float8_e4m3"),
    A_scales: T.Tensor((T.ceildiv(K, BLOCK), M), "float32"),
    W_scales: T.Tensor((T.ceildiv(N, BLOCK), T.ceildiv(K, BLOCK)), "float32"),
    C: T.Tensor((M, N), "bfloat16"),
    BM: T.constexpr = 64,
    threads: T.constexpr = 256,
):
    with T.Kernel(T.ceildiv(N, BLOCK), T.ceildiv(M, BM), threads=threads) as (bx, by):
        A_s = T.alloc_shared((BM, BLOCK), "float8_e4m3")
        W_s = T.alloc_shared((BLOCK, BLOCK), "float8_e4m3")
        scales = T.alloc_shared((BM,), "float32")
        part = T.alloc_fragment((BM, BLOCK), "float32")
        acc = T.alloc_fragment((BM, BLOCK), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BLOCK), num_stages=3):
            T.copy(A[by * BM, k * BLOCK], A_s)
            T.copy(W[bx * BLOCK, k * BLOCK], W_s)
            T.copy(A_scales[k, by * BM], scales)
            T.gemm(A_s, W_s, part, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(BM, BLOCK):
                acc[i, j] = T.fma(part[i, j], scales[i] * W_scales[bx, k], acc[i, j])
        T.copy(acc, C[by * BM, bx * BLOCK])


def blocks(extent: int) -> int:
    return -(-extent // BLOCK)


def specs(m: int, n: int, k: int) -> list[object]:
    return [
        tilec.spec((m, k), "float8_e4m3"),
        tilec.spec((n, k), "float8_e4m3"),
        tilec.spec((blocks(k), m), "float32"),
        tilec.spec((blocks(n), blocks(k)), "float32"),
        tilec.spec((m, n), "bfloat16"),
    ]


SPECS = [
    (block_scaled_gemm, specs(512, 512, 512), {}),
    (block_scaled_gemm, specs(500, 300, 272), {}),
]


def spread(scales: np.ndarray, rows: int, columns: int, shape: tuple[int, int]) -> np.ndarray:
    """Each scale over the `rows` x `columns` elements that share it."""
    return scales.repeat(rows, 0).repeat(columns, 1)[: shape[0], : shape[1]]


def main() -> None:
    worst = 0.0
    shapes = ((128, 256, 384), (70, 200, 272), (1, 1, 1))
    for m, n, k in shapes:
        a, w = random((m, k), "float8_e4m3", 1), random((n, k), "float8_e4m3", 2)
        a_scales = random((blocks(k), m), "float32", 3)
        w_scales = random((blocks(n), blocks(k)), "float32", 4)
        c = empty((m, n), "bfloat16")
        block_scaled_gemm(a, w, a_scales, w_scales, c)
        left = float64(a) * spread(float64(a_scales).T, 1, BLOCK, (m, k))
        right = float64(w) * spread(float64(w_scales), BLOCK, BLOCK, (n, k))
        worst = max(worst, check(f"{m}x{n}x{k}", c, left @ right.T))
    print(
        f"block_scaled_gemm on {WHERE}: {len(shapes)} products, largest relative error {worst:.1e}"
    )


if __name__ == "__main__":
    main()
