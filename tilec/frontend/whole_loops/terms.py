"""Expressions as the terms that they add up, with signs: how an index goes by that of a loop."""

from __future__ import annotations

import ast

from tilec.support.syntax import copied, names_in

Terms = list[tuple[int, ast.expr]]


def added_in(node: ast.expr, sign: int = 1) -> Terms:
    """What an expression adds up, with signs."""
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            other = sign if isinstance(op, ast.Add) else -sign
            return added_in(left, sign) + added_in(right, other)
        case ast.UnaryOp(ast.USub(), value):
            return added_in(value, -sign)
    return [(sign, node)]


def sum_of(terms: Terms, at: ast.expr) -> ast.expr:
    """The expression, where `at` is, that adds up some terms."""
    made: ast.expr | None = None
    for sign, x in sorted(terms, key=lambda t: -t[0]):
        if made is None:
            made = x if sign > 0 else ast.UnaryOp(ast.USub(), x)
        else:
            made = ast.BinOp(made, ast.Add() if sign > 0 else ast.Sub(), x)
    assert made is not None
    return ast.fix_missing_locations(ast.copy_location(copied(made), at))


def without(index: str, terms: Terms) -> tuple[int, Terms]:
    """How often `index` is added, and what else is; no times where it stands in what else is."""
    rest = [(s, x) for s, x in terms if not (isinstance(x, ast.Name) and x.id == index)]
    if any(index in names_in(x) for _, x in rest):
        return 0, terms
    return sum(s for s, x in terms) - sum(s for s, x in rest), rest


def sign_of(node: ast.expr, index: str, changed: set[str]) -> int:
    """1 if an expression is `index` plus what names nothing that is `changed`, -1 if it is such
    less the index, 0 for anything else."""
    times, rest = without(index, added_in(node))
    same = names_in(*(x for _, x in rest)).isdisjoint(changed)
    return times if same and abs(times) == 1 else 0
