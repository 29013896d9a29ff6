"""What the passes that expand a schedule leave behind: scopes, rings, addresses, barriers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from race_check import Race
from test_lowering import matmul_text
from test_user_programs import arrays_of, compare, tile_func
from thread_interp import run_threads
from user_programs import CASES

from tilec.ir.core import Block, Func, Op, walk
from tilec.ir.errors import ResourceError
from tilec.ir.ops import (
    Alloc,
    Barrier,
    Compare,
    Copy,
    CpAsyncCommit,
    CpAsyncWait,
    For,
    If,
    MbarrierArrive,
    MbarrierExpect,
    MbarrierInit,
    MbarrierWait,
    ProxyFence,
    RingStage,
    Scope,
    TmaLoad,
    TmaStore,
    TmaStoreWait,
    WgmmaWait,
)
from tilec.ir.parser import parse_func
from tilec.ir.schedule import Plan
from tilec.passes import DECIDE, EXPAND, NORMALISE, run_plan
from tilec.passes.utils.plans import with_plan
from tilec.target import Target, find_target
from tilec.tune.fit import first_fit
from tilec.tune.plans import plans

SM90, SM80, GFX942 = (find_target(n) for n in ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942"))

PLAIN = Plan("plain")


def until(func: Func, target: Target, last: str, plan: int | Plan = 0, stages: int = 0) -> Func:
    """The function after the pass called `last`; `stages`: those of the plan, if not its own."""
    for apply, _ in NORMALISE:
        func = apply(func, target)
    chosen = plan if isinstance(plan, Plan) else plans(func, target)[plan]
    if stages:
        chosen = replace(chosen, stages=stages)
    func = with_plan(func, chosen)
    for apply, _ in (*DECIDE, *EXPAND):
        func = apply(func, target)
        if apply.__name__ == last:
            return func
    raise AssertionError(last)


def found(root: Func | Op | Block, cls: type[Op]) -> list:
    if isinstance(root, Func):
        root = root.body
    blocks = (root,) if isinstance(root, Block) else root.regions
    return [o for b in blocks for o in walk(b) if isinstance(o, cls)]


def traced(name: str) -> Func:
    return tile_func(CASES[name], arrays_of(name))


# --- expand_scopes ------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_scopes_of_a_product(stages: int) -> None:
    text = matmul_text(128, 128, 64, stages, 256, 0, 0)
    func = until(parse_func(text), SM90, "expand_scopes", stages=stages)
    consumer, producer = found(func, Scope)
    assert (consumer.name, consumer.first_warp, consumer.warps) == ("consumer", 0, 8)
    assert (producer.name, producer.first_warp) == ("producer", 8)
    assert func.attrs["launch_threads"] == 32 * (8 + producer.warps)
    # One ring for both operands: they are read by the same product.
    (expect,) = found(producer, MbarrierExpect)
    assert expect.bytes == (128 * 64 + 64 * 128) * 2
    moved = sum(int(np.prod(o.map.type.box)) * 2 for o in found(producer, TmaLoad))
    assert moved == expect.bytes
    full, empty = found(func, MbarrierInit)
    assert (full.count, empty.count) == (1, 2), "two warpgroups free a slot"
    assert full.barrier.buffer.size == stages
    assert [len(found(s, MbarrierWait)) for s in (consumer, producer)] == [1, 1]
    assert not found(consumer, TmaLoad)
    shared = [o for o in func.body.ops if isinstance(o, Alloc) and o.type.space == "shared"]
    assert {o.type.stages for o in shared if "staging" not in o.result.name} == {stages}


def test_a_product_stays_in_flight_only_if_nothing_else_touches_it() -> None:
    free = until(parse_func(matmul_text(128, 128, 64, 4, 256, 0, 0)), SM90, "expand_scopes")
    (loop,) = [o for o in found(found(free, Scope)[0], For) if o.kind == "pipelined"]
    assert [o.pending for o in found(loop, WgmmaWait)] == [1]
    bound = until(traced("product_scaled_accumulator"), SM90, "lower_gemm")
    loops = [o for o in found(found(bound, Scope)[0], For) if o.kind == "pipelined"]
    assert [o.pending for loop in loops for o in found(loop, WgmmaWait)] == [0]


def test_every_slot_taken_is_given_back() -> None:
    """As many arrivals as waits in each loop of the consumers, warp by warp where warps read."""
    func = until(traced("dequantised_product"), SM90, "expand_scopes")
    consumer = found(func, Scope)[0]
    waits, arrivals = found(consumer, MbarrierWait), found(consumer, MbarrierArrive)
    assert {o.barrier.name.split("_")[0] for o in waits} == {
        o.barrier.name.split("_")[0] for o in arrivals
    }
    for init in found(func, MbarrierInit):
        if init.barrier.name.endswith("_empty"):
            assert init.count in (1, 4), "a warpgroup, or each warp"


def test_no_producer_where_nothing_runs_ahead() -> None:
    for name in ("stencil_halo", "product_while", "product_parallel_fill"):
        func = until(traced(name), SM90, "expand_scopes")
        assert not found(func, Scope)
        assert func.attrs["launch_threads"] == func.attrs["threads"]
    steps = "  %steps = binary.floordiv %k2, %bk"
    left = (
        "  %count = alloc shared<1xi32>\n  store %count[%zero], %all\n  %steps = load %count[%zero]"
    )
    text = matmul_text(64, 64, 32, 3, 128, 0, 0)
    text = text.replace(steps, f"{steps.replace('%steps', '%all')}\n{left}")
    func = run_plan(parse_func(text), SM90, Plan("p", specialise=True))
    assert not found(func, Scope), "producers cannot read how often threads go round"
    assert len(found(func, CpAsyncCommit)) == 3


def test_stores_that_are_seen_again_do_not_leave_through_tma() -> None:
    """TMA's stores arrive at any time until the kernel ends."""
    leaves = first_fit(traced("product_of_each_step"), SM90)
    assert found(leaves, TmaStore)
    assert all(o.read for o in found(leaves, TmaStoreWait)), "the launch's end waits for the rest"
    assert not found(first_fit(traced("product_read_again"), SM90), TmaStore)
    text = matmul_text(64, 64, 32, 2, 128, 0, 0)
    assert found(first_fit(parse_func(text), SM90), TmaStore)
    store = "  copy %acc[%zero, %zero], (64, 64), %C[%row, %col], (64, 64)"
    again = text.replace(
        store, "  for.serial %zero, %steps, %one body(%q: i32) {\n  " + store + "\n  yield\n  }"
    )
    assert not found(first_fit(parse_func(again), SM90), TmaStore), "the same place twice"
    copy = store.replace("%col", "%first")
    for times, leaves_by_tma in ((64, False), (128, True)):  # beside the next iteration's, or on it
        each = (
            f"  for.serial %zero, %steps, %one body(%q: i32) {{\n  %wide = const {times}, i32\n"
            "  %first = binary.mul %q, %wide\n  %second = binary.add %first, %bn\n"
            f"{copy}\n{copy.replace('%first', '%second')}\n  yield\n  }}"
        )
        func = first_fit(parse_func(text.replace(store, each)), SM90)
        assert bool(found(func, TmaStore)) == leaves_by_tma, "its next iteration's second place"


def test_what_follows_the_last_loop_lies_where_its_ring_was() -> None:
    """Only where a block runs once: over several blocks, the ring is in use all the time."""
    text = matmul_text(64, 64, 32, 3, 128, 0, 1)
    ring, staging, barriers = 3 * (64 + 64) * 32 * 2, 64 * 64 * 2, 2 * 3 * 8
    for persistent, size in ((False, ring + barriers), (True, ring + staging + barriers)):
        plan = Plan("p", specialise=True, persistent=persistent, staged_store=True)
        func = run_plan(parse_func(text), SM90, plan)
        assert func.attrs["shared_bytes"] == size
        rng = np.random.default_rng(5)
        a, b = (rng.standard_normal((136, 72)).astype(np.float16) for _ in range(2))
        c = np.full((136, 136), np.nan, np.float16)
        run_threads(func, SM90, {"A": a, "B": b, "C": c}, launched=2)
        np.testing.assert_allclose(
            c, a.astype(np.float64) @ b.T.astype(np.float64), rtol=2e-2, atol=2e-2
        )


# --- expand_pipeline ----------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_copies_in_flight(stages: int) -> None:
    text = matmul_text(64, 64, 32, stages, 128, 0, 0)
    func = until(parse_func(text), SM80, "expand_pipeline", stages=stages)
    (loop,) = [o for o in found(func, For) if o.kind == "pipelined"]
    assert [o.pending for o in found(loop, CpAsyncWait)] == [stages - 2]
    assert len(found(loop, CpAsyncCommit)) == 1
    assert len(found(func, CpAsyncCommit)) == stages, "the prologue starts all but one"
    assert len(found(loop, Barrier)) == 1 and not found(loop, ProxyFence)
    assert [o.pending for o in found(func, CpAsyncWait)] == [stages - 2], "none behind the loop"
    plain = until(parse_func(text), SM90, "expand_pipeline", PLAIN)
    assert found(plain, ProxyFence), "wgmma reads what threads have written"


def test_variables_do_not_hide_a_copy() -> None:
    func = until(traced("product_offsets_in_variables"), SM80, "expand_pipeline")
    copies = [o for o in found(func, Copy) if o.dest.buffer.buffer.space == "shared"]
    assert {o.engine for o in copies} == {"cp_async"}
    assert len(found(func, TmaLoad)) == 0
    func = first_fit(traced("product_offsets_in_variables"), SM90)
    assert len(found(func, TmaLoad)) == 2


def test_tiles_through_registers() -> None:
    text = matmul_text(64, 64, 32, 3, 256, 0, 0)
    for plan, stages, barriers in ((0, 2, 1), (1, 1, 2)):
        func = until(parse_func(text), GFX942, "expand_pipeline", plan)
        (loop,) = [o for o in found(func, For) if o.kind == "pipelined"]
        rings = {o.root for o in found(func, RingStage)}
        assert {v.buffer.stages for v in rings} == {stages}
        assert len(found(loop, Barrier)) == barriers
        assert len(found(loop, If)) == 2, "load and store of the next tile, if there is one"


# --- plan_shared --------------------------------------------------------------------------------


def places(func: Func) -> dict[str, tuple[int, int]]:
    return {
        o.result.name: (o.address, o.address + o.type.stage_bytes * o.type.stages)
        for o in walk(func.body)
        if isinstance(o, Alloc) and o.type.space in ("shared", "barrier")
    }


TWO_TILES = """
kernel @two {threads=64} (
  %A: global<64 x 64 x f32, strides=[64, 1]> = tensor A,
  %B: global<64 x 64 x f32, strides=[64, 1]> = tensor B,
)
grid {
  %one = const 1, i32
  yield [%one]
}
body {
  %z = const 0, i32
  %first = alloc shared<64x64xf32>
  %second = alloc shared<64x64xf32>
  copy %A[%z, %z], (64, 64), %first[%z, %z], (64, 64)
  copy %first[%z, %z], (64, 64), %B[%z, %z], (64, 64)
  copy %B[%z, %z], (64, 64), %second[%z, %z], (64, 64)
  copy %second[%z, %z], (64, 64), %A[%z, %z], (64, 64)
}
"""


def test_buffers_that_never_meet_share_bytes() -> None:
    func = until(parse_func(TWO_TILES), SM80, "plan_shared")
    assert places(func) == {"first": (0, 16384), "second": (0, 16384)}
    assert func.attrs["shared_bytes"] == 16384
    done = first_fit(parse_func(TWO_TILES), SM80)
    assert len(found(done, Barrier)) == 3, "written, read, written, read"


def test_a_loop_keeps_what_it_takes_from_outside() -> None:
    """`a` is last read before the loop's other buffers are filled, but again in every iteration."""
    for target in (SM80, GFX942):
        where = places(until(traced("chained_in_registers"), target, "plan_shared"))
        low, high = where.pop("a")
        for name, (start, end) in where.items():
            assert end <= low or high <= start, name


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_places_are_aligned_and_apart(target: Target) -> None:
    for name in ("dequantised_product", "product_epilogue", "running_sum"):
        func = until(traced(name), target, "plan_shared")
        allocs = [o for o in walk(func.body) if isinstance(o, Alloc) and o.address >= 0]
        for o in allocs:
            assert o.address % o.type.alignment_bytes == 0
        rings = [o for o in allocs if o.type.stages > 1 or o.type.space == "barrier"]
        for r in rings:
            low, high = places(func)[r.result.name]
            for other, (start, end) in places(func).items():
                assert other == r.result.name or end <= low or high <= start


@pytest.mark.parametrize(("target", "stages"), [(SM90, 4), (SM80, 3)], ids=str)
def test_too_much_shared_memory(target: Target, stages: int) -> None:
    text = matmul_text(256, 128, 64, 12, 256, 0, 0)
    with pytest.raises(ResourceError) as caught:
        first_fit(parse_func(text), target)
    message = str(caught.value)
    need = 12 * (256 * 64 + 64 * 128) * 2
    assert f"{target.shared_bytes:,}" in message and str(target) in message
    assert "393,216 B  As shared (256, 64) float16 x 12 stages" in message
    named = int(message.split(" needs ")[1].split()[0].replace(",", ""))
    assert need <= named < need + 20_000, "the rings, a staged store, barriers"
    assert f"num_stages={stages} fits" in message
    fits = matmul_text(256, 128, 64, stages, 256, 0, 0)
    assert first_fit(parse_func(fits), target).attrs["shared_bytes"] <= target.shared_bytes
    tight = matmul_text(256, 128, 64, stages + 1, 256, 0, 0)
    with pytest.raises(ResourceError):
        first_fit(parse_func(tight), target)


# --- insert_sync --------------------------------------------------------------------------------

NEEDED = (
    "transpose_padded",
    "stencil_halo",
    "row_sums_serial",
    "shared_ping_pong",
    "while_on_shared",
    "threads_in_a_loop",
    "chained_through_shared",
    "product_while",
    "product_epilogue",
)
NOT_NEEDED = (
    "reverse_vector",
    "gather_rows",
    "window_sum",
    "broadcast_rows_and_columns",
    "local_sort",
    "cast_f32_i8",
)


def without(func: Func, number: int) -> Func:
    """`func` without barrier `number`, in textual order."""
    gone = found(func, Barrier)[number]
    return func.rewrite(Op, lambda o: [] if o is gone else None)


@pytest.mark.parametrize("name", NEEDED)
def test_every_barrier_is_needed(name: str) -> None:
    func = traced(name)
    done = run_plan(func, SM80, plans(func, SM80)[0])
    barriers = len(found(done, Barrier))
    assert barriers > 0
    arrays = arrays_of(name)
    want = CASES[name].want({k: v.copy() for k, v in arrays.items()})
    run_threads(done, SM80, arrays)
    compare(CASES[name], arrays, want)
    # what is exchanged over a loop needs its barrier when the loop does not run
    no_sum = {"A": np.zeros((64, 0), np.float16), "B": np.zeros((0, 64), np.float16)}
    for number in range(barriers):
        with pytest.raises(Race):
            run_threads(without(done, number), SM80, arrays_of(name))
            run_threads(without(done, number), SM80, {**arrays_of(name), **no_sum})


@pytest.mark.parametrize("name", NOT_NEEDED)
@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_no_barrier_where_nothing_is_exchanged(name: str, target: Target) -> None:
    assert not found(first_fit(traced(name), target), Barrier)


@pytest.mark.parametrize("threads, barriers", [(128, 1), (256, 2)])
def test_one_warpgroup_waits_for_its_product_as_one(threads: int, barriers: int) -> None:
    """Its threads may overwrite the operands without a barrier; those of two warpgroups may not."""
    func = parse_func(matmul_text(128, 64, 32, 1, threads, 0, 0))
    done = run_plan(func, SM90, PLAIN)
    (loop,) = [o for o in found(done, For) if o.kind == "serial"]
    assert len(found(loop, Barrier)) == barriers
    rng = np.random.default_rng(6)
    a = rng.standard_normal((130, 100)).astype(np.float16)
    b = rng.standard_normal((100, 70)).astype(np.float16)
    want = a.astype(np.float64) @ b.astype(np.float64)
    c = np.full((130, 70), np.nan, np.float16)
    run_threads(done, SM90, {"A": a, "B": b, "C": c})
    np.testing.assert_allclose(c, want, rtol=2e-2, atol=2e-2)
    for number in range(barriers):
        with pytest.raises(Race):
            run_threads(without(done, number), SM90, {"A": a, "B": b, "C": c})


def test_fences_are_needed() -> None:
    """Without the proxy fence, wgmma may read the tile as it was before the threads wrote it."""
    name = "product_parallel_fill"
    func = traced(name)
    done = run_plan(func, SM90, plans(func, SM90)[0])
    assert found(done, ProxyFence)
    bare = done.rewrite(ProxyFence, lambda o: [])
    with pytest.raises(Race, match="proxy fence"):
        run_threads(bare, SM90, arrays_of(name))


# --- block_order --------------------------------------------------------------------------------

COUNT_VISITS = """
kernel @count {{threads=64}} (
  %C: global<M x N x i32, strides=[C_stride0, 1]> = tensor C,
  %M: i32 = size C 0, %N: i32 = size C 1, %C_stride0: i64 = stride C 0,
)
grid {{
  yield [%N, %M]
}}
body {{
  %x = block_index 0
  %y = block_index 1
  {swizzle}
  %one = const 1, i32
  parallel (1) body(%i: i32) {{
    %old = load %C[%y, %x]
    %new = binary.add %old, %one
    store %C[%y, %x], %new
  }}
}}
"""


@pytest.mark.parametrize("swizzle", ["", "use_swizzle 3, order=row", "use_swizzle 2, order=column"])
@pytest.mark.parametrize(("target", "plan"), [(SM90, 0), (SM90, PLAIN), (SM80, 0), (GFX942, 0)])
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (6, 4)])
def test_every_block_once(
    swizzle: str, target: Target, plan: int | Plan, shape: tuple[int, int]
) -> None:
    text = COUNT_VISITS.format(swizzle=swizzle)
    func = parse_func(text)
    chosen = plan if isinstance(plan, Plan) else plans(func, target)[plan]
    done = run_plan(func, target, chosen)
    assert not [o for o in found(done, Compare) if o.kind == "ge"], "no block is below 0"
    c = np.zeros(shape, np.int32)
    run_threads(done, target, {"C": c}, launched=4)
    assert (c == 1).all()
