"""benchmarks/choices.py: how near the choice of tiles and plans comes to what was timed on an H200,
by today's prediction; and, without a GPU, what is listed, compiled and stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks import choices  # noqa: E402
from benchmarks.products import Product  # noqa: E402
from benchmarks.timing import geometric_mean  # noqa: E402
from tilec.ir.schedule import Plan  # noqa: E402

pytestmark = pytest.mark.torch
SM90 = "cuda:sm_90a"


def test_predictions_name_what_is_nearly_the_fastest() -> None:
    """82 products: .940 of the fastest's speed on average, and 1.190 of the library's."""
    rows = json.loads(choices.STORED.read_text())["rows"]
    assert len(rows) > 80 and sum(len(r["configurations"]) for r in rows) > 2000
    found = [(choices.favourite(row), row["cublas"]) for row in rows]
    of_fastest = [least / us for (us, least), _ in found]
    assert geometric_mean(of_fastest) > 0.93, sorted(of_fastest)[:5]
    assert geometric_mean([library / us for (us, _), library in found]) > 1.15


def test_products_are_the_same_for_a_seed() -> None:
    found = choices.products(5, 40)
    assert found == choices.products(5, 40) != choices.products(6, 40)
    for p in found:
        assert choices.WORK[0] < p.m * p.n * p.k < choices.WORK[1]
        if p.dtype in ("int8", "float8_e4m3"):
            assert p.kind == "NT" and not (p.m % 16 or p.n % 16 or p.k % 16)
    assert {p.dtype for p in found} == set(choices.DTYPES)


def test_what_is_listed_differs_and_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some tiles: it is the plans of each that are listed."""
    some = choices.tiles
    monkeypatch.setattr(choices, "tiles", lambda p: list(some(p))[::5])
    p = Product(300, 200, 512, "TN")
    found = choices.listed(p, SM90)
    assert len(found) > 10 and len({(t, choices.same(plan)) for t, plan in found}) == len(found)
    assert max(sum(t == u for u, _ in found) for t, _ in found) <= choices.OF_A_TILE
    for tile, plan in (found[0], found[-1]):
        made = choices.forced(p, tile, plan, SM90)
        assert made is not None and choices.same(made.plan) == choices.same(plan)
        assert choices.plan_of(json.loads(json.dumps(choices.said(plan)))) == plan
    no = Plan("", specialise=True, consumer_groups=2, cluster=(2, 1, 1), threads=128)
    assert choices.forced(p, (256, 256, 64), no, SM90) is None


class Clock:
    """A timer of calls that all take as long."""

    def each(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        for call in calls:
            call()
        return [1.0] * len(calls)

    def batch(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
        return lambda: [call() for call in calls]

    def all(self, settle: Sequence[Any], calls: Sequence[Any]) -> float:
        raise NotImplementedError


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_wrong_results_are_counted_and_left_out(factor: float) -> None:
    def product(a: Any, b: Any, out: Any) -> None:
        out.copy_(factor * (a.float() @ b.float()))

    made = SimpleNamespace(resources=SimpleNamespace(spilled_bytes=4))
    kernel = type("Kernel", (), {"__call__": lambda _, *args: product(*args), **vars(made)})()
    plan = Plan("of a test", specialise=True)
    row = choices.measured(
        Product(40, 24, 16),
        [((64, 64, 64), plan, kernel), ((64, 96, 64), plan, None)],
        Clock(),
        "cpu",
    )
    assert row["wrong"] == (factor > 1.05) and row["cublas"] == 1000.0
    kept = [] if factor > 1.05 else [[(64, 64, 64), choices.said(plan), 1000.0, 4]]
    assert row["configurations"] == kept
