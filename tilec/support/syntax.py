"""Walking over Python's syntax trees; arrays that a kernel may ask for what is known when it is
compiled."""

from __future__ import annotations

import ast
import copy
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

Node = TypeVar("Node", bound=ast.AST)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """As `ast.walk`, in its order and in a fifth of its time; it leaves out `ctx`, which says no
    more than where it stands."""
    found = [tree]
    for node in found:  # which grows
        for name in _parts(type(node)):  # type: ignore[arg-type]
            part = getattr(node, name, None)
            if isinstance(part, ast.AST):
                found.append(part)
            elif isinstance(part, list):
                found += [x for x in part if isinstance(x, ast.AST)]
        yield node


_WORDS = frozenset({"ctx", "id", "attr", "arg", "kind", "type_comment", "conversion", "is_async"})


@functools.cache
def _parts(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a kind of node that may hold others."""
    return tuple(name for name in kind._fields if name not in _WORDS)


def copied(tree: Node) -> Node:
    """As `copy.deepcopy`, in a tenth of its time; what has no fields, as `ctx`, is shared."""
    made = type(tree)()
    for name, part in vars(tree).items():
        if isinstance(part, ast.AST):
            part = copied(part) if part._fields else part
        elif isinstance(part, list):
            part = [copied(x) if isinstance(x, ast.AST) else x for x in part]
        setattr(made, name, part)
    return made


def every(kind: Any, *trees: ast.AST) -> Iterator[Any]:
    """The nodes of a kind, or of one of several."""
    return (n for tree in trees for n in nodes(tree) if isinstance(n, kind))


def name_nodes(*trees: ast.AST) -> Iterator[ast.Name]:
    """Where names stand."""
    return every(ast.Name, *trees)


def names_in(*trees: ast.AST) -> set[str]:
    return {n.id for n in name_nodes(*trees)}


def stored_names(*trees: ast.AST) -> list[str]:
    """The names that are given a value, as often as they are."""
    return [n.id for n in name_nodes(*trees) if isinstance(n.ctx, ast.Store)]


def assigned_names(statements: Iterable[ast.stmt]) -> set[str]:
    """Names that `statements` give a value to, nested blocks included."""
    return set().union(*map(_assigned_in, statements))


# A kernel with open arguments is traced dozens of times; more than its statements, or it never hits
_of_each = functools.lru_cache(maxsize=1 << 14)


@_of_each
def _assigned_in(statement: ast.stmt) -> frozenset[str]:
    return frozenset(stored_names(statement))


@_of_each
def names_within(statement: ast.stmt) -> frozenset[str]:
    """The names in a statement that nobody changes."""
    return frozenset(names_in(statement))


@_of_each
def functions_within(statement: ast.stmt) -> frozenset[str]:
    """The names of the functions that are defined in such a statement."""
    return frozenset(n.name for n in every(ast.FunctionDef, statement))


def own_names(function: ast.FunctionDef) -> set[str]:
    """The names that belong to a function: its parameters, and those that it gives a value to.
    Those of functions and comprehensions in it belong to these."""
    a = function.args
    given = (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg)
    own = {arg.arg for arg in given if arg is not None}
    scopes = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    found: list[ast.AST] = [*function.body]
    for n in found:  # which grows
        match n:
            case ast.FunctionDef():
                own.add(n.name)
            case ast.Name(ctx=ast.Store()):
                own.add(n.id)
            case _ if not isinstance(n, scopes):
                found += ast.iter_child_nodes(n)
    return own


def placed(made: Node, at: ast.AST) -> Node:
    """`made`, all of whose nodes are where `at` is."""
    for n in nodes(made):
        ast.copy_location(n, at)
    return made


class Replaced(ast.NodeTransformer):
    """Puts expressions in the places of names that are read."""

    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        found = self.names.get(node.id) if isinstance(node.ctx, ast.Load) else None
        return node if found is None else copy.copy(found)


def conditions_in(test: ast.expr) -> list[ast.expr]:
    """The conditions of which one says that all hold."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def all_of(tests: Sequence[ast.expr]) -> ast.expr:
    """The condition, where the first is, that all of some hold."""
    if len(tests) == 1:
        return tests[0]
    return ast.copy_location(ast.BoolOp(ast.And(), [*tests]), tests[0])


def parsed(text: str, at: ast.AST) -> list[ast.stmt]:
    """The statements of a text, where `at` is."""
    return [placed(s, at) for s in ast.parse(text).body]


def headed(head: str, body: list[ast.stmt], at: ast.AST) -> Any:
    """The loop or the branch that begins with the line `head`, where `at` is, around `body`."""
    made: list[Any] = parsed(f"{head} pass", at)
    made[0].body = body
    return made[0]


ASKED = frozenset({"shape", "dtype", "ndim"})


def is_array(value: object) -> bool:
    """Whether `value` is NumPy's array or torch's tensor, which nothing here imports."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds = (getattr(numpy, "ndarray", ()), getattr(torch, "Tensor", ()))
    return isinstance(value, kinds)
