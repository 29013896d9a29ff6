"""Arithmetic on run-time sizes as text: `cdiv` of a size in a grid, the extents of an allocated
output.

The text is a Python expression of integers, names, `+ - * // % << >> & | ^`, comparisons,
conditional expressions, `min`, `max`, `abs`, and tuples of these. Nothing else is accepted, so
that an image read from a file cannot make Python do anything but arithmetic.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from typing import Any

from tilec.ir.errors import LaunchError

_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Tuple, ast.BinOp, ast.UnaryOp,
    ast.Compare, ast.BoolOp, ast.IfExp, ast.Call, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip


def is_name(text: str) -> bool:
    """Whether the expression is one size and nothing else."""
    return text.isidentifier()


@functools.lru_cache(maxsize=1024)
def compile_expression(text: str) -> Callable[[Mapping[str, Any]], Any]:
    """A function from values by name to the expression's value. Raises LaunchError for other
    text."""
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        known = isinstance(node, _NODES)
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        if isinstance(node, ast.Constant):
            known = isinstance(node.value, (int, float))
        if not known:
            raise LaunchError(f"the size expression {text!r} holds a {type(node).__name__}")
    code = compile(tree, "<sizes>", "eval")
    names = {"__builtins__": {}, **_FUNCTIONS}

    def evaluate(values: Mapping[str, Any]) -> Any:
        return eval(code, names, values)

    return evaluate


def evaluate(text: str, values: Mapping[str, Any], what: str) -> Any:
    """The expression's value; `what` names it in a LaunchError if it divides by zero or lacks a
    size."""
    try:
        return compile_expression(text)(values)
    except ZeroDivisionError:
        message = f"{what} = {text} divides by zero with {dict(values)}"
        raise LaunchError(message, hint="pass values that are not 0 there") from None
    except NameError as e:
        hint = "name that size in the shape of a tensor argument"
        raise LaunchError(f"{what} = {text}: {e.args[0]}", hint=hint) from None


@functools.lru_cache(maxsize=1024)
def names_in(text: str) -> frozenset[str]:
    """The sizes that an expression reads."""
    nodes = ast.walk(ast.parse(text, mode="eval"))
    return frozenset(n.id for n in nodes if isinstance(n, ast.Name)) - _FUNCTIONS.keys()
