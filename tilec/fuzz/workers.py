"""A process that runs programs. A program that ends its process, or that does not come to an end,
is a failure like any other: it is reported, and another process takes the place of the one that is
gone."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from tilec.fuzz.buffers import Invalid
from tilec.fuzz.numbers import Unclear
from tilec.fuzz.outcome import GPU_RUNS, Outcome, outcomes
from tilec.fuzz.program import Program

MOST_SECONDS = 300.0  # of one program on one target
_CONTEXT = multiprocessing.get_context("spawn")  # a fork has no CUDA and only one of LLVM's threads
_LINES = 12  # of a process's standard error: its last words, then where it was


class Worker:
    """A process that runs one program after the other, each for at most `seconds` a target."""

    def __init__(self, seconds: float = MOST_SECONDS) -> None:
        self._seconds = seconds
        self._stopped = False
        self._start()

    def _start(self) -> None:
        handle, name = tempfile.mkstemp(prefix="tilec-fuzz-")
        os.close(handle)
        self._said = Path(name)
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, name), daemon=True)
        self._process.start()
        self._ready = False
        theirs.close()

    def stop(self) -> None:
        """End a program that is run in another thread."""
        self._stopped = True
        self._process.kill()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._said.unlink(missing_ok=True)

    def run(
        self, program: Program, targets: Sequence[str], runs: int = GPU_RUNS
    ) -> tuple[Outcome, ...]:
        """The outcomes of a program. Raises Invalid for one without a meaning."""
        made: list[Outcome] = []
        try:
            if not self._ready:  # to start takes seconds, which are not the program's
                self._ready = bool(self._pipe.recv())
            self._pipe.send((program, tuple(targets), runs))
            while self._pipe.poll(self._seconds):
                got = self._pipe.recv()
                if isinstance(got, Outcome):
                    made.append(got)
                    continue
                if any(o.target == "gpu" and o.failed for o in made):
                    self._renew()  # an error stays with the process's CUDA context
                if got:
                    raise Invalid(got)
                return tuple(made)
            kind, detail = "endless", f"not done after {self._seconds:.0f} s"
        except (EOFError, OSError):
            self._process.join()
            kind, detail = "ended", _how(self._process.exitcode)
        said = self._said.read_text(errors="replace").strip().splitlines()
        target = targets[min(len(made), len(targets) - 1)]  # the one at work
        self._renew()
        return (*made, Outcome(target, kind, detail, "\n".join([detail, *said[:_LINES]])))

    def _renew(self) -> None:
        self.close()
        if not self._stopped:
            self._start()


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
    pipe.send("ready")
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
