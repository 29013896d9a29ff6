"""Where a tile lies in a grid of three dimensions: found by reciprocals that are computed once."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import Value, walk
from tilec.ir.errors import InternalError
from tilec.ir.ops import Binary, For, constants
from tilec.ir.parser import parse_func
from tilec.ir.schedule import Plan
from tilec.ir.types import INT32, UINT32, ScalarType

M, N, K, P = T.dynamic("M, N, K, P")


@tilec.kernel
def batched(
    A: T.Tensor((P, M, K), "float16"),
    B: T.Tensor((P, N, K), "float16"),
    C: T.Tensor((P, M, N), "float16"),
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), P, threads=128) as (bx, by, p):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[p, by * 64, k * 64], a)
            T.copy(B[p, bx * 64, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[p, by * 64, bx * 64])


@tilec.kernel
def doubled(X: T.Tensor((P, M, N), "float32"), Y: T.Tensor((P, M, N), "float32")):
    """No product: tiles that come through shared memory in steps."""
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), P, threads=128) as (bx, by, p):
        T.annotate_schedule(persistent=True)
        x = T.alloc_shared((8, 32), "float32")
        for k in T.Pipelined(4, num_stages=2):
            T.copy(X[p, by * 32 + k * 8, bx * 32], x)
            for i, j in T.Parallel(8, 32):
                Y[p, by * 32 + k * 8 + i, bx * 32 + j] = 2 * x[i, j]


PLAN = Plan("walking", specialise=True, persistent=True, staged_store=True, raster_group=8)


def test_no_division_for_a_tile():
    """In the loop over tiles all divisors have reciprocals, or are numbers; and it is known that no
    place is in front of the tensor: results leave by TMA."""
    specs = [tilec.spec(s, "float16") for s in ((5, 192, 128), (5, 320, 128), (5, 192, 320))]
    compiled = batched.compile_with_plan(PLAN, *specs, target="cuda:sm_90a")
    func = parse_func(compiled.stages["block_order"])
    (tiles,) = [o for o in walk(func.body) if isinstance(o, For) and o.kind == "persistent"]
    numbers = constants(func.body)
    divided = [o for o in walk(tiles.body) if isinstance(o, Binary) and o.nonzero]
    assert [o.reciprocal is not None for o in divided if o.rhs not in numbers] == [True] * 6
    assert "tensor.3d.global.shared" in compiled.asm


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 70, 650), (5, 650, 40), (2, 64, 64)])
def test_every_tile_is_found(target, shape):
    rng = np.random.default_rng(sum(shape))
    x = rng.standard_normal(shape).astype(np.float32)
    y = np.full(shape, np.nan, np.float32)
    assert not tilec.simulate(doubled, x, y, target=target).findings
    np.testing.assert_array_equal(y, 2 * x)


@pytest.mark.parametrize("kind,dtype", [("add", INT32), ("floordiv", UINT32)])
def test_what_has_no_reciprocal(kind, dtype):
    x, r = Value(ScalarType(dtype), "x"), Value(ScalarType(UINT32), "r")
    with pytest.raises(InternalError, match="has no reciprocal"):
        Binary(kind, x, x, reciprocal=r).verify()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape", [(1, 1, 8, 8), (7, 200, 328, 72), (3, 1000, 72, 136), (64, 64, 64, 64)]
)
def test_products_on_a_gpu(shape):
    torch = pytest.importorskip("torch")
    p, m, n, k = shape
    a, b = (torch.randn((p, x, k), device="cuda").half() for x in (m, n))
    c = torch.full((p, m, n), float("nan"), device="cuda", dtype=torch.half)
    batched(a, b, c)
    want = a.double() @ b.double().transpose(1, 2)
    assert float((c.double() - want).norm() / want.norm()) < 1e-3
