"""Rings that TMA fills and threads read: a slot is freed behind a proxy fence of every thread that
read it, and only there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from form_help import SM90, tile_func
from ring_programs import PROGRAMS, RingProgram

import tilec
from tilec import passes
from tilec.codegen import assemble, emit
from tilec.ir.core import Func, walk
from tilec.ir.errors import ResourceError
from tilec.ir.ops import (
    Copy,
    Gemm,
    Load,
    MbarrierArrive,
    ProxyFence,
    RingStage,
    TmaLoad,
    WarpSync,
)
from tilec.ir.schedule import Plan
from tilec.passes import insert_sync, run_plan
from tilec.passes.utils.plans import with_plan
from tilec.target import Target
from tilec.tune import fit
from tilec.tune.plans import plans

Change = Callable[[Func], Func]

EACH = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
READ_BY_THREADS = re.compile(
    r"(?:ld\.shared|ldmatrix\.)(?:(?!fence\.proxy\.async).)*?mbarrier\.arrive\.shared::c", re.S
)


def specialised(p: RingProgram, stages: int) -> list[tuple[Plan, Func]]:
    """The function after `insert_sync` under every plan with producer warps that fits."""
    arrays, _ = p.arrays((2, 2), 4)
    func = tile_func(p.kernel.function, arrays)
    normal = passes.apply(passes.NORMALISE, func, SM90, None)
    each = (*passes.DECIDE, *passes.EXPAND)
    some = each[: 1 + [one for one, _ in each].index(insert_sync)]
    found = []
    for plan in plans(func, SM90):
        try:
            done = passes.apply(some, with_plan(normal, replace(plan, stages=stages)), SM90, None)
        except ResourceError:
            continue
        if any(isinstance(o, TmaLoad) for o in walk(done.body)):
            found.append((plan, done))
    assert found
    return found


@pytest.mark.covering(1)
@EACH
@pytest.mark.parametrize("stages", [2, 3])
def test_lanes_fence_what_they_read_before_one_frees_it(program: RingProgram, stages: int) -> None:
    for plan, func in specialised(program, stages):
        stages = {o.result for o in walk(func.body) if isinstance(o, RingStage)}
        read, freed, fences = 0, 0, 0
        for o in walk(func.body):
            match o:
                case Load() if o.source in stages:
                    read += 1
                case Copy() if o.source.buffer in stages:
                    read += 1
                case Gemm() if not o.instr.startswith("wgmma"):
                    read += o.a.buffer in stages or o.b.buffer in stages
                case ProxyFence():
                    read, fences = 0, fences + 1
                case WarpSync() | MbarrierArrive():
                    assert not read, f"{plan.name}: {o.opname} without a fence after the reads"
                    freed += isinstance(o, MbarrierArrive)
        assert freed, plan.name
        assert fences == (program.reader != "wgmma"), plan.name


@EACH
def test_the_text_has_the_fence(program: RingProgram) -> None:
    arrays, _ = program.arrays((2, 2), 4)
    func = tile_func(program.kernel.function, arrays)
    plan = Plan("ring", specialise=True, stages=3)
    text = assemble(emit(run_plan(func, SM90, plan), SM90), SM90).asm
    assert "cp.async.bulk.tensor" in text
    assert not READ_BY_THREADS.search(text)
    assert text.count("fence.proxy.async.shared::cta") == (program.reader != "wgmma")


def simulated(
    program: RingProgram, plan: Plan, change: Change, mp: pytest.MonkeyPatch
) -> list[str]:
    """The kinds of findings of 8 iterations (4 of joined ones) under the plan, after `insert_sync`
    gone through `change`; the numbers are right in any case, for there nobody is overtaken."""

    def sync(func: Func, target: Target) -> Func:
        return change(insert_sync(func, target))

    def only(
        func: Func, target: Target, on_stage: Any, _: Any, on_plan: Any, accept: Any, *more: Any
    ) -> Func:
        done = run_plan(func, target, plan, on_stage)
        accept(plan, done)
        on_plan(plan, None)
        return done

    expand = tuple((sync if f is insert_sync else f, c) for f, c in passes.EXPAND)
    mp.setattr(passes, "EXPAND", expand)
    mp.setattr(fit, "first_fit", only)
    mp.setenv("TILEC_DISABLE_CACHE", "1")
    arrays, want = program.arrays((2, 1), 8)
    report = tilec.simulate(tilec.kernel(program.kernel.function), **arrays)
    np.testing.assert_array_equal(arrays["C"], want)
    return [f.kind for f in report.findings]


def without_fences(func: Func) -> Func:
    return func.rewrite(ProxyFence, lambda o: [])


PLANS = (
    Plan("direct", specialise=True, stages=2),
    Plan("clusters", specialise=True, persistent=True, cluster=(1, 2, 1), stages=3),
)


@pytest.mark.covering(1)
@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.name)
@EACH
def test_the_simulator_knows_why(
    program: RingProgram, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plan.cluster != (1, 1, 1) and program.kernel.parameters[1].name == "C":
        pytest.skip("nothing is the same for the blocks of a cluster")
    assert simulated(program, plan, lambda f: f, monkeypatch) == []
    monkeypatch.undo()
    found = simulated(program, plan, without_fences, monkeypatch)
    assert set(found) == ({"missing proxy fence"} if program.reader != "wgmma" else set())
