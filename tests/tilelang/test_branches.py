"""Branches that some threads take, and in which they exchange data through shared memory: in
TileLang's spelling they are in order, without a word of their author's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.tilelang as tilelang
import tilec.tilelang.language as T

pytestmark = pytest.mark.turns

# mypy: ignore-errors


def largest(threads: int) -> Any:
    @T.prim_func
    def main(A: T.Tensor((8, 256), "float32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((8, 256), "float32")
            tid = T.get_thread_binding()
            best = T.alloc_var("float32")
            best = 0
            column = tid % 32 * 8 + tid // 32
            for i in T.unroll(8):
                s[i, tid] = A[i, tid]
            if tid < threads:
                for i in T.serial(column // 8, 256, 32):
                    best = T.max(best, s[column % 8, i])
                s[0, tid] = best
                best = best + s[0, (tid + 37) % threads]
            B[tid] = best + s[0, tid * 7 % 256]

    return main


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("threads", [128, 200, 256])
def test_threads_of_a_branch_are_in_order(target: str, threads: int) -> None:
    a = np.random.default_rng(2).random((8, 256), np.float32)
    b = np.zeros(256, np.float32)
    kernel = tilelang.compile(largest(threads))
    if target == "cpu":
        kernel(a, b)
    else:
        report = tilec.simulate(kernel.kernel, a, b, target=target)
        assert report.ok, report
    tid = np.arange(256)
    column = tid % 32 * 8 + tid // 32
    best = np.array([a[c % 8, c // 8 :: 32].max() for c in column])
    row = np.where(tid < threads, best, a[0])
    own = np.where(tid < threads, best + row[(tid + 37) % threads], 0)
    np.testing.assert_allclose(b, own + row[tid * 7 % 256], rtol=1e-6)


def test_one_thread_and_own_elements_need_no_order() -> None:
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((64,), "float32")
            own = T.alloc_shared((64,), "float32")
            tid = T.get_thread_binding()
            if tid == 0:
                s[0] = A[0]
                s[1] = s[0] + A[1]
                s[2] = s[1] + s[0]
            if tid < 48:
                own[tid] = A[tid]
                own[tid] = own[tid] + 1
            B[tid] = T.if_then_else(tid < 48, own[(tid + 1) % 48], s[tid % 3])

    a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    kernel = tilelang.compile(main).kernel
    assert tilec.simulate(kernel, a, b, target="cuda:sm_90a").ok
    text = kernel.compile(a, b, target="cuda:sm_90a").stages["insert_sync"]
    assert text.count("barrier") == 1
    want = np.where(a < 48, (a + 1) % 48 + 1, np.array([0, 1, 1])[np.arange(64) % 3])
    np.testing.assert_array_equal(b, want)


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
def test_two_branches_on_one_condition_meet_between(target: str) -> None:
    """In tilec's own spelling, too: what stands in two statements is not joined to one."""

    @tilec.kernel
    def shifted(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((64,), "float32")
            tid = T.get_thread_binding()
            if tid < 48:
                s[tid] = A[tid]
            if tid < 48:
                B[tid] = s[(tid + 33) % 48]

    a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    if target == "cpu":
        shifted(a, b)
    else:
        report = tilec.simulate(shifted, a, b, target=target)
        assert report.ok, report
    np.testing.assert_array_equal(b, np.where(a < 48, (a + 33) % 48, 0))


@pytest.mark.turns("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80"])
def test_what_one_group_leaves_for_another(target: str) -> None:
    """All meet between two branches, in front of both sides of the second."""

    @tilec.kernel
    def twice(
        A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")
    ):
        with T.Kernel(1, threads=96):
            s = T.alloc_shared((64,), "float32")
            f = T.alloc_fragment((64,), "float32")
            if T.get_thread_binding() < 32:
                T.copy(A, f)
                for i in T.Parallel(64):
                    f[i] *= 2
                T.copy(f, s)
            if T.get_thread_binding() < 32:
                for i in T.Parallel(64):
                    B[i] = s[63 - i]
            else:
                for i in T.Parallel(64):
                    C[i] = s[63 - i]

    a = np.arange(64, dtype=np.float32)
    b, c = np.zeros(64, np.float32), np.zeros(64, np.float32)
    report = tilec.simulate(twice, a, b, c, target=target)
    assert report.ok, report
    np.testing.assert_array_equal(b, 2 * a[::-1])
    np.testing.assert_array_equal(c, 2 * a[::-1])
    text = twice.compile(a, b, c, target=target).stages["insert_sync"]
    kinds = [x.split()[0] for x in text.splitlines() if x.strip().startswith(("scope", "barrier"))]
    assert kinds == ["scope", "barrier", "scope", "scope"]


def test_in_tilecs_own_spelling_it_is_the_authors() -> None:
    kernel = tilec.kernel(largest(128).function)
    a, b = np.zeros((8, 256), np.float32), np.zeros(256, np.float32)
    report = tilec.simulate(kernel, a, b, target="cuda:sm_90a")
    assert {f.kind for f in report.findings} & {"data race", "overwritten before read"}
