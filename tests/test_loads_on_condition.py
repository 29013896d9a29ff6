"""Loads under a bound whose iteration computes with what they give: one instruction each, no branch
(`ir.instr.memory.load_if`)."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T
from tests.simulated import run_compiled

pytestmark = pytest.mark.turns

M, N = T.dynamic("M, N")
GPUS = ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"]
DTYPES = ["uint8", "int8", "float16", "bfloat16", "int16", "float32", "int32", "float64", "int64"]


def kernel(dtype: str, result: str):
    @tilec.kernel
    def doubled(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), result), BN: T.constexpr = 512):
        with T.Kernel(T.ceildiv(M, 2), threads=64) as b:
            f = T.alloc_fragment((2, BN), result)
            T.copy(A[b * 2, 0], f)
            for i, j in T.Parallel(2, BN):
                f[i, j] = f[i, j] * 2 + 1
            T.copy(f, B[b * 2, 0])

    return doubled


def operands(dtype: str, m: int, n: int):
    values = np.random.default_rng(n).integers(0, 99, (m, n))
    result = "float64" if dtype == "float64" else "int64" if dtype == "int64" else "float32"
    return values, result


@pytest.mark.parametrize("m, n", [(1, 1), (3, 31), (2, 512), (3, 301), (4, 304)])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bfloat16"])
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
@pytest.mark.covering(1)
def test_numbers(target: str, dtype: str, m: int, n: int) -> None:
    """Elements, and, where rows allow it (304), vectors of them."""
    values, result = operands(dtype, m, n)
    b = np.full((m, n), 7, result)
    run_compiled(kernel(dtype, result), target, values.astype(dtype), b)
    np.testing.assert_array_equal(b, values * 2 + 1)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("float32", "float64", "int64")])
def test_no_branch_between_loads(dtype: str) -> None:
    """Those of a ragged tile follow each other: none waits for the one before it."""
    _, result = operands(dtype, 1, 1)
    specs = tilec.spec((3, 301), dtype), tilec.spec((3, 301), result)
    made = kernel(dtype, result).compile(*specs, target="cuda:sm_90a")
    word = "b8" if dtype.endswith("int8") else "b16" if "16" in dtype else "b32"
    assert made.asm.count(f"@p ld.global.nc.{word} ") == 16
    first, last = made.asm.index("@p ld.global"), made.asm.rindex("@p ld.global")
    assert "bra" not in made.asm[first:last]
    assert not made.resources.spilled_bytes


@tilec.kernel
def counted(A: T.Tensor((N,), "float16"), B: T.Tensor((N,), "float32"), steps: T.int32):
    with T.Kernel(1, threads=32) as _:
        t = T.get_thread_binding()
        total = 0.0
        for j in T.serial(steps):
            total += T.cast(A[j * 32 + t], "float32")
        B[t] = total


@pytest.mark.parametrize("target", [*GPUS, "cpu"])
@pytest.mark.parametrize("m, n", [(1, 5), (9, 270), (16, 500), (5, 160)])
def test_iterations_that_stand_behind_each_other(target: str, m: int, n: int) -> None:
    """Where `unroll_loads` writes them out, a block has several of them."""
    a = np.arange(n).astype("float16")
    b = np.full(n, 7, "float32")
    run_compiled(counted, target, a, b, m)
    wanted = np.pad(a.astype("float32"), (0, max(0, 32 * m - n)))[: 32 * m].reshape(m, 32).sum(0)
    np.testing.assert_array_equal(b[: min(n, 32)], wanted[: min(n, 32)])


@tilec.kernel
def in_place(A: T.Tensor((N,), "float32"), BN: T.constexpr = 512):
    with T.Kernel(T.ceildiv(N, BN), threads=64) as b:
        for i in T.Parallel(BN):
            A[b * BN + i] = A[b * BN + i] * 2.0


@pytest.mark.parametrize("target", GPUS)
def test_what_the_kernel_writes_keeps_its_order(target: str) -> None:
    """Only tensors that nothing changes are loaded so."""
    a = np.arange(1001, dtype="float32")
    made = in_place.compile(a, target=target)
    assert "@p ld.global" not in made.asm
    run_compiled(in_place, target, a)
    np.testing.assert_array_equal(a, np.arange(1001) * 2)


@tilec.kernel
def shifted(A: T.Tensor((N,), "float16"), B: T.Tensor((N,), "float32"), by: T.int32):
    with T.Kernel(1, threads=64) as _:
        for i in T.Parallel(256):
            if i + by < N:
                B[i] = T.cast(A[i + by], "float32") * 2.0


def test_those_whose_condition_does_not_hold_touch_nothing() -> None:
    a, b = np.ones(100, "float16"), np.zeros(100, "float32")
    assert not tilec.simulate(shifted, a, b, 3, target="cuda:sm_90a").findings
    assert b[:97].tolist() == [2.0] * 97 and not b[97:].any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_the_gpu(dtype: str) -> None:
    import torch

    for m, n in ((1, 1), (3, 31), (301, 511), (77, 301), (78, 304)):
        values, result = operands(dtype, m, n)
        wanted = torch.from_numpy(values * 2 + 1).to(getattr(torch, result))
        a = torch.from_numpy(values).to(getattr(torch, dtype)).cuda()
        k = kernel(dtype, result)
        for _ in range(20):
            b = torch.full((m, n), 7, dtype=wanted.dtype, device="cuda")
            k(a, b)
            assert torch.equal(b.cpu(), wanted)
