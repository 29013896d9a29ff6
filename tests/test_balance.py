"""Tiles of a persistent kernel: what comes once for each is on its way while the one before is
computed, and those of different length fall evenly to the blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from benchmarks.attention_kernels import forward
from tilec import spec
from tilec.tune.balance import SPREAD, TILE, unevenness

SM90 = "cuda:sm_90a"
M, N = T.dynamic("M, N")


def by_hand(x: int, y: int, z: int, first: float, last: float, blocks: int, group: int) -> float:
    """The same, tile by tile."""
    work = [[] for _ in range(blocks)]  # type: list[list[float]]
    tile = 0
    for _ in range(z):
        for top in range(0, y, group):
            wide = min(group, y - top)
            rows = [i for i in reversed(range(x)) for _ in range(wide)]
            if wide < group:  # what is left over is walked row by row
                rows = [*reversed(range(x))] * wide
            for i in rows:
                length = first + (last - first) * i / max(x - 1, 1)
                work[tile % blocks].append(length + TILE)
                tile += 1
    total = [sum(w) for w in work]
    mean = sum(total) / tile
    rounds = max(map(len, work))
    apart = [np.std([sum(w[: r + 1]) for w in work]) for r in range(rounds - 1)]
    spread = float(np.mean(apart)) / mean if apart else 0.0
    return max(total) / (sum(total) / blocks) * (1 + SPREAD * spread)


@pytest.mark.parametrize(
    "case",
    [
        (8, 32, 8, 1, 8, 132, 4),
        (5, 7, 3, 1, 5, 16, 3),
        (1, 1, 1, 2, 2, 132, 8),
        (9, 2, 1, 0, 9, 4, 4),
    ],
)
def test_it_is_what_the_blocks_get(case: tuple[int, ...]) -> None:
    x, y, z, first, last, blocks, group = case
    want = by_hand(x, y, z, first, last, blocks, group)
    assert unevenness((x, y, z), first, last, blocks, group, False) == pytest.approx(want)


def test_equal_tiles_that_fill_every_round_are_even() -> None:
    for claimed in (False, True):
        assert unevenness((11, 12, 4), 3, 3, 132, 8, claimed) == pytest.approx(1.0)


def test_tiles_taken_as_they_come_end_together() -> None:
    """By all of 1024 tiles, of which each block takes the next when it is done."""
    ends = [0.0] * 132
    for i in reversed(range(8)):
        for _ in range(128):
            ends[ends.index(min(ends))] += 1 + i + TILE
    want = max(ends) / (sum(ends) / 132)
    grid = (8, 128)
    assert unevenness(grid, 1, 8, 132, 128, True) == pytest.approx(want, rel=0.01)
    assert want < unevenness(grid, 1, 8, 132, 128, False)


def attention(length: int, causal: bool, **words: Any) -> Any:
    kernel = forward(128, causal, 256, tuple(words.items()))
    given = [spec((8, length, 32, 128), "float16")] * 4
    return kernel.compile(*given, target=SM90, BM=128, BN=128)


@pytest.mark.parametrize(
    ("length", "causal", "group"),
    [(1024, True, 32), (2048, True, 8), (4096, True, 4), (1024, False, 8)],
)
def test_causal_tiles_are_grouped_so_that_they_end_together(
    length: int, causal: bool, group: int
) -> None:
    """As narrow as they may be for that: what runs at once is near in the grid as it is."""
    assert attention(length, causal).plan.raster_group == group


def test_queries_of_the_next_tile_are_on_their_way() -> None:
    """The values give up a stage for them."""
    found = attention(1024, False)
    tile = 128 * 128 * 2
    buffers = found.resources.buffers
    assert [buffers[v] // tile for v in "qkv"] == [2, 3, 2]
    for name, stages in (("q", 2), ("k", 3), ("v", 2)):
        assert f"ahead: {name}, by tma, stages: {stages}" in found.stages["plan"]
    apart = attention(1024, False, persistent=False, specialise=True)
    assert apart.resources.buffers["q"] == tile, "a block has one tile"


@tilec.kernel
def weighted(
    W: T.Tensor((M, 64), "float16"),
    X: T.Tensor((N, 64), "float16"),
    Y: T.Tensor((M, 64), "float32"),
):
    with T.Kernel(T.ceildiv(M, 64), threads=128) as block:
        T.annotate_schedule(specialise=True, persistent=True, stages=3)
        w = T.alloc_shared((64, 64), "float16")
        x = T.alloc_shared((64, 64), "float16")
        y = T.alloc_fragment((64, 64), "float32")
        T.copy(W[block * 64, 0], w)
        T.clear(y)
        for n in T.Pipelined(T.ceildiv(N, 64), num_stages=3):
            T.copy(X[n * 64, 0], x)
            for i, j in T.Parallel(64, 64):
                y[i, j] += w[i, j] * x[i, j]
        T.copy(y, Y[block * 64, 0])


@pytest.mark.parametrize("n", [1, 64, 200])
def test_without_a_product(n: int) -> None:
    m = 64 * 7
    rng = np.random.default_rng(n)
    w, x = (rng.standard_normal((rows, 64)).astype(np.float16) for rows in (m, n))
    y = np.full((m, 64), np.nan, np.float32)
    found = weighted.compile(w, x, y, target=SM90)
    assert found.resources.buffers == {**found.resources.buffers, "w": 2 * 8192, "x": 3 * 8192}
    report = tilec.simulate(weighted, w, x, y, target=SM90, resident_blocks=2, schedules=3)
    assert not report.findings
    padded = np.zeros((-(-n // 64) * 64, 64))
    padded[:n] = x
    want = w.astype(np.float64) * np.tile(padded.reshape(-1, 64, 64).sum(0), (7, 1))
    np.testing.assert_allclose(y, want, rtol=1e-2, atol=1e-2)  # products of float16
