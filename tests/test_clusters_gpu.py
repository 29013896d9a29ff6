"""Clusters and shared sums on an NVIDIA GPU of the Hopper generation: against float64, outputs
poisoned, runs repeated bit for bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from test_clusters import scaled_rows  # noqa: E402
from test_gpu import build_matmul, operands  # noqa: E402

import tilec  # noqa: E402
import tilec.language as T  # noqa: E402
from tilec.ir.errors import LaunchError  # noqa: E402
from tilec.ir.schedule import Plan  # noqa: E402

pytestmark = pytest.mark.gpu

M, N, K = T.dynamic("M, N, K")
SHAPES = [(1024, 1024, 512), (1000, 776, 520), (8, 2048, 4096), (136, 72, 8), (4096, 4096, 256)]


def plan(cluster=(1, 1, 1), split=1, consumer_groups=1, **others):
    given = {"specialise": True, "persistent": split == 1, "staged_store": True, **others}
    return Plan("test", cluster=cluster, split=split, consumer_groups=consumer_groups, **given)


def check(kernel, chosen, m, n, k, trans_b, dtype=torch.half):
    a, b = operands(m, n, k, False, trans_b, dtype)
    want = a.double() @ (b.t() if trans_b else b).double()
    c = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
    made = kernel.compile_with_plan(chosen, a, b, c)
    made(a, b, c)
    first = c.clone()
    assert torch.isfinite(c).all(), "an output was not written"
    error = float((c.double() - want).norm() / want.norm().clamp_min(1e-30))
    assert error < (4e-4 if dtype is torch.half else 3.2e-3), f"relative error {error:.2e}"
    for _ in range(5):
        c.fill_(float("nan"))
        made(a, b, c)
        assert torch.equal(c, first), "two runs differ"
    return made


@pytest.mark.parametrize("trans_b", [False, True], ids=["NN", "NT"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("cluster", [(1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 4, 1)])
def test_products_in_clusters(cluster, persistent, shape, trans_b):
    kernel = build_matmul("float16", False, trans_b, 128, 128, 64, 4, 256, T.GemmWarpPolicy.Square)
    check(kernel, plan(cluster, persistent=persistent), *shape, trans_b)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_large_tile(shape):
    kernel = build_matmul("bfloat16", False, False, 128, 256, 64, 4, 256, T.GemmWarpPolicy.FullRow)
    check(kernel, plan((1, 2, 1)), *shape, False, torch.bfloat16)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_teams_in_clusters(shape):
    kernel = build_matmul("float16", False, True, 128, 128, 64, 4, 128, T.GemmWarpPolicy.Square)
    check(kernel, plan((1, 2, 1), consumer_groups=2), *shape, True)


@pytest.mark.parametrize("shape", [*SHAPES, (16, 4096, 14336), (64, 64, 0)], ids=str)
@pytest.mark.parametrize("specialise", [True, False])
@pytest.mark.parametrize("split", [2, 3, 4, 8])
def test_shared_sums(split, specialise, shape):
    kernel = build_matmul("float16", False, True, 64, 128, 64, 4, 128, T.GemmWarpPolicy.Square)
    chosen = plan(split=split, specialise=specialise, staged_store=specialise)
    check(kernel, chosen, *shape, True)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_tile_of_rows_that_all_blocks_need(size):
    rows, columns = 5000, 1000
    a, s = (torch.randn(r, columns, device="cuda") for r in (rows, 64))
    c = torch.full_like(a, float("nan"))
    kernel = tilec.kernel(scaled_rows)
    made = kernel.compile_with_plan(plan((size, 1, 1)), a, s, c)
    made(a, s, c)
    row = torch.arange(rows, device="cuda") % 64
    want = a.double() * s[row].double() + s[0].double()
    torch.testing.assert_close(c.double(), want, rtol=1e-6, atol=1e-6)


def build_clustered(cluster):
    @tilec.kernel
    def clustered(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256, cluster_dims=cluster) as (
            bx,
            by,
        ):
            A_s = T.alloc_shared((128, 64), "float16")
            B_s = T.alloc_shared((64, 128), "float16")
            acc = T.alloc_fragment((128, 128), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=4):
                T.copy(A[by * 128, k * 64], A_s)
                T.copy(B[k * 64, bx * 128], B_s)
                T.gemm(A_s, B_s, acc)
            T.copy(acc, C[by * 128, bx * 128])

    return clustered


@pytest.mark.parametrize("cluster", [2, (1, 2), (2, 2), 4])
@pytest.mark.parametrize("pad", [0, 3])
def test_cluster_dims(cluster, pad):
    """With `pad`, rows are not aligned for TMA: the clusters are launched and share nothing."""
    kernel = build_clustered(cluster)
    a, b = operands(1000, 1000, 520, False, False, torch.half, pad)
    c = torch.full((1000, 1000), float("nan"), device="cuda", dtype=torch.half)
    kernel(a, b, c)
    want = a.double() @ b.double()
    assert float((c.double() - want).norm() / want.norm()) < 4e-4
    with pytest.raises(LaunchError, match="do not divide"):
        kernel(*operands(260, 260, 64, False, False, torch.half), c[:260, :260].contiguous())
