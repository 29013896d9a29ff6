"""More programs for `test_mixed_words`: mathematics only, threads among tiles, several launches,
Python at trace time. See `mixed_programs`."""

from dataclasses import dataclass

import numpy as np
from mixed_programs import K, L, M, N, program
from user_case import Arrays, blank, half, single, softmax, wide

import tilec.language as T


def _stencil(a: Arrays) -> np.ndarray:
    p = np.pad(wide(a["A"]), 1)
    around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
    return np.asarray(around - 4 * p[1:-1, 1:-1])


@program(
    lambda rng: {"A": single(rng, 50, 70), "B": blank(50, 70)}, lambda a: {"B": _stencil(a)}, 1e-5
)
def stencil(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
    for i, j in T.Parallel(M, N):
        up = A[i - 1, j] if i > 0 else 0.0
        down = A[i + 1, j] if i < M - 1 else 0.0
        left = T.if_then_else(j > 0, A[i, j - 1], 0.0)
        right = T.if_then_else(j < N - 1, A[i, j + 1], 0.0)
        B[i, j] = up + down + left + right - 4 * A[i, j]


@program(
    lambda rng: {"A": single(rng, 20, 30), "B": blank(20, 30), "C": blank(20, 30)},
    lambda a: {"B": softmax(wide(a["A"])), "C": np.cumsum(wide(a["A"]) ** 2, 1)},
)
def rows_of_mathematics(
    A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")
):
    """A softmax and a scan, as loops of whole tensors."""
    for i in T.Parallel(M):
        most: T.float32 = -T.infinity("float32")
        for j in range(N):
            most = T.max(most, A[i, j])
        total: T.float32 = 0
        for j in range(N):
            total += T.exp(A[i, j] - most)
        running: T.float32 = 0
        for j in range(N):
            B[i, j] = T.exp(A[i, j] - most) / total
            running += A[i, j] * A[i, j]
            C[i, j] = running


@program(
    lambda rng: {
        "A": half(rng, 3, 40, 24),
        "B": half(rng, 3, 24, 56),
        "s": single(rng, 3),
        "C": blank(3, 40, 56),
    },
    lambda a: {"C": np.tanh(wide(a["A"]) @ wide(a["B"]) * a["s"][:, None, None])},
    3e-3,
)
def batches_of_mathematics(
    A: T.Tensor((L, M, K), "float16"), B: T.Tensor((L, K, N), "float16"),
    s: T.Tensor((L,), "float32"), C: T.Tensor((L, M, N), "float32"),
):  # fmt: skip
    for b, i, j in T.Parallel(L, M, N):
        acc: T.float32 = 0
        for k in range(K):
            acc += T.float32(A[b, i, k]) * T.float32(B[b, k, j])
        C[b, i, j] = T.tanh(acc * s[b])


@program(
    lambda rng: {"A": single(rng, 31), "B": single(rng, 5), "C": blank(27)},
    lambda a: {"C": np.correlate(wide(a["A"]), wide(a["B"]), "valid")},
)
def correlation(
    A: T.Tensor((N,), "float32"), B: T.Tensor((K,), "float32"), C: T.Tensor((M,), "float32")
):
    for i in T.Parallel(M):
        total: T.float32 = 0
        for k in range(K):
            total += A[i + k] * B[k]
        C[i] = total


def _relu_product(a: Arrays) -> np.ndarray:
    return np.maximum(wide(a["A"]) @ wide(a["B"]), 0)


@program(
    lambda rng: {
        "A": half(rng, 64, 64),
        "B": half(rng, 64, 64),
        "C": blank(64, 64),
        "S": blank(64),
    },
    lambda a: {"C": _relu_product(a) + np.arange(64)[:, None], "S": _relu_product(a).sum(1)},
    3e-3,
)
def threads_among_tiles(
    A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((64, 64), "float32"), S: T.Tensor((64,), "float32"),
):  # fmt: skip
    """A product by tiles, its row sums by shuffles, its rows changed by threads."""
    with T.Kernel(1, threads=(32, 4)):
        lane, w = T.get_thread_binding(0), T.get_thread_binding(1)
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        s = T.alloc_shared((64, 64), "float32")
        r = T.alloc_shared((64,), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(c)
        T.gemm(a, b, c)
        for i, j in T.Parallel(64, 64):
            c[i, j] = T.max(c[i, j], 0.0)
        T.copy(c, s)
        for q in range(16):
            v = s[q * 4 + w, lane] + s[q * 4 + w, lane + 32]
            for d in (16, 8, 4, 2, 1):
                v += T.shfl_xor(v, d)
            if lane == 0:
                r[q * 4 + w] = v
        T.sync_threads()
        T.copy(r, S)
        for i in range(16):
            s[i * 4 + w, lane] = s[i * 4 + w, lane] + (i * 4 + w)
            s[i * 4 + w, lane + 32] += i * 4 + w
        T.copy(s, C)


def _hadamard(a: Arrays) -> np.ndarray:
    h = np.array([[(-1) ** bin(i & j).count("1") for j in range(128)] for i in range(128)])
    return np.asarray(np.pad(wide(a["A"]), ((0, 0), (0, 28))) @ h)


@program(
    lambda rng: {"A": single(rng, 3, 100), "B": blank(3, 128)}, lambda a: {"B": _hadamard(a)}, 1e-4
)
def hadamard(A: T.Tensor((M, 100), "float32"), B: T.Tensor((M, 128), "float32")):
    """Butterflies between the registers of a lane, then between lanes."""
    with T.Kernel(M, threads=32) as b:
        lane = T.get_lane_idx(32)
        v = T.alloc_local((4,), "float32")
        for e in T.unroll(4):
            v[e] = A[b, lane * 4 + e] if lane * 4 + e < 100 else 0.0
        for s in (1, 2):
            for e in (0, 1, 2, 3):
                if e & s == 0:
                    x, y = v[e], v[e | s]
                    v[e] = x + y
                    v[e | s] = x - y
        for d in [1 << n for n in range(5)]:
            for e in range(4):
                other = T.shfl_xor(v[e], d)
                v[e] = T.if_then_else(lane & d != 0, other - v[e], other + v[e])
        T.copy(v, B[b, lane * 4 : lane * 4 + 4])


@program(
    lambda rng: {"A": single(rng, 300), "S": blank(5), "B": blank(300)},
    lambda a: {"B": np.cumsum(wide(a["A"]))},
    1e-4,
)
def scan_of_a_grid(
    A: T.Tensor((N,), "float32"), S: T.Tensor((K,), "float32"), B: T.Tensor((N,), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as b:
        x = T.alloc_shared((64,), "float32")
        T.copy(A[b * 64], x)
        T.cumsum(x)
        for _ in T.Parallel(1):
            S[b] = x[63]
        T.copy(x, B[b * 64])
        T.sync_grid()
        before = T.alloc_var("float32", 0.0)
        for k in range(b):
            before += S[k]
        for i in T.Parallel(64):
            B[b * 64 + i] = B[b * 64 + i] + before


@program(
    lambda rng: {"A": single(rng, 64, 40), "B": blank(64)},
    lambda a: {"B": wide(a["A"]).sum(1)},
)
def five_threads_then_a_hundred(A: T.Tensor((M, 40), "float32"), B: T.Tensor((M,), "float32")):
    parts = T.alloc_global((M, 5), "float32")
    with T.Kernel(M, threads=5) as b:
        t = T.get_thread_binding()
        total = T.alloc_var("float32", 0.0)
        for j in range(8):
            total += A[b, t * 8 + j]
        parts[b, t] = total
    with T.Kernel(T.ceildiv(M, 100), threads=(50, 2)) as b:
        t = T.get_thread_binding(0) + 50 * T.get_thread_binding(1)
        total = T.alloc_var("float32", 0.0)
        if b * 100 + t < M:
            for j in range(5):
                total += parts[b * 100 + t, j]
            B[b * 100 + t] = total


@dataclass(frozen=True)
class Config:
    rows: int = 16
    columns: int = 24
    scale: float = 1.5
    kinds: tuple[str, ...] = ("relu", "square", "none")

    def area(self) -> int:
        return self.rows * self.columns


CONFIG = Config()


@T.macro
def act(x, kind="none", *, by=2.0):
    if kind == "relu":
        return T.max(x, 0.0)
    elif kind == "square":
        return x * x
    return x * by


def _activated(a: Arrays) -> np.ndarray:
    x = wide(a["A"]) * 1.5 + 7
    return np.stack([np.maximum(x, 0), x * x, x * 3])


@program(
    lambda rng: {"A": single(rng, 50, 60), "B": blank(3, 50, 60), "C": blank(60)},
    lambda a: {"B": _activated(a), "C": _activated(a)[2][-2]},
)
def python_of_many_kinds(
    A: T.Tensor((50, N), "float32"), B: T.Tensor((3, 50, N), "float32"),
    C: T.Tensor((N,), "float32"),
):  # fmt: skip
    """A dataclass of constants, a list of buffers, a comprehension, a macro with keywords."""
    tile = {"m": CONFIG.rows, "n": CONFIG.columns}
    assert CONFIG.area() == tile["m"] * tile["n"], f"area {CONFIG.area()}"
    with T.Kernel(T.ceildiv(N, tile["n"]), T.ceildiv(50, tile["m"]), threads=128) as (bx, by):
        y, x = by * tile["m"], bx * tile["n"]
        tiles = [T.alloc_fragment((tile["m"], tile["n"]), "float32") for _ in CONFIG.kinds]
        offsets = [2**q for q in range(3)]
        for n, (kind, t) in enumerate(zip(CONFIG.kinds, tiles)):
            for i, j in T.Parallel(tile["m"], tile["n"]):
                t[i, j] = act(A[y + i, x + j] * CONFIG.scale + sum(offsets), kind=kind, by=3.0)
            T.copy(t, B[n, y, x])
        for j in T.Parallel(tile["n"]):
            if by == 0:
                C[x + j] = act(A[-2, x + j] * CONFIG.scale + sum(offsets), by=3.0)
