"""Several sums into one variable of a loop as one, where nothing reads it in between.

total += X[i, j]
if j >= R:                      ->      total += X[i, j] + T.if_then_else(j >= R, -X[i, j - R], 0)
    total -= X[i, j - R]
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilec.frontend.whole_loops.nests import (
    DtypeOf,
    changed_by,
    elements_of,
    stored_tensors,
    tensor_of,
)
from tilec.ir.types import DType
from tilec.support.syntax import names_in, parsed, stored_names

DtypeBehind = Callable[[ast.expr, Sequence[ast.stmt]], DType | None]


@dataclass(frozen=True)
class Joined:
    """`kept`: the variables that loops may fold into, with their dtypes; `dtype_of`: what a dtype
    as it is written means; `dtype`: that of an expression behind statements; `language` stands for
    `tilec.language`."""

    kept: Mapping[str, ast.expr]
    dtype_of: DtypeOf
    dtype: DtypeBehind
    language: str

    def of(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements of a loop, with one sum for each variable where that may be."""
        made = list[ast.stmt]()
        for s in body:
            name, more = self._added(s, made)
            at = max((n for n, x in enumerate(made) if name in _names(x)), default=-1)
            if name and at >= 0:
                again, first = self._added(made[at], made[:at])
                if again == name and _may_wait(made[at], made[at + 1 :]):
                    made.pop(at)
                    (s,) = parsed(f"{name} += {first} + {more}", s)
            made.append(s)
        return made

    def _added(self, s: ast.stmt, before: Sequence[ast.stmt]) -> tuple[str, str]:
        """The variable that a statement adds a number to, and that number in its dtype; nothing for
        any other statement."""
        match s:
            case ast.If(test, [inner], []):
                name, more = self._added(inner, before)
                if not name or name in names_in(test):
                    return "", ""
                dtype = ast.unparse(self.kept[name])
                none = f"{self.language}.cast(0, {dtype})"
                return name, f"{self.language}.if_then_else({ast.unparse(test)}, {more}, {none})"
        found = changed_by(s)
        if found is None or not isinstance(found[1], ast.Add):
            return "", ""
        name, _, value = found
        kept = self.dtype_of(self.kept[name]) if name in self.kept else None
        if kept is None or name in names_in(value):
            return "", ""
        text = ast.unparse(value)
        if not text.startswith(f"-{self.language}.cast("):  # a difference, as `in_order` writes it
            given = self.dtype(value, before)
            if given is None or (kept.is_int and not given.is_int) or kept.bits < given.bits:
                return "", ""
        return name, f"{self.language}.cast({text}, {kept.name!r})"


def _names(s: ast.stmt) -> set[str]:
    return names_in(s) | {*stored_names(s)}


def _may_wait(s: ast.stmt, behind: Sequence[ast.stmt]) -> bool:
    """Whether what a statement reads is the same behind some others."""
    read = {tensor_of(e) for e in elements_of(s)}
    return names_in(s).isdisjoint(stored_names(*behind)) and read.isdisjoint(
        stored_tensors(*behind)
    )
