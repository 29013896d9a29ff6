"""A harness without a GPU: a timer whose clock is what calls say, cases of fake candidates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.case import Candidate, Case
from benchmarks.session import Session
from benchmarks.store import PeerStore
from benchmarks.timing import Effort

SMALL = Effort(rounds=5, most_rounds=5, warm=1, passes=2, seconds=0.3, settle=0.05, rest=0.0)


@dataclass
class Fake:
    """A call that says how long it takes."""

    name: str
    ms: float
    result: object = None

    def __call__(self) -> object:
        return self.result


class FakeTimer:
    """Milliseconds are what the calls say; everything that ran is in `log`."""

    def __init__(self, times: dict[str, float] | None = None) -> None:
        self.log: list[str] = []
        self.totals: list[tuple[str, float]] = []
        self.times = times or {}

    def _run(self, call) -> float:
        call()
        self.log.append(getattr(call, "name", "?"))
        return getattr(call, "ms", 1.0)

    def each(self, calls):
        return [self._run(c) for c in calls]

    def all(self, settle, calls):
        total = sum(self._run(c) for c in [*settle, *calls])
        total -= sum(getattr(c, "ms", 1.0) for c in settle)
        if calls:
            self.totals.append((getattr(calls[0], "name", "?"), total))
        return total

    def batch(self, calls):
        first = calls[0]
        total = sum(getattr(c, "ms", 1.0) for c in calls)
        return Fake(getattr(first, "name", "?"), total, first())


def fake_case(hashes: dict[str, str], times: dict[str, float], configs=None, name="one") -> Case:
    """C = A + 1 by candidates whose identities and times are in the dictionaries, changeable."""

    def candidate(which: str) -> Candidate:
        choices = (configs or {}).get(which, ({},))

        def bind(t, config):
            def fill():
                if config.get("broken"):
                    raise RuntimeError("does not compile")
                return t["out"].copy_(t["a"] + (2 if config.get("wrong") else 1))

            call = Fake(which, times[which] * config.get("slow", 1))
            call.__class__ = type("Filling", (Fake,), {"__call__": lambda self: fill()})
            return call

        return Candidate(which, lambda c: f"{hashes[which]} {dict(c)}", bind, choices, which)

    return Case(
        operator="fake", name=name, facts={"shape": [8, 4]}, work=64.0, bytes=1 << 30,
        tolerance=1e-6,
        make=lambda device: {"a": torch.randn(8, 4), "out": torch.empty(8, 4)},
        reference=lambda t, rows: t["a"][rows].double() + 1,
        candidates=lambda: [candidate(which) for which in times],
    )  # fmt: skip


def session(folder: Path, **more) -> Session:
    given = {
        "timer": FakeTimer(), "device": "cpu", "machine": {"device": "a chip"}, "commit": "c0ffee",
        "cache": 1 << 20, "peers": PeerStore(folder), "effort": SMALL, "say": lambda text: None,
        "sleep": lambda s: None,
    }  # fmt: skip
    return Session(**{**given, **more})
