"""Programs of `user_programs`: products in loops over tiles, under branches, of other dtypes."""

import ml_dtypes
import numpy as np
from user_case import blank, case, half, product_case, single, wide

import tilec.language as T

M, N, K, B = T.dynamic("M, N, K, B")


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
