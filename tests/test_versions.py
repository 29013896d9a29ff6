"""Fragments that a loop decodes for its products: two versions of them, so that a product runs
while the next iteration's operand is made. Who may have them, that the numbers are right for every
number of iterations, and that one version, or a wait less, is found."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from form_help import GFX942, SM80, SM90, tile_func
from mutant_families import FAMILIES, Family
from mutant_operators import change_at, sites
from mutants import check, prepare
from version_programs import bytes_times, nibbles_times, whole

import tilec
import tilec.language as T
from tilec.codegen.ptxas import run_ptxas
from tilec.ir.core import Func, Op, walk
from tilec.ir.errors import InternalError
from tilec.ir.ops import Alloc, For, Gemm, If, WgmmaWait
from tilec.ir.schedule import Arrangement, Plan
from tilec.passes import run_plan
from tilec.passes.check_schedule import check_schedule
from tilec.passes.utils.dependence import Edge, ModRef
from tilec.support.tools import find_ptxas

arrange = importlib.import_module("tilec.passes.arrange")
orders = importlib.import_module("tilec.passes.utils.orders")

M, N, K = T.dynamic("M, N, K")
TMA = Plan("p", specialise=True, persistent=True, stages=3)
DIRECT: dict[str, Any] = {"specialise": True, "persistent": False, "stages": 2}
LONG: dict[str, Any] = {"specialise": True, "persistent": True, "stages": 3}
TURNS: dict[str, Any] = {**LONG, "consumers": "pingpong"}


def operands(n: int, m: int, trips: int, packed: bool, ragged: int = 0) -> tuple[Any, ...]:
    """Weights that name the iteration which they are of, activations, and what comes of them."""
    k = 64 * max(trips, 1) - ragged
    rows, columns = np.indices((n, k))
    weights = (rows * 3 + columns + 5 * (columns // 64)) % 16 - 8
    a = (np.indices((m, k)).sum(0) % 5 - 2).astype(np.float16)
    c = np.full((n, m), np.nan, np.float32)
    want = weights[:, : 64 * trips].astype(np.float64) @ a[:, : 64 * trips].astype(np.float64).T
    if not packed:
        return weights.astype(np.int8), a, c, trips, want
    nibbles = weights + 8
    return (nibbles[:, ::2] + 16 * nibbles[:, 1::2]).astype(np.uint8), a, c, trips, want


def stages_of(kernel: Any, plan: Plan = TMA, target: Any = SM90) -> dict[str, Func]:
    """What the passes make of a program on some sizes, by pass."""
    w, a, c, *_ = operands(200, 72, 5, packed=False)
    by_name = {"W": w, "A": a, "C": c}
    kept: dict[str, Func] = {}
    run_plan(tile_func(kernel.function, by_name), target, plan, kept.__setitem__)
    return kept


def arranged(kernel: Any, plan: Plan = TMA) -> Arrangement | None:
    found = stages_of(kernel, plan)["arrange"].attrs.get("arranged", ())
    return found[0][1] if found else None


def in_flight(func: Func) -> list[Gemm]:
    return [o for o in walk(func.body) if isinstance(o, Gemm) and o.asynchronous]


# --- what it becomes ---


def test_two_iterations_in_one_and_the_odd_one_in_front() -> None:
    func = stages_of(bytes_times())["expand_scopes"]
    first, second = in_flight(func)
    assert first.a.buffer is not second.a.buffer and first.c is second.c
    waits = [o for o in walk(func.body) if isinstance(o, WgmmaWait)]
    assert [o.pending for o in waits] == [1, 1, 0]
    # Each wait lets go of what the product before reads: the fragment that is filled next.
    assert [o.fragments for o in waits] == [
        (first.c, second.a.buffer),
        (first.c, first.a.buffer),
        (first.c, first.a.buffer, second.a.buffer),
    ]
    (alone,) = (o for o in walk(func.body) if isinstance(o, Gemm) and not o.asynchronous)
    assert alone.a.buffer is first.a.buffer
    branches = [o for o in walk(func.body) if isinstance(o, If)]
    assert any(alone in o.then.ops for o in branches)


def test_the_dump_shows_the_versions() -> None:
    w, a, c, trips, _ = operands(200, 72, 5, packed=False)
    specs = [tilec.spec(x.shape, str(x.dtype)) for x in (w, a, c)]
    compiled = bytes_times(**LONG).compile(*specs, trips, target="cuda:sm_90a")
    text = str(compiled.stages["plan"])
    assert "versions: w 3, a 3, f 2" in text
    assert "copy -> f (at most 1 products in flight before it)" in text
    assert "best of 1 others: one version of f: an iteration takes" in text
    assert compiled.resources.spilled_bytes == 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("make", [bytes_times, nibbles_times])
@pytest.mark.parametrize("schedule", [DIRECT, LONG, TURNS], ids=["direct", "long", "turns"])
def test_ptxas_serialises_none(make: Callable[..., Any], schedule: dict[str, Any]) -> None:
    """With a number of iterations that nobody knows, the odd one among them."""
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("there is no ptxas")
    arrays = operands(200, 72, 5, make is nibbles_times)[:3]
    specs = [tilec.spec(x.shape, str(x.dtype)) for x in arrays]
    made = make(bn=128, **schedule).compile(*specs, 5, target="cuda:sm_90a")
    assert made.stages["plan"].count("f 2") == 1
    assert run_ptxas(ptxas, made.asm, "sm_90a").advisories == ()


# --- the numbers ---


@pytest.mark.covering(1)
@pytest.mark.parametrize("make", [bytes_times, nibbles_times])
@pytest.mark.parametrize("schedule", [DIRECT, LONG, TURNS], ids=["direct", "long", "turns"])
@pytest.mark.parametrize("trips", [0, 1, 2, 4, 5])
def test_any_number_of_iterations(
    make: Callable[..., Any], schedule: dict[str, Any], trips: int
) -> None:
    """None, one, a pair, stages + 2, and one more or less; several tiles of a persistent loop."""
    w, a, c, steps, want = operands(200, 72, trips, make is nibbles_times)
    kernel = make(**schedule)
    report = tilec.simulate(kernel, w, a, c, steps, target="cuda:sm_90a", schedules=2)
    assert report.ok, report
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("trips", [3, 4])
def test_the_last_tile_is_ragged(trips: int) -> None:
    w, a, c, steps, want = operands(136, 40, trips, packed=False, ragged=48)
    report = tilec.simulate(bytes_times(**LONG), w, a, c, steps, target="cuda:sm_90a", schedules=2)
    assert report.ok, report
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_other_targets_have_one_version(target: str) -> None:
    w, a, c, steps, want = operands(72, 40, 3, packed=False)
    kernel = bytes_times()
    report = tilec.simulate(kernel, w, a, c, steps, target=target)
    assert report.ok, report
    np.testing.assert_array_equal(c, want)
    found = stages_of(kernel, Plan("p", stages=3), SM80 if target.endswith("80") else GFX942)
    assert not in_flight(found["insert_sync"])
    assert not found["insert_sync"].attrs.get("arranged")


# --- what may go wrong ---


@functools.cache
def scheduled() -> Func:
    return stages_of(bytes_times())["insert_sync"]


def one_version(func: Func) -> Func:
    """Both iterations of a pair fill the same fragment."""
    first, second = (o.a.buffer for o in in_flight(func))
    made = func.body.rewrite(Op, lambda o: None, {second: first})
    return func.with_body(made.rewrite(Op, lambda o: [] if _makes_again(o, first) else None))


def _makes_again(o: Any, v: Any) -> bool:
    return isinstance(o, Alloc) and o.result.name == f"{v.name}_other"


def weaker_wait(func: Func, number: int) -> Func:
    places = [i for i, o in enumerate(sites(func)) if isinstance(o, WgmmaWait)]
    return change_at(func, places[number], lambda o: [_one_more(o)])


def without_wait(func: Func, number: int) -> Func:
    places = [i for i, o in enumerate(sites(func)) if isinstance(o, WgmmaWait)]
    return change_at(func, places[number], lambda _: [])


def _one_more(o: Any) -> WgmmaWait:
    return WgmmaWait(o.pending + 1, o.fragments, loc=o.loc)


MUTANTS: dict[str, Callable[[Func], Func]] = {
    "one version": one_version,
    **{f"a weaker wait, {n}": functools.partial(weaker_wait, number=n) for n in range(3)},
    **{f"no wait, {n}": functools.partial(without_wait, number=n) for n in range(3)},
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_verifier_knows_versions(name: str) -> None:
    func = scheduled()
    assert check_schedule(func, SM90) is func
    with pytest.raises(InternalError, match="the schedule is wrong: "):
        check_schedule(MUTANTS[name](func), SM90)


def test_the_verifier_says_what_is_touched() -> None:
    with pytest.raises(InternalError, match="touches f while a product in flight uses it"):
        check_schedule(one_version(scheduled()), SM90)


@pytest.mark.usefixtures("unassembled")
@pytest.mark.parametrize("name", [name for name in MUTANTS if "wait" in name])
def test_the_simulator_finds_waits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(_: np.random.Generator) -> dict[str, np.ndarray]:
        w, a, c, *_ = operands(64, 72, 3, packed=False)
        return {"W": w, "A": a, "C": c}

    def want(held: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"C": held["W"].astype(np.float64) @ held["A"].astype(np.float64).T}

    monkeypatch.setitem(FAMILIES, "decoded", Family(whole, "cuda:sm_90a", make, want))
    prepared = prepare("decoded")
    check(prepared)
    report = prepared.simulate(prepared.lower(MUTANTS[name](prepared.scheduled)), schedules=3)
    assert {f.kind for f in report.findings} & {"operand in flight", "overwritten before read"}


# --- who has them ---


def refused(kernel: Any, plan: Plan = TMA) -> bool:
    """Whether the loop has one version of what it decodes, and its products are waited for."""
    kept = stages_of(kernel, plan)
    loops = [o for o in walk(kept["arrange"].body) if isinstance(o, For) and o.kind == "pipelined"]
    assert loops
    return all(o.versions == 1 for o in loops) and not in_flight(kept["expand_scopes"])


def test_registers_must_hold_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """An accumulator of 128 registers, and 64 for one version of the weights: 204 are there."""
    plan = Plan("p", specialise=True, persistent=True, stages=2)
    kernel = bytes_times(bm=256, bn=128, bk=64, threads=256)
    assert not refused(kernel, plan)
    found = arranged(kernel, plan)
    assert found is not None and found.registers == 128 + 2 * 32
    wide = bytes_times(bm=256, bn=128, bk=128, threads=256)
    assert refused(wide, plan)
    monkeypatch.setattr(arrange, "KEPT", -48)  # if there were as many
    assert not refused(wide, plan)


@pytest.mark.parametrize(("bn", "bk", "two"), [(256, 64, True), (128, 128, True), (128, 64, False)])
def test_warpgroups_that_share_a_tile(bn: int, bk: int, two: bool) -> None:
    """One decodes while the other's product runs: only long products gain (docs/decisions.md)."""
    plan = Plan("p", specialise=True, persistent=True, stages=2)
    assert refused(bytes_times(bm=128, bn=bn, bk=bk, threads=256), plan) != two
    assert not refused(bytes_times(bm=64, bn=bn // 2, bk=bk, threads=128), plan)


def test_threads_that_bring_tiles_have_one_version() -> None:
    assert refused(bytes_times(), Plan("p", stages=3))


def test_who_needs_the_fragment_afterwards_has_one() -> None:
    assert refused(DECODED["read behind the product"])
    assert refused(DECODED["only a part filled"])
    assert refused(DECODED["handed on"])
    assert refused(DECODED["the sum read"])
    assert not refused(DECODED["plain"])


def _decoding(change: str) -> Any:
    @tilec.kernel
    def decoding(
        W: T.Tensor((N, K), "int8"), A: T.Tensor((M, K), "float16"), C: T.Tensor((N, M), "float32")
    ):
        with T.Kernel(T.ceildiv(M, 32), T.ceildiv(N, 64), threads=128) as (bx, by):
            w, a = T.alloc_shared((64, 64), "int8"), T.alloc_shared((32, 64), "float16")
            f, c = T.alloc_fragment((64, 64), "float16"), T.alloc_fragment((64, 32), "float32")
            T.clear(c)
            T.clear(f)
            for k in T.Pipelined(T.ceildiv(K, 64)):
                T.copy(W[by * 64, k * 64], w)
                T.copy(A[bx * 32, k * 64], a)
                if change == "handed on":
                    for i, j in T.Parallel(64, 64):
                        f[i, j] = f[i, j] / 2 + w[i, j]
                elif change == "only a part filled":
                    for i, j in T.Parallel(64, 64):
                        if w[i, j] != 0:
                            f[i, j] = w[i, j]
                else:
                    for i, j in T.Parallel(64, 64):
                        f[i, j] = w[i, j]
                T.gemm(f, a, c, transpose_B=True)
                if change == "read behind the product":
                    for i, j in T.Parallel(64, 64):
                        f[i, j] = f[i, j] * 2
                if change == "the sum read":
                    for i, j in T.Parallel(64, 32):
                        c[i, j] = c[i, j] * 0.5
            T.copy(c, C[by * 64, bx * 32])

    return decoding


CHANGES = ("plain", "read behind the product", "only a part filled", "handed on", "the sum read")
DECODED = {change: _decoding(change) for change in CHANGES}


def test_a_long_product_hides_a_short_wait() -> None:
    """Two versions shorten the stream by what threads do and the wait; where the product takes all
    of the time, that is not worth their registers."""

    def found(decode: float, product: float) -> Arrangement:
        full, read = ModRef(False, True, True), ModRef(True, False, False)
        c = ModRef(True, True, False)
        nodes = (
            orders.Node((0,), False, (("vector", decode),), ((0, full),)),
            orders.Node((1,), True, (("tensor", product),), ((0, read), (1, c)), (1, 0)),
        )
        between = (Edge(0, 1, 0, "flow"), Edge(1, 0, 1, "anti"))
        graph = orders.Graph(nodes, between, (16, 64), ())
        chosen: Arrangement = orders.in_versions(graph, 1, (96, 80), ())
        return chosen

    even = found(250, 250)
    assert even.stream < 0.75 * even.in_order and even.waits == ((0, 1),)
    assert even.second is not None and even.second.registers == 80
    assert even.cycle < even.second.stream
    long = found(40, 40_000)
    assert long.stream > 0.97 * long.in_order
    decoding = found(4000, 250)
    assert decoding.stream > 4000
