"""Shared tiles whose rows only the narrowest swizzle fits get rows of whole 64 bytes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

S = T.dynamic("S")


def scores(dim: int, value_dim: int, heads: int = 1, stages: int = 2, keys: int = 32) -> Any:
    """(Q Kᵀ) V without a softmax. `heads`: of which the columns of a tensor's rows are made."""

    @tilec.kernel
    def kernel(
        Q: T.Tensor((S, heads * dim), "float16"),
        K: T.Tensor((S, heads * dim), "float16"),
        V: T.Tensor((S, heads * value_dim), "float16"),
        O: T.Tensor((S, heads * value_dim), "float32"),  # noqa: E741
    ):
        with T.Kernel(T.ceildiv(S, 64), heads, threads=128) as (bx, h):
            q = T.alloc_shared((64, dim), "float16")
            k = T.alloc_shared((keys, dim), "float16")
            v = T.alloc_shared((keys, value_dim), "float16")
            s = T.alloc_fragment((64, keys), "float32")
            p = T.alloc_fragment((64, keys), "float16")
            o = T.alloc_fragment((64, value_dim), "float32")
            T.copy(Q[bx * 64, h * dim], q)
            T.clear(o)
            for n in T.Pipelined(T.ceildiv(S, keys), num_stages=stages):
                T.copy(K[n * keys, h * dim], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                T.copy(s, p)
                T.copy(V[n * keys, h * value_dim], v)
                T.gemm(p, v, o)
            T.copy(o, O[bx * 64, h * value_dim])

    return kernel


def specs(s: int, dim: int, value_dim: int, heads: int = 1) -> list[Any]:
    widths = (dim, dim, value_dim)
    made = [tilec.spec((s, heads * w), "float16") for w in widths]
    return [*made, tilec.spec((s, heads * value_dim), "float32")]


def tiles(kernel: Any, given: list[Any], target: str = "cuda:sm_90a") -> list[str]:
    text = kernel.compile(*given, target=target).stages["pad_tiles"]
    return re.findall(r"alloc shared<(\d+x\d+)xf16>", text)


@pytest.mark.parametrize(
    ("dim", "wide"),
    [(40, 48), (48, 64), (64, 64), (72, 80), (80, 96), (96, 96), (112, 128), (144, 160)],
)
def test_rows_are_whole_swizzles(dim: int, wide: int) -> None:
    got = tiles(scores(dim, 64), specs(100, dim, 64))
    assert got == [f"64x{wide}", f"32x{wide}", "32x64"]


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_where_no_instruction_reads_swizzles_rows_stay(target: str) -> None:
    assert tiles(scores(80, 112), specs(100, 80, 112), target) == ["64x80", "32x80", "32x112"]


def test_a_wider_tile_has_to_fit() -> None:
    fits = tiles(scores(112, 112, stages=2, keys=128), specs(256, 112, 112))
    assert fits == ["64x128", "128x128", "128x128"]
    full = tiles(scores(112, 112, stages=4, keys=112), specs(256, 112, 112))
    assert full == ["64x112", "112x112", "112x112"]  # 217 kB; 246 kB with wider rows


def test_columns_that_end_inside_of_their_tensor_stay() -> None:
    """What is behind them would be read for nothing."""
    assert tiles(scores(80, 80, 2), specs(100, 80, 80, 2)) == ["64x80", "32x80", "32x80"]


def test_a_tile_that_threads_or_stores_use_stays() -> None:
    @tilec.kernel
    def kernel(
        A: T.Tensor((64, 80), "float16"),
        B: T.Tensor((64, 80), "float16"),
        C: T.Tensor((64, 64), "float32"),
        D: T.Tensor((64, 80), "float16"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 80), "float16")
            b = T.alloc_shared((64, 80), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, C)
            for i, j in T.Parallel(64, 80):
                b[i, j] = b[i, j] * 2
            T.copy(b, D)

    given = [tilec.spec((64, 80), "float16")] * 2
    given += [tilec.spec((64, 64), "float32"), tilec.spec((64, 80), "float16")]
    assert tiles(kernel, given) == ["64x96", "64x80"]


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize(("dim", "value_dim"), [(80, 48), (72, 112), (40, 40)])
def test_numbers(dim: int, value_dim: int, target: str, rng: np.random.Generator) -> None:
    s = 70
    q, k = (rng.integers(-2, 3, (s, dim)).astype(np.float16) for _ in range(2))
    v = rng.integers(-2, 3, (s, value_dim)).astype(np.float16)
    o = np.full((s, value_dim), np.nan, np.float32)
    report = tilec.simulate(scores(dim, value_dim), q, k, v, o, target=target)
    assert not report.findings, str(report)
    want = (q.astype(np.float64) @ k.T.astype(np.float64)) @ v.astype(np.float64)
    np.testing.assert_array_equal(o, want)
