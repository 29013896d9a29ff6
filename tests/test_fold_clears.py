"""Zeroing an accumulator by the first product's not adding to it."""

from __future__ import annotations

import numpy as np
import pytest
from programs import PROGRAMS
from test_lowering import SM80, SM90, check_matmul, matmul_text
from thread_interp import run_threads

import tilec
import tilec.language as T
from tilec.ir.core import Op, walk
from tilec.ir.ops import Fill, For, Gemm, If, Wgmma
from tilec.ir.parser import parse_func
from tilec.passes import run_plan
from tilec.passes.fold_clears import fold_clears
from tilec.tune.plans import plans

pytestmark = pytest.mark.usefixtures("unassembled")

M, N = T.dynamic("M, N")


@pytest.mark.covering(1)
@pytest.mark.parametrize("plan", [0, 2, 6])
@pytest.mark.parametrize("k", [8, 40, 136])
def test_the_first_product_overwrites(plan, k):
    text = matmul_text(64, 64, 32, 3, 128, 0, 0)
    func = check_matmul(text, SM90, plan, 72, 136, k, 0, 0, np.float16, np.float16, 0)
    products = [o for o in walk(func.body) if isinstance(o, Wgmma)]
    assert products and all(o.accumulate is not None for o in products)


@pytest.mark.parametrize("plan", [0, 2, 6])
def test_a_sum_of_nothing_is_zero(plan):
    text = matmul_text(64, 64, 32, 3, 128, 0, 0)
    func = run_plan(parse_func(text), SM90, plans(parse_func(text), SM90)[plan])
    c = np.full((72, 136), np.nan, np.float16)
    a, b = np.zeros((72, 0), np.float16), np.zeros((0, 136), np.float16)
    run_threads(func, SM90, {"A": a, "B": b, "C": c}, launched=2)
    assert (c == 0).all()


def laid(text: str, row: str):
    """The program with `row` as every product's instruction."""
    from dataclasses import replace

    func = parse_func(text)

    def choose(o):
        return replace(o, instr=row, warps=(4, 1)) if isinstance(o, Gemm) else None

    return func.rewrite(Op, choose)


def test_what_keeps_its_fill():
    """mma adds to what is there; a second use between fill and loop, or in the loop, needs it."""
    text = matmul_text(64, 64, 32, 3, 128, 0, 0)
    mma = laid(text, "mma.m16n8k16.f16")
    assert fold_clears(mma, SM80) is mma
    done = fold_clears(laid(text, "wgmma.m64n64k16.f16"), SM90)
    (loop,) = [o for o in done.body.ops if isinstance(o, For)]
    (product,) = [o for o in walk(loop.body) if isinstance(o, Gemm)]
    assert product.accumulate is not None
    (guarded,) = [o for o in done.body.ops if isinstance(o, If)]
    assert [type(o) for o in guarded.then.ops][:1] == [Fill]
    assert not any(isinstance(o, Fill) for o in done.body.ops)
    fill = "  fill %acc[%zero, %zero], (64, 64), %zf\n"
    assert fill in text
    for other in (
        text.replace(
            fill, fill + "  copy %acc[%zero, %zero], (64, 64), %C[%zero, %zero], (64, 64)\n"
        ),
        text.replace("const 0.0, f32", "const 1.0, f32"),
    ):
        same = laid(other, "wgmma.m64n64k16.f16")
        assert fold_clears(same, SM90) is same


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_that_are_not_products(name):
    func = parse_func(PROGRAMS[name][0])
    assert fold_clears(func, SM90) is func


@tilec.kernel
def masked_product(
    A: T.Tensor((M, 64), "float16"), B: T.Tensor((N, 64), "float16"), C: T.Tensor((M, N), "float32")
):
    """C = where(j <= i, A Bᵀ, -1e4 + A Bᵀ): tiles below the diagonal start from zeros."""
    with T.Kernel(T.ceildiv(M, 64), threads=128) as by:
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(A[by * 64, 0], a)
        for n in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(B[n * 64, 0], b)
            for i, j in T.Parallel(64, 64):
                c[i, j] = T.if_then_else(n * 64 + j <= by * 64 + i, 0, -1e4)
            T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 64, n * 64])


@pytest.mark.parametrize("m,n", [(1, 1), (64, 64), (200, 130), (130, 200)])
def test_a_mask_or_zeros(m, n):
    """The product overwrites where the mask is zeros throughout, and adds elsewhere."""
    rng = np.random.default_rng(m + n)
    a, b = (rng.standard_normal((x, 64)).astype(np.float16) for x in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    compiled = masked_product.compile(a, b, c, target="cuda:sm_90a")
    text = compiled.stages["fold_clears"]
    assert "accumulate=" in text and "replaced=true" in text
    report = tilec.simulate(masked_product, a, b, c, target="cuda:sm_90a")
    assert not report.findings
    want = a.astype(float) @ b.astype(float).T
    want += np.where(np.arange(n) <= np.arange(m)[:, None], 0, -1e4)
    np.testing.assert_allclose(c, want, atol=2e-3, rtol=1e-5)
