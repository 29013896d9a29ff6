"""Arithmetic on run-time sizes as text: `cdiv` of a size in a grid, the extents of an allocated
output.

The text is a Python expression of integers, names, `+ - * // % << >> & | ^`, comparisons,
conditional expressions, `min`, `max`, `abs`, and tuples of these. Nothing else is accepted, and no
long text and no long shift, so that an image read from a file cannot make Python do anything but
some arithmetic.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from typing import Any

from tilec.ir.errors import LaunchError, shown

_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Tuple, ast.BinOp, ast.UnaryOp,
    ast.Compare, ast.BoolOp, ast.IfExp, ast.Call, ast.unaryop, ast.cmpop, ast.boolop,
    ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift, ast.BitAnd,
    ast.BitOr, ast.BitXor,
)  # fmt: skip
_LONGEST = 1 << 16  # characters; what kernels compute takes some hundred
_LONGEST_SHIFT = 64


def _shift_left(a: int, b: int) -> int:
    if b > _LONGEST_SHIFT:
        raise OverflowError(f"a shift by {b}")
    return a << b


class _Bounded(ast.NodeTransformer):
    """Calls `_shift_left` for `<<`: `1 << (1 << 40)` is one number that no machine can hold."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.LShift):
            return node
        name = ast.copy_location(ast.Name("shift left", ast.Load()), node)
        return ast.copy_location(ast.Call(name, [node.left, node.right], []), node)


def is_name(text: str) -> bool:
    """Whether the expression is one size and nothing else."""
    return text.isidentifier()


@functools.lru_cache(maxsize=1024)
def compile_expression(text: str) -> Callable[[Mapping[str, Any]], Any]:
    """A function from values by name to the expression's value. Raises LaunchError for other
    text."""
    tree = parse(text)
    for node in ast.walk(tree):
        known = isinstance(node, _NODES)
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        if isinstance(node, ast.Constant):
            known = isinstance(node.value, (int, float))
        if isinstance(node, ast.Tuple):  # not repeated by `*`
            known = node is tree.body
        if not known:
            raise LaunchError(f"the size expression {shown(text)} holds a {type(node).__name__}")
    code = compile(_Bounded().visit(tree), "<sizes>", "eval")
    names = {"__builtins__": {}, **_FUNCTIONS, "shift left": _shift_left}

    def evaluate(values: Mapping[str, Any]) -> Any:
        return eval(code, names, values)

    return evaluate


def parse(text: str) -> ast.Expression:
    """The expression's tree. Raises LaunchError where the text is no expression."""
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"{len(text)} characters")
        return ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise LaunchError(f"the size expression {shown(text)} cannot be read: {e}") from None


def evaluate(text: str, values: Mapping[str, Any], what: str) -> Any:
    """The expression's value; `what` names it in a LaunchError if it divides by zero, lacks a size
    or cannot be computed."""
    try:
        return compile_expression(text)(values)
    except ZeroDivisionError:
        message = f"{what} = {text} divides by zero with {dict(values)}"
        raise LaunchError(message, hint="pass values that are not 0 there") from None
    except NameError as e:
        hint = "name that size in the shape of a tensor argument"
        raise LaunchError(f"{what} = {text}: nothing gives {e.name} a value", hint=hint) from None
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        hint = "compile the kernel again: no tilec writes such an expression"
        raise LaunchError(f"{what} = {shown(text)}: {e}", hint=hint) from None


@functools.lru_cache(maxsize=1024)
def names_in(text: str) -> frozenset[str]:
    """The sizes that an expression reads."""
    nodes = ast.walk(parse(text))
    return frozenset(n.id for n in nodes if isinstance(n, ast.Name)) - _FUNCTIONS.keys()
