"""Nothing that a kernel prints is shown: T.print writes to the process's own output."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
from collections.abc import Iterator


@contextlib.contextmanager
def silent(deep: bool) -> Iterator[None]:
    """Drop what Python writes to its two outputs, and where `deep`, what anybody does."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        if not deep:
            yield
            return
        kept = os.dup(1)
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nothing, 1)
            yield
        finally:
            ctypes.CDLL(None).fflush(None)  # what C has kept back goes where it belongs
            os.dup2(kept, 1)
            os.close(kept)
            os.close(nothing)
