"""Reductions of shared tiles that the registers cannot hold: slice by slice."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from frontend_help import ops
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.ops import Reduce
from tilec.ir.parser import parse_func

pytestmark = pytest.mark.turns

GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


@tilec.kernel
def statistics(
    A: T.Tensor((64, 180), "float32"),
    sums: T.Tensor((64,), "float16"),
    most: T.Tensor((180,), "float32"),
    least: T.Tensor((1, 180), "float32"),
):
    with T.Kernel(1, threads=64):
        x = T.alloc_shared((64, 180), "float32")
        y = T.alloc_fragment((64,), "float16")
        z = T.alloc_shared((1, 180), "float32")
        T.copy(A, x)
        T.copy(sums, y)
        T.reduce_sum(x, y, dim=1, clear=False)
        T.copy(y, sums)
        T.reduce_min(x[1:64, :], z, dim=0)
        T.copy(z, least)
        T.reduce_absmax(x, x[0, :], dim=0)
        T.copy(x[0, :], most)


@pytest.mark.parametrize("target", ("cpu", *GPUS))
def test_numbers_and_slices(target: str, rng: np.random.Generator) -> None:
    """What is behind 2048 is lost where a float16 holds the sum between slices."""
    A = rng.integers(-9, 10, (64, 180)).astype(np.float32)
    A[0], A[0, 0] = 1, 2048
    sums = np.arange(64, dtype=np.float16)
    most, least = np.zeros(180, np.float32), np.zeros((1, 180), np.float32)
    want = (A.sum(1) + sums).astype(np.float16)
    run(statistics, target, A, sums, most, least)
    assert np.array_equal(sums, want)
    assert np.array_equal(most, abs(A).max(0)) and np.array_equal(least[0], A[1:].min(0))


@pytest.mark.parametrize("target", GPUS)
def test_a_slice_fits_the_registers(target: str) -> None:
    args = [np.zeros(s, d) for s, d in (((64, 180), "f4"), ((64,), "f2"), ((180,), "f4"))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = statistics.compile(*args, np.zeros((1, 180), "f4"), target=target)
    staged = parse_func(made.stages["stage_reductions"])
    assert [o.source.extents for o in ops(staged, Reduce)] == [(64, 60), (21, 180), (16, 180)]
