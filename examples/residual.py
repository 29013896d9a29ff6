"""C = D + row[i] * column[j] * (A @ B): a product with a scale for each row and column, added to a
residual.

The loop over the tile is element by element; the tile of D comes in, and that of C leaves, 16 bytes
at a time or through TMA, whatever layout the product's result has in registers.
"""

from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def scaled_residual(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    row: T.Tensor((M,), "float32"),
    column: T.Tensor((N,), "float32"),
    D: T.Tensor((M, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 64,
    BN: T.constexpr = 64,
    BK: T.constexpr = 32,
    threads: T.constexpr = 128,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc)
        for i, j in T.Parallel(BM, BN):
            y, x = by * BM + i, bx * BN + j
            C[y, x] = D[y, x] + acc[i, j] * row[y] * column[x]


def specs(m: int, n: int, k: int) -> list[object]:
    half, single = "float16", "float32"
    parts = ((m, k), half), ((k, n), half), ((m,), single), ((n,), single), ((m, n), half)
    return [tilec.spec(shape, dtype) for shape, dtype in (*parts, parts[-1])]


LARGE = {"BM": 128, "BN": 128, "BK": 64, "threads": 256}
SPECS = [(scaled_residual, specs(512, 384, 256), meta) for meta in ({}, {**LARGE, "BK": 32})]


def main(shapes: tuple[tuple[int, int, int], ...] = ((128, 128, 64), (75, 200, 40))) -> None:
    worst = 0.0
    for m, n, k in shapes:
        a, b = random((m, k), "float16", 1), random((k, n), "float16", 2)
        row, column = random((m,), "float32", 3), random((n,), "float32", 4)
        d, c = random((m, n), "float16", 5), empty((m, n), "float16")
        scaled_residual(a, b, row, column, d, c)
        product = float64(a) @ float64(b)
        want = float64(d) + product * float64(row)[:, None] * float64(column)
        worst = max(worst, check(f"residual ({m}, {n}, {k})", c, want))
    print(f"residual on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
