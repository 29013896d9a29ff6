"""Source locations: every value, op and message carries one."""

from __future__ import annotations

import linecache
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loc:
    """A range of one source line. Lines count from 1, columns from 0 (as `ast` does).

    `end_col` is exclusive; `caller` is the place of the macro call this code was expanded from.
    """

    file: str
    line: int
    col: int = 0
    end_col: int = 0
    caller: Loc | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col + 1}"

    def source_line(self) -> str:
        """The text of the line, "" where the file cannot be read."""
        return linecache.getline(self.file, self.line).rstrip("\n")

    def excerpt(self, known: str | None = None) -> str:
        """The line and, below it, a caret range; "" where the source cannot be read. `known` is
        the line's text where it was kept from an earlier reading."""
        text = self.source_line() if known is None else known
        if not text:
            return ""
        shown = text.lstrip()
        cut = len(text) - len(shown)
        start = max(self.col - cut, 0)
        width = max(min(self.end_col, len(text)) - self.col, 1)
        return f"    {shown}\n    {' ' * start}{'^' * width}"

    def chain(self) -> tuple[Loc, ...]:
        """This location, then the macro calls around it, innermost first."""
        return (self,) if self.caller is None else (self, *self.caller.chain())


UNKNOWN = Loc("<unknown>", 0)
