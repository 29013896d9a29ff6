"""Variables of loops that begin anew on a condition, in the form that scans read (`scans`).

t = (0.0 if f else t) + x                   if f: t = 0.0
                                            t += x
t = a if f else t + x               ->      if f: t = 0.0
                                            t += a if f else x
"""

from __future__ import annotations

import ast

from tilec import language as T
from tilec.frontend.whole_loops.nests import Nest, changed_by, other_operand
from tilec.support.syntax import headed, names_in, placed


class BeginsAnew(ast.NodeTransformer):
    """`changed`: whether anything has been written in another form."""

    def __init__(self, nest: Nest) -> None:
        self.nest, self.named, self.changed = nest, nest.named, False

    def _begun_anew(
        self, s: ast.stmt, target: ast.Name, op: ast.operator, chosen: ast.expr, more: ast.expr
    ) -> list[ast.stmt]:
        """`t = (0.0 if f else t) + x` as `if f: t = 0.0` and `t += x`; nothing of anything else."""
        choice = self._choice(chosen)
        if choice is None:
            return []
        test, a, b = choice
        kept = [isinstance(x, ast.Name) and x.id == target.id for x in (a, b)]
        if kept == [False, False] or target.id in names_in(test, more):
            return []
        begin = b if kept[0] else a
        if target.id in names_in(begin):
            return []
        if kept[0]:
            test = ast.UnaryOp(ast.Not(), test)
        anew: ast.If = headed(f"if {ast.unparse(test)}:", [ast.Assign([target], begin)], s)
        added = ast.AugAssign(target, op, more)
        self.changed = True
        return [placed(anew, s), placed(added, s)]

    def _choice(self, value: ast.expr) -> tuple[ast.expr, ast.expr, ast.expr] | None:
        """The condition and the sides of `a if test else b`, however it is written."""
        match value:
            case ast.Call(func, [test, a, b], []):
                ours = any(self.named(func) is word for word in (T.if_then_else, T.where))
                return (test, a, b) if ours else None
            case ast.IfExp(test, a, b):
                return test, a, b
        return None

    def _one_of(
        self, s: ast.stmt, target: ast.Name, choice: tuple[ast.expr, ast.expr, ast.expr] | None
    ) -> list[ast.stmt]:
        """`t = a if f else t + x` as `if f: t = 0` and `t += a if f else x`, of a variable that
        begins as a number; nothing of anything else."""
        begins = [0 * n for x in self.nest.body if (n := _number_given(x, target.id)) is not None]
        if choice is None or not begins:
            return []
        test, a, b = choice
        for f, one, other in ((test, a, b), (ast.UnaryOp(ast.Not(), test), b, a)):
            match other:
                case ast.BinOp(x, ast.Add() as op, y):
                    more = other_operand(target.id, x, y)
                case _:
                    continue
            if more is None or target.id in names_in(test, one, more):
                continue
            text = ast.unparse(f)
            begun: list[ast.stmt] = [ast.Assign([target], ast.Constant(begins[0]))]
            anew: ast.If = headed(f"if {text}:", begun, s)
            same = ast.unparse(one) == ast.unparse(more)
            added = ast.AugAssign(target, op, more if same else ast.IfExp(f, one, more))
            self.changed = True
            return [placed(anew, s), placed(added, s)]
        return []

    def _one_of_sides(self, s: ast.If) -> list[ast.stmt]:
        """The same of `if f: t = a` and `else: t += x`."""
        match s:
            case ast.If(test, [ast.Assign([ast.Name(name) as target], one)], [other]):
                found = changed_by(other)
                if found is not None and found[0] == name and isinstance(found[1], ast.Add):
                    own = ast.copy_location(ast.Name(name, ast.Load()), other)
                    both = ast.copy_location(ast.BinOp(own, ast.Add(), found[2]), other)
                    return self._one_of(s, target, (test, one, both))
        return []


def _number_given(s: ast.stmt, name: str) -> int | float | None:
    """The number that a statement gives a name."""
    given: list[tuple[ast.expr, ast.expr]]
    match s:
        case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
            given = [*zip(targets, values)]
        case ast.Assign(targets, value):
            given = [(target, value) for target in targets]
        case ast.AnnAssign(target, _, ast.expr() as value):
            given = [(target, value)]
        case _:
            given = []
    for place, value in given:
        if isinstance(place, ast.Name) and place.id == name and isinstance(value, ast.Constant):
            number = value.value
            if isinstance(number, int | float) and not isinstance(number, bool):
                return number
    return None
