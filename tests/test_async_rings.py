"""Rings that their author fills by T.async_copy: barriers stand where threads exchange what has
arrived, and not between copies that are on their way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from benchmarks import long_row_kernels
from tilec.ir.core import walk
from tilec.ir.ops import Barrier, CpAsync, CpAsyncWait

M, N = T.dynamic("M, N")
TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
AHEAD = 3


@tilec.kernel
def reversed_tiles(
    A: T.Tensor((M, 128), "float16"), B: T.Tensor((M, 128), "float16"), wait: T.constexpr = AHEAD
):
    """Each row of A the other way round; the next AHEAD rows are on their way. Threads read what
    others have copied."""
    with T.Kernel(1, threads=32):
        ring = T.alloc_shared((AHEAD + 1, 128), "float16")
        for k in T.unroll(AHEAD + 1):
            T.async_copy(A[k, 0], ring[k, 0:128])
        for row in T.serial(M):
            T.ptx_wait_group(wait)
            for j in T.Parallel(128):
                B[row, j] = ring[row % (AHEAD + 1), 127 - j]
            T.async_copy(A[row + AHEAD + 1, 0], ring[row % (AHEAD + 1), 0:128])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_a_ring_turns(target: str, rows: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal((rows, 128)).astype(np.float16)
    b = np.zeros_like(a)
    run(reversed_tiles, target, a, b)
    np.testing.assert_array_equal(b, a[:, ::-1])


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a"])
def test_copies_on_their_way_need_no_barrier(target: str) -> None:
    spec = tilec.spec((9, 128), "float16")
    made = reversed_tiles.compile(spec, spec, target=target)
    kinds = [
        type(o).__name__
        for o in walk(made.lowered.body)
        if isinstance(o, (Barrier, CpAsync, CpAsyncWait))
    ]
    # The first rows, in a loop; then one barrier for what has arrived, and one in front of the copy
    # over what all have read.
    assert kinds == ["CpAsync", "CpAsyncWait", "Barrier", "Barrier", "CpAsync"]


@pytest.mark.parametrize("wait", [AHEAD + 1, AHEAD, 0])
def test_too_late_a_wait_is_found(wait: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal((6, 128)).astype(np.float16)
    report = tilec.simulate(reversed_tiles, a, np.zeros_like(a), wait=wait, target="cuda:sm_90a")
    assert report.ok == (wait <= AHEAD)
    assert wait <= AHEAD or "ring[row % (AHEAD + 1), 127 - j]" in str(report)


@pytest.mark.parametrize("order", ["wait", "no wait"])
def test_two_copies_to_one_place(order: str, rng: np.random.Generator) -> None:
    """The second is issued when the first has arrived for every thread, or it is a race."""

    @tilec.kernel
    def twice(A: T.Tensor((2, 128), "float16"), B: T.Tensor((128,), "float16"), how: T.constexpr):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((128,), "float16")
            T.async_copy(A[0, 0], tile)
            if how == "wait":
                T.ptx_wait_group(0)
            T.async_copy(A[1, 0], tile)
            T.ptx_wait_group(0)
            T.copy(tile, B)

    a: Any = rng.standard_normal((2, 128)).astype(np.float16)
    b = np.zeros(128, np.float16)
    report = tilec.simulate(twice, a, b, how=order, target="cuda:sm_90a")
    assert report.ok == (order == "wait"), report
    if order == "wait":
        np.testing.assert_array_equal(b, a[1])
        made = twice.compile(a, b, how=order, target="cuda:sm_90a")
        kinds = [o for o in walk(made.lowered.body) if isinstance(o, (Barrier, CpAsync))]
        assert [type(o).__name__ for o in kinds] == ["CpAsync", "Barrier", "CpAsync", "Barrier"]


def norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(1, keepdims=True) + long_row_kernels.RMS_EPSILON)


def centred_norm(x: np.ndarray) -> np.ndarray:
    x = x - x.mean(1, keepdims=True)
    return x / np.sqrt((x**2).mean(1, keepdims=True) + long_row_kernels.LAYER_EPSILON)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


LONG_ROWS = {"softmax": softmax, "rms_norm": norm, "layer_norm": centred_norm}


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", LONG_ROWS)
@pytest.mark.parametrize("shape, parts", [((3, 2048), 4), ((2, 1000), 2), ((1, 513), 2)])
def test_long_rows(name: str, shape: tuple[int, int], parts: int, rng: np.random.Generator) -> None:
    a = (rng.standard_normal(shape) + 1).astype(np.float16)
    b, s = np.full_like(a, np.nan), np.zeros((shape[0] * parts, 2), np.float32)
    kernel = getattr(long_row_kernels, name)("float16", shape[1], parts)
    report = tilec.simulate(kernel, a, b, s, target="cuda:sm_90a")
    assert report.ok, report
    want = LONG_ROWS[name](a.astype(float))
    assert np.abs(b - want).max() <= 2.0**-10 * np.abs(want).max() + 1e-6


@pytest.mark.parametrize("name", LONG_ROWS)
def test_long_rows_take_few_registers(name: str) -> None:
    """So that a multiprocessor holds as many blocks as have room in shared memory; parts come by 16
    bytes, past the registers."""
    parts = 1024 * long_row_kernels.PARTS
    spec, s = tilec.spec((1024, 65536), "float16"), tilec.spec((parts, 2), "float32")
    made = getattr(long_row_kernels, name)("float16", 65536).compile(
        spec, spec, s, target="cuda:sm_90a"
    )
    assert made.resources.shared_bytes < 33 << 10
    assert (made.resources.registers or 0) <= 40 and not made.resources.spilled_bytes
    copies = [o for o in walk(made.lowered.body) if isinstance(o, CpAsync)]
    assert {o.bytes for o in copies} == {16}
