"""The passes that decide, on programs of every kind: an IR fact and a number in each test.

The reference interpreter does not look at layouts or copy engines, so it runs a function after any
of these passes and must give what it gave before."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_help import ops
from interp import run_tile
from programs import PROGRAMS

from tilec.ir.core import Func, walk
from tilec.ir.fold import fold
from tilec.ir.ops import (
    Alloc,
    Binary,
    BlockIndex,
    Copy,
    For,
    Gemm,
    GridSize,
    Parallel,
    Select,
    UseSwizzle,
    constants,
)
from tilec.ir.parser import parse_func
from tilec.ir.schedule import Plan
from tilec.passes.block_order import block_order
from tilec.passes.infer_layouts import infer_layouts
from tilec.passes.mem2reg import mem2reg
from tilec.passes.plan_pipeline import plan_pipeline
from tilec.passes.recognise_idioms import recognise_idioms
from tilec.passes.select_copies import select_copies
from tilec.passes.select_gemm import by_policy, partitions, select_gemm
from tilec.passes.simplify import simplify
from tilec.passes.utils.plans import with_plan
from tilec.target import find_target

SM90, SM80, GFX942 = (find_target(n) for n in ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942"))


def same_results(name: str, before: Func, after: Func, grid: tuple[int, ...] | None = None) -> None:
    make = PROGRAMS[name][1]
    want, got = make(np.random.default_rng(7)), make(np.random.default_rng(7))
    run_tile(before, want)
    run_tile(after, got, grid)
    for key, value in want.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(got[key], value, err_msg=key)


@pytest.mark.parametrize("name", ["matmul"])
@pytest.mark.parametrize("launched", [1, 3, 100])
def test_persistent_blocks_cover_the_grid(name, launched):
    func = parse_func(PROGRAMS[name][0])
    done = block_order(with_plan(func, Plan("p", persistent=True, raster_group=2)), SM90)
    (loop,) = [o for o in done.body.ops if isinstance(o, For)]
    assert loop.kind == "persistent"
    assert not any(isinstance(o, BlockIndex) for o in walk(loop.body))
    same_results(name, func, done, (launched,))


@pytest.mark.parametrize("order", ["row", "column"])
@pytest.mark.parametrize("raster_group", [1, 2, 3, 10])
@pytest.mark.parametrize("name", ["transpose", "stencil"])
def test_swizzled_blocks_cover_the_grid(name, raster_group, order):
    text = PROGRAMS[name][0]
    func = parse_func(text)
    head, _, tail = text.partition("body {\n")
    swizzled = parse_func(f'{head}body {{\n  use_swizzle {raster_group}, order="{order}"\n{tail}')
    done = block_order(swizzled, SM80)
    assert not any(isinstance(o, UseSwizzle) for o in walk(done.body))
    same_results(name, func, done)


@pytest.mark.parametrize("raster_group", [2, 3, 4, 8, 16, 17, 100])
def test_rasterisation_groups_cover_the_grid(raster_group):
    """Without a loop over tiles, and without a division but by the group: the reciprocals of the
    widths that are left over are looked up where they are few."""
    func = parse_func(PROGRAMS["matmul"][0])
    done = block_order(with_plan(func, Plan("p", raster_group=raster_group)), SM80)
    few = raster_group <= 16
    assert len(ops(done, BlockIndex)) == 2
    assert len(ops(done, Select)) == (raster_group - 1 if few else 0)
    numbers = constants(done.body)
    divided = [o for o in ops(done, Binary) if "div" in o.kind or o.kind == "mod"]
    divisors = {numbers.get(o.rhs) for o in divided if o.reciprocal is None}
    of_func = {numbers.get(o.rhs) for o in ops(func, Binary) if "div" in o.kind}
    assert divisors == of_func | {raster_group} | (set() if few else {None})
    same_results("matmul", func, done)


@pytest.mark.parametrize("rows", range(1, 18))
def test_blocks_that_begin_together_are_neighbours(rows):
    """256x4096x4096 has four rows of tiles, and took 22.0 us on an H200 row by row, 15.6 in
    groups: four blocks share each tile of B. 200x5120x5120 has three: 26.4 us as two and one,
    20.0 as three."""
    across, group = 5, 8
    func = parse_func(PROGRAMS["matmul"][0])
    done = block_order(with_plan(func, Plan("p", raster_group=group)), SM80)
    found = [place(done, bx, by, (across, rows)) for by in range(rows) for bx in range(across)]
    want = [
        (i, top + j)
        for top in range(0, rows, group)
        for i in range(across)
        for j in range(min(group, rows - top))
    ]
    assert found == want


def place(func: Func, bx: int, by: int, grid: tuple[int, int]) -> tuple[int, int]:
    """The indices that a launched block works on: what the first copy's offsets are made from."""
    numbers = dict(constants(func.body))
    for o in func.body.ops:
        match o:
            case BlockIndex(dim=d):
                numbers[o.result] = (bx, by)[d]
            case GridSize(dim=d):
                numbers[o.result] = grid[d]
            case _ if len(o.results) == 1 and (known := fold(o, numbers.get)) is not None:
                numbers[o.result] = known
    made = [o for o in func.body.ops if isinstance(o, Binary)]
    across, inside = (o.result for o in made if o.reciprocal is not None)
    (row,) = (o.result for o in made if o.rhs is inside)
    return int(numbers[across]), int(numbers[row])


def test_partitions_are_whole_atoms():
    assert partitions(8, 128, 256, 16, 8) == [(1, 8), (2, 4), (4, 2), (8, 1)]
    assert partitions(4, 16, 8, 16, 8) == [(1, 1)], "warps left over repeat the work"
    assert partitions(4, 20, 8, 16, 8) == []
    found = partitions(8, 128, 256, 16, 8)
    assert by_policy(found, "full_row", 128, 256) == (8, 1)
    assert by_policy(found, "full_col", 128, 256) == (1, 8)
    assert by_policy(found, "square", 128, 256) == (2, 4)


def decided(name: str, target) -> Func:
    func = parse_func(PROGRAMS[name][0])
    func = recognise_idioms(simplify(mem2reg(func, target), target), target)
    func = with_plan(func, Plan("p", specialise=True))
    for apply in (block_order, select_gemm, plan_pipeline, infer_layouts, select_copies):
        func = apply(func, target)
    return func


@pytest.mark.parametrize("name", sorted(PROGRAMS))
@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_decisions_change_no_number(name, target):
    func = parse_func(PROGRAMS[name][0])
    done = decided(name, target)
    for o in walk(done.body):
        if isinstance(o, Alloc) and o.type.space in ("fragment", "shared"):
            assert o.type.layout is not None
        if isinstance(o, Parallel):
            assert o.layout is not None
            assert all(a >= b for a, b in zip(o.layout.shape, o.extents))
            lanes, warps = o.layout.size("lane"), o.layout.size("warp")
            assert lanes == target.warp_size
            assert warps * lanes == done.attrs["threads"]
        if isinstance(o, Copy):
            assert o.engine
    if any(isinstance(o, Gemm) for o in walk(func.body)):
        assert any(
            "of simt" in r or "of m" in r or "of wg" in r for r in done.attrs["layout_reasons"]
        )
    same_results(name, func, done)


def test_only_whole_overwritten_buffers_run_ahead():
    func = parse_func(PROGRAMS["matmul"][0])
    done = plan_pipeline(func, SM80)
    copies = [o for o in walk(done.body) if isinstance(o, Copy)]
    assert [o.ahead for o in copies] == [True, True]
    assert {
        o.type.stages for o in walk(done.body) if isinstance(o, Alloc) and o.type.space == "shared"
    } == {2}, "nothing is known of the rows: they come through registers, which hold the third"
    partial = PROGRAMS["matmul"][0].replace(
        "copy %A[%row, %at], (16, 8), %As[%zero, %zero], (16, 8)",
        "copy %A[%row, %at], (8, 8), %As[%zero, %zero], (8, 8)",
    )
    done = plan_pipeline(parse_func(partial), SM80)
    ahead = {o.source.buffer.name: o.ahead for o in walk(done.body) if isinstance(o, Copy)}
    assert ahead == {"A": False, "B": True}, (
        "a tile that is only partly overwritten has one version"
    )


def test_a_loop_with_nothing_to_run_ahead_is_serial():
    text = PROGRAMS["matmul"][0].replace("num_stages=3", "num_stages=1")
    done = plan_pipeline(parse_func(text), SM90)
    (loop,) = [o for o in walk(done.body) if isinstance(o, For)]
    assert loop.kind == "serial"
