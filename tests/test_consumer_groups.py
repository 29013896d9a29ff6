"""Groups: several sets of a block's threads that take turns at the tensor cores (ping-pong)."""

from __future__ import annotations

import consumer_group_programs
import numpy as np
import pytest
from form_help import Arrays, aligned, close, tile_func
from form_programs import Kernel, grouped
from pairwise import pairwise
from test_lowering import SM90, matmul_text, strided
from thread_interp import run_threads

import benchmarks.kernels
import tilec
from tilec.codegen.ptxas import run_ptxas
from tilec.ir.core import Func, walk
from tilec.ir.errors import ResourceError
from tilec.ir.ops import Alloc, OrderedArrive, OrderedWait, Scope, Wgmma
from tilec.ir.parser import parse_func
from tilec.ir.schedule import Plan
from tilec.passes import run_plan
from tilec.support.tools import find_ptxas

Rng = np.random.Generator
PING_PONG = Plan(
    "ping-pong", specialise=True, persistent=True, staged_store=True, consumer_groups=2
)
DIRECT = Plan("ping-pong", specialise=True, persistent=True, consumer_groups=2)


def product(text: str, plan: Plan, m: int, n: int, k: int, tb: int, launched: int) -> Func:
    func = run_plan(parse_func(text), SM90, plan)
    rng = np.random.default_rng(m * 1000 + n * 10 + k)
    a = strided(rng, (m, k), np.float16, 0)
    b = strided(rng, (n, k) if tb else (k, n), np.float16, 0)
    c = np.full((m, n), np.nan, np.float16)
    run_threads(func, SM90, {"A": a, "B": b, "C": c}, launched=launched)
    want = a.astype(np.float64) @ (b.T if tb else b).astype(np.float64)
    assert np.isfinite(c.astype(np.float64)).all(), "an output was not written"
    np.testing.assert_allclose(c.astype(np.float64), want, rtol=2e-3, atol=2e-3 * max(k, 1) ** 0.5)
    return func


@pytest.mark.covering(1, axes=("plan", "launched", "k"))
@pytest.mark.parametrize(
    "plan, launched, k", pairwise([PING_PONG, DIRECT], [1, 2, 3], [8, 72, 200])
)
def test_a_product_by_two_teams(plan, launched, k):
    """1 to 9 tiles for each launched block, 1 to 7 slots of the ring for each tile."""
    text = matmul_text(64, 64, 32, 3, 128, 0, 1)
    func = product(text, plan, 136, 136, k, 1, launched)
    (consumer,) = [o for o in walk(func.body) if isinstance(o, Scope) and o.name == "consumer"]
    assert (consumer.warps, consumer.consumer_groups) == (8, 2) and func.attrs[
        "launch_threads"
    ] == 384
    kinds = [type(o) for o in walk(consumer.body)]
    wait, product_at = kinds.index(OrderedWait), kinds.index(Wgmma)
    assert wait < product_at < len(kinds) - 1 - kinds[::-1].index(OrderedArrive)


def test_192_accumulators_for_each_thread():
    func = product(matmul_text(128, 192, 64, 3, 128, 0, 1), PING_PONG, 264, 200, 136, 1, 1)
    accumulators = max(
        o.type.layout.size("reg")
        for o in walk(func.body)
        if isinstance(o, Alloc) and o.type.space == "fragment" and o.type.layout
    )
    assert accumulators == 192


def test_no_loop_over_blocks_no_teams():
    with pytest.raises(ResourceError, match="no persistent loop"):
        plan = Plan("ping-pong", specialise=True, consumer_groups=2)
        run_plan(parse_func(matmul_text(64, 64, 32, 3, 128, 0, 1)), SM90, plan)


# --- loops over blocks that a user wrote ----------------------------------------------------------

STORES = pytest.mark.parametrize("plan", [PING_PONG, DIRECT], ids=["staged", "direct"])


def half(rng: Rng, *shape: int) -> np.ndarray:
    return aligned(rng.standard_normal(shape).astype(np.float16))


def blank(*shape: int, dtype: type = np.float16) -> np.ndarray:
    return aligned(np.full(shape, np.nan, dtype))


def by_teams(kernel: Kernel, plan: Plan, arrays: Arrays, **options: int) -> Func:
    func = run_plan(tile_func(kernel, arrays, **options), SM90, plan)
    (consumer,) = [o for o in walk(func.body) if isinstance(o, Scope) and o.name == "consumer"]
    assert (consumer.warps, consumer.consumer_groups) == (8, 2)
    run_threads(func, SM90, arrays)
    return func


GROUPS = {"uneven": [70, 0, 130, 1, 0, 17], "empty ends": [0, 0, 64, 65, 0], "one": [100]}


@pytest.mark.parametrize(
    "plan, blocks, k, sizes",
    pairwise([PING_PONG, DIRECT], [1, 2, 3], [16, 72, 200], [*GROUPS]),
)
def test_groups_by_two_teams(plan: Plan, blocks: int, k: int, sizes: str, rng: Rng) -> None:
    """1 to 7 slots of the ring for each tile, tiles of no group at the end."""
    offsets = np.concatenate([[0], np.cumsum(GROUPS[sizes])]).astype(np.int32)
    a, b = half(rng, int(offsets[-1]), k), half(rng, len(GROUPS[sizes]), 72, k)
    spans = zip(offsets, offsets[1:])
    parts = [a[s:e].astype(float) @ b[g].T.astype(float) for g, (s, e) in enumerate(spans)]
    arrays = {"A": a, "B": b, "offsets": offsets, "C": blank(len(a), 72)}
    by_teams(grouped(True), plan, arrays, blocks=blocks)
    close(arrays["C"], np.concatenate(parts))


@pytest.mark.covering(2)
@STORES
@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("stages", [2, 3])
def test_jobs_that_begin_where_the_last_one_ended(
    plan: Plan, blocks: int, stages: int, rng: Rng
) -> None:
    lengths = np.array([3, 1, 0, 2, 5, 0, 0, 1, 4], np.int32)
    a, b = half(rng, 64, 32 * 17), half(rng, 64, 32 * 17)
    want = np.zeros((len(lengths), 64, 64))
    for block in range(blocks):
        start = 0
        for job in range(block, len(lengths), blocks):
            part = slice(32 * start, 32 * (start + lengths[job]))
            want[job] = a[:, part].astype(float) @ b[:, part].T.astype(float) + start
            start += int(lengths[job])
    arrays = {"A": a, "B": b, "lengths": lengths, "C": blank(len(lengths), 64, 64)}
    by_teams(consumer_group_programs.ragged_lengths, plan, arrays, blocks=blocks, step=stages)
    close(arrays["C"], want)


@pytest.mark.parametrize("plan, blocks, every", pairwise([PING_PONG, DIRECT], [1, 2, 3], [2, 3, 9]))
def test_products_for_some_tiles(plan: Plan, blocks: int, every: int, rng: Rng) -> None:
    """Tiles without a product, with one and with two; rings of different lengths."""
    m, n, k = 200, 136, 104
    a, b = half(rng, m, k), half(rng, n, k)
    want = a.astype(float) @ b.T.astype(float)
    for y, x in np.ndindex(-(-m // 64), -(-n // 64)):
        tile = want[64 * y : 64 * y + 64, 64 * x : 64 * x + 64]
        tile[...] = 1.0 if (x + y) % every == 0 else tile * (2 - x % 2)
    arrays = {"A": a, "B": b, "C": blank(m, n)}
    func = by_teams(consumer_group_programs.some_tiles, plan, arrays, blocks=blocks, every=every)
    close(arrays["C"], want)
    kinds = [type(o) for o in walk(func.body)]
    assert kinds.count(OrderedWait) >= 2 <= kinds.count(OrderedArrive) - 1


@pytest.mark.covering(1)
@STORES
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_count_of_the_jobs_that_have_work(plan: Plan, blocks: int, rng: Rng) -> None:
    """What is handed on is made beside a product, under its condition; a ring in a loop."""
    lengths = np.array([2, 0, 1, 0, 0, 4, 3, 0, 1, 1], np.int32)
    a, b = half(rng, 64, 128), half(rng, 3, 64, 128)
    bias = rng.standard_normal(64).astype(np.float32)
    want, ends = np.zeros((len(lengths), 64, 64)), np.zeros(len(lengths), np.int32)
    places = list(range(blocks))
    for job, length in enumerate(lengths):
        ends[job] = at = places[job % blocks]
        if length:
            part = b[:, :, : 32 * length].astype(float).sum(0)
            want[at] = a[:, : 32 * length].astype(float) @ part.T + bias
            places[job % blocks] += blocks
    c = aligned(np.zeros(want.shape, np.float32))
    arrays = {"A": a, "B": b, "bias": bias, "lengths": lengths, "C": c}
    arrays["Ends"] = np.full(len(lengths), -1, np.int32)
    by_teams(consumer_group_programs.compacted, plan, arrays, blocks=blocks)
    close(arrays["C"], want)
    assert (arrays["Ends"] == ends).all()


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ("carried_fragment", "acc hands on what one block leaves in it to the next"),
        ("last_wins", "this writes the same place for every block"),
        ("after_the_loop", "this acts outside of its loop over blocks"),
        ("reads_its_output", "this reads C, which its blocks write"),
    ],
)
def test_what_teams_cannot_share(kernel: str, why: str, rng: Rng) -> None:
    arrays = {
        "A": half(rng, 128, 64),
        "B": half(rng, 64, 64),
        "C": blank(128, 64, dtype=np.float32),
    }
    func = tile_func(getattr(consumer_group_programs, kernel), arrays)
    with pytest.raises(ResourceError, match=why):
        run_plan(func, SM90, DIRECT)
    run_plan(func, SM90, Plan("alone", specialise=True))


def grouped_specs(m: int, n: int, k: int, g: int) -> list[object]:
    shapes = (m, k), (g, n, k), (g + 1,), (m, n)
    return [tilec.spec(s, "int32" if len(s) == 1 else "float16") for s in shapes]


@pytest.mark.parametrize("tile", [(128, 128), (64, 256)])
@STORES
def test_groups_compile_cleanly(plan: Plan, tile: tuple[int, int]) -> None:
    made = tilec.kernel(grouped(True)).compile_with_plan(
        plan,
        *grouped_specs(4096, 4096, 4096, 8),
        target=str(SM90),
        BM=tile[0],
        BN=tile[1],
        BK=64,
    )
    ptxas = find_ptxas()
    if ptxas is not None:
        assert made.resources.spilled_bytes == 0
        assert run_ptxas(ptxas, made.asm, SM90.arch).advisories == ()


def test_teams_are_recommended_for_groups() -> None:
    kernel, specs = benchmarks.kernels.grouped("float16"), grouped_specs(8192, 4096, 4096, 8)
    found = tilec.recommend(kernel, *specs, target=str(SM90), BM=128, BN=128, BK=64)
    able = [r.plan for r in found if r.estimate is not None and r.plan is not None]
    assert able[0].consumer_groups == 2 and {plan.consumer_groups for plan in able} == {1, 2}
