"""`Annotated[Any, T.Tensor((M, N), "float16")]`: Python's own way to say more of a parameter than
its type, which type checkers read past. The kernel reads what is said."""

from __future__ import annotations

import ast
import typing


def said_of(annotation: object) -> object:
    """What an annotation says to a kernel: of `Annotated` the first that is no text, else the
    type; any other as it is."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return annotation
    (of, *said) = typing.get_args(annotation)
    return next((x for x in said if not isinstance(x, str)), of)


def said_at(node: ast.expr) -> ast.expr:
    """The same of an annotation's syntax."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return node
    match node.value:
        case ast.Name(id="Annotated") | ast.Attribute(attr="Annotated"):
            (of, *said) = node.slice.elts
            text = (x for x in said if not isinstance(x, ast.Constant))
            return next(text, of)
    return node
