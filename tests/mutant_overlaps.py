"""A kernel for `mutant_families` whose products run beside what threads compute: two warpgroups
take turns, an iteration's second product is an iteration late."""

from typing import Any

import numpy as np

import tilec
import tilec.language as T

M, H = T.dynamic("M, H")


@tilec.kernel
def perceptron(
    X: T.Tensor((M, 64), "float16"),
    W1: T.Tensor((H, 64), "float16"),
    W2: T.Tensor((H, 64), "float16"),
    Y: T.Tensor((M, 64), "float32"),
):
    """Y = relu(X W1ᵀ)² W2 / 64, a slice of the hidden layer at a time."""
    with T.Kernel(T.ceildiv(M, 128), threads=256) as bx:
        T.annotate_schedule(overlap=True, specialise=True, persistent=True, stages=2)
        x = T.alloc_shared((128, 64), "float16")
        w1, w2 = T.alloc_shared((32, 64), "float16"), T.alloc_shared((32, 64), "float16")
        h, a = T.alloc_fragment((128, 32), "float32"), T.alloc_fragment((128, 32), "float16")
        y = T.alloc_fragment((128, 64), "float32")
        T.clear(y)
        T.copy(X[bx * 128, 0], x)
        for n in T.Pipelined(T.ceildiv(H, 32)):
            T.copy(W1[n * 32, 0], w1)
            T.copy(W2[n * 32, 0], w2)
            T.gemm(x, w1, h, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(128, 32):
                h[i, j] = T.max(h[i, j], 0) * T.max(h[i, j], 0) / 64
            T.copy(h, a)
            T.gemm(a, w2, y)
        T.copy(y, Y[bx * 128, 0])


def layers(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Five tiles of rows, three slices of the hidden layer, both ragged."""
    made = {n: rng.standard_normal((m, 64)).astype(np.float16) for n, m in SIZES.items()}
    return made | {"Y": np.full((SIZES["X"], 64), 77, np.float32)}


SIZES = {"X": 532, "W1": 70, "W2": 70}


def perceived(held: dict[str, np.ndarray]) -> dict[str, Any]:
    x, w1, w2 = (held[n].astype(np.float64) for n in ("X", "W1", "W2"))
    h = np.maximum(x @ w1.T, 0)
    return {"Y": (h * h / 64) @ w2}
