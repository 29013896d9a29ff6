"""C = activation(A @ B + bias): the epilogue of a linear layer, done while the product is in
registers.

`activation` is a compile-time word: each one is a kernel of its own, without the branch.
"""

import numpy as np
from example_support import WHERE, check, empty, float64, random

import tilec
import tilec.language as T

M, N, K = T.dynamic("M, N, K")
ACTIVATIONS = ("none", "relu", "silu", "gelu")


@tilec.macro
def activate(x, activation):
    if activation == "relu":
        x = T.max(x, 0.0)
    elif activation == "silu":
        x = x / (1.0 + T.exp(-x))
    elif activation == "gelu":
        x = 0.5 * x * (1.0 + T.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))
    return x


@tilec.kernel
def linear(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    bias: T.Tensor((N,), "float16"),
    C: T.Tensor((M, N), "float16"),
    activation: T.constexpr = "none",
    BM: T.constexpr = 64,
    BN: T.constexpr = 64,
    BK: T.constexpr = 32,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=3):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc)
        for i, j in T.Parallel(BM, BN):
            acc[i, j] = activate(acc[i, j] + bias[bx * BN + j], activation)
        T.copy(acc, C[by * BM, bx * BN])


SPECS = [
    (linear, [tilec.spec(s, "float16") for s in ((512, 256), (256, 384), (384,), (512, 384))],
     {"activation": a})
    for a in ACTIVATIONS
]  # fmt: skip


def reference(a: np.ndarray, b: np.ndarray, bias: np.ndarray, activation: str) -> np.ndarray:
    x = a @ b + bias
    match activation:
        case "relu":
            return np.maximum(x, 0)
        case "silu":
            return x / (1 + np.exp(-x))
        case "gelu":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        case _:
            return x


def main(shapes: tuple[tuple[int, int, int], ...] = ((128, 128, 64), (75, 200, 40))) -> None:
    worst = 0.0
    for m, n, k in shapes:
        a, b = random((m, k), "float16", 1), random((k, n), "float16", 2)
        bias = random((n,), "float16", 3)
        for activation in ACTIVATIONS:
            c = empty((m, n), "float16")
            linear(a, b, bias, c, activation=activation)
            want = reference(float64(a), float64(b), float64(bias), activation)
            worst = max(worst, check(f"linear {activation} ({m}, {n}, {k})", c, want))
    print(
        f"fused_epilogue on {WHERE}: {', '.join(ACTIVATIONS)}, largest relative error {worst:.1e}"
    )


if __name__ == "__main__":
    main()
