"""Kernels from Python to numbers: traced, then run by the reference interpreter."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontend_help import ops, run, traced

import tilec.language as T
from tilec.ir.layout import LayoutRequest
from tilec.ir.ops import AnnotateLayout, For, Gemm, Parallel, UseSwizzle, While
from tilec.layout import make_swizzled_layout

SEEDS = Path(__file__).parent / "seeds"


def half(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float16)


def single(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(got: np.ndarray, want: np.ndarray, tolerance: float = 2e-2) -> None:
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), atol=tolerance, rtol=tolerance
    )


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


def load_seed(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SEEDS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- TileLang's listings -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tilelang_gemm_simple", "tilelang_gemm_enhanced"])
@pytest.mark.parametrize("sizes", [(64, 48, 32), (37, 21, 29)])
def test_seed(name: str, sizes: tuple[int, int, int], rng: np.random.Generator) -> None:
    m, n, k = sizes
    main = load_seed(name).matmul(m, n, k, 32, 16, 16)
    a, b, c = half(rng, m, k), half(rng, k, n), half(rng, m, n)
    func = traced(main.function, {"A": a, "B": b, "C": c})
    (loop,) = [o for o in ops(func, For) if o.kind == "pipelined"]
    assert loop.num_stages == 3 and func.attrs["threads"] == 128
    (gemm,) = ops(func, Gemm)
    assert gemm.shape == (32, 16, 16) and gemm.a.buffer.name == "A_shared"
    close(run(main.function, {"A": a, "B": b, "C": c})["C"], product(a, b))


def test_enhanced_seed_annotations(rng: np.random.Generator) -> None:
    main = load_seed("tilelang_gemm_enhanced").matmul(32, 32, 32, 32, 32, 16)
    func = traced(main.function, {n: half(rng, 32, 32) for n in "ABC"})
    requests = ops(func, AnnotateLayout)
    assert [r.dest.name for r in requests] == ["A_shared", "B_shared"]
    assert {r.layout for r in requests} == {LayoutRequest("mma_swizzle")}
    assert [u.panel_size for u in ops(func, UseSwizzle)] == [10]
    (parallel,) = ops(func, Parallel)
    assert parallel.extents == (16, 32)


# --- three spellings of the grid -----------------------------------------------------------------

M, N, K = T.dynamic("M, N, K")


def dynamic_matmul(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = 16,
    BN: T.constexpr = 32,
    BK: T.constexpr = 8,
    stages: T.constexpr = 2,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=64) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK), num_stages=stages):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * BM, bx * BN])


def triton_matmul(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((N, K), "float16"),
    C: T.Tensor((M, N), "float32"),
    BM: T.constexpr,
    BN: T.constexpr,
):
    bx, by = T.program_id(0), T.program_id(1)
    A_s = T.alloc_shared((BM, 8), "float16")
    B_s = T.alloc_shared((BN, 8), "float16")
    acc = T.alloc_fragment((BM, BN), "float32")
    for k in range(T.cdiv(K, 8)):
        T.copy(A[by * BM : by * BM + BM, k * 8 : (k + 1) * 8], A_s)
        T.copy(B[bx * BN, k * 8], B_s)
        if k == 0:
            T.clear(acc)
        T.gemm(A_s, B_s, acc, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
    T.copy(acc, C[by * BM, bx * BN])


def launched_blocks(X: T.Tensor((M,), "float32"), Y: T.Tensor((M,), "float32")):
    with T.Kernel(threads=32) as bx:
        for i in T.Parallel(16):
            Y[bx * 16 + i] = T.exp(X[bx * 16 + i])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("sizes", [(37, 21, 29), (1, 1, 1), (32, 64, 16)])
def test_grid_in_the_kernel(sizes: Any, wide: bool, rng: np.random.Generator) -> None:
    m, n, k = sizes
    a, b = half(rng, m, k), half(rng, k, n)
    got = run(dynamic_matmul, {"A": a, "B": b, "C": half(rng, m, n)}, wide=wide)
    close(got["C"], product(a, b))


def test_grid_in_the_launch(rng: np.random.Generator) -> None:
    a, b = half(rng, 21, 19), half(rng, 35, 19)
    arrays = {"A": a, "B": b, "C": single(rng, 21, 35)}
    got = run(triton_matmul, arrays, launch=(3, 2), BM=12, BN=16)
    close(got["C"], product(a, b.T))


def test_kernel_without_extents(rng: np.random.Generator) -> None:
    x = single(rng, 45)
    got = run(launched_blocks, {"X": x, "Y": single(rng, 45)}, launch=(3,))
    close(got["Y"], np.exp(x), 1e-5)
    assert traced(launched_blocks, {"X": x, "Y": x}, grid="launch").attrs["grid_from_launch"]


def test_strided_arguments(rng: np.random.Generator) -> None:
    a = half(rng, 40, 60)[::2, 1:30:3]
    b = half(rng, 11, 10).T
    got = run(dynamic_matmul, {"A": a, "B": b, "C": half(rng, 20, 11)})
    close(got["C"], product(a, b))


# --- eager shapes, outputs -----------------------------------------------------------------------


def eager_matmul(A, B, BM: T.constexpr, dtype: T.constexpr = T.float16):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor[[K, N], dtype]
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, BM), T.ceildiv(M, BM)) as (bx, by):
        A_s = T.alloc_shared((BM, K), dtype)
        B_s = T.alloc_shared((K, BM), dtype)
        acc = T.alloc_fragment((BM, BM), "float")
        T.copy(A[by * BM, 0], A_s)
        T.copy(B[0, bx * BM], B_s)
        T.gemm(A_s, B_s, acc, clear_accum=True)
        T.copy(acc, C[by * BM, bx * BM])
    return C


def row_blocks(X: T.Tensor((M, N), "float32"), BM: T.constexpr = 8):
    first = T.empty((T.ceildiv(M, BM), N), "float32")
    double = T.empty((M + M, 3), "int32")
    with T.Kernel(T.ceildiv(M, BM)) as bx:
        for i in T.Parallel(16):
            first[bx, i] = X[bx * BM, i] * 2
        for i in T.Parallel(2 * BM):
            double[bx * 2 * BM + i, 1] = i
    return first, double


def test_eager(rng: np.random.Generator) -> None:
    a, b = half(rng, 21, 19), half(rng, 19, 35)
    func = traced(eager_matmul, {"A": a, "B": b}, BM=16)
    assert [p.role for p in func.params] == ["tensor"] * 3
    assert func.attrs["outputs"][0][:2] == ("C", (21, 35))
    close(run(eager_matmul, {"A": a, "B": b}, BM=16)["C"], product(a, b))


def test_allocated_outputs_with_run_time_extents(rng: np.random.Generator) -> None:
    x = single(rng, 19, 11)
    func = traced(row_blocks, {"X": x})
    assert [o[:2] for o in func.attrs["outputs"]] == [
        ("first", ("((M + 7) // 8)", "N")),
        ("double", ("(M + M)", 3)),
    ]
    got = run(row_blocks, {"X": x})
    close(got["first"], x[::8] * 2, 1e-6)
    assert got["double"].shape == (38, 3)
    np.testing.assert_array_equal(got["double"][:, 1], np.arange(38) % 16)


def test_out(rng: np.random.Generator) -> None:
    a, b = half(rng, 9, 8), half(rng, 8, 7)
    func = traced(dynamic_matmul, {"A": a, "B": b, "C": half(rng, 9, 7)}, out=("C",))
    assert [(n, s, d.name) for n, s, d in func.attrs["outputs"]] == [("C", ("M", "N"), "float16")]


# --- epilogues, element-wise maths ---------------------------------------------------------------


def bias_and_activation(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    bias: T.Tensor((N,), "float32"),
    scale: T.float32,
    C: T.Tensor((M, N), "float16"),
    activation: T.constexpr = "gelu",
):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16)) as (bx, by):
        A_s = T.alloc_shared((16, 16), A.dtype)
        B_s = T.alloc_shared((16, 16), B.dtype)
        acc = T.alloc_fragment((16, 16), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(A.shape[1], 16), num_stages=3):
            T.copy(A[by * 16, k * 16], A_s)
            T.copy(B[k * 16, bx * 16], B_s)
            T.gemm(A_s, B_s, acc)
        for i, j in T.Parallel(16, 16):
            acc[i, j] = acc[i, j] * scale + bias[bx * 16 + j]
            if activation == "gelu":
                acc[i, j] *= 0.5 * (1 + T.erf(acc[i, j] * 0.7071067811865476))
            elif activation == "relu":
                acc[i, j] = T.max(acc[i, j], 0)
            else:
                acc[i, j] = undefined_name  # noqa: F821 (never chosen: only parsed)
        T.copy(acc, C[by * 16, bx * 16])


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_fused_epilogue(activation: str, rng: np.random.Generator) -> None:
    a, b, bias = half(rng, 21, 19), half(rng, 19, 35), single(rng, 35)
    arrays = {"A": a, "B": b, "bias": bias, "scale": 0.25, "C": half(rng, 21, 35)}
    x = product(a, b) * 0.25 + bias
    if activation == "relu":
        want = np.maximum(x, 0)
    else:
        t = np.vectorize(math.erf)(x * 0.7071067811865476)
        want = 0.5 * x * (1 + t)
    close(run(bias_and_activation, arrays, activation=activation)["C"], want)


def clamp_rows(X: T.Tensor((M, 12), "float32"), Y: T.Tensor((M, 12), "float16"), low: T.float32):
    with T.Kernel(M) as m:
        row = T.alloc_fragment((12,), "float32")
        T.copy(X[m, 0], row)
        for i in T.Parallel(12):
            x = row[i]
            y = low if x < low else (1.5 if x > 1.5 else x)
            inside = -0.5 < x <= 0.5 and not T.isnan(x)
            Y[m, i] = T.if_then_else(inside, y.astype("float16"), T.float16(y * 2))


def test_conditional_expressions(rng: np.random.Generator) -> None:
    x = single(rng, 7, 12)
    got = run(clamp_rows, {"X": x, "Y": half(rng, 7, 12), "low": np.float32(-0.75)})
    y = np.clip(x, -0.75, 1.5)
    close(got["Y"], np.where((x > -0.5) & (x <= 0.5), y, 2 * y), 2e-3)


# --- control flow --------------------------------------------------------------------------------


def collatz(X: T.Tensor((M,), "int32"), steps: T.Tensor((M,), "int32"), limit: T.int32):
    with T.Kernel(M) as m:
        x = X[m]
        n = 0
        while x != 1 and n < limit:
            if x % 2 == 0:
                x = x // 2
            else:
                x = 3 * x + 1
            n += 1
        steps[m] = n


def first_above(X: T.Tensor((M, N), "float32"), at: T.Tensor((M,), "int32"), bound: T.float32):
    with T.Kernel(M) as m:
        found = -1
        total = 0.0
        for n in T.serial(N):
            if n % 3 == 1:
                continue
            total += X[m, n]
            if total > bound:
                found = n
                break
        at[m] = found


def downwards(X: T.Tensor((M,), "float32"), Y: T.Tensor((M,), "float32")):
    with T.Kernel(1) as _:
        last = T.alloc_var("float32", 0.0)
        for i in range(M - 1, -1, -2):
            last = last * 0.5 + X[i]
            Y[i] = last


def forever(X: T.Tensor((M,), "int32"), Y: T.Tensor((M,), "int32")):
    with T.Kernel(M) as m:
        x = X[m]
        while True:
            x = x + x
            if x > 100:
                break
            x = x + 1
        Y[m] = x


def static_loops(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32")):
    weights = [0.5, 2.0, -1.0]
    names = {"gain": 3}
    with T.Kernel(1) as _:
        for i in T.Parallel(8):
            total = X[i] * names["gain"]
            for n, (w, shift) in enumerate(zip(weights, (0, 1, 2))):
                if n == 2:
                    continue
                total = total + w * X[(i + shift) % 8]
            for w in weights:
                if X[i] > w:
                    total = total + 1
                    break
            Y[i] = total + len(weights) + sum_of([k * k for k in range(4) if k != 2])


@T.macro
def sum_of(values):
    total = 0
    for v in values:
        total = total + v
    return total


def test_while(rng: np.random.Generator) -> None:
    x = rng.integers(1, 30, 9).astype(np.int32)
    got = run(collatz, {"X": x, "steps": np.zeros(9, np.int32), "limit": 40})

    def count(v: int) -> int:
        n = 0
        while v != 1 and n < 40:
            v, n = (v // 2 if v % 2 == 0 else 3 * v + 1), n + 1
        return n

    np.testing.assert_array_equal(got["steps"], [count(int(v)) for v in x])


def test_break_and_continue(rng: np.random.Generator) -> None:
    x = single(rng, 9, 11)
    func = traced(first_above, {"X": x, "at": np.zeros(9, np.int32)})
    assert len(ops(func, While)) == 1 and not ops(func, For)
    got = run(first_above, {"X": x, "at": np.zeros(9, np.int32), "bound": 1.25})
    want = []
    for row in x:
        total, found = np.float32(0), -1
        for n, v in enumerate(row):
            if n % 3 != 1:
                total += v
                if total > 1.25:
                    found = n
                    break
        want.append(found)
    np.testing.assert_array_equal(got["at"], want)


def test_falling_range_and_variables(rng: np.random.Generator) -> None:
    x = single(rng, 8)
    got = run(downwards, {"X": x, "Y": np.zeros(8, np.float32)})
    want, last = np.zeros(8), 0.0
    for i in range(7, -1, -2):
        last = last * 0.5 + x[i]
        want[i] = last
    close(got["Y"], want, 1e-5)


def test_endless_while_with_break(rng: np.random.Generator) -> None:
    x = rng.integers(1, 60, 9).astype(np.int32)
    got = run(forever, {"X": x, "Y": np.zeros(9, np.int32)})

    def last(v: int) -> int:
        while True:
            v += v
            if v > 100:
                return v
            v += 1

    np.testing.assert_array_equal(got["Y"], [last(int(v)) for v in x])


def test_compile_time_loops(rng: np.random.Generator) -> None:
    x = single(rng, 8)
    got = run(static_loops, {"X": x, "Y": x})
    above = (x > 0.5) | (x > 2.0) | (x > -1.0)
    want = x * 3 + 0.5 * x + 2.0 * np.roll(x, -1) + above + 3 + (0 + 1 + 9)
    close(got["Y"], want, 1e-5)


# --- macros, persistent loops, the rest ----------------------------------------------------------


@T.macro
def tile_product(a, b, acc, k, step: int = 8):
    a_s = T.alloc_shared((acc.shape[0], step), "float16")
    b_s = T.alloc_shared((step, acc.shape[1]), "float16")
    load(a, a_s)
    load(b, b_s)
    T.gemm(a_s, b_s, acc)
    return k + step


@T.macro
def load(source, dest):
    T.copy(source, dest, coalesced_width=2)


def macro_matmul(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16)) as (bx, by):
        acc = T.alloc_fragment((16, 16), "float32")
        T.clear(acc)
        k = 0
        while k < K:
            k = tile_product(A[by * 16, k], B[k, bx * 16], acc, k)
        T.copy(acc, C[by * 16, bx * 16])


def persistent_scale(
    X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"), blocks: T.constexpr = 5
):
    with T.Kernel(blocks) as block:
        tiles = [T.ceildiv(M, 4), T.ceildiv(N, 8)]
        for by, bx in T.Persistent(tiles, blocks, block, group_size=3):
            for i, j in T.Parallel(4, 8):
                Y[by * 4 + i, bx * 8 + j] = (
                    X[by * 4 + i, bx * 8 + j] * 2 + Y[by * 4 + i, bx * 8 + j]
                )


def ring(X: T.Tensor((3, 5, 7), "float32"), Y: T.Tensor((3, 5, 7), "float32")):
    with T.Kernel(1) as _:
        S = T.alloc_shared((2, 5, 7), "float32")
        T.annotate_layout({S: make_swizzled_layout(S)})
        T.annotate_safe_value({X: 1.0})
        for b in T.unroll(3):
            T.copy(X[b, :, :], S[b % 2, :, :])
            T.copy(S[b % 2, 0:5, :], Y[b, 0, 0])
            T.fill(S[b % 2, 1:3, 0:7], -1)


def reads_outside(X: T.Tensor((M,), "float32"), Y: T.Tensor((M,), "float32")):
    with T.Kernel(1) as _:
        T.annotate_safe_value({X: 2.5})
        S = T.alloc_shared((16,), "float32")
        T.copy(X[0], S)
        for i in T.Parallel(16):
            left = S[i - 1] if i > 0 else 10.0
            right = T.if_then_else(i < 15, S[i + 1], -10.0)
            Y[i] = left + right + X[i + 3]


def test_macros(rng: np.random.Generator) -> None:
    a, b = half(rng, 21, 19), half(rng, 19, 35)
    got = run(macro_matmul, {"A": a, "B": b, "C": single(rng, 21, 35)})
    close(got["C"], product(a, b))


@pytest.mark.parametrize("sizes", [(29, 21), (1, 1), (4, 80)])
@pytest.mark.parametrize("blocks", [1, 5, 7])
def test_persistent_visits_every_tile_once(
    sizes: Any, blocks: int, rng: np.random.Generator
) -> None:
    x, y = single(rng, *sizes), single(rng, *sizes)
    got = run(persistent_scale, {"X": x, "Y": y}, blocks=blocks)
    close(got["Y"], x * 2 + y, 1e-5)


def test_regions_of_on_chip_buffers(rng: np.random.Generator) -> None:
    x = single(rng, 3, 5, 7)
    close(run(ring, {"X": x, "Y": single(rng, 3, 5, 7)})["Y"], x, 1e-6)


def test_guarded_reads_and_safe_values(rng: np.random.Generator) -> None:
    x = single(rng, 13)
    got = run(reads_outside, {"X": x, "Y": np.zeros(13, np.float32)})["Y"]
    padded = np.concatenate([[10.0], x, np.full(6, 2.5)]).astype(np.float32)
    want = padded[0:13] + padded[2:15] + padded[4:17]
    close(got, want, 1e-5)


def test_the_name_of_a_tuple_as_index(rng: np.random.Generator) -> None:
    def moves(X: T.Tensor((4, 5), "float32"), Y: T.Tensor((4, 5), "float32")):
        with T.Kernel(4, 5) as (bx, by):
            here, corner = (bx, by), (3, 4)
            Y[here] = X[here] + X[corner]

    x = single(rng, 4, 5)
    close(run(moves, {"X": x, "Y": np.zeros_like(x)})["Y"], x + x[3, 4], 1e-6)


def test_print(rng: np.random.Generator) -> None:
    label = "row"

    def prints(X: T.Tensor((M,), "int32")):
        with T.Kernel(1) as _:
            for k in range(2):
                T.print(f"{label} {k}: {X[k]} of {M} {{}}")
            T.print(X[0] + 1, msg="next")
            T.print("done")

    x = rng.integers(1, 99, 5).astype(np.int32)
    assert run(prints, {"X": x})["printed"] == [
        f"row 0: {x[0]} of 5 {{}}",
        f"row 1: {x[1]} of 5 {{}}",
        f"next: {x[0] + 1}",
        "done",
    ]
