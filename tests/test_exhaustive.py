"""benchmarks/exhaustive.py without a GPU: what is listed and forced, what comes of the times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks import exhaustive  # noqa: E402
from benchmarks.exhaustive import Shape, forced, listed, row, same, told  # noqa: E402
from tilec.ir.schedule import Plan  # noqa: E402

pytestmark = pytest.mark.torch
SM90 = "cuda:sm_90a"
SMALL = Shape(64, True, 1, 128, 2)


def test_plans_are_compiled_as_they_are_asked_for() -> None:
    found = [plan for plan, _ in listed(SMALL, (64, 64), SM90)]
    assert len({same(plan) for plan in found}) == len(found) > 10
    for plan in found[:3]:
        made = forced(SMALL, (64, 64), plan, SM90)
        assert made is not None and made.plan is not None and same(made.plan) == same(plan)


def test_what_the_passes_refuse_is_left_out() -> None:
    plan = next(p for p, _ in listed(SMALL, (64, 64), SM90) if p.residents == 3)
    assert forced(Shape(256, False, 1, 128, 2), (128, 128), plan, SM90) is None
    assert listed(Shape(256, False, 1, 128, 2), (256, 160), SM90) == []


class Clock:
    """A timer whose kernels say what they take."""

    def __init__(self) -> None:
        self.now = 0.0

    def each(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        took = []
        for call in calls:
            start = self.now
            call()
            took.append(self.now - start)
        return took

    def batch(self, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
        return lambda: [call() for call in calls]


class AtOnce(Executor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_a_row_is_what_the_choice_reaches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine plans take 1 to 9 ms; one is refused, the fastest is wrong, the choice takes 3."""
    clock = Clock()
    given, want = SMALL.tensors("cpu")

    class Kernel:
        def __init__(self, ms: float, result: Any = want) -> None:
            self.plan, self.ms, self.result = Plan(f"{ms} ms"), ms, result

        def __call__(self, *arrays: Any) -> None:
            clock.now += self.ms
            arrays[4].copy_(self.result)

    kernels = [Kernel(n) for n in range(1, 10)]
    kernels[0] = Kernel(1, torch.full_like(want, torch.nan))

    def made(shape: Shape, tile: Any, plan: Plan, target: str) -> Any:
        kernel = next(k for k in kernels if k.plan == plan)
        return None if kernel.ms == 9 else kernel

    monkeypatch.setattr(exhaustive, "TILES", [(64, 64)])
    monkeypatch.setattr(exhaustive, "listed", lambda *_: [(k.plan, 5.0) for k in kernels])
    monkeypatch.setattr(exhaustive, "forced", made)
    monkeypatch.setattr(exhaustive, "choice", lambda *_: ((64, 64), Kernel(3)))
    found = row(SMALL, SM90, clock, "cpu", AtOnce(), {})  # type: ignore[arg-type]
    assert (found["listed"], found["timed"], found["wrong"]) == (9, 7, 1)
    assert found["median"] == pytest.approx(2 / 3, abs=1e-3)
    assert [other["us"] for other in found["others"]] == [1e3 * n for n in range(2, 8)]
    assert "a wrong result" in capsys.readouterr().err
    assert told(found).startswith("0.667  d64 causal 1x128x2, 7 plans: 3000.0 us")
