"""C = A @ B in every way tilec has of writing it down.

Three launch styles (`in_kernel`, `from_launch`, `eager`), one persistent kernel, operands that are
transposed in memory, three warp policies, float16, bfloat16 and exact float32, sizes that do not
divide by the tile, and tensors whose rows start at odd addresses. Nothing in a kernel mentions
edges or alignment: tilec compiles one variant for what it is given.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")


def in_kernel(dtype: str, policy: T.GemmWarpPolicy = T.GemmWarpPolicy.Square) -> Any:
    """The grid stands in the kernel: `kernel(a, b, c)`. A factory: `dtype` and `policy` are closed
    over."""

    @tilec.kernel
    def matmul(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        C: T.Tensor((M, N), dtype),
        BM: T.constexpr = 64,
        BN: T.constexpr = 128,
        BK: T.constexpr = 32,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            A_s = T.alloc_shared((BM, BK), dtype)
            B_s = T.alloc_shared((BK, BN), dtype)
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
                T.copy(A[by * BM, k * BK], A_s)
                T.copy(B[k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, acc, policy=policy)
            T.copy(acc, C[by * BM, bx * BN])

    return matmul


@tilec.kernel(threads=128)
def from_launch(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr,
    BN: T.constexpr,
    BK: T.constexpr = 32,
):
    """The launch gives the grid: `kernel[grid](a, b, c, BM=64, BN=64)`."""
    bx, by = T.program_id(0), T.program_id(1)
    A_s = T.alloc_shared((BM, BK), "float16")
    B_s = T.alloc_shared((BK, BN), "float16")
    acc = T.alloc_fragment((BM, BN), "float32")
    T.clear(acc)
    for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
        T.copy(A[by * BM, k * BK], A_s)
        T.copy(B[k * BK, bx * BN], B_s)
        T.gemm(A_s, B_s, acc)
    T.copy(acc, C[by * BM, bx * BN])


@tilec.kernel
def eager(A, B, BM: T.constexpr = 64, BN: T.constexpr = 64, BK: T.constexpr = 32):
    """Sizes are bound from the arguments and the output is allocated: `c = kernel(a, b)`."""
    m, n, k = T.const("m, n, k")
    A: T.Tensor((m, k), "float16")
    B: T.Tensor((k, n), "float16")
    C = T.empty((m, n), "float16")
    with T.Kernel(T.ceildiv(n, BN), T.ceildiv(m, BM), threads=128) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for ko in T.Pipelined(T.ceildiv(k, BK), num_stages=3):
            T.copy(A[by * BM, ko * BK], A_s)
            T.copy(B[ko * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * BM, bx * BN])
    return C


@tilec.kernel
def persistent(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    blocks: T.constexpr = 132,
    BM: T.constexpr = 64,
    BN: T.constexpr = 64,
    BK: T.constexpr = 32,
):
    """As many blocks as the machine runs at once; each takes one tile after the other."""
    with T.Kernel(blocks, threads=128) as block:
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        for by, bx in T.Persistent([T.ceildiv(M, BM), T.ceildiv(N, BN)], blocks, block):
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
                T.copy(A[by * BM, k * BK], A_s)
                T.copy(B[k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, acc)
            T.copy(acc, C[by * BM, bx * BN])


def transposed(a: bool, b: bool) -> Any:
    """A is stored as (K, M) if `a`, B as (N, K) if `b`."""
    a_shape, b_shape = ((K, M) if a else (M, K)), ((N, K) if b else (K, N))

    @tilec.kernel
    def matmul_t(
        A: T.Tensor(a_shape, "float16"),
        B: T.Tensor(b_shape, "float16"),
        C: T.Tensor((M, N), "float16"),
        BM: T.constexpr = 64,
        BN: T.constexpr = 64,
        BK: T.constexpr = 32,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
            A_s = T.alloc_shared((BK, BM) if a else (BM, BK), "float16")
            B_s = T.alloc_shared((BN, BK) if b else (BK, BN), "float16")
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
                if a:
                    T.copy(A[k * BK, by * BM], A_s)
                else:
                    T.copy(A[by * BM, k * BK], A_s)
                if b:
                    T.copy(B[bx * BN, k * BK], B_s)
                else:
                    T.copy(B[k * BK, bx * BN], B_s)
                T.gemm(A_s, B_s, acc, transpose_A=a, transpose_B=b)
            T.copy(acc, C[by * BM, bx * BN])

    return matmul_t


matmul_f16, matmul_bf16, matmul_f32 = (in_kernel(d) for d in ("float16", "bfloat16", "float32"))
by_policy = {p.name: in_kernel("float16", p) for p in T.GemmWarpPolicy}
by_transposition = {(a, b): transposed(a, b) for a, b in ((0, 1), (1, 0), (1, 1))}


def specs(m: int, n: int, k: int, dtype: str = "float16", pitch: int = 0) -> list[Any]:
    """Specifications of A, B and C; `pitch`: elements by which each row is longer than it is
    used."""
    shapes = ((m, k), (k, n), (m, n))
    return [tilec.spec(s, dtype, strides=(s[1] + pitch, 1)) for s in shapes]


SPECS = [
    (matmul_f16, specs(512, 512, 512), {}),
    (matmul_f16, specs(500, 300, 200), {}),
    (matmul_f16, specs(100, 101, 67, pitch=1), {}),
    (matmul_bf16, specs(512, 512, 512, "bfloat16"), {}),
    (matmul_f32, specs(256, 256, 256, "float32"), {"BM": 64, "BN": 64, "BK": 16}),
    (from_launch, specs(512, 512, 512), {"BM": 64, "BN": 64}),
    (eager, specs(512, 512, 512)[:2], {}),
    (persistent, specs(512, 512, 512), {}),
    *(
        (kernel, specs(512, 512, 512), {})
        for kernel in (*by_policy.values(), *by_transposition.values())
    ),
]


def misaligned(shape: tuple[int, int], dtype: str, seed: int) -> Any:
    """A matrix that starts one element after an aligned address, with rows of an odd length."""
    rows, columns = shape
    return random((rows, columns + 3 - columns % 2), dtype, seed)[:, 1 : columns + 1]


def cases() -> Iterator[tuple[str, Callable[[], Any], np.ndarray]]:
    """(name, what computes the product, the product in float64)."""

    def case(
        name: str,
        call: Callable[[Any, Any, Any], Any],
        m: int,
        n: int,
        k: int,
        dtype: str = "float16",
        make: Callable[..., Any] = random,
        ta: bool = False,
        tb: bool = False,
    ) -> tuple[str, Callable[[], Any], np.ndarray]:
        a = make((k, m) if ta else (m, k), dtype, 1)
        b = make((n, k) if tb else (k, n), dtype, 2)
        want = (float64(a).T if ta else float64(a)) @ (float64(b).T if tb else float64(b))

        def run() -> Any:
            c = empty((m, n), dtype)
            returned = call(a, b, c)
            return c if returned is None else returned

        return name, run, want

    def launched(a: Any, b: Any, c: Any) -> None:
        m, n = c.shape
        from_launch[lambda meta: (T.cdiv(n, meta["BN"]), T.cdiv(m, meta["BM"]))](
            a, b, c, BM=64, BN=64
        )

    def exact(a: Any, b: Any, c: Any) -> None:
        matmul_f32(a, b, c, BM=64, BN=64, BK=16)

    yield case("grid in the kernel", matmul_f16, 128, 256, 96)
    yield case("grid from the launch", launched, 192, 128, 64)
    yield case("eager shapes", lambda a, b, c: eager(a, b), 128, 128, 96)
    yield case("persistent", lambda a, b, c: persistent(a, b, c, blocks=5), 256, 192, 64)
    yield case("ragged", matmul_f16, 100, 200, 75)
    yield case("one element", matmul_f16, 1, 1, 1)
    yield case("misaligned", matmul_f16, 67, 90, 45, make=misaligned)
    for policy, kernel in by_policy.items():
        yield case(f"policy {policy}", kernel, 128, 128, 64)
    for (ta, tb), kernel in by_transposition.items():
        yield case(f"transposed {ta}{tb}", kernel, 72, 136, 80, ta=ta, tb=tb)
    yield case("bfloat16", matmul_bf16, 128, 136, 72, "bfloat16")
    yield case("float32", exact, 70, 80, 90, "float32")


def main() -> None:
    worst, count = 0.0, 0
    for name, run, want in cases():
        worst, count = max(worst, check(name, run(), want)), count + 1
    print(f"matmul on {WHERE}: {count} products, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
