"""Hadamard transform of rows: sums and differences of elements that lie 1, 2, 4, … apart.

A row is read once and written once, and lies in shared memory between. Each step takes four
elements to registers and puts back what two distances make of them. A row that is shorter than P, a
power of four, is filled up with zeros.
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")


@tilec.kernel
def hadamard(
    X: T.Tensor((M, N), "float16"),
    Y: T.Tensor((M, N), "float16"),
    P: T.constexpr = 4096,
):
    assert P == 4 ** ((P.bit_length() - 1) // 2), "P must be a power of four"
    with T.Kernel(M, threads=256) as row:
        x = T.alloc_shared((1, P), "float32")
        T.copy(X[row, 0], x)
        for step in [4**n for n in range((P.bit_length() - 1) // 2)]:
            for i in T.Parallel(P // 4):
                at = i // step * 4 * step + i % step
                a, b = x[0, at], x[0, at + step]
                c, d = x[0, at + 2 * step], x[0, at + 3 * step]
                x[0, at] = (a + b) + (c + d)
                x[0, at + step] = (a - b) + (c - d)
                x[0, at + 2 * step] = (a + b) - (c + d)
                x[0, at + 3 * step] = (a - b) - (c - d)
        T.copy(x, Y[row, 0])


_SHAPE = tilec.spec((512, 4096), "float16")
SPECS = [(hadamard, [_SHAPE, _SHAPE], {})]


def matrix(n: int) -> np.ndarray:
    """H[i, j] is 1, or -1 where i and j have an odd number of bits in common."""
    both = np.arange(n)[:, None] & np.arange(n)
    return 1.0 - 2.0 * (np.bitwise_count(both) & 1)


def main(shapes: tuple[tuple[int, ...], ...] = ((16, 4096), (7, 1000), (3, 1), (1, 64))) -> None:
    worst = 0.0
    for m, n in shapes:
        x, y = random((m, n), "float16"), empty((m, n), "float16")
        hadamard(x, y)
        want = float64(x) @ matrix(n)
        worst = max(worst, check(f"hadamard ({m}, {n})", y, want))
    print(f"hadamard on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
