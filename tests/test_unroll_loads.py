"""Iterations that follow from one another: the loads of many stand before the first of them."""

import re
from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K = T.dynamic("M, N, K")
GPUS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")


@tilec.kernel
def smoothed(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
    for j in T.Parallel(N):
        s: T.float32 = 0
        for i in range(M):
            s = 0.75 * s + X[i, j]
            Y[i, j] = s


@tilec.kernel
def largest_so_far(
    X: T.Tensor((M, N), "int8"), V: T.Tensor((M, N), "int16"), A: T.Tensor((M, N), "int32")
):
    for i in T.Parallel(M):
        best: T.int16 = -200
        at: T.int32 = -1
        for j in range(N):
            if X[i, j] >= best:
                best = X[i, j]
                at = j
            V[i, j] = best
            A[i, j] = at


@tilec.kernel
def kept(
    X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32"), C: T.Tensor((M,), "int32")
):
    for i in T.Parallel(M):
        c: T.int32 = 0
        for j in range(N):
            if X[i, j] > 0:
                Y[i, c] = X[i, j]
                c += 1
        C[i] = c


@tilec.kernel
def by_index(X: T.Tensor((K,), "float32"), I: T.Tensor((M, N), "int64"),  # noqa: E741
             Y: T.Tensor((M, N), "float32")):  # fmt: skip
    for i in T.Parallel(M):
        s: T.float32 = 1
        for j in range(N):
            s = s - X[I[i, j]] * s
            Y[i, j] = s


@tilec.kernel
def chased(X: T.Tensor((N,), "int32"), Y: T.Tensor((M, N), "int32")):
    for i in T.Parallel(M):
        at: T.int32 = 0
        for j in range(N):
            at = X[at]
            Y[i, j] = at


@tilec.kernel
def in_place(X: T.Tensor((M, N), "float32")):
    for j in T.Parallel(N):
        s: T.float32 = 0
        for i in range(M):
            s = 0.75 * s + X[i, j]
            X[i, j] = s


def decayed(x: np.ndarray) -> np.ndarray:
    made, s = np.zeros(x.shape), np.zeros(x.shape[1])
    for i, row in enumerate(x.astype(float)):
        made[i] = s = 0.75 * s + row
    return made


@pytest.mark.covering(1)
@pytest.mark.parametrize("m, n", [(0, 5), (1, 1), (31, 3), (32, 1), (33, 40), (100, 7)])
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_numbers(target: str, m: int, n: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal((m, n)).astype(np.float32)
    x[5:6, :1] = np.nan
    y = np.full_like(x, 7)
    run(smoothed, target, x, y)
    np.testing.assert_allclose(y, decayed(x), rtol=1e-5, atol=1e-5)
    b = rng.integers(-128, 128, (n, m)).astype(np.int8)
    v, a = np.full((n, m), 99, np.int16), np.full((n, m), 99, np.int32)
    run(largest_so_far, target, b, v, a)
    top = np.maximum.accumulate(b, 1)
    np.testing.assert_array_equal(v, top)
    last = np.maximum.accumulate(np.where(b == top, np.arange(m), -1), 1)
    np.testing.assert_array_equal(a, last)
    x, y, c = np.ascontiguousarray(x.T), np.full((n, m), 7, np.float32), np.zeros(n, np.int32)
    run(kept, target, x, y, c)
    np.testing.assert_array_equal(c, (x > 0).sum(1))
    for got, row, count in zip(y, x, c):
        np.testing.assert_array_equal(got, [*row[row > 0], *[7] * (m - count)])
    index, z = rng.integers(0, 9, (n, m)), rng.random(9).astype(np.float32)
    run(by_index, target, z, index, y)
    np.testing.assert_allclose(y, np.cumprod(1 - z[index].astype(float), 1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("target", GPUS)
def test_memory_that_is_written_is_read_in_turn(target: str, rng: np.random.Generator) -> None:
    """One tensor, or two that share memory."""
    for kernel in (in_place, smoothed):
        x = rng.standard_normal((100, 5)).astype(np.float32)
        want = decayed(x)
        run(kernel, target, *([x] if kernel is in_place else [x, x]))
        np.testing.assert_allclose(x, want, rtol=1e-5, atol=1e-5)


def stage(kernel: tilec.Kernel, *specs: tuple[tuple[int, ...], str]) -> str:
    given = [tilec.spec(*s) for s in specs]
    return str(kernel.compile(*given, target="cuda:sm_90a").stages["unroll_loads"])


def test_loads_stand_first() -> None:
    text = stage(smoothed, ((100, 70), "float32"), ((100, 70), "float32"))
    assert text.count("mem_load") == text.count("mem_store") == 32 + 1
    ahead = text[: text.index("mem_store")]
    (around,) = re.findall(r"if (%\w+) then", ahead)  # LLVM knows that it holds there
    assert ahead.count("mem_load") == 32 and {*re.findall(r"guard=(%\w+)", ahead)} <= {around}
    assert stage(in_place, ((100, 70), "float32")).count("mem_load") == 1
    text = stage(by_index, ((9,), "float32"), ((10, 70), "int64"), ((10, 70), "float32"))
    asked = text[: text.index("mem_load %X")]  # what asks for its index waits
    assert asked.count("mem_load") == asked.count("mem_load %I") == 16
    assert stage(chased, ((70,), "int32"), ((10, 70), "int32")).count("mem_load") == 1


@tilec.kernel
def scaled(
    X: T.Tensor((3, 1024), "uint8"),
    S: T.Tensor((3, 128), "uint8"),
    Y: T.Tensor((3, 1024), "float32"),
):
    """Eight numbers at a time, through arrays of a thread's own."""
    with T.Kernel(3, threads=32) as m:
        tile = T.alloc_shared((1024,), "float32")
        raw, done = T.alloc_local((8,), "uint8"), T.alloc_local((8,), "float32")
        tx = T.get_thread_binding(0)
        for i in T.serial(4):
            at = i * 32 + tx
            for v in T.vectorized(8):
                raw[v] = X[m, at * 8 + v]
            scale = T.float32(S[m, at])
            for v in T.serial(8):
                done[v] = T.float32(raw[v]) * scale
            for v in T.vectorized(8):
                tile[at * 8 + v] = done[v]
        for j in T.Parallel(1024):
            Y[m, j] = tile[j]


@pytest.mark.parametrize("target", GPUS)
def test_through_arrays_of_a_thread(target: str, rng: np.random.Generator) -> None:
    x, s = (rng.integers(0, 256, (3, n)).astype(np.uint8) for n in (1024, 128))
    y = np.full((3, 1024), np.nan, np.float32)
    run(scaled, target, x, s, y)
    np.testing.assert_array_equal(y, x.astype(np.float32) * np.repeat(s, 8, axis=1))
    text = scaled.compile(x, s, y, target=target).stages["unroll_loads"]
    loads = [n for n, line in enumerate(text.splitlines()) if "mem_load" in line and "%S" in line]
    stores = [n for n, line in enumerate(text.splitlines()) if "mem_store" in line]
    if target != "hip:gfx942":  # which has no waves of 32: half of one does nothing
        assert len(loads) >= 4 and all(n < stores[0] for n in loads)


def test_neighbours_that_every_thread_reads_are_vectors():
    """What single elements' places divide is known once iterations are apart."""

    @tilec.kernel
    def recurrence(X: T.Tensor((M, 16), "float16"), Y: T.Tensor((M, 32), "float32")):
        with T.Kernel(1, threads=32):
            t = T.get_thread_binding(0)
            s = T.alloc_local((16,), "float32")
            for d in range(16):
                s[d] = t
            for i in range(M):
                total: T.float32 = 0
                for d in T.unroll(16):
                    s[d] = s[d] * 0.5 + T.float32(X[i, d])
                    total += s[d]
                Y[i, t] = total

    x = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float16)
    y, want, s = np.empty((5, 32), np.float32), np.empty((5, 32)), np.arange(32.0)[:, None]
    assert tilec.simulate(recurrence, x, y, target="cuda:sm_90a").ok
    for i, row in enumerate(x.astype(float)):
        s = s * 0.5 + row
        want[i] = s.sum(1)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    made = recurrence.compile(x, y, target="cuda:sm_90a")
    assert made.stages["ptx"].count("ld.global.nc.v4.b32") == 2 and "b16" not in loads(made)
    odd = recurrence.compile(tilec.spec((5, 16), "float16", (17, 1)), y, target="cuda:sm_90a")
    assert "v4" not in loads(odd)


def loads(made: Any) -> str:
    return "".join(x for x in made.stages["ptx"].splitlines() if "ld.global" in x)
