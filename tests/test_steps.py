"""Slices with steps as tiles: `A[1:49:3, 0:n:2]`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import AtomicTile, Copy, Parallel
from tilec.jit.build import trace_variant

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
N = T.dynamic("N")


@tilec.kernel
def kernel(
    A: T.Tensor((64, N), "float32"), B: T.Tensor((64, N), "float32"), C: T.Tensor((32,), "float32")
):
    with T.Kernel(T.ceildiv(N, 32), threads=64) as b:
        s = T.alloc_shared((16, 16), "float32")
        T.copy(A[1:49:3, b * 32 : b * 32 + 32 : 2], s)
        for i, j in T.Parallel(16, 16):
            s[i, j] += 1
        T.copy(s, B[0:64:4, b * 32 + 1 : b * 32 + 33 : 2])
        T.fill(B[1:64:4, b * 32 : b * 32 + 32 : 31], 7)
        T.atomic_add(C[0:32:8], s[3, 0:16:5])


def expected(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = A.shape[1]
    B, C = np.zeros((64, n)), np.zeros(32)
    for t in range(0, n, 32):
        x, part = np.zeros((16, 16)), A[1:49:3, t : t + 32 : 2]
        x[:, : part.shape[1]] = part
        there = B[0:64:4, t + 1 : t + 33 : 2]
        there[:] = x[:, : there.shape[1]] + 1
        B[1:64:4, t : t + 32 : 31] = 7
        C[0:32:8] += x[3, 0:16:5] + 1
    return B, C


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [32, 50, 1])
def test_numbers(target: str, n: int, rng: np.random.Generator) -> None:
    A = rng.integers(-9, 9, (64, n)).astype(np.float32)
    B, C = np.zeros((64, n), np.float32), np.zeros(32, np.float32)
    if target == "cpu":
        kernel(A, B, C)
    else:
        assert not tilec.simulate(kernel, A, B, C, target=target).findings
    first, second = expected(A)
    np.testing.assert_array_equal(B, first)
    np.testing.assert_array_equal(C, second)


def test_they_are_loops_over_elements() -> None:
    specs = [tilec.spec((64, 64), "float32"), tilec.spec((64, 64), "float32")]
    specs.append(tilec.spec((32,), "float32"))
    func = trace_variant(kernel.signature, kernel.key_of(specs, "cuda:sm_90a", {}))
    found = [type(o) for o in walk(func.body)]
    assert found.count(Parallel) == 5 and Copy not in found and AtomicTile not in found


def test_vectors() -> None:
    @tilec.kernel
    def even(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=1):
            v = T.alloc_var(T.float32x4)
            v = A[T.Ramp(0, 2, 4)]
            B[1:8:2] = v + v

    A, B = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    even(A, B)
    np.testing.assert_array_equal(B, [0, 0, 0, 4, 0, 8, 0, 12])


def test_the_last_element_counts() -> None:
    """Of 0:9:4 that is 8, which is out of bounds; of 0:8:4 it is 4."""

    def of(stop: int) -> Any:
        @tilec.kernel
        def copies(B: T.Tensor((3,), "float32")):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((8,), "float32")
                T.clear(s)
                T.copy(s[0:stop:4], B[0 : (stop + 3) // 4])

        return copies

    of(8)(np.zeros(3, np.float32))
    with pytest.raises(tilec.CompileError, match="reads index 8 in dimension 0 of s"):
        of(9)(np.zeros(3, np.float32))


def test_a_step_and_an_open_end() -> None:
    @tilec.kernel
    def copies(A: T.Tensor((N,), "float32"), n: T.int32):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8,), "float32")
            T.copy(A[0:n:2], s)

    with pytest.raises(tilec.CompileError, match="only known at run time, and it has a step"):
        copies(np.zeros(8, np.float32), 4)


@pytest.mark.gpu
def test_on_the_gpu(rng: np.random.Generator, torch: Any) -> None:
    A = rng.integers(-9, 9, (64, 100)).astype(np.float32)
    B, C = (torch.zeros(x, device="cuda") for x in ((64, 100), (32,)))
    kernel(torch.from_numpy(A).cuda(), B, C)
    first, second = expected(A)
    np.testing.assert_array_equal(B.cpu().numpy(), first)
    np.testing.assert_array_equal(C.cpu().numpy(), second)
