"""Several sums into one variable of a loop as one, where nothing reads it in between.

total += X[i, j]
if j >= R:                      ->      total += X[i, j] + T.if_then_else(j >= R, -X[i, j - R], 0)
    total -= X[i, j - R]
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tilec.frontend.whole_loops.folds import Folds
from tilec.frontend.whole_loops.nests import (
    changed_by,
    elements_of,
    stored_tensors,
    tensor_of,
)
from tilec.support.syntax import names_in, parsed, stored_names


def joined(body: Sequence[ast.stmt], folds: Folds) -> list[ast.stmt]:
    """The statements of a loop, with one sum for each variable where that may be; `folds` reads the
    nest that they stand in."""
    made = list[ast.stmt]()
    for s in body:
        name, more = _added(s, made, folds)
        at = max((n for n, x in enumerate(made) if name in _names(x)), default=-1)
        if name and at >= 0:
            again, first = _added(made[at], made[:at], folds)
            if again == name and _may_wait(made[at], made[at + 1 :]):
                made.pop(at)
                (s,) = parsed(f"{name} += {first} + {more}", s)
        made.append(s)
    return made


def _added(s: ast.stmt, before: Sequence[ast.stmt], folds: Folds) -> tuple[str, str]:
    """The variable that a statement adds a number to, and that number in its dtype; nothing for any
    other statement."""
    t = folds.language
    match s:
        case ast.If(test, [inner], []):
            name, more = _added(inner, before, folds)
            if not name or name in names_in(test):
                return "", ""
            none = f"{t}.cast(0, {ast.unparse(folds.sums[name])})"
            return name, f"{t}.if_then_else({ast.unparse(test)}, {more}, {none})"
    found = changed_by(s)
    if found is None or not isinstance(found[1], ast.Add):
        return "", ""
    name, _, value = found
    kept = folds.nest.dtype_of(folds.sums[name]) if name in folds.sums else None
    if kept is None or name in names_in(value):
        return "", ""
    text = ast.unparse(value)
    if not text.startswith(f"-{t}.cast("):  # a difference, as `in_order` writes it
        given = folds.dtype(value, before)
        if given is None or (kept.is_int and not given.is_int) or kept.bits < given.bits:
            return "", ""
    return name, f"{t}.cast({text}, {kept.name!r})"


def _names(s: ast.stmt) -> set[str]:
    return names_in(s) | {*stored_names(s)}


def _may_wait(s: ast.stmt, behind: Sequence[ast.stmt]) -> bool:
    """Whether what a statement reads is the same behind some others."""
    read = {tensor_of(e) for e in elements_of(s)}
    return names_in(s).isdisjoint(stored_names(*behind)) and read.isdisjoint(
        stored_tensors(*behind)
    )
