"""Kernels as users write them, with the arrays they are called with and what NumPy says they give.

Each is a `Case`: the function, arrays (all are inputs; `outputs` names those that are checked), and
`want`, which computes the outputs from the arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import tilec.language as T
from tilec.layout import make_swizzled_layout

M, N, K, B = T.dynamic("M, N, K, B")
Arrays = dict[str, np.ndarray]
Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """One program. `options`: compile-time parameters. `local`: it indexes registers at run time,
    so that local memory is no fault. `wide`: indices have 64 bits."""

    function: Callable[..., Any]
    make: Callable[[Rng], Arrays]
    want: Callable[[Arrays], Arrays]
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 2e-3
    local: bool = False
    wide: bool = False


CASES: dict[str, Case] = {}


def case(
    make: Callable[[Rng], Arrays],
    want: Callable[[Arrays], Arrays],
    name: str = "",
    **rest: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated kernel function as a case."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[name or function.__name__] = Case(function, make, want, **rest)
        return function

    return add


def half(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


def single(rng: Rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def blank(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An output that shows what was not written."""
    return np.full(shape, 77, dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


# --- movement -----------------------------------------------------------------------------------


@case(
    lambda rng: {"A": single(rng, 70, 45), "C": blank(45, 70)},
    lambda a: {"C": a["A"].T},
)
def transpose_padded(A: T.Tensor((M, N), "float32"), C: T.Tensor((N, M), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=256) as (bx, by):
        tile = T.alloc_shared((32, 33), "float32")
        for i, j in T.Parallel(32, 32):
            tile[i, j] = A[by * 32 + i, bx * 32 + j]
        for i, j in T.Parallel(32, 32):
            C[bx * 32 + i, by * 32 + j] = tile[j, i]


@case(
    lambda rng: {"A": single(rng, 100, 70), "C": blank(100, 70)},
    lambda a: {"C": -a["A"]},
)
def swizzled_without_a_loop(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=64) as (bx, by):
        T.use_swizzle(4, order="column")
        for i, j in T.Parallel(16, 16):
            C[by * 16 + i, bx * 16 + j] = -A[by * 16 + i, bx * 16 + j]


@case(
    lambda rng: {"A": half(rng, 96, 160), "C": blank(160, 96, dtype=np.float16)},
    lambda a: {"C": a["A"].T},
)
def transpose_swizzled(A: T.Tensor((M, N), "float16"), C: T.Tensor((N, M), "float16")):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        tile = T.alloc_shared((64, 64), "float16")
        T.annotate_layout({tile: make_swizzled_layout(tile)})
        T.copy(A[by * 64, bx * 64], tile)
        for i, j in T.Parallel(64, 64):
            C[bx * 64 + i, by * 64 + j] = tile[j, i]


@case(
    lambda rng: {"A": single(rng, 40, 24), "C": blank(40, 24)},
    lambda a: {"C": a["A"]},
)
def lambda_layout(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 32), threads=64) as (bx, by):
        tile = T.alloc_shared((32, 16), "float32")
        T.annotate_layout({tile: T.Layout((32, 16), lambda i, j: j * 32 + i)})
        T.copy(A[by * 32, bx * 16], tile)
        T.copy(tile, C[by * 32, bx * 16])


@case(
    lambda rng: {
        "A": single(rng, 50, 80)[::-1, ::2],
        "C": blank(40, 50).T,
    },
    lambda a: {"C": a["A"] * 2},
)
def odd_strides(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 16), threads=128) as (bx, by):
        tile = T.alloc_shared((16, 32), "float32")
        T.copy(A[by * 16, bx * 32], tile)
        for i, j in T.Parallel(16, 32):
            C[by * 16 + i, bx * 32 + j] = tile[i, j] * 2.0


@case(
    lambda rng: {"A": single(rng, 30, 41), "C": blank(30, 41)},
    lambda a: {"C": _blur(a["A"], 5.0)},
)
def stencil_halo(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 8), threads=128) as (bx, by):
        T.annotate_safe_value({A: 5.0})
        tile = T.alloc_shared((10, 34), "float32")
        for i, j in T.Parallel(10, 34):
            tile[i, j] = A[by * 8 + i - 1, bx * 32 + j - 1]
        for i, j in T.Parallel(8, 32):
            C[by * 8 + i, bx * 32 + j] = (
                tile[i, j + 1] + tile[i + 2, j + 1] + tile[i + 1, j] + tile[i + 1, j + 2]
            ) * 0.25 + tile[i + 1, j + 1]


def _blur(a: np.ndarray, edge: float) -> np.ndarray:
    p = np.pad(a, 1, constant_values=edge)
    return (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]) * 0.25 + a


@case(
    lambda rng: {"A": half(rng, 3, 40, 36), "C": blank(3, 36, 40, dtype=np.float16)},
    lambda a: {"C": a["A"].transpose(0, 2, 1)},
)
def batched_transpose(A: T.Tensor((B, M, N), "float16"), C: T.Tensor((B, N, M), "float16")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 32), B, threads=64) as (bx, by, bz):
        f = T.alloc_fragment((32, 16), "float16")
        T.copy(A[bz, by * 32, bx * 16], f)
        for i, j in T.Parallel(32, 16):
            C[bz, bx * 16 + j, by * 32 + i] = f[i, j]


@case(
    lambda rng: {
        "A": rng.integers(-100, 100, (37,)).astype(np.int32),
        "C": blank(37, dtype=np.int32),
    },
    lambda a: {"C": a["A"][::-1]},
)
def reverse_vector(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        for i in T.Parallel(128):
            C[N - 1 - (bx * 128 + i)] = A[bx * 128 + i]


@case(
    lambda rng: {
        "A": single(rng, 20, 24),
        "I": rng.permutation(20).astype(np.int32),
        "C": blank(20, 24),
    },
    lambda a: {"C": a["A"][a["I"]]},
)
def gather_rows(
    A: T.Tensor((M, N), "float32"), I: T.Tensor((M,), "int32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 8), threads=64) as (bx, by):
        for i, j in T.Parallel(8, 32):
            C[by * 8 + i, bx * 32 + j] = A[I[by * 8 + i], bx * 32 + j]


# --- reductions and running values ---------------------------------------------------------------


@case(
    lambda rng: {"A": single(rng, 45, 200), "C": blank(45)},
    lambda a: {"C": wide(a["A"]).sum(1)},
)
def row_sums_serial(A: T.Tensor((M, N), "float32"), C: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 32), threads=64) as bx:
        tile = T.alloc_shared((32, 48), "float32")
        total = T.alloc_fragment((32,), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(N, 48), num_stages=3):
            T.copy(A[bx * 32, k * 48], tile)
            for i in T.Parallel(32):
                for j in T.serial(48):
                    total[i] += tile[i, j]
        T.copy(total, C[bx * 32])


@case(
    lambda rng: {"A": single(rng, 130, 40), "C": blank(40), "D": blank(40)},
    lambda a: {"C": wide(a["A"]).sum(0), "D": a["A"].max(0)},
)
def column_sum_and_max(
    A: T.Tensor((M, N), "float32"), C: T.Tensor((N,), "float32"), D: T.Tensor((N,), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        total = T.alloc_fragment((64,), "float32")
        most = T.alloc_fragment((64,), "float32")
        T.fill(most, -T.infinity("float32"))
        T.clear(total)
        tile = T.alloc_shared((16, 64), "float32")
        for k in T.Pipelined(T.ceildiv(M, 16), num_stages=2):
            T.copy(A[k * 16, bx * 64], tile)
            for j in T.Parallel(64):
                for i in T.serial(16):
                    total[j] = total[j] + tile[i, j]
                    if k * 16 + i < M:
                        most[j] = T.max(most[j], tile[i, j])
        for j in T.Parallel(64):
            C[bx * 64 + j] = total[j]
            D[bx * 64 + j] = most[j]


@case(
    lambda rng: {"A": single(rng, 33, 70), "C": blank(33, 70)},
    lambda a: {"C": np.cumsum(wide(a["A"]), 1)},
)
def running_sum(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(M, 16), threads=64) as bx:
        carry = T.alloc_fragment((16,), "float32")
        tile = T.alloc_shared((16, 16), "float32")
        out = T.alloc_shared((16, 16), "float32")
        T.clear(carry)
        for k in T.Pipelined(T.ceildiv(N, 16), num_stages=2):
            T.copy(A[bx * 16, k * 16], tile)
            for i in T.Parallel(16):
                for j in T.serial(16):
                    carry[i] = carry[i] + tile[i, j]
                    out[i, j] = carry[i]
            T.copy(out, C[bx * 16, k * 16])


@case(
    lambda rng: {"A": single(rng, 21, 90), "C": blank(21, 90)},
    lambda a: {"C": _softmax(wide(a["A"]))},
)
def softmax_two_passes(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(M, 16), threads=128) as bx:
        tile = T.alloc_shared((16, 32), "float32")
        most = T.alloc_fragment((16,), "float32")
        total = T.alloc_fragment((16,), "float32")
        T.fill(most, -1e30)
        T.clear(total)
        T.annotate_safe_value({A: -1e30})
        for k in T.Pipelined(T.ceildiv(N, 32), num_stages=2):
            T.copy(A[bx * 16, k * 32], tile)
            for i in T.Parallel(16):
                for j in T.serial(32):
                    new = T.max(most[i], tile[i, j])
                    total[i] = total[i] * T.exp(most[i] - new) + T.exp(tile[i, j] - new)
                    most[i] = new
        f = T.alloc_fragment((16, 32), "float32")
        for k in T.serial(T.ceildiv(N, 32)):
            T.copy(A[bx * 16, k * 32], f)
            for i, j in T.Parallel(16, 32):
                f[i, j] = T.exp(f[i, j] - most[i]) / total[i]
            T.copy(f, C[bx * 16, k * 32])


def _softmax(a: np.ndarray) -> np.ndarray:
    e = np.exp(a - a.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@case(
    lambda rng: {
        "A": single(rng, 40, 25),
        "S": single(rng, 40),
        "T_": single(rng, 25),
        "C": blank(40, 25),
    },
    lambda a: {"C": np.maximum(a["A"] * a["S"][:, None] + a["T_"][None], 0)},
)
def broadcast_rows_and_columns(
    A: T.Tensor((M, N), "float32"),
    S: T.Tensor((M,), "float32"),
    T_: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float32"),
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 16), threads=128) as (bx, by):
        a = T.alloc_fragment((16, 32), "float32")
        s = T.alloc_fragment((16,), "float32")
        t = T.alloc_fragment((32,), "float32")
        T.copy(A[by * 16, bx * 32], a)
        T.copy(S[by * 16], s)
        T.copy(T_[bx * 32], t)
        for i, j in T.Parallel(16, 32):
            a[i, j] = T.max(a[i, j] * s[i] + t[j], 0.0)
        T.copy(a, C[by * 16, bx * 32])


@case(
    lambda rng: {"A": single(rng, 60), "C": blank(60)},
    lambda a: {"C": _window_sum(wide(a["A"]))},
)
def window_sum(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 32), threads=64) as bx:
        for i in T.Parallel(32):
            total = T.alloc_var("float32")
            total = 0.0
            for d in T.serial(7):
                if d % 2 == 0:
                    total += A[bx * 32 + i + d - 3]
            C[bx * 32 + i] = total


def _window_sum(a: np.ndarray) -> np.ndarray:
    p = np.pad(a, 3)
    return sum(p[d : d + len(a)] for d in range(0, 7, 2))


# --- products -----------------------------------------------------------------------------------


def product_case(
    name: str,
    m: int,
    n: int,
    k: int,
    *,
    ta: bool = False,
    tb: bool = False,
    dtype: Any = np.float16,
    out: Any = np.float32,
    tolerance: float = 2e-3,
    wide_indices: bool = False,
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A case whose function computes C = A @ B (transposed as given)."""

    def make(rng: Rng) -> Arrays:
        a = rng.standard_normal((k, m) if ta else (m, k)).astype(dtype)
        b = rng.standard_normal((n, k) if tb else (k, n)).astype(dtype)
        return {"A": a, "B": b, "C": blank(m, n, dtype=out)}

    def want(x: Arrays) -> Arrays:
        a, b = wide(x["A"]), wide(x["B"])
        return {"C": (a.T if ta else a) @ (b.T if tb else b)}

    return case(make, want, name, options=options, tolerance=tolerance, wide=wide_indices)


def plain_product(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    stages: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        a = T.alloc_shared((BM, BK), "float16")
        b = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
            T.copy(A[by * BM, k * BK], a)
            T.copy(B[k * BK, bx * BN], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * BM, bx * BN])


for _bm, _bn, _bk, _stages, _threads, _m, _n, _k in (
    (96, 80, 32, 3, 128, 100, 88, 72),
    (48, 40, 16, 2, 64, 50, 48, 40),
    (64, 128, 64, 0, 256, 64, 128, 64),
    (64, 64, 32, 1, 128, 72, 64, 40),
    (64, 48, 48, 5, 128, 72, 56, 336),
    (192, 96, 16, 4, 384, 200, 104, 24),
    (128, 128, 32, 2, 512, 130, 136, 8),
    (16, 8, 16, 2, 64, 20, 24, 48),
    (80, 24, 40, 2, 128, 88, 32, 120),
    (40, 24, 9, 2, 256, 44, 20, 30),
):
    product_case(
        f"product_{_bm}x{_bn}x{_bk}_s{_stages}_t{_threads}",
        _m,
        _n,
        _k,
        BM=_bm,
        BN=_bn,
        BK=_bk,
        stages=_stages,
        threads=_threads,
    )(plain_product)


product_case(
    "product_wide", 130, 72, 104, wide_indices=True, BM=64, BN=64, BK=32, stages=3, threads=128
)(plain_product)


@product_case("product_no_steps", 64, 64, 1, BM=64, BN=64, BK=32, stages=3, threads=128)
def product_one_step(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr,
    stages: T.constexpr,
    threads: T.constexpr,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
        a = T.alloc_shared((BM, BK), "float16")
        b = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
            T.copy(A[by * BM, k * BK], a)
            T.copy(B[k * BK, bx * BN], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * BM, bx * BN])


@case(
    lambda rng: {
        "A": half(rng, 72, 100),
        "B": half(rng, 100, 64),
        "C": blank(72, 64),
        "L": rng.integers(0, 4, 3).astype(np.int32) * np.int32([0, 1, 2]),
    },
    lambda a: {"C": _block_lengths(a)},
)
def product_dynamic_trips(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    L: T.Tensor((3,), "int32"),
):
    """Each row of blocks makes as many steps as a tensor says; the first makes none."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=128) as (bx, by):
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((16, 64), "float16")
        acc = T.alloc_fragment((32, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(L[by], num_stages=3):
            T.copy(A[by * 32, k * 16], a)
            T.copy(B[k * 16, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 32, bx * 64])


def _block_lengths(x: Arrays) -> np.ndarray:
    out = np.zeros(x["C"].shape)
    for i, length in enumerate(x["L"]):
        rows = slice(32 * i, 32 * i + 32)
        out[rows] = wide(x["A"])[rows, : 16 * length] @ wide(x["B"])[: 16 * length]
    return out


@product_case("product_parallel_fill", 70, 72, 50)
def product_parallel_fill(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """The operands come by T.Parallel, not by T.copy."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            for i, j in T.Parallel(64, 32):
                a[i, j] = A[by * 64 + i, k * 32 + j] * T.float16(1.0)
            for i, j in T.Parallel(64, 32):
                b[i, j] = B[k * 32 + j, bx * 64 + i]
            T.gemm(a, b, acc, transpose_B=True)
        T.copy(acc, C[by * 64, bx * 64])


@product_case("product_offsets_in_variables", 70, 72, 56)
def product_offsets_in_variables(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Loops that copy, at offsets that stand in variables: they are copies like any other."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            at = T.alloc_var("int32")
            at = k * 32
            for i, j in T.Parallel(64, 32):
                a[i, j] = A[by * 64 + i, at + j]
            for i, j in T.Parallel(32, 64):
                b[i, j] = B[at + i, bx * 64 + j]
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@case(
    lambda rng: {
        "A": half(rng, 72, 96),
        "B": rng.integers(-128, 128, (96, 64)).astype(np.int8),
        "S": single(rng, 64),
        "C": blank(72, 64),
    },
    lambda a: {"C": wide(a["A"]) @ wide(a["B"]) * a["S"][None]},
)
def dequantised_product(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "int8"),
    S: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float32"),
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        q = T.alloc_shared((32, 64), "int8")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], q)
            for i, j in T.Parallel(32, 64):
                b[i, j] = T.cast(q[i, j], "float16")
            T.gemm(a, b, acc)
        for i, j in T.Parallel(64, 64):
            C[by * 64 + i, bx * 64 + j] = acc[i, j] * S[bx * 64 + j]


@case(
    lambda rng: {
        "A": half(rng, 72, 96),
        "B": rng.integers(-128, 128, (96, 64)).astype(np.int8),
        "C": blank(72, 64, dtype=np.float16),
    },
    lambda a: {"C": wide(a["A"]) @ wide(a["B"]) / 64},
)
def dequantised_through_fragment(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "int8"), C: T.Tensor((M, N), "float16")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        q = T.alloc_shared((32, 64), "int8")
        raw = T.alloc_fragment((32, 64), "int8")
        cooked = T.alloc_fragment((32, 64), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], q)
            T.copy(q, raw)
            for i, j in T.Parallel(32, 64):
                cooked[i, j] = T.cast(raw[i, j], "float16") * T.float16(0.015625)
            T.copy(cooked, b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@product_case("product_scaled_accumulator", 72, 64, 96)
def product_scaled_accumulator(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """The accumulator is touched in the loop: nothing may stay in flight over the iteration."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            for i, j in T.Parallel(64, 64):
                acc[i, j] = acc[i, j] * 2.0
            T.gemm(a, b, acc)
            for i, j in T.Parallel(64, 64):
                acc[i, j] = acc[i, j] * 0.5
        for i, j in T.Parallel(64, 64):
            acc[i, j] = acc[i, j] * 2.0
        T.copy(acc, C[by * 64, bx * 64])


@case(
    lambda rng: {
        "A": half(rng, 64, 48),
        "B": half(rng, 48, 80),
        "D": half(rng, 80, 32),
        "C": blank(64, 32),
    },
    lambda a: {"C": np.maximum(wide(a["A"]) @ wide(a["B"]), 0) @ wide(a["D"])},
    tolerance=5e-3,
)
def chained_through_shared(
    A: T.Tensor((M, 48), "float16"),
    B: T.Tensor((48, N), "float16"),
    D: T.Tensor((N, 32), "float16"),
    C: T.Tensor((M, 32), "float32"),
):
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a = T.alloc_shared((64, 48), "float16")
        b = T.alloc_shared((48, 32), "float16")
        h = T.alloc_shared((64, 32), "float16")
        d = T.alloc_shared((32, 32), "float16")
        mid = T.alloc_fragment((64, 32), "float32")
        acc = T.alloc_fragment((64, 32), "float32")
        T.clear(acc)
        T.copy(A[bx * 64, 0], a)
        for k in T.Pipelined(T.ceildiv(N, 32), num_stages=2):
            T.copy(B[0, k * 32], b)
            T.copy(D[k * 32, 0], d)
            T.clear(mid)
            T.gemm(a, b, mid)
            for i, j in T.Parallel(64, 32):
                h[i, j] = T.max(mid[i, j], 0.0)
            T.gemm(h, d, acc)
        T.copy(acc, C[bx * 64, 0])


@case(
    lambda rng: {
        "A": half(rng, 70, 64),
        "B": half(rng, 64, 96),
        "D": half(rng, 96, 64),
        "C": blank(70, 64),
    },
    lambda a: {"C": (wide(a["A"]) @ wide(a["B"])) @ wide(a["D"])},
    tolerance=5e-3,
)
def chained_in_registers(
    A: T.Tensor((M, 64), "float16"),
    B: T.Tensor((64, N), "float16"),
    D: T.Tensor((N, 64), "float16"),
    C: T.Tensor((M, 64), "float32"),
):
    """The second product takes A from a fragment."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 32), "float16")
        d = T.alloc_shared((32, 64), "float16")
        mid = T.alloc_fragment((64, 32), "float32")
        h = T.alloc_fragment((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        T.copy(A[bx * 64, 0], a)
        for k in T.Pipelined(T.ceildiv(N, 32), num_stages=2):
            T.copy(B[0, k * 32], b)
            T.copy(D[k * 32, 0], d)
            T.gemm(a, b, mid, clear_accum=True)
            T.copy(mid, h)
            T.gemm(h, d, acc)
        T.copy(acc, C[bx * 64, 0])


@product_case("product_fragment_operand", 70, 64, 96)
def product_fragment_operand(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=256) as (bx, by):
        a_s = T.alloc_shared((64, 32), "float16")
        a = T.alloc_fragment((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a_s)
            T.copy(B[k * 32, bx * 64], b)
            T.copy(a_s, a)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@case(
    lambda rng: {"A": half(rng, 3, 40, 64), "W": half(rng, 3, 64, 48), "C": blank(3, 40, 48)},
    lambda a: {"C": wide(a["A"]) @ wide(a["W"])},
)
def batched_product(
    A: T.Tensor((B, M, K), "float16"),
    W: T.Tensor((B, K, N), "float16"),
    C: T.Tensor((B, M, N), "float32"),
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), A.shape[0], threads=128) as (bx, by, bz):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[bz, by * 64, k * 32], a)
            T.copy(W[bz, k * 32, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[bz, by * 64, bx * 64])


@product_case("product_persistent", 200, 136, 40)
def product_persistent(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(3, threads=128) as block:
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        for by, bx in T.Persistent([T.ceildiv(M, 64), T.ceildiv(N, 64)], 3, block):
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[k * 32, bx * 64], b)
                T.gemm(a, b, acc)
            T.copy(acc, C[by * 64, bx * 64])


for _order in ("row", "column"):

    def _swizzled_product(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float32"),
        order: T.constexpr,
    ):
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
            T.use_swizzle(3, order=order)
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 32), "float16")
            acc = T.alloc_fragment((32, 32), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[by * 32, k * 32], a)
                T.copy(B[k * 32, bx * 32], b)
                T.gemm(a, b, acc)
            T.copy(acc, C[by * 32, bx * 32])

    product_case(f"product_swizzled_{_order}", 130, 104, 32, order=_order)(_swizzled_product)


@product_case("product_sub_tiles", 64, 64, 128)
def product_sub_tiles(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Products of parts of wider shared tiles."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((2, 32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.serial(T.ceildiv(K, 64)):
            T.copy(A[by * 64, k * 64], a)
            for h in T.serial(2):
                T.copy(B[k * 64 + h * 32, bx * 64], b[h, :, :])
            for h in T.unroll(2):
                T.gemm(a[:, h * 32 : h * 32 + 32], b[h, :, :], acc)
        T.copy(acc, C[by * 64, bx * 64])


@product_case("product_conditional", 70, 64, 160)
def product_conditional(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Even steps and odd steps take different branches; the odd ones are made by a second loop."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            if k % 2 == 0:
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[k * 32, bx * 64], b)
                T.gemm(a, b, acc)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[by * 64, k * 64 + 32], a)
            T.copy(B[k * 64 + 32, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@product_case("product_while", 70, 64, 100)
def product_while(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        k = T.alloc_var("int32")
        k = 0
        while k < K:
            T.copy(A[by * 64, k], a)
            T.copy(B[k, bx * 64], b)
            T.gemm(a, b, acc)
            k += 32
        T.copy(acc, C[by * 64, bx * 64])


@product_case("product_break", 70, 64, 100)
def product_break(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(1000, num_stages=3):
            if k * 32 >= K:
                break
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@product_case("product_half_accumulator", 40, 40, 24, out=np.float16, tolerance=1e-2)
def product_half_accumulator(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((16, 32), "float16")
        acc = T.alloc_fragment((32, 32), "float16")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
            T.copy(A[by * 32, k * 16], a)
            T.copy(B[k * 16, bx * 32], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 32, bx * 32])


@product_case(
    "product_bfloat16",
    72,
    80,
    64,
    ta=True,
    tb=True,
    dtype=ml_dtypes.bfloat16,
    out=ml_dtypes.bfloat16,
    tolerance=1e-2,
)
def product_bfloat16(
    A: T.Tensor((K, M), "bfloat16"),
    B: T.Tensor((N, K), "bfloat16"),
    C: T.Tensor((M, N), "bfloat16"),
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((32, 64), "bfloat16")
        b = T.alloc_shared((32, 32), "bfloat16")
        acc = T.alloc_fragment((64, 32), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[k * 32, by * 64], a)
            T.copy(B[bx * 32, k * 32], b)
            T.gemm(a, b, acc, transpose_A=True, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
        T.copy(acc, C[by * 64, bx * 32])


@product_case("product_two_accumulators", 64, 128, 64)
def product_two_accumulators(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b0 = T.alloc_shared((32, 64), "float16")
        b1 = T.alloc_shared((32, 64), "float16")
        left = T.alloc_fragment((64, 64), "float32")
        right = T.alloc_fragment((64, 64), "float32")
        T.clear(left)
        T.clear(right)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 128], b0)
            T.copy(B[k * 32, bx * 128 + 64], b1)
            T.gemm(a, b0, left)
            T.gemm(a, b1, right)
        T.copy(left, C[by * 64, bx * 128])
        T.copy(right, C[by * 64, bx * 128 + 64])


@case(
    lambda rng: {
        "A": half(rng, 64, 64),
        "B": half(rng, 64, 64),
        "C": blank(64, 64),
        "R": single(rng, 64, 64),
    },
    lambda a: {"C": np.tanh(wide(a["A"]) @ wide(a["B"]) / 8 + a["R"]), "R": a["R"]},
)
def product_epilogue(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    R: T.Tensor((M, N), "float32"),
    C: T.Tensor((M, N), "float32"),
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        r = T.alloc_shared((64, 64), "float32")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        T.copy(R[by * 64, bx * 64], r)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, acc)
        for i, j in T.Parallel(64, 64):
            r[i, j] = T.tanh(acc[i, j] * 0.125 + r[i, j])
        T.copy(r, C[by * 64, bx * 64])


@product_case("product_narrow_shares", 64, 80, 40)
def product_narrow_shares(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Two warpgroups side by side would have 40 columns each, which no swizzle divides into."""
    with T.Kernel(T.ceildiv(N, 80), T.ceildiv(M, 64), threads=256) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 80), "float16")
        acc = T.alloc_fragment((64, 80), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 80], b)
            T.gemm(a, b, acc, policy=T.GemmWarpPolicy.FullCol)
        T.copy(acc, C[by * 64, bx * 80])


@product_case("product_annotated", 72, 64, 72)
def product_annotated(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Layouts that wgmma cannot read: they are kept, another instruction is taken."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        T.annotate_layout(
            {
                a: T.Layout((64, 32), lambda i, j: i * 32 + j),
                b: T.Layout((32, 64), lambda i, j: j * 32 + i),
            }
        )
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@product_case("product_mixed_operands", 72, 64, 64)
def product_mixed_operands(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """One accumulator, two instructions: the operand is shared in one product, a fragment in the
    other."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 128), threads=256) as (bx, by):
        a = T.alloc_shared((128, 32), "float16")
        f = T.alloc_fragment((128, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((128, 64), "float32")
        for k in T.serial(T.ceildiv(K, 64)):
            T.copy(A[by * 128, k * 64], a)
            T.copy(B[k * 64, bx * 64], b)
            if k == 0:
                T.gemm(a, b, acc, clear_accum=True)
            else:
                T.gemm(a, b, acc)
            T.copy(A[by * 128, k * 64 + 32], f)
            T.copy(B[k * 64 + 32, bx * 64], b)
            T.gemm(f, b, acc)
        T.copy(acc, C[by * 128, bx * 64])


@product_case("product_exact_fragments", 40, 40, 24, dtype=np.float32)
def product_exact_fragments(
    A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")
):
    """float32 has no matrix instruction; the operand in registers is put into shared memory."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        a = T.alloc_fragment((32, 24), "float32")
        b = T.alloc_shared((24, 32), "float32")
        acc = T.alloc_fragment((32, 32), "float32")
        T.clear(acc)
        T.copy(A[by * 32, 0], a)
        T.copy(B[0, bx * 32], b)
        T.gemm(a, b, acc)
        T.copy(acc, C[by * 32, bx * 32])


@product_case("product_of_fragment_parts", 40, 40, 32)
def product_of_fragment_parts(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        a = T.alloc_fragment((32, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        acc = T.alloc_fragment((32, 32), "float32")
        T.clear(acc)
        T.copy(A[by * 32, 0], a)
        T.copy(B[0, bx * 32], b)
        for h in T.serial(2):
            T.gemm(a[:, h * 16 : h * 16 + 16], b[h * 16 : h * 16 + 16, :], acc)
        T.copy(acc, C[by * 32, bx * 32])


@case(
    lambda rng: {"A": half(rng, 40, 48), "B": half(rng, 48, 40), "C": blank(40, 40)},
    lambda a: {"C": _half_masked(wide(a["A"]) @ wide(a["B"]))},
)
def masked_product(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Stores under a condition: the other elements keep their values, in whatever layout."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 48), "float16")
        b = T.alloc_shared((48, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        bias = T.alloc_fragment((64, 64), "float32")
        T.copy(A[by * 64, 0], a)
        T.copy(B[0, bx * 64], b)
        T.gemm(a, b, acc, clear_accum=True)
        for i, j in T.Parallel(64, 64):
            bias[j, i] = acc[i, j]
        for i, j in T.Parallel(64, 64):
            if (by * 64 + i) % 3 == 0:
                acc[i, j] = bias[j, i] * 0.5
            if j > i:
                acc[i, j] = 0.0
        T.copy(acc, C[by * 64, bx * 64])


def _half_masked(x: np.ndarray) -> np.ndarray:
    x[::3] *= 0.5
    return np.tril(x)


@case(
    lambda rng: {
        "A": half(rng, 72, 60),
        "B": half(rng, 60, 64),
        "C": blank(72, 64),
    },
    lambda a: {"C": _padded_with(a, 0.5)},
)
def product_safe_value(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """What lies outside of A counts: its safe value meets rows of B that do exist."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        T.annotate_safe_value({A: 0.5, B: 2.0})
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


def _padded_with(x: Arrays, value: float) -> np.ndarray:
    extra = -x["A"].shape[1] % 32
    a = np.pad(wide(x["A"]), ((0, 0), (0, extra)), constant_values=value)
    return a @ np.pad(wide(x["B"]), ((0, extra), (0, 0)), constant_values=2.0)


@case(
    lambda rng: {
        "A": half(rng, 72, 96),
        "B": half(rng, 96, 64),
        "C": blank(3, 72, 64, dtype=np.float16),
    },
    lambda a: {
        "C": np.stack([wide(a["A"])[:, i : i + 32] @ wide(a["B"])[i : i + 32] for i in (0, 32, 64)])
    },
)
def product_of_each_step(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((3, M, N), "float16"),
):
    """A staged store in every iteration."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, acc, clear_accum=True)
            T.copy(acc, C[k, by * 64, bx * 64])


@case(
    lambda rng: {
        "A": half(rng, 64, 64),
        "B": half(rng, 64, 64),
        "C": blank(64, 64, dtype=np.float16),
        "D": blank(64, 64, dtype=np.float16),
    },
    lambda a: {"C": wide(a["A"]) @ wide(a["B"]), "D": 2 * (wide(a["A"]) @ wide(a["B"])).T},
)
def product_read_again(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    D: T.Tensor((N, M), "float16"),
):
    """What a block has written it reads again from global memory."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[0, k * 32], a)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[0, 0])
        for i, j in T.Parallel(64, 64):
            D[j, i] = C[i, j] * T.float16(2.0)


@case(
    lambda rng: {"A": half(rng, 70, 64), "B": half(rng, 64, 64), "C": blank(70, 64)},
    lambda a: {"C": _softmax(wide(a["A"]) @ wide(a["B"]) / 8)},
)
def softmax_of_accumulators(
    A: T.Tensor((M, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((M, 64), "float32"),
):
    """Serial loops over the elements of an accumulator."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        most = T.alloc_fragment((64,), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.copy(A[bx * 64, 0], a)
        T.copy(B[0, 0], b)
        T.gemm(a, b, acc, clear_accum=True)
        T.fill(most, -T.infinity("float32"))
        T.clear(total)
        for i in T.Parallel(64):
            for j in T.serial(64):
                most[i] = T.max(most[i], acc[i, j])
        for i, j in T.Parallel(64, 64):
            acc[i, j] = T.exp((acc[i, j] - most[i]) * 0.125)
        for i in T.Parallel(64):
            for j in T.serial(64):
                total[i] += acc[i, j]
        for i, j in T.Parallel(64, 64):
            acc[i, j] /= total[i]
        T.copy(acc, C[bx * 64, 0])


@case(
    lambda rng: {
        "A": half(rng, 70, 96),
        "B": half(rng, 96, 64),
        "C": blank(70, 64),
        "D": blank(32, 16),
    },
    lambda a: {
        "C": _shifted(wide(a["A"]) @ wide(a["B"])),
        "D": (wide(a["A"]) @ wide(a["B"]))[16:48, 8:24],
    },
)
def parts_of_accumulators(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
    D: T.Tensor((32, 16), "float32"),
):
    """An accumulator is written at shifted places, copied in part and read at one element."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, acc)
        if by == 0:
            T.copy(acc[16:48, 8:24], D)
        corner = T.alloc_var("float32")
        corner = acc[0, 0]
        for i, j in T.Parallel(64, 63):
            acc[i, 63 - j] = corner
        T.copy(acc, C[by * 64, bx * 64])


def _shifted(x: np.ndarray) -> np.ndarray:
    for start in (0, 64):
        x[start : start + 64, 1:] = x[start, 0]
    return x


@case(
    lambda rng: {
        "A": half(rng, 64, 160),
        "B": half(rng, 160, 64),
        "P": rng.permutation(5).astype(np.int32),
        "C": blank(64, 64),
    },
    lambda a: {"C": _permuted(a)},
)
def product_gathered_steps(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    P: T.Tensor((5,), "int32"),
    C: T.Tensor((M, N), "float32"),
):
    """Where a step's tile of B lies is read from a tensor, in a nest of loops under a condition."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for twice in T.serial(3):
            if twice != 1:
                for k in T.Pipelined(5 - twice, num_stages=3):
                    T.copy(A[by * 64, k * 32], a)
                    T.copy(B[P[k] * 32, bx * 64], b)
                    T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


def _permuted(x: Arrays) -> np.ndarray:
    a, b = wide(x["A"]).reshape(-1, 5, 32), wide(x["B"]).reshape(5, 32, -1)[x["P"]]
    steps = np.einsum("mkx,kxn->kmn", a, b)
    return steps.sum(0) + steps[:3].sum(0)


@case(
    lambda rng: {
        "A": half(rng, 64, 100),
        "B": half(rng, 100, 64),
        "L": np.int32([16, 7, 32, 20, 25]),
        "C": blank(64, 64),
    },
    lambda a: {"C": _ragged_steps(a)},
)
def product_ragged_steps(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    L: T.Tensor((5,), "int32"),
    C: T.Tensor((M, N), "float32"),
):
    """A position carried from step to step: no copy can run ahead of it."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        at = T.alloc_var("int32")
        at = 0
        T.clear(acc)
        for k in T.Pipelined(5, num_stages=3):
            T.copy(A[by * 64, at], a)
            T.copy(B[at, bx * 64], b)
            T.gemm(a, b, acc)
            at += L[k]
        T.copy(acc, C[by * 64, bx * 64])


def _ragged_steps(x: Arrays) -> np.ndarray:
    starts = np.concatenate([[0], np.cumsum(x["L"])[:-1]])
    a, b = wide(x["A"]), wide(x["B"])
    return sum(a[:, s : s + 32] @ b[s : s + 32] for s in starts)


@case(
    lambda rng: {"A": half(rng, 2, 72, 64), "W": half(rng, 2, 64, 64), "C": blank(72, 64)},
    lambda a: {"C": (wide(a["A"]) @ wide(a["W"])).sum(0) * 2},
    wide=True,
)
def nested_pipelines(
    A: T.Tensor((B, M, K), "float16"),
    W: T.Tensor((B, K, N), "float16"),
    C: T.Tensor((M, N), "float32"),
):
    """A ring whose loop is entered again and again, the last time with no step to make."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 16), "float16")
        w = T.alloc_shared((16, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for z in T.serial(A.shape[0] * 2 + 1):
            for k in T.Pipelined(
                T.if_then_else(z < A.shape[0] * 2, T.ceildiv(K, 16), 0), num_stages=3
            ):
                T.copy(A[z // 2, by * 64, k * 16], a)
                T.copy(W[z // 2, k * 16, bx * 64], w)
                T.gemm(a, w, acc)
        T.copy(acc, C[by * 64, bx * 64])


@case(
    lambda rng: {"A": half(rng, 72, 96), "B": half(rng, 96, 64), "C": blank(72, 64)},
    lambda a: {"C": np.where(np.arange(72)[:, None] < 64, wide(a["A"]) @ wide(a["B"]), 77)},
)
def product_of_some_blocks(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Blocks that have nothing to do, and loops that do not begin at zero."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        if by == 0:
            T.clear(acc)
            for k in T.Pipelined(1, T.ceildiv(K, 32) + 1, num_stages=2):
                T.copy(A[by * 64, k * 32 - 32], a)
                T.copy(B[k * 32 - 32, bx * 64], b)
                T.gemm(a, b, acc)
            T.copy(acc, C[by * 64, bx * 64])


# --- dtypes -------------------------------------------------------------------------------------


def _cast_case(name: str, source: Any, dest: Any, sname: str, dname: str) -> None:
    def function(A: T.Tensor((N,), sname), C: T.Tensor((N,), dname)):
        with T.Kernel(T.ceildiv(N, 256), threads=64) as bx:
            for i in T.Parallel(256):
                C[bx * 256 + i] = T.cast(A[bx * 256 + i], dname)

    def through_shared(A: T.Tensor((N,), sname), C: T.Tensor((N,), dname)):
        with T.Kernel(T.ceildiv(N, 256), threads=64) as bx:
            s = T.alloc_shared((256,), sname)
            f = T.alloc_fragment((256,), dname)
            T.copy(A[bx * 256], s)
            T.copy(s, f)
            T.copy(f, C[bx * 256])

    def make(rng: Rng) -> Arrays:
        raw = rng.uniform(-100, 100, 300)
        a = (raw > 0) if source is np.bool_ else raw.astype(source)
        return {"A": a, "C": np.ones(300, dest)}

    for suffix, f in (("", function), ("_shared", through_shared)):
        case(make, lambda a: {"C": a["A"].astype(dest)}, f"cast_{name}{suffix}")(f)


for _name, _s, _d, _sn, _dn in (
    ("f16_f32", np.float16, np.float32, "float16", "float32"),
    ("f32_bf16", np.float32, ml_dtypes.bfloat16, "float32", "bfloat16"),
    ("bf16_f16", ml_dtypes.bfloat16, np.float16, "bfloat16", "float16"),
    ("f32_i8", np.float32, np.int8, "float32", "int8"),
    ("i8_f16", np.int8, np.float16, "int8", "float16"),
    ("i32_f32", np.int32, np.float32, "int32", "float32"),
    ("bool_i32", np.bool_, np.int32, "bool", "int32"),
    ("i8_bool", np.int8, np.bool_, "int8", "bool"),
    ("f32_e4m3", np.float32, ml_dtypes.float8_e4m3fn, "float32", "float8_e4m3"),
    ("e5m2_f16", ml_dtypes.float8_e5m2, np.float16, "float8_e5m2", "float16"),
    ("f64_i64", np.float64, np.int64, "float64", "int64"),
):
    _cast_case(_name, _s, _d, _sn, _dn)


# --- control flow, local arrays, threads ---------------------------------------------------------


@case(
    lambda rng: {"A": single(rng, 100), "C": blank(100)},
    lambda a: {"C": _sort_fours(a["A"])},
    local=True,
)
def local_sort(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    """Each thread sorts four neighbours in an array of its own, by insertion."""
    with T.Kernel(T.ceildiv(N, 256), threads=64) as bx:
        tx = T.get_thread_binding()
        mine = T.alloc_local((4,), "float32")
        for i in T.serial(4):
            mine[i] = A[bx * 256 + tx * 4 + i]
        for i in T.serial(1, 4):
            at = T.alloc_var("int32")
            at = i
            moving = T.alloc_var("bool")
            moving = True
            while moving:
                moving = False
                if at > 0:
                    if mine[at - 1] > mine[at]:
                        kept = T.alloc_var("float32")
                        kept = mine[at]
                        mine[at] = mine[at - 1]
                        mine[at - 1] = kept
                        at -= 1
                        moving = True
        for i in T.serial(4):
            C[bx * 256 + tx * 4 + i] = mine[i]


def _sort_fours(a: np.ndarray) -> np.ndarray:
    return np.sort(a.reshape(-1, 4), 1).ravel()


@case(
    lambda rng: {"A": single(rng, 50, 40), "C": blank(50, 40)},
    lambda a: {"C": np.where(np.arange(50)[:, None] // 16 % 2 == 0, a["A"] * 2, -a["A"])},
)
def branches_around_tiles(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=128) as (bx, by):
        s = T.alloc_shared((16, 16), "float32")
        T.copy(A[by * 16, bx * 16], s)
        if by % 2 == 0:
            for i, j in T.Parallel(16, 16):
                s[i, j] = s[i, j] * 2.0
        else:
            for i, j in T.Parallel(16, 16):
                s[i, j] = -s[i, j]
        T.copy(s, C[by * 16, bx * 16])


@case(
    lambda rng: {"A": single(rng, 8, 64), "C": blank(8, 64)},
    lambda a: {"C": _relax(a["A"])},
)
def shared_ping_pong(A: T.Tensor((M, 64), "float32"), C: T.Tensor((M, 64), "float32")):
    """A loop whose iterations read what other threads wrote in the iteration before."""
    with T.Kernel(M, threads=64) as bx:
        x = T.alloc_shared((64,), "float32")
        y = T.alloc_shared((64,), "float32")
        T.copy(A[bx, 0:64], x)
        for _step in T.serial(5):
            for j in T.Parallel(64):
                y[j] = (x[(j + 1) % 64] + x[(j + 63) % 64]) * 0.5
            for j in T.Parallel(64):
                x[j] = y[63 - j]
        T.copy(x, C[bx, 0:64])


def _relax(a: np.ndarray) -> np.ndarray:
    for _ in range(5):
        a = ((np.roll(a, -1, 1) + np.roll(a, 1, 1)) * np.float32(0.5))[:, ::-1]
    return a


@case(
    lambda rng: {"A": single(rng, 12, 32), "C": blank(12)},
    lambda a: {"C": _first_above(a["A"])},
)
def while_on_shared(A: T.Tensor((M, 32), "float32"), C: T.Tensor((M,), "float32")):
    """The condition of the loop reads shared memory that the body changes."""
    with T.Kernel(M, threads=64) as bx:
        s = T.alloc_shared((32,), "float32")
        T.copy(A[bx, 0:32], s)
        n = T.alloc_var("int32")
        n = 0
        while s[0] < 4.0:
            for j in T.Parallel(32):
                s[j] = s[j] * 0.5 + 3.0
            n += 1
        for _j in T.Parallel(1):
            C[bx] = T.cast(n, "float32") + s[0]


def _first_above(a: np.ndarray) -> np.ndarray:
    out = []
    for x in a[:, 0]:
        n = 0
        while x < 4:
            x, n = np.float32(x * np.float32(0.5) + np.float32(3)), n + 1
        out.append(n + x)
    return np.array(out)


@case(
    lambda rng: {"A": single(rng, 12, 40), "C": blank(12, 40)},
    lambda a: {"C": a["A"] / a["A"][:, :1] + a["A"][:, 39:]},
)
def scalars_from_shared(A: T.Tensor((M, 40), "float32"), C: T.Tensor((M, 40), "float32")):
    """Elements that every thread reads, and every iteration of a loop uses."""
    with T.Kernel(M, threads=64) as bx:
        s = T.alloc_shared((40,), "float32")
        T.copy(A[bx, 0:40], s)
        first = s[0]
        last = s[39]
        for j in T.Parallel(40):
            C[bx, j] = s[j] / first + last


@case(
    lambda rng: {"A": single(rng, 10, 48), "C": blank(10, 48)},
    lambda a: {"C": a["A"][:, ::-1] + a["A"]},
)
def threads_and_tiles(A: T.Tensor((M, 48), "float32"), C: T.Tensor((M, 48), "float32")):
    """Thread code fills a shared tile that tile code reads."""
    with T.Kernel(M, threads=64) as bx:
        tx = T.get_thread_binding()
        s = T.alloc_shared((48,), "float32")
        if tx < 48:
            s[tx] = A[bx, tx]
        for j in T.Parallel(48):
            C[bx, j] = s[47 - j] + s[j]


@case(
    lambda rng: {"A": single(rng, 10, 48), "C": blank(10, 48)},
    lambda a: {"C": a["A"][:, ::-1]},
)
def threads_in_a_loop(A: T.Tensor((M, 48), "float32"), C: T.Tensor((M, 48), "float32")):
    """The barrier cannot stand where the store is: only some threads go there."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        s = T.alloc_shared((48,), "float32")
        for row in T.serial(M):
            if tx < 48:
                if row < M:
                    s[tx] = A[row, tx]
            for j in T.Parallel(48):
                C[row, j] = s[47 - j]


@case(
    lambda rng: {"A": single(rng, 10, 20), "C": blank(10, 20)},
    lambda a: {"C": 3 * a["A"] + 1},
)
def in_place_and_kept(A: T.Tensor((M, 20), "float32"), C: T.Tensor((M, 20), "float32")):
    """More threads than elements: several run an iteration that changes what it reads."""
    with T.Kernel(M, threads=128) as bx:
        s = T.alloc_shared((20,), "float32")
        f = T.alloc_fragment((20,), "float32")
        T.copy(A[bx, 0:20], s)
        for j in T.Parallel(20):
            f[j] = s[j]
            s[j] = s[j] * 2.0 + 1.0
        for j in T.Parallel(20):
            C[bx, j] = f[j] + s[j]


@case(
    lambda rng: {"A": single(rng, 40, 33), "C": blank(40, 33)},
    lambda a: {"C": a["A"] + np.roll(a["A"], 1, 1) * (np.arange(33) > 0)},
)
def shifted_rows_in_fragment(A: T.Tensor((M, 33), "float32"), C: T.Tensor((M, 33), "float32")):
    """A fragment read at other elements than the thread's own."""
    with T.Kernel(T.ceildiv(M, 8), threads=64) as bx:
        f = T.alloc_fragment((8, 33), "float32")
        g = T.alloc_fragment((8, 33), "float32")
        T.copy(A[bx * 8, 0], f)
        for i, j in T.Parallel(8, 33):
            g[i, j] = f[i, j] + T.if_then_else(j > 0, f[i, T.max(j - 1, 0)], 0.0)
        T.copy(g, C[bx * 8, 0])


@case(
    lambda rng: {"A": single(rng, 36, 20), "C": blank(20, 36)},
    lambda a: {"C": a["A"].T * 3 + 1},
)
def transposed_in_shared(A: T.Tensor((M, N), "float32"), C: T.Tensor((N, M), "float32")):
    """One tile dies in the loop in which the other is born: they cannot share bytes."""
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 32), threads=128) as (bx, by):
        f = T.alloc_shared((32, 16), "float32")
        g = T.alloc_shared((16, 32), "float32")
        T.copy(A[by * 32, bx * 16], f)
        for i, j in T.Parallel(16, 32):
            g[i, j] = f[j, i] * 3.0 + 1.0
        T.copy(g, C[bx * 16, by * 32])


@case(
    lambda rng: {"A": single(rng, 36, 20), "C": blank(20, 36)},
    lambda a: {"C": a["A"].T * 3},
)
def transposed_in_fragments(A: T.Tensor((M, N), "float32"), C: T.Tensor((N, M), "float32")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 32), threads=128) as (bx, by):
        f = T.alloc_fragment((32, 16), "float32")
        g = T.alloc_fragment((16, 32), "float32")
        T.copy(A[by * 32, bx * 16], f)
        for i, j in T.Parallel(16, 32):
            g[i, j] = f[j, i] * 3.0
        T.copy(g, C[bx * 16, by * 32])


@case(
    lambda rng: {"A": single(rng, 5, 7, 9), "C": blank(5, 7, 9)},
    lambda a: {"C": a["A"] + np.arange(9)},
)
def three_dimensions(A: T.Tensor((B, M, N), "float32"), C: T.Tensor((B, M, N), "float32")):
    with T.Kernel(T.ceildiv(B, 2), threads=64) as bx:
        s = T.alloc_shared((2, 7, 9), "float32")
        T.copy(A[bx * 2, 0, 0], s)
        for b, i, j in T.Parallel(2, 7, 9):
            C[bx * 2 + b, i, j] = s[b, i, j] + j
