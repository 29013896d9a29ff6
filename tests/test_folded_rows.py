"""Rows that begin anywhere in memory and are folded: they lie in few lanes of one warp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from form_help import GFX942, SM80, SM90, tile_func

import tilec
import tilec.language as T
from tilec.ir.core import Func, walk
from tilec.ir.layout import Layout, blocked
from tilec.ir.ops import Alloc
from tilec.ir.schedule import Plan
from tilec.passes import run_plan
from tilec.passes.utils.distribution import folded_rows
from tilec.target import Target

M, N = T.dynamic("M, N")


def centred(bm: int, bn: int) -> tilec.Kernel:
    """Rows without their means, times their largest number."""

    @tilec.kernel
    def centred_rows(X: T.Tensor((M, N), "float16"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, bm), threads=128) as b:
            x = T.alloc_fragment((bm, bn), "float32")
            total, most = (T.alloc_fragment((bm,), "float32") for _ in range(2))
            T.copy(X[b * bm, 0], x)
            T.reduce_sum(x, total, dim=1)
            T.reduce_absmax(x, most, dim=1)
            for i, j in T.Parallel(bm, bn):
                x[i, j] = (x[i, j] - total[i] / N) * most[i]
            T.copy(x, Y[b * bm, 0])

    return centred_rows


def laid_out(kernel: Any, columns: int, target: Target) -> Layout:
    x = np.zeros((64, columns), np.float16)
    kept: dict[str, Func] = {}
    func = tile_func(kernel.function, {"X": x, "Y": x.astype(np.float32)})
    run_plan(func, target, Plan("p"), kept.__setitem__)
    (layout,) = (
        o.type.layout
        for o in walk(kept["infer_layouts"].body)
        if isinstance(o, Alloc) and o.result.name == "x"
    )
    assert layout is not None
    return layout


def lanes_of_a_row(layout: Layout) -> tuple[int, int]:
    """Of the first row: how many lanes hold it, and how many warps."""
    row = layout.restrict((1, layout.shape[1]))
    return (
        row.size("lane") // row.replicas("lane"),
        row.size("warp") // row.replicas("warp"),
    )


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_a_row_lies_in_few_lanes_of_a_warp(target: Target) -> None:
    lanes, warps = lanes_of_a_row(laid_out(centred(64, 32), 17, target))
    assert lanes <= 16 and warps == 1
    lanes, warps = lanes_of_a_row(laid_out(centred(8, 256), 129, target))
    assert lanes <= target.warp_size and warps == 1


@pytest.mark.parametrize("target", [SM90, GFX942], ids=str)
def test_rows_that_begin_at_16_bytes_stay(target: Target) -> None:
    warps = 128 // target.warp_size
    assert laid_out(centred(32, 64), 64, target) == blocked((32, 64), target.warp_size, warps, 4)


def test_fewer_lanes_the_more_folds() -> None:
    def lanes(folds: int) -> int:
        layout = folded_rows((64, 64), 32, 4, 16, folds)
        assert layout is not None
        return lanes_of_a_row(layout)[0]

    assert [lanes(n) for n in (1, 8)] == sorted((lanes(1), lanes(8)), reverse=True)
    assert lanes(1) > lanes(8)
    assert folded_rows((1, 1024), 32, 4, 16, 2) is None  # warps share the row
    assert folded_rows((4, 3, 32), 32, 4, 16, 2) is None


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize(("tile", "columns"), [((64, 32), 17), ((32, 64), 63), ((8, 256), 129)])
def test_the_numbers(tile: tuple[int, int], columns: int, target: str) -> None:
    x = np.random.default_rng(0).standard_normal((70, columns)).astype(np.float16)
    y = np.full(x.shape, np.nan, np.float32)
    report = tilec.simulate(centred(*tile), x, y, target=target)
    assert report.ok, report
    wide = x.astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) * np.abs(wide).max(1, keepdims=True)
    np.testing.assert_allclose(y, want, atol=1e-5)
