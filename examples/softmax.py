"""Softmax of long rows in one pass over memory: a running maximum, and a sum that follows it.

A row that fits in registers is read once; longer ones are read again to write the result.
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")


@tilec.kernel
def softmax(
    X: T.Tensor((M, N), "float16"),
    Y: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 4,
    BN: T.constexpr = 1024,
):
    with T.Kernel(T.ceildiv(M, BM), threads=128) as block:
        T.annotate_safe_value({X: -T.infinity("float16")})
        x = T.alloc_fragment((BM, BN), "float32")
        high, before = T.alloc_fragment((BM,), "float32"), T.alloc_fragment((BM,), "float32")
        total, more = T.alloc_fragment((BM,), "float32"), T.alloc_fragment((BM,), "float32")
        T.fill(high, T.min_value("float32"))
        T.clear(total)
        for n in T.serial(T.ceildiv(N, BN)):
            T.copy(X[block * BM, n * BN], x)
            T.copy(high, before)
            T.reduce_max(x, high, dim=1, clear=False)
            for i, j in T.Parallel(BM, BN):
                x[i, j] = T.exp(x[i, j] - high[i])
            T.reduce_sum(x, more, dim=1)
            for i in T.Parallel(BM):
                total[i] = total[i] * T.exp(before[i] - high[i]) + more[i]
        for n in T.serial(T.ceildiv(N, BN)):
            T.copy(X[block * BM, n * BN], x)
            for i, j in T.Parallel(BM, BN):
                x[i, j] = T.exp(x[i, j] - high[i]) / total[i]
            T.copy(x, Y[block * BM, n * BN])


SPECS = [(softmax, [tilec.spec((512, 4096), "float16")] * 2, {})]


def main(shapes: tuple[tuple[int, int], ...] = ((64, 512), (5, 1), (33, 4097))) -> None:
    worst = 0.0
    for m, n in shapes:
        x, y = random((m, n), "float16"), empty((m, n), "float16")
        softmax(x, y)
        e = np.exp(float64(x) - float64(x).max(1, keepdims=True))
        worst = max(worst, check(f"softmax ({m}, {n})", y, e / e.sum(1, keepdims=True)))
    print(f"softmax on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
