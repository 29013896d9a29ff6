"""Programs of `user_programs`: tiles moved, reduced row by row, converted."""

from typing import Any

import ml_dtypes
import numpy as np
from user_case import Arrays, Rng, blank, case, half, single, softmax, wide

import tilec.language as T
from tilec.layout import make_swizzled_layout

M, N, K, B = T.dynamic("M, N, K, B")


@case(
    lambda rng: {"A": single(rng, 70, 45), "C": blank(45, 70)},
    lambda a: {"C": a["A"].T},
)
def transpose_padded(A: T.Tensor((M, N), "float32"), C: T.Tensor((N, M), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=256) as (bx, by):
        tile = T.alloc_shared((32, 33), "float32")
        for i, j in T.Parallel(32, 32):
            tile[i, j] = A[by * 32 + i, bx * 32 + j]
        for i, j in T.Parallel(32, 32):
            C[bx * 32 + i, by * 32 + j] = tile[j, i]


@case(
    lambda rng: {"A": single(rng, 100, 70), "C": blank(100, 70)},
    lambda a: {"C": -a["A"]},
)
def swizzled_without_a_loop(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=64) as (bx, by):
        T.use_swizzle(4, order="column")
        for i, j in T.Parallel(16, 16):
            C[by * 16 + i, bx * 16 + j] = -A[by * 16 + i, bx * 16 + j]


@case(
    lambda rng: {"A": half(rng, 96, 160), "C": blank(160, 96, dtype=np.float16)},
    lambda a: {"C": a["A"].T},
)
def transpose_swizzled(A: T.Tensor((M, N), "float16"), C: T.Tensor((N, M), "float16")):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        tile = T.alloc_shared((64, 64), "float16")
        T.annotate_layout({tile: make_swizzled_layout(tile)})
        T.copy(A[by * 64, bx * 64], tile)
        for i, j in T.Parallel(64, 64):
            C[bx * 64 + i, by * 64 + j] = tile[j, i]


@case(
    lambda rng: {"A": single(rng, 40, 24), "C": blank(40, 24)},
    lambda a: {"C": a["A"]},
)
def lambda_layout(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 32), threads=64) as (bx, by):
        tile = T.alloc_shared((32, 16), "float32")
        T.annotate_layout({tile: T.Layout((32, 16), lambda i, j: j * 32 + i)})
        T.copy(A[by * 32, bx * 16], tile)
        T.copy(tile, C[by * 32, bx * 16])


@case(
    lambda rng: {
        "A": single(rng, 50, 80)[::-1, ::2],
        "C": blank(40, 50).T,
    },
    lambda a: {"C": a["A"] * 2},
)
def odd_strides(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 16), threads=128) as (bx, by):
        tile = T.alloc_shared((16, 32), "float32")
        T.copy(A[by * 16, bx * 32], tile)
        for i, j in T.Parallel(16, 32):
            C[by * 16 + i, bx * 32 + j] = tile[i, j] * 2.0


@case(
    lambda rng: {"A": single(rng, 30, 41), "C": blank(30, 41)},
    lambda a: {"C": _blur(a["A"], 5.0)},
)
def stencil_halo(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 8), threads=128) as (bx, by):
        T.annotate_safe_value({A: 5.0})
        tile = T.alloc_shared((10, 34), "float32")
        for i, j in T.Parallel(10, 34):
            tile[i, j] = A[by * 8 + i - 1, bx * 32 + j - 1]
        for i, j in T.Parallel(8, 32):
            C[by * 8 + i, bx * 32 + j] = (
                tile[i, j + 1] + tile[i + 2, j + 1] + tile[i + 1, j] + tile[i + 1, j + 2]
            ) * 0.25 + tile[i + 1, j + 1]


def _blur(a: np.ndarray, edge: float) -> np.ndarray:
    p = np.pad(a, 1, constant_values=edge)
    return (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]) * 0.25 + a


@case(
    lambda rng: {"A": half(rng, 3, 40, 36), "C": blank(3, 36, 40, dtype=np.float16)},
    lambda a: {"C": a["A"].transpose(0, 2, 1)},
)
def batched_transpose(A: T.Tensor((B, M, N), "float16"), C: T.Tensor((B, N, M), "float16")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 32), B, threads=64) as (bx, by, bz):
        f = T.alloc_fragment((32, 16), "float16")
        T.copy(A[bz, by * 32, bx * 16], f)
        for i, j in T.Parallel(32, 16):
            C[bz, bx * 16 + j, by * 32 + i] = f[i, j]


@case(
    lambda rng: {
        "A": rng.integers(-100, 100, (37,)).astype(np.int32),
        "C": blank(37, dtype=np.int32),
    },
    lambda a: {"C": a["A"][::-1]},
)
def reverse_vector(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        for i in T.Parallel(128):
            C[N - 1 - (bx * 128 + i)] = A[bx * 128 + i]


@case(
    lambda rng: {
        "A": single(rng, 20, 24),
        "I": rng.permutation(20).astype(np.int32),
        "C": blank(20, 24),
    },
    lambda a: {"C": a["A"][a["I"]]},
)
def gather_rows(
    A: T.Tensor((M, N), "float32"), I: T.Tensor((M,), "int32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 8), threads=64) as (bx, by):
        for i, j in T.Parallel(8, 32):
            C[by * 8 + i, bx * 32 + j] = A[I[by * 8 + i], bx * 32 + j]


# --- reductions and running values ---------------------------------------------------------------


@case(
    lambda rng: {"A": single(rng, 45, 200), "C": blank(45)},
    lambda a: {"C": wide(a["A"]).sum(1)},
)
def row_sums_serial(A: T.Tensor((M, N), "float32"), C: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 32), threads=64) as bx:
        tile = T.alloc_shared((32, 48), "float32")
        total = T.alloc_fragment((32,), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(N, 48), num_stages=3):
            T.copy(A[bx * 32, k * 48], tile)
            for i in T.Parallel(32):
                for j in T.serial(48):
                    total[i] += tile[i, j]
        T.copy(total, C[bx * 32])


@case(
    lambda rng: {"A": single(rng, 130, 40), "C": blank(40), "D": blank(40)},
    lambda a: {"C": wide(a["A"]).sum(0), "D": a["A"].max(0)},
)
def column_sum_and_max(
    A: T.Tensor((M, N), "float32"), C: T.Tensor((N,), "float32"), D: T.Tensor((N,), "float32")
):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        total = T.alloc_fragment((64,), "float32")
        most = T.alloc_fragment((64,), "float32")
        T.fill(most, -T.infinity("float32"))
        T.clear(total)
        tile = T.alloc_shared((16, 64), "float32")
        for k in T.Pipelined(T.ceildiv(M, 16), num_stages=2):
            T.copy(A[k * 16, bx * 64], tile)
            for j in T.Parallel(64):
                for i in T.serial(16):
                    total[j] = total[j] + tile[i, j]
                    if k * 16 + i < M:
                        most[j] = T.max(most[j], tile[i, j])
        for j in T.Parallel(64):
            C[bx * 64 + j] = total[j]
            D[bx * 64 + j] = most[j]


@case(
    lambda rng: {"A": single(rng, 33, 70), "C": blank(33, 70)},
    lambda a: {"C": np.cumsum(wide(a["A"]), 1)},
)
def running_sum(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(M, 16), threads=64) as bx:
        carry = T.alloc_fragment((16,), "float32")
        tile = T.alloc_shared((16, 16), "float32")
        out = T.alloc_shared((16, 16), "float32")
        T.clear(carry)
        for k in T.Pipelined(T.ceildiv(N, 16), num_stages=2):
            T.copy(A[bx * 16, k * 16], tile)
            for i in T.Parallel(16):
                for j in T.serial(16):
                    carry[i] = carry[i] + tile[i, j]
                    out[i, j] = carry[i]
            T.copy(out, C[bx * 16, k * 16])


@case(
    lambda rng: {"A": single(rng, 21, 90), "C": blank(21, 90)},
    lambda a: {"C": softmax(wide(a["A"]))},
)
def softmax_two_passes(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(M, 16), threads=128) as bx:
        tile = T.alloc_shared((16, 32), "float32")
        most = T.alloc_fragment((16,), "float32")
        total = T.alloc_fragment((16,), "float32")
        T.fill(most, -1e30)
        T.clear(total)
        T.annotate_safe_value({A: -1e30})
        for k in T.Pipelined(T.ceildiv(N, 32), num_stages=2):
            T.copy(A[bx * 16, k * 32], tile)
            for i in T.Parallel(16):
                for j in T.serial(32):
                    new = T.max(most[i], tile[i, j])
                    total[i] = total[i] * T.exp(most[i] - new) + T.exp(tile[i, j] - new)
                    most[i] = new
        f = T.alloc_fragment((16, 32), "float32")
        for k in T.serial(T.ceildiv(N, 32)):
            T.copy(A[bx * 16, k * 32], f)
            for i, j in T.Parallel(16, 32):
                f[i, j] = T.exp(f[i, j] - most[i]) / total[i]
            T.copy(f, C[bx * 16, k * 32])


@case(
    lambda rng: {
        "A": single(rng, 40, 25),
        "S": single(rng, 40),
        "T_": single(rng, 25),
        "C": blank(40, 25),
    },
    lambda a: {"C": np.maximum(a["A"] * a["S"][:, None] + a["T_"][None], 0)},
)
def broadcast_rows_and_columns(
    A: T.Tensor((M, N), "float32"),
    S: T.Tensor((M,), "float32"),
    T_: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float32"),
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 16), threads=128) as (bx, by):
        a = T.alloc_fragment((16, 32), "float32")
        s = T.alloc_fragment((16,), "float32")
        t = T.alloc_fragment((32,), "float32")
        T.copy(A[by * 16, bx * 32], a)
        T.copy(S[by * 16], s)
        T.copy(T_[bx * 32], t)
        for i, j in T.Parallel(16, 32):
            a[i, j] = T.max(a[i, j] * s[i] + t[j], 0.0)
        T.copy(a, C[by * 16, bx * 32])


@case(
    lambda rng: {"A": single(rng, 60), "C": blank(60)},
    lambda a: {"C": _window_sum(wide(a["A"]))},
)
def window_sum(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 32), threads=64) as bx:
        for i in T.Parallel(32):
            total = T.alloc_var("float32")
            total = 0.0
            for d in T.serial(7):
                if d % 2 == 0:
                    total += A[bx * 32 + i + d - 3]
            C[bx * 32 + i] = total


def _window_sum(a: np.ndarray) -> np.ndarray:
    p = np.pad(a, 3)
    return sum(p[d : d + len(a)] for d in range(0, 7, 2))


def _cast_case(name: str, source: Any, dest: Any, sname: str, dname: str) -> None:
    def function(A: T.Tensor((N,), sname), C: T.Tensor((N,), dname)):
        with T.Kernel(T.ceildiv(N, 256), threads=64) as bx:
            for i in T.Parallel(256):
                C[bx * 256 + i] = T.cast(A[bx * 256 + i], dname)

    def through_shared(A: T.Tensor((N,), sname), C: T.Tensor((N,), dname)):
        with T.Kernel(T.ceildiv(N, 256), threads=64) as bx:
            s = T.alloc_shared((256,), sname)
            f = T.alloc_fragment((256,), dname)
            T.copy(A[bx * 256], s)
            T.copy(s, f)
            T.copy(f, C[bx * 256])

    def make(rng: Rng) -> Arrays:
        raw = rng.uniform(-100, 100, 300)
        a = (raw > 0) if source is np.bool_ else raw.astype(source)
        return {"A": a, "C": np.ones(300, dest)}

    for suffix, f in (("", function), ("_shared", through_shared)):
        case(make, lambda a: {"C": a["A"].astype(dest)}, f"cast_{name}{suffix}")(f)


for _name, _s, _d, _sn, _dn in (
    ("f16_f32", np.float16, np.float32, "float16", "float32"),
    ("f32_bf16", np.float32, ml_dtypes.bfloat16, "float32", "bfloat16"),
    ("bf16_f16", ml_dtypes.bfloat16, np.float16, "bfloat16", "float16"),
    ("f32_i8", np.float32, np.int8, "float32", "int8"),
    ("i8_f16", np.int8, np.float16, "int8", "float16"),
    ("i32_f32", np.int32, np.float32, "int32", "float32"),
    ("bool_i32", np.bool_, np.int32, "bool", "int32"),
    ("i8_bool", np.int8, np.bool_, "int8", "bool"),
    ("f32_e4m3", np.float32, ml_dtypes.float8_e4m3fn, "float32", "float8_e4m3"),
    ("e5m2_f16", ml_dtypes.float8_e5m2, np.float16, "float8_e5m2", "float16"),
    ("f64_i64", np.float64, np.int64, "float64", "int64"),
):
    _cast_case(_name, _s, _d, _sn, _dn)
