"""Statements written as simpler ones, when a function's source is read: what traces them, and what
asks which names they assign, then has fewer kinds to know.

    match x:                 if x == 1:
        case 1 | 2: a    →   or x == 2: a
        case _: b            else: b

    for i in range(n):       whole_1 = True
        if f(i): break   →   for i in range(n):
    else: a                      if f(i): whole_1 = False; break
                             if whole_1: a

    while (x := f()) > 0:    while True:
        a                →       if not (x := f()) > 0: break
                                 a

    T.loop_break()       →   break

The new nodes stand where those stood that they are written for, so that errors point there. A
pattern that asks for the keys of a dict, or for the fields of a class by place, stays a `match`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from tilec.support.syntax import Replaced, all_of, nodes, parsed, placed

_LOOPS = ast.For | ast.While | ast.AsyncFor
_WHOLE = ("bool", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple")
"""Python's classes whose pattern with one place, `float(x)`, gives that the object itself."""
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
# Syntax that kernels do not have: what it is called, and what to write instead.
REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Await: ("await", "kernels are not coroutines"),
    ast.Yield: ("yield", "kernels are not generators"),
    ast.YieldFrom: ("yield", "kernels are not generators"),
    ast.Starred: ("* unpacking", "write the elements out"),
    ast.Try: ("try", "a kernel raises no exceptions; use if"),
    ast.TryStar: ("try", "a kernel raises no exceptions; use if"),
    ast.AsyncFunctionDef: ("async def", "write def"),
    ast.ClassDef: ("class", "write it outside"),
    ast.Import: ("import", "import outside the kernel"),
    ast.ImportFrom: ("import", "import outside the kernel"),
    ast.Global: ("global", "pass values as parameters; results go to tensors"),
    ast.Nonlocal: ("nonlocal", "pass values as parameters; results go to tensors"),
    ast.Delete: ("del", "leave it out: a buffer is free after its last use"),
    ast.AsyncFor: ("async for", "use for"),
    ast.AsyncWith: ("async with", "use with"),
    ast.Match: ("match by the keys of a dict or by places in a class", "use if and elif"),
}


def simplify_syntax(function: ast.FunctionDef) -> None:
    """Rewrite the statements of `function` in place."""
    kinds = ast.Match | ast.NamedExpr
    if any(
        isinstance(n, kinds) or (isinstance(n, _LOOPS) and n.orelse) or _is_loop_break(n)
        for n in nodes(function)
    ):
        _Simpler().visit(function)


def _is_loop_break(node: ast.AST) -> bool:
    """Whether a statement is TileLang's `T.loop_break()`: the loops around it must know early."""
    call = node.value if isinstance(node, ast.Expr) else None
    called = call.func if isinstance(call, ast.Call) and not call.args else None
    return isinstance(called, ast.Attribute) and called.attr == "loop_break"


class _Simpler(ast.NodeTransformer):
    def visit_Match(self, node: ast.Match) -> list[ast.stmt]:
        self.generic_visit(node)
        simple = isinstance(node.subject, ast.Name | ast.Constant)
        name = f"subject_{node.lineno}"
        subject = node.subject if simple else placed(ast.Name(name, ast.Load()), node.subject)
        made: list[ast.stmt] = []
        if not simple:
            made = [placed_one(ast.Assign([ast.Name(name, ast.Store())], node.subject), node)]
        rest: list[ast.stmt] = []
        try:
            for case in reversed(node.cases):
                rest = _branch(case, subject, rest)
        except _OtherPattern:
            return [node]
        return made + rest

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        self.generic_visit(node)
        return ast.copy_location(ast.Break(), node) if _is_loop_break(node) else node

    def visit_For(self, node: ast.For) -> Any:
        return self._with_else(node)

    def visit_While(self, node: ast.While) -> Any:
        self.generic_visit(node)
        if any(isinstance(n, ast.NamedExpr) for n in nodes(node.test)):
            ends = ast.If(ast.UnaryOp(ast.Not(), node.test), [*node.orelse, ast.Break()], [])
            node.body.insert(0, placed_one(ends, node.test))
            node.test, node.orelse = placed(ast.Constant(True), node.test), []
            return node
        return self._with_else(node, visited=True)

    def _with_else(self, node: ast.For | ast.While, visited: bool = False) -> Any:
        if not visited:
            self.generic_visit(node)
        if not node.orelse:
            return node
        otherwise, node.orelse = node.orelse, []
        name = f"whole_{node.lineno}"
        if not _mark_breaks(node.body, name):
            return [node, *otherwise]
        whole = ast.If(placed(ast.Name(name, ast.Load()), node), otherwise, [])
        return [*parsed(f"{name} = True", node), node, ast.copy_location(whole, otherwise[0])]


def placed_one(made: Any, at: ast.AST) -> Any:
    """`made`, whose nodes that have no place yet are where `at` is."""
    for n in nodes(made):
        if "lineno" in n._attributes and not hasattr(n, "lineno"):
            ast.copy_location(n, at)
    return made


def _mark_breaks(body: list[ast.stmt], name: str) -> bool:
    """Let each `break` of the loop with this body say so in the variable `name`; whether there is
    one."""
    found = False
    for part in _blocks(body):
        for n in reversed([n for n, s in enumerate(part) if isinstance(s, ast.Break)]):
            part[n:n] = parsed(f"{name} = False", part[n])
            found = True
    return found


def _blocks(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """The lists of statements in which a `break` would end the loop with this body."""
    yield body
    for s in body:
        if isinstance(s, _LOOPS):
            yield from _blocks(s.orelse)
        elif not isinstance(s, _SCOPES):
            for field in ("body", "orelse", "finalbody"):
                yield from _blocks(getattr(s, field, []))


# --- patterns -------------------------------------------------------------------------------------


class _OtherPattern(Exception):
    """A pattern that is not one of equal values, of sequences or of fields by name."""


def _branch(case: ast.match_case, subject: ast.expr, rest: list[ast.stmt]) -> list[ast.stmt]:
    """One `case` as an `if`, with `rest` where it does not hold."""
    names: dict[str, ast.expr] = {}
    tests = _tests(case.pattern, subject, names)
    if case.guard is not None:
        tests.append(Replaced(names).visit(case.guard))
    given: list[ast.stmt] = [
        placed_one(ast.Assign([ast.Name(name, ast.Store())], value), case.pattern)
        for name, value in names.items()
    ]
    if not tests:
        return given + case.body
    return [placed_one(ast.If(all_of(tests), given + case.body, rest), case.pattern)]


def _tests(pattern: ast.pattern, subject: ast.expr, names: dict[str, ast.expr]) -> list[ast.expr]:
    """What has to hold for `subject` to match; the names that it is given to go to `names`."""
    match pattern:
        case ast.MatchValue(value):
            return [_made("a == b", pattern, a=subject, b=value)]
        case ast.MatchSingleton(value):
            return [_made(f"a is {value}", pattern, a=subject)]
        case ast.MatchAs(inner, name):
            found = [] if inner is None else _tests(inner, subject, names)
            if name is not None:
                names[name] = subject
            return found
        case ast.MatchOr(patterns):
            return _either(patterns, subject, pattern, names)
        case ast.MatchSequence(patterns):
            return _sequence(patterns, subject, pattern, names)
        case ast.MatchClass(cls, whole, fields, inner_patterns):
            if whole and not (isinstance(cls, ast.Name) and cls.id in _WHOLE and len(whole) == 1):
                raise _OtherPattern  # which field that is only the class knows
            found = [_made("isinstance(a, b)", pattern, a=subject, b=cls)]
            for inner in whole:
                found += _tests(inner, subject, names)
            for name, inner in zip(fields, inner_patterns):
                found += _tests(inner, _made(f"a.{name}", inner, a=subject), names)
            return found
        case _:
            raise _OtherPattern


def _either(
    patterns: Sequence[ast.pattern], subject: ast.expr, at: ast.AST, names: dict[str, ast.expr]
) -> list[ast.expr]:
    ways: list[ast.expr] = []
    for p in patterns:
        bound: dict[str, ast.expr] = {}
        tests = _tests(p, subject, bound)
        if any(value is not subject for value in bound.values()):
            raise _OtherPattern  # which part of the subject a name is given to, each way says
        names.update(bound)
        if not tests:
            return []
        ways.append(all_of(tests))
    return [placed_one(ast.BoolOp(ast.Or(), ways), at)]


def _sequence(
    patterns: Sequence[ast.pattern], subject: ast.expr, at: ast.AST, names: dict[str, ast.expr]
) -> list[ast.expr]:
    stars = [n for n, p in enumerate(patterns) if isinstance(p, ast.MatchStar)]
    least, how = len(patterns) - len(stars), ">=" if stars else "=="
    found = [
        _made("isinstance(a, (tuple, list))", at, a=subject),
        _made(f"len(a) {how} {least}", at, a=subject),
    ]
    for n, p in enumerate(patterns):
        behind = len(patterns) - n
        if isinstance(p, ast.MatchStar):
            end = f"len(a) - {behind - 1}"
            if p.name is not None:
                names[p.name] = _made(f"[*a[{n}:{end}]]", p, a=subject)
        else:
            at_end = bool(stars) and n > stars[0]
            item = _made(f"a[len(a) - {behind}]" if at_end else f"a[{n}]", p, a=subject)
            found += _tests(p, item, names)
    return found


def _made(text: str, at: ast.AST, **parts: ast.expr) -> ast.expr:
    """The expression of a text, where `at` is, with `parts` in the places of its names."""
    made: ast.expr = placed(ast.parse(text, mode="eval").body, at)
    return made if not parts else Replaced(parts).visit(made)
