"""Rings that TMA fills, on an NVIDIA GPU of the Hopper generation: no slot is filled again while it
is read. Every schedule that the compiler can make, each launched many times, exact results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from form_help import SM90, tile_func  # noqa: E402
from place_programs import PLACES, Place  # noqa: E402
from ring_programs import PROGRAMS, RingProgram  # noqa: E402

from tilec.ir.errors import ResourceError  # noqa: E402
from tilec.ir.schedule import Plan  # noqa: E402
from tilec.tune.plans import plans  # noqa: E402

pytestmark = pytest.mark.gpu

RUNS = 200
TRIPS = 48


def schedules(program: RingProgram | Place, stages: int) -> list[Plan]:
    """The plans of the program, each with as many stages."""
    func = tile_func(program.kernel.function, program.arrays((2, 2), 4)[0])
    return [replace(p, stages=stages) for p in plans(func, SM90)]


def on_device(program: RingProgram | Place, trips: int = TRIPS) -> tuple[list[Any], Any]:
    """Arguments that fill a GPU, and what the last of them must be."""
    arrays, want = program.arrays(program.many, trips)
    return [torch.from_numpy(a).cuda() for a in arrays.values()], torch.from_numpy(want).cuda()


def wrong_runs(made: Any, given: list[Any], want: Any, runs: int = RUNS) -> tuple[int, list[Any]]:
    """How many of so many launches gave something else, and the first such differences: the sum of
    the numbers of the iterations whose tiles were taken for others."""
    bad = torch.zeros((), dtype=torch.int64, device="cuda")
    kept = want.clone()
    for _ in range(runs):
        given[-1].fill_(-1)
        made(*given)
        wrong = (given[-1] != want).any()
        bad += wrong
        kept = torch.where(wrong, given[-1], kept)
    away = (kept - want)[kept != want]
    return int(bad), away[:8].tolist()


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
@pytest.mark.parametrize("program", (*PROGRAMS, *PLACES), ids=lambda p: p.name)
def test_no_slot_is_filled_while_it_is_read(program: RingProgram | Place, stages: int) -> None:
    given, want = on_device(program)
    tried = 0
    for plan in schedules(program, stages):
        try:
            made = program.kernel.compile_with_plan(plan, *given)
        except ResourceError:
            continue
        tried += 1
        bad, away = wrong_runs(made, given, want)
        assert not bad, f"{plan.describe()}: {bad} of {RUNS} runs wrong, by {away}"
    assert tried


@pytest.mark.parametrize("trips", [0, 1, 2])
@pytest.mark.parametrize("program", (*PROGRAMS, *PLACES), ids=lambda p: p.name)
def test_few_iterations(program: RingProgram | Place, trips: int) -> None:
    given, want = on_device(program, trips)
    for plan in schedules(program, 3):
        try:
            made = program.kernel.compile_with_plan(plan, *given)
        except ResourceError:
            continue
        bad, away = wrong_runs(made, given, want, 5)
        assert not bad, f"{plan.describe()}: {bad} of 5 runs wrong, by {away}"
