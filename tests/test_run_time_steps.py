"""Loops whose step is only known when the kernel runs: rising, falling, and 0."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

M, N = T.dynamic("M, N")


@tilec.kernel
def counted(C: T.Tensor((N,), "int32"), first: T.int32, last: T.int32, step: T.int32):
    with T.Kernel(1, threads=32):
        n = T.int32(0)
        for i in range(first, last, step):
            C[n] = i
            n += 1
            if n == 7:
                break


@tilec.kernel
def grid_stride(A: T.Tensor((N,), "float32"), S: T.Tensor((M,), "float32"), blocks: T.int32):
    """As Triton's persistent kernels walk over what they have."""
    with T.Kernel(M, threads=32) as block:
        x = T.alloc_shared((16,), "float32")
        s = T.alloc_fragment((1,), "float32")
        T.clear(s)
        for tile in T.serial(block, T.ceildiv(N, 16), blocks):
            T.copy(A[tile * 16], x)
            T.reduce_sum(x, s, dim=0, clear=False)
        for i in T.Parallel(1):
            S[block + i] = s[i]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize(
    "bounds",
    [
        (0, 10, 3), (10, 0, -3), (0, 10, -1), (10, 0, 1), (5, 6, 100), (0, 10, 0), (0, 99, 1),
        (-5, 5, 4),
    ],
)  # fmt: skip
def test_each_index(bounds: tuple[int, int, int], target: str) -> None:
    wanted = np.full(12, -99, np.int32)
    indices = list(range(*bounds))[:7] if bounds[2] else []
    wanted[: len(indices)] = indices
    got = np.full(12, -99, np.int32)
    run(counted, target, got, *bounds)
    assert (got == wanted).all()


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("blocks", [1, 3, 9])
def test_blocks_that_walk(blocks: int, target: str) -> None:
    a = np.arange(100, dtype=np.float32)
    got = np.zeros(blocks, np.float32)
    run(grid_stride, target, a, got, blocks)
    tiles = [a[16 * t : 16 * t + 16].sum() for t in range(7)]
    assert (got == [sum(tiles[b::blocks]) for b in range(blocks)]).all()


def test_the_index_of_a_known_step_is_the_loops_own() -> None:
    @tilec.kernel
    def known(C: T.Tensor((N,), "int32"), n: T.int32):
        with T.Kernel(1, threads=32):
            for i in range(0, n, 3):
                C[i] = i

    text = known.compile(tilec.spec((9,), "int32"), target="cuda:sm_80").stages["tile"]
    assert "ceildiv" not in text and "mul" not in text


@pytest.mark.parametrize(
    "step, says", [("0", "a step of 0 never ends"), ("0.5", "this loop is the float 0.5")]
)
def test_what_is_no_step(step: str, says: str) -> None:
    by = float(step) if "." in step else int(step)

    @tilec.kernel
    def wrong(C: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=32):
            for i in range(0, 9, by):
                C[i] = i

    with pytest.raises(tilec.CompileError, match=says):
        wrong.compile(tilec.spec((9,), "int32"), target="cpu")
