"""Y = silu(X * scale + bias) * gate: a chain of element-wise steps in one pass over memory.

Shapes are bound from the arguments (`T.const`) and the output is allocated by the call (`T.empty`).
The steps between the copies run in registers, in float32.
"""

import numpy as np
from example_support import WHERE, check, float64, random

import tilec
import tilec.language as T


@tilec.kernel
def silu_gate(X, bias, gate, scale: T.float32, BM: T.constexpr = 32, BN: T.constexpr = 128):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float16")
    bias: T.Tensor((N,), "float32")
    gate: T.Tensor((M, N), "float16")
    Y = T.empty((M, N), "float16")
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=128) as (bx, by):
        x = T.alloc_fragment((BM, BN), "float32")
        g = T.alloc_fragment((BM, BN), "float32")
        T.copy(X[by * BM, bx * BN], x)
        T.copy(gate[by * BM, bx * BN], g)
        for i, j in T.Parallel(BM, BN):
            x[i, j] = x[i, j] * scale + bias[bx * BN + j]
        for i, j in T.Parallel(BM, BN):
            x[i, j] = x[i, j] / (1.0 + T.exp(-x[i, j])) * g[i, j]
        T.copy(x, Y[by * BM, bx * BN])
    return Y


SPECS = [
    (
        silu_gate,
        [
            tilec.spec((1000, 515), "float16"),
            tilec.spec((515,), "float32"),
            tilec.spec((1000, 515), "float16"),
            0.5,
        ],
        {},
    )
]


def reference(x: np.ndarray, bias: np.ndarray, gate: np.ndarray, scale: float) -> np.ndarray:
    x = x * scale + bias
    return x / (1 + np.exp(-x)) * gate


def main(shapes: tuple[tuple[int, int], ...] = ((1, 1), (64, 256), (77, 515))) -> None:
    worst = 0.0
    for m, n in shapes:
        x, gate = random((m, n), "float16", 1), random((m, n), "float16", 2)
        bias = random((n,), "float32", 3)
        y = silu_gate(x, bias, gate, 0.75)
        want = reference(float64(x), float64(bias), float64(gate), 0.75)
        worst = max(worst, check(f"silu_gate({m}, {n})", y, want))
    print(f"elementwise_chain on {WHERE}: shapes {shapes}, largest relative error {worst:.1e}")


if __name__ == "__main__":
    main()
