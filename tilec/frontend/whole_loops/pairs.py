"""Whole loops that compare rows of one tensor with rows of another, as distances do.

    for i, j in T.Parallel(M, N):
        s: T.float32 = 0
        for k in range(K):
            d = X[i, k] - Y[j, k]
            s += d * d
        O[i, j] = T.sqrt(s)

Each element is read for all rows of the other tensor. So it comes to shared memory once for a tile
of them, and what iterations keep, `s`, is a fragment: threads do with it what the loop says, in the
loop's order, for any loop that reads elements which depend on `i` or on `j`. Where a loop inside
counts `j`, and folds what comes of each row, its tiles have such fragments (`inner`).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from tilec.frontend.whole_loops.folds import given_by
from tilec.frontend.whole_loops.nests import (
    Named,
    Nest,
    chain_of,
    counts_of,
    elements_of,
    index_of,
)
from tilec.frontend.whole_loops.operands import Operand, Tiling, element_of
from tilec.frontend.whole_loops.rows import is_pure
from tilec.support.syntax import assigned_names, every, name_nodes, names_in

_LEAST = 16  # rows or columns for which tiles are filled
_SHORT = 8  # what they are compared by


@dataclass(frozen=True)
class Pairs:
    """A nest of which tiles go along a row, a column and the last of the loops `inner`, which do
    `body`. `kept`: variables with their dtypes; `tiles`: the elements that come to shared memory.
    `before` stands before the loops, `epilogue` behind them, and `named` are names for both. Of
    what products may have, it has no conditions and no sums of rows or columns alone."""

    rows: tuple[str]
    columns: tuple[str]
    inner: tuple[tuple[str, ast.expr], ...]
    kept: dict[str, ast.expr]
    tiles: tuple[Operand, ...]
    before: tuple[ast.stmt, ...]
    named: tuple[ast.stmt, ...]
    body: tuple[ast.stmt, ...]
    epilogue: tuple[ast.stmt, ...]
    guards: tuple[()] = ()
    tests: tuple[()] = ()
    alone: tuple[()] = ()

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.tiles

    @property
    def tiling(self) -> Tiling:
        """All operands are copied."""
        copied, none = frozenset(e.text for e in self.tiles), frozenset[str]()
        return Tiling(self.rows, self.columns, copied, none, {}, none, {})

    @property
    def behind(self) -> tuple[ast.stmt, ...]:
        return *self.named, *self.epilogue

    def how(self) -> list[str]:
        """What is done with the elements."""
        return [*map(ast.unparse, (*self.before, *self.body))]


def find_pairs(nest: Nest) -> Pairs | None:
    """The pairs of rows that a nest compares; None for any other."""
    named = nest.named
    at = next((n for n, s in enumerate(nest.body) if isinstance(s, ast.For)), -1)
    loop, before, epilogue = nest.body[at], nest.body[:at], nest.body[at + 1 :]
    if not isinstance(loop, ast.For) or any(every(ast.For | ast.While | ast.With, *epilogue)):
        return None
    chain = chain_of(loop)
    inner, begun = counts_of(chain, named), _begun(before)
    body, own = tuple(chain[-1].body), {*map(index_of, chain)}
    kept = dict[str, ast.expr]()
    if inner is None or begun is None or not all(_is_straight(s, named) for s in body):
        return None
    changed = assigned_names(body)
    for s in begun.values():
        if isinstance(s, ast.AnnAssign) and ast.unparse(s.target) in changed:
            kept[ast.unparse(s.target)] = s.annotation
    others = {name: s for name, s in begun.items() if name not in kept}
    added = {ast.unparse(s.target) for s in every(ast.AugAssign, *body)}
    typed = {ast.unparse(s.target) for s in every(ast.AnnAssign, *body)}
    once, fixed = (changed - {*kept}) | own, {*nest.indices, *begun, *changed, *own}
    if (
        not kept
        or not added <= {*kept}
        or not {*kept}.isdisjoint({*typed, *names_in(*others.values())})
        or not {*others}.isdisjoint(names_in(*body))
        or not once.isdisjoint(names_in(*before, *epilogue))
        or not {*nest.indices}.isdisjoint(assigned_names(nest.body))
        or not fixed.isdisjoint(names_in(*(e for _, e in inner)))
    ):
        return None
    elements = [element_of(e) for e in elements_of(*body)]
    written = {n.id for n in name_nodes(*epilogue)} & {e.tensor.id for e in elements if e.tensor}
    found = _lines(nest, elements, inner[-1][0], changed) if not written else None
    extents = dict(zip(nest.indices, nest.extents))
    if found is None or any(0 < nest.length(extents[i]) < _LEAST for i in found):
        return None
    if 0 < nest.length(inner[-1][1]) < _SHORT:
        return None
    tiles = {e.text: e for e in elements if e.names & {*found}}
    (row, column), named_too = found, tuple(others.values())
    return Pairs(
        (row,), (column,), inner, kept, tuple(tiles.values()), before, named_too, body, epilogue
    )


def _lines(
    nest: Nest, elements: Sequence[Operand], turn: str, changed: set[str]
) -> tuple[str, str] | None:
    """The row and the column, the last indices that some elements depend on and others do not: none
    depends on both, and those that do on one go by it, and by the index `turn` of the loop."""

    def is_tile(e: Operand, index: str) -> bool:
        at, along = e.where(index), e.where(turn)
        return at is not None and along is not None and at != along and not e.names & changed

    of = {i: [e for e in elements if i in e.names] for i in nest.indices}
    some = [i for i in nest.indices if 0 < len(of[i]) < len(elements)]
    for row, column in [(r, c) for c in reversed(some) for r in reversed(some[: some.index(c)])]:
        both = [(e, i) for i in (row, column) for e in of[i]]
        if all(is_tile(*x) for x in both) and not any(e in of[row] for e in of[column]):
            return row, column
    return None


def _begun(before: Sequence[ast.stmt]) -> dict[str, ast.stmt] | None:
    """The statements that give names a value, one each; None where there are others."""
    made = {name: s for s in before for name, value in [given_by(s)] if value is not None}
    return made if len(made) == len(before) else None


def _is_straight(s: ast.stmt, named: Named) -> bool:
    """Whether a statement gives names a value, on a condition or not."""
    match s:
        case ast.Assign([ast.Name()], value) | ast.AugAssign(ast.Name(), _, value):
            return is_pure(value, named)
        case ast.AnnAssign(ast.Name(), _, ast.expr() as value):
            return is_pure(value, named)
        case ast.If(test, body, orelse):
            return is_pure(test, named) and all(_is_straight(x, named) for x in (*body, *orelse))
    return False
