"""A 5-point stencil in two dimensions, repeated: each element becomes the mean of itself and its
neighbours.

A block copies its tile and a border of one element into shared memory. At the edge of the grid that
border lies outside the tensor, where reads give zero: the boundary condition needs no line of code.
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

H, W = T.dynamic("H, W")


@tilec.kernel
def stencil(
    A: T.Tensor((H, W), "float32"),
    B: T.Tensor((H, W), "float32"),
    BH: T.constexpr = 16,
    BW: T.constexpr = 64,
):
    with T.Kernel(T.ceildiv(W, BW), T.ceildiv(H, BH), threads=128) as (bx, by):
        tile = T.alloc_shared((BH + 2, BW + 2), "float32")
        T.copy(A[by * BH - 1, bx * BW - 1], tile)
        for i, j in T.Parallel(BH, BW):
            cross = tile[i, j + 1] + tile[i + 2, j + 1] + tile[i + 1, j] + tile[i + 1, j + 2]
            B[by * BH + i, bx * BW + j] = (tile[i + 1, j + 1] + cross) * 0.2


SPECS = [(stencil, [tilec.spec((200, 333), "float32")] * 2, {})]


def reference(a: np.ndarray) -> np.ndarray:
    p = np.pad(a, 1)
    return (p[1:-1, 1:-1] + p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]) / 5


def main(
    shapes: tuple[tuple[int, int], ...] = ((1, 1), (32, 128), (50, 333)), steps: int = 3
) -> None:
    worst = 0.0
    for h, w in shapes:
        a, b = random((h, w), "float32"), empty((h, w), "float32")
        want = float64(a)
        for _ in range(steps):
            stencil(a, b)
            a, b = b, a
            want = reference(want)
        worst = max(worst, check(f"stencil({h}, {w})", a, want))
    print(f"stencil on {WHERE}: shapes {shapes}, {steps} steps, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
