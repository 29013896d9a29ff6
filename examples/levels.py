"""C = relu(A @ B + bias) at the three levels that a kernel can be written at: as mathematics, as
tiles, as what each thread does.

1. Mathematics: tilec chooses the grid, tiles and where they lie.
2. Tiles: the author says what a block does; tilec chooses layouts, instructions and the pipeline.
3. Threads: the author says what each thread loads, adds up and stores. (Tiles and threads mix: the
   copies here are those of whole tiles.)
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def as_mathematics(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    bias: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float16"),
):
    for i, j in T.Parallel(M, N):
        total: T.float32 = 0
        for k in range(K):
            total += T.cast(A[i, k], "float32") * T.cast(B[k, j], "float32")
        C[i, j] = T.max(total + bias[j], 0)


@tilec.kernel
def as_tiles(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    bias: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float16"),
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, c)
        for i, j in T.Parallel(64, 64):
            c[i, j] = T.max(c[i, j] + bias[bx * 64 + j], 0)
        T.copy(c, C[by * 64, bx * 64])


@tilec.kernel
def as_threads(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    bias: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float16"),
):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=256) as (bx, by):
        t = T.get_thread_binding()
        tx, ty = t % 16, t // 16
        a, b = T.alloc_shared((16, 32), "float16"), T.alloc_shared((32, 16), "float16")
        total: T.float32 = 0
        for k in T.serial(T.ceildiv(K, 32)):
            T.copy(A[by * 16, k * 32], a)
            T.copy(B[k * 32, bx * 16], b)
            for x in T.serial(32):
                total += T.cast(a[ty, x], "float32") * T.cast(b[x, tx], "float32")
        if by * 16 + ty < M and bx * 16 + tx < N:
            C[by * 16 + ty, bx * 16 + tx] = T.max(total + bias[bx * 16 + tx], 0)


LEVELS = (as_mathematics, as_tiles, as_threads)
_SHAPES = (((256, 128), "float16"), ((128, 192), "float16"), ((192,), "float32"),
           ((256, 192), "float16"))  # fmt: skip
SPECS = [(kernel, [tilec.spec(*s) for s in _SHAPES], {}) for kernel in LEVELS]


def main(
    shapes: tuple[tuple[int, int, int], ...] = ((1, 1, 1), (64, 64, 32), (70, 90, 50)),
) -> None:
    worst = 0.0
    for m, n, k in shapes:
        a, b = random((m, k), "float16", 1), random((k, n), "float16", 2)
        bias = random((n,), "float32", 3)
        want = np.maximum(float64(a) @ float64(b) + float64(bias), 0)
        for kernel in LEVELS:
            c = empty((m, n), "float16")
            kernel(a, b, bias, c)
            worst = max(worst, check(f"{kernel.name}({m}, {n}, {k})", c, want))
    print(f"levels on {WHERE}: largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
