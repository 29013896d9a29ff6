"""Numbers of 8 bits with a scale for each row ("per token"): the largest of a row becomes the
largest number of float8.

A whole row lies in the registers of one block, read once; a quarter of its bytes are written.
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")
LARGEST = 448.0  # of float8_e4m3; that of AMD's MI300 ends at 240


@tilec.kernel
def fp8_quantise(
    X: T.Tensor((M, N), "bfloat16"),
    Q: T.Tensor((M, N), "float8_e4m3"),
    S: T.Tensor((M,), "float32"),
    BN: T.constexpr = 4096,
    HIGH: T.constexpr = LARGEST,
):
    with T.Kernel(M, threads=256) as row:
        x = T.alloc_fragment((1, BN), "float32")
        scale = T.alloc_fragment((1,), "float32")
        T.copy(X[row, 0], x)
        T.reduce_absmax(x, scale, dim=1)
        for i in T.Parallel(1):
            scale[i] = T.max(scale[i], 1e-4) / HIGH
        for i, j in T.Parallel(1, BN):
            x[i, j] = x[i, j] / scale[i]
        T.copy(x, Q[row, 0])
        T.copy(scale, S[row])


_SHAPE = (512, 4096)
_RESULTS = [tilec.spec(_SHAPE, "float8_e4m3"), tilec.spec((512,), "float32")]
SPECS = [(fp8_quantise, [tilec.spec(_SHAPE, "bfloat16"), *_RESULTS], {})]


def main(
    shapes: tuple[tuple[int, int], ...] = ((64, 4096), (7, 1), (33, 1000)), high: float = LARGEST
) -> None:
    worst = 0.0
    for m, n in shapes:
        x, q, s = random((m, n), "bfloat16"), empty((m, n), "float8_e4m3"), empty((m,), "float32")
        fp8_quantise(x, q, s, HIGH=high)
        rows = float64(x)
        want = np.maximum(np.abs(rows).max(1), 1e-4) / high
        check(f"scales ({m}, {n})", s, want)
        worst = max(worst, check(f"fp8_quantise ({m}, {n})", q, rows / want[:, None]))
    print(f"fp8_quantise on {WHERE}: largest error {worst:.1e} of the largest number")


if __name__ == "__main__":
    main()
