"""LLVM's work for CPUs and AMD GPUs in children of a small process.

tilec forks a process for it. Fork copies the tables of all pages, and each that one of both writes
afterwards: 20 ms in a new process, 200 ms in one that has a gigabyte of kernels from a thousand
tests, thousands of times. So tests ask a process that was forked before there was anything.

Of objects for the CPU it optimises every fourth as tilec does (by the text, so that it is the same
ones in every run), or all with `--every-cell`; the others by the passes that tilec falls back to,
`scalar`, which take half as long. What LLVM makes of the text is read as it is anywhere."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import threading
import zlib
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tilec.codegen.isolated import Ended
from tilec.ir.errors import InternalError
from tilec.target import Target

Made = tuple[bytes, dict[str, float]]
MODULE: Any = importlib.import_module("tilec.codegen.assemble")
ALONE: Callable[[str, Target, Any], Made] = MODULE._made
PARTS = ("_optimised", "_machine", "run_isolated", "_linked")
"""What tests put others in the place of, which the small process would not see."""


class SmallProcess:
    """Takes the place of `assemble._made`. `whole`: all is optimised as tilec does it."""

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole
        here, there = Pipe()
        self._connection, self._owner = here, os.getpid()
        self._lock = threading.Lock()
        self._parts = [getattr(MODULE, name) for name in PARTS]
        self._process = os.fork()
        if self._process == 0:
            try:
                here.close()
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with who asks it
                _serve(there)
            finally:
                os._exit(0)
        there.close()

    def made(self, llvm_text: str, target: Target, emit: Any) -> Made:
        mine = os.getpid() == self._owner  # and not a child of this process
        if target.kind == "cuda" or self.replaced() or not mine:
            return ALONE(llvm_text, target, emit)
        with self._lock:
            few = not self._whole and _by_few_passes(llvm_text, target, emit)
            self._connection.send((llvm_text, target, "_few" if few else emit.__name__))
            made, raised = self._connection.recv()
        if raised is not None:
            raise (Ended if raised[0] else InternalError)(raised[1])
        found: Made = made
        return found

    def replaced(self) -> bool:
        """Whether a test has put something else in the place of what works here."""
        return [getattr(MODULE, name) for name in PARTS] != self._parts

    def end(self) -> None:
        self._connection.close()
        os.waitpid(self._process, 0)


def _by_few_passes(llvm_text: str, target: Target, emit: Any) -> bool:
    is_object = target.kind == "cpu" and emit.__name__ == "_object"
    return is_object and bool(zlib.crc32(llvm_text.encode()) % 4)


def _made(asked: tuple[str, Target, str]) -> Made:
    llvm_text, target, emit = asked
    if emit != "_few":
        return ALONE(llvm_text, target, getattr(MODULE, emit))
    seconds: dict[str, float] = {}
    module = MODULE._optimised(llvm_text, target, seconds, "scalar")
    with MODULE._timed(seconds, "emit"):
        return MODULE._object(MODULE._machine(target), module), seconds


def _serve(connection: Connection) -> None:
    """Answers what comes: by a child that goes on to the next where LLVM is done, since each new
    one takes 40 ms to come to where LLVM works; as tilec does, where that one cannot."""
    child = None
    with contextlib.suppress(EOFError):
        while True:
            asked = connection.recv()
            child = child or _Child(connection)
            made = child.made(asked)
            if made is not None:
                connection.send((made, None))
                continue
            child = None
            llvm_text, target, emit = asked
            emit = "_object" if emit == "_few" else emit
            try:
                connection.send((_made((llvm_text, target, emit)), None))
            except InternalError as error:
                connection.send((None, (isinstance(error, Ended), error.message)))


class _Child:
    """A process with LLVM in it."""

    def __init__(self, asks: Connection) -> None:
        here, there = Pipe()
        self._connection, self._process = here, os.fork()
        if self._process == 0:
            try:
                asks.close()
                here.close()
                self._work(there)
            finally:
                os._exit(0)
        there.close()

    @staticmethod
    def _work(connection: Connection) -> None:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what ends it is said by the next
        MODULE.run_isolated = lambda make, what: make()
        with contextlib.suppress(EOFError, InternalError):
            while True:
                connection.send(_made(connection.recv()))

    def made(self, asked: tuple[str, Target, str]) -> Made | None:
        """None, and the end of it, where LLVM ended the process or refused what it was given."""
        try:
            self._connection.send(asked)
            made: Made = self._connection.recv()
        except (EOFError, OSError):
            self._connection.close()
            os.waitpid(self._process, 0)
            return None
        return made
