"""Threads that exchange data in thread-level code, which has no builtin for a barrier: on the CPU
and in the simulator, through loops of 0, 1 and 2 trips, branches and `while`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

N = 64


@tilec.kernel
def reverse(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32"), n: T.int32):
    with T.Kernel(1, threads=N):
        tx = T.get_thread_binding()
        s = T.alloc_shared((N,), "int32")
        s[tx] = A[tx]
        C[tx] = s[N - 1 - tx] * n


@tilec.kernel
def halo(A: T.Tensor((2 * N,), "float16"), C: T.Tensor((2 * N,), "float16"), n: T.int32):
    """One buffer is read and written by turns; what each thread carries lives across barriers."""
    with T.Kernel(2, threads=N) as bx:
        tx = T.get_thread_binding()
        s = T.alloc_shared((N,), "float16")
        v = A[bx * N + tx]
        for _ in T.serial(n):
            s[tx] = v
            v = s[(tx + 1) % N] + 1.0
        C[bx * N + tx] = v


@tilec.kernel
def asked_inside(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32"), n: T.int32):
    """The index is asked for nowhere but in a loop in a branch."""
    with T.Kernel(1, threads=N):
        if n >= 0:
            k = 0
            while k < 2:
                tx = T.get_thread_binding()
                C[tx] = A[N - 1 - tx] * n + k
                k += 1


@tilec.kernel
def skipped(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32"), n: T.int32):
    """A loop that only reads, and may not run, stands between the write and the last read."""
    with T.Kernel(1, threads=N):
        s = T.alloc_shared((N,), "int32")
        s[T.get_thread_binding()] = A[T.get_thread_binding()]
        v = 0
        for _ in T.serial(n):
            if A[T.get_thread_binding()] > 20:
                v = v + s[(T.get_thread_binding() + 1) % N]
        C[T.get_thread_binding()] = v + s[N - 1 - T.get_thread_binding()]


@tilec.kernel
def around(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32"), n: T.int32):
    """Written before nested loops, read after them."""
    with T.Kernel(1, threads=N):
        tx = T.get_thread_binding()
        s = T.alloc_shared((N,), "int32")
        s[tx] = A[tx]
        for _ in T.serial(n):
            for _ in range(n - 1):
                v = s[(tx + 1) % N]
                s[tx] = v
        C[tx] = s[N - 1 - tx]


@tilec.kernel
def sort(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32"), n: T.int32):
    """A bitonic network: `while` in `while`, and branches that part the threads."""
    with T.Kernel(1, threads=N):
        tx = T.get_thread_binding()
        s = T.alloc_shared((N,), "int32")
        s[tx] = A[tx] * n
        run = 2
        while run <= N:
            step = run // 2
            while step > 0:
                mine, other = s[tx], s[tx ^ step]
                smaller = T.if_then_else((tx & run) == 0, tx < (tx ^ step), tx > (tx ^ step))
                s[tx] = T.if_then_else(smaller, T.min(mine, other), T.max(mine, other))
                step = step // 2
            run = run * 2
        C[tx] = s[tx]


@tilec.kernel
def tree(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"), n: T.int32):
    """A sum in halves, in two dimensions of shared memory, under a branch that all take."""
    with T.Kernel(1, threads=N):
        tx = T.get_thread_binding()
        s = T.alloc_shared((4, N // 4), "float32")
        s[tx % 4, tx // 4] = A[tx]
        half = N // 2
        if n > 0:
            while half > 0:
                if tx < half:
                    at = tx + half
                    s[tx % 4, tx // 4] = s[tx % 4, tx // 4] + s[at % 4, at // 4]
                half = half // 2
        C[tx] = s[0, 0]


@tilec.kernel
def arrays(A: T.Tensor((N,), "int32"), C: T.Tensor((3, N), "int32"), n: T.int32):
    """Arrays of each thread's own live across barriers, and a counter that is the same for all
    comes out of a loop in which threads do something of their own."""
    with T.Kernel(1, threads=N):
        tx = T.get_thread_binding()
        s = T.alloc_shared((N,), "int32")
        mine = T.alloc_local((3,), "int32")
        for k in T.serial(3):
            mine[k] = A[tx] + k
        count = 1
        for k in T.serial(n):
            s[tx] = mine[tx % 3]
            mine[k % 3] = s[N - 1 - tx]
        for k in T.serial(n):
            mine[2] = mine[2] + tx
            count = count + k + 1
        for _ in T.serial(count):
            s[tx] = mine[1]
            mine[1] = s[(tx + 1) % N]
        for k in T.serial(3):
            C[k, tx] = mine[k]


@tilec.kernel
def far(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32"), n: T.int32):
    """Through global memory, and a tile loop between code of threads."""
    with T.Kernel(1, threads=N):
        tx = T.get_thread_binding()
        C[tx] = A[tx] * n
        v = C[(tx + 5) % N]
        C[tx] = v
        for i in T.Parallel(N):
            C[i] = C[i] + 1
        w = C[N - 1 - tx]
        C[tx] = w - v


def _halo(a: Any, n: int) -> Any:
    rows = a.reshape(2, N)
    for _ in range(n):
        rows = np.roll(rows, -1, 1) + np.float16(1)
    return rows.reshape(-1)


def _around(a: Any, n: int) -> Any:
    return np.roll(a, -n * max(n - 1, 0))[::-1]


def _skipped(a: Any, n: int) -> Any:
    return np.where(a > 20, n * np.roll(a, -1), 0) + a[::-1]


def _tree(a: Any, n: int) -> Any:
    return np.full(N, a.sum() if n else a[0])


def _arrays(a: Any, n: int) -> Any:
    mine = a + np.arange(3)[:, None]
    tx = np.arange(N)
    for k in range(n):
        mine[k % 3] = mine[tx % 3, tx][::-1]
    mine[2] += n * tx
    mine[1] = np.roll(mine[1], -(1 + n * (n + 1) // 2))
    return mine


def _far(a: Any, n: int) -> Any:
    v = np.roll(a * n, -5)
    return v[::-1] + 1 - v


CASES: dict[str, tuple[tilec.kernel.Kernel, tuple[int, ...], Callable[[Any, int], Any]]] = {
    "reverse": (reverse, (N,), lambda a, n: a[::-1] * n),
    "halo": (halo, (2 * N,), _halo),
    "asked_inside": (asked_inside, (N,), lambda a, n: a[::-1] * n + 1),
    "skipped": (skipped, (N,), _skipped),
    "around": (around, (N,), _around),
    "sort": (sort, (N,), lambda a, n: np.sort(a * n)),
    "tree": (tree, (N,), _tree),
    "arrays": (arrays, (3, N), _arrays),
    "far": (far, (N,), _far),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "hip:gfx942"])
def test_threads_see_what_others_wrote(name: str, target: str, rng: np.random.Generator) -> None:
    kernel, shape, want = CASES[name]
    dtype = np.dtype(next(str(p.dtype) for p in kernel.parameters if p.name == "A"))
    a = rng.integers(0, 100, 2 * N if name == "halo" else N).astype(dtype)
    for n in (0, 1, 2):
        c = np.full(shape, 77, dtype)
        run(kernel, target, a, c, n)
        np.testing.assert_array_equal(c, want(a, n), f"{n} trips")


def test_barriers_are_those_of_the_gpu_passes() -> None:
    """One for the exchange, none for what only one thread touches; tile code alone needs none."""
    given = [tilec.spec((N,), "int32")] * 2
    compiled = reverse.compile(*given, 1, target="cpu")
    assert compiled.stages["insert_sync"].count("barrier") == 1
    assert "barrier" not in compiled.stages["simplify"]

    @tilec.kernel
    def tiles(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            s = T.alloc_shared((N,), "int32")
            T.copy(A, s)
            for i in T.Parallel(N):
                C[i] = s[N - 1 - i]

    assert "insert_sync" not in tiles.compile(*given, target="cpu").stages
