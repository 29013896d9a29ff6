"""Programs of `user_programs`: products of every tile and depth, and what stands beside them in the
loop."""

import numpy as np
from user_case import Arrays, blank, case, half, product_case, single, wide

import tilec.language as T

M, N, K, B = T.dynamic("M, N, K, B")


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


product_case("product_no_steps", 64, 64, 1, BM=64, BN=64, BK=32, stages=3, threads=128)(
    plain_product
)


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
