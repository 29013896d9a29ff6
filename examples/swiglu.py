"""C = silu(A @ G) * (A @ U): the gated half of a transformer's feed-forward layer in one kernel.

Each tile of A is loaded once and multiplied with a tile of both weights; the two results meet in
registers.
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def swiglu(
    A: T.Tensor((M, K), "float16"),
    G: T.Tensor((K, N), "float16"),
    U: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 64,
    BN: T.constexpr = 64,
    BK: T.constexpr = 32,
    threads: T.constexpr = 128,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        G_s = T.alloc_shared((BK, BN), "float16")
        U_s = T.alloc_shared((BK, BN), "float16")
        gate = T.alloc_fragment((BM, BN), "float32")
        up = T.alloc_fragment((BM, BN), "float32")
        T.clear(gate)
        T.clear(up)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(G[k * BK, bx * BN], G_s)
            T.copy(U[k * BK, bx * BN], U_s)
            T.gemm(A_s, G_s, gate)
            T.gemm(A_s, U_s, up)
        for i, j in T.Parallel(BM, BN):
            g = gate[i, j]
            C[by * BM + i, bx * BN + j] = g / (1.0 + T.exp(-g)) * up[i, j]


LARGE = {"BM": 128, "BN": 128, "BK": 64, "threads": 256}
SPECS = [
    (swiglu, [tilec.spec(s, "float16") for s in ((512, 256), (256, 384), (256, 384), (512, 384))],
     meta)
    for meta in ({}, {**LARGE, "BK": 32})
]  # fmt: skip


def main(shapes: tuple[tuple[int, int, int], ...] = ((128, 128, 64), (75, 200, 40))) -> None:
    worst = 0.0
    for m, n, k in shapes:
        a = random((m, k), "float16", 1)
        gate, up = random((k, n), "float16", 2), random((k, n), "float16", 3)
        c = empty((m, n), "float16")
        swiglu(a, gate, up, c)
        g = float64(a) @ float64(gate)
        want = g / (1 + np.exp(-g)) * (float64(a) @ float64(up))
        worst = max(worst, check(f"swiglu ({m}, {n}, {k})", c, want))
    print(f"swiglu on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
