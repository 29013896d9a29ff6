"""A progress bar on stderr: one line that is written over, or plain lines where stderr is a
file."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 24


class Progress:
    """`step(label)` before each of `total` steps, `close()` at the end; `say` prints a line above
    the bar. `shown`: whether anything is written, None for "where stderr is a terminal"."""

    def __init__(self, total: int, stream: TextIO | None = None, shown: bool | None = True) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._total, self._done, self._start = total, -1, time.monotonic()
        self._bar = self._stream.isatty()
        self._shown = self._bar if shown is None else shown

    def step(self, label: str) -> None:
        self._done += 1
        spent = time.monotonic() - self._start
        left = spent / self._done * (self._total - self._done) if self._done else 0.0
        if not self._bar:
            self._write(f"[{self._done + 1}/{self._total}] {spent:4.0f} s  {label}\n")
        else:
            full = _WIDTH * self._done // max(self._total, 1)
            bar = "#" * full + "." * (_WIDTH - full)
            count = f"{self._done}/{self._total}"
            self._write(f"\r\033[K[{bar}] {count} {spent:.0f} s, {left:.0f} left  {label}")

    def say(self, text: str) -> None:
        self._write(("\r\033[K" if self._bar else "") + text + "\n")

    def close(self) -> None:
        if self._bar:
            self._write("\r\033[K")

    def _write(self, text: str) -> None:
        if self._shown:
            self._stream.write(text)
            self._stream.flush()
