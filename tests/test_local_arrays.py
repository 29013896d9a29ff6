"""Tile words and loops on `T.alloc_local` arrays: each thread does all of it, with its own."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import MemStore
from tilec.ir.types import VectorType

pytestmark = pytest.mark.turns

M, N = T.dynamic("M, N")
GPUS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")


@tilec.kernel
def rows(A: T.Tensor((128, 8), "float32"), C: T.Tensor((128, 24), "float32")):
    with T.Kernel(1, threads=128):
        t = T.get_thread_binding()
        own = T.alloc_local((8,), "float32")
        large = T.alloc_local((3, 8), "float32")
        T.copy(A[t, 0], own)
        T.fill(large, t)
        T.copy(own, large[1, 0])
        T.copy(own[0:4], large[2, 2:6])
        if t % 3 == 1:
            T.clear(own)
        T.copy(own, large[0, 0])
        for i in T.unroll(3):
            T.copy(large[i, 0:8], C[t, i * 8 : i * 8 + 8])


@tilec.kernel
def turned(A: T.Tensor((32, 24), "float32"), C: T.Tensor((128, 24), "float32")):
    with T.Kernel(1, threads=128):
        t = T.get_thread_binding()
        s = T.alloc_shared((32, 24), "float32")
        own = T.alloc_local((24,), "float32")
        T.copy(A, s)
        T.copy(s[t % 32, 0:24], own)
        for i in T.serial(24):
            C[t, i] = own[(i + t) % 24]


@tilec.kernel
def numbered(C: T.Tensor((128, 40), "float32")):
    with T.Kernel(1, threads=128):
        t = T.get_thread_binding()
        own = T.alloc_local((40,), "float32")
        for i in T.Parallel(40):
            own[i] = t + i
        for i in T.Parallel(40):
            C[t, i] = own[39 - i]


@pytest.mark.parametrize("target", ("cpu", *GPUS))
def test_each_thread_runs_loops_over_its_own(target: str) -> None:
    C = np.zeros((128, 40), np.float32)
    run(numbered, target, C)
    assert np.array_equal(C, np.arange(128)[:, None] + 39 - np.arange(40))


@pytest.mark.parametrize("target", ("cpu", *GPUS))
def test_each_thread_fills_and_copies_its_own(target: str, rng: np.random.Generator) -> None:
    t = np.arange(128)
    A, B = (rng.standard_normal(s).astype(np.float32) for s in ((128, 8), (32, 24)))
    by_rows = np.repeat(t[:, None], 24, 1).astype(np.float32)
    by_rows[:, :8] = by_rows[:, 8:16] = A
    by_rows[:, 18:22] = A[:, :4]
    by_rows[1::3, :8] = 0
    by_turns = B[t[:, None] % 32, (np.arange(24) + t[:, None]) % 24]
    for kernel, source, want in ((rows, A, by_rows), (turned, B, by_turns)):
        C = np.zeros((128, 24), np.float32)
        run(kernel, target, source, C)
        assert np.array_equal(C, want), kernel.name


@pytest.mark.parametrize("target", GPUS)
def test_what_a_thread_stores_is_as_wide_as_its_rows_allow(target: str) -> None:
    A, C = np.zeros((128, 8), np.float32), np.zeros((128, 24), np.float32)
    compiled = rows.compile(A, C, target=target)
    stores = [o for o in walk(compiled.lowered.body) if isinstance(o, MemStore)]
    lanes = [o.value.type.lanes for o in stores if isinstance(o.value.type, VectorType)]
    assert lanes == [4] and len(stores) == 1, "in a loop over pieces of 16 bytes"
    assert not any(o.guard for o in stores), "no thread stores for others"


@tilec.kernel
def alike(A: T.Tensor((6,), "float32"), B: T.Tensor((6,), "float32")):
    """All threads hold the same: added once, on every target."""
    with T.Kernel(1, threads=64):
        own = T.alloc_local((6,), "float32")
        T.copy(A, own)
        T.atomic_add(B, own)


@tilec.kernel
def own_sums(A: T.Tensor((64, 6), "float32"), B: T.Tensor((6,), "float32")):
    """Each thread holds others: all are added."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        own = T.alloc_local((6,), "float32")
        T.copy(A[tx, :], own)
        T.atomic_add(B, own)


@tilec.kernel
def own_places(A: T.Tensor((6,), "float32"), B: T.Tensor((64, 6), "float32")):
    """All threads hold the same, and add it in places of their own."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        own = T.alloc_local((6,), "float32")
        T.copy(A, own)
        T.atomic_add(B[tx, :], own)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_what_all_threads_hold_is_added_once(target: str) -> None:
    rng = np.random.default_rng(5)
    for kernel, shape, out in ((alike, (6,), (6,)), (own_sums, (64, 6), (6,)), (own_places, (6,), (64, 6))):  # fmt: skip  # noqa: E501
        a, b = rng.standard_normal(shape, np.float32), rng.standard_normal(out, np.float32)
        wanted = b.astype("f8") + (a.astype("f8").sum(0) if kernel is own_sums else a)
        if target == "cpu":
            kernel(a, b)
        else:
            kernel.compile(a, b, target=target)
            report = tilec.simulate(kernel, a, b, target=target)
            assert report.ok, report
        np.testing.assert_allclose(b, wanted, rtol=1e-5, atol=1e-5)


@tilec.kernel
def scattered(
    P: T.Tensor((N, 3), "int32"), A: T.Tensor((N, 48), "float32"), B: T.Tensor((M, 48), "float32")
):
    """What is read from an array that a copy has filled decides about whole loops."""
    with T.Kernel(N, threads=64) as row:
        place = T.alloc_local((3,), "int32")
        f = T.alloc_fragment((48,), "float32")
        T.copy(P[row, 0], place)
        T.copy(A[row, :], f)
        for k in T.serial(3):
            if place[k] >= 0:
                for i in T.Parallel(48):
                    B[place[k], i] = f[i]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
def test_an_array_that_a_copy_fills_is_the_same_for_all_threads(target: str) -> None:
    rng = np.random.default_rng(5)
    places = rng.permutation(18).reshape(6, 3).astype(np.int32) - 2
    a, b = rng.standard_normal((6, 48)).astype("f4"), np.zeros((16, 48), "f4")
    if target == "cpu":
        scattered(places, a, b)
    else:
        report = tilec.simulate(scattered, places, a, b, target=target)
        assert report.ok, report
    want = np.zeros_like(b)
    for n, row in zip(places.ravel(), a.repeat(3, 0), strict=True):
        if n >= 0:
            want[n] = row
    np.testing.assert_array_equal(b, want)


@tilec.kernel
def scratch(A: T.Tensor((4, 64), "float32"), B: T.Tensor((4, 8, 3), "float32")):
    """Arrays that each iteration fills and reads, made in front of the loop."""
    with T.Kernel(1, threads=32):
        f = T.alloc_fragment((4, 64), "float32")
        T.copy(A, f)
        taken, made = T.alloc_local((8,), "float32"), T.alloc_local((3,), "float32")
        for x, y in T.Parallel(4, 8):
            for j in T.serial(8):
                taken[j] = f[x, y * 8 + j]
            made[0] = taken[0] + taken[1] + taken[2]
            made[1] = taken[3] + taken[4] * taken[5]
            made[2] = taken[6] - taken[7]
            for j in T.serial(3):
                B[x, y, j] = made[j]


@pytest.mark.filterwarnings("ignore::tilec.PerformanceWarning")
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_arrays_that_each_iteration_has_for_itself(target: str) -> None:
    a = np.random.default_rng(5).standard_normal((4, 64)).astype(np.float32)
    b = np.full((4, 8, 3), np.nan, np.float32)
    if target == "cpu":
        scratch(a, b)
    else:
        assert tilec.simulate(scratch, a, b, target=target).ok
    x = np.moveaxis(a.reshape(4, 8, 8).astype("f8"), 2, 0)
    want = np.stack([x[0] + x[1] + x[2], x[3] + x[4] * x[5], x[6] - x[7]], 2)
    np.testing.assert_allclose(b, want, rtol=1e-5, atol=1e-5)
