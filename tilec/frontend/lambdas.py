"""The one place for a lambda: `T.Layout(shape, lambda i, j: …)`.

It is checked and then compiled as the Python function it is, since a layout evaluates it once for
each element. Names in it are compile-time values; its parameters are the element's coordinates.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from types import FunctionType
from typing import Any

from tilec import language as T
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import Scalar, describe, is_literal
from tilec.ir.types import DType

_ALLOWED = (
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.BoolOp, ast.Constant, ast.Name, ast.Load,
    ast.Tuple, ast.List, ast.Call, ast.Attribute, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
    ast.Subscript,
)  # fmt: skip


def index_function(t: Expressions, node: ast.expr, rank: int) -> Callable[..., Any]:
    """The function from `rank` coordinates to an offset that `node` means.

    Raises CompileError unless it is a lambda of `rank` parameters over compile-time values.
    """
    if not isinstance(node, ast.Lambda):
        value = t.as_python(t.expression(node))
        if isinstance(value, T.Elementwise) or not callable(value):
            hint = f"write lambda {', '.join('ijklmn'[:rank])}: …"
            raise t.error(f"{describe(value)} is not a lambda", hint, node)
        return value
    args = node.args
    names = [a.arg for a in args.args]
    fits = len(names) <= rank if args.vararg else len(names) == rank
    if args.kwarg or args.kwonlyargs or args.defaults or not fits:
        hint = f"write lambda {', '.join('ijklmn'[:rank])}: …"
        raise t.error(f"this lambda must take {rank} coordinates", hint, at=node)
    names += [args.vararg.arg] if args.vararg else []
    namespace: dict[str, Any] = {"__builtins__": {}}
    # A copy: the syntax tree is kept for the next trace of the same source.
    body = _Lifter(t, names, namespace).visit(copy.deepcopy(node.body))
    lifted = ast.Lambda(args=args, body=body)
    tree = ast.fix_missing_locations(ast.Expression(ast.copy_location(lifted, node)))
    function: Callable[..., Any] = eval(compile(tree, t.frame.source.file, "eval"), namespace)
    return function


def _is_ours(function: FunctionType) -> bool:
    module = function.__module__
    return module.split(".", 1)[0] == "tilec" and module != "tilec.intrinsics.swizzles"


class _Lifter(ast.NodeTransformer):
    """Replaces every subexpression that holds no coordinate by a name bound to its value."""

    def __init__(self, t: Expressions, coordinates: list[str], namespace: dict[str, Any]) -> None:
        self.t = t
        self.coordinates = set(coordinates)
        self.namespace = namespace

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, _ALLOWED):
            self.t.refuse(node)
        if isinstance(node, ast.expr) and not self._varies(node):
            return self._bound(node)
        return self.generic_visit(node)

    def _varies(self, node: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and n.id in self.coordinates for n in ast.walk(node))

    def _bound(self, node: ast.expr) -> ast.expr:
        value = self.t.expression(node)
        if isinstance(value, Scalar):
            raise self.t.error(
                f"a layout must be known at compile time, this is {describe(value)}",
                "use ints, T.constexpr parameters and the lambda's coordinates",
                node,
            )
        usable = is_literal(value) or isinstance(value, str | DType | tuple | list | T.Elementwise)
        usable = usable or (isinstance(value, FunctionType) and not _is_ours(value))
        if not usable and value not in (min, max, abs):
            message = f"{describe(value)} cannot stand in a layout's lambda"
            raise self.t.error(message, "use numbers, tuples, min, max and abs", node)
        name = f"value{len(self.namespace)}"
        self.namespace[name] = value
        return ast.copy_location(ast.Name(name, ast.Load()), node)
