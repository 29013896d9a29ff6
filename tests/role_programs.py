"""Loops whose products form a chain through shared memory: what `roles=True` splits into groups."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilec
import tilec.language as T

M, N, H, D = T.dynamic("M, N, H, D")


def latent(
    width: int = 128, rope: int = 64, rows: int = 64, keys: int = 64, wish: bool = True
) -> Any:
    """All rows attend to the same keys, whose first columns are their values, too."""

    @tilec.kernel
    def attend(
        Q: T.Tensor((M, width), "float16"),
        Q_rope: T.Tensor((M, rope), "float16"),
        KV: T.Tensor((N, width), "float16"),
        K_rope: T.Tensor((N, rope), "float16"),
        O: T.Tensor((M, width), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, rows)) as bx:
            if wish:
                T.annotate_schedule(roles=True)
            q, q_rope = (
                T.alloc_shared((rows, width), "float16"),
                T.alloc_shared((rows, rope), "float16"),
            )
            kv, k_rope = (
                T.alloc_shared((keys, width), "float16"),
                T.alloc_shared((keys, rope), "float16"),
            )
            p = T.alloc_shared((rows, keys), "float16")
            s = T.alloc_fragment((rows, keys), "float32")
            o = T.alloc_fragment((rows, width), "float32")
            high, before, scale, total, more = (
                T.alloc_fragment((rows,), "float32") for _ in range(5)
            )
            T.copy(Q[bx * rows, 0], q)
            T.copy(Q_rope[bx * rows, 0], q_rope)
            T.clear(o)
            T.clear(total)
            T.fill(high, -1e30)
            for n in T.Pipelined(T.ceildiv(N, keys), num_stages=2):
                T.copy(KV[n * keys, 0], kv)
                T.copy(K_rope[n * keys, 0], k_rope)
                T.gemm(q, kv, s, transpose_B=True, clear_accum=True)
                T.gemm(q_rope, k_rope, s, transpose_B=True)
                for i, j in T.Parallel(rows, keys):
                    s[i, j] = T.if_then_else(n * keys + j < N, s[i, j], -T.infinity("float32"))
                T.copy(high, before)
                T.reduce_max(s, high, dim=1, clear=False)
                for i in T.Parallel(rows):
                    scale[i] = T.exp((before[i] - high[i]) / 8)
                for i, j in T.Parallel(rows, keys):
                    s[i, j] = T.exp((s[i, j] - high[i]) / 8)
                T.reduce_sum(s, more, dim=1)
                T.copy(s, p)
                for i in T.Parallel(rows):
                    total[i] = total[i] * scale[i] + more[i]
                for i, j in T.Parallel(rows, width):
                    o[i, j] *= scale[i]
                T.gemm(p, kv, o)
            for i, j in T.Parallel(rows, width):
                o[i, j] /= total[i]
            T.copy(o, O[bx * rows, 0])

    return attend


def attended(a: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    q = np.concatenate([a["Q"], a["Q_rope"]], 1).astype(np.float64)
    k = np.concatenate([a["KV"], a["K_rope"]], 1).astype(np.float64)
    s = q @ k.T / 8
    e = np.exp(s - s.max(1, keepdims=True, initial=-1e30))
    return {"O": e @ a["KV"].astype(np.float64) / e.sum(1, keepdims=True)}


@tilec.kernel
def perceptron(
    X: T.Tensor((M, 128), "float16"),
    W1: T.Tensor((128, H), "float16"),
    W2: T.Tensor((H, 128), "float16"),
    slices: T.int32,
    Y: T.Tensor((M, 128), "float16"),
):
    """Y = relu(X W1)^2 W2, a slice of the hidden layer at a time; the first `slices` of them."""
    with T.Kernel(T.ceildiv(M, 64)) as bx:
        T.annotate_schedule(roles=True)
        x = T.alloc_shared((64, 128), "float16")
        w1, w2 = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 128), "float16")
        h, a = T.alloc_fragment((64, 64), "float32"), T.alloc_shared((64, 64), "float16")
        y = T.alloc_fragment((64, 128), "float32")
        T.clear(y)
        T.copy(X[bx * 64, 0], x)
        for n in T.Pipelined(slices, num_stages=2):
            T.copy(W1[0, n * 64], w1)
            T.copy(W2[n * 64, 0], w2)
            T.gemm(x, w1, h, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                a[i, j] = T.max(h[i, j], 0) * T.max(h[i, j], 0) / 64
            T.gemm(a, w2, y)
        T.copy(y, Y[bx * 64, 0])


def perceived(a: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    x, w1, w2 = (a[n].astype(np.float64) for n in ("X", "W1", "W2"))
    h = np.maximum(x @ w1, 0)[:, : 64 * a["slices"]] ** 2 / 64
    return {"Y": h.astype(np.float16).astype(np.float64) @ w2[: h.shape[1]]}


def latent_arrays(
    rng: np.random.Generator, m: int = 64, n: int = 300, width: int = 128, rope: int = 64
) -> dict[str, np.ndarray]:
    shapes = {"Q": (m, width), "Q_rope": (m, rope), "KV": (n, width), "K_rope": (n, rope)}
    made = {name: rng.standard_normal(s).astype(np.float16) for name, s in shapes.items()}
    return made | {"O": np.full((m, width), np.nan, np.float32)}


def perceptron_arrays(
    rng: np.random.Generator, m: int = 64, h: int = 320, slices: int | None = None
) -> dict[str, Any]:
    shapes = {"X": (m, 128), "W1": (128, h), "W2": (h, 128)}
    made = {name: (rng.standard_normal(s) / 4).astype(np.float16) for name, s in shapes.items()}
    made["slices"] = -(-h // 64) if slices is None else slices
    return made | {"Y": np.full((m, 128), np.nan, np.float16)}
