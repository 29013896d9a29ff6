"""What a user is told when something is wrong: one class per kind, one format for all."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable

from tilec.ir.loc import Loc


class TilecError(Exception):
    """Base of every error tilec raises on purpose.

    `message` says what is wrong, with both operands named where there are two; `loc` is the user's
    line; `hint` is one concrete thing to write instead; `table` are rows to be shown between the
    two. `str()` is at most 12 lines.
    """

    table: tuple[str, ...] = ()

    def __init__(self, message: str, loc: Loc | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.loc = loc
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"{self.loc}: {self.message}" if self.loc else self.message]
        if self.loc:
            excerpt = self.loc.excerpt()
            if excerpt:
                lines += excerpt.split("\n")
            lines += [f"  in a macro called at {c}" for c in self.loc.chain()[1:4]]
        lines += [f"    {row}" for row in self.table]
        if self.hint:
            lines += [f"  help: {line}" for line in self.hint.split("\n")]
        return "\n".join(lines[:12])


class CompileError(TilecError):
    """The kernel's source says something tilec cannot compile."""


class LayoutError(CompileError):
    """A layout does not fit its buffer, or no instruction can use it."""


class ResourceError(CompileError):
    """The kernel needs more shared memory, registers, threads or barriers than the target has.

    `stages`: as many versions of a loop's buffers as would fit, 0 where fewer of them do not help.
    """

    stages = 0


class LaunchError(TilecError):
    """A call's arguments do not match the kernel's parameters."""


class BoundsWarning(UserWarning):
    """An access of a global tensor is out of its bounds, always or although a condition guards it:
    a read gives the safe value, a write does nothing. Given once for each line."""


_warned: dict[str | tuple[str, type[Warning], int], int] = {}


def warn_of_bounds(message: str, loc: Loc, hint: str) -> None:
    """Give a BoundsWarning at the user's line, in the form of an error."""
    text = str(CompileError(message, loc, hint))
    warnings.warn_explicit(text, BoundsWarning, loc.file, loc.line, registry=_warned)


class InternalError(TilecError):
    """A contract between tilec's own parts is broken: a bug in tilec, never in the user's
    program."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" for the nearest known name, "" if none is near."""
    names = list(known)
    near = [n for n in names if n.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, names, 1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
