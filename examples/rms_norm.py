"""RMS norm: each row divided by the root of its mean square, times a weight for each column.

A whole row lies in the registers of one block, read once and written once.
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")
EPSILON = 1e-6


@tilec.kernel
def rms_norm(
    X: T.Tensor((M, N), "bfloat16"),
    W: T.Tensor((N,), "bfloat16"),
    Y: T.Tensor((M, N), "bfloat16"),
    BN: T.constexpr = 4096,
    BM: T.constexpr = 1,
):
    with T.Kernel(T.ceildiv(M, BM), threads=256) as block:
        x = T.alloc_fragment((BM, BN), "float32")
        square = T.alloc_fragment((BM, BN), "float32")
        total = T.alloc_fragment((BM,), "float32")
        T.copy(X[block * BM, 0], x)
        for i, j in T.Parallel(BM, BN):
            square[i, j] = x[i, j] * x[i, j]
        T.reduce_sum(square, total, dim=1)
        for i, j in T.Parallel(BM, BN):
            x[i, j] = x[i, j] * T.rsqrt(total[i] / N + EPSILON) * W[j]
        T.copy(x, Y[block * BM, 0])


SPECS = [(rms_norm, [tilec.spec(s, "bfloat16") for s in ((512, 4096), (4096,), (512, 4096))], {})]


def main(shapes: tuple[tuple[int, int], ...] = ((64, 4096), (7, 1), (33, 1000))) -> None:
    worst = 0.0
    for m, n in shapes:
        x, w, y = random((m, n), "bfloat16"), random((n,), "bfloat16", 1), empty((m, n), "bfloat16")
        rms_norm(x, w, y)
        rows = float64(x)
        mean = (rows**2).mean(1, keepdims=True)
        want = rows / np.sqrt(mean + EPSILON) * float64(w)
        worst = max(worst, check(f"rms_norm ({m}, {n})", y, want))
    print(f"rms_norm on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
