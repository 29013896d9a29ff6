"""T.thread_return: a thread, or all of a block, is done before the kernel's end."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

# mypy: ignore-errors

TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
N = T.dynamic("N")


@tilec.kernel
def threads(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 64), threads=64) as b:
        i = b * 64 + T.get_thread_binding()
        if i >= N:
            T.thread_return()
        x = A[i]
        if x < 0:
            B[i] = 0
            T.thread_return()
        B[i] = T.sqrt(x)


@T.macro
def stop_behind(rows, row, out):
    """A part of the kernel that may end it."""
    if row == 1:
        out[row, 0] = -1
        T.thread_return()
    if rows > 100:  # known at compile time
        T.thread_return()


@tilec.kernel
def blocks(A: T.Tensor((N, 128), "float32"), B: T.Tensor((N, 128), "float32"),
           rows: T.constexpr = 3):  # fmt: skip
    with T.Kernel(N + 2, threads=64) as row:
        if row >= N:
            T.thread_return()
        s = T.alloc_shared((128,), "float32")
        T.copy(A[row, :], s)
        for _ in (0, 1):
            if row < 3:
                stop_behind(rows, row, B)
        total = T.alloc_fragment((1,), "float32")
        f = T.alloc_fragment((128,), "float32")
        T.copy(s, f)
        T.reduce_sum(f, total, dim=0)
        for i in T.Parallel(128):
            B[row, i] = s[127 - i] + total[0]


def run(kernel, target, *args, **constants):
    if target == "cpu":
        kernel(*args, **constants)
    else:
        report = tilec.simulate(kernel, *args, target=target, **constants)
        assert report.ok, report


@pytest.mark.parametrize("target", TARGETS)
def test_threads_that_are_done(target):
    a = np.random.default_rng(1).standard_normal(150).astype("float32")
    b = np.full(150, np.nan, "float32")
    run(threads, target, a, b)
    np.testing.assert_allclose(b, np.sqrt(np.maximum(a, 0)), rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_that_are_done(target):
    a = np.random.default_rng(1).standard_normal((5, 128)).astype("float32")
    b = np.zeros((5, 128), "float32")
    run(blocks, target, a, b)
    want = a[:, ::-1] + a.astype("f8").sum(1, keepdims=True)
    want[1], want[1, 0] = 0, -1
    np.testing.assert_allclose(b, want, rtol=1e-5, atol=1e-5)
    b[:] = 0
    run(blocks, target, a, b, rows=101)
    want[0], want[2] = 0, 0
    np.testing.assert_allclose(b, want, rtol=1e-5, atol=1e-5)


def test_what_it_says_where_it_cannot_stand():
    @tilec.kernel
    def wrong(A: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.serial(N):
                if A[i] > 0:
                    T.thread_return()

    with pytest.raises(tilec.CompileError, match="T.thread_return in a loop that runs at run time"):
        wrong.compile(tilec.spec((8,), "float32"), target="cuda:sm_90a")
