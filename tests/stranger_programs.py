"""Right programs for `test_simulate_strangers`: kinds of kernels that the other tests do not have.
`PROGRAMS`: name -> (kernel, makes its arrays, computes from them what the outputs must hold)."""

from collections.abc import Callable
from typing import Any

import numpy as np
from user_case import Arrays, Rng, blank, half, single, softmax, wide

import tilec
import tilec.language as T

M, N, K, G, L = T.dynamic("M, N, K, G, L")
Program = tuple[Any, Callable[[Rng], Arrays], Callable[[Arrays], Arrays]]
PROGRAMS: dict[str, Program] = {}


def program(make: Callable[[Rng], Arrays], want: Callable[[Arrays], Arrays]) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Any:
        kernel = tilec.kernel(function)
        PROGRAMS[function.__name__] = kernel, make, want
        return kernel

    return add


def _attended(a: Arrays) -> np.ndarray:
    q, k, v = (wide(a[x]) for x in "QKV")
    later = np.arange(len(k))[None] > np.arange(len(q))[:, None]
    return softmax(np.where(later, -np.inf, q @ k.T / 8)) @ v


@program(
    lambda rng: {x: half(rng, 100, 64) for x in "QKV"} | {"O": blank(100, 64)},
    lambda a: {"O": _attended(a)},
)
def causal_attention(
    Q: T.Tensor((M, 64), "float16"), K: T.Tensor((N, 64), "float16"),
    V: T.Tensor((N, 64), "float16"), O: T.Tensor((M, 64), "float32"),  # noqa: E741
):  # fmt: skip
    """Two products with a running softmax between them, in as many steps as the block needs."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as by:
        q = T.alloc_shared((64, 64), "float16")
        k = T.alloc_shared((32, 64), "float16")
        v = T.alloc_shared((32, 64), "float16")
        p = T.alloc_shared((64, 32), "float32")
        weights = T.alloc_shared((64, 32), "float16")
        most = T.alloc_shared((64,), "float32")
        total = T.alloc_shared((64,), "float32")
        shrink = T.alloc_shared((64,), "float32")
        s = T.alloc_fragment((64, 32), "float32")
        o = T.alloc_fragment((64, 64), "float32")
        T.copy(Q[by * 64, 0], q)
        T.clear(o)
        T.clear(total)
        T.fill(most, -1e30)
        for t in T.serial(T.min(T.ceildiv(N, 32), (by + 1) * 2)):
            T.copy(K[t * 32, 0], k)
            T.copy(V[t * 32, 0], v)
            T.gemm(q, k, s, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 32):
                here = t * 32 + j <= by * 64 + i and t * 32 + j < N
                p[i, j] = T.if_then_else(here, s[i, j] * 0.125, -1e30)
            for i in T.Parallel(64):
                best = T.alloc_var("float32")
                best = most[i]
                for j in T.serial(32):
                    best = T.max(best, p[i, j])
                shrink[i] = T.exp(most[i] - best)
                sum_ = T.alloc_var("float32")
                sum_ = total[i] * shrink[i]
                for j in T.serial(32):
                    sum_ += T.exp(p[i, j] - best)
                total[i] = sum_
                most[i] = best
            for i, j in T.Parallel(64, 32):
                weights[i, j] = T.exp(p[i, j] - most[i])
            for i, j in T.Parallel(64, 64):
                o[i, j] = o[i, j] * shrink[i]
            T.gemm(weights, v, o)
        for i, j in T.Parallel(64, 64):
            O[by * 64 + i, j] = o[i, j] / total[i]


@program(
    lambda rng: {"A": single(rng, 3, 64), "C": blank(3, 64)}, lambda a: {"C": np.sort(a["A"], 1)}
)
def bitonic_sort(A: T.Tensor((M, 64), "float32"), C: T.Tensor((M, 64), "float32")):
    """Each iteration exchanges two elements of a shared tile that no other one touches."""
    with T.Kernel(M, threads=64) as r:
        s = T.alloc_shared((64,), "float32")
        T.copy(A[r, 0:64], s)
        for a in T.serial(6):
            for b in T.serial(a + 1):
                d = 1 << (a - b)
                for t in T.Parallel(32):
                    i = (t // d) * 2 * d + t % d
                    x = s[i]
                    y = s[i + d]
                    if (x > y) == ((i >> (a + 1)) % 2 == 0):
                        s[i] = y
                        s[i + d] = x
        T.copy(s, C[r, 0:64])


def _distances(a: Arrays) -> np.ndarray:
    found = []
    for x, y in zip(a["X"], a["Y"]):
        row = np.arange(13)
        for i in range(12):
            above, row = row, np.full(13, i + 1)
            for j in range(12):
                row[j + 1] = min(row[j] + 1, above[j + 1] + 1, above[j] + (x[i] != y[j]))
        found.append(row[12])
    return np.array(found)


@program(
    lambda rng: (
        {x: rng.integers(0, 3, (3, 12)).astype(np.int8) for x in "XY"}
        | {"D": blank(3, dtype=np.int32)}
    ),
    lambda a: {"D": _distances(a)},
)
def edit_distance(
    X: T.Tensor((M, 12), "int8"), Y: T.Tensor((M, 12), "int8"), D: T.Tensor((M,), "int32")
):
    """Anti-diagonals of a table, three of them kept in turn; some elements of each are never
    written, and never read."""
    with T.Kernel(M, threads=64) as r:
        d = T.alloc_shared((3, 13), "int32")
        for g in T.serial(25):
            for i in T.Parallel(13):
                j = g - i
                if j >= 0 and j <= 12:
                    if i == 0 or j == 0:
                        d[g % 3, i] = i + j
                    else:
                        gap = T.min(d[(g + 2) % 3, i - 1], d[(g + 2) % 3, i]) + 1
                        other = T.if_then_else(X[r, i - 1] != Y[r, j - 1], 1, 0)
                        d[g % 3, i] = T.min(gap, d[(g + 1) % 3, i - 1] + other)
        for _i in T.Parallel(1):
            D[r] = d[24 % 3, 12]


def _eliminated(a: Arrays) -> np.ndarray:
    x = wide(a["A"])
    for m in x:
        for k in range(11):
            m[k + 1 :, k] /= m[k, k]
            m[k + 1 :, k + 1 :] -= np.outer(m[k + 1 :, k], m[k, k + 1 :])
    return x


@program(
    lambda rng: {"A": single(rng, 2, 12, 12) + 8 * np.eye(12, dtype=np.float32)},
    lambda a: {"A": _eliminated(a)},
)
def elimination(A: T.Tensor((M, 12, 12), "float32")):
    """LU without pivots, in place: who reads and who writes changes from step to step."""
    with T.Kernel(M, threads=64) as b:
        s = T.alloc_shared((12, 12), "float32")
        T.copy(A[b, 0, 0], s)
        for k in T.serial(11):
            for i in T.Parallel(12):
                if i > k:
                    s[i, k] = s[i, k] / s[k, k]
            for i, j in T.Parallel(12, 12):
                if i > k and j > k:
                    s[i, j] -= s[i, k] * s[k, j]
        T.copy(s, A[b, 0, 0])


def _sparse(a: Arrays) -> np.ndarray:
    keep = a["mask"].repeat(64, 0)[: len(a["A"])].repeat(32, 1) != 0
    return (wide(a["A"]) * keep) @ wide(a["B"])


@program(
    lambda rng: {
        "A": half(rng, 70, 128),
        "B": half(rng, 128, 64),
        "mask": np.array([[1, 0, 0, 1], [0, 1, 1, 0]], np.int32),
        "C": blank(70, 64),
    },
    lambda a: {"C": _sparse(a)},
)
def block_sparse(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
    mask: T.Tensor((G, L), "int32"), C: T.Tensor((M, N), "float32"),
):  # fmt: skip
    """A pipeline whose iterations do nothing where a tensor says so."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            if mask[by, k] != 0:
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[k * 32, bx * 64], b)
                T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


def _unpacked(a: Arrays) -> np.ndarray:
    w = a["W"].astype(int)
    whole = np.stack([w & 15, w >> 4], -1).reshape(len(w), -1) - 8
    return wide(a["A"]) @ (whole * wide(a["S"]).repeat(32, 1)).T


@program(
    lambda rng: {
        "A": half(rng, 30, 64),
        "W": rng.integers(0, 256, (40, 32)).astype(np.uint8),
        "S": half(rng, 40, 2) / np.float16(16),
        "C": blank(30, 40),
    },
    lambda a: {"C": _unpacked(a)},
)
def nibbles(
    A: T.Tensor((M, K), "float16"), W: T.Tensor((N, L), "uint8"),
    S: T.Tensor((N, G), "float16"), C: T.Tensor((M, N), "float32"),
):  # fmt: skip
    """Weights of four bits, two in a byte, scaled by groups of 32, made whole in each step."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
        a = T.alloc_shared((32, 32), "float16")
        q = T.alloc_shared((32, 16), "uint8")
        w = T.alloc_shared((32, 32), "float16")
        acc = T.alloc_fragment((32, 32), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[by * 32, k * 32], a)
            T.copy(W[bx * 32, k * 16], q)
            for i, j in T.Parallel(32, 32):
                number = (T.cast(q[i, j // 2], "int32") >> ((j % 2) * 4)) & 15
                w[i, j] = T.cast(number - 8, "float16") * S[bx * 32 + i, k]
            T.gemm(a, w, acc, transpose_B=True)
        T.copy(acc, C[by * 32, bx * 32])


def _transformed(a: Arrays) -> Arrays:
    f = np.fft.fft(wide(a["R"]) + 1j * wide(a["I"]), axis=1)
    return {"R": f.real, "I": f.imag}


@program(lambda rng: {x: single(rng, 5, 16) for x in "RI"}, _transformed)
def fourier(R: T.Tensor((M, 16), "float32"), I: T.Tensor((M, 16), "float32")):  # noqa: E741
    """Butterflies between two halves of a buffer, in place in global memory."""
    with T.Kernel(T.ceildiv(M, 4), threads=64) as b:
        re = T.alloc_shared((2, 4, 16), "float32")
        im = T.alloc_shared((2, 4, 16), "float32")
        for r, j in T.Parallel(4, 16):
            k = (j & 1) * 8 + ((j >> 1) & 1) * 4 + ((j >> 2) & 1) * 2 + ((j >> 3) & 1)
            re[0, r, j] = R[b * 4 + r, k]
            im[0, r, j] = I[b * 4 + r, k]
        for s in T.unroll(4):
            for r, t in T.Parallel(4, 8):
                h = 1 << s
                i = (t // h) * 2 * h + t % h
                angle = -3.14159265358979 * T.cast(t % h, "float32") / T.cast(h, "float32")
                wr = T.cos(angle)
                wi = T.sin(angle)
                xr = re[s % 2, r, i + h] * wr - im[s % 2, r, i + h] * wi
                xi = re[s % 2, r, i + h] * wi + im[s % 2, r, i + h] * wr
                re[(s + 1) % 2, r, i] = re[s % 2, r, i] + xr
                im[(s + 1) % 2, r, i] = im[s % 2, r, i] + xi
                re[(s + 1) % 2, r, i + h] = re[s % 2, r, i] - xr
                im[(s + 1) % 2, r, i + h] = im[s % 2, r, i] - xi
        T.copy(re[0, :, :], R[b * 4, 0])
        T.copy(im[0, :, :], I[b * 4, 0])
