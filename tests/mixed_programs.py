"""Right programs for `test_mixed_words` that put words together as users of several languages do:
ranks, odd extents, narrow dtypes, blocks of any shape. `PROGRAMS`: name -> (kernel, makes its
arrays, computes what the outputs must hold, the tolerance, the targets it is for)."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from user_case import Arrays, Rng, blank, half, single, wide

import tilec
import tilec.language as T

M, N, K, L = T.dynamic("M, N, K, L")
TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
Program = tuple[Any, Callable[[Rng], Arrays], Callable[[Arrays], Arrays], float, tuple[str, ...]]
PROGRAMS: dict[str, Program] = {}


def program(
    make: Callable[[Rng], Arrays],
    want: Callable[[Arrays], Arrays],
    tolerance: float = 1e-5,
    targets: tuple[str, ...] = TARGETS,
) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Any:
        kernel = tilec.kernel(function)
        PROGRAMS[function.__name__] = kernel, make, want, tolerance, targets
        return kernel

    return add


@program(
    lambda rng: {
        "A": single(rng, 3, 5, 7, 11),
        "B": blank(3, 7, 11),
        "C": blank(3, 5, 11),
        "D": blank(5, 7, 11),
    },
    lambda a: {"B": wide(a["A"]).sum(1), "C": wide(a["A"]).max(2), "D": wide(a["A"]).min(0)},
)
def dimensions_of_four(
    A: T.Tensor((3, 5, 7, 11), "float32"), B: T.Tensor((3, 7, 11), "float32"),
    C: T.Tensor((3, 5, 11), "float32"), D: T.Tensor((5, 7, 11), "float32"),
):  # fmt: skip
    with T.Kernel(1, threads=100):
        x = T.alloc_fragment((3, 5, 7, 11), "float32")
        b = T.alloc_fragment((3, 7, 11), "float32")
        c = T.alloc_shared((3, 5, 11), "float32")
        d = T.alloc_fragment((5, 7, 11), "float32")
        T.copy(A, x)
        T.reduce_sum(x, b, dim=1)
        T.copy(b, B)
        T.reduce_max(x, c, dim=-2)
        T.copy(c, C)
        T.reduce_min(x, d, dim=0)
        T.copy(d, D)


@program(
    lambda rng: {
        "A": rng.integers(-128, 128, (9, 6, 13)).astype(np.int8),
        "U": rng.integers(0, 65536, (17, 33)).astype(np.uint16),
        "B": blank(9, 13, dtype=np.int32),
        "C": blank(9, 6, dtype=np.int8),
        "D": blank(17, dtype=np.uint32),
        "E": blank(33, dtype=bool),
    },
    lambda a: {
        "B": a["A"].astype(np.int64).sum(1),
        "C": np.bitwise_xor.reduce(a["A"], 2),
        "D": a["U"].astype(np.int64).sum(1),
        "E": (a["U"] > 60000).any(0),
    },
)
def narrow_ints(
    A: T.Tensor((9, 6, 13), "int8"), U: T.Tensor((17, 33), "uint16"), B: T.Tensor((9, 13), "int32"),
    C: T.Tensor((9, 6), "int8"), D: T.Tensor((17,), "uint32"), E: T.Tensor((33,), "bool"),
):  # fmt: skip
    with T.Kernel(1, threads=(7, 5)):
        x = T.alloc_shared((9, 6, 13), "int8")
        u = T.alloc_fragment((17, 33), "uint16")
        large = T.alloc_fragment((17, 33), "bool")
        b = T.alloc_fragment((9, 13), "int32")
        c = T.alloc_fragment((9, 6), "int8")
        d = T.alloc_fragment((17,), "uint32")
        e = T.alloc_fragment((33,), "bool")
        T.copy(A, x)
        T.copy(U, u)
        for i, j in T.Parallel(17, 33):
            large[i, j] = u[i, j] > 60000
        T.reduce_sum(x, b, dim=1)
        T.reduce_bitxor(x, c, dim=2)
        T.reduce_sum(u, d, dim=1)
        T.reduce_bitor(large, e, dim=0)
        T.copy(b, B)
        T.copy(c, C)
        T.copy(d, D)
        T.copy(e, E)


@program(
    lambda rng: {"A": single(rng, 13, 9), "B": blank(13, 9), "C": blank(13, 9), "D": blank(13, 9)},
    lambda a: {
        "B": np.cumsum(wide(a["A"])[::-1], 0)[::-1],
        "C": np.maximum.accumulate(wide(a["A"])[:, ::-1], 1)[:, ::-1],
        "D": np.cumsum(wide(a["A"]), 1),
    },
)
def backwards(
    A: T.Tensor((13, 9), "float32"), B: T.Tensor((13, 9), "float32"),
    C: T.Tensor((13, 9), "float32"), D: T.Tensor((13, 9), "float32"),
):  # fmt: skip
    """Running sums from the end along the first dimension, in a block of three dimensions."""
    with T.Kernel(1, threads=(3, 5, 2)):
        x = T.alloc_shared((13, 9), "float32")
        y = T.alloc_fragment((13, 9), "float32")
        z = T.alloc_fragment((13, 9), "float32")
        T.copy(A, x)
        T.cumsum(x, y, dim=0, reverse=True)
        T.copy(y, B)
        T.copy(A, z)
        T.cummax(z, dim=1, reverse=True)
        T.copy(z, C)
        T.cumsum(x, dim=-1)
        T.copy(x, D)


@program(
    lambda rng: {"A": single(rng, 37, 50), "S": blank(37), "X": blank(50)},
    lambda a: {"S": wide(a["A"]).sum(1) * 3, "X": wide(a["A"]).max(0)},
)
def reducers_in_loops(
    A: T.Tensor((M, 50), "float32"), S: T.Tensor((M,), "float32"), X: T.Tensor((50,), "float32")
):
    with T.Kernel(1, threads=64):
        s = T.alloc_reducer((37,), "float32", op="sum")
        m = T.alloc_reducer((50,), "float32", op="max")
        T.reducer_init(s)
        T.reducer_init(m)
        for _ in T.serial(3):
            for q in range(2):
                for i, j in T.Parallel(37, 25):
                    T.reducer_update(s[i], A[i, q * 25 + j])
        for j, i in T.Parallel(50, 37):
            m[j] = T.max(m[j], A[i, j])
        T.finalize_reducer(s, S[0])
        T.finalize_reducer(m, X)


@program(
    lambda rng: {"A": single(rng, 6, 10, 8), "B": blank(6, 8), "C": blank(8, 60)},
    lambda a: {
        "B": wide(a["A"])[:, 2:9].mean(1),
        "C": np.cumsum(wide(a["A"]).reshape(60, 8), 0).T,
    },
)
def slices_and_views(
    A: T.Tensor((6, 10, 8), "float32"), B: T.Tensor((6, 8), "float32"),
    C: T.Tensor((8, 60), "float32"),
):  # fmt: skip
    """A reduction of a slice into a slice; a scan of a view, turned around."""
    with T.Kernel(1, threads=72):
        x = T.alloc_shared((6, 10, 8), "float32")
        y = T.alloc_shared((2, 6, 1, 8), "float32")
        turned = T.alloc_shared((8, 60), "float32")
        T.copy(A, x)
        T.reduce_sum(x[:, 2:9, :], y[1, :, :, :], dim=1)
        for i, j in T.Parallel(6, 8):
            B[i, j] = y[1, i, 0, j] / 7
        rows = T.reshape(x, (60, 8))
        T.cumsum(rows, dim=0)
        T.transpose(rows, turned)
        T.copy(turned, C)


@program(
    lambda rng: {"A": half(rng, 64, 96), "B": half(rng, 96, 48), "C": blank(64, 48)},
    lambda a: {"C": wide(a["A"]) @ wide(a["B"])},
    2e-3,
)
def product_of_views(
    A: T.Tensor((64, 96), "float16"), B: T.Tensor((96, 48), "float16"),
    C: T.Tensor((64, 48), "float32"),
):  # fmt: skip
    """Of two buffers' halves, seen in another shape; the other halves are never written."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((2, 64 * 96), "float16")
        b = T.alloc_shared((2, 3, 32 * 48), "float16")
        acc = T.alloc_fragment((64, 48), "float32")
        of_a = T.reshape(a, (2, 64, 96))
        of_b = T.reshape(b, (2, 96, 48))
        T.copy(A, of_a[1, :, :])
        T.copy(B, of_b[0, :, :])
        T.clear(acc)
        T.gemm(of_a[1, :, :], of_b[0, :, :], acc)
        T.copy(acc, C)


@program(
    lambda rng: {"A": half(rng, 64, 8), "O": np.zeros(8, np.float16), "P": blank(64, 8)},
    lambda a: {"O": wide(a["A"]).sum(0)},
    3e-2,
)
def four_halves_at_once(
    A: T.Tensor((64, 8), "float16"), O: T.Tensor((8,), "float16"),  # noqa: E741
    P: T.Tensor((64, 8), "float32"),
):  # fmt: skip
    with T.Kernel(2, threads=32) as b:
        t = T.get_thread_binding(0)
        v = T.alloc_local((4,), "float16")
        for h in range(2):
            for j in T.vectorized(4):
                v[j] = A[b * 32 + t, h * 4 + j]
            old = T.atomic_addx4(O[h * 4], v[0], return_prev=True)
            for j in (0, 1, 2, 3):
                P[b * 32 + t, h * 4 + j] = old[j]


@program(
    lambda rng: {
        "A": rng.integers(0, 200, 64).astype(np.uint8),
        "X": np.array([-3.5, np.inf, 2], np.float32),
        "H": np.array([5, -5], np.float16),
        "U": np.array([7, 255, 1], np.uint8),
        "S": np.array([1, 2], np.int16),
        "E": np.array([9], np.int64),
    },
    lambda a: {
        "X": [min(-3.5, -7.0 - a["A"].max()), -float(a["A"].max()), 2 + wide(a["A"]).sum()],
        "H": [min(5, (wide(a["A"]) - 100).min()), max(-5, (wide(a["A"]) - 100).max())],
        "U": [
            7 ^ np.bitwise_xor.reduce(a["A"]),
            np.bitwise_and.reduce(a["A"]),
            1 + a["A"].astype(int).sum() & 255,
        ],
        "S": [a["A"].max(), 2 - a["A"].astype(int).sum()],
        "E": [73],
    },
)
def atomics_of_many_kinds(
    A: T.Tensor((64,), "uint8"), X: T.Tensor((3,), "float32"), H: T.Tensor((2,), "float16"),
    U: T.Tensor((3,), "uint8"), S: T.Tensor((2,), "int16"), E: T.Tensor((1,), "int64"),
):  # fmt: skip
    with T.Kernel(2, threads=32) as b:
        for i in T.Parallel(32):
            v = A[b * 32 + i]
            f = T.float32(v)
            T.atomic_min(X[0], -7.0 - f)
            T.atomic_min(X[1], -f)
            T.atomic_add(X[2], f)
            T.atomic_min(H[0], f - 100.0)
            T.atomic_max(H[1], T.float16(f) - 100)
            T.atomic_xor(U[0], v)
            T.atomic_and(U[1], v)
            T.atomic_add(U[2], v)
            T.atomic_max(S[0], T.int16(v))
            T.atomic_add(S[1], -T.int16(v))
        done = T.alloc_var("bool", False)
        while not done:
            seen = T.atomic_load(E[0])
            done = T.atomic_cas(E[0], seen, seen + 1) == seen


@program(
    lambda rng: {
        "A": single(rng, 33, 40),
        "O": np.zeros(40, np.float32),
        "X": np.full(33, -np.inf, np.float32),
    },
    lambda a: {"O": wide(a["A"]).sum(0), "X": wide(a["A"]).max(1)},
)
def tiles_by_atomics(
    A: T.Tensor((M, 40), "float32"), O: T.Tensor((40,), "float32"),  # noqa: E741
    X: T.Tensor((M,), "float32"),
):  # fmt: skip
    with T.Kernel(T.ceildiv(M, 8), threads=128) as b:
        x = T.alloc_shared((8, 40), "float32")
        s = T.alloc_shared((40,), "float32")
        f = T.alloc_fragment((40,), "float32")
        m = T.alloc_fragment((8,), "float32")
        T.copy(A[b * 8, 0], x)
        T.reduce_sum(x, f, dim=0)
        T.copy(f, s)
        T.atomic_add(O, s, use_tma=True)
        T.reduce_max(x, m, dim=1)
        T.atomic_max(X[b * 8], m)


def _scattered(a: Arrays) -> Arrays:
    c = blank(30)
    for n, i in enumerate(a["I"]):
        if 0 <= i < 30:
            c[i] = n
    inside = (a["I"] >= 0) & (a["I"] < 30)
    return {"B": np.where(inside, a["A"][np.where(inside, a["I"], 0)], 0), "C": c}


@program(
    lambda rng: {
        "A": single(rng, 30),
        "I": np.array([-1, 5, 29, 30, 10**6, -7, 0, 2**40], np.int64),
        "B": blank(8),
        "C": blank(30),
    },
    _scattered,
)
def indices_far_away(
    A: T.Tensor((N,), "float32"), I: T.Tensor((8,), "int64"),  # noqa: E741
    B: T.Tensor((8,), "float32"), C: T.Tensor((N,), "float32"),
):  # fmt: skip
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding()
        if t < 8:
            B[t] = A[I[t]]
            C[I[t]] = T.float32(t)


def _weights(a: Arrays) -> np.ndarray:
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = np.stack([a["W"] & 15, a["W"] >> 4], -1).reshape(len(a["W"]), -1)
    numbers = np.concatenate([table, -table])[codes]
    return np.asarray(numbers * a["S"].astype(np.float64).repeat(24, 1))


@program(
    lambda rng: {
        "W": rng.integers(0, 256, (40, 24)).astype(np.uint8),
        "S": (127 + rng.integers(-3, 4, (40, 2))).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu),
        "A": half(rng, 20, 48),
        "C": blank(20, 40),
    },
    lambda a: {"C": wide(a["A"]) @ _weights(a).T},
    3e-3,
)
def four_bits_and_scales(
    W: T.Tensor((N, K), "float4_e2m1"), S: T.Tensor((N, 2), "float8_e8m0"),
    A: T.Tensor((M, K), "float16"), C: T.Tensor((M, N), "float32"),
):  # fmt: skip
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=64) as (bx, by):
        a = T.alloc_shared((16, 48), "float16")
        w = T.alloc_shared((16, 48), "float16")
        q = T.alloc_fragment((16, 48), "float4_e2m1")
        c = T.alloc_fragment((16, 16), "float32")
        T.copy(A[by * 16, 0], a)
        T.copy(W[bx * 16, 0], q)
        for i, j in T.Parallel(16, 48):
            w[i, j] = T.float16(q[i, j]) * T.float16(S[bx * 16 + i, j // 24])
        T.gemm(a, w, c, transpose_B=True, clear_accum=True)
        T.copy(c, C[by * 16, bx * 16])
