"""C[rows of group g] = A[rows of group g] @ B[g] for groups of uneven sizes: the experts' layers of
a mixture of experts.

Where the groups begin is known on the device only: `offsets` has one entry more than there are
groups. One launch covers all of them. Each block takes every so-many-th tile of the whole list of
tiles, and since these rise, it walks along the groups with them: no tile searches from the start.
A tile at a group's end leaves the next group's rows alone.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from example_support import WHERE, check, empty, float64, integers, random

import tilec
import tilec.language as T

M, N, K, G = T.dynamic("M, N, K, G")


def grouped(dtype: str, transposed: bool) -> Any:
    """B is (groups, N, K) if `transposed`, (groups, K, N) if not."""
    b_shape = (G, N, K) if transposed else (G, K, N)

    @tilec.kernel
    def grouped_gemm(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor(b_shape, dtype),
        offsets: T.Tensor((G + 1,), "int32"),
        C: T.Tensor((M, N), dtype),
        blocks: T.constexpr = 132,
        BM: T.constexpr = 64,
        BN: T.constexpr = 128,
        BK: T.constexpr = 32,
    ):
        with T.Kernel(blocks, threads=128) as block:
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BN, BK) if transposed else (BK, BN), dtype)
            acc = T.alloc_fragment((BM, BN), "float32")
            across = T.ceildiv(N, BN)
            most = (T.ceildiv(M, BM) + G) * across  # each group has at most one ragged tile
            g = 0  # the tile's group
            done = 0  # tiles of the groups before it
            for tile in T.Persistent([most], blocks, block):
                while g < G and tile >= done + T.ceildiv(offsets[g + 1] - offsets[g], BM) * across:
                    done += T.ceildiv(offsets[g + 1] - offsets[g], BM) * across
                    g += 1
                if g < G:
                    first, end = offsets[g], offsets[g + 1]
                    down = T.ceildiv(end - first, BM)
                    row = first + (tile - done) % down * BM
                    column = (tile - done) // down * BN
                    T.clear(acc)
                    for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
                        T.copy(A[row, k * BK], A_s)
                        if transposed:
                            T.copy(B[g, column, k * BK], B_s)
                        else:
                            T.copy(B[g, k * BK, column], B_s)
                        T.gemm(A_s, B_s, acc, transpose_B=transposed)
                    for i, j in T.Parallel(BM, BN):
                        if row + i < end:
                            C[row + i, column + j] = acc[i, j]

    return grouped_gemm


KERNELS = {
    (dtype, transposed): grouped(dtype, transposed)
    for dtype in ("float16", "bfloat16")
    for transposed in (False, True)
}


def specs(rows: int, groups: int, n: int, k: int, dtype: str, transposed: bool) -> list[Any]:
    return [
        tilec.spec((rows, k), dtype),
        tilec.spec((groups, n, k) if transposed else (groups, k, n), dtype),
        tilec.spec((groups + 1,), "int32"),
        tilec.spec((rows, n), dtype),
    ]


SPECS = [(kernel, specs(1000, 8, 512, 256, *key), {}) for key, kernel in KERNELS.items()]


def cases() -> Iterator[tuple[str, list[int], str, bool]]:
    """(name, sizes of the groups, dtype, whether B is transposed)."""
    uneven = [int(n) for n in np.random.default_rng(3).integers(0, 30, 64)]
    yield "uneven", [100, 0, 64, 1, 130], "float16", False
    yield "one group", [77], "float16", True
    yield "64 groups", uneven, "bfloat16", True
    yield "empty groups only", [0, 0, 0], "bfloat16", False


def main() -> None:
    worst, count, n, k = 0.0, 0, 200, 72
    for name, sizes, dtype, transposed in cases():
        ends = np.cumsum([0, *sizes]).tolist()
        a = random((ends[-1], k), dtype, 1)
        b = random((len(sizes), n, k) if transposed else (len(sizes), k, n), dtype, 2)
        c = empty((ends[-1], n), dtype)
        KERNELS[dtype, transposed](a, b, integers(ends), c)
        if not ends[-1]:
            continue
        left, right = float64(a), float64(b)
        parts = [
            left[first:end] @ (w.T if transposed else w)
            for first, end, w in zip(ends, ends[1:], right)
        ]
        worst, count = max(worst, check(name, c, np.concatenate(parts))), count + 1
    print(f"grouped_gemm on {WHERE}: {count} lists of groups, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
