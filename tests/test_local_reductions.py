"""Reductions of elements that each thread has for itself; smallest and largest of float8."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import Reduce
from tilec.ir.ops.tile import REDUCTIONS
from tilec.jit.build import trace_variant

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
NUMPY: dict[str, Any] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "bitand": np.bitwise_and.reduce,
    "bitor": np.bitwise_or.reduce, "bitxor": np.bitwise_xor.reduce,
    "abssum": lambda x, axis: np.abs(x).sum(axis), "absmax": lambda x, axis: np.abs(x).max(axis),
}  # fmt: skip


def rows(kind: str, dtype: str, m: int, n: int) -> Any:
    """Along both dimensions, by every thread of a block for a row of its own."""

    @tilec.kernel
    def kernel(
        A: T.Tensor((32, m, n), dtype), B: T.Tensor((32, n), dtype), C: T.Tensor((32,), dtype)
    ):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            x = T.alloc_local((m, n), dtype)
            y = T.alloc_local((1, n), dtype)
            z = T.alloc_var(dtype, 1)
            for i in T.serial(m):
                for j in T.serial(n):
                    x[i, j] = A[tx, i, j]
            T.reduce(x, y, kind, dim=0)
            T.reduce(y[0, :], z, kind, dim=-1, clear=False)
            for j in T.serial(n):
                B[tx, j] = y[0, j]
            C[tx] = z

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("shape", [(3, 5), (1, 1)])
def test_numbers(target: str, kind: str, shape: tuple[int, int], rng: np.random.Generator) -> None:
    dtype = "int32" if kind.startswith("bit") else "float32"
    A = rng.integers(-9, 10, (32, *shape)).astype(dtype)
    B, C = np.zeros((32, shape[1]), dtype), np.zeros(32, dtype)
    run(rows(kind, dtype, *shape), target, A, B, C)
    first = NUMPY[kind](A, axis=1)
    np.testing.assert_array_equal(B, first)
    ones = np.ones((32, 1), A.dtype)
    np.testing.assert_array_equal(C, NUMPY[kind](np.concatenate([first, ones], 1), axis=1))


def test_sums_of_halves_are_rounded_once(rng: np.random.Generator) -> None:
    A = rng.standard_normal((32, 64, 2)).astype(np.float16)
    B, C = np.zeros((32, 2), np.float16), np.zeros(32, np.float16)
    kernel = rows("sum", "float16", 64, 2)
    kernel(A, B, C)
    exact = A.astype(np.float64).sum(1)
    assert (np.abs(B - exact) <= np.spacing(np.abs(exact).astype(np.float16)) * 0.51 + 1e-5).all()
    specs = [tilec.spec(x.shape, "float16") for x in (A, B, C)]
    func = trace_variant(kernel.signature, kernel.key_of(specs, "cpu", {}))
    assert not [o for o in walk(func.body) if isinstance(o, Reduce)]


@tilec.kernel
def with_nan(A: T.Tensor((4,), "float32"), B: T.Tensor((2,), "float32")):
    with T.Kernel(1, threads=1):
        x = T.alloc_local((4,), "float32")
        y = T.alloc_local((1,), "float32")
        for i in T.serial(4):
            x[i] = A[i]
        T.reduce_max(x, y)
        B[0] = y[0]
        T.reduce_max(x, y, nan_propagate=True)
        B[1] = y[0]


def test_nan() -> None:
    B = np.zeros(2, np.float32)
    with_nan(np.array([1, np.nan, 3, 2], np.float32), B)
    assert B[0] == 3 and np.isnan(B[1])


def test_too_many() -> None:
    @tilec.kernel
    def kernel(B: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=1):
            x = T.alloc_local((2048,), "float32")
            y = T.alloc_local((1,), "float32")
            T.reduce_sum(x, y)
            B[0] = y[0]

    with pytest.raises(tilec.CompileError) as e:
        kernel.compile(tilec.spec((1,), "float32"), target="cpu")
    assert re.search("2048 elements, too many for one thread", str(e.value))
    assert "T.alloc_fragment" in str(e.value)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2"])
def test_float8(target: str, dtype: str, rng: np.random.Generator) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64,), dtype), B: T.Tensor((64,), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = T.max(-T.clamp(A[i], -1.0, 1.0), T.abs(A[63 - i]))

    known = {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype)
    name = f"{dtype}fnuz" if target == "hip:gfx942" else known
    A = rng.standard_normal(64).astype(getattr(ml_dtypes, name))
    B = np.zeros(64, A.dtype)
    run(kernel, target, A, B)
    x = A.astype(np.float32)
    np.testing.assert_array_equal(B.astype(np.float32), np.maximum(-x.clip(-1, 1), abs(x[::-1])))


@pytest.mark.parametrize("target", TARGETS)
def test_atomics_of_a_tile_by_a_number(target: str) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((8, 40), "float32"), n: T.int32):
        with T.Kernel(2, threads=64):
            T.atomic_add(A[0:4, 0:32], n + 1)
            T.atomic_max(A[4:8, :], 0.5)

    A = np.zeros((8, 40), np.float32)
    if target == "cpu":
        kernel(A, 2)
    else:
        assert not tilec.simulate(kernel, A, 2, target=target).findings
    wanted = np.zeros((8, 40), np.float32)
    wanted[:4, :32], wanted[4:] = 6, 0.5
    np.testing.assert_array_equal(A, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_on_the_gpu(kind: str, rng: np.random.Generator, torch: Any) -> None:
    dtype = "int32" if kind.startswith("bit") else "float32"
    A = rng.integers(-9, 10, (32, 7, 5)).astype(dtype)
    B = torch.full((32, 5), 77, dtype=getattr(torch, dtype), device="cuda")
    C = torch.full((32,), 77, dtype=getattr(torch, dtype), device="cuda")
    rows(kind, dtype, 7, 5)(torch.from_numpy(A).cuda(), B, C)
    np.testing.assert_array_equal(B.cpu().numpy(), NUMPY[kind](A, axis=1))
