"""Attention as somebody writes it who has read no example: other tiles, threads and stages, another
width of the values, bfloat16, heads that share keys, several masks at once, slopes, dropout. Right
on the CPU and in the simulator, without spills where it is compiled for sm_90a."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from philox import Curand

import tilec
import tilec.language as T
from tilec.codegen.ptxas import run_ptxas
from tilec.support.tools import find_ptxas
from tilec.target import find_target

B, H, G, M, N = T.dynamic("B, H, G, M, N")
LOG2_E, SEED = 1.44269504, 1234


def attention(
    D: int = 64, Dv: int = 64, BM: int = 64, BN: int = 64, threads: int = 128, stages: int = 2,
    dtype: str = "float16", causal: bool = False, window: int = 0, padded: bool = False,
    slopes: bool = False, dropout: float = 0.0,
) -> Any:  # fmt: skip
    @tilec.kernel
    def main(
        Q: T.Tensor((B, H, M, D), dtype),
        K: T.Tensor((B, G, N, D), dtype),
        V: T.Tensor((B, G, N, Dv), dtype),
        Mask: T.Tensor((B, N), "int32"),
        Slopes: T.Tensor((H,), "float32"),
        O: T.Tensor((B, H, M, Dv), dtype),
    ):
        with T.Kernel(T.ceildiv(M, BM), H, B, threads=threads) as (bx, h, b):
            q, k = T.alloc_shared([BM, D], dtype), T.alloc_shared([BN, D], dtype)
            v = T.alloc_shared([BN, Dv], dtype)
            s, p = T.alloc_fragment([BM, BN], "float32"), T.alloc_fragment([BM, BN], dtype)
            o = T.alloc_fragment([BM, Dv], "float32")
            high, before, shrink, total, more = (
                T.alloc_fragment([BM], "float32") for _ in range(5)
            )
            g = h // (H // G)
            T.copy(Q[b, h, bx * BM : (bx + 1) * BM, :], q)
            T.fill(o, 0)
            T.fill(total, 0)
            T.fill(high, -1e30)
            place = bx * BM + N - M
            end = T.min(N, T.max(0, place + BM)) if causal else N
            for n in T.Pipelined(T.ceildiv(end, BN), num_stages=stages):
                T.copy(K[b, g, n * BN : (n + 1) * BN, :], k)
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                for i, j in T.Parallel(BM, BN):
                    seen = n * BN + j < N
                    if causal:
                        seen = seen and n * BN + j <= place + i
                    if window:
                        seen = seen and n * BN + j > place + i - window
                    if padded:
                        seen = seen and Mask[b, n * BN + j] != 0
                    x = s[i, j] * (LOG2_E * D**-0.5)
                    if slopes:
                        far = T.abs(T.cast(place + i - n * BN - j, "float32"))
                        x = x - Slopes[h] * LOG2_E * far
                    s[i, j] = T.if_then_else(seen, x, -T.infinity("float32"))
                T.copy(high, before)
                T.reduce_max(s, high, dim=1, clear=False)
                for i in T.Parallel(BM):
                    shrink[i] = T.exp2(before[i] - high[i])
                for i, j in T.Parallel(BM, BN):
                    s[i, j] = T.exp2(s[i, j] - high[i])
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(BM):
                    total[i] = total[i] * shrink[i] + more[i]
                if dropout:
                    for i, j in T.Parallel(BM, BN):
                        T.rng_init(SEED, (h * M + bx * BM + i) * N + n * BN + j)
                        kept = T.rng_rand_float() > dropout
                        s[i, j] = T.if_then_else(kept, s[i, j] / (1 - dropout), 0.0)
                for i, j in T.Parallel(BM, Dv):
                    o[i, j] *= shrink[i]
                T.copy(s, p)
                T.copy(V[b, g, n * BN : (n + 1) * BN, :], v)
                T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BM, Dv):
                o[i, j] = T.if_then_else(total[i] > 0, o[i, j] / total[i], 0.0)
            T.copy(o, O[b, h, bx * BM : (bx + 1) * BM, :])

    return main


def wanted(
    q: Any, k: Any, v: Any, mask: Any, slope: Any, causal: bool = False, window: int = 0,
    padded: bool = False, slopes: bool = False, dropout: float = 0.0, **_: Any,
) -> Any:  # fmt: skip
    (b, h, m, d), (g, n), q, k, v = q.shape, k.shape[1:3], *(x.astype(float) for x in (q, k, v))
    row, col = np.arange(m)[:, None] + n - m, np.arange(n)[None]
    out = np.zeros((b, h, m, v.shape[3]))
    for i, j in np.ndindex(b, h):
        seen = np.ones((m, n), bool)
        seen &= (col <= row) | (not causal)
        seen &= (col > row - window) | (not window)
        seen &= (mask[i][None] != 0) | (not padded)
        s = q[i, j] @ k[i, j // (h // g)].T * d**-0.5 - slopes * slope[j] * abs(row - col)
        e = np.where(seen, np.exp(s - s.max(1, keepdims=True, initial=-100, where=seen)), 0)
        total = e.sum(1, keepdims=True)
        if dropout:
            first = np.arange(j * m * n, (j + 1) * m * n)
            drawn = np.array([Curand(SEED, int(x)).uniform() for x in first]).reshape(m, n)
            e = np.where(drawn > dropout, e / (1 - dropout), 0)
        out[i, j] = e @ v[i, j // (h // g)] / np.where(total > 0, total, 1)
    return out


LARGE = {"D": 128, "Dv": 128, "BM": 128, "BN": 128, "threads": 256}
# (what is written, sizes: batch, heads, heads of keys, queries, keys)
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "one stage": ({"stages": 1}, (1, 2, 1, 70, 90)),
    "three stages": ({"stages": 3}, (1, 1, 1, 70, 200)),
    "four stages": ({"stages": 4, "BN": 32}, (1, 1, 1, 70, 200)),
    "384 threads": ({"threads": 384, "BM": 192}, (1, 1, 1, 200, 90)),
    "small tiles": ({"BM": 32, "BN": 32}, (1, 2, 2, 40, 70)),
    "256 keys": ({"BN": 256}, (1, 1, 1, 64, 300)),
    "256 queries": ({"BM": 256, "BN": 32, "threads": 256}, (1, 1, 1, 300, 65)),
    "odd tiles": ({"BM": 192, "BN": 96, "threads": 384}, (1, 1, 1, 200, 100)),
    "narrow values": ({"D": 192, "Dv": 128, "BM": 128, "threads": 256}, (1, 1, 1, 130, 90)),
    "wide values": ({"D": 64, "Dv": 128}, (1, 1, 1, 70, 90)),
    "bfloat16": (LARGE | {"dtype": "bfloat16", "causal": True}, (1, 1, 1, 130, 150)),
    "one query": ({}, (2, 2, 1, 1, 200)),
    "more queries than keys": ({"causal": True}, (1, 1, 1, 100, 33)),
    "no keys": ({}, (1, 1, 1, 5, 0)),
    "seven heads to one": ({"causal": True}, (1, 14, 2, 33, 65)),
    "three masks": (
        LARGE | {"causal": True, "window": 40, "padded": True, "D": 64, "Dv": 64},
        (2, 1, 1, 150, 170),
    ),
    "slopes": (LARGE | {"slopes": True, "causal": True}, (1, 2, 1, 130, 150)),
    "dropout": ({"dropout": 0.25, "causal": True}, (1, 2, 1, 40, 70)),
}


def arrays(case: str) -> tuple[list[Any], Any]:
    (how, (b, h, g, m, n)), rng = CASES[case], np.random.default_rng(1)
    d, dv = how.get("D", 64), how.get("Dv", 64)
    dtype = ml_dtypes.bfloat16 if how.get("dtype") else np.float16
    shapes = ((b, h, m, d), (b, g, n, d), (b, g, n, dv))
    q, k, v = (rng.standard_normal(x).astype(dtype) for x in shapes)
    mask = (rng.random((b, n)) < 0.7).astype(np.int32)
    mask[:, :3] = 0
    slope = (2.0 ** -np.arange(1, h + 1)).astype(np.float32)
    o = np.full((b, h, m, dv), np.nan, dtype)
    return [q, k, v, mask, slope, o], wanted(q, k, v, mask, slope, **how)


def close(o: Any, want: Any) -> None:
    limit = 2e-2 if o.dtype == ml_dtypes.bfloat16 else 4e-3
    assert np.abs(o.astype(float) - want).max() <= limit * max(np.abs(want).max(), 1e-3)


@pytest.mark.parametrize("case", [*CASES][::2])  # which knows no threads, stages or heads
def test_on_the_cpu(case: str) -> None:
    held, want = arrays(case)
    attention(**CASES[case][0])(*held)
    close(held[-1], want)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("case", CASES)
def test_simulated(case: str) -> None:
    held, want = arrays(case)
    report = tilec.simulate(attention(**CASES[case][0]), *held, target="cuda:sm_90a")
    assert report.ok, report
    close(held[-1], want)


COMPILED = ["384 threads", "256 queries", "odd tiles", "narrow values", "three masks", "dropout"]


@pytest.mark.parametrize("case", COMPILED)
def test_compiles_without_spills(case: str) -> None:
    how = CASES[case][0]
    d, dv = how.get("D", 64), how.get("Dv", 64)
    half = ((4, 8, 2048, d), (4, 2, 2048, d), (4, 2, 2048, dv))
    specs = [tilec.spec(x, "float16") for x in half]
    specs += [tilec.spec((4, 2048), "int32"), tilec.spec((8,), "float32")]
    specs += [tilec.spec((4, 8, 2048, dv), "float16")]
    made = attention(**how).compile(*specs, target="cuda:sm_90a")
    assert made.resources.spilled_bytes == 0
    if (ptxas := find_ptxas()) is not None:
        assert run_ptxas(ptxas, made.asm, find_target("cuda:sm_90a").arch).advisories == ()
