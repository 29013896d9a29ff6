"""The same file without a word to type checkers: each annotation names a type of Python's, too."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")
Matrix = npt.NDArray[np.float16]
Vector = npt.NDArray[np.float32]


@tilec.kernel
def matmul(
    A: Annotated[Matrix, T.Tensor((M, K), "float16")],
    B: Annotated[Matrix, T.Tensor((K, N), "float16")],
    C: Annotated[Matrix, T.Tensor((M, N), "float16")],
    BM: Annotated[int, T.constexpr] = 128,
    BN: Annotated[int, T.constexpr] = 128,
    BK: Annotated[int, T.constexpr] = 32,
) -> None:
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc, policy=T.GemmWarpPolicy.FullRow)
        for i, j in T.Parallel(BM, BN):
            acc[i, j] = T.max(acc[i, j], 0.0) * T.exp(-acc[i, j] / 8)
        T.copy(acc, C[by * BM, bx * BN])


@T.macro
def scaled(x: T.Ref, by: Annotated[float, T.float32]) -> None:
    x = x * by


@tilec.kernel(out=["Y"], threads=128)
def scale(
    X: Annotated[Vector, T.Tensor((N,), "float32")],
    Y: Annotated[Vector, T.Tensor((N,), "float32")],
    f: Annotated[float, T.float32] = 2.0,
) -> None:
    block = T.program_id(0)
    for i in T.Parallel(128):
        Y[block * 128 + i] = T.if_then_else(X[block * 128 + i] > 0, X[block * 128 + i] * f, 0.0)


def main() -> None:
    a: Matrix = np.ones((256, 64), np.float16)
    b, c = a.T.copy(), np.zeros((256, 256), np.float16)
    matmul(a, b, c, BM=64)
    x = np.ones(1000, np.float32)
    y = scale[(T.cdiv(1000, 128),)](x, f=3.0)
    compiled = matmul.compile(a, b, c, target="cpu", BN=64)
    shape = tilec.spec((256, 256), "float16")
    ahead: tilec.CompiledKernel = matmul.compile(shape, shape, shape, target="cuda:sm_90a")
    compiled(a, b, c)
    report = tilec.simulate(matmul, a, b, c, target="cuda:sm_80")
    assert report.ok and np.isfinite(y).all(), str(report)
    print(compiled.resources.registers, sorted(ahead.stages), tilec.recommend(matmul, a, b, c)[0])


if __name__ == "__main__":
    main()
