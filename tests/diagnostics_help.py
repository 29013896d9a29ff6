"""What the tests of messages share."""

from __future__ import annotations

import traceback
from pathlib import Path

import tilec

PACKAGE = str(Path(tilec.__file__).parent)


def frames_of_tilec(error: BaseException) -> int:
    """How many lines of an error's traceback are tilec's."""
    frames = traceback.extract_tb(error.__traceback__)
    return sum(f.filename.startswith((PACKAGE, "<tilec")) for f in frames)


def carets(error: tilec.TilecError) -> str:
    """The characters above the carets, as a reader of the message sees them."""
    lines = str(error).split("\n")
    at = next(n for n, text in enumerate(lines) if set(text.strip()) == {"^"})
    return lines[at - 1][lines[at].index("^") : len(lines[at])]
