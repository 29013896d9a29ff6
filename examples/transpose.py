"""B = A^T through shared memory: both the reads and the writes of global memory are whole rows.

A tile is read row by row, kept in shared memory, and written column by column of the tile, which
are rows of B. No barrier is written: tilec sees that the loop reads what the copy wrote.
"""

from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N = T.dynamic("M, N")


@tilec.kernel
def transpose(
    A: T.Tensor((M, N), "float32"), B: T.Tensor((N, M), "float32"), TILE: T.constexpr = 32
):
    with T.Kernel(T.ceildiv(N, TILE), T.ceildiv(M, TILE), threads=128) as (bx, by):
        tile = T.alloc_shared((TILE, TILE), "float32")
        T.copy(A[by * TILE, bx * TILE], tile)
        for i, j in T.Parallel(TILE, TILE):
            B[bx * TILE + i, by * TILE + j] = tile[j, i]


SPECS = [(transpose, [tilec.spec((300, 517), "float32"), tilec.spec((517, 300), "float32")], {})]


def main(shapes: tuple[tuple[int, int], ...] = ((1, 1), (64, 96), (300, 517))) -> None:
    for m, n in shapes:
        a, b = random((m, n), "float32"), empty((n, m), "float32")
        transpose(a, b)
        assert check(f"transpose({m}, {n})", b, float64(a).T) == 0.0, "a transpose is exact"
    print(f"transpose on {WHERE}: shapes {shapes}, exact")


if __name__ == "__main__":
    main()
