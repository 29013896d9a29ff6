"""Numbers that leave indices as they are, which names stand for: a stride of 1, a padding of 0.

X[b, y * stride + r * dilation - pad, c]    ->    X[b, y + r, c]

What a loop is, is read from its syntax, to which a name says nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection

from tilec.frontend.whole_loops.counting import number_in
from tilec.support.syntax import (
    copied,
    every,
    functions_within,
    name_nodes,
    names_in,
    stored_names,
)


def without_ones(
    body: tuple[ast.stmt, ...], indices: Collection[str], named: Callable[[ast.expr], object]
) -> tuple[ast.stmt, ...]:
    """The body of a loop with these indices, where sums and products of indices of loops, which are
    ints, do without numbers that change nothing."""
    loops = every(ast.For, *body)
    counted = [n.id for loop in loops for n in name_nodes(loop.target)]
    stored = stored_names(*body)
    ints = {n for n in (*indices, *counted) if stored.count(n) == counted.count(n)}
    inside = {a.arg for a in every(ast.arg, *body)}
    own = inside.union(stored, indices, *map(functions_within, body))
    ints -= inside
    if not any(_neutral(n, ints, own, named) for n in every(ast.BinOp, *body)):
        return body

    class Without(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
            self.generic_visit(node)
            return _neutral(node, ints, own, named) or node

    return tuple(Without().visit(copied(s)) for s in body)


def _neutral(
    node: ast.BinOp, ints: set[str], own: set[str], named: Callable[[ast.expr], object]
) -> ast.expr | None:
    """What a sum or product is the same as, one side of it; None if it is neither. `own`: names
    that the loop gives something to, which are no numbers of before."""
    sides = [(node.left, node.right)]
    match node.op:
        case ast.Mult() | ast.Add():
            sides.append((node.right, node.left))
        case ast.FloorDiv() | ast.Sub():
            pass
        case _:
            return None
    same = int(isinstance(node.op, ast.Mult | ast.FloorDiv))
    for kept, other in sides:
        if not _is_int(kept, ints):
            continue
        number: object = number_in(other)
        known = isinstance(other, ast.Name | ast.Attribute) and own.isdisjoint(names_in(other))
        if number is None and known:
            number = named(other)
        if type(number) is int and number == same:
            return kept
    return None


def _is_int(node: ast.expr, ints: set[str]) -> bool:
    """Whether it is arithmetic on these names, and on ints that are written down."""
    parts = ast.BinOp | ast.Name | ast.expr_context | ast.Add | ast.Sub | ast.Mult | ast.FloorDiv
    return ints.issuperset(names_in(node)) and all(
        isinstance(n, parts) or (isinstance(n, ast.Constant) and type(n.value) is int)
        for n in ast.walk(node)
    )
