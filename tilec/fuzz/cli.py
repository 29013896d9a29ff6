"""`python -m tilec fuzz`: random programs for a while; failures are shrunk and written as tests."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from tilec.cli.options import add_progress, at_least, check_folder, heed_progress
from tilec.fuzz.generate import generate
from tilec.fuzz.outcome import GPU_RUNS, Outcome, known_targets, run_program, targets
from tilec.fuzz.program import NAMED_SIZES, PLAIN, SIZES, Program
from tilec.fuzz.session import Result, Tally, results, shrunk
from tilec.fuzz.workers import MOST_SECONDS, Worker
from tilec.support.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the subcommand."""
    parser.add_argument(
        "--seconds", type=at_least(0, float), help="stop after this time (default: 60)"
    )
    parser.add_argument("--count", type=at_least(1), help="stop after so many programs")
    parser.add_argument(
        "--seed", type=at_least(0), help="of the programs (default: a new one, printed)"
    )
    parser.add_argument("--first", type=at_least(0), default=0, help="number of the first program")
    parser.add_argument(
        "--program", type=at_least(0), help="run this program of the seed only, shown"
    )
    parser.add_argument(
        "--target", action="append", choices=known_targets(), help="only this one (may be repeated)"
    )
    parser.add_argument(
        "--runs",
        type=at_least(1),
        default=GPU_RUNS,
        help=f"of each program on a GPU (default: {GPU_RUNS})",
    )
    parser.add_argument(
        "--jobs", type=at_least(0), default=1, help="processes; 0: this one, for a debugger"
    )
    parser.add_argument(
        "--limit",
        type=at_least(0, float),
        default=MOST_SECONDS,
        help=f"seconds of a program on a target, then it counts as endless ({MOST_SECONDS:.0f})",
    )
    parser.add_argument(
        "--shrink", type=at_least(0, float), default=60.0, help="seconds for each failure"
    )
    parser.add_argument("--out", type=Path, default=Path("tests"), help="folder of written tests")
    parser.add_argument("--max-failures", type=at_least(1), default=10, help="stop after so many")
    add_progress(parser)


def main(options: argparse.Namespace) -> int:
    """Run; 1 where a program failed. Ctrl-C ends it with the summary."""
    heed_progress(options)
    check_folder("--out", options.out)  # at once, not after a failure was found
    with mock.patch.dict(os.environ, {"TILEC_DISABLE_CACHE": "1"}):  # no program comes twice
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    seed = options.seed
    if seed is None:
        seed = int(np.random.default_rng().integers(2**31))
    chosen = tuple(options.target or targets())
    print(f"seed {seed}, targets {', '.join(chosen)}", flush=True)
    if options.program is not None:
        print(generate(seed, options.program).source)
        for name, a in generate(seed, options.program).arguments.items():
            print(f"{name} = {a}")
    tally = Tally()
    seen: set[tuple[str, str, str]] = set()
    with Programs(tally) as told:
        try:
            numbers = _numbers(options, tally)
            for result in results(seed, numbers, chosen, options.jobs, options.runs, options.limit):
                tally.add(result)
                if result.failures:
                    told.clear()
                    _report(result, options, seen)
                if tally.failures >= options.max_failures:
                    break
        except KeyboardInterrupt:
            told.clear()
            print("interrupted", file=sys.stderr)
    print(tally.summary(), flush=True)
    return 1 if tally.failures else 0


def _numbers(options: argparse.Namespace, tally: Tally) -> Iterator[int]:
    """The numbers of the programs to run, until time or count is up."""
    if options.program is not None:
        yield options.program
        return
    seconds = 60.0 if options.seconds is None and options.count is None else options.seconds
    for number in itertools.islice(itertools.count(options.first), options.count):
        if seconds is not None and tally.seconds >= seconds:
            return
        yield number


def _report(result: Result, options: argparse.Namespace, seen: set[tuple[str, str, str]]) -> None:
    """Say what failed; shrink the first failure of each kind and write it as a test."""
    for failure in result.failures:
        head = f"program {result.number} of seed {result.seed} failed on {failure.target}"
        print(f"{head}: {failure.kind} {failure.detail}\n{_indented(failure.text)}", flush=True)
    failure = result.failures[0]
    key = (failure.kind, failure.detail, failure.text.split("\n")[-1][:80])
    if key in seen:
        return
    seen.add(key)
    program = generate(result.seed, result.number)
    if options.shrink > 0:
        worker = Worker(options.limit) if options.jobs else None
        run = worker.run if worker else run_program
        try:
            program = shrunk(program, failure, options.shrink, run)
            (now,) = run(program, (failure.target,), options.runs)
            failure = now if now.failed else failure
        finally:
            if worker:
                worker.close()
        print(f"shrunk to:\n{_indented(program.source)}", flush=True)
    path = write_test(program, failure, result.seed, result.number, options.out)
    print(f"written to {path}", flush=True)


def _indented(text: str) -> str:
    lines = text.rstrip().splitlines()[:40]
    return "\n".join(f"    {line}" for line in lines)


class Programs(Progress):
    """Progress of a run, whose line is that of its tally."""

    def __init__(self, tally: Tally) -> None:
        super().__init__("fuzzing", 0, "programs")
        self.tally = tally

    def line(self) -> str:
        return self.tally.line()


# --- a failing program as a test file that runs by itself -----------------------------------------

_IMPORTS = {
    "import tilec": "tilec",
    "import tilec.language as T": "T.",
    "from tilec.fuzz.outcome import check": "check",
    "from tilec.fuzz.program import Array": "Array(",
    "from tilec.fuzz.program import Launch": "Launch(",
    "from tilec.layout import make_mma_swizzle_layout": "make_mma_swizzle_layout",
    "from tilec.layout import make_swizzled_layout": "make_swizzled_layout",
}


def test_text(program: Program, outcome: Outcome, seed: int, number: int) -> str:
    """The file's text: what failed, the kernel, its arguments, the check."""
    what = " ".join(f"{outcome.kind} {outcome.detail}".split())
    lines = [line.rstrip() for line in outcome.text.splitlines()[:12]]
    found = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
    arguments = "".join(f"    {n!r}: {a!r},\n" for n, a in program.arguments.items())
    launch = "" if program.launch == PLAIN else f", {program.launch!r}"
    body = (
        f"{program.source}\n\nARGUMENTS = {{\n{arguments}}}\n\n\ndef test_kernel() -> None:\n"
        f"    check(kernel, ARGUMENTS, {(outcome.target,)!r}{launch})\n"
    )
    imports = [line for line, name in _IMPORTS.items() if name in body]
    if any(re.search(rf"\b{s}\b", program.source) for s in SIZES):
        imports += ["", NAMED_SIZES]
    head = (
        f'"""Found by `python -m tilec fuzz --seed {seed} --program {number}` on {outcome.target}'
    )
    return "\n".join([f'{head}: {what}.\n\n{found}\n"""\n', *imports, "\n", body])


def write_test(program: Program, outcome: Outcome, seed: int, number: int, folder: Path) -> Path:
    """Write the test file `fuzz_<digest>.py` into `folder`, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"fuzz_{program.digest}.py"
    path.write_text(test_text(program, outcome, seed, number))
    return path
