"""Programs as users write them, through the front end and all GPU passes: executed thread by thread
and compared with NumPy, then compiled, without spills and without local memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from frontend_help import fact
from meanings import meaningless
from thread_interp import run_threads
from user_programs import CASES, Arrays, Case

from tilec.codegen import assemble, emit_records
from tilec.frontend import Specialisation, TensorFact, bind_constants, read_signature, trace
from tilec.ir.core import Func
from tilec.ir.errors import ResourceError
from tilec.ir.schedule import Plan
from tilec.ir.verify import verify
from tilec.passes import run_plan
from tilec.target import Target, find_target
from tilec.tune.fit import first_fit
from tilec.tune.plans import plans

SM90, SM80, GFX942 = (find_target(n) for n in ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942"))
TARGETS = (SM90, SM80, GFX942)
OTHERS = {  # plans beside the first
    SM90: ("specialised persistent, direct stores", "plain", "ping-pong",
           "specialised, direct stores"),
    SM80: (),
    GFX942: ("plain, one buffer",),
}  # fmt: skip


def runs() -> Iterator[Any]:
    """Every program on every target, with the plans that it runs under beside the first that fits:
    plans differ in what they make of pipelined loops, and programs that have one take one of the
    others, in turn."""
    for number, (name, case) in enumerate(sorted(CASES.items())):
        for target in TARGETS:
            others: tuple[str, ...] = ()
            if "Pipelined" in case.function.__code__.co_names and OTHERS[target]:
                others = (OTHERS[target][number % len(OTHERS[target])],)
            # Casts, which differ by dtype, are compiled for one target after the other.
            compiled = not name.startswith("cast_") or target is TARGETS[number % 3]
            yield pytest.param(name, target, others, compiled, id=f"{name}-{target.arch}")


def alignment(a: np.ndarray) -> int:
    """What a launch would say of an array whose base is aligned to 16 bytes."""
    align = 16
    for step in a.strides:
        while abs(step) % align and step != a.itemsize:
            align //= 2
    return align


def tile_func(case: Case, arrays: Arrays) -> Func:
    signature = bind_constants(read_signature(case.function), case.options)
    facts = {}
    for p in signature.parameters:
        if p.kind == "tensor":
            a = arrays[p.name]
            known = fact(p.name, a, p.shape, signature.sizes)
            facts[p.name] = TensorFact(known.shape, known.dtype, known.strides, alignment(a))
    func = trace(signature, Specialisation(facts, {}, case.options, None, None, case.wide))
    verify(func, "TILE")
    return func


def arrays_of(name: str) -> Arrays:
    return CASES[name].make(np.random.default_rng(zlib.crc32(name.encode())))


def compare(case: Case, got: Arrays, want: Arrays) -> None:
    for key, value in want.items():
        mine, theirs = got[key].astype(np.float64), value.astype(np.float64)
        size = np.linalg.norm(theirs) or 1.0
        assert np.isfinite(mine).all(), f"{key} is not finite"
        error = np.linalg.norm(mine - theirs) / size
        if value.dtype.kind in "iub" and got[key].dtype.kind in "iub":
            np.testing.assert_array_equal(got[key], value, err_msg=key)
        assert error <= case.tolerance, f"{key}: {error}"


@pytest.mark.covering(1, axes=("name", "target"))
@pytest.mark.parametrize(("name", "target", "others", "compiled"), list(runs()))
def test_program(name: str, target: Target, others: tuple[str, ...], compiled: bool) -> None:
    """Usually each program on one target, and each target with a third of them: the simulator and
    the loops of few trips have each on another one."""
    case, arrays = CASES[name], arrays_of(name)
    want = case.want({k: v.copy() for k, v in arrays.items()})
    func = tile_func(case, arrays)
    tried: list[Plan] = []
    first = first_fit(func, target, on_plan=lambda plan, _: tried.append(plan))
    done = [first]
    for plan in next_of(plans(func, target), others, tried[-1].name):
        try:
            done.append(run_plan(func, target, plan))
        except ResourceError as error:
            assert plan.consumer_groups > 1 and "cannot run as 2 groups" in error.message
    for one in done:
        held = {k: v.copy() for k, v in arrays.items()}
        run_threads(one, target, held, launched=2)
        compare(case, held, want)
    emitter, text = emit_records(first, target)
    assert not [*meaningless(emitter.f)], "the simulator cannot execute it"
    if compiled:
        made: Any = assemble(text, target)
        assert made.advisories == ()
        if made.binary is not None:
            assert made.spilled_bytes == 0
        if not case.local:
            assert not made.stack_bytes
            assert target.kind != "cuda" or ".local" not in made.asm


def next_of(plans: Sequence[Plan], names: tuple[str, ...], taken: str) -> Iterator[Plan]:
    """The first plan of each name, where there is one and it is not the one taken."""
    for name in names:
        yield from [p for p in plans if p.name == name != taken][:1]
