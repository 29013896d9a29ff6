"""A run of the fuzzer: programs one after the other, or in several processes; what they gave."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.pool import AsyncResult

from tilec.fuzz.buffers import Invalid
from tilec.fuzz.generate import generate
from tilec.fuzz.numbers import Unclear
from tilec.fuzz.outcome import GPU_RUNS, Outcome, run_program
from tilec.fuzz.program import Program
from tilec.fuzz.shrink import shrink


@dataclass(frozen=True)
class Result:
    """What became of program `number` of `seed`. `outcomes` is empty for a program that has no
    meaning, whose reason is `invalid`."""

    seed: int
    number: int
    outcomes: tuple[Outcome, ...]
    invalid: str = ""
    words: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return tuple(o for o in self.outcomes if o.failed)

    @property
    def refused(self) -> bool:
        """Whether no target takes it: then the generator is at fault."""
        return bool(self.outcomes) and all(o.kind == "refused" for o in self.outcomes)


@dataclass
class Tally:
    """The sums over results."""

    programs: int = 0
    invalid: int = 0
    refused: int = 0
    failures: int = 0
    by_target: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=time.monotonic)

    def add(self, result: Result) -> None:
        if result.invalid:
            self.invalid += 1
            self.reasons[f"without a meaning: {result.invalid}"] += 1
            return
        self.programs += 1
        self.failures += bool(result.failures)
        self.refused += result.refused
        self.words.update(result.words)
        for o in result.outcomes:
            self.by_target.setdefault(o.target, Counter())[o.kind] += 1
            if o.kind == "refused":
                self.reasons[f"{o.target}: {reason(o)}"] += 1

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def line(self) -> str:
        """One line of progress."""
        rate = self.programs / max(self.seconds, 1e-9)
        refused = sum(c["refused"] for c in self.by_target.values())
        return (
            f"{self.programs} programs, {self.failures} failed, {refused} refusals, "
            f"{self.seconds:.0f} s, {rate:.2f} programs/s"
        )

    def summary(self) -> str:
        lines = [self.line()]
        for target, counts in self.by_target.items():
            shown = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
            lines.append(f"  {target}: {shown}")
        if self.refused:
            lines.append(f"  {self.refused} programs are refused by every target")
        if self.invalid:
            lines.append(f"  {self.invalid} programs have no meaning and were left out")
        lines += [f"  {n} x {text}" for text, n in self.reasons.most_common(8)]
        return "\n".join(lines)


def reason(outcome: Outcome) -> str:
    """The message of a refusal without its place."""
    first = outcome.text.split("\n")[0]
    return first.split(": ", 1)[-1][:100]


def try_program(seed: int, number: int, targets: Sequence[str], runs: int = GPU_RUNS) -> Result:
    """Make and run one program, on a GPU so many times."""
    program = generate(seed, number)
    try:
        outcomes = tuple(run_program(program, targets, runs))
    except (Invalid, Unclear) as e:
        return Result(seed, number, (), str(e), program.words)
    return Result(seed, number, outcomes, "", program.words)


def results(
    seed: int,
    numbers: Iterator[int],
    targets: Sequence[str],
    jobs: int,
    runs: int = GPU_RUNS,
) -> Iterator[Result]:
    """The result of each program, as they come."""
    if jobs == 1:
        yield from (try_program(seed, n, targets, runs) for n in numbers)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_quiet) as pool:
        waiting: deque[AsyncResult[Result]] = deque()
        for number in numbers:
            waiting.append(pool.apply_async(try_program, (seed, number, tuple(targets), runs)))
            while len(waiting) >= 2 * jobs:  # so that no more are begun than time allows
                yield waiting.popleft().get()
        while waiting:
            yield waiting.popleft().get()


def _quiet() -> None:
    """A worker leaves Ctrl-C to its parent, and uses one core."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def shrunk(program: Program, failure: Outcome, seconds: float) -> Program:
    """A smaller program with the same failure."""

    def fails(candidate: Program) -> bool:
        try:
            (outcome,) = run_program(candidate, (failure.target,))
        except (Invalid, Unclear):
            return False
        return outcome.same(failure)

    return shrink(program, fails, seconds)
