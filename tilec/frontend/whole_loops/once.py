"""Variables that one iteration of a loop gives a value, as sums with one term.

own = 0.0                               own = 0.0
for j in range(N):                      for j in range(N):
    if j == Y[i]: own = X[i, j]   ->        if j == Y[i]: own += X[i, j]
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from tilec.frontend.whole_loops.nests import (
    Nest,
    chain_of,
    elements_of,
    index_of,
    stored_tensors,
    tensor_of,
)
from tilec.support.syntax import conditions_in, copied, name_nodes, names_in, stored_names


def with_sums_of_one(nest: Nest) -> Nest:
    """The nest with such a sum for each assignment on a condition that says which iteration of the
    loops in one another it is, to a variable that begins as 0 and that they do not use."""
    stored = stored_names(*nest.body)
    start = {name for s in nest.body for name in _begun_as_0(s) if stored.count(name) == 2}
    made = [_with_sums(s, start) for s in nest.body]
    return nest if made == [*nest.body] else replace(nest, body=tuple(made))


def _begun_as_0(s: ast.stmt) -> list[str]:
    match s:
        case ast.Assign([ast.Name(name)], ast.Constant(float() as n)) if n == 0:
            return [name]
        case ast.AnnAssign(ast.Name(name), _, ast.Constant(int() | float() as n)) if n == 0:
            return [name]
    return []


def _with_sums(s: ast.stmt, start: set[str]) -> ast.stmt:
    if not isinstance(s, ast.For):
        return s
    chain, inside = chain_of(s), [n.id for n in name_nodes(s)]
    start = {name for name in start if inside.count(name) == 1}
    found = [
        t
        for t in chain[-1].body
        if isinstance(t, ast.If) and not t.orelse and _is_one(t.test, chain)
        if any(_added(x, start) is not x for x in t.body)
    ]
    if not found:
        return s
    at = [chain[-1].body.index(t) for t in found]
    made = copied(s)
    body = chain_of(made)[-1].body
    for t in (body[n] for n in at):
        assert isinstance(t, ast.If)
        t.body = [_added(x, start) for x in t.body]
    return made


def _added(s: ast.stmt, start: set[str]) -> ast.stmt:
    match s:
        case ast.Assign([ast.Name(name) as target], value) if name in start:
            return ast.copy_location(ast.AugAssign(target, ast.Add(), value), s)
    return s


def _is_one(test: ast.expr, chain: Sequence[ast.For]) -> bool:
    """Whether one iteration of the loops at most meets a condition."""
    changed, written = {*stored_names(chain[0])}, stored_tensors(chain[0])
    told = set[str]()
    for t in conditions_in(test):
        match t:
            case ast.Compare(left, [ast.Eq()], [right]):
                for index, other in ((left, right), (right, left)):
                    read = {tensor_of(e) for e in elements_of(ast.Expr(other))}
                    if isinstance(index, ast.Name) and not read & written:
                        if names_in(other).isdisjoint(changed):
                            told.add(index.id)
    return {index_of(c) for c in chain} <= told
