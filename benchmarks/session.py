"""One run: which cases are measured again, and how one becomes a row."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.ahead import Needed
from benchmarks.case import Candidate, Case, Config, Tensors
from benchmarks.check import checker
from benchmarks.lost import DeviceLost
from benchmarks.store import METHOD, OURS, PeerStore, ResultFile, Row, is_current
from benchmarks.timing import (
    Call,
    Effort,
    Timer,
    calls_per_sample,
    hot,
    ratio,
    spread,
    steady,
)

MODES = ("hot", "steady")
_SETS = 64  # the most copies of the inputs that are made
_TUNING = Effort(rounds=5, most_rounds=15, together=0.05, warm=1)
_TUNING_CALLS = 4  # in one sample


@dataclass
class Session:
    """What a run has at hand. `cache` is the size of the device's last cache in bytes: calls go
    round over so many copies of their tensors that none finds its own in there."""

    timer: Timer
    device: str
    machine: Mapping[str, str]
    commit: str
    cache: int
    peers: PeerStore
    effort: Effort
    effort_name: str = "full"
    modes: Sequence[str] = MODES
    force: bool = False
    run: str = ""  # which one: of it a row is good enough even where `force` asks for new ones
    say: Callable[[str], None] = print
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=lambda: random.Random(20))

    @property
    def chip(self) -> str:
        return self.machine.get("device", self.device)

    # --- what a row depends on -----------------------------------------------------------------

    def signature(self, candidates: Sequence[Candidate]) -> dict[str, str] | None:
        """The identity of each candidate as it would be measured now; None if one is yet to be
        tuned."""
        found = {}
        for c in candidates:
            config = self.stored_config(c)
            if config is not None:
                found[c.name] = identity(c, config)
            elif self.hopeless(c):
                found[c.name] = identity(c, {})
            else:
                return None
        return found

    def stored_config(self, c: Candidate) -> Config | None:
        """The only configuration, or the one found before if it is still in the list."""
        if len(c.configs) == 1:
            return c.configs[0]
        stored = self.peers.entry(c.tuned_as, self.chip).get("config")
        return stored if stored in [dict(config) for config in c.configs] else None

    def hopeless(self, c: Candidate) -> bool:
        """Whether no configuration of this very version worked."""
        entry = self.peers.entry(c.tuned_as, self.chip)
        return "failed" in entry and entry["identity"] == identity(c, {})

    def needs(self, case: Case, results: ResultFile) -> bool:
        """Whether the case has to be measured."""
        row = results.rows.get(case.key)
        if self.force:
            return row is None or not self.run or row.get("run") != self.run
        signature = self.signature(case.candidates())
        return signature is None or not is_current(
            row, signature, self.chip, self.effort_name, self.modes
        )

    def needed(self, cases: Sequence[Case]) -> list[Needed]:
        """What these cases will need compiled that is better compiled ahead."""
        found: list[Needed] = []
        for case in cases:
            for c in case.candidates():
                if c.prepare is not None and not self.hopeless(c):
                    config = self.stored_config(c)
                    found += [(case, c, f) for f in (c.configs if config is None else [config])]
        return found

    # --- measuring -----------------------------------------------------------------------------

    def measure(self, case: Case) -> Row:
        """All candidates of a case: checked, then timed. One that fails is told and left out.
        Raises DeviceLost, and leaves out the next time who is to blame."""
        start = time.monotonic()
        tensors = case.make(self.device)
        error_of = checker(case, tensors)
        found: dict[str, Row] = {}
        chosen: dict[str, tuple[Candidate, Config]] = {}
        for c in case.candidates():
            entry: Row = {}
            found[c.name] = entry
            config = None
            try:
                config = self.stored_config(c)
                if config is None:
                    config = self.tune(c, case, tensors, error_of)
                entry.update(config=dict(config), identity=identity(c, config))
                self.refuse_lost(case, c, config)
                if c.about is not None:
                    entry["about"] = c.about(config)
                if not c.yardstick:
                    entry["error"] = error_of(c.bind(tensors, config))
                    if not entry["error"] <= case.tolerance:
                        raise ArithmeticError(f"wrong result: relative error {entry['error']:.1e}")
            except DeviceLost:
                raise
            except Exception as failure:  # a peer's trouble is a figure of the table, not its end
                self._failed(case, c, config, entry, failure)
            else:
                chosen[c.name] = (c, config)
        self._time(case, tensors, chosen, found)
        return {
            "key": case.key,
            "operator": case.operator,
            "case": case.name,
            **case.facts,
            "method": METHOD,
            "effort": self.effort_name,
            "modes": list(self.modes),
            "work": case.work,
            "bytes": case.bytes,
            "baseline": case.baseline,
            "commit": self.commit,
            "run": self.run,
            "machine": dict(self.machine),
            "took": round(time.monotonic() - start, 1),
            "signature": {name: entry.get("identity", "") for name, entry in found.items()},
            "candidates": found,
        }

    def _failed(
        self, case: Case, c: Candidate, config: Config | None, entry: Row, failure: Exception
    ) -> None:
        text = _told(failure)
        entry["failed"] = text
        entry.setdefault("identity", identity(c, {}))
        self.say(f"{case.name}: {c.name} failed: {text[:160]}")
        self.expect_device(
            case, [(c, f) for f in (c.configs if config is None else [config])], failure
        )

    def _time(
        self,
        case: Case,
        tensors: Tensors,
        chosen: Mapping[str, tuple[Candidate, Config]],
        found: dict[str, Row],
    ) -> None:
        """Fill in the times, and the ratios to tilec."""
        sets = self.copies(case, tensors)
        several = any(c.launches > 1 for c, _ in chosen.values())
        wanted: dict[str, int] = {}  # calls per sample
        calls: dict[str, Call] = {}
        for name, (c, config) in chosen.items():
            try:
                call = c.bind(sets[0], config)
                args = (len(sets), self.effort, several)
                wanted[name] = calls_per_sample(self.timer, call, *args)
            except Exception as failure:
                self._failed(case, c, config, found[name], failure)
        repeat = max(wanted.values(), default=1)  # the same for all: what the fastest needs
        for name in wanted:
            c, config = chosen[name]
            try:
                calls[name] = self.batched(c, config, sets, repeat)
                self.timer.all([calls[name]], [])  # alone: a fault is this candidate's
            except Exception as failure:
                self._failed(case, c, config, found[name], failure)
        if not calls:
            return
        try:
            samples = {"hot": hot(self.timer, calls, self.effort, self.rng)}
            if "steady" in self.modes:
                expected = {name: statistics.median(s) for name, s in samples["hot"].items()}
                samples["steady"] = steady(
                    self.timer, calls, expected, self.effort, self.rng, self.sleep
                )
        except Exception as failure:  # whose it is nobody knows: tilec is tried without the others
            others = [chosen[name] for name in calls if name != OURS]
            self.expect_device(case, others or [chosen[OURS]], failure)
            raise
        for mode in self.modes:
            for name, times in samples[mode].items():
                figure = found[name][mode] = {k: v / repeat for k, v in spread(times).items()}
                found[name][f"{mode}_tera"] = case.work / figure["median"] / 1e9
                if OURS in samples[mode] and name != OURS:
                    found[name][f"{mode}_ratio"] = ratio(samples[mode][OURS], times)
            for name in samples[mode]:
                found[name]["calls"] = repeat

    def copies(self, case: Case, tensors: Tensors) -> list[Tensors]:
        """`tensors` and as many copies of them as it takes to be twice the cache, or as the case
        asks for."""
        count = min(_SETS, max(case.sets, -(-2 * self.cache // int(case.bytes))))
        others = [{k: same(v) for k, v in tensors.items()} for _ in range(count - 1)]
        return [tensors, *others]

    def batched(self, c: Candidate, config: Config, sets: Sequence[Tensors], repeat: int) -> Call:
        """`repeat` calls as one, going round over the copies of the tensors."""
        bound = [c.bind(t, config) for t in sets]
        if repeat == 1 and c.launches == 1:
            return bound[0]
        return self.timer.batch([bound[i % len(bound)] for i in range(repeat)])

    # --- peers ---------------------------------------------------------------------------------

    def tune(
        self,
        c: Candidate,
        case: Case,
        tensors: Tensors,
        error_of: Callable[[Callable[[], Any]], float],
    ) -> Config:
        """The fastest right configuration of `c`; stored for the runs to come.

        Raises RuntimeError if none works, which is stored too.
        """
        if self.hopeless(c):
            raise RuntimeError(self.peers.entry(c.tuned_as, self.chip)["failed"])
        calls: dict[str, Call] = {}
        by_name: dict[str, Config] = {}
        last = ""
        for number, config in enumerate(c.configs):
            try:
                self.refuse_lost(case, c, config)
                call = c.bind(tensors, config)
                if not c.yardstick and not error_of(call) <= case.tolerance:
                    raise ArithmeticError("wrong result")
                batch = self.timer.batch([call] * _TUNING_CALLS)
                self.timer.all([batch], [])
            except Exception as failure:
                last = _told(failure)
                self.expect_device(case, [(c, config)], failure)
            else:
                calls[str(number)], by_name[str(number)] = batch, config
        if not calls:
            text = f"no configuration of {c.name} works; the last: {last[:200]}"
            self.peers.put(c.tuned_as, self.chip, {"failed": text, "identity": identity(c, {})})
            raise RuntimeError(text)
        samples = hot(self.timer, calls, _TUNING, self.rng)
        best = min(samples, key=lambda name: statistics.median(samples[name]))
        entry = {
            "config": dict(by_name[best]),
            "identity": identity(c, by_name[best]),
            "ms": statistics.median(samples[best]) / _TUNING_CALLS,
            "tried": len(c.configs),
            "worked": len(calls),
        }
        self.peers.put(c.tuned_as, self.chip, entry)
        return by_name[best]

    # --- a device that is lost -------------------------------------------------------------------

    def expect_device(
        self, case: Case, blamed: Sequence[tuple[Candidate, Config]], failure: Exception
    ) -> None:
        """Raises DeviceLost if it is, and stores who is to blame."""
        try:
            self.timer.all([], [])
        except Exception as lost:
            for c, config in blamed:
                entry = {"failed": f"lost the device: {_told(failure)}"}
                entry["identity"] = identity(c, config)
                self.peers.put(_tried(case, c, config), self.chip, entry)
            names = ", ".join(f"{c.name} {dict(config)}" for c, config in blamed)
            raise DeviceLost(f"{case.name}: {names} lost the device: {_told(failure)}") from lost

    def refuse_lost(self, case: Case, c: Candidate, config: Config) -> None:
        """Raises RuntimeError for what lost the device before, in this very version."""
        entry = self.peers.entry(_tried(case, c, config), self.chip)
        if entry and entry["identity"] == identity(c, config):
            raise RuntimeError(entry["failed"])


def same(t: torch.Tensor) -> torch.Tensor:
    """A copy whose rows are as far apart (`clone` packs those with a gap between them)."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)


def identity(c: Candidate, config: Config) -> str:
    """What `c` depends on; a kernel that does not compile is known by its error."""
    try:
        return c.identity(config)
    except Exception as failure:
        return f"failed: {type(failure).__name__}: {failure}"[:200]


def _tried(case: Case, c: Candidate, config: Config) -> str:
    return f"{case.key}: {c.name} {dict(config)}"


def _told(failure: Exception) -> str:
    return " ".join(f"{type(failure).__name__}: {failure}".split())[:300]
