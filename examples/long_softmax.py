"""Softmax of rows as long as shared memory, each read once: the next row is on its way while this
one is computed.

As many blocks as there are multiprocessors walk over the rows. A row lies in a ring of parts that
cp.async fills, with room for `AHEAD` parts of the next one. Two passes over it find its maximum and
its sum; then each thread takes its elements into registers, what they leave is filled again, and
the results are written meanwhile. The registers hold float16, half of what float32 takes.
"""

import functools
from typing import Any

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M = T.dynamic("M")
LOG2_E = 1.4426950408889634


@functools.cache
def long_softmax(N: int, THREADS: int = 256, AHEAD: int = 2, BLOCKS: int = 132) -> Any:
    """For rows of N elements: 65536 with 1024 threads and AHEAD = 6 fill 227 KB."""
    WIDTH = THREADS * 8  # 16 bytes for each thread
    PARTS = tuple(range(-(-N // WIDTH)))
    COUNT, SLOTS = len(PARTS), len(PARTS) + AHEAD

    @tilec.kernel
    def softmax(X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float16")):
        with T.Kernel(T.min(M, BLOCKS), threads=THREADS) as block:
            ring = T.alloc_shared((SLOTS, WIDTH), "float16")
            x = [T.alloc_fragment((WIDTH,), "float16") for p in PARTS]
            highs = T.alloc_fragment((WIDTH,), "float16")
            sums = T.alloc_fragment((WIDTH,), "float32")
            high, total = T.alloc_fragment((1,), "float32"), T.alloc_fragment((1,), "float32")
            for k in T.unroll(SLOTS):
                T.async_copy(X[block + k // COUNT * BLOCKS, k % COUNT * WIDTH], ring[k, 0:WIDTH])
            for n in T.serial(T.ceildiv(M - block, BLOCKS)):
                row, first = n * BLOCKS + block, n * COUNT  # where the ring has turned to
                T.ptx_wait_group(AHEAD)
                T.fill(highs, -T.infinity("float16"))
                for p in PARTS:
                    for j in T.Parallel(WIDTH):
                        if p * WIDTH + j < N:
                            highs[j] = T.max(highs[j], ring[(first + p) % SLOTS, j])
                T.reduce_max(highs, high)
                T.clear(sums)
                for p in PARTS:
                    for j in T.Parallel(WIDTH):
                        if p * WIDTH + j < N:
                            v = T.cast(ring[(first + p) % SLOTS, j], "float32")
                            sums[j] += T.exp2((v - high[0]) * LOG2_E)
                T.reduce_sum(sums, total)
                for p in PARTS:
                    T.copy(ring[(first + p) % SLOTS, 0:WIDTH], x[p])
                for p in PARTS:
                    k = p + SLOTS  # a part of the next row, or of the one behind it
                    T.async_copy(
                        X[row + k // COUNT * BLOCKS, k % COUNT * WIDTH],
                        ring[(first + k) % SLOTS, 0:WIDTH],
                    )
                for i in T.Parallel(1):
                    total[i] = 1 / total[i]
                for p in PARTS:
                    for j in T.Parallel(WIDTH):
                        v = T.cast(x[p][j], "float32")
                        Y[row, p * WIDTH + j] = T.exp2((v - high[0]) * LOG2_E) * total[0]

    return softmax


SPECS = [(long_softmax(16384), [tilec.spec((512, 16384), "float16")] * 2, {})]


def main(shapes: tuple[tuple[int, int], ...] = ((5, 16384), (7, 4100), (3, 1))) -> None:
    worst = 0.0
    for m, n in shapes:
        x, y = random((m, n), "float16"), empty((m, n), "float16")
        long_softmax(n, BLOCKS=2)(x, y)
        e = np.exp(float64(x) - float64(x).max(1, keepdims=True))
        worst = max(worst, check(f"long_softmax ({m}, {n})", y, e / e.sum(1, keepdims=True)))
    print(f"long_softmax on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
