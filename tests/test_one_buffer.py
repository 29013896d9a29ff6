"""One buffer, or one array, in several roles: an operand of a product that is its result, what it
gives as an operand of another, a part of a tile that takes what comes of it, and an array that a
call passes under two names."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T
from tests.simulated import run, run_compiled

pytestmark = pytest.mark.turns

TARGETS = ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"]


@tilec.kernel
def onto_itself(
    A: T.Tensor((32, 32), "float16"),
    B: T.Tensor((32, 32), "float16"),
    C: T.Tensor((32, 32), "float16"),
    which: T.constexpr,
    clear: T.constexpr,
):
    with T.Kernel(1, threads=128) as _:
        b = T.alloc_shared((32, 32), "float16")
        c = T.alloc_fragment((32, 32), "float16")
        same = T.reshape(c, (32, 32))
        T.copy(A, c)
        T.copy(B, b)
        if which == "left":
            T.gemm(c, b, c, clear_accum=clear)
        elif which == "right":
            T.gemm(b, same, c, clear_accum=clear)
        else:
            T.gemm(same, c, c, clear_accum=clear)
        T.copy(c, C)


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("which", ["left", "right", "both"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_product_of_what_it_changes(target, which, clear, rng) -> None:
    """Its operands are what was there before, through views, too."""
    a, b = (rng.integers(-1, 2, (32, 32)).astype(np.float16) for _ in range(2))
    c = np.full_like(a, np.nan)
    run_compiled(onto_itself, target, a, b, c, which=which, clear=clear)
    left, right = {"left": (a, b), "right": (b, a), "both": (a, a)}[which]
    np.testing.assert_array_equal(c, left @ right + (0 if clear else a))


@tilec.kernel
def in_turn(
    A: T.Tensor((16, 16), "float64"),
    B: T.Tensor((16, 16), "float64"),
    C: T.Tensor((16, 16), "float64"),
):
    with T.Kernel(1, threads=64) as _:
        a = T.alloc_shared((16, 16), "float64")
        b = T.alloc_shared((16, 16), "float64")
        c = T.alloc_fragment((16, 16), "float64")
        d = T.alloc_fragment((16, 16), "float64")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, clear_accum=True)
        T.gemm(b, c, d, clear_accum=True)
        T.gemm(a, b, c)
        T.gemm(b, c, d)
        T.copy(d, C)


@pytest.mark.parametrize("target", TARGETS)
def test_a_result_that_is_an_operand(target, rng) -> None:
    """Of MFMA, whose results are four elements a register and whose operands one."""
    a, b = rng.integers(-3, 4, (2, 16, 16)).astype(np.float64)
    c = np.full_like(a, np.nan)
    run_compiled(in_turn, target, a, b, c)
    np.testing.assert_array_equal(c, b @ (a @ b) * 3)


@tilec.kernel
def to_their_own_rows(A: T.Tensor((12, 20), "int32")):
    with T.Kernel(1, threads=64) as _:
        a = T.alloc_fragment((12, 20), "int32")
        T.copy(A, a)
        T.reduce_sum(a, a[2, :], dim=0)
        T.reduce_max(a, a[:, 3], dim=1)
        T.copy(a, A)


@tilec.kernel
def of_each_thread(A: T.Tensor((32, 3, 3), "int32")):
    with T.Kernel(1, threads=32) as _:
        t = T.get_thread_binding(0)
        x = T.alloc_local((3, 3), "int32")
        for i, j in T.grid(3, 3):
            x[i, j] = A[t, i, j]
        T.reduce_sum(x, x[1, :], dim=1)
        for i, j in T.grid(3, 3):
            A[t, i, j] = x[i, j]


@pytest.mark.parametrize("target", TARGETS)
def test_a_reduction_to_a_part_of_its_source(target, rng) -> None:
    a = rng.integers(-40, 40, (12, 20)).astype(np.int32)
    want = a.copy()
    want[2] = a.sum(0)
    want[:, 3] = want.max(1)
    run_compiled(to_their_own_rows, target, a)
    np.testing.assert_array_equal(a, want)
    x = rng.integers(-40, 40, (32, 3, 3)).astype(np.int32)
    want = x.copy()
    want[:, 1] = x.sum(2)
    run(of_each_thread, target, x)
    np.testing.assert_array_equal(x, want)


# --- one array under two names --------------------------------------------------------------------


@tilec.kernel
def ahead(A: T.Tensor((32, 64), "int32"), C: T.Tensor((32, 64), "int32")):
    with T.Kernel(1, threads=64) as _:
        a = T.alloc_shared((32, 64), "int32")
        b = T.alloc_shared((32, 64), "int32")
        for _step in T.Pipelined(4, num_stages=3):
            T.copy(A, a)
            for i, j in T.Parallel(32, 64):
                b[i, j] = a[31 - i, 63 - j] + 1
            T.copy(b, C)


@tilec.kernel
def by_other_threads(A: T.Tensor((2, 64), "int32"), C: T.Tensor((2, 64), "int32")):
    with T.Kernel(1, threads=64) as _:
        for i in T.Parallel(64):
            C[0, i] = A[0, i] + 1
        for i in T.Parallel(64):
            C[1, i] = A[0, 63 - i] * 2


@pytest.mark.parametrize("target", TARGETS)
def test_a_call_that_passes_one_array_twice(target, rng) -> None:
    """What is read of one name may have been written under another: no copy runs ahead of that, and
    threads meet in between."""
    a = rng.integers(-40, 40, (32, 64)).astype(np.int32)
    want = a + 4
    run(ahead, target, a, a)
    np.testing.assert_array_equal(a, want)
    a = rng.integers(-40, 40, (2, 64)).astype(np.int32)
    want = np.stack([a[0] + 1, (a[0, ::-1] + 1) * 2])
    run(by_other_threads, target, a, a)
    np.testing.assert_array_equal(a, want)
