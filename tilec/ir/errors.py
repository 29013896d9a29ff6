"""What a user is told when something is wrong: one class per kind, one format for all."""

from __future__ import annotations

import difflib
import reprlib
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
        message = _cut(self.message)
        lines = [f"{self.loc}: {message}" if self.loc else message]
        if self.loc:
            excerpt = self.loc.excerpt()
            if excerpt:
                lines += excerpt.split("\n")
            calls = [*dict.fromkeys(map(str, self.loc.chain()[1:]))]  # once each, where it recurses
            calls = calls[:2] + calls[-1:] if len(calls) > 3 else calls  # and the kernel's own
            lines += [f"  in a macro called at {c}" for c in calls]
        lines += [f"    {row}" for row in self.table]
        if self.hint:
            lines += [f"  help: {_cut(line)}" for line in self.hint.split("\n")]
        return "\n".join(lines[:12])


def _cut(text: str) -> str:
    """A line of a message without the middle of what nobody reads to its end."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 80]} … {text[-80:]}"


_LONGEST = 480


class CompileError(TilecError):
    """The kernel's source says something tilec cannot compile.

    `others`: further mistakes of the same kernel, that have nothing to do with this one. `str()`
    tells them too, each in the form of the first, an empty line between two. `cause`: what is
    wrong, where lines that suffer from it say different things.
    """

    cause = ""

    others: tuple[CompileError, ...] = ()

    def __str__(self) -> str:
        return "\n\n".join((super().__str__(), *map(str, self.others)))


class LayoutError(CompileError):
    """A layout does not fit its buffer, or no instruction can use it."""


class ResourceError(CompileError):
    """The kernel needs more shared memory, registers, threads or barriers than the target has.

    `stages`: as many stages of a loop's buffers as would fit, 0 where fewer of them do not help.
    `spilled`: bytes that each thread spills, where that is the reason. `may_spill`: fragments take
    more registers than a thread has, which a slower program could keep in memory.
    """

    stages = 0
    spilled = 0
    may_spill = False


class TargetError(TilecError, ValueError):
    """A target's name is unknown, or names a machine that tilec does not compile for yet."""


class LaunchError(TilecError):
    """A call's arguments do not match the kernel's parameters."""


class CompileWarning(UserWarning):
    """Something legal in a kernel that is hardly meant. Given once for each line."""


class BoundsWarning(CompileWarning):
    """An access of a global tensor is out of its bounds, always or although a condition guards it:
    a read gives the safe value, a write does nothing."""


class PerformanceWarning(CompileWarning):
    """What a kernel says makes it slow: a fragment that is kept in shared memory, threads that
    repeat each other's work, a copy that cannot run ahead."""


_warned: dict[str | tuple[str, type[Warning], int], int] = {}


def warn(kind: type[CompileWarning], message: str, loc: Loc, hint: str) -> None:
    """Give a warning at the user's line, in the form of an error."""
    text = str(CompileError(message, loc, hint))
    warnings.warn_explicit(text, kind, loc.file, loc.line, registry=_warned)


class InternalError(TilecError):
    """A contract between tilec's own parts is broken: a bug in tilec, never in the user's
    program."""


class _Short(reprlib.Repr):
    """`repr` for messages: short, and of any object."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxother, self.maxlist, self.maxtuple = 3, 90, 8, 8

    def repr_str(self, x: str, level: int) -> str:
        text = repr(x)
        return text if len(text) <= 90 else f"{text[:60]}… ({len(x)} characters)"

    def repr1(self, x: object, level: int) -> str:
        return f"the class {x.__qualname__}" if isinstance(x, type) else super().repr1(x, level)

    def repr_int(self, x: int, level: int) -> str:
        return str(x) if abs(x) < 10**40 else f"an int of {digits(x)} digits"


def digits(number: int) -> int:
    """How many an int has; Python itself writes none of more than 4300."""
    return int(number.bit_length() * 0.30103) + 1


shown = _Short().repr
"""`repr` of what a user gave, for a message: at most a line of it, and of any object (a `repr` that
raises gives the class)."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" for the nearest known name, "" if none is near."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that `name` is spelt most like, "" if none is near."""
    names = list(known)
    same = [n for n in names if n.lower() == name.lower()]
    return next(iter(same or difflib.get_close_matches(name, names, 1, cutoff=0.6)), "")
