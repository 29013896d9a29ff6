"""Running sums along rows of any length: chunk after chunk, what one adds up to is carried into the
next. Each element is read once and written once.
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")


@tilec.kernel
def row_cumsum(
    X: T.Tensor((M, N), "float32"),
    Y: T.Tensor((M, N), "float32"),
    BM: T.constexpr = 1,
    BN: T.constexpr = 1024,
):
    with T.Kernel(T.ceildiv(M, BM), threads=128) as block:
        x = T.alloc_fragment((BM, BN), "float32")
        total, carry = T.alloc_fragment((BM,), "float32"), T.alloc_fragment((BM,), "float32")
        T.clear(carry)
        for n in T.serial(T.ceildiv(N, BN)):
            T.copy(X[block * BM, n * BN], x)
            T.reduce_sum(x, total, dim=1)
            T.cumsum(x, dim=1)
            for i, j in T.Parallel(BM, BN):
                x[i, j] = x[i, j] + carry[i]
            T.copy(x, Y[block * BM, n * BN])
            for i in T.Parallel(BM):
                carry[i] = carry[i] + total[i]


SPECS = [(row_cumsum, [tilec.spec((512, 8192), "float32")] * 2, {})]


def main(shapes: tuple[tuple[int, int], ...] = ((64, 4096), (7, 1), (33, 5001))) -> None:
    worst = 0.0
    for m, n in shapes:
        x, y = random((m, n), "float32"), empty((m, n), "float32")
        row_cumsum(x, y)
        worst = max(worst, check(f"row_cumsum ({m}, {n})", y, np.cumsum(float64(x), axis=1)))
    print(f"row_cumsum on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
