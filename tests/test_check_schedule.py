"""check_schedule finds what is wrong with a schedule without a simulator: every schedule that the
passes make is accepted (each compilation of the suite asks), and of their mutants those that could
give a wrong number or hang are refused."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from form_help import SM80, SM90, tile_func
from mutant_families import product_kernel
from mutant_operators import change_at, said, sites, weaker
from place_programs import PLACES

import tilec
import tilec.language as T
from tilec.ir.core import Func, walk
from tilec.ir.errors import InternalError
from tilec.ir.ops import (
    Barrier,
    Copy,
    CpAsyncWait,
    Gemm,
    MbarrierArrive,
    MbarrierExpect,
    MbarrierWait,
    Scope,
    Store,
    TmaLoad,
    WgmmaWait,
)
from tilec.ir.schedule import Plan
from tilec.passes import run_plan
from tilec.passes.check_schedule import check_schedule
from tilec.target import Target

REMOVED = (
    MbarrierWait, MbarrierArrive, MbarrierExpect, TmaLoad, WgmmaWait, CpAsyncWait, Barrier,
)  # fmt: skip
CHANGED = (WgmmaWait, CpAsyncWait, MbarrierWait, MbarrierArrive, TmaLoad, MbarrierExpect, Store)
SCHEDULES = {
    "TMA": (SM90, Plan("p", specialise=True, stages=3)),
    "persistent": (SM90, Plan("p", specialise=True, persistent=True, stages=2)),
    "ping-pong": (SM90, Plan("p", specialise=True, persistent=True, consumer_groups=2, stages=3)),
    "cp.async": (SM80, Plan("p", stages=3)),
}


M, N = T.dynamic("M, N")
GROWING = {"growing": 1, "growing slowly": 64}


def growing(each: int) -> Any:
    """Sums with an iteration more for every `each` tiles: blocks take tiles as they come."""

    def growing_sums(
        A: T.Tensor((M, M), "float16"),
        B: T.Tensor((N, M), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 64), T.ceildiv(N, 64), threads=128) as (bx, by):
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(bx + 1, each), num_stages=2):
                T.copy(A[bx * 64, k * 64], a)
                T.copy(B[by * 64, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[bx * 64, by * 64])

    return growing_sums


@functools.cache
def scheduled(name: str, schedule: str) -> tuple[Func, Target]:
    target, plan = SCHEDULES[schedule]
    if name == "product":
        arrays = {"A": np.ones((128, 128), np.float16), "B": np.ones((128, 128), np.float16)}
        arrays["C"] = np.ones((128, 128), np.float32)
        func = tile_func(product_kernel().function, arrays)
    elif name in GROWING:
        arrays = {"A": np.ones((256, 256), np.float16), "B": np.ones((64, 256), np.float16)}
        arrays["C"] = np.ones((256, 64), np.float32)
        func = tile_func(growing(GROWING[name]), arrays)
    else:
        (place,) = (p for p in PLACES if p.name == name)
        func = tile_func(place.kernel.function, place.arrays((2, 1), 4)[0])
    kept: dict[str, Func] = {}
    run_plan(func, target, plan, kept.__setitem__)
    return kept["insert_sync"], target


def mutants(func: Func) -> Iterator[tuple[str, Func]]:
    """Without one op, or with a weaker one; the block's set-up is left alone, and so are guards,
    which say which thread acts."""
    places = sites(func)
    begins = -1
    if any(isinstance(o, Scope) for o in places):
        begins = next(i for i, o in enumerate(places) if isinstance(o, Barrier))
    for i, o in enumerate(places):
        if isinstance(o, REMOVED) and (i > begins or o.opname != "barrier"):
            yield f"no {said(o)}", change_at(func, i, lambda _: [])
        if isinstance(o, CHANGED):
            for operator, description, make in weaker(o):
                if operator != "guard removed":
                    yield f"{operator}: {description}", change_at(func, i, make)


# What changes nothing that can be wrong. A slot beside the right one is freed, or waited for, later
# than need be; the last release of a kernel that fills no slot again is one too many, and so is
# what orders the fills of a tile that is filled once; where the first copy of a prologue is made,
# the barrier in front of it serves the second.
LATER = ("slot off by one: mbarrier_arrive", "slot off by one: mbarrier_wait ring0_empty")
LAST = "no mbarrier_arrive ring0_empty"
ONCE = (
    "no mbarrier_wait ring0_empty",
    "parity stale: mbarrier_wait ring0_empty stage: always 1",
    "parity stale: mbarrier_wait ring0_full stage: always 0",
    "position not advanced: ring0_",
    "slot off by one: mbarrier_wait ring1_empty",
)
# Stages of long tiles do not let the producer come to the second number after one unread.
HELD_BACK = ("no mbarrier_arrive claims_empty", "no mbarrier_wait claims_empty")
CASES = [
    ("product", "TMA", (*LATER, LAST)),
    ("product", "persistent", ()),
    ("growing", "persistent", (*LATER, *HELD_BACK)),
    ("product", "ping-pong", (*LATER, LAST, "position not advanced: ring0_")),
    ("product", "cp.async", ()),
    ("before mixed", "TMA", (*LATER, LAST, *ONCE)),
    ("masked", "persistent", (*LATER, *HELD_BACK)),
    ("masked", "cp.async", ()),
    ("two loops", "TMA", LATER),
    ("two loops", "cp.async", ("no barrier",)),
    ("while", "TMA", ("position not advanced: ring0_stage",)),
]


@pytest.mark.parametrize(("name", "schedule", "harmless"), CASES)
def test_mutants_are_refused(name: str, schedule: str, harmless: tuple[str, ...]) -> None:
    func, target = scheduled(name, schedule)
    assert check_schedule(func, target) is func
    missed, found = [], 0
    for change, mutant in mutants(func):
        try:
            check_schedule(mutant, target)
            missed.append(change)
        except InternalError as error:
            assert "the schedule is wrong" in error.message
            found += 1
    left = [x for x in missed if not x.startswith(harmless)] if harmless else missed
    assert not left
    assert found >= (3 if schedule == "cp.async" else 24)
    assert not any("wgmma_wait" in x or "cp_async_wait" in x or "_full" in x for x in left)


def test_numbers_of_tiles_are_handed_on_in_order() -> None:
    func, target = scheduled("growing slowly", "persistent")
    assert check_schedule(func, target) is func
    found = [(change, mutant) for change, mutant in mutants(func) if "claims" in change]
    assert len(found) >= 12
    for change, mutant in found:
        if not (change.startswith("slot off by one") and "claims_empty" in change):  # as in LATER
            with pytest.raises(InternalError, match="the schedule is wrong"):
                check_schedule(mutant, target)


def test_a_use_in_flight_names_the_line() -> None:
    func, target = scheduled("two loops", "cp.async")
    waits = [i for i, o in enumerate(sites(func)) if isinstance(o, CpAsyncWait)]
    with pytest.raises(
        InternalError, match="reads stage . of a, whose copy may be under"
    ) as caught:
        check_schedule(change_at(func, waits[0], lambda _: []), target)
    gemm = next(o for o in walk(func.body) if isinstance(o, Gemm))
    assert caught.value.loc == gemm.loc


def test_what_tma_cannot_bring_after_all_does_not_run_ahead() -> None:
    """Producers were to bring the tile of a loop without stages, whose layout no box can fill: no
    thread brings it ahead of time into its one stage."""

    def one_stage(
        A: T.Tensor((M, 64), "float16"),
        B: T.Tensor((N, 64), "float16"),
        C: T.Tensor((M, 64), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
            a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            x = T.alloc_shared((64, 64), "float16")
            T.annotate_layout({x: T.Layout((64, 64), lambda i, j: i * 72 + j)})
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(N, 64), num_stages=1):
                T.copy(B[k * 64, 0], x)
                for i, j in T.Parallel(64, 64):
                    total[i, j] += x[i, j]
            for k in T.Pipelined(T.ceildiv(N, 64), num_stages=3):
                T.copy(A[bx * 64, 0], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, total, transpose_B=True)
            T.copy(total, C[bx * 64, 0])

    arrays = {"A": np.ones((128, 64), np.float16), "B": np.ones((256, 64), np.float16)}
    arrays["C"] = np.ones((128, 64), np.float32)
    kept: dict[str, Func] = {}
    plan = Plan("p", specialise=True, stages=3)
    run_plan(tile_func(one_stage, arrays), SM90, plan, kept.__setitem__)
    copies = [o for o in walk(kept["plan_pipeline"].body) if isinstance(o, Copy) and o.ahead]
    assert {o.dest.buffer.name for o in copies} >= {"a", "b", "x"}
    copies = [o for o in walk(kept["select_copies"].body) if isinstance(o, Copy)]
    assert {o.engine for o in copies if o.dest.buffer.name == "x"} == {"threads"}
    waits = [o for o in walk(kept["insert_sync"].body) if isinstance(o, CpAsyncWait)]
    assert all(o.pending >= 0 for o in waits)


def two_loops(
    A: T.Tensor((N, N), "float16"), B: T.Tensor((N, N), "float16"), C: T.Tensor((N, N), "float32")
):
    """A loop whose tiles come by cp.async under a condition, and one that brings the same buffers
    through registers, from any column."""
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(N, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(N, 32), num_stages=3):
            if k % 2 == 0:
                T.copy(A[by * 64, k * 32], a)
                T.copy(B[k * 32, bx * 64], b)
                T.gemm(a, b, acc)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[by * 64, k + 32], a)
            T.copy(B[k + 32, bx * 64], b)
            T.gemm(a, b, acc)
        T.copy(acc, C[by * 64, bx * 64])


@pytest.mark.usefixtures("unassembled")
def test_the_last_iterations_end_what_those_before_them_began(rng: np.random.Generator) -> None:
    """Of a loop's many iterations the first and last are executed: as many as copies are ahead,
    or one that has no copy to wait for ends with theirs under way."""
    a, b = (rng.standard_normal((72, 72)).astype(np.float16) for _ in range(2))
    c = np.full((72, 72), np.nan, np.float32)
    report = tilec.simulate(tilec.kernel(two_loops), a, b, c, target="cuda:sm_80")
    assert report.ok, report
    x, y = (np.pad(n.astype(np.float64), ((0, 32), (0, 32))) for n in (a, b))
    want = x[:72, :32] @ y[:32, :72] + x[:72, 64:96] @ y[64:96, :72]
    want += sum(x[:72, k : k + 32] @ y[k : k + 32, :72] for k in range(32, 36))
    assert np.abs(c - want).max() <= 1e-3 * np.abs(want).max()
