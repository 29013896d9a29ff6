"""What a bug of tilec's looks like to a user: an InternalError with a line of theirs, whatever was
raised inside."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from tilec.ir.caller import LAUNCHER
from tilec.ir.errors import InternalError, TilecError
from tilec.ir.loc import Loc

_CALLED = (sys.stdlib_module_names | {"numpy", "llvmlite", "ml_dtypes"}) - {"__main__"}
"""Whose code raises for who calls it."""

_LINE = "line_of_the_kernel"


@contextmanager
def told_as_internal(doing: str, loc: Loc | None) -> Iterator[None]:
    """Around work of tilec's on a kernel: what it raises that is not meant for users becomes an
    InternalError at the line noted with it, or else at `loc`. What code of the user's raises, which
    tilec calls, stays as it is; and so does what is no fault of anybody's code: a warning that the
    user's filters make an error, a machine without a file, a disk or memory."""
    try:
        yield
    except (TilecError, Warning, OSError, MemoryError):
        raise
    except Exception as e:
        where = _innermost(e)
        if where is None:
            raise
        said = f"{type(e).__name__}: {e}" if str(e) else type(e).__name__
        raise InternalError(
            f"{doing}, tilec met {said} ({where})",
            getattr(e, _LINE, loc),
            "this is a fault of tilec's: please report it with the kernel",
        ) from e


def note_line(error: Exception, loc: Loc) -> None:
    """Keep with an error the innermost statement that it leaves."""
    error.__dict__.setdefault(_LINE, loc)


def _innermost(error: Exception) -> str | None:
    """Where in tilec it was raised; None where that is somebody else's code."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        module = str(frame.f_globals.get("__name__") or "")
        if module.split(".")[0] in _CALLED:
            continue
        ours = module.split(".")[0] == "tilec" or frame.f_code.co_filename.startswith(LAUNCHER)
        return f"{module}:{line}" if ours else None
    return None
