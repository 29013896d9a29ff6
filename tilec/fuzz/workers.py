"""Processes that run programs. A program that ends its process, or that does not come to an end, is
a failure like any other: it is reported, and another process takes the place of the one that is
gone."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tilec.fuzz.buffers import Invalid
from tilec.fuzz.numbers import Unclear
from tilec.fuzz.outcome import GPU_RUNS, Outcome, outcomes
from tilec.fuzz.program import Program

MOST_SECONDS = 300.0  # of one program on one target
_CONTEXT = multiprocessing.get_context("spawn")  # a fork has no CUDA and only one of LLVM's threads
_LINES = (
    12  # of what a process has written to its standard error: its last words, then where it was
)


@dataclass
class _Task:
    """A program at work. `made`: the outcomes so far; the next target is the one at work."""

    program: Program
    targets: tuple[str, ...]
    made: list[Outcome]
    since: float


class Worker:
    """A process that runs one program after the other, each for at most `seconds` a target."""

    def __init__(self, seconds: float = MOST_SECONDS) -> None:
        self._seconds = seconds
        self._task: _Task | None = None
        self._start()

    def _start(self) -> None:
        handle, name = tempfile.mkstemp(prefix="tilec-fuzz-")
        os.close(handle)
        self._said = Path(name)
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, name), daemon=True)
        self._process.start()
        theirs.close()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._said.unlink(missing_ok=True)

    def begin(self, program: Program, targets: Sequence[str], runs: int = GPU_RUNS) -> None:
        """Give it a program; `finished` tells when it is done."""
        self._task = _Task(program, tuple(targets), [], time.monotonic())
        try:
            self._pipe.send((program, self._task.targets, runs))
        except OSError:  # it is gone already, which `_step` finds
            pass

    def run(
        self, program: Program, targets: Sequence[str], runs: int = GPU_RUNS
    ) -> tuple[Outcome, ...]:
        """The outcomes of a program. Raises Invalid for one without a meaning."""
        self.begin(program, targets, runs)
        while True:
            for _, made, invalid in finished([self]):
                if invalid:
                    raise Invalid(invalid)
                return made

    def _left(self) -> float:
        """The seconds until the program at work counts as one without an end."""
        assert self._task is not None
        return self._task.since + self._seconds - time.monotonic()

    def _step(self) -> str | None:
        """Take what the process has sent. None while it is at work, "" when it is done, else why
        the program has no meaning."""
        task = self._task
        assert task is not None
        try:
            while self._pipe.poll():
                got = self._pipe.recv()
                if isinstance(got, str):
                    if any(o.target == "gpu" and o.failed for o in task.made):
                        self._renew()  # an error stays with the process's CUDA context
                    return got
                task.made.append(got)
                task.since = time.monotonic()
        except (EOFError, OSError):
            self._process.join()
            self._lost("ended", _how(self._process.exitcode))
            return ""
        if self._left() <= 0:
            self._process.kill()
            self._process.join()
            self._lost("endless", f"not done after {self._seconds:.0f} s")
            return ""
        return None

    def _lost(self, kind: str, detail: str) -> None:
        """Note that the target at work has taken the process with it."""
        task = self._task
        assert task is not None
        said = self._said.read_text(errors="replace").strip().splitlines()
        target = task.targets[min(len(task.made), len(task.targets) - 1)]
        task.made.append(Outcome(target, kind, detail, "\n".join([detail, *said[:_LINES]])))
        self._renew()

    def _renew(self) -> None:
        self.close()
        self._start()


def finished(workers: Iterable[Worker]) -> Iterator[tuple[Worker, tuple[Outcome, ...], str]]:
    """Wait until at least one of the workers has something to say. Those that are done, each with
    its outcomes and why its program has no meaning, "" for one that has."""
    busy = list(workers)
    wait([w._pipe for w in busy], max(0.0, min(w._left() for w in busy)))
    for worker in busy:
        invalid = worker._step()
        if invalid is not None and worker._task is not None:
            made, worker._task = tuple(worker._task.made), None
            yield worker, made, invalid


def _how(status: int | None) -> str:
    """How a process ended, in words."""
    if status is not None and status < 0:
        return signal.Signals(-status).name
    return f"exit status {status}"


def _serve(pipe: Connection, said: str) -> None:
    """The process: outcomes as they come, then "" or why there are none. Ctrl-C is its parent's,
    and what is written to the standard error stays in a file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process, one core
    kept = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(kept, 2)
    faulthandler.enable(2, all_threads=False)
    while True:
        try:
            program, targets, runs = pipe.recv()
        except EOFError:  # the parent is gone
            return
        os.ftruncate(2, 0)
        try:
            for outcome in outcomes(program, targets, runs):
                pipe.send(outcome)
            pipe.send("")
        except (Invalid, Unclear) as e:
            pipe.send(str(e) or type(e).__name__)
