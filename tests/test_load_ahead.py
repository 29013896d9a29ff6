"""load_ahead: which loads beside a loop's product are asked for in front of it, and that numbers
stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import Op
from tilec.ir.ops import Copy, For, Gemm, Load
from tilec.ir.parser import parse_func

M, K, N, G, R = T.dynamic("M, K, N, G, R")
HOPPER = "cuda:sm_90a"


def scaled(how: str = "") -> Any:
    """A product whose steps have scales of their own: one for each row, and one for all rows."""

    @tilec.kernel
    def product(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, 64), "float16"),
        Rows: T.Tensor((M, G), "float32"),
        Whole: T.Tensor((R,), "float32"),
        C: T.Tensor((M, 64), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            part, acc = (T.alloc_fragment((64, 64), "float32") for _ in range(2))
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[bx * 64, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, part, clear_accum=True)
                if how == "by data":
                    whole = Whole[T.int32(Rows[0, k])]
                else:
                    whole = Whole[0] if how == "fixed" else Whole[k]
                for i, j in T.Parallel(64, 64):
                    acc[i, j] += part[i, j] * (Rows[bx * 64 + i, k] * whole)
                if how == "written":
                    Whole[k] = 0
                    Rows[bx * 64, k] = 0
            T.copy(acc, C[bx * 64, 0])

    return product


def given(m: int, k: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    rng = np.random.default_rng(m + k)
    steps = -(-k // 64)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, 64)))
    rows, whole = (rng.random(s).astype(np.float32) for s in ((m, steps), (steps,)))
    scale = np.repeat(rows * whole.astype(np.float64), 64, 1)[:, :k]
    want = (a * scale) @ b.astype(np.float64)
    return (a, b, rows, whole, np.full((m, 64), np.nan, np.float32)), want


def reads(op: Op) -> str:
    source = op.source.buffer if isinstance(op, Copy) else op.source if isinstance(op, Load) else op
    return getattr(source, "name", "")


def in_front(kernel: Any, *args: Any) -> set[str]:
    """The tensors that are read in front of the loop's product."""
    body = parse_func(kernel.compile(*args, target=HOPPER).stages["load_ahead"]).body
    (loop,) = [o for o in body.every(For) if o.kind == "pipelined"]
    at = next(n for n, o in enumerate(loop.body.ops) if isinstance(o, Gemm))
    return {reads(o) for o in loop.body.ops[:at]}


def test_scales_are_asked_for_in_front_of_the_product() -> None:
    args, _ = given(100, 200)
    assert {"Rows", "Whole"} <= in_front(scaled(), *args)


@pytest.mark.parametrize("how", ["by data", "written"])
def test_what_is_loaded_where_it_is_used(how: str) -> None:
    """What is loaded at a place that was loaded, and what the kernel writes."""
    args, _ = given(100, 200)
    found = in_front(scaled(how), *args)
    assert "Whole" not in found
    assert ("Rows" in found) == (how == "by data")


def test_only_beside_a_product() -> None:
    @tilec.kernel
    def sums(
        X: T.Tensor((M, 64), "float32"),
        S: T.Tensor((R,), "float32"),
        Y: T.Tensor((M, 64), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
            tile, acc = T.alloc_shared((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(R, num_stages=2):
                T.copy(X[bx * 64, 0], tile)
                for i, j in T.Parallel(64, 64):
                    acc[i, j] += tile[i, j] * S[k]
            T.copy(acc, Y[bx * 64, 0])

    x, s = np.ones((70, 64), np.float32), np.arange(5, dtype=np.float32)
    y = np.zeros_like(x)
    stages = sums.compile(x, s, y, target=HOPPER).stages
    assert stages["load_ahead"] == stages["convert_fragments"]
    assert tilec.simulate(sums, x, s, y, target=HOPPER).ok
    np.testing.assert_array_equal(y, np.full_like(y, 10))


@pytest.mark.parametrize("how", ["", "fixed"])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (64, 64), (100, 200), (130, 65)])
def test_numbers(m: int, k: int, how: str) -> None:
    args, want = given(m, k)
    if how == "fixed":
        args[3][:] = args[3][0]
        want = given(m, k)[1]
        scale = np.repeat(args[2] * args[3].astype(np.float64), 64, 1)[:, :k]
        want = (args[0] * scale) @ args[1].astype(np.float64)
    report = tilec.simulate(scaled(how), *args, target=HOPPER)
    assert report.ok, str(report)
    np.testing.assert_allclose(args[4], want, atol=2e-2)


@pytest.mark.parametrize("overlap", [True, False])
def test_a_bias_beside_two_products(overlap: bool) -> None:
    """Attention: the bias is on its way while the scores are computed."""

    @tilec.kernel
    def attention(
        Q: T.Tensor((M, 64), "float16"),
        Kx: T.Tensor((N, 64), "float16"),
        V: T.Tensor((N, 64), "float16"),
        Bias: T.Tensor((M, N), "float16"),
        O: T.Tensor((M, 64), "float16"),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
            T.annotate_schedule(specialise=True, overlap=overlap)
            q, k, v = (T.alloc_shared((64, 64), "float16") for _ in range(3))
            s, o = (T.alloc_fragment((64, 64), "float32") for _ in range(2))
            p = T.alloc_fragment((64, 64), "float16")
            total, more = (T.alloc_fragment((64,), "float32") for _ in range(2))
            T.copy(Q[bx * 64, 0], q)
            T.clear(o)
            T.clear(total)
            for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
                T.copy(Kx[n * 64, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(64, 64):
                    x = s[i, j] * 0.125 + Bias[bx * 64 + i, n * 64 + j]
                    s[i, j] = T.if_then_else(n * 64 + j < N, T.exp(x), 0.0)
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(64):
                    total[i] += more[i]
                T.copy(s, p)
                T.copy(V[n * 64, 0], v)
                T.gemm(p, v, o)
            for i, j in T.Parallel(64, 64):
                o[i, j] /= total[i]
            T.copy(o, O[bx * 64, 0])

    rng = np.random.default_rng(1)
    for m, n in ((100, 130), (64, 192), (1, 1)):
        q, k, v = (rng.standard_normal((rows, 64)).astype(np.float16) for rows in (m, n, n))
        bias, out = rng.standard_normal((m, n)).astype(np.float16), np.zeros((m, 64), np.float16)
        report = tilec.simulate(attention, q, k, v, bias, out, target=HOPPER)
        assert report.ok, str(report)
        e = np.exp(q.astype(np.float64) @ k.T.astype(np.float64) / 8 + bias)
        np.testing.assert_allclose(out, e / e.sum(1, keepdims=True) @ v, atol=5e-3)
    text = attention.compile(q, k, v, bias, out, target=HOPPER).stages["load_ahead"]
    assert text.index("for.pipelined") < text.index("copy %Bias") < text.index("gemm %q")
