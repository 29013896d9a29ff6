"""Copies to shared memory run ahead wherever they stand: before a loop with stages, under a
condition in it, in two loops onto one buffer, in nested loops, in a `while`."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
from form_help import GFX942, SM80, SM90, tile_func
from place_programs import PLACES, Place

import tilec
import tilec.language as T
from tilec.ir.core import Block, Func, Op, walk
from tilec.ir.ops import Alloc, Barrier, Copy, For, Gemm, If, Scope, TmaLoad, WgmmaWait, While
from tilec.ir.schedule import Plan
from tilec.jit import simulate
from tilec.passes import run_plan
from tilec.target import Target
from tilec.tune import fit
from tilec.tune.plans import plans

pytestmark = pytest.mark.usefixtures("unassembled")

EACH = pytest.mark.parametrize("place", PLACES, ids=lambda p: p.name)
WAYS = [
    (SM90, "specialised persistent", (0, 1, 2, 10)),
    (SM90, "specialised, direct stores", (1, 10)),
    (SM90, "plain", (0, 10)),
    (SM80, "plain", (0, 1, 6)),
    (GFX942, "plain", (0, 1, 4)),
]  # fmt: skip


def stages(place: Place, target: Target, name: str) -> dict[str, Func]:
    """The function after each pass under the plan of this name."""
    func = tile_func(place.kernel.function, place.arrays((2, 1), 4)[0])
    kept: dict[str, Func] = {}
    (plan,) = (p for p in plans(func, target) if p.name == name)
    run_plan(func, target, plan, kept.__setitem__)
    return kept


def ring_stages(func: Func) -> dict[str, int]:
    shared = (o for o in walk(func.body) if isinstance(o, Alloc) and o.type.space == "shared")
    return {o.result.name: o.type.stages for o in shared}


def consumers(func: Func) -> Block:
    (scope,) = (o for o in walk(func.body) if isinstance(o, Scope) and o.name == "consumer")
    return scope.body


@pytest.mark.covering(1)
@pytest.mark.parametrize(("target", "name", "trips"), WAYS, ids=lambda x: str(x))
@EACH
def test_every_schedule_is_right(
    place: Place, target: Target, name: str, trips: tuple[int, ...], monkeypatch: Any
) -> None:
    """0, 1, 2 iterations and two more than stages, two tiles a block where it walks over many."""
    rings = ring_stages(stages(place, target, name)["insert_sync"])
    assert max(trips) == max(rings.values()) + 2

    def only(
        func: Func, target: Target, on_stage: Any, _: Any, on_plan: Any, accept: Any, *more: Any
    ) -> Func:
        (plan,) = (p for p in plans(func, target) if p.name == name)
        done = run_plan(func, target, plan, on_stage)
        accept(plan, done)
        on_plan(plan, None)
        return done

    monkeypatch.setattr(fit, "first_fit", only)
    monkeypatch.setattr(simulate, "_resident", lambda *_: 1)
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    kernel = tilec.kernel(place.kernel.function)
    for count in trips:
        arrays, want = place.arrays((2, 1), count)
        report = tilec.simulate(kernel, **arrays, target=str(target))
        np.testing.assert_array_equal(arrays["C"], want, f"{count} iterations")
        assert not report.findings, report.findings


@EACH
def test_all_tiles_come_by_tma(place: Place) -> None:
    """Every copy is the producers'; no barrier of the block is left among the consumers, and no
    fence, where only wgmma reads what only TMA writes."""
    kept = stages(place, SM90, "specialised, direct stores")
    copies = sum(
        isinstance(o, Copy) and o.dest.buffer.buffer.space == "shared"
        for o in walk(kept["plan_pipeline"].body)
    )
    func = kept["insert_sync"]
    assert sum(isinstance(o, TmaLoad) for o in walk(func.body)) == copies >= 2
    by_threads = place.name == "through one"
    assert by_threads or not [o for o in walk(consumers(func)) if isinstance(o, Barrier)]
    wanted = {"before": (1, 8), "masked": (8, 8), "two loops": (8, 8), "nested": (8, 8)}
    if place.name in wanted:
        found = ring_stages(kept["plan_pipeline"])
        assert (found["a"], found["b"]) == wanted[place.name]


def test_one_ring_for_two_loops() -> None:
    """Both loops of the producers fill the same two buffers, and go on where the other ended."""
    (place,) = (p for p in PLACES if p.name == "two loops")
    func = stages(place, SM90, "specialised, direct stores")["insert_sync"]
    loops = [o for o in walk(func.body) if isinstance(o, For) and o.kind == "pipelined"]
    assert len(loops) == 4, "two of the producers, two of the consumers"
    assert ring_stages(func) == {"a": 8, "b": 8}
    positions = Counter(
        o.result.name
        for o in walk(func.body)
        if isinstance(o, Alloc) and o.result.name.endswith("_stage")
    )
    assert positions == {"ring0_stage": 2}, (
        "each scope has one position in the ring, for both loops"
    )


def test_products_stay_in_flight() -> None:
    """The products with an operand from before the loop wait for the one before, and free its
    slot: the operand's own is freed once, behind the loop."""
    (place,) = (p for p in PLACES if p.name == "before")
    body = consumers(stages(place, SM90, "specialised, direct stores")["insert_sync"])
    (loop,) = (o for o in walk(body) if isinstance(o, For) and o.kind == "pipelined")
    (gemm,) = (o for o in walk(loop.body) if isinstance(o, Gemm))
    assert gemm.asynchronous
    assert [o.pending for o in walk(loop.body) if isinstance(o, WgmmaWait)] == [1]
    assert [o.pending for o in walk(body) if isinstance(o, WgmmaWait)] == [1, 0]


def test_copies_under_a_condition() -> None:
    """The producers ask for themselves whether an iteration is taken; threads start what a later
    one needs."""
    (place,) = (p for p in PLACES if p.name == "masked")
    func = stages(place, SM90, "specialised, direct stores")["insert_sync"]
    (producer,) = (o for o in walk(func.body) if isinstance(o, Scope) and o.name == "producer")
    taken = [o for o in walk(producer.body) if isinstance(o, If) and loads_in(o) == 2]
    assert taken and all(not loads_in(o) or o in taken for o in walk(producer.body) if is_if(o))
    func = stages(place, SM80, "plain")["expand_pipeline"]
    (loop,) = (o for o in walk(func.body) if isinstance(o, For) and o.kind == "pipelined")
    started = [o for o in walk(loop.body) if isinstance(o, Copy) and o.engine == "cp_async"]
    assert len(started) == 2, "an iteration starts the copies of one"


def loads_in(o: Op) -> int:
    return sum(isinstance(x, TmaLoad) for region in o.regions for x in walk(region))


def is_if(o: Op) -> bool:
    return isinstance(o, If)


def test_the_dump_says_what_runs_ahead() -> None:
    (place,) = (p for p in PLACES if p.name == "while")
    arrays, _ = place.arrays((2, 1), 4)
    made = place.kernel.compile_with_plan(
        Plan("p", specialise=True, stages=3), *arrays.values(), target="cuda:sm_90a"
    )
    rows = [x for x in made.stages["plan"].splitlines() if ": ahead: " in x]
    assert [x.split(": ", 1)[1] for x in rows] == [
        "ahead: a, by tma, stages: 1",
        "ahead: b, by tma, stages: 3",
    ]


M, K = T.dynamic("M, K")


@tilec.kernel
def read_before_filled(A: T.Tensor((M, K), "float16"), C: T.Tensor((M, 64), "float32")):
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a = T.alloc_shared((64, 64), "float16")
        t = T.alloc_fragment((64, 64), "float32")
        T.clear(t)
        T.clear(a)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
            for i, j in T.Parallel(64, 64):
                t[i, j] += a[i, j]
            T.copy(A[bx * 64, k * 64], a)  # not ahead
        T.copy(t, C[bx * 64, 0])


@tilec.kernel
def half_filled(A: T.Tensor((M, K), "float16"), C: T.Tensor((M, 64), "float32")):
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a = T.alloc_shared((128, 64), "float16")
        t = T.alloc_fragment((64, 64), "float32")
        T.clear(t)
        T.clear(a)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[bx * 64 : bx * 64 + 64, k * 64 : k * 64 + 64], a[0:64, 0:64])  # not ahead
            for i, j in T.Parallel(64, 64):
                t[i, j] += a[i, j]
        T.copy(t, C[bx * 64, 0])


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize(
    ("kernel", "why"),
    [(read_before_filled, "may read what another iteration"), (half_filled, "fills a part of a")],
    ids=lambda x: getattr(x, "name", ""),
)
def test_a_serial_loop_is_not_silent(
    kernel: Any, why: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilec.ir.errors._warned", {})
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    arrays = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = tilec.kernel(kernel.function).compile(*arrays, target=target)
    (warning,) = caught
    assert issubclass(warning.category, tilec.CompileWarning)
    assert "cannot run ahead of its iteration" in str(warning.message)
    assert why in str(warning.message)
    with open(__file__) as source:
        assert "# not ahead" in source.readlines()[warning.lineno - 1]
    assert f"line {warning.lineno}: not ahead: " in made.stages["plan"]


@tilec.kernel
def one_of_two(A: T.Tensor((M, K), "float16"), C: T.Tensor((M, 64), "float32")):
    with T.Kernel(T.ceildiv(M, 64), threads=128) as bx:
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        t = T.alloc_fragment((64, 64), "float32")
        T.clear(t)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
            for tile in (a, b):
                T.copy(A[bx * 64, k * 64], tile)
            for i, j in T.Parallel(64, 64):
                t[i, j] += a[i, j] * b[i, j]
        for i, j in T.Parallel(64, 64):
            t[i, j] += a[i, j]
        T.copy(t, C[bx * 64, 0])


def test_a_line_of_several_copies_warns_of_those_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilec.ir.errors._warned", {})
    monkeypatch.setenv("TILEC_DISABLE_CACHE", "1")
    arrays = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = one_of_two.compile(*arrays, target="cuda:sm_90a")
    (warning,) = caught
    assert "cannot run ahead of its iteration" in str(warning.message)
    line = f"line {warning.lineno}: "
    assert f"{line}ahead: b, by tma" in made.stages["plan"]
    assert f"{line}ahead: a" not in made.stages["plan"]


@tilec.kernel
def shared_before_loop(A: T.Tensor((M, K), "float32"), C: T.Tensor((M, 64), "float32")):
    with T.Kernel(T.ceildiv(M, 16), threads=128) as bx:
        a = T.alloc_shared((16, 64), "float32")
        t = T.alloc_fragment((16, 64), "float32")
        T.clear(t)
        for i, j in T.Parallel(16, 64):
            a[i, j] = A[bx * 16 + i, j] * 2.0
        for k in T.serial(K):
            for i, j in T.Parallel(16, 64):
                t[i, j] += a[i, 63 - j] * k
        T.copy(t, C[bx * 16, 0])


@pytest.mark.parametrize("target", [SM90, SM80, GFX942], ids=str)
def test_a_barrier_that_one_iteration_needs_stands_before_the_loop(target: Target) -> None:
    """Threads write the tile once and read it in every iteration: one barrier, not one in each."""
    arrays = {"A": np.ones((32, 64), np.float32), "C": np.full((32, 64), -1, np.float32)}
    func = tile_func(shared_before_loop.function, arrays)
    kept: dict[str, Func] = {}
    run_plan(func, target, plans(func, target)[-1], kept.__setitem__)
    done = kept["insert_sync"]
    inside = [o for o in walk(done.body) if isinstance(o, (For, While))]
    assert inside and not [x for o in inside for x in walk(o.body) if isinstance(x, Barrier)]
    assert sum(isinstance(o, Barrier) for o in walk(done.body)) == 1
    report = tilec.simulate(shared_before_loop, **arrays, target=str(target))
    assert not report.findings
    np.testing.assert_array_equal(arrays["C"], np.full((32, 64), 2.0 * sum(range(64)), np.float32))
