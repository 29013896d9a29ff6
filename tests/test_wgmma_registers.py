"""Operands of wgmma in registers whose values are known: they lie in registers of their own.

LLVM put an operand that is 0 into the register of an accumulator that begins with 0, which the
first of several instructions changes. Neither simulator nor sanitizers have registers; a GPU was
wrong in every run."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.errors import InternalError
from tilec.ir.instr.instruction import Operands


def product(rows: int, dtype: str, m: int = 64, k: int = 64) -> Any:
    """Of the sum's terms, `rows` are in bounds; the others are 0, and known to be."""

    @tilec.kernel
    def kernel(A: T.Tensor((rows, 67), dtype), C: T.Tensor((m, 64), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((m, k), dtype)
            f = T.alloc_fragment((k, 64), dtype)
            c = T.alloc_fragment((m, 64), "float32")
            for i, j in T.Parallel(m, k):
                s[i, j] = T.cast((i * 4 + j) % 5 - 1, dtype)
            T.copy(A[0, 2], f)
            T.clear(c)
            T.gemm(s, f, c)
            T.copy(c, C)

    return kernel


def arguments(
    rows: int, dtype: str, m: int, k: int, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    A = rng.integers(-4, 5, (rows, 67)).astype(dtype)
    i, j = np.ogrid[:m, :k]
    whole = np.zeros((k, 64))
    whole[:rows] = A[:k, 2:66]
    return A, ((i * 4 + j) % 5 - 1) @ whole


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "m", "k"), [(7, 32, 32), (7, 64, 64), (1, 16, 48), (33, 64, 64)])
def test_registers(rows: int, m: int, k: int, dtype: str) -> None:
    specs = [tilec.spec((rows, 67), dtype), tilec.spec((m, 64), "float32")]
    found = product(rows, dtype, m, k).compile(*specs, target="cuda:sm_90a")
    products = re.findall(r"wgmma\.mma_async\S* \{([^}]*)\}, \{([^}]*)\}", found.asm)
    assert products, "the operand is in registers"
    for accumulators, operand in products:
        assert not {*accumulators.split(", ")} & {*operand.split(", ")}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "m", "k"), [(7, 32, 32), (7, 64, 64), (1, 16, 48), (33, 64, 64)])
def test_numbers(rows: int, m: int, k: int, dtype: str, rng: np.random.Generator) -> None:
    A, wanted = arguments(rows, "float32", m, k, rng)
    A = A.astype(getattr(ml_dtypes, dtype, dtype))
    C = np.full((m, 64), 9, np.float32)
    report = tilec.simulate(product(rows, dtype, m, k), A, C, target="cuda:sm_90a")
    assert not report.findings
    np.testing.assert_array_equal(C, wanted)


def test_assembly_that_reads_behind_what_it_writes() -> None:
    def made(early: bool) -> Any:
        x = Operands()
        (c,) = x.outputs("r", 1, early=early)
        a = x.input("r")
        return x.asm(f"mov.b32 {c}, 1; add.u32 {c}, {c}, {a};", lambda m, *words: words[0])

    assert made(early=True).constraints.startswith("=&r")
    with pytest.raises(InternalError, match="reads behind what it has written"):
        made(early=False)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "m", "k"), [(7, 32, 32), (7, 64, 64), (1, 16, 48), (33, 64, 64)])
def test_on_the_gpu(
    rows: int, m: int, k: int, dtype: str, rng: np.random.Generator, torch: Any
) -> None:
    A, wanted = arguments(rows, "float32", m, k, rng)
    a = torch.from_numpy(A).cuda().to(getattr(torch, dtype))
    for _ in range(20):
        C = torch.full((m, 64), 9.0, device="cuda")
        product(rows, dtype, m, k)(a, C)
        np.testing.assert_array_equal(C.cpu().numpy(), wanted)
