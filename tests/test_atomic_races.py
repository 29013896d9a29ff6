"""Atomics beside plain accesses: a race where nothing orders the two, none where something does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
Arrays = tuple[np.ndarray, ...]


@tilec.kernel
def in_shared(A: T.Tensor((4, 64), "int32")):
    """A counter of the block: set to 0, counted up by all threads, read by all."""
    with T.Kernel(4, threads=64) as b:
        tx = T.get_thread_binding()
        s = T.alloc_shared((1,), "int32")
        if tx == 0:
            s[0] = 0
        T.sync_threads()
        T.atomic_add(s[0], 1)
        T.sync_threads()
        A[b, tx] = s[0]


def found_in(kernel: Any, target: str, *arrays: Any, **given: Any) -> list[str]:
    report = tilec.simulate(kernel, *arrays, target=target, **given)
    return [f"{f.kind}: {f.message}" for f in report.findings]


@pytest.mark.parametrize("target", TARGETS)
def test_in_shared_memory(target: str) -> None:
    A = np.zeros((4, 64), np.int32)
    assert not found_in(in_shared, target, A)
    assert (A == 64).all()


@tilec.kernel
def counted(A: T.Tensor((8,), "int32"), B: T.Tensor((64,), "int32"), READ: T.constexpr):
    """Of a tensor's element: all blocks count, one reads."""
    with T.Kernel(8, threads=32) as b:
        tx = T.get_thread_binding()
        if tx == 0:
            T.atomic_add(A[0], 1)
        if READ:
            if (tx == 1) & (b == 3):
                B[0] = A[0]


@pytest.mark.turns("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("read", [False, True])
def test_a_plain_read_beside_atomics(target: str, read: bool) -> None:
    A, B = np.zeros(8, np.int32), np.zeros(64, np.int32)
    found = found_in(counted, target, A, B, READ=read)
    assert A[0] == 8
    assert bool(found) == read
    assert all(f.startswith("data race: A[0] is") for f in found), found


@tilec.kernel
def reset(A: T.Tensor((8,), "int32"), WHO: T.constexpr):
    """Somebody writes what others change."""
    with T.Kernel(4, threads=32) as b:
        tx = T.get_thread_binding()
        if b == WHO and tx == 0:
            A[0] = 0
        if tx == 5:
            T.atomic_max(A[0], b)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("who", "races"), [(2, True), (9, False)])
def test_a_plain_write_beside_atomics(target: str, who: int, races: bool) -> None:
    found = found_in(reset, target, np.zeros(8, np.int32), WHO=who)
    assert bool(found) == races, found
    assert all("A[0] is written" in f and "nothing orders the two" in f for f in found), found


@tilec.kernel
def handed_on(
    A: T.Tensor((4, 32), "float32"),
    flags: T.Tensor((4,), "int32"),
    B: T.Tensor((4, 32), "float32"),
    ORDER: T.constexpr,
):
    """Each block waits for the one before it, adds to what that one left, and passes on."""
    with T.Kernel(4, threads=32) as b:
        tx = T.get_thread_binding()
        if b > 0:
            if tx == 0:
                while T.atomic_load(flags[b - 1], memory_order=ORDER[0]) == 0:
                    pass
            T.sync_threads()
            A[b, tx] = A[b, tx] + A[b - 1, tx]
        B[b, tx] = A[b, tx]
        T.sync_threads()
        if tx == 0:
            T.atomic_store(flags[b], 1, memory_order=ORDER[1])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("order", "races"), [(("acquire", "release"), False), (("relaxed", "relaxed"), True)]
)
def test_order_by_atomics(target: str, order: tuple[str, str], races: bool) -> None:
    A, B = np.ones((4, 32), np.float32), np.zeros((4, 32), np.float32)
    found = found_in(handed_on, target, A, np.zeros(4, np.int32), B, ORDER=order)
    assert bool(found) == races, found
    np.testing.assert_array_equal(B[:, 0], [1, 2, 3, 4])


@tilec.kernel
def own(A: T.Tensor((256,), "int32"), B: T.Tensor((256,), "int32")):
    with T.Kernel(4, threads=64) as b:
        at = b * 64 + T.get_thread_binding()
        T.atomic_add(A[at], 2)
        B[at] = A[at]
        A[at] = 1
        T.atomic_or(A[at], 4)


@pytest.mark.parametrize("target", TARGETS)
def test_a_thread_is_ordered_behind_itself(target: str) -> None:
    A, B = np.zeros(256, np.int32), np.zeros(256, np.int32)
    assert not found_in(own, target, A, B)
    assert (A == 5).all() and (B == 2).all()


@tilec.kernel
def tiles(
    A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")
):
    """Tile words get their barriers from the compiler."""
    with T.Kernel(1, threads=64):
        x = T.alloc_shared((64,), "float32")
        f = T.alloc_fragment((64,), "float32")
        T.clear(x)
        for i in T.Parallel(64):
            T.atomic_add(x[i // 8], A[i])
        T.copy(x, f)
        T.copy(f, B)
        T.atomic_add(C, f)


@pytest.mark.parametrize("target", TARGETS)
def test_tiles(target: str, rng: np.random.Generator) -> None:
    A = rng.integers(-9, 9, 64).astype(np.float32)
    B, C = np.zeros(64, np.float32), np.ones(64, np.float32)
    assert not found_in(tiles, target, A, B, C)
    np.testing.assert_array_equal(B[:8], A.reshape(8, 8).sum(1))
    np.testing.assert_array_equal(C, B + 1)


def outputs(exchange: Callable[..., Any]) -> Any:
    @tilec.kernel
    def kernel(n: T.int32):
        A = T.empty((32,), "int32")
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            exchange(A[tx], n)
            T.sync_threads()
            A[tx] = A[tx] + 1
        return A

    return kernel


@pytest.mark.parametrize("target", TARGETS)
def test_what_atomics_have_written_is_initialised(target: str) -> None:
    assert not found_in(outputs(T.atomic_store), target, 3)
