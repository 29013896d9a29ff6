"""Who asks for the class of a tile op: what an op does is asked of its effects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "tilec"
MOVES = {"Copy", "Fill", "Store"}


def named(node: ast.AST) -> set[str]:
    return {n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node)
            if isinstance(n, ast.Name | ast.Attribute)} & MOVES  # fmt: skip


def asked(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, class) of each test for one of these classes."""
    for node in ast.walk(tree):
        found: set[str] = set()
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                found = named(classes)
            case ast.MatchClass(cls=cls):
                found = named(cls)
            case ast.Compare(left=ast.Call(func=ast.Name(id="type"))):
                found = set().union(*map(named, node.comparators))
        yield from ((node.lineno, name) for name in found)
