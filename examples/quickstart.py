"""A tiled matrix product, compiled for the GPU if there is one, else for the CPU; checked and
timed.

    python examples/quickstart.py [size]
"""

import sys

import numpy as np
from example_support import ON_GPU, WHERE, check, compared, empty, float64, random, torch

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")


def matmul(dtype):
    @tilec.kernel
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        C: T.Tensor((M, N), dtype),
        BM: T.constexpr = 128,
        BN: T.constexpr = 256,
        BK: T.constexpr = 64,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BK, BN), dtype)
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
                T.copy(A[by * BM, k * BK], A_s)
                T.copy(B[k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, acc)
            T.copy(acc, C[by * BM, bx * BN])

    return main


SPECS = [
    (matmul("float16"), [tilec.spec((4096, 4096), "float16")] * 3, meta)
    for meta in ({}, {"BM": 128, "BN": 128, "BK": 32})
]


def main(size: int = 4096 if ON_GPU else 512) -> None:
    dtype, peer = ("float16", "torch") if ON_GPU else ("float32", "NumPy")
    kernel = matmul(dtype)
    a, b = random((size, size), dtype, 1), random((size, size), dtype, 2)
    c = empty((size, size), dtype)
    kernel(a, b, c)
    error = check(f"matmul({size})", c, float64(a) @ float64(b))
    library = torch if ON_GPU else np
    time, ratios = compared(lambda: kernel(a, b, c), lambda: library.matmul(a, b, out=c))
    print(
        f"matmul {size}x{size}x{size} {dtype} on {WHERE}: {time * 1e3:.3f} ms, "
        f"{2 * size**3 / time / 1e9:.0f} GFLOP/s, {ratios[len(ratios) // 2]:.2f} of {peer} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} runs), relative error {error:.1e}"
    )
    print("every stage of the compiler, as numbered files: TILEC_DUMP=all TILEC_DUMP_DIR=stages")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
