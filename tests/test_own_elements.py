"""Threads need not meet between their statements for elements that are each one thread's own; a
thread's loop over neighbours is one access, under conditions too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import Barrier, For, MemLoad, MemStore
from tilec.ir.schedule import Plan

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


def unpacked(shift: int) -> Any:
    """A tile that threads write in several turns, each `shift` elements of its neighbour's."""

    @tilec.kernel
    def twice(A: T.Tensor((4096,), "float16"), B: T.Tensor((32, 128), "float16"), n: T.int32):
        with T.Kernel(1, threads=128):
            S = T.alloc_shared((32, 128), "float16")
            x = T.alloc_local((8,), "float16")
            tx = T.get_thread_binding()
            for i in T.serial(4):
                first = i * 1024 + tx * 8
                for v in T.vectorized(8):
                    if first < n:
                        x[v] = A[first + v]
                    else:
                        x[v] = T.float16(0)
                for v in T.vectorized(8):
                    at = (first + v + shift * i) % 4096
                    S[at // 128, at % 128] = x[v] * T.float16(2)
                # what the thread itself has written
                for v in T.vectorized(8):
                    at = (first + v + shift * i) % 4096
                    S[at // 128, at % 128] += T.float16(1)
            T.copy(S, B)

    return twice


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [4096, 2000])
def test_a_tile_that_threads_write(target: str, n: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal(4096).astype(np.float16)
    b = np.full((32, 128), np.nan, np.float16)
    kernel = unpacked(0)
    run(kernel, target, a, b, n)
    want = np.where(np.arange(4096) < n, a, np.float16(0)) * np.float16(2) + np.float16(1)
    np.testing.assert_array_equal(b.ravel(), want)


def loop_of(kernel: Any, target: str) -> For:
    specs = tilec.spec((4096,), "float16"), tilec.spec((32, 128), "float16")
    func = kernel.compile_with_plan(Plan("plain"), *specs, 7, target=target).lowered
    return next(o for o in func.body.every(For) if any(isinstance(x, MemStore) for x in walk(o)))


@pytest.mark.parametrize("target", TARGETS[1:])
def test_threads_do_not_meet_for_their_own(target: str) -> None:
    loop = loop_of(unpacked(0), target)
    assert not any(loop.body.every(Barrier))
    assert {o.value.type.lanes for o in loop.body.every(MemStore)} == {8}
    assert [o.lanes for o in loop.body.every(MemLoad)] == [8, 8]


@pytest.mark.parametrize("target", TARGETS[1:])
def test_threads_meet_for_those_of_others(target: str) -> None:
    """In one turn or another several threads have an element."""
    assert len([*loop_of(unpacked(8), target).body.every(Barrier)]) >= 1
