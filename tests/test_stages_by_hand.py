"""Loops that their author orders by barriers, with the stages that he asks for."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

K = 64


def product(stages: int, turns: int) -> Any:
    @tilec.kernel
    def by_hand(
        A: T.Tensor((256, turns * K), "float16"),
        B: T.Tensor((turns * K, 128), "float16"),
        C: T.Tensor((256, 128), "float32"),
    ):
        with T.Kernel(1, 2, threads=256) as (bx, by):
            a = T.alloc_shared((128, K), "float16")
            b = T.alloc_shared((K, 128), "float16")
            acc = T.alloc_fragment((128, 128), "float32")
            full, free = T.alloc_barrier(128), T.alloc_barrier(128)
            with T.ws(0):
                T.clear(acc)
            for k in T.Pipelined(turns, num_stages=stages):
                with T.ws(1):
                    T.barrier_wait(free, (k + 1) % 2)
                    T.tma_copy(A[by * 128, k * K], a, barrier=full)
                    T.tma_copy(B[k * K, bx * 128], b, barrier=full)
                    T.barrier_arrive(full)
                with T.ws(0):
                    T.barrier_wait(full, k % 2)
                    T.gemm(a, b, acc)
                    T.barrier_arrive(free)
            with T.ws(0):
                T.copy(acc, C[by * 128, bx * 128])

    return by_hand


def tiles(kernel: Any, *arrays: Any) -> dict[str, str]:
    """The extents of tiles and barriers."""
    text = kernel.compile(*arrays, target="cuda:sm_90a").stages["group_threads"]
    return dict(re.findall(r"%(\w+) = alloc (?:shared|barrier)<([\dx]+)x[if]\d+>", text))


@pytest.mark.covering(1)
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("turns", [1, 2, 7])
def test_a_product(stages: int, turns: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal((256, turns * K)).astype(np.float16)
    b = rng.standard_normal((turns * K, 128)).astype(np.float16)
    c = np.full((256, 128), np.nan, np.float32)
    report = tilec.simulate(product(stages, turns), a, b, c, target="cuda:sm_90a")
    assert report.ok, report
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-2)
    if turns > 2:
        made = tiles(product(stages, turns), a, b, c)
        front = "" if stages == 1 else f"{stages}x"
        assert made["a"] == f"{front}128x{K}" and made["b"] == f"{front}{K}x128"
        assert made["full"] == made["free"] == f"{stages}"


SPECS = tilec.spec((256, 7 * K), "float16"), tilec.spec((7 * K, 128), "float16")


def test_blocks_that_load_in_a_loop_are_neighbours() -> None:
    """As those of loops that tilec orders: what a group of blocks loads stays in L2 meanwhile."""
    made = product(2, 7).compile(*SPECS, tilec.spec((256, 128), "float32"), target="cuda:sm_90a")
    assert "floordiv" not in made.stages["group_threads"].split("for.")[0]
    assert "floordiv" in made.stages["block_order"].split("for.")[0]


def sums(change: str) -> Any:
    """Sums of columns of rows that another group brings, in changed forms."""

    @tilec.kernel
    def summed(
        A: T.Tensor((6 * 32, 64), "float32"),
        B: T.Tensor((64,), "float32"),
        D: T.Tensor((6, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((32, 64), "float32")
            kept = T.alloc_shared((64,), "float32")
            rows = T.alloc_fragment((32, 64), "float32")
            part = T.alloc_fragment((64,), "float32")
            total = T.alloc_fragment((64,), "float32")
            full, free = T.alloc_barrier(128), T.alloc_barrier(128)
            with T.ws(0):
                T.clear(total)
            for k in T.Pipelined(6, num_stages=2):
                with T.ws(1):
                    T.barrier_wait(free, (k + 1) % 2)
                    T.tma_copy(A[k * 32, 0], tile, barrier=full)
                    T.barrier_arrive(full)
                with T.ws(0):
                    T.barrier_wait(full, k % 2)
                    T.copy(tile, rows)
                    T.reduce_sum(rows, part, dim=0)
                    if change == "keeps a sum":
                        T.copy(part, kept)
                    if change == "writes a tensor":
                        T.copy(part, D[k, :])
                    if change == "changes the tile":
                        T.fill(tile, 0)
                    for j in T.Parallel(64):
                        total[j] += part[j]
                    T.barrier_arrive(free)
            with T.ws(0):
                if change == "reads behind":
                    T.copy(tile[31, :], part)
                    for j in T.Parallel(64):
                        total[j] += part[j]
                T.copy(total, B)

    return summed


CHANGES = ["", "keeps a sum", "writes a tensor", "changes the tile", "reads behind"]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_exchanged_by_other_ways_has_one_stage(
    change: str, rng: np.random.Generator
) -> None:
    a = rng.standard_normal((6 * 32, 64)).astype(np.float32)
    b, d = np.full(64, np.nan, np.float32), np.zeros((6, 64), np.float32)
    report = tilec.simulate(sums(change), a, b, d, target="cuda:sm_90a")
    assert report.ok, report
    want = a.sum(0) + (a[-1] if change == "reads behind" else 0)
    np.testing.assert_allclose(b, want, rtol=1e-5, atol=1e-4)
    made = tiles(sums(change), a, b, d)
    assert made["tile"] == ("32x64" if change else "2x32x64")


def test_no_more_stages_than_there_is_memory() -> None:
    specs = tilec.spec((256, 20 * K), "float16"), tilec.spec((20 * K, 128), "float16")
    made = tiles(product(12, 20), *specs, tilec.spec((256, 128), "float32"))
    assert made["a"] == f"128x{K}" and made["full"] == "1"
