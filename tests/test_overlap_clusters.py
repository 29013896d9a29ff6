"""Clusters whose blocks' threads work beside products: neighbours along the queries load K and V
once."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import TmaLoad

pytestmark = pytest.mark.usefixtures("unassembled")

S, N, H = T.dynamic("S, N, H")


@functools.cache
def attention(
    dim: int, block: int = 64, keys: int = 64, uneven: bool = False, stages: int = 0
) -> Any:
    """`uneven`: later blocks have more keys. `stages`: with the clusters and that depth."""

    @tilec.kernel
    def kernel(
        Q: T.Tensor((H, S, dim), "float16"),
        K: T.Tensor((H, N, dim), "float16"),
        V: T.Tensor((H, N, dim), "float16"),
        O: T.Tensor((H, S, dim), "float16"),  # noqa: E741
    ):
        with T.Kernel(T.ceildiv(S, block), H, threads=2 * block) as (bx, h):
            if stages:
                T.annotate_schedule(overlap=True, persistent=True, cluster=(2, 1), stages=stages)
            q = T.alloc_shared((block, dim), "float16")
            k = T.alloc_shared((keys, dim), "float16")
            v = T.alloc_shared((keys, dim), "float16")
            s = T.alloc_fragment((block, keys), "float32")
            p = T.alloc_fragment((block, keys), "float16")
            o = T.alloc_fragment((block, dim), "float32")
            high, before, shrink = (T.alloc_fragment((block,), "float32") for _ in range(3))
            more, total = (T.alloc_fragment((block,), "float32") for _ in range(2))
            T.copy(Q[h, bx * block, 0], q)
            T.clear(o)
            T.clear(total)
            T.fill(high, -1e30)
            end = T.min(N, (bx + 1) * block) if uneven else N
            for n in T.Pipelined(T.ceildiv(end, keys), num_stages=2):
                T.copy(K[h, n * keys, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                T.copy(high, before)
                for i, j in T.Parallel(block, keys):
                    s[i, j] = T.if_then_else(n * keys + j < N, s[i, j], -T.infinity("float32"))
                T.reduce_max(s, high, dim=1, clear=False)
                for i, j in T.Parallel(block, keys):
                    s[i, j] = T.exp2(s[i, j] - high[i])
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(block):
                    shrink[i] = T.exp2(before[i] - high[i])
                    total[i] = total[i] * shrink[i] + more[i]
                for i, j in T.Parallel(block, dim):
                    o[i, j] *= shrink[i]
                T.copy(s, p)
                T.copy(V[h, n * keys, 0], v)
                T.gemm(p, v, o)
            for i, j in T.Parallel(block, dim):
                o[i, j] /= total[i]
            T.copy(o, O[h, bx * block, 0])

    return kernel


def specs(dim: int) -> list[Any]:
    return [tilec.spec((64, 2048, dim), "float16")] * 4


@pytest.mark.parametrize("dim", [80, 144])
def test_small_tiles_of_odd_heads_share_what_they_load(dim: int) -> None:
    """64 queries ask the cache for more than it has, the more as rows straddle its lines."""
    plan = attention(dim).compile(*specs(dim), target="cuda:sm_90a").plan
    assert plan.overlap and plan.cluster == (2, 1, 1) and plan.residents >= 2


def test_large_tiles_do_not() -> None:
    plan = attention(128, 128, 128).compile(*specs(128), target="cuda:sm_90a").plan
    assert plan.overlap and plan.cluster == (1, 1, 1)


def test_keys_and_values_come_once() -> None:
    made = attention(80, stages=2).compile(*specs(80), target="cuda:sm_90a")
    shared = {
        o.map.name: o.blocks is not None for o in walk(made.lowered.body) if isinstance(o, TmaLoad)
    }
    assert shared == {"Q_map": False, "K_map": True, "V_map": True}


@pytest.mark.covering(1)
@pytest.mark.parametrize("keys", [1, 64, 130, 300])
@pytest.mark.parametrize(("queries", "stages"), [(64, 2), (200, 3), (257, 4)])
def test_numbers(keys: int, queries: int, stages: int, rng: np.random.Generator) -> None:
    heads, dim = 2, 48
    lengths = (queries, keys, keys)
    q, k, v = (rng.standard_normal((heads, n, dim)).astype(np.float16) for n in lengths)
    o = np.full((heads, queries, dim), np.nan, np.float16)
    report = tilec.simulate(attention(dim, stages=stages), q, k, v, o, target="cuda:sm_90a")
    assert not report.findings, str(report)
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2)
    p = np.exp2(scores - scores.max(-1, keepdims=True))
    want = p / p.sum(-1, keepdims=True) @ v.astype(np.float64)
    np.testing.assert_allclose(o, want, atol=4e-3)


def test_tiles_that_differ_in_length_share_nothing() -> None:
    made = attention(80, uneven=True).compile(*specs(80), target="cuda:sm_90a")
    assert made.plan.overlap and made.plan.cluster == (1, 1, 1)


@tilec.kernel
def product_of_named_tiles(
    A: T.Tensor((S, N), "float16"),
    B: T.Tensor((S, N), "float16"),
    At: T.Tensor((H, H), "int32"),
    C: T.Tensor((S, S), "float16"),
):
    with T.Kernel(H, H, threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        at = At[by, bx]
        for k in T.Pipelined(T.ceildiv(N, 64)):
            T.copy(A[at, k * 64], a)
            T.copy(B[at, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[by * 64, bx * 64])


def named(length: int) -> tuple[Any, list[Any]]:
    """Keys that a table names for each head and block of queries, heads apart in memory."""
    made = importlib.import_module("vertical_slash")
    x = tilec.spec((1, length, 8, 64), "float16", strides=(8 * length * 64, 64, length * 64, 1))
    counts, table = (tilec.spec((1, 8, length // 64, *n), "int32") for n in ((), (4,)))
    lse = tilec.spec((1, 8, length), "float32")
    return made.vertical_slash(64), [x, x, x, counts, table, counts, table, x, lse]


@pytest.mark.parametrize("length", [8192, 32768])
def test_a_cluster_that_shares_nothing_is_no_choice(length: int) -> None:
    """It was predicted to be fastest, refused by the passes, and what came next was slow."""
    kernel, given = named(length)
    made = kernel.compile(*given, target="cuda:sm_90a")
    plan = made.stages["plan"]
    assert made.plan.overlap and made.plan.residents == 3, plan
    assert "tried:" not in plan
    assert "rejected, no tile is the same for the blocks of a cluster of 1x2x1" in plan


def test_nor_is_one_of_a_product() -> None:
    x, at = tilec.spec((4096, 4096), "float16"), tilec.spec((64, 64), "int32")
    plan = product_of_named_tiles.compile(x, x, at, x, target="cuda:sm_90a").stages["plan"]
    for cluster in ("1x2x1", "2x1x1"):
        assert f"rejected, no tile is the same for the blocks of a cluster of {cluster}" in plan
