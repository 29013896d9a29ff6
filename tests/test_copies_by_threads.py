"""Copies that each thread starts by itself (T.ptx_cp_async): past its registers where their places
are known to suit cp.async, in flight until it waits, or until a barrier that they arrive at says
so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import CpAsync, MbarrierWait, MemLoad, ProxyFence, Wgmma
from tilec.ir.schedule import Plan

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
ROWS, STAGES = 12, 3
N = T.dynamic("N")


@tilec.kernel
def ring(
    A: T.Tensor((ROWS, 256), "float16"),
    B: T.Tensor((ROWS, 256), "float16"),
    wait: T.constexpr = STAGES - 2,
):
    """Each row of A the other way round: threads read what others have copied."""
    with T.Kernel(1, threads=32):
        S = T.alloc_shared((STAGES, 256), "float16")
        tx = T.get_thread_binding(0)
        for k in T.unroll(STAGES - 1):
            T.ptx_cp_async(
                T.access_ptr(S[k, tx * 8], "w", 8), T.access_ptr(A[k, tx * 8], "r", 8), 8
            )
            T.ptx_commit_group()
        for k in T.serial(ROWS):
            T.ptx_wait_group(wait)
            T.sync_threads()
            for n in T.Parallel(256):
                B[k, n] = S[k % STAGES, 255 - n]
            more = k + STAGES - 1
            T.ptx_cp_async(
                T.access_ptr(S[more % STAGES, tx * 8], "w", 8),
                T.access_ptr(A[more, tx * 8], "r", 8),
                8,
                more < ROWS - 1,
            )
            T.ptx_commit_group()


def run(kernel: Any, target: str, *arrays: np.ndarray, **options: Any) -> Any:
    if target == "cpu":
        kernel(*arrays, **options)
        return None
    report = tilec.simulate(kernel, *arrays, target=target, **options)
    return report


@pytest.mark.parametrize("target", TARGETS)
def test_a_ring_of_rows(target: str, rng: np.random.Generator) -> None:
    a = rng.standard_normal((ROWS, 256)).astype(np.float16)
    b = np.zeros_like(a)
    report = run(ring, target, a, b)
    assert report is None or report.ok, report
    np.testing.assert_array_equal(b[:-1], a[:-1, ::-1])
    np.testing.assert_array_equal(b[-1], 0)  # whose condition does not hold
    if target.startswith("cuda"):
        made = ring.compile(a, b, target=target)
        assert {o.bytes for o in walk(made.lowered.body) if isinstance(o, CpAsync)} == {16}
        assert not any(
            isinstance(o, MemLoad) and o.source.name == "A" for o in walk(made.lowered.body)
        )
        assert made.stages["ptx"].count("cp.async.cg.shared.global") == STAGES
    elif target.startswith("hip"):
        made = ring.compile(a, b, target=target)
        loads = [
            o for o in walk(made.lowered.body) if isinstance(o, MemLoad) and o.source.name == "A"
        ]
        assert 8 in {o.lanes for o in loads}  # of 64 lanes those beyond the row load none


@pytest.mark.parametrize("wait", [STAGES - 2, STAGES - 1])
def test_a_wait_for_too_few_is_found(wait: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal((ROWS, 256)).astype(np.float16)
    report = run(ring, "cuda:sm_90a", a, np.zeros_like(a), wait=wait)
    assert report.ok == (wait == STAGES - 2)


@pytest.mark.parametrize(
    "dtype, count, step, bytes",
    [("float32", 1, 1, 4), ("float16", 2, 2, 4), ("float16", 4, 4, 8), ("float32", 8, 8, 16),
     ("float16", 1, 1, 0), ("float16", 4, 2, 4), ("float16", 4, 1, 0), ("float64", 1, 1, 8)],
)  # fmt: skip
def test_bytes_of_a_copy(
    dtype: str, count: int, step: int, bytes: int, rng: np.random.Generator
) -> None:
    """4, 8 or 16 where the place of the first element is a multiple of that; loads elsewhere."""

    @tilec.kernel
    def copied(A: T.Tensor((512,), dtype), B: T.Tensor((512,), dtype)):
        with T.Kernel(1, threads=32):
            S = T.alloc_shared((512,), dtype)
            tx = T.get_thread_binding(0)
            T.fill(S, 0)
            at = tx * (2 * step) + (step if step != count else 0)
            T.ptx_cp_async(S[at], A[at], count)
            T.ptx_commit_group()
            T.ptx_wait_group(0)
            T.sync_threads()
            T.copy(S, B)

    a = rng.standard_normal(512).astype(dtype)
    b = np.full_like(a, np.nan)
    report = tilec.simulate(copied, a, b, target="cuda:sm_90a")
    assert report.ok, report
    n = np.arange(512) - (step if step != count else 0)
    copied_there = np.isin(n, np.add.outer(np.arange(32) * 2 * step, np.arange(count)))
    np.testing.assert_array_equal(b, np.where(copied_there, a, 0))
    made = copied.compile(a, b, target="cuda:sm_90a")
    assert {o.bytes for o in walk(made.lowered.body) if isinstance(o, CpAsync)} == ({bytes} - {0})


def scoped(asynchronous: int) -> Any:
    """Two tiles of rows, both halves of each in one loop over neighbours, one tile ahead."""

    @tilec.kernel
    def halves(
        A: T.Tensor((N, 128), "float16"),
        B: T.Tensor((N, 64), "float32"),
        C: T.Tensor((N, 64), "float16"),
        D: T.Tensor((N, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            left = T.alloc_shared((2, 16, 64), "float16")
            right = T.alloc_shared((2, 16, 64), "float16")
            sums = T.alloc_shared((2, 16, 64), "float32")
            full, free = T.alloc_barrier([128, 128]), T.alloc_barrier([128, 128])
            tx = T.get_thread_binding(0)
            if tx < 128:
                for k in T.serial(T.ceildiv(N, 16)):
                    T.barrier_wait(free[k % 2], k // 2 ^ 1)
                    row, column = tx // 8, tx % 8 * 8
                    with T.attr("default", "async_scope", asynchronous):
                        for v in T.vectorized(8):
                            left[k % 2, row, column + v] = A[k * 16 + row, column + v]
                            right[k % 2, row, column + v] = A[k * 16 + row, 64 + column + v]
                        for v in T.vectorized(8):
                            sums[k % 2, row, column + v] = B[k * 16 + row, column + v]
                    if asynchronous:
                        T.cp_async_barrier_noinc(full[k % 2])
                    else:
                        T.barrier_arrive(full[k % 2])
            else:
                for k in T.serial(T.ceildiv(N, 16)):
                    T.barrier_wait(full[k % 2], k // 2)
                    for i, j in T.Parallel(16, 64):
                        C[k * 16 + i, j] = left[k % 2, i, j] + right[k % 2, i, 63 - j]
                    for i, j in T.Parallel(16, 64):
                        D[k * 16 + i, j] = sums[k % 2, i, 63 - j] * 2.0
                    T.barrier_arrive(free[k % 2])

    return halves


@pytest.mark.parametrize("rows", [0, 16, 32, 70])
def test_copies_in_an_async_scope(rows: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal((rows, 128)).astype(np.float16)
    b = rng.standard_normal((rows, 64)).astype(np.float32)
    c, d = np.full((rows, 64), np.nan, np.float16), np.full((rows, 64), np.nan, np.float32)
    report = tilec.simulate(scoped(1), a, b, c, d, target="cuda:sm_90a")
    assert report.ok, report
    np.testing.assert_array_equal(c, a[:, :64] + a[:, :63:-1])
    np.testing.assert_array_equal(d, b[:, ::-1] * 2)


def test_each_copy_in_an_async_scope_goes_past_registers() -> None:
    halves, words = ("float16", 128), ("float32", 64)
    specs = [tilec.spec((640, n), t) for t, n in (halves, words, ("float16", 64), words)]
    for asynchronous in (0, 1):
        plain = Plan("plain")
        made = scoped(asynchronous).compile_with_plan(plain, *specs, target="cuda:sm_90a")
        copies = [o.bytes for o in walk(made.lowered.body) if isinstance(o, CpAsync)]
        assert copies == asynchronous * [16, 16, 16, 16]  # eight float32 are two
        loads = (o for o in walk(made.lowered.body) if isinstance(o, MemLoad))
        assert any(o.source.name in "AB" for o in loads) == (not asynchronous)


def test_what_is_no_copy_in_an_async_scope_is_done_at_once(rng: np.random.Generator) -> None:
    """Numbers that are computed, elements that another thread's iteration stores, a tensor."""

    @tilec.kernel
    def twice(A: T.Tensor((128,), "float16"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            S = T.alloc_shared((128,), "float32")
            tx = T.get_thread_binding(0)
            with T.attr("default", "async_scope", 1):
                S[tx] = A[tx]
                for i in T.Parallel(128):
                    S[i] = S[i] * 2.0
                B[tx] = S[tx]

    a, b = rng.standard_normal(128).astype(np.float16), np.zeros(128, np.float32)
    for target in TARGETS:
        run(twice, target, a, b)
        np.testing.assert_array_equal(b, a.astype(np.float32) * 2)
    made = twice.compile(a, b, target="cuda:sm_90a")
    assert not any(isinstance(o, CpAsync) for o in walk(made.lowered.body))


def gathered(told: str) -> Any:
    """Rows of B by index, brought by a group of threads that does not wait for them, for products
    of another one."""

    @tilec.kernel
    def product(
        A: T.Tensor((64, 256), "float16"),
        B: T.Tensor((300, 64), "float16"),
        I: T.Tensor((256,), "int32"),  # noqa: E741
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            As = T.alloc_shared((64, 256), "float16")
            Bs = T.alloc_shared((2, 64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            full, free = T.alloc_barrier([128, 128]), T.alloc_barrier([128, 128])
            tx = T.get_thread_binding(0)
            T.copy(A, As)
            if tx < 128:
                T.clear(acc)
                for k in T.serial(4):
                    T.barrier_wait(full[k % 2], k // 2)
                    T.gemm(As[:, k * 64 : k * 64 + 64], Bs[k % 2, :, :], acc)
                    T.barrier_arrive(free[k % 2])
                T.copy(acc, C)
            else:
                for k in T.serial(4):
                    T.barrier_wait(free[k % 2], k // 2 ^ 1)
                    row = (tx - 128) // 8
                    for r in T.serial(4):
                        at = I[k * 64 + r * 16 + row]
                        T.ptx_cp_async(Bs[k % 2, r * 16 + row, tx % 8 * 8], B[at, tx % 8 * 8], 8)
                    if told == "copies":
                        T.cp_async_barrier_noinc(full[k % 2])
                    elif told == "waits":
                        T.ptx_commit_group()
                        T.ptx_wait_group(0)
                        T.barrier_arrive(full[k % 2])
                    else:
                        T.barrier_arrive(full[k % 2])

    return product


@pytest.mark.parametrize("told", ["copies", "waits", "too early"])
def test_copies_that_arrive_by_themselves(told: str, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 256), (300, 64)))
    at = rng.integers(0, 310, 256).astype(np.int32)  # some rows are none: zeros
    c = np.full((64, 64), np.nan, np.float32)
    kernel = gathered(told)
    report = tilec.simulate(kernel, a, b, at, c, target="cuda:sm_90a")
    assert report.ok == (told != "too early")
    if told == "too early":
        assert "read before wait" in str(report)
        return
    rows = np.concatenate([b.astype(np.float32), np.zeros((10, 64), np.float32)])[at]
    np.testing.assert_allclose(c, a.astype(np.float32) @ rows, rtol=1e-3, atol=1e-3)
    made = kernel.compile(a, b, at, c, target="cuda:sm_90a")
    assert ("cp.async.mbarrier.arrive.noinc" in made.stages["ptx"]) == (told == "copies")
    kinds = [
        type(o).__name__
        for o in walk(made.lowered.body)
        if isinstance(o, MbarrierWait | ProxyFence | Wgmma)
    ]
    first = kinds[kinds.index("MbarrierWait") :]
    # The products' threads fence what they have waited for where its own could not.
    expected = (
        ["MbarrierWait", "ProxyFence", "Wgmma"] if told == "copies" else ["MbarrierWait", "Wgmma"]
    )
    assert first[: len(expected)] == expected


def test_places_of_several_iterations_are_asked_for_together() -> None:
    """The indices of rows, in front of the first copy of a row."""
    specs = tilec.spec((64, 256), "float16"), tilec.spec((300, 64), "float16")
    made = gathered("copies").compile_with_plan(
        Plan("plain"), *specs, tilec.spec((256,), "int32"), tilec.spec((64, 64), "float32"),
        target="cuda:sm_90a",
    )  # fmt: skip
    found = [
        "copy" if isinstance(o, CpAsync) else "index"
        for o in walk(made.lowered.body)
        if isinstance(o, CpAsync) or (isinstance(o, MemLoad) and o.source.name == "I")
    ]
    assert found == ["index"] * 4 + ["copy"] * 4
