"""A run of the fuzzer: programs one after the other, or in several processes; what they gave."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from tilec.fuzz.buffers import Invalid
from tilec.fuzz.generate import generate
from tilec.fuzz.numbers import Unclear
from tilec.fuzz.outcome import GPU_RUNS, Outcome, run_program
from tilec.fuzz.program import Program
from tilec.fuzz.shrink import shrink
from tilec.fuzz.workers import MOST_SECONDS, Worker


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


Run = Callable[[Program, Sequence[str], int], tuple[Outcome, ...]]


def try_program(
    seed: int, number: int, targets: Sequence[str], runs: int = GPU_RUNS, run: Run = run_program
) -> Result:
    """Make and run one program, in this process or a worker's, on a GPU so many times."""
    program = generate(seed, number)
    try:
        return Result(seed, number, run(program, targets, runs), "", program.words)
    except (Invalid, Unclear) as e:
        return Result(seed, number, (), str(e) or type(e).__name__, program.words)


def results(
    seed: int,
    numbers: Iterator[int],
    targets: Sequence[str],
    jobs: int,
    runs: int = GPU_RUNS,
    limit: float = MOST_SECONDS,
) -> Iterator[Result]:
    """The result of each program, as they come, from so many processes; 0: from this one."""
    if jobs == 0:
        yield from (try_program(seed, n, targets, runs) for n in numbers)
        return
    workers = [Worker(limit) for _ in range(jobs)]
    idle = workers.copy()

    def waited(number: int) -> Result:
        worker = idle.pop()
        made = try_program(seed, number, targets, runs, worker.run)
        idle.append(worker)
        return made

    with ThreadPoolExecutor(jobs) as pool:
        try:
            busy = {pool.submit(waited, n) for n in itertools.islice(numbers, jobs)}
            while busy:
                done, busy = wait(busy, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                    busy |= {pool.submit(waited, n) for n in itertools.islice(numbers, 1)}
        finally:
            for worker in workers:
                worker.stop()
            wait(busy)
            for worker in workers:
                worker.close()


def shrunk(program: Program, failure: Outcome, seconds: float, run: Run = run_program) -> Program:
    """A smaller program with the same failure."""

    def fails(candidate: Program) -> bool:
        (outcome,) = run(candidate, (failure.target,), GPU_RUNS)
        return outcome.same(failure)

    return shrink(program, fails, seconds)
