"""early_loads: which elements are loaded in front of a loop of products, and that numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import Func, walk
from tilec.ir.ops import For, Load
from tilec.ir.parser import parse_func

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, K, H = T.dynamic("M, K, H")


def scaled(how: str = ""):
    """A product whose rows are scaled by the factor of the block's head, read twice."""

    @tilec.kernel
    def product(
        A: T.Tensor((H, M, K), "float16"),
        B: T.Tensor((H, K, 64), "float16"),
        Factor: T.Tensor((H,), "float32"),
        C: T.Tensor((H, M, 64), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 64), H, threads=128) as (bx, h):
            a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(A[h, bx * 64, k * 32], a)
                T.copy(B[h, k * 32, 0], b)
                T.gemm(a, b, c)
            for i, j in T.Parallel(64, 64):
                if how == "by row":
                    c[i, j] *= Factor[(h + i) % H]
                else:
                    c[i, j] = c[i, j] * Factor[h] + Factor[h]
            T.copy(c, C[h, bx * 64, 0])
            if how == "written" and bx == 0:
                Factor[h] = 0

    return product


def compiled(how: str, target: str) -> Func:
    h, m, k = 3, 100, 70
    specs = [tilec.spec(s, "float16") for s in ((h, m, k), (h, k, 64))]
    rest = [tilec.spec((h,), "float32"), tilec.spec((h, m, 64), "float32")]
    return parse_func(scaled(how).compile(*specs, *rest, target=target).stages["early_loads"])


def factors(ops: tuple[object, ...]) -> list[Load]:
    return [o for o in ops if isinstance(o, Load) and o.source.name == "Factor"]


def places(func: Func) -> tuple[list[Load], bool]:
    """The loads of factors that stand in the block of the loop of products, in front of it; whether
    there are others."""
    blocks = [func.body, *(r for o in walk(func.body) for r in o.regions)]
    for block in blocks:
        for n, o in enumerate(block.ops):
            if isinstance(o, For) and o.kind == "pipelined":
                early = factors(block.ops[:n])
                return early, len(early) < len(factors(tuple(walk(func.body))))
    raise AssertionError("no loop of products")


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_one_load_in_front_of_the_loop(target: str) -> None:
    early, others = places(compiled("", target))
    assert len(early) == 1 and not others


@pytest.mark.parametrize("how", ["by row", "written"])
def test_what_stays_behind_it(how: str) -> None:
    early, others = places(compiled(how, "cuda:sm_90a"))
    assert not early and others


@pytest.mark.parametrize("how", ["", "by row"])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_numbers(how: str, target: str) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((3, 100, 70), (3, 70, 64)))
    factor, c = rng.standard_normal(3).astype(np.float32), np.full((3, 100, 64), np.nan, np.float32)
    kernel = scaled(how)
    if target == "cpu":
        kernel(a, b, factor, c)
    else:
        assert not tilec.simulate(kernel, a, b, factor, c, target=target).findings
    want = a.astype(np.float64) @ b
    rows = np.arange(100) % 64
    by = factor[(np.arange(3)[:, None] + rows) % 3] if how else factor[:, None]
    want = want * by[..., None] + (0 if how else factor[:, None, None])
    np.testing.assert_allclose(c, want, rtol=2e-3, atol=2e-3)
