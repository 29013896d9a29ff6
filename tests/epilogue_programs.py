"""Products with epilogues as users write them: what `test_epilogues` runs and compiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")
Arrays = dict[str, np.ndarray]


@tilec.macro
def product(A, B, acc, y, x, BM, BN, BK):
    """acc = the tile of A @ B that begins at row y, column x."""
    A_s = T.alloc_shared((BM, BK), A.dtype)
    B_s = T.alloc_shared((BK, BN), B.dtype)
    T.clear(acc)
    for k in T.Pipelined(T.ceildiv(A.shape[1], BK), num_stages=3):
        T.copy(A[y, k * BK], A_s)
        T.copy(B[k * BK, x], B_s)
        T.gemm(A_s, B_s, acc)


def plain(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        acc = T.alloc_fragment((BM, BN), "float32")
        product(A, B, acc, by * BM, bx * BN, BM, BN, BK)
        T.copy(acc, C[by * BM, bx * BN])


def relu_bias(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    bias: T.Tensor((N,), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        acc = T.alloc_fragment((BM, BN), "float32")
        product(A, B, acc, by * BM, bx * BN, BM, BN, BK)
        for i, j in T.Parallel(BM, BN):
            C[by * BM + i, bx * BN + j] = T.max(acc[i, j] + bias[bx * BN + j], 0)


def gelu_bias(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    bias: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "bfloat16"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        acc = T.alloc_fragment((BM, BN), "float32")
        product(A, B, acc, by * BM, bx * BN, BM, BN, BK)
        for i, j in T.Parallel(BM, BN):
            x = acc[i, j] + bias[bx * BN + j]
            acc[i, j] = 0.5 * x * (1.0 + T.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
        T.copy(acc, C[by * BM, bx * BN])


def silu_row_column(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    rows: T.Tensor((M,), "float32"),
    columns: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float32"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        acc = T.alloc_fragment((BM, BN), "float32")
        product(A, B, acc, by * BM, bx * BN, BM, BN, BK)
        for i, j in T.Parallel(BM, BN):
            x = acc[i, j] * rows[by * BM + i] * columns[bx * BN + j]
            C[by * BM + i, bx * BN + j] = x / (1.0 + T.exp(-x))


def residual(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    D: T.Tensor((M, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        acc = T.alloc_fragment((BM, BN), "float32")
        product(A, B, acc, by * BM, bx * BN, BM, BN, BK)
        for i, j in T.Parallel(BM, BN):
            C[by * BM + i, bx * BN + j] = acc[i, j] + D[by * BM + i, bx * BN + j]


def in_place(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        acc = T.alloc_fragment((BM, BN), "float32")
        product(A, B, acc, by * BM, bx * BN, BM, BN, BK)
        for i, j in T.Parallel(BM, BN):
            C[by * BM + i, bx * BN + j] += 0.5 * acc[i, j]


def swiglu(
    A: T.Tensor((M, K), "float16"),
    G: T.Tensor((K, N), "float16"),
    U: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        G_s = T.alloc_shared((BK, BN), "float16")
        U_s = T.alloc_shared((BK, BN), "float16")
        gate = T.alloc_fragment((BM, BN), "float32")
        up = T.alloc_fragment((BM, BN), "float32")
        T.clear(gate)
        T.clear(up)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(G[k * BK, bx * BN], G_s)
            T.copy(U[k * BK, bx * BN], U_s)
            T.gemm(A_s, G_s, gate)
            T.gemm(A_s, U_s, up)
        for i, j in T.Parallel(BM, BN):
            g = gate[i, j]
            C[by * BM + i, bx * BN + j] = g / (1.0 + T.exp(-g)) * up[i, j]


def quantised(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    scale: T.float32,
    C: T.Tensor((M, N), "int8"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        acc = T.alloc_fragment((BM, BN), "float32")
        product(A, B, acc, by * BM, bx * BN, BM, BN, BK)
        for i, j in T.Parallel(BM, BN):
            C[by * BM + i, bx * BN + j] = T.cast(T.round(acc[i, j] * scale), "int8")


def transposed(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((N, M), "float16"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        acc = T.alloc_fragment((BM, BN), "float32")
        product(A, B, acc, by * BM, bx * BN, BM, BN, BK)
        for i, j in T.Parallel(BM, BN):
            C[bx * BN + j, by * BM + i] = acc[i, j]


def two_results(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    mask: T.Tensor((M, N), "int8"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        acc = T.alloc_fragment((BM, BN), "float32")
        product(A, B, acc, by * BM, bx * BN, BM, BN, BK)
        for i, j in T.Parallel(BM, BN):
            C[by * BM + i, bx * BN + j] = T.max(acc[i, j], 0)
            mask[by * BM + i, bx * BN + j] = T.if_then_else(acc[i, j] > 0, 1, 0)


def through_shared(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        C_s = T.alloc_shared((BM, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        product(A, B, acc, by * BM, bx * BN, BM, BN, BK)
        T.copy(acc, C_s)
        T.copy(C_s, C[by * BM, bx * BN])


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


@dataclass(frozen=True)
class Epilogue:
    """A kernel, what its outputs must be (from float64 inputs), the dtypes of what it takes beside
    A and B ("m", "n", "mn": its shape)."""

    function: Callable[..., Any]
    want: Callable[..., Arrays]
    others: tuple[tuple[str, str, Any], ...]
    tolerance: float = 2e-3


F16, F32, BF16, I8 = np.float16, np.float32, ml_dtypes.bfloat16, np.int8
C16 = (("C", "mn", F16),)

EPILOGUES = {
    e.function.__name__: e
    for e in (
        Epilogue(plain, lambda A, B, C: {"C": A @ B}, C16),
        Epilogue(
            relu_bias,
            lambda A, B, bias, C: {"C": np.maximum(A @ B + bias, 0)},
            (("bias", "n", F16), *C16),
        ),
        Epilogue(
            gelu_bias,
            lambda A, B, bias, C: {"C": _gelu(A @ B + bias)},
            (("bias", "n", F32), ("C", "mn", BF16)),
            8e-3,
        ),
        Epilogue(
            silu_row_column,
            lambda A, B, rows, columns, C: {"C": _silu(A @ B * rows[:, None] * columns)},
            (("rows", "m", F32), ("columns", "n", F32), ("C", "mn", F32)),
            1e-5,
        ),
        Epilogue(residual, lambda A, B, D, C: {"C": A @ B + D}, (("D", "mn", F16), *C16)),
        Epilogue(in_place, lambda A, B, C: {"C": C + 0.5 * (A @ B)}, (("C", "mn", F32),), 1e-5),
        Epilogue(
            swiglu,
            lambda A, G, U, C: {"C": _silu(A @ G) * (A @ U)},
            (("G", "kn", F16), ("U", "kn", F16), *C16),
        ),
        Epilogue(
            quantised,
            lambda A, B, scale, C: {"C": np.clip(np.rint(A @ B * scale), -128, 127)},
            (("scale", "", F32), ("C", "mn", I8)),
            2e-2,
        ),
        Epilogue(transposed, lambda A, B, C: {"C": (A @ B).T}, (("C", "nm", F16),)),
        Epilogue(
            two_results,
            lambda A, B, C, mask: {"C": np.maximum(A @ B, 0), "mask": A @ B > 0},
            (("C", "mn", F16), ("mask", "mn", I8)),
        ),
        Epilogue(through_shared, lambda A, B, C: {"C": A @ B}, C16),
    )
}
