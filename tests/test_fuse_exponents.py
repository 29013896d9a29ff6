"""fuse_exponents: what becomes of the argument of an exponential, and that differences of equal
products still vanish."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from form_help import SM90, tile_func
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import Binary, Fma, Unary
from tilec.passes.fuse_exponents import fuse_exponents

pytestmark = pytest.mark.usefixtures("unassembled")

TARGETS = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu"]
N = T.dynamic("N")
UNIT = 0.18033688


def of_rows(
    A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")
):
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        a, b = T.alloc_fragment((128,), "float32"), T.alloc_fragment((128,), "float32")
        T.copy(A[bx * 128], a)
        T.copy(B[bx * 128], b)
        for i in T.Parallel(128):
            a[i] = T.exp2(a[i] * UNIT - b[i] * UNIT)
        T.copy(a, C[bx * 128])


def of_tiles(
    A: T.Tensor((N, 16), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N, 16), "float32")
):
    with T.Kernel(T.ceildiv(N, 16), threads=32) as bx:
        a, b = T.alloc_fragment((16, 16), "float32"), T.alloc_fragment((16,), "float32")
        T.copy(A[bx * 16, 0], a)
        T.copy(B[bx * 16], b)
        for i, j in T.Parallel(16, 16):
            a[i, j] = T.exp2(a[i, j] * UNIT - b[i] * UNIT)
        T.copy(a, C[bx * 16, 0])


def form(function: Any, arrays: dict[str, np.ndarray]) -> list[str]:
    """What the argument of the exponential is made of, the last step first."""
    func = fuse_exponents(tile_func(function, arrays), SM90)
    defs = func.body.defs
    (exponential,) = (o for o in walk(func.body) if isinstance(o, Unary) and o.kind == "exp2")
    made, found = defs[exponential.operand], []
    while isinstance(made, Binary | Fma):
        found.append(made.kind if isinstance(made, Binary) else "fma")
        made = defs.get(made.operands[0])
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_equal_products_of_a_row_vanish(target: str, rng: np.random.Generator) -> None:
    """-1e30 is what a maximum begins with; x * s - x * s with one rounding is 1e22 there."""
    a = np.concatenate([np.full(5, -1e30), rng.standard_normal(60)]).astype(np.float32)
    b = a.copy()
    b[40:] += 1
    c = np.full_like(a, np.nan)
    assert form(of_rows, {"A": a, "B": b, "C": c})[:2] == ["sub", "mul"]  # as it stands
    kernel = tilec.kernel(of_rows)
    run(kernel, target, a, b, c)
    want = np.exp2((a.astype(np.float64) - b) * UNIT)
    assert (c[:5] == 1).all() and np.abs(c - want).max() < 1e-6


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_takes_one_multiply_add(target: str, rng: np.random.Generator) -> None:
    a = (rng.standard_normal((20, 16)) * 20).astype(np.float32)
    a[3, 5:] = -np.inf
    b = a.max(1)
    b[4], a[4] = -1e30, -np.inf  # a row that sees nothing
    a[5], b[5] = -1e30, -1e30  # or only what is hidden by a number
    a[6, 3:], a[6, :3], b[6] = 3e9, 3e9 - 4096, 3e9
    c = np.full_like(a, np.nan)
    assert form(of_tiles, {"A": a, "B": b, "C": c}) == ["fma"]
    kernel = tilec.kernel(of_tiles)
    run(kernel, target, a, b, c)
    want = np.exp2((a.astype(np.float64) - b[:, None]) * UNIT)
    assert not c[4].any() and np.abs(c - want).max() < 1e-5
    assert (c[5] == 1).all() and (c[6, 3:] == 1).all() and not c[6, :3].any()
