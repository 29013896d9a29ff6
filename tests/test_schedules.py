"""Schedules: what the score chooses for which sizes, what an author fixes, what the words refuse.

No GPU is needed: choices are read from `recommend` and `compile` for sm_90a; the numbers of the
schedules themselves are checked where their passes are (test_consumer_groups, test_clusters)."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from machine_speed import opcodes

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import For
from tilec.ir.schedule import Plan
from tilec.jit.build import trace_variant
from tilec.target import find_target
from tilec.tune.plans import plans
from tilec.tune.work import read_work

M, N, K = T.dynamic("M, N, K")
SM90 = "cuda:sm_90a"


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float16"),
    B: T.Tensor((K, N), "float16"),
    C: T.Tensor((M, N), "float16"),
    BM: T.constexpr = T.auto(64, 128, 256),
    BN: T.constexpr = T.auto(32, 64, 128, 192, 256),
    BK: T.constexpr = 64,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
        A_s = T.alloc_shared((BM, BK), "float16")
        B_s = T.alloc_shared((BK, BN), "float16")
        acc = T.alloc_fragment((BM, BN), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, BK)):
            T.copy(A[by * BM, k * BK], A_s)
            T.copy(B[k * BK, bx * BN], B_s)
            T.gemm(A_s, B_s, acc)
        T.copy(acc, C[by * BM, bx * BN])


@tilec.kernel
def scale(
    X: T.Tensor((M, N), "float32"),
    Y: T.Tensor((M, N), "float32"),
    BM: T.constexpr = T.auto,
    BN: T.constexpr = T.auto,
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
        for i, j in T.Parallel(BM, BN):
            Y[by * BM + i, bx * BN + j] = X[by * BM + i, bx * BN + j] * 2.0 + 1.0


@tilec.kernel
def transpose(
    X: T.Tensor((M, N), "float16"),
    Y: T.Tensor((N, M), "float16"),
    BM: T.constexpr = T.auto(8, 32, 64, 256),
    BN: T.constexpr = T.auto(8, 32, 64, 256),
):
    with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM)) as (bx, by):
        tile = T.alloc_shared((BM, BN), "float16")
        T.copy(X[by * BM, bx * BN], tile)
        for i, j in T.Parallel(BN, BM):
            Y[bx * BN + i, by * BM + j] = tile[j, i]


def half(*shape: int) -> Any:
    return tilec.spec(shape, "float16")


def arrays(m: int, n: int, k: int) -> list[Any]:
    return [half(m, k), half(k, n), half(m, n)]


def best(m: int, n: int, k: int, **given: Any) -> tuple[tuple[int, int], Plan]:
    """The tile and plan that the score puts first."""
    first = tilec.recommend(product, *arrays(m, n, k), target=SM90, topk=1, **given)[0]
    return (first.constants.get("BM", 0), first.constants.get("BN", 0)), first.plan


# --- what is chosen -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "tiles", "consumer_groups"),
    [
        ((8192, 8192, 8192), {(128, 192)}, {2}),
        ((8192, 8192, 28672), {(128, 192)}, {2}),
        ((8192, 28672, 8192), {(128, 192)}, {2}),
        ((8192, 1024, 8192), {(128, 256), (256, 128)}, {1}),
        ((4096, 4096, 4096), {(128, 256), (256, 128), (128, 128), (64, 256)}, {1, 2}),
    ],
)
def test_large_products(
    shape: tuple[int, int, int], tiles: set[tuple[int, int]], consumer_groups: set[int]
) -> None:
    """The measured winners of each class: whole waves first, then ping-pong and few bytes."""
    tile, plan = best(*shape)
    assert tile in tiles and plan.consumer_groups in consumer_groups
    assert plan.persistent and plan.staged_store and plan.split == 1


def test_small_products_have_a_block_per_tile() -> None:
    tile, plan = best(1024, 1024, 1024)
    assert tile == (64, 128), "128 tiles on 132 multiprocessors"
    assert plan.threads == 128 and plan.consumer_groups == 1
    assert not plan.persistent and not plan.staged_store and plan.stages == 8


@pytest.mark.covering(1)
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (14336, 4096), (4096, 14336)])
@pytest.mark.parametrize("m", [1, 16, 64])
def test_few_rows_are_streamed_by_every_multiprocessor(m: int, n: int, k: int) -> None:
    tile, plan = best(m, n, k)
    blocks = math.ceil(m / tile[0]) * math.ceil(n / tile[1]) * plan.split * plan.parts
    assert tile[0] == 64 and blocks >= 64


def test_too_few_tiles_share_their_sums() -> None:
    tile, plan = best(16, 512, 8192)
    assert plan.split * plan.parts > 1 and not plan.persistent
    assert math.ceil(512 / tile[1]) * plan.split * plan.parts > 60
    other = best(8192, 512, 8192)[1]
    assert other.split == other.parts == 1


def test_panels_shrink_where_a_panel_would_not_stay_in_the_cache() -> None:
    assert best(8192, 8192, 8192)[1].raster_group == 8
    assert best(8192, 8192, 28672)[1].raster_group < 8


@pytest.mark.parametrize("shape", [(1, 1, 1), (100, 77, 13), (4000, 3000, 2008), (70, 5000, 9)])
def test_ragged_and_tiny_sizes_have_a_choice(shape: tuple[int, int, int]) -> None:
    _, plan = best(*shape)
    assert plan is not None


def test_recommendations_say_why() -> None:
    found = tilec.recommend(product, *arrays(4096, 4096, 4096), target=SM90, topk=6)
    ranked = [r for r in found if r.estimate]
    times = [r.estimate.seconds for r in ranked]
    assert times == sorted(times) and len(ranked) == 6
    first = ranked[0].estimate
    tile = ranked[0].constants["BM"] * ranked[0].constants["BN"]
    assert first.flops == 2 * 4096**3 and first.tiles == 4096**2 // tile
    assert first.waves == -(-first.tiles // 132)
    assert first.dram_bytes >= 3 * 2 * 4096**2
    assert 1e-4 < first.seconds < 4e-4, "between 350 and 1400 TFLOP/s"
    reasons = [str(r) for r in found if not r.estimate]
    assert any("registers of each thread" in r for r in reasons)


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942", "cpu"])
def test_other_targets_choose_too(target: str) -> None:
    found = [r for r in tilec.recommend(product, *arrays(2048, 2048, 2048), target=target)]
    first = found[0]
    assert first.estimate and first.constants["BM"] * first.constants["BN"] >= 64 * 64
    if target != "cpu":
        bits = first.constants["BM"] * first.constants["BN"] * 32
        assert bits // first.plan.threads // 32 <= 255


def test_work_on_the_accumulators_needs_registers() -> None:
    """192 accumulators leave none for an epilogue: found before any code is made."""

    @tilec.kernel
    def gelu(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        bias: T.Tensor((N,), "float16"),
        C: T.Tensor((M, N), "float16"),
        BN: T.constexpr = T.auto(128, 192),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, 128)) as (bx, by):
            A_s = T.alloc_shared((128, 64), "float16")
            B_s = T.alloc_shared((64, BN), "float16")
            acc = T.alloc_fragment((128, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64)):
                T.copy(A[by * 128, k * 64], A_s)
                T.copy(B[k * 64, bx * BN], B_s)
                T.gemm(A_s, B_s, acc)
            for i, j in T.Parallel(128, BN):
                acc[i, j] = T.max(acc[i, j] + bias[bx * BN + j], 0.0)
            T.copy(acc, C[by * 128, bx * BN])

    a, b, c = arrays(8192, 8192, 8192)
    found = tilec.recommend(gelu, a, b, half(8192), c, target=SM90, topk=30)
    for r in found:
        if r.estimate and r.constants["BN"] == 192:
            assert r.plan.consumer_groups == 1 and r.plan.threads == 256
    assert any("what is done with them" in r.reason for r in found)


# --- programs that are no matrix products ---------------------------------------------------------


def test_an_element_wise_program_chooses_rows_that_fill_the_machine() -> None:
    x = tilec.spec((4096, 4096), "float32")
    first = tilec.recommend(scale, x, x, target=SM90, topk=1)[0]
    bm, bn = first.constants["BM"], first.constants["BN"]
    assert bn >= 128 and bm * bn <= 128 * 64
    assert first.estimate.limit == "DRAM"
    assert first.estimate.dram_bytes == pytest.approx(2 * 4 * 4096**2, rel=0.05)


def test_a_transpose_chooses_tiles_with_long_rows_on_both_sides() -> None:
    found = tilec.recommend(transpose, half(8192, 8192), half(8192, 8192), target=SM90, topk=1)
    assert min(found[0].constants.values()) >= 32


def test_numbers_of_a_program_whose_loop_follows_its_block() -> None:
    @tilec.kernel
    def triangle(X: T.Tensor((M, 64), "float32"), Y: T.Tensor((M, 64), "float32")):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
            tile = T.alloc_shared((64, 64), "float32")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            for k in T.Pipelined(bx + 1):
                T.copy(X[k * 64, 0], tile)
                for i, j in T.Parallel(64, 64):
                    acc[i, j] += tile[i, j]
            T.copy(acc, Y[bx * 64, 0])

    x = tilec.spec((64 * 60, 64), "float32")
    found = tilec.recommend(triangle, x, x, target=SM90)
    assert found[0].estimate.tiles == 60
    loaded = found[0].estimate.l2_bytes / (64 * 64 * 4) / 60
    assert 29 <= loaded <= 32, "on average half of the blocks before it, and its own"


@pytest.mark.parametrize("shape", [(37, 50), (1, 1), (300, 7)])
def test_open_tiles_run(shape: tuple[int, int], rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape, np.float32)
    y = np.full_like(x, np.nan)
    for _ in range(3):
        scale(x, y)
        np.testing.assert_array_equal(y, x * 2 + 1)
        y[:] = np.nan
    scale(x, y, BM=3, BN=5)
    np.testing.assert_array_equal(y, x * 2 + 1)


def test_an_open_product_runs(rng: np.random.Generator) -> None:
    a = rng.standard_normal((70, 90)).astype(np.float16)
    b = rng.standard_normal((90, 33)).astype(np.float16)
    c = np.full((70, 33), np.nan, np.float16)
    product(a, b, c)
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c.astype(np.float64), want, rtol=2e-3, atol=2e-2)


def test_a_grid_of_the_launch_sees_what_was_chosen(rng: np.random.Generator) -> None:
    @tilec.kernel
    def add_one(X: T.Tensor((N,), "float32"), BN: T.constexpr = T.auto(64, 96)):
        with T.Kernel() as bx:
            for i in T.Parallel(BN):
                X[bx * BN + i] = X[bx * BN + i] + 1.0

    for n in (1, 1000, 1000, 1000, 65, 65):
        x = rng.standard_normal(n, np.float32)
        want = x + 1
        add_one[lambda meta, n=n: T.cdiv(n, meta["BN"])](x)
        np.testing.assert_array_equal(x, want)
    x = rng.standard_normal(500, np.float32)
    for bn in (7, 64):  # not chosen
        want = x + 1
        add_one[lambda meta: T.cdiv(500, meta["BN"])](x, BN=bn)
        np.testing.assert_array_equal(x, want)
    for _ in range(3):
        add_one[lambda meta: (T.cdiv(500, meta["BN"]),)](x)
    before = len(add_one.choices._made)
    add_one._launch = None  # whatever comes now, the generated path serves
    want = x + 1
    add_one[lambda meta: (T.cdiv(500, meta["BN"]),)](x)
    np.testing.assert_array_equal(x, want)
    assert len(add_one.choices._made) == before
    del add_one._launch
    with pytest.raises(tilec.LaunchError, match="does not follow BN"):
        add_one[3](x)


# --- what is kept ---------------------------------------------------------------------------------


def test_plans_are_part_of_the_key_and_memoised() -> None:
    kernel = tilec.kernel(product.function)
    large = kernel.compile(*arrays(2048, 2048, 512), target=SM90)
    small = kernel.compile(*arrays(512, 512, 512), target=SM90)
    assert large.plan != small.plan
    assert kernel.compile(*arrays(2048, 2048, 512), target=SM90) is large
    start = time.process_time()
    for _ in range(10):
        kernel.compile(*arrays(512, 512, 512), target=SM90)
    assert (time.process_time() - start) / 10 < 0.02, "a choice is made once for each size"


def test_variants_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many variants, sizes share those there are."""
    monkeypatch.setattr("tilec.jit.choose.MOST_VARIANTS", 2)
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    kernel = tilec.kernel(product.function)
    chosen = set()
    for m in (16, 64, 128, 200, 1024, 3000, 8192):
        facts = kernel.key_of(arrays(m, 4096, 4096), SM90, {})
        chosen.add((facts.values["BM"], facts.values["BN"], facts.plan))
    assert len(chosen) == 2


def test_an_explicit_argument_wins() -> None:
    found = product.compile(*arrays(8192, 8192, 8192), target=SM90, BM=64, BN=64)
    assert "64x64xf32" in found.stages["tile"]


def test_the_compiled_kernel_says_what_it_is() -> None:
    found = product.compile(*arrays(512, 512, 512), target=SM90)
    text = found.stages["plan"]
    assert text.startswith(f"kept: {found.plan.describe()}")
    assert "predicted, best first" in text and "rejected" in text
    assert product.compile(*arrays(64, 64, 64), target="cpu").plan is None


def test_choices_survive_the_process(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEC_DISABLE_CACHE", raising=False)
    first = tilec.kernel(product.function).compile(*arrays(256, 256, 256), target=SM90)
    again = tilec.kernel(product.function)
    second = again.compile(*arrays(256, 256, 256), target=SM90)
    assert second.plan == first.plan and second.binary == first.binary
    assert not again.choices._choosers, "neither traced nor predicted"


def test_a_warm_launch_does_not_choose(rng: np.random.Generator) -> None:
    @tilec.kernel
    def fixed(X: T.Tensor((N,), "float32"), BN: T.constexpr = 64):
        with T.Kernel(T.ceildiv(N, BN)) as bx:
            for i in T.Parallel(BN):
                X[bx * BN + i] = X[bx * BN + i] + 1.0

    opened = tilec.kernel(fixed.function)
    opened.function.__defaults__ = (T.auto(64),)
    opened = tilec.kernel(opened.function)

    def warm(kernel: Any) -> int:
        x = rng.standard_normal(64, np.float32)
        for _ in range(20):
            kernel(x)
        return opcodes(lambda: kernel(x))

    plain, chosen = warm(fixed), warm(opened)
    assert 0 < chosen <= plain


# --- what an author fixes -------------------------------------------------------------------------


def scheduled(threads: int | None = None, stages: int | None = None, **words: Any) -> Any:
    """A product whose schedule has these words."""
    persistent, specialise = words.get("persistent"), words.get("specialise")
    consumers, cluster = words.get("consumers"), words.get("cluster")
    split, raster_group, store = words.get("split"), words.get("raster_group"), words.get("store")
    depth = words.get("depth")

    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
        BM: T.constexpr = 128,
        BN: T.constexpr = 128,
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
            T.annotate_schedule(
                persistent=persistent,
                specialise=specialise,
                consumers=consumers,
                cluster=cluster,
                split=split,
                raster_group=raster_group,
                store=store,
                stages=depth,
            )
            A_s = T.alloc_shared((BM, 64), "float16")
            B_s = T.alloc_shared((64, BN), "float16")
            acc = T.alloc_fragment((BM, BN), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=stages):
                T.copy(A[by * BM, k * 64], A_s)
                T.copy(B[k * 64, bx * BN], B_s)
                T.gemm(A_s, B_s, acc)
            T.copy(acc, C[by * BM, bx * BN])

    return kernel


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ({"persistent": False}, "persistent", False),
        ({"specialise": False}, "specialise", False),
        ({"consumers": "pingpong"}, "consumer_groups", 2),
        ({"consumers": "cooperative"}, "consumer_groups", 1),
        ({"cluster": (1, 2)}, "cluster", (1, 2, 1)),
        ({"cluster": 2}, "cluster", (2, 1, 1)),
        ({"split": (2, 3)}, "split", 2),
        ({"split": (2, 3)}, "parts", 3),
        ({"raster_group": 3}, "raster_group", 3),
        ({"store": "direct"}, "staged_store", False),
        ({"store": "tma"}, "staged_store", True),
        ({"depth": 3}, "stages", 3),
    ],
)
@pytest.mark.parametrize("size", [4096, 64])
def test_what_is_fixed_holds(words: dict[str, Any], field: str, value: Any, size: int) -> None:
    found = tilec.recommend(scheduled(**words), *arrays(size, size, size), target=SM90, topk=20)
    chosen = [r.plan for r in found if r.estimate]
    assert chosen and all(getattr(p, field) == value for p in chosen)


def test_a_fixed_schedule_is_compiled() -> None:
    found = scheduled(consumers="pingpong", depth=4).compile(*arrays(512, 512, 512), target=SM90)
    assert (
        found.plan.consumer_groups == 2
        and found.plan.stages == 4
        and found.resources.threads == 384
    )


def traced(kernel: Any, *args: Any) -> Any:
    facts = kernel.key_of(args, SM90, {})
    return trace_variant(kernel.signature, facts)


@pytest.mark.parametrize(
    ("written", "fixed", "stages"),
    [(0, None, 6), (1, None, 6), (3, None, 6), (6, None, 6), (3, 4, 4), (4, 3, 3), (None, 3, 3)],
)
def test_the_number_of_stages_is_the_least(
    written: int | None, fixed: int | None, stages: int
) -> None:
    """`num_stages` is the least depth of a loop with a product; `stages` fixes it."""
    kernel = scheduled(stages=written, store="tma", depth=fixed)
    found = kernel.compile(*arrays(256, 256, 256), target=SM90)
    assert found.resources.buffers["A_s"] == 128 * 64 * 2 * stages
    if stages > 1:
        assert f"stages={stages}" in found.stages["plan"].split("\n")[0]
        assert found.plan.stages == stages


@pytest.mark.parametrize(
    ("target", "rows", "stages"),
    [(SM90, 264, 3), (SM90, 263, 2), ("cuda:sm_80", 264, 3), ("hip:gfx942", 264, 2)],
)
def test_the_plan_says_the_stages_that_were_compiled(target: str, rows: int, stages: int) -> None:
    """Also where tiles come through registers (odd rows, AMD), and in loops without a product,
    which have exactly the author's stages."""

    @tilec.kernel
    def total(A: T.Tensor((64, K), "float16"), B: T.Tensor((64, 32), "float16")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64, 32), "float16")
            f = T.alloc_fragment((64, 32), "float16")
            T.clear(f)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
                T.copy(A[0, k * 32], s)
                for i, j in T.Parallel(64, 32):
                    f[i, j] += s[i, j]
            T.copy(f, B)

    found = total.compile(half(64, rows), half(64, 32), target=target)
    buffers = found.resources.buffers
    assert buffers["s"] in (64 * 32 * 2 * stages, 64 * (32 + 8) * 2 * stages)
    assert f"stages={stages}" in found.stages["plan"].split("\n")[0]


def test_open_stages_are_as_many_as_fit() -> None:
    kernel = scheduled(threads=256, persistent=True, store="tma")
    found = kernel.compile(*arrays(4096, 4096, 4096), target=SM90)
    stage = 2 * 128 * 64 * 2
    assert found.plan.stages == 6 and found.resources.shared_bytes > 232_448 - 2 * stage

    @tilec.kernel
    def short(A: T.Tensor((64, 128), "float16"), B: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((64, 64), "float16")
            f = T.alloc_fragment((64, 64), "float16")
            T.clear(f)
            for k in T.Pipelined(2):
                T.copy(A[0, k * 64], s)
                for i, j in T.Parallel(64, 64):
                    f[i, j] += s[i, j]
            T.copy(f, B)

    func = traced(short, half(64, 128), half(64, 64))
    assert [o.num_stages for o in walk(func.body) if isinstance(o, For)] == [-1]
    assert all(p.stages == 2 for p in plans(func, find_target(SM90))), "the loop has two iterations"


def test_threads_left_out_follow_the_tile() -> None:
    for (bm, bn), threads in (((128, 256), 256), ((64, 64), 128)):
        found = tilec.recommend(product, *arrays(4096, 4096, 4096), target=SM90, BM=bm, BN=bn)
        assert found[0].plan.threads == threads


def test_every_plan_of_the_list_is_legal_or_says_why() -> None:
    func = traced(product, *arrays(256, 256, 256))
    found = plans(func, find_target(SM90))
    assert len(set(found)) == len(found) and found[0].name == "specialised persistent"
    assert {p.consumer_groups for p in found} == {1, 2} and {p.split for p in found} >= {1, 2, 4}


def test_work_is_read_from_the_loops() -> None:
    work = read_work(traced(product, *arrays(256, 256, 256)))
    shapes = {"A": (512, 640), "B": (640, 384), "C": (512, 384)}
    numbers = work.at(lambda role, arg, dim: shapes[arg][dim])
    (gemm, times) = numbers.products[0]
    m, n, k = gemm.op.shape
    assert times == math.ceil(640 / k)
    assert numbers.blocks == math.ceil(512 / m) * math.ceil(384 / n)
    # In cache lines: a row of 32 columns costs as much as one of 64.
    assert numbers.loaded == (min(m, 512) * k * 2 + k * max(min(n, 384) * 2, 128)) * times
    assert sum(numbers.outside.values()) == (max(m - 512, 0) + max(n - 384, 0)) * k * times * 2
    assert numbers.loaded_in((2, 1, 1))[0] < numbers.loaded


# --- what is refused ------------------------------------------------------------------------------


def refused(kernel: Any, *parts: str, target: str = SM90, **given: Any) -> None:
    with pytest.raises(tilec.CompileError) as caught:
        kernel.compile(*arrays(256, 256, 256), target=target, **given)
    text = str(caught.value)
    for part in parts:
        assert part in text, text
    assert "test_schedules.py" in text and len(text.splitlines()) <= 12


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ({"consumers": "pingpnog"}, ("did you mean 'pingpong'", "cooperative")),
        ({"store": "TMA"}, ("store of T.annotate_schedule", "'direct'")),
        ({"cluster": 0}, ("cluster of T.annotate_schedule",)),
        ({"cluster": (2, 2, 2, 2)}, ("up to three",)),
        ({"split": 0}, ("split of T.annotate_schedule is 0, the least is 1",)),
        ({"split": (2, 0)}, ("split of T.annotate_schedule is", "split=(2, 8)")),
        ({"split": (2, 3, 4)}, ("split of T.annotate_schedule is", "split=(2, 8)")),
        ({"split": 4099}, ("4099 parts of each sum", "split=1024 or less")),
        ({"split": (16, 2)}, ("a cluster has at most 8 blocks",)),
        ({"split": 32, "consumers": "pingpong"}, ("split=32 shares one tile",)),
        (
            {"raster_group": "8"},
            ("raster_group of T.annotate_schedule must be a compile-time int",),
        ),
        ({"persistent": "yes"}, ("persistent of T.annotate_schedule must be True or False",)),
        ({}, ("fixes nothing",)),
        ({"split": 2, "consumers": "pingpong"}, ("split=2",)),
        ({"split": 2, "persistent": True}, ("split=2", "persistent=True")),
        ({"consumers": "pingpong", "specialise": False}, ("specialise=True",)),
        ({"depth": 12}, ("bytes of shared memory", "232,448", "num_stages=6 fits")),
    ],
)
def test_wrong_words(words: dict[str, Any], parts: tuple[str, ...]) -> None:
    refused(scheduled(**words), *parts)


def test_wrong_keywords() -> None:
    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):  # noqa: E501
        with T.Kernel(1, threads=128):
            T.annotate_schedule(consumer="pingpong")

    refused(kernel, "has no keyword 'consumer'; did you mean 'consumers'?")


def test_ping_pong_needs_one_warpgroup_for_each_team() -> None:
    refused(scheduled(threads=256, consumers="pingpong"), "threads=256", "write threads=128")


def test_ping_pong_needs_room_for_a_tile_in_each_team() -> None:
    kernel = scheduled(consumers="pingpong")
    refused(kernel, "256 registers", "208 are left", 'consumers="cooperative"', BM=128, BN=256)


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_targets_without_the_feature(target: str) -> None:
    refused(scheduled(store="tma"), "has no TMA", target=target)
    refused(scheduled(consumers="pingpong"), target, target=target)
    refused(scheduled(cluster=2), "has no clusters", target=target)


@pytest.mark.parametrize("tile", [{}, {"BM": T.auto(32, 64), "BN": T.auto(32)}], ids=["", "auto"])
def test_the_cpu_runs_what_was_scheduled_for_a_gpu(tile: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((70, 40), (40, 50)))
    c = np.full((70, 50), np.nan, np.float16)
    scheduled(consumers="pingpong", store="tma", cluster=2)(a, b, c, **tile)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=2e-2, rtol=2e-3)


def test_a_schedule_that_the_program_cannot_have() -> None:
    @tilec.kernel
    def kernel(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):  # noqa: E501
        with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
            T.annotate_schedule(persistent=True)
            for i in T.Parallel(64):
                C[bx * 64 + i, 0] = A[bx * 64 + i, 0]

    refused(kernel, "persistent=True", "no T.Pipelined loop", "leave persistent out")


def test_open_arguments_are_ints() -> None:
    with pytest.raises(tilec.CompileError, match="positive ints, 0 is none"):
        T.auto(64, 0)
    with pytest.raises(tilec.CompileError, match="lists nothing"):
        T.auto()
    with pytest.raises(tilec.CompileError, match="only inside"):
        T.annotate_schedule(stages=2)


def test_no_value_compiles() -> None:
    @tilec.kernel
    def kernel(X: T.Tensor((N,), "float16"), BN: T.constexpr = T.auto(64, 128)):
        with T.Kernel(T.ceildiv(N, BN)) as bx:
            T.alloc_shared((BN, 0), "float16")
            X[bx * BN] = X[0]

    with pytest.raises(tilec.CompileError, match="the least is 1"):
        kernel.compile(half(256), target=SM90)
