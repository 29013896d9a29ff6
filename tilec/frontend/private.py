"""Variables that every iteration of a loop has for itself, though they were made before it.

    v = T.alloc_var("int32")
    for i in T.Parallel(n):
        v = i * 2          # written before it is read
        A[i] = v

Iterations of T.Parallel run in any order, so what one leaves in `v` no other may read, and which
value is left behind the loop is not known. Neither matters where each loop that reads `v` has
written it before: `v` is then a name that the author uses again, and each iteration gets a
variable of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tilec.frontend.branches import assigned_names


def private_names(function: ast.FunctionDef | ast.AsyncFunctionDef, loop: ast.For) -> list[str]:
    """The names that the body of `loop` gives a value to and that are read in `function` only
    where the iteration at hand has written them; sorted."""
    names = [n for n in assigned_names(loop.body) if writes_first(loop.body, n)]
    return sorted(n for n in names if not any(_read_elsewhere(function.body, n)))


def writes_first(body: list[ast.stmt], name: str) -> bool:
    """Whether the first statement of `body` that names `name` assigns it a value that is computed
    without it."""
    for s in body:
        if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(s)):
            plain = isinstance(s, ast.Assign) and len(s.targets) == 1
            target = s.targets[0] if isinstance(s, ast.Assign) and plain else None
            alone = sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(s)) == 1
            return isinstance(target, ast.Name) and target.id == name and alone
    return False


def _read_elsewhere(statements: list[ast.stmt], name: str) -> Iterator[ast.AST]:
    """What reads `name`, loops left out that write it first."""
    pending: list[ast.AST] = list(statements)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.For) and writes_first(node.body, name):
            pending += [node.target, node.iter, *node.orelse]
            continue
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node
        pending += ast.iter_child_nodes(node)
