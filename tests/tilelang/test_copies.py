"""Copies as TileLang's programs write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.tilelang as tilelang
import tilec.tilelang.language as T

# mypy: ignore-errors
TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


@tilelang.jit
def widened(rows: int, heads: int, dim: int, width: int) -> Any:
    """A head's rows, in tiles that are wider than a row, twice."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, heads, dim), "float16"),
        Y: T.Tensor((heads, rows, width), "float32"),
        Z: T.Tensor((rows, heads, dim), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, 32), heads, threads=64) as (bx, h):
            tile = T.alloc_shared((32, width), "float16")
            acc = T.alloc_fragment((32, width), "float32")
            T.copy(X[bx * 32 : bx * 32 + 32, h, :], tile)
            for i, j in T.Parallel(32, width):
                acc[i, j] = tile[i, j] * 2.0 + T.if_then_else(j < dim, 0.0, 1.0)
            T.copy(acc, Y[h, bx * 32, 0])
            T.copy(acc, Z[bx * 32 : bx * 32 + 32, h, 0:dim])

    return main


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dim", "width"), [(40, 48), (33, 64)])
def test_a_slice_up_to_the_end_fills_a_larger_tile(target: str, dim: int, width: int) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (50, 3, dim)).astype(np.float16)
    y, z = np.full((3, 50, width), 77, np.float32), np.full((50, 3, dim), 77, np.float32)
    run_compiled(widened(50, 3, dim, width).kernel, target, x, y, z)
    want = np.ones((3, 50, width), np.float32)
    want[..., :dim] = 2.0 * x.transpose(1, 0, 2)
    assert np.array_equal(y, want) and np.array_equal(z, 2.0 * x)


def test_a_slice_within_a_tensor_has_its_tile_s_extents() -> None:
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float16"), Y: T.Tensor((32, 48), "float16")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32, 48), "float16")
            T.copy(X[0:32, 0:40], tile)
            T.copy(tile, Y)

    with pytest.raises(tilec.CompileError, match="their extents differ"):
        tilelang.compile(main).compile()
