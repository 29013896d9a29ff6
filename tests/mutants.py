"""A mutation suite for the simulator: kernels of every family (`mutant_families`), each broken in
every way that `mutant_operators` knows, one at a time, and run.

    python tests/mutants.py --all      # every mutant; prints the figures and what is unexplained
    python tests/mutants.py FAMILY     # of one family, mutant by mutant
    python tests/mutants.py --gpu [--json FILE]  # ten on this machine's GPU (mutants_gpu.py)

A mutant is made of the SCHEDULED function, behind `insert_sync` so that no pass mends it, or of the
LOWERED one where an op exists only there. The passes that follow and the emitter are the
compiler's own. It is *found* when the simulator reports anything; *rejected* when the verifier, a
later pass or the emitter refuses it; else it has *survived*.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mutant_families import FAMILIES, Arrays, Family
from mutant_operators import Change, changes
from mutant_survivors import Rule, explanation

from tilec import passes
from tilec.ir.core import Func
from tilec.ir.errors import TilecError
from tilec.ir.loc import Loc
from tilec.ir.verify import verify
from tilec.jit.build import trace_variant
from tilec.jit.simulate import launch_of
from tilec.jit.simulated import records_of
from tilec.kernel import Planned
from tilec.passes.check_schedule import check_schedule
from tilec.passes.insert_sync import insert_sync
from tilec.sim.launch import Wishes, run
from tilec.sim.report import Report
from tilec.target import find_target

STEPS = 30_000  # several times what any family needs
PER_LINE = 2  # mutants of one operator and line of a LOWERED function, in which loops are unrolled
_BEHIND = next(i for i, (p, _) in enumerate(passes.EXPAND) if p is insert_sync) + 1


@dataclass(frozen=True)
class Prepared:
    """A family's launch and its function in two forms."""

    name: str
    family: Family
    arrays: Arrays
    pristine: Arrays
    planned: Planned
    scheduled: Func
    lowered: Func

    def lower(self, scheduled: Func) -> Func:
        """The passes behind `insert_sync`, but for the one that would find the fault before the
        simulator does. Raises TilecError."""
        target = find_target(self.family.target)
        verify(scheduled, "SCHEDULED")
        for apply, contract in passes.EXPAND[_BEHIND:]:
            if apply is check_schedule:
                continue
            scheduled = apply(scheduled, target)
            verify(scheduled, contract)
        return scheduled

    def simulate(self, lowered: Func, schedules: int = 1) -> Report:
        """Run a LOWERED function on the arrays as they were at first."""
        for name, a in self.arrays.items():
            _whole(a)[...] = _whole(self.pristine[name])
        records = records_of(lowered, self.family.target)
        launch = launch_of(self.planned, records, self.family.resident)
        wishes = Wishes(steps=STEPS, check_outputs=True, schedules=schedules)
        return run(launch, wishes)

    def right(self) -> bool:
        """Whether the outputs hold what they should."""
        for name, want in self.family.want(self.pristine).items():
            got = self.arrays[name].astype(np.float64)
            if not np.linalg.norm(got - want) <= 1e-3 * np.linalg.norm(want):
                return False
        return True


@dataclass(frozen=True)
class Mutant:
    """A family's kernel with one change. `level`: the form that is changed; `number`: of those that
    read the same."""

    prepared: Prepared
    change: Change
    level: str
    number: int = 1

    @property
    def name(self) -> str:
        c = self.change
        more = f" ({self.number})" if self.number > 1 else ""
        return f"{self.prepared.name}: {c.operator}: {c.description}{more}"

    def lowered(self) -> Func:
        """The LOWERED form. Raises TilecError where a pass refuses the mutant."""
        p = self.prepared
        if self.level == "LOWERED":
            made = self.change.apply(p.lowered)
            verify(made, "LOWERED")
            return made
        return p.lower(self.change.apply(p.scheduled))


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: "found", "rejected", "survived" or "crashed". `kinds` of findings;
    `right`: whether the numbers were."""

    mutant: Mutant
    verdict: str
    kinds: tuple[str, ...] = ()
    right: bool = True
    why: str = ""

    @property
    def reason(self) -> Rule | None:
        """Why it has survived, if it has."""
        c = self.mutant.change
        return explanation(self.mutant.prepared.name, c.operator, c.description)

    def __str__(self) -> str:
        extra = ", ".join(self.kinds) or self.why or ("" if self.right else "wrong numbers")
        return f"{self.verdict:9} {self.mutant.name} @ {self.mutant.change.loc.line}: {extra}"


def prepare(name: str, arrays: Arrays | None = None) -> Prepared:
    """Plan the family's launch, with these arrays or its own, and compile it down to the two
    forms."""
    family = FAMILIES[name]
    arrays = family.arrays() if arrays is None else arrays
    planned = family.kernel.plan_launch(family.target, None, tuple(arrays.values()), {})
    plan = planned.variant.plan
    assert plan is not None
    stages: dict[str, Func] = {}
    func = trace_variant(family.kernel.signature, planned.key)
    lowered = passes.run_plan(func, find_target(family.target), plan, stages.__setitem__)
    pristine = {n: _copy(a) for n, a in arrays.items()}
    return Prepared(name, family, arrays, pristine, planned, stages["insert_sync"], lowered)


def _whole(a: np.ndarray) -> np.ndarray:
    """All of the memory under a view of `mutant_families.spaced`."""
    return a if a.base is None else a.base


def _copy(a: np.ndarray) -> np.ndarray:
    return a.copy() if a.base is None else _whole(a).copy()[..., : a.shape[-1]]


def mutants(p: Prepared) -> list[Mutant]:
    """All mutants of a family."""
    early = changes(p.scheduled)
    chosen = [(c, "SCHEDULED") for c in early]
    seen = Counter((c.operator, c.loc) for c in early)
    groups: dict[tuple[str, Loc], list[Change]] = {}
    for c in changes(p.lowered):
        groups.setdefault((c.operator, c.loc), []).append(c)
    for key, group in groups.items():
        if len(group) > seen[key]:  # there is something that a later pass has made
            step = max(1, (len(group) - 1) // max(1, PER_LINE - 1))
            chosen += [(c, "LOWERED") for c in group[::step][:PER_LINE]]
    met: Counter[tuple[str, str]] = Counter()
    made = []
    for c, level in chosen:
        met[c.operator, c.description] += 1
        made.append(Mutant(p, c, level, met[c.operator, c.description]))
    return made


def try_out(m: Mutant) -> Outcome:
    """Make the mutant and run it."""
    try:
        lowered = m.lowered()
        records_of(lowered, m.prepared.family.target)
    except (TilecError, AssertionError, KeyError, ValueError, IndexError) as e:
        return Outcome(m, "rejected", why=f"{type(e).__name__}: {str(e).splitlines()[0][:90]}")
    try:
        report = m.prepared.simulate(lowered)
        if not report.findings:
            report = m.prepared.simulate(lowered, schedules=3)
    except Exception as e:  # a hole: the simulator must cope with anything
        return Outcome(m, "crashed", why=f"{type(e).__name__}: {e}")
    kinds = tuple(dict.fromkeys(f.kind for f in report.findings))
    if kinds:
        return Outcome(m, "found", kinds, m.prepared.right())
    return Outcome(m, "survived", right=m.prepared.right())


def check(p: Prepared) -> None:
    """The unmutated kernel must be right and without findings. Raises AssertionError."""
    report = p.simulate(p.lowered)
    assert not report.findings and p.right(), f"{p.name}, unmutated: {report}"


def run_all(names: Iterable[str], show: bool = False) -> list[Outcome]:
    """Try out every mutant of these families."""
    outcomes: list[Outcome] = []
    for name in names:
        p = prepare(name)
        check(p)
        start, before = time.time(), len(outcomes)
        for m in mutants(p):
            o = try_out(m)
            outcomes.append(o)
            if show or o.verdict == "crashed" or (o.verdict == "survived" and o.reason is None):
                print(o)
        count = Counter(o.verdict for o in outcomes[before:])
        print(f"-- {name}: {dict(count)} in {time.time() - start:.0f} s")
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> str:
    """The figures in two sentences."""
    count = Counter(o.verdict for o in outcomes)
    run_ = len(outcomes) - count["rejected"]
    harmless = sum(o.verdict == "survived" and o.reason is not None for o in outcomes)
    return (
        f"{len(outcomes)} mutants of {len({o.mutant.prepared.name for o in outcomes})} kernels: "
        f"{count['found']} found, {count['survived']} survived, {count['rejected']} refused by the "
        f"compiler, {count['crashed']} crashed the simulator. {count['found'] / run_:.1%} of those "
        f"that ran are found, and {count['found'] / (run_ - harmless):.1%} of those that change "
        "anything that matters."
    )


def main(arguments: Sequence[str]) -> None:
    chosen = [a for a in arguments if not a.startswith("--")]
    if arguments[:1] == ["--gpu"]:
        here = Path(__file__).parent
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parent), str(here)])}
        command = [sys.executable, str(here / "mutants_gpu.py"), *arguments[1:]]
        raise SystemExit(subprocess.call(command, env=env))
    print(summary(run_all(chosen or FAMILIES, show=bool(chosen))))


if __name__ == "__main__":
    main(sys.argv[1:])
