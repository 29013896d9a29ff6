"""Programs of `user_programs`: accumulators and operands that are read, masked or gathered between
steps."""

import numpy as np
from user_case import Arrays, blank, case, half, softmax, wide

import tilec.language as T

M, N, K, B = T.dynamic("M, N, K, B")


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
    lambda a: {"C": softmax(wide(a["A"]) @ wide(a["B"]) / 8)},
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
