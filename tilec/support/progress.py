"""How far long work is: one line on stderr that is written over, or plain lines where stderr is a
file.

Written to a terminal only, unless the caller or TILEC_PROGRESS says otherwise: 1 asks for it
everywhere, 0 nowhere. Output that a program reads is never mixed with it."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

from tilec.ir.errors import TilecError

ENVIRONMENT = "TILEC_PROGRESS"
SILENT = 3.0  # seconds: what is done by then needs no word
_EVERY = {True: 0.5, False: 30.0}  # seconds, on a terminal and in a file
_WIDTH = 16  # characters of the bar


def is_wanted(stream: TextIO) -> bool:
    """Whether progress is written to `stream`. Raises TilecError for a variable that says neither
    yes nor no."""
    said = os.environ.get(ENVIRONMENT, "")
    if said not in ("", "0", "1"):
        raise TilecError(f"{ENVIRONMENT} is {said!r}", hint=f"set {ENVIRONMENT} to 1 or 0")
    return said == "1" or (said == "" and stream.isatty())


class Progress:
    """`with Progress("simulating k", total, "blocks") as p:`, then `p.done += 1` after each of
    `total` steps, or `p.step(label)` before each; `close()` where there is no `with`. A thread
    writes, so that a step that takes long is seen too; the first line comes after `silent` seconds.
    `shown`: whether anything is written (None: see the module's opening). `threaded`: False where
    time is measured, beside which nothing shall run: then `step` and `tell` alone write."""

    def __init__(
        self,
        doing: str,
        total: int,
        unit: str,
        stream: TextIO | None = None,
        silent: float = SILENT,
        shown: bool | None = None,
        threaded: bool = True,
    ) -> None:
        self.doing, self.total, self.unit, self.done, self.label = doing, total, unit, 0, ""
        self._stream = sys.stderr if stream is None else stream
        self._wanted = is_wanted(self._stream) if shown is None else shown
        self._over = self._stream.isatty()
        self._silent, self._wrote, self._begun = silent, False, 0
        self._threaded = threaded and self._wanted
        self._end, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        if self._threaded and not self._thread.is_alive():
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def step(self, label: str) -> None:
        """Begin the next step: those before it are done."""
        if self._begun == 0:
            self.__enter__()
        self.done, self.label = self._begun, label
        self._begun += 1
        self.tell()

    def tell(self) -> None:
        """Write how far it is now, unless it is too early for that."""
        if self._wanted and self.spent >= self._silent:
            self._put()

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        if self._wanted:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Stop writing, and take the line off the terminal."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        self.clear()

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def line(self) -> str:
        """What is written: the steps that are done, and how long the others will take."""
        spent, label = self.spent, f"  {self.label}" if self.label else ""
        text = f"{self.doing}: {self.done} of {self.total} {self.unit}, {spent:.0f} s"
        if self.done and self.done < self.total:
            left = spent / self.done * (self.total - self.done)
            text += f", about {left:.0f} s left"
        return text + label

    def clear(self) -> None:
        """Take the line off the terminal, before something else is printed."""
        with self._lock:
            if self._wrote and self._over:
                self._stream.write("\r\033[K")
                self._stream.flush()
            self._wrote = False

    def _put(self) -> None:
        head, tail = ("\r\033[K", "") if self._over else ("", "\n")
        if self._over and self.total:
            full = min(_WIDTH, _WIDTH * self.done // self.total)
            head += f"[{'#' * full}{'.' * (_WIDTH - full)}] "
        with self._lock:
            self._stream.write(head + self.line() + tail)
            self._stream.flush()
            self._wrote = True

    def _write(self) -> None:
        pause = self._silent
        while not self._end.wait(pause):
            self._put()
            pause = _EVERY[self._over]
