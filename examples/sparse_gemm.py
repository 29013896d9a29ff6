"""A product whose left matrix is 2:4 sparse: of each four neighbours in a row two are kept, so that
the tensor cores multiply by half of it, and half of it is read.

`tilec.sparse` makes what is kept and says where it belongs; the kernel copies both beside B.
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T
from tilec import sparse

M, N, K, KEPT, WORDS = T.dynamic("M, N, K, KEPT, WORDS")


@tilec.kernel
def sparse_gemm(
    A: T.Tensor((M, KEPT), "float16"),
    E: T.Tensor((M, WORDS), "int16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 128,
    BN: T.constexpr = 128,
    BK: T.constexpr = 64,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
        A_s = T.alloc_shared((BM, BK // 2), "float16")
        E_s = T.alloc_shared((BM, BK // 16), "int16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
            T.copy(A[by * BM, k * (BK // 2)], A_s)
            T.copy(E[by * BM, k * (BK // 16)], E_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm_sp(A_s, E_s, B_s, acc)
        T.copy(acc, C[by * BM, bx * BN])


_SHAPES = ((4096, 4096), (4096, 512), (8192, 4096), (4096, 4096))
_DTYPES = ("float16", "int16", "float16", "float16")
SPECS = [(sparse_gemm, [tilec.spec(s, d) for s, d in zip(_SHAPES, _DTYPES)], {})]


def main(
    shapes: tuple[tuple[int, int, int], ...] = ((256, 128, 512), (100, 72, 160), (1, 1, 16)),
) -> None:
    worst = 0.0
    for m, n, k in shapes:
        a, b = sparse.prune(random((m, k), "float16")), random((k, n), "float16", seed=1)
        values, metadata = sparse.compress(a)
        c = empty((m, n), "float16")
        sparse_gemm(values, metadata, b, c)
        want = float64(a) @ float64(b)
        worst = max(worst, check(f"sparse_gemm ({m}, {n}, {k})", c, want))
        assert np.array_equal(float64(sparse.decompress(values, metadata)), float64(a))
    print(f"sparse_gemm on {WHERE}: largest error {worst:.1e} of the largest number")


if __name__ == "__main__":
    main()
