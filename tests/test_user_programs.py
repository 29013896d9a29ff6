"""Programs as users write them, through the front end and all GPU passes: executed thread by thread
and compared with NumPy, then compiled, without spills and without local memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from frontend_help import fact
from thread_interp import run_threads
from user_programs import CASES, Arrays, Case

from tilec.codegen import assemble, emit
from tilec.frontend import Specialisation, TensorFact, bind_constants, read_signature, trace
from tilec.ir.core import Func
from tilec.ir.errors import ResourceError
from tilec.ir.verify import verify
from tilec.passes import run_plan
from tilec.target import Target, find_target
from tilec.tune.fit import first_fit
from tilec.tune.plans import plans

SM90, SM80, GFX942 = (find_target(n) for n in ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942"))
TARGETS = (SM90, SM80, GFX942)
PLANS = {
    SM90: ("specialised persistent", "specialised persistent, direct stores", "plain", "ping-pong",
           "specialised, direct stores"),
    SM80: ("plain",),
    GFX942: ("plain", "plain, one buffer"),
}  # fmt: skip


def runs() -> Iterator[Any]:
    """Every program on every target. Plans differ in what they make of pipelined loops: programs
    that have one run by the first plan of a target with several and by two of the others, in turn.
    """
    for number, (name, case) in enumerate(sorted(CASES.items())):
        for target in TARGETS:
            first, *others = PLANS[target]
            chosen = [first]
            if others and "Pipelined" in case.function.__code__.co_names:
                chosen += [others[(2 * number + i) % len(others)] for i in (0, 1)]
            for plan in dict.fromkeys(chosen):
                yield pytest.param(name, target, plan, id=f"{name}-{target.arch}-{plan}")


def compilations() -> Iterator[Any]:
    """Every program for every target; casts, which differ by dtype, for one after the other."""
    for number, name in enumerate(sorted(CASES)):
        for target in (TARGETS[number % 3],) if name.startswith("cast_") else TARGETS:
            yield pytest.param(name, target, id=f"{name}-{target.arch}")


def alignment(a: np.ndarray) -> int:
    """What a launch would say of an array whose base is aligned to 16 bytes."""
    align = 16
    for step in a.strides:
        while abs(step) % align and step != a.itemsize:
            align //= 2
    return align


def tile_func(case: Case, arrays: Arrays) -> Func:
    signature = bind_constants(read_signature(case.function, ()), case.options)
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


@pytest.mark.parametrize(("name", "target", "plan"), list(runs()))
def test_numbers(name: str, target: Target, plan: str) -> None:
    case, arrays = CASES[name], arrays_of(name)
    want = case.want({k: v.copy() for k, v in arrays.items()})
    func = tile_func(case, arrays)
    chosen = next((p for p in plans(func, target) if p.name == plan), None)
    if chosen is None:
        pytest.skip("the kernel's threads or loops leave no such plan")
    try:
        done = run_plan(func, target, chosen)
    except ResourceError as error:
        assert chosen.teams > 1 and "cannot run as 2 teams" in error.message
        return
    run_threads(done, target, arrays, launched=2)
    compare(case, arrays, want)


@pytest.mark.parametrize(("name", "target"), list(compilations()))
def test_compiles_cleanly(name: str, target: Target) -> None:
    case = CASES[name]
    made: Any = assemble(emit(first_fit(tile_func(case, arrays_of(name)), target), target), target)
    assert made.advisories == ()
    if made.binary is not None:
        assert made.spilled_bytes == 0
    if not case.local:
        assert not made.stack_bytes
        assert target.kind != "cuda" or ".local" not in made.asm
