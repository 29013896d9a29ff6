"""Several persistent blocks share a multiprocessor: registers, shared memory, the plan's choice,
and that their tiles are right."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

SM90 = "cuda:sm_90a"


def test_short_loops_over_many_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 128 keys: three iterations a tile, so that the next one's queries had better be
    there; all keys: tiles of different length, which blocks take as they come."""
    monkeypatch.syspath_prepend("examples/attention")
    example = importlib.import_module("attention_sink")

    def specs(keys: int) -> list[Any]:
        q, kv = (tilec.spec((1, keys, heads, 64), "float16") for heads in (64, 8))
        return [q, kv, kv, tilec.spec((64,), "float32"), q, tilec.spec((1, 64, keys), "float32")]

    made = example.sink(64, 128).compile(*specs(8192), target=SM90)
    plan, found = made.plan, made.resources
    assert plan.persistent and plan.residents == found.blocks_per_sm == 3
    assert found.spilled_bytes == 0 and found.buffers["q"] == 2 * 64 * 64 * 2
    split = re.findall(r"setmaxnreg\.(\w+)\.\S+ (\d+);", made.stages["ptx"])
    assert split == [("inc", "120"), ("dec", "40")] and 128 * (120 + 40) <= 65536 // 3
    made = example.sink(64).compile(*specs(4096), target=SM90, BM=64, BN=128)
    assert made.plan.residents > 1 and made.plan.persistent
    assert "atomic %tiles_taken" in str(made.stages["insert_sync"])


WISH = """            T.annotate_min_blocks_per_sm(3)
            T.annotate_schedule(specialise=True, persistent=True, overlap=True, stages=2)
"""


@pytest.mark.parametrize("window", [0, 70])
def test_tiles_of_blocks_that_share(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones: the schedule is asked for."""
    monkeypatch.syspath_prepend("examples/attention")
    monkeypatch.syspath_prepend(str(tmp_path))
    source = Path("examples/attention/attention_sink.py").read_text()
    place = "            q = T.alloc_shared("
    shared = source.replace(place, WISH + place, 1).replace("H, B) as", "H, B, threads=128) as")
    (tmp_path / "shared_sink.py").write_text(shared)
    kernel = importlib.import_module("shared_sink").sink(64, window)
    support = importlib.import_module("attention_support")
    rng = np.random.default_rng(window)
    q, k, v = (
        rng.standard_normal((1, *s, 64)).astype(np.float16) for s in ((130, 3), (200, 1), (200, 1))
    )
    sinks = rng.standard_normal(3).astype(np.float32)
    o, lse = np.full_like(q, np.nan), np.full((1, 3, 130), np.nan, np.float32)
    args, tile = (q, k, v, sinks, o, lse), {"BM": 64, "BN": 64}
    made = kernel.compile(*args, target=SM90, **tile)
    assert made.plan.persistent and made.resources.blocks_per_sm == 3
    report = tilec.simulate(kernel, *args, target=SM90, resident_blocks=4, schedules=3, **tile)
    assert not report.findings
    assert support.check_heads("", o, lse, q, k, v, True, window, sinks=sinks) < 2e-3


def attention(tma: bool, guarded: bool, rows: int = 1) -> Any:
    """As TileLang's users write it for any length: tiles at the tensors' ends are brought by loops,
    under a condition (`guarded`) that these sizes decide."""

    @tilec.kernel
    def kernel(
        Q: T.Tensor((rows * 64, 64), "float16"),
        K: T.Tensor((2048, 64), "float16"),
        V: T.Tensor((2048, 64), "float16"),
        O: T.Tensor((rows * 64, 64), "float16"),  # noqa: E741
    ):
        with T.Kernel(rows, threads=128) as bx:
            q = T.alloc_shared((64, 64), "float16")
            k, v = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            s, o = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
            p, total = T.alloc_fragment((64, 64), "float16"), T.alloc_fragment((64,), "float32")
            each = T.alloc_fragment((64,), "float32")
            T.copy(Q[bx * 64, 0], q)
            T.clear(o)
            T.clear(total)
            for n in T.Pipelined(32):
                if not guarded or (n + 1) * 64 <= 2048:
                    T.copy(K[n * 64, 0], k, disable_tma=not tma)
                    T.copy(V[n * 64, 0], v, disable_tma=not tma)
                else:
                    for i, j in T.Parallel(64, 64):
                        k[i, j] = T.if_then_else(n * 64 + i < 2048, K[n * 64 + i, j], 0)
                        v[i, j] = T.if_then_else(n * 64 + i < 2048, V[n * 64 + i, j], 0)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(64, 64):
                    s[i, j] = T.exp2(s[i, j])
                T.reduce_sum(s, each, dim=1)
                for i in T.Parallel(64):
                    total[i] += each[i]
                T.copy(s, p)
                T.gemm(p, v, o)
            for i, j in T.Parallel(64, 64):
                o[i, j] /= total[i]
            T.copy(o, O[bx * 64, 0])

    return kernel


def sides(rows: int) -> list[tuple[int, int]]:
    return [(rows * 64, 64), (2048, 64), (2048, 64), (rows * 64, 64)]


@pytest.mark.parametrize("guarded", [False, True])
def test_blocks_that_bring_their_own_tiles_share(guarded: bool) -> None:
    """TMA may not bring these: a block alone had all shared memory for eight stages, which one
    warpgroup waits for (TileOPs' attention, 696 us on an H200; TileLang 349)."""
    specs = [tilec.spec(s, "float16") for s in sides(4096)]
    made = attention(False, guarded, 4096).compile(*specs, target=SM90)
    assert not made.plan.specialise and not made.plan.persistent
    assert made.plan.residents == 4 <= made.resources.blocks_per_sm
    assert made.resources.spilled_bytes == 0 and "by cp_async" in made.stages["plan"]
    made = attention(True, guarded, 4096).compile(*specs, target=SM90)
    assert made.plan.specialise and "k, by tma" in made.stages["plan"]


@pytest.mark.parametrize("guarded", [False, True])
def test_what_such_blocks_compute(guarded: bool, rng: np.random.Generator) -> None:
    q, k, v, o = (rng.standard_normal(s).astype(np.float16) / 4 for s in sides(1))
    report = tilec.simulate(attention(False, guarded), q, k, v, o, target=SM90)
    assert report.ok, report
    p = np.exp2(q.astype(float) @ k.astype(float).T)
    np.testing.assert_allclose(o, p @ v / p.sum(1, keepdims=True), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("threads", [32, 64])
def test_blocks_of_few_threads_share(threads: int, rng: np.random.Generator) -> None:
    """One warp has one of four tensor cores: alone on a multiprocessor, with rings of eight stages
    in its shared memory, it left three idle."""
    M, N, K = T.dynamic("M, N, K")

    @tilec.kernel
    def product(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ) -> None:
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=threads) as (bx, by):
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 32), "float16")
            acc = T.alloc_fragment((32, 32), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[by * 32, k * 32], a)
                T.copy(B[k * 32, bx * 32], b)
                T.gemm(a, b, acc)
            T.copy(acc, C[by * 32, bx * 32])

    specs = [tilec.spec((4096, 4096), "float16")] * 3
    found = product.recommend(*specs, target=SM90, topk=400)
    own = next(r.plan for r in found if r.plan and r.plan.joined == (1, 1, 1))
    assert own.residents * threads >= 128
    best = found[0].estimate
    assert best is not None and best.intensity == best.flops / best.dram_bytes > 0
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((40, 72), (72, 96)))
    c = np.empty((40, 96), np.float16)
    assert tilec.simulate(product, a, b, c, target=SM90).ok
    np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=2e-3, atol=2e-2)


def test_tiles_that_no_loop_brings() -> None:
    """K is one tile: threads ask for all of it at once, and other blocks hide how long it takes."""
    M, H = T.dynamic("M, H")
    sizes = T.auto(64, 128), T.auto(128, 256)

    @tilec.kernel
    def by_head(
        X: T.Tensor((M, H, 128), "float16"),
        W: T.Tensor((H, 128, 512), "float16"),
        Y: T.Tensor((M, H, 512), "float16"),
        BM: T.constexpr = sizes[0],
        BN: T.constexpr = sizes[1],
    ) -> None:
        with T.Kernel(512 // BN, T.ceildiv(M, BM), H) as (bx, by, h):
            x = T.alloc_shared((BM, 128), "float16")
            w = T.alloc_shared((128, BN), "float16")
            acc = T.alloc_fragment((BM, BN), "float32")
            T.copy(X[by * BM : by * BM + BM, h, :], x)
            T.copy(W[h, :, bx * BN : bx * BN + BN], w)
            T.gemm(x, w, acc, clear_accum=True)
            T.copy(acc, Y[by * BM : by * BM + BM, h, bx * BN : bx * BN + BN])

    shapes = (4096, 128, 128), (128, 128, 512), (4096, 128, 512)
    made = by_head.compile(*[tilec.spec(s, "float16") for s in shapes], target=SM90)
    assert made.resources.blocks_per_sm is not None and made.resources.blocks_per_sm >= 3
