"""Rings that TMA fills and threads read: a slot is freed behind a proxy fence of every thread that
read it, and only there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from form_help import SM90, tile_func
from ring_programs import PROGRAMS, RingProgram

from tilec.codegen import assemble, emit
from tilec.ir.core import Func, walk
from tilec.ir.errors import ResourceError
from tilec.ir.ops import (
    Copy,
    Gemm,
    Load,
    MbarrierArrive,
    ProxyFence,
    TmaLoad,
    Version,
    WarpSync,
)
from tilec.ir.plan import Plan, plans
from tilec.passes import run_plan

EACH = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
READ_BY_THREADS = re.compile(
    r"(?:ld\.shared|ldmatrix\.)(?:(?!fence\.proxy\.async).)*?mbarrier\.arrive\.shared::c", re.S
)


def specialised(p: RingProgram, stages: int) -> list[tuple[Plan, Func]]:
    """The function after `insert_sync` under every plan with producer warps that fits."""
    arrays, _ = p.arrays((2, 2), 4)
    func = tile_func(p.kernel.function, arrays)
    found = []
    for plan in plans(func, SM90):
        kept: dict[str, Func] = {}
        try:
            run_plan(func, SM90, replace(plan, stages=stages), kept.__setitem__)
        except ResourceError:
            continue
        if any(isinstance(o, TmaLoad) for o in walk(kept["insert_sync"].body)):
            found.append((plan, kept["insert_sync"]))
    assert found
    return found


@EACH
@pytest.mark.parametrize("stages", [2, 3])
def test_lanes_fence_what_they_read_before_one_frees_it(program: RingProgram, stages: int) -> None:
    for plan, func in specialised(program, stages):
        versions = {o.result for o in walk(func.body) if isinstance(o, Version)}
        read, freed, fences = 0, 0, 0
        for o in walk(func.body):
            match o:
                case Load() if o.source in versions:
                    read += 1
                case Copy() if o.source in versions:
                    read += 1
                case Gemm() if not o.row.startswith("wgmma"):
                    read += o.a in versions or o.b in versions
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
