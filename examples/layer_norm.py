"""Layer norm: each row less its mean, divided by its standard deviation, times a weight and plus a
bias for each column.

A whole row lies in the registers of one block, read once and written once: the variance is that of
what was read, less the mean (one that is got from the mean of squares loses its digits where the
mean is large).
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")
EPSILON = 1e-5


@tilec.kernel
def layer_norm(
    X: T.Tensor((M, N), "bfloat16"),
    W: T.Tensor((N,), "bfloat16"),
    B: T.Tensor((N,), "bfloat16"),
    Y: T.Tensor((M, N), "bfloat16"),
    BN: T.constexpr = 4096,
):
    with T.Kernel(M, threads=256) as row:
        x = T.alloc_fragment((1, BN), "float32")
        square = T.alloc_fragment((1, BN), "float32")
        mean, variance = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
        T.copy(X[row, 0], x)
        T.reduce_sum(x, mean, dim=1)
        for i, j in T.Parallel(1, BN):
            x[i, j] = T.if_then_else(j < N, x[i, j] - mean[i] / N, 0.0)
            square[i, j] = x[i, j] * x[i, j]
        T.reduce_sum(square, variance, dim=1)
        for i, j in T.Parallel(1, BN):
            x[i, j] = x[i, j] * T.rsqrt(variance[i] / N + EPSILON) * W[j] + B[j]
        T.copy(x, Y[row, 0])


_ROWS, _COLUMNS = tilec.spec((512, 4096), "bfloat16"), tilec.spec((4096,), "bfloat16")
SPECS = [(layer_norm, [_ROWS, _COLUMNS, _COLUMNS, _ROWS], {})]


def main(shapes: tuple[tuple[int, int], ...] = ((64, 4096), (7, 1), (33, 1000))) -> None:
    worst = 0.0
    for m, n in shapes:
        x, y = random((m, n), "bfloat16"), empty((m, n), "bfloat16")
        w, b = random((n,), "bfloat16", 1), random((n,), "bfloat16", 2)
        layer_norm(x, w, b, y)
        rows = float64(x) - float64(x).mean(1, keepdims=True)
        deviation = np.sqrt((rows**2).mean(1, keepdims=True) + EPSILON)
        want = rows / deviation * float64(w) + float64(b)
        worst = max(worst, check(f"layer_norm ({m}, {n})", y, want))
    print(f"layer_norm on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
