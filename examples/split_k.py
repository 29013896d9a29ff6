"""C += A @ B with few tiles of C and a long K: several blocks share one tile of C, each has a part
of K, and adds its sum to C by atomics.

So all multiprocessors have work. The order of the additions is not fixed: results may differ in
their last bits from run to run. C is zero before.
"""

from example_support import WHERE, check, float64, random, zeros

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def split_k(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    SPLITS: T.constexpr = 8,
    BM: T.constexpr = 64,
    BN: T.constexpr = 64,
    BK: T.constexpr = 64,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), SPLITS, threads=128) as (bx, by, part):
        a = T.alloc_shared((BM, BK), "float16")
        b = T.alloc_shared((BK, BN), "float16")
        c = T.alloc_fragment((BM, BN), "float32")
        T.clear(c)
        steps = T.ceildiv(T.ceildiv(K, BK), SPLITS)
        for k in T.Pipelined(steps, num_stages=3):
            T.copy(A[by * BM, (part * steps + k) * BK], a)
            T.copy(B[(part * steps + k) * BK, bx * BN], b)
            T.gemm(a, b, c)
        T.atomic_add(C[by * BM, bx * BN], c)


def _specs(m: int, n: int, k: int) -> list:
    return [tilec.spec(s, "float16") for s in ((m, k), (k, n))] + [tilec.spec((m, n), "float32")]


SPECS = [(split_k, _specs(128, 512, 16384), {})]


def main(shapes: tuple[tuple[int, ...], ...] = ((64, 128, 4096), (1, 1, 1), (33, 65, 999))) -> None:
    worst = 0.0
    for m, n, k in shapes:
        a, b, c = random((m, k), "float16"), random((k, n), "float16", 1), zeros((m, n), "float32")
        split_k(a, b, c)
        worst = max(worst, check(f"split_k ({m}, {n}, {k})", c, float64(a) @ float64(b)))
    print(f"split_k on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
