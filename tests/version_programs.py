"""Programs that decode weights into a fragment which a product reads: the next iteration's are
decoded while it runs."""

from __future__ import annotations

from typing import Any

import tilec
import tilec.language as T

M, N, K, P = T.dynamic("M, N, K, P")


def bytes_times(
    bm: int = 64, bn: int = 32, bk: int = 64, threads: int = 128, **schedule: Any
) -> tilec.Kernel:
    """C = W Aᵀ of weights of eight bits."""

    @tilec.kernel
    def bytes_times_halves(
        W: T.Tensor((N, K), "int8"),
        A: T.Tensor((M, K), "float16"),
        C: T.Tensor((N, M), "float32"),
        steps: T.int32,
    ):
        with T.Kernel(T.ceildiv(M, bn), T.ceildiv(N, bm), threads=threads) as (bx, by):
            T.annotate_schedule(**(schedule or {"stages": 3}))
            w, a = T.alloc_shared((bm, bk), "int8"), T.alloc_shared((bn, bk), "float16")
            f = T.alloc_fragment((bm, bk), "float16")
            c = T.alloc_fragment((bm, bn), "float32")
            T.clear(c)
            for k in T.Pipelined(steps):
                T.copy(W[by * bm, k * bk], w)
                T.copy(A[bx * bn, k * bk], a)
                for i, j in T.Parallel(bm, bk):
                    f[i, j] = T.cast(w[i, j], "float16")
                T.gemm(f, a, c, transpose_B=True)
            T.copy(c, C[by * bm, bx * bn])

    return bytes_times_halves


def nibbles_times(
    bm: int = 64, bn: int = 32, bk: int = 64, threads: int = 128, **schedule: Any
) -> tilec.Kernel:
    """The same of two weights in a byte."""

    @tilec.kernel
    def nibbles_times_halves(
        W: T.Tensor((N, P), "uint8"),
        A: T.Tensor((M, K), "float16"),
        C: T.Tensor((N, M), "float32"),
        steps: T.int32,
    ):
        with T.Kernel(T.ceildiv(M, bn), T.ceildiv(N, bm), threads=threads) as (bx, by):
            T.annotate_schedule(**(schedule or {"stages": 3}))
            w, a = T.alloc_shared((bm, bk // 2), "uint8"), T.alloc_shared((bn, bk), "float16")
            f = T.alloc_fragment((bm, bk), "float16")
            c = T.alloc_fragment((bm, bn), "float32")
            T.clear(c)
            for k in T.Pipelined(steps):
                T.copy(W[by * bm, k * (bk // 2)], w)
                T.copy(A[bx * bn, k * bk], a)
                for i, j in T.Parallel(bm, bk):
                    two = T.cast(w[i, j // 2], "int32")
                    f[i, j] = T.cast((two >> 4 * (j % 2)) & 15, "float16") - 8
                T.gemm(f, a, c, transpose_B=True)
            T.copy(c, C[by * bm, bx * bn])

    return nibbles_times_halves


@tilec.kernel
def whole(
    W: T.Tensor((N, K), "int8"), A: T.Tensor((M, K), "float16"), C: T.Tensor((N, M), "float32")
):
    """C = W Aᵀ of all of K, for the suite of mutants."""
    with T.Kernel(T.ceildiv(M, 32), T.ceildiv(N, 64), threads=128) as (bx, by):
        T.annotate_schedule(specialise=True, persistent=True, stages=3, store="direct")
        w, a = T.alloc_shared((64, 32), "int8"), T.alloc_shared((32, 32), "float16")
        f, c = T.alloc_fragment((64, 32), "float16"), T.alloc_fragment((64, 32), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32)):
            T.copy(W[by * 64, k * 32], w)
            T.copy(A[bx * 32, k * 32], a)
            T.copy(w, f)
            T.gemm(f, a, c, transpose_B=True)
        T.copy(c, C[by * 64, bx * 32])
