"""Clusters: tiles that several blocks need are loaded once; sums that several blocks share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from form_help import GFX942, SM80, SM90, Arrays, aligned, tile_func
from frontend_help import fact
from frontend_help import ops as found
from instruction_rows import CLUSTER_INSTRUCTIONS
from test_lowering import matmul_text
from test_rows import assemble as ptxas_takes
from test_rows import kernel as asm_kernel
from thread_interp import BadAccess, run_threads

import tilec
import tilec.language as T
from tilec.codegen import assemble, emit
from tilec.frontend import Specialisation, bind_constants, read_signature, trace
from tilec.ir.clusters import cluster_of, launched_cluster
from tilec.ir.core import Func, Op, walk
from tilec.ir.errors import CompileError, LaunchError, ResourceError
from tilec.ir.layout import row_major, swizzled
from tilec.ir.ops import (
    ClusterBarrier,
    For,
    MbarrierArrive,
    MbarrierInit,
    Scope,
    TmaLoad,
)
from tilec.ir.parser import parse_func
from tilec.ir.schedule import Plan
from tilec.passes import run_plan
from tilec.passes.utils.multicast import cut
from tilec.runtime.driver import check_grid, launched_grid
from tilec.tune.fit import first_fit

pytestmark = pytest.mark.usefixtures("unassembled")

M, N, K, P = T.dynamic("M, N, K, P")


def plan(
    cluster: tuple[int, int, int] = (1, 1, 1),
    split: int = 1,
    consumer_groups: int = 1,
    **others: Any,
) -> Plan:
    """A specialised kernel, persistent unless told otherwise."""
    given = {"specialise": True, "persistent": split == 1, "staged_store": True, **others}
    return Plan("test", cluster=cluster, split=split, consumer_groups=consumer_groups, **given)


def product(
    text: str, chosen: Plan, m: int, n: int, k: int, tb: int, launched: int | None = None
) -> tuple[Func, np.ndarray]:
    """Compile the product with one plan, run it thread by thread, compare it with float64."""
    func = run_plan(parse_func(text), SM90, chosen)
    rng = np.random.default_rng(m * 1000 + n * 10 + k)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = rng.standard_normal((n, k) if tb else (k, n)).astype(np.float16)
    c = np.full((m, n), np.nan, np.float16)
    run_threads(func, SM90, {"A": a, "B": b, "C": c}, launched=launched)
    want = a.astype(np.float64) @ (b.T if tb else b).astype(np.float64)
    assert np.isfinite(c.astype(np.float64)).all(), "an output was not written"
    np.testing.assert_allclose(c.astype(np.float64), want, rtol=2e-3, atol=2e-3 * max(k, 1) ** 0.5)
    return func, c


# --- what is shared -------------------------------------------------------------------------------


@pytest.mark.covering(1)
@pytest.mark.parametrize("tb", [0, 1], ids=["NN", "NT"])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(
    ("cluster", "shared"), [((2, 1, 1), 1), ((1, 2, 1), 1), ((2, 2, 1), 2), ((1, 4, 1), 1)]
)
def test_products(cluster: tuple[int, int, int], shared: int, persistent: bool, tb: int) -> None:
    """A grid of 4 x 3 tiles with ragged edges, so that some clusters are not full."""
    text = matmul_text(64, 64, 32, 3, 128, 0, tb)
    chosen = plan(cluster, persistent=persistent)
    func, _ = product(text, chosen, 136, 200, 136, tb, 2 if persistent else None)
    loads = found(func, TmaLoad)
    assert sum(o.blocks is not None for o in loads) == shared and len(loads) == 2
    assert launched_cluster(func) == cluster
    assert len(found(func, ClusterBarrier)) == 2
    assert isinstance(func.body.ops[-1], ClusterBarrier)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 8), (64, 64, 0), (65, 8, 40), (300, 64, 32)])
def test_small_and_empty_products(m: int, n: int, k: int) -> None:
    product(matmul_text(64, 64, 32, 3, 128, 0, 1), plan((1, 2, 1)), m, n, k, 1, 1)


@pytest.mark.parametrize("k", [40, 200])
def test_teams_in_clusters(k: int) -> None:
    product(
        matmul_text(64, 64, 32, 3, 128, 0, 1), plan((1, 2, 1), consumer_groups=2), 264, 136, k, 1, 1
    )


def test_a_slot_is_free_when_all_receivers_have_read_it() -> None:
    text = matmul_text(64, 64, 32, 3, 256, 0, 1)
    for cluster, factor in (((2, 1, 1), 2), ((2, 2, 1), 3), ((4, 2, 1), 5)):
        func = run_plan(parse_func(text), SM90, plan(cluster))
        full, empty = (o.count for o in found(func, MbarrierInit))
        assert (full, empty) == (1, 2 * factor), "two warpgroups in each block linked to this one"
        assert all(o.block is not None for o in found(func, MbarrierArrive))


def test_what_a_wrong_count_would_do() -> None:
    """The interpreter sees a slot that is freed too early or never."""
    func = run_plan(parse_func(matmul_text(64, 64, 32, 3, 128, 0, 1)), SM90, plan((1, 2, 1)))
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((200, 200)).astype(np.float16) for _ in range(2))
    want = a.astype(np.float64) @ b.T.astype(np.float64)

    def counted(by: int) -> Func:
        def visit(o: Op) -> Op | None:
            if isinstance(o, MbarrierInit) and o.barrier.name.endswith("empty"):
                return replace(o, count=o.count + by)
            return None

        return func.rewrite(Op, visit)

    for by in (0, 1, -1):
        c = np.zeros((200, 200), np.float16)
        arrays = {"A": a, "B": b, "C": c}
        if by == 0:
            run_threads(counted(by), SM90, arrays, launched=1)
            np.testing.assert_allclose(c, want, rtol=2e-3, atol=0.05)
        else:
            with pytest.raises(BadAccess, match="deadlock|more arrivals"):
                run_threads(counted(by), SM90, arrays, launched=1)


# --- programs that are no products ----------------------------------------------------------------


def scaled_rows(
    A: T.Tensor((M, N), "float32"), S: T.Tensor((64, N), "float32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(M, 64), threads=128) as b:
        a_tile = T.alloc_shared((64, 64), "float32")
        s_tile = T.alloc_shared((64, 64), "float32")
        for k in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(A[b * 64, k * 64], a_tile)
            T.copy(S[0, k * 64], s_tile)
            for i, j in T.Parallel(64, 64):
                C[b * 64 + i, k * 64 + j] = a_tile[i, j] * s_tile[i, j] + s_tile[0, j]


def scaled_arrays(rows: int = 200, columns: int = 136) -> tuple[Arrays, np.ndarray]:
    rng = np.random.default_rng(7)
    a, s = (rng.standard_normal((r, columns)).astype(np.float32) for r in (rows, 64))
    row = np.arange(rows) % 64
    first = s[(row // 64) * 64]
    arrays = {"A": a, "S": s, "C": np.full((rows, columns), np.nan, np.float32)}
    return {k: aligned(v) for k, v in arrays.items()}, a * s[row] + first


@pytest.mark.parametrize(("size", "persistent"), [(2, True), (4, False), (8, True)])
def test_a_tile_of_rows_that_all_blocks_need(size: int, persistent: bool) -> None:
    arrays, want = scaled_arrays()
    func = run_plan(tile_func(scaled_rows, arrays), SM90, plan((size, 1, 1), persistent=persistent))
    shared = [o for o in found(func, TmaLoad) if o.blocks is not None]
    assert {o.map.type.tensor for o in shared} == {"S"}
    run_threads(func, SM90, arrays, launched=1)
    np.testing.assert_allclose(arrays["C"], want, rtol=1e-6, atol=1e-6)


def one_weight(
    A: T.Tensor((P, M, K), "float16"),
    W: T.Tensor((N, K), "float16"),
    C: T.Tensor((P, M, N), "float16"),
):
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), P, threads=128) as (bx, by, bz):
        a_tile = T.alloc_shared((64, 32), "float16")
        w_tile = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[bz, by * 64, k * 32], a_tile)
            T.copy(W[bx * 64, k * 32], w_tile)
            T.gemm(a_tile, w_tile, acc, transpose_B=True)
        T.copy(acc, C[bz, by * 64, bx * 64])


@pytest.mark.parametrize(
    ("cluster", "shared", "links", "persistent"),
    [
        ((1, 1, 2), "W", 2, True),
        ((1, 2, 2), "W", 4, False),
        ((2, 1, 2), "AW", 3, True),
        ((2, 2, 2), "AW", 5, False),
    ],
)
def test_a_batch_in_three_dimensions(
    cluster: tuple[int, int, int], shared: str, links: int, persistent: bool
) -> None:
    """Three batches of 3 x 2 tiles: no dimension is a multiple of its cluster."""
    rng = np.random.default_rng(11)
    arrays = {
        "A": aligned(rng.standard_normal((3, 136, 72)).astype(np.float16)),
        "W": aligned(rng.standard_normal((100, 72)).astype(np.float16)),
        "C": aligned(np.full((3, 136, 100), np.nan, np.float16)),
    }
    func = run_plan(tile_func(one_weight, arrays), SM90, plan(cluster, persistent=persistent))
    loads = [o.map.type.tensor for o in found(func, TmaLoad) if o.blocks is not None]
    assert sorted(loads) == list(shared)
    assert [o.count for o in found(func, MbarrierInit)] == [1, links]
    run_threads(func, SM90, arrays, launched=2)
    want = np.einsum("bmk,nk->bmn", *(arrays[x].astype(np.float64) for x in "AW"))
    np.testing.assert_allclose(arrays["C"].astype(np.float64), want, rtol=2e-3, atol=0.05)


def grid_of_the_launch(
    A: T.Tensor((M, K), "float16"), W: T.Tensor((N, K), "float16"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(threads=128) as (bx, by):
        a_tile = T.alloc_shared((64, 32), "float16")
        w_tile = T.alloc_shared((64, 32), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        T.use_swizzle(4)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
            T.copy(A[by * 64, k * 32], a_tile)
            T.copy(W[bx * 64, k * 32], w_tile)
            T.gemm(a_tile, w_tile, acc, transpose_B=True)
        T.copy(acc, C[by * 64, bx * 64])


@pytest.mark.parametrize(
    "chosen",
    [
        plan((1, 2, 1)),
        plan((2, 2, 1)),
        plan((1, 2, 1), persistent=False),
        plan((2, 1, 1), persistent=False),
        plan(split=2),
        plan(split=4),
    ],
    ids=["1x2", "2x2", "1x2 dispatched", "2x1 dispatched", "split2", "split4"],
)
def test_a_grid_that_the_launch_gives(chosen: Plan) -> None:
    rng = np.random.default_rng(12)
    arrays = {
        "A": aligned(rng.standard_normal((136, 72)).astype(np.float16)),
        "W": aligned(rng.standard_normal((200, 72)).astype(np.float16)),
        "C": aligned(np.full((136, 200), np.nan, np.float32)),
    }
    signature = bind_constants(read_signature(grid_of_the_launch), {})
    facts = {
        p.name: replace(fact(p.name, arrays[p.name], p.shape, signature.sizes), align=16)
        for p in signature.parameters
    }
    source = trace(signature, Specialisation(facts, grid="launch"))
    func = run_plan(source, SM90, chosen)
    run_threads(func, SM90, arrays, launched=2, grid=(4, 3, 1))
    want = arrays["A"].astype(np.float64) @ arrays["W"].astype(np.float64).T
    np.testing.assert_allclose(arrays["C"], want, rtol=1e-4, atol=1e-3)


def lower_rows(
    A: T.Tensor((M, N), "float16"), B: T.Tensor((N, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Row block b times the first b + 1 blocks of K: the loop's length depends on the block."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (x, b):
        a_tile = T.alloc_shared((64, 64), "float16")
        b_tile = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(b + 1, num_stages=2):
            T.copy(A[b * 64, k * 64], a_tile)
            T.copy(B[k * 64, x * 64], b_tile)
            T.gemm(a_tile, b_tile, acc)
        T.copy(acc, C[b * 64, x * 64])


def test_blocks_that_run_differently_share_nothing() -> None:
    rng = np.random.default_rng(3)
    arrays = {
        "A": aligned(rng.standard_normal((192, 192)).astype(np.float16)),
        "B": aligned(rng.standard_normal((192, 192)).astype(np.float16)),
        "C": aligned(np.full((192, 192), np.nan, np.float32)),
    }
    source = tile_func(lower_rows, arrays)
    with pytest.raises(ResourceError, match="no tile is the same for the blocks of a cluster"):
        run_plan(source, SM90, plan((1, 2, 1)))
    func = run_plan(source, SM90, plan((2, 1, 1)))
    assert {o.map.type.tensor for o in found(func, TmaLoad) if o.blocks is not None} == {"A"}
    run_threads(func, SM90, arrays, launched=2)
    a = arrays["A"].astype(np.float64)
    blocks = np.arange(192) // 64
    mask = blocks[None, :] <= blocks[:, None]
    want = (a * mask) @ arrays["B"].astype(np.float64)
    np.testing.assert_allclose(arrays["C"], want, rtol=1e-4, atol=1e-4)


def test_how_tiles_are_cut() -> None:
    wide = swizzled((64, 256), 16, 128)  # four boxes of 64 columns
    assert cut(wide, 16, 2) == (1, 128, 128, (64, 64), 2 * 64 * 64, 0)
    assert cut(wide, 16, 4) == (1, 64, 64, (64, 64), 64 * 64, 0)
    assert cut(wide, 16, 8) == (0, 8, 8, (8, 64), 8 * 64, 0)
    tall = swizzled((256, 64), 16, 128)
    assert cut(tall, 16, 2) == (0, 128, 128, (128, 64), 128 * 64, 0)
    odd = swizzled((152, 64), 16, 128)  # 19 patterns of 8 rows
    assert cut(odd, 16, 2) == (0, 80, 72, (80, 64), 72 * 64, 8 * 64)
    assert cut(odd, 16, 4) is None, "half of the tile would come twice"
    assert cut(swizzled((152, 128), 16, 128), 16, 2) == (1, 64, 64, (152, 64), 152 * 64, 0)
    assert cut(swizzled((8, 64), 16, 128), 16, 2) is None, "half a swizzle pattern"
    assert cut(row_major((3, 64)), 16, 2) is None, "columns of a tile without boxes of columns"


# --- the user's clusters --------------------------------------------------------------------------


def clustered(cluster: Any, tma: bool = True, threads: int = 128) -> Callable[..., Any]:
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(
            T.ceildiv(N, 64), T.ceildiv(M, 64), threads=threads, cluster_dims=cluster
        ) as (bx, by):
            a_tile = T.alloc_shared((64, 32), "float16")
            b_tile = T.alloc_shared((64, 32), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            steps = T.ceildiv(K, 32)
            for k in T.Pipelined(steps, num_stages=2) if tma else T.serial(steps):
                T.copy(A[by * 64, k * 32], a_tile)
                T.copy(B[bx * 64, k * 32], b_tile)
                T.gemm(a_tile, b_tile, acc, transpose_B=True)
            T.copy(acc, C[by * 64, bx * 64])

    return kernel


def clustered_arrays(m: int = 200, n: int = 250, k: int = 72) -> tuple[Arrays, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    arrays = {
        "A": aligned(rng.standard_normal((m, k)).astype(np.float16)),
        "B": aligned(rng.standard_normal((n, k)).astype(np.float16)),
        "C": aligned(np.full((m, n), np.nan, np.float32)),
    }
    return arrays, arrays["A"].astype(np.float64) @ arrays["B"].astype(np.float64).T


@pytest.mark.covering(1)
@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize(
    ("cluster", "dims"),
    [(2, (2, 1, 1)), ((2,), (2, 1, 1)), ((1, 2), (1, 2, 1)), ([2, 2, 1], (2, 2, 1))],
)
def test_cluster_dims(cluster: Any, dims: tuple[int, int, int], tma: bool) -> None:
    """The user's clusters hold in every plan, with and without tiles to share."""
    arrays, want = clustered_arrays()
    source = tile_func(clustered(cluster, tma), arrays)
    assert source.attrs["cluster_dims"] == dims
    for specialise in (True, False):
        func = run_plan(source, SM90, plan(specialise=specialise, persistent=specialise and tma))
        assert cluster_of(func) == dims
        assert any(o.blocks is not None for o in found(func, TmaLoad)) == (specialise and tma)
        arrays["C"][:] = np.nan
        run_threads(func, SM90, arrays, launched=2)
        np.testing.assert_allclose(arrays["C"], want, rtol=1e-4, atol=1e-3)


def test_targets_without_clusters_take_each_block_alone() -> None:
    arrays, want = clustered_arrays()
    source = tile_func(clustered(2), arrays)
    for target in (SM80, GFX942):
        func = first_fit(source, target)
        assert launched_cluster(func) == (1, 1, 1)
        arrays["C"][:] = np.nan
        run_threads(func, target, arrays)
        np.testing.assert_allclose(arrays["C"], want, rtol=1e-4, atol=1e-3)
    arrays["C"][:] = np.nan
    tilec.kernel(clustered(2))(**arrays)
    np.testing.assert_allclose(arrays["C"], want, rtol=1e-4, atol=1e-3)


def swizzled_order(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=32, cluster_dims=(1, 2)) as (bx, by):
        T.use_swizzle(4)
        for i, j in T.Parallel(16, 16):
            B[by * 16 + i, bx * 16 + j] = A[by * 16 + i, bx * 16 + j] + 100 * bx + by


def test_a_swizzled_order_of_clusters_visits_every_block() -> None:
    rng = np.random.default_rng(5)
    a = rng.standard_normal((6 * 16, 5 * 16)).astype(np.float32)
    arrays = {"A": aligned(a), "B": aligned(np.full_like(a, np.nan))}
    run_threads(run_plan(tile_func(swizzled_order, arrays), SM90, Plan("plain")), SM90, arrays)
    row, column = np.indices(a.shape) // 16
    np.testing.assert_allclose(arrays["B"], a + 100 * column + row, rtol=1e-6)


SPEC = [tilec.spec((256, 64), "float16"), tilec.spec((192, 64), "float16")]


@pytest.mark.parametrize(
    ("cluster", "message", "hint"),
    [
        (2, "clusters of 2 blocks do not divide the grid: it has 3 blocks in x", "1 in x fits"),
        ((1, 3), "it has 4 blocks in y, the cluster 3", "1 in y fits"),
        ((1, 1, 2), "it has 1 blocks in z, the cluster 2", "1 in z fits"),
        ((3, 4), "a cluster of 3x4 has 12 blocks, the most is 8", "cluster_dims=2"),
        (0, "cluster_dims of T.Kernel is the int 0", "up to three"),
        ((1, 1, 1, 1), "cluster_dims of T.Kernel is a tuple of 4", "up to three"),
        ("2", "cluster_dims of T.Kernel is the str '2'", "cluster_dims=2"),
    ],
)
def test_clusters_that_cannot_be(cluster: Any, message: str, hint: str) -> None:
    @tilec.kernel
    def kernel(
        A: T.Tensor((256, 64), "float16"),
        B: T.Tensor((192, 64), "float16"),
    ):
        with T.Kernel(192 // 64, 4, threads=128, cluster_dims=cluster) as (bx, by):
            for i, j in T.Parallel(64, 64):
                B[bx * 64 + i, j] = A[by * 64 + i, j]

    with pytest.raises(CompileError) as caught:
        kernel.compile(*SPEC, target="cuda:sm_90a")
    text = str(caught.value)
    assert message in text and hint in text and "cluster_dims=cluster" in text
    assert len(text.splitlines()) <= 12


def test_a_launch_that_clusters_do_not_divide() -> None:
    made = tilec.kernel(clustered(2)).compile(
        *(tilec.spec(s, t) for s, t in (((200, 64), "float16"), ((130, 64), "float16"))),
        tilec.spec((200, 130), "float32"),
        target="cuda:sm_90a",
    )
    image = made.image
    assert image.exact_cluster and image.cluster == (2, 1, 1)
    check_grid(image, (4, 3, 1), (1 << 30,) * 3)
    with pytest.raises(
        LaunchError,
        match=r"the grid \(3, 4, 1\) has 3 blocks in x, which clusters"
        " of 2x1x1 do not divide",
    ):
        check_grid(image, (3, 4, 1), (1 << 30,) * 3)


def test_grids_that_are_launched() -> None:
    class Loaded:
        def __init__(self, **fields: Any) -> None:
            self.image = replace(base, **fields)

        def resident_blocks(self) -> int:
            return 132

    base = (
        tilec.kernel(clustered(2))
        .compile(
            *(tilec.spec((256, 64), "float16"),) * 2,
            tilec.spec((256, 256), "float32"),
            target="cuda:sm_90a",
        )
        .image
    )
    grid = (5, 7, 1)
    for fields, want in (
        ({"persistent": False, "cluster": (1, 2, 1)}, (5, 8, 1)),
        ({"persistent": False, "cluster": (1, 1, 1), "split": 4}, (20, 7, 1)),
        ({"persistent": True, "cluster": (1, 2, 1)}, (20, 2, 1)),
        ({"persistent": True, "cluster": (1, 1, 1)}, (35, 1, 1)),
    ):
        assert launched_grid(Loaded(**fields), grid) == want
    large = (50, 60, 1)
    assert launched_grid(Loaded(persistent=True, cluster=(2, 1, 1)), large) == (132, 1, 1)
    assert launched_grid(Loaded(persistent=True, cluster=(2, 2, 1)), large) == (66, 2, 1)


# --- shared sums ----------------------------------------------------------------------------------


@pytest.mark.covering(1)
@pytest.mark.parametrize("split", [2, 3, 8])
@pytest.mark.parametrize("specialise", [True, False])
@pytest.mark.parametrize("k", [200, 8, 0])
def test_shared_sums(split: int, specialise: bool, k: int) -> None:
    """7, 1 and 0 iterations for up to 8 blocks; ragged tiles."""
    text = matmul_text(64, 64, 32, 3, 128, 0, 1)
    chosen = plan(split=split, specialise=specialise, staged_store=specialise)
    func, _ = product(text, chosen, 72, 72, k, 1)
    assert launched_cluster(func) == (split, 1, 1)


@pytest.mark.parametrize("split", [2, 4])
def test_a_shared_sum_is_added_in_the_order_of_the_blocks(split: int) -> None:
    """Each part in float32 by itself, then one after the other: no other order gives these bits."""
    text = matmul_text(64, 64, 32, 2, 128, 0, 0, ot="f32")
    func = run_plan(parse_func(text), SM90, plan(split=split, staged_store=False))
    rng = np.random.default_rng(split)
    a = rng.standard_normal((64, 256)).astype(np.float16)
    b = rng.standard_normal((256, 64)).astype(np.float16)
    c = np.full((64, 64), np.nan, np.float32)
    run_threads(func, SM90, {"A": a, "B": b, "C": c})
    per = 256 // split
    total = None
    for part in range(split):
        one = np.zeros((64, 64), np.float32)
        alone = run_plan(parse_func(text), SM90, plan(persistent=False, staged_store=False))
        at = slice(part * per, (part + 1) * per)
        run_threads(alone, SM90, {"A": a[:, at].copy(), "B": b[at].copy(), "C": one})
        total = one if total is None else total + one
    np.testing.assert_array_equal(c, total)


@pytest.mark.parametrize("shape", [(16, 24, 64), (64, 40, 128), (128, 64, 256)])
def test_sums_of_fragments_of_any_size(shape: tuple[int, int, int]) -> None:
    bm, bn, threads = shape
    text = matmul_text(bm, bn, 32, 2, threads, 0, 0)
    product(text, plan(split=3, specialise=False, staged_store=False), 40, 72, 136, 0)


def test_only_sums_of_products_are_shared() -> None:
    chosen = plan(split=2)
    arrays, _ = scaled_arrays()
    with pytest.raises(ResourceError, match="adds no product to a fragment"):
        run_plan(tile_func(scaled_rows, arrays), SM90, chosen)
    text = matmul_text(64, 64, 32, 3, 128, 0, 1)
    with pytest.raises(ResourceError, match="its blocks walk over the grid"):
        run_plan(parse_func(text), SM90, replace(chosen, persistent=True))
    with pytest.raises(ResourceError, match="hip:gfx942 has no clusters"):
        run_plan(parse_func(text), GFX942, Plan("split", split=2))
    filled = text.replace("const 0.0, f32", "const 1.0, f32")
    with pytest.raises(ResourceError, match="acc is not just set to zero before the loop"):
        run_plan(parse_func(filled), SM90, chosen)


def test_what_a_shared_sum_may_not_touch() -> None:
    def changes_input(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for _ in T.Pipelined(4, num_stages=2):
                T.copy(A[0, 0], tile)
                T.gemm(tile, tile, acc)
                for i, j in T.Parallel(64, 64):
                    acc[i, j] = acc[i, j] * 0.5
            T.copy(acc, C[0, 0])

    arrays = {
        "A": aligned(np.ones((64, 64), np.float16)),
        "C": aligned(np.ones((64, 64), np.float32)),
    }
    with pytest.raises(ResourceError, match=r"line \d+ does more than add products"):
        run_plan(tile_func(changes_input, arrays), SM90, plan(split=2))


# --- what the assemblers say ----------------------------------------------------------------------


def test_ptxas_takes_the_rows(tmp_path: Any) -> None:
    ptxas_takes(
        "".join(asm_kernel(f"k{i}", [r.asm]) for i, r in enumerate(CLUSTER_INSTRUCTIONS)),
        "sm_90a",
        tmp_path,
    )


@pytest.mark.parametrize(
    ("chosen", "tile"),
    [
        (plan((1, 2, 1)), (128, 256, 64, 4, 256)),
        (plan((2, 2, 1)), (128, 128, 64, 4, 256)),
        (plan((1, 2, 1), consumer_groups=2), (128, 128, 64, 4, 128)),
        (plan(split=2), (64, 128, 64, 6, 128)),
        (plan(split=4), (64, 128, 64, 6, 128)),
    ],
    ids=["2", "2x2", "consumer_groups", "split2", "split4"],
)
def test_compiles_cleanly(chosen: Plan, tile: tuple[int, ...]) -> None:
    """No spills or advisories; and no fence of the whole device in a loop, which an arrival at
    another block would have with `.release.cluster`."""
    func = run_plan(parse_func(matmul_text(*tile, 0, 0)), SM90, chosen)
    made: Any = assemble(emit(func, SM90), SM90)
    assert made.advisories == ()
    if made.binary is not None:
        assert made.spilled_bytes == 0
    dims = ", ".join(map(str, launched_cluster(func)))
    assert f".reqnctapercluster {dims}" in made.asm
    shared = "multicast::cluster" in made.asm
    assert shared == (chosen.split == 1)
    publish = {1: 0, 2: 1}.get(chosen.split, 2)
    assert made.asm.count("mbarrier.arrive.release.cluster") == publish
    in_loops = [o for loop in found(func, For) for o in walk(loop.body)]
    assert not any(isinstance(o, MbarrierArrive) and o.publish for o in in_loops)
    assert not re.search(r"\bfence\.(sc|acq_rel)|membar", made.asm)


def test_no_plan_no_cluster() -> None:
    func = run_plan(parse_func(matmul_text(64, 64, 32, 3, 128, 0, 1)), SM90, plan())
    assert not found(func, ClusterBarrier) and launched_cluster(func) == (1, 1, 1)
    assert len([o for o in func.body.ops if isinstance(o, Scope)]) == 2
    with pytest.raises(ResourceError, match="no clusters of 1x1x2"):
        run_plan(parse_func(matmul_text(64, 64, 32, 3, 128, 0, 1)), SM90, plan((1, 1, 2)))
    with pytest.raises(ResourceError, match="4x4x1 has 16 blocks, the most is 8"):
        run_plan(parse_func(matmul_text(64, 64, 32, 3, 128, 0, 1)), SM90, plan((4, 4, 1)))


def decoded_sum(
    W: T.Tensor((64, 512), "uint8"),
    X: T.Tensor((16, 512), "float16"),
    S: T.Tensor((64, 8), "float16"),
    Y: T.Tensor((64, 16), "float32"),
):
    """Weights of a byte, scaled by row and step: what decodes them is an iteration's."""
    with T.Kernel(1, threads=128):
        w = T.alloc_shared((64, 64), "uint8")
        x = T.alloc_shared((16, 64), "float16")
        f = T.alloc_fragment((64, 64), "float16")
        acc = T.alloc_fragment((64, 16), "float32")
        T.clear(acc)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(W[0, k * 64], w)
            T.copy(X[0, k * 64], x)
            for i, j in T.Parallel(64, 64):
                f[i, j] = (T.cast(w[i, j], "float16") - 8) * S[i, k]
            T.gemm(f, x, acc, transpose_B=True)
        T.copy(acc, Y)


@pytest.mark.parametrize("chosen", [plan(split=2), plan(split=3)])
def test_what_an_iteration_decodes_is_no_obstacle(chosen: Plan, rng: np.random.Generator) -> None:
    arrays = {
        "W": aligned(rng.integers(0, 16, (64, 512)).astype(np.uint8)),
        "X": aligned(rng.integers(-3, 4, (16, 512)).astype(np.float16)),
        "S": aligned((2.0 ** rng.integers(-2, 2, (64, 8))).astype(np.float16)),
        "Y": aligned(np.full((64, 16), np.nan, np.float32)),
    }
    func = run_plan(tile_func(decoded_sum, arrays), SM90, chosen)
    assert launched_cluster(func)[0] == chosen.split
    run_threads(func, SM90, arrays)
    w = (arrays["W"].astype(float) - 8) * np.repeat(arrays["S"].astype(float), 64, 1)
    np.testing.assert_array_equal(arrays["Y"], w @ arrays["X"].astype(float).T)


def test_what_iterations_leave_to_others_is_one() -> None:
    def carried(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            f = T.alloc_fragment((64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            T.clear(f)
            for _ in T.Pipelined(4, num_stages=2):
                T.copy(A[0, 0], a)
                for i, j in T.Parallel(64, 64):
                    f[i, j] += a[i, j]
                T.gemm(f, a, acc)
            T.copy(acc, C)

    arrays = {"A": aligned(np.ones((64, 64), np.float16)), "C": aligned(np.ones((64, 64), np.float32))}  # fmt: skip  # noqa: E501
    with pytest.raises(ResourceError, match="leaves f to later iterations"):
        run_plan(tile_func(carried, arrays), SM90, plan(split=2))
