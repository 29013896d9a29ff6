"""y = A x: a matrix times a vector. The matrix is read once, a few rows by each block, 16 bytes by
each thread; products are added up in registers, and across threads once, at the end.
"""

from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")


@tilec.kernel
def gemv(
    A: T.Tensor((M, N), "float16"),
    X: T.Tensor((N,), "float16"),
    Y: T.Tensor((M,), "float32"),
    BM: T.constexpr = 4,
    BN: T.constexpr = 1024,
):
    with T.Kernel(T.ceildiv(M, BM), threads=128) as block:
        a = T.alloc_fragment((BM, BN), "float16")
        x = T.alloc_fragment((BN,), "float16")
        products = T.alloc_fragment((BM, BN), "float32")
        y = T.alloc_fragment((BM,), "float32")
        T.clear(products)
        for n in T.serial(T.ceildiv(N, BN)):
            T.copy(A[block * BM, n * BN], a)
            T.copy(X[n * BN], x)
            for i, j in T.Parallel(BM, BN):
                products[i, j] += T.cast(a[i, j], "float32") * x[j]
        T.reduce_sum(products, y, dim=1)
        T.copy(y, Y[block * BM])


_OPERANDS = [tilec.spec((4096, 4096), "float16"), tilec.spec((4096,), "float16")]
SPECS = [(gemv, [*_OPERANDS, tilec.spec((4096,), "float32")], {})]


def main(shapes: tuple[tuple[int, int], ...] = ((512, 2048), (1, 1), (33, 1001))) -> None:
    worst = 0.0
    for m, n in shapes:
        a, x, y = random((m, n), "float16"), random((n,), "float16", 1), empty((m,), "float32")
        gemv(a, x, y)
        worst = max(worst, check(f"gemv ({m}, {n})", y, float64(a) @ float64(x)))
    print(f"gemv on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
