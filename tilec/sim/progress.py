"""How far a long run is, on stderr: one line that is written over, or plain lines where stderr is a
file. Nothing is written of a run that ends soon."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

SILENT = 3.0  # seconds
_EVERY = {True: 0.5, False: 30.0}  # seconds, on a terminal and in a file


class Progress:
    """`with Progress(name, total) as p:`, then `p.done += 1` after each of `total` blocks. A thread
    writes, so that a block that takes long is seen too."""

    def __init__(self, name: str, total: int, stream: TextIO | None = None) -> None:
        self.done, self.total, self.name = 0, total, name
        self.judged = False  # whether the time of the rest has been looked at
        self._stream = sys.stderr if stream is None else stream
        self._bar = self._stream.isatty()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Progress:
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def line(self) -> str:
        """What is written: blocks that are done, and how long the others will take."""
        spent = self.spent
        text = f"simulating {self.name}: {self.done} of {self.total} blocks, {spent:.0f} s"
        if not self.done:
            return text
        return f"{text}, about {spent / self.done * (self.total - self.done):.0f} s left"

    def _write(self) -> None:
        pause, wrote = SILENT, False
        while not self._end.wait(pause):
            head, tail = ("\r\033[K", "") if self._bar else ("", "\n")
            self._stream.write(head + self.line() + tail)
            self._stream.flush()
            pause, wrote = _EVERY[self._bar], True
        if wrote and self._bar:
            self._stream.write("\r\033[K")
            self._stream.flush()
