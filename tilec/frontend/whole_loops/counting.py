"""Loops that count from another number than 0, or by another than 1, as far as syntax says.

for j in range(1, N): …                 for k in range(N - 1): …  # j is k + 1
for j in range(g * n, (g + 1) * n): …   for k in range(n): …  # j is k + g * n
for j in range(N - 1, -1, -1): …        for k in range(N): …  # j is N - 1 - k
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from tilec import language as T

COUNTING = (range, T.serial, T.unroll)


def counted_from(
    iterated: ast.expr, named: Callable[[ast.expr], object]
) -> tuple[ast.expr, ast.expr, int] | None:
    """The extent of a loop, the number that it begins with and its step, which is written down:
    `range(n - 1, -1, -1)` has the extent `n`, `range(1, n)` has `n - 1`. None for one that counts
    from 0 by 1."""
    match iterated:
        case ast.Call(func, [begin, end, *steps], []) if named(func) in COUNTING:
            step = number_in(steps[0]) if steps else 1
        case _:
            return None
    if not step or (step == 1 and number_in(begin) == 0):
        return None
    extent = _less(end, begin) if step > 0 else _less(begin, end)
    if abs(step) > 1:
        every_one = plus(extent, abs(step) - 1)
        extent = ast.BinOp(every_one, ast.FloorDiv(), ast.Constant(abs(step)))
    return extent, begin, step


def number_in(node: ast.expr) -> int | None:
    """The int that is written down."""
    match node:
        case ast.Constant(int() as n) if not isinstance(n, bool):
            return n
        case ast.UnaryOp(ast.USub(), operand):
            negative = number_in(operand)
            return None if negative is None else -negative
    return None


def plus(node: ast.expr, n: int) -> ast.expr:
    """An expression and a number, added to the one that it ends with."""
    match node:
        case ast.Constant(int() as own):
            return ast.Constant(own + n)
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            last = number_in(right)
            if last is not None:
                return plus(left, n + (last if isinstance(op, ast.Add) else -last))
    return ast.BinOp(node, ast.Add() if n > 0 else ast.Sub(), ast.Constant(abs(n))) if n else node


def _less(node: ast.expr, other: ast.expr) -> ast.expr:
    """The difference of two expressions, without what both have."""
    if (n := number_in(other)) is not None:
        return plus(node, -n)
    match other:
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            if (more := number_in(right)) is not None:
                return plus(_less(node, left), -more if isinstance(op, ast.Add) else more)
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            if (more := number_in(right)) is not None and ast.unparse(node) != ast.unparse(other):
                return plus(_less(left, other), more if isinstance(op, ast.Add) else -more)
            sides = [*map(ast.unparse, (left, right))]
            if isinstance(op, ast.Add) and ast.unparse(other) in sides:
                return (left, right)[1 - sides.index(ast.unparse(other))]
        case ast.BinOp(times, ast.Mult(), size):  # (g + 1) * n - g * n
            match other:
                case ast.BinOp(one, ast.Mult(), again) if ast.unparse(size) == ast.unparse(again):
                    count = _less(times, one)
                    if number_in(count) is not None:
                        one_of_it = number_in(count) == 1
                        return size if one_of_it else ast.BinOp(size, ast.Mult(), count)
    same = ast.unparse(node) == ast.unparse(other)
    return ast.Constant(0) if same else ast.BinOp(node, ast.Sub(), other)
