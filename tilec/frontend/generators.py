"""Python's folds of elements, written as the loops they stand for when a function's source is read.

    C[i] = sum(A[i, k] * x[k] for k in range(K))   ->   sum_1 = 0
                                                        for k in range(K):
                                                            sum_1 += A[i, k] * x[k]
                                                        C[i] = sum_1

So are `max` and `min`, which begin with the first element, `any` and `all`. What they go over are
elements of tensors and of what a kernel allocates: sums of what is known at compile time, as of
`x.shape[i]`, stay what Python makes of them, and so does a range of a few, which is written out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tilec.support.syntax import (
    Replaced,
    copied,
    every,
    headed,
    names_in,
    own_names,
    parsed,
    placed,
)

_FEW = 16  # elements that are added without a loop
_MADE = ast.ListComp | ast.GeneratorExp
_SCOPES = (*_MADE.__args__, ast.SetComp, ast.DictComp, ast.Lambda)
_STEPS = {
    "sum": "{0} += x", "max": "{0} = max({0}, x)", "min": "{0} = min({0}, x)",
    "any": "if x: {0} = True", "all": "if not x: {0} = False",
}  # fmt: skip
_COUNT = "if x: {0} += 1"
"""How the elements of a sum are counted that are conditions."""
_BEGIN = {"sum": "0", "any": "False", "all": "True"}
"""What folds begin with; the others with their first element."""


def write_loops(function: ast.FunctionDef, is_python: Callable[[str], bool]) -> None:
    """Rewrite the statements of `function` in place. `is_python`: whether a name is Python's."""
    own = own_names(function)
    words = {n for n in _STEPS.keys() - own if is_python(n)}
    if any(_fold_of(n, words) for n in every(ast.Call, function)):
        function.body = _Loops(words, own, _tensors(function)).block(function.body)


def _tensors(function: ast.FunctionDef) -> set[str]:
    """The names of the tensors that a function takes, and of what it allocates."""
    found = set()
    for a in every(ast.arg, function.args):
        if a.annotation is not None and "Tensor" in ast.unparse(a.annotation):
            found.add(a.arg)
    for s in every(ast.Assign, function):
        match s:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(attr=word))):
                if word.startswith("alloc_"):
                    found.add(name)
    return found


def _fold_of(node: ast.Call, words: set[str]) -> tuple[str, Any] | None:
    """The word of a fold, and what it is of, if that may be a loop's elements."""
    match node:
        case ast.Call(ast.Name(word), [made, *start], []) if word in words:
            if not isinstance(made, _MADE) or len(start) > (word == "sum"):
                return None
        case _:
            return None
    if word not in _BEGIN and any(g.ifs for g in made.generators):
        return None  # there may be no first element
    return (word, made) if all(map(_counts, made.generators)) else None


def _counts(g: ast.comprehension) -> bool:
    match g.iter:
        case ast.Call(ast.Name("range") | ast.Attribute(attr="serial"), [_, *_], []):
            return isinstance(g.target, ast.Name) and not g.is_async
    return False


def _first(g: ast.comprehension) -> ast.expr:
    """The first index of a range."""
    assert isinstance(g.iter, ast.Call)
    return placed(ast.Constant(0), g.iter) if len(g.iter.args) == 1 else g.iter.args[0]


def _is_short(made: Any) -> bool:
    """Whether the ranges are known by how they are written, and short."""
    count = 1
    for g in made.generators:
        try:
            count *= len(range(*map(ast.literal_eval, g.iter.args)))
        except (ValueError, TypeError):
            return False
    return count <= _FEW


class _Loops(ast.NodeTransformer):
    """`words`: the folds; `taken`: names that a loop may not have; `tensors`: what has elements."""

    def __init__(self, words: set[str], taken: set[str], tensors: set[str]) -> None:
        self.words, self.taken, self.tensors = words, taken, tensors
        self.before: list[ast.stmt] = []

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Statements, each behind the loops of the folds in it."""
        made: list[ast.stmt] = []
        for s in body:
            around, self.before = self.before, []
            s = self.visit(s)
            made += [*self.before, s]
            self.before = around
        return made

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """The parts of a node that are always asked for, once, before anything else is done."""
        for name, part in ast.iter_fields(node):
            match node, part:
                case (_, [ast.stmt(), *_]):
                    setattr(node, name, self.block(part))
                case (ast.BoolOp(), [one, *others]):
                    setattr(node, name, [self.visit(one), *others])
                case (_, list()):
                    found = [self.visit(p) if isinstance(p, ast.AST) else p for p in part]
                    setattr(node, name, found)
                case (_, ast.AST()) if not isinstance(part, _SCOPES):
                    asked_once = not isinstance(node, ast.IfExp | ast.While)
                    if asked_once or (isinstance(node, ast.IfExp) and name == "test"):
                        setattr(node, name, self.visit(part))
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """`total = sum(…)` folds into that name itself."""
        match node:
            case ast.Assign([ast.Name(name)], ast.Call() as call) if name not in names_in(call):
                made = self._fold(call, name)
                if made is not None:
                    *self.before, last = [*self.before, *made]
                    return last
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        total = self._new(node.func.id if isinstance(node.func, ast.Name) else "")
        self.taken.add(total)
        made = self._fold(node, total)
        if made is None:
            self.taken.remove(total)
            return self.generic_visit(node)
        self.before += made
        return placed(ast.Name(total, ast.Load()), node)

    def _fold(self, node: ast.Call, total: str) -> list[ast.stmt] | None:
        """The statements that fold what a call is of into the name `total`."""
        fold = _fold_of(node, self.words)
        if fold is None or _is_short(fold[1]) or not self._reads(fold[1]):
            return None
        word, made = fold
        with self._renamed(made) as (element, generators):
            if word in _BEGIN:
                begin = placed(ast.parse(_BEGIN[word], mode="eval").body, node)
                begin = node.args[1] if len(node.args) > 1 else begin
            else:
                places = {g.target.id: _first(g) for g in generators}
                begin = Replaced(places).visit(copied(element))
            counted = word == "sum" and isinstance(element, ast.Compare)
            (step,) = parsed((_COUNT if counted else _STEPS[word]).format(total), element)
            body: list[ast.stmt] = [Replaced({"x": element}).visit(step)]
            for g in reversed(generators):
                for test in reversed(g.ifs):
                    branch = headed("if x:", body, test)
                    branch.test = test
                    body = [branch]
                loop = headed(f"for {g.target.id} in x:", body, g.target)
                loop.iter = g.iter
                body = [loop]
            (start,) = parsed(f"{total} = x", node)
            return self.block([Replaced({"x": begin}).visit(start), *body])

    def _reads(self, made: Any) -> bool:
        """Whether what is folded are elements at places that the loops say."""
        indices = {g.target.id for g in made.generators}
        parts = [made.elt, *(test for g in made.generators for test in g.ifs)]
        return any(
            isinstance(e.value, ast.Name)
            and e.value.id in self.tensors
            and indices & names_in(e.slice)
            and not [*every(ast.Slice, e.slice)]
            for e in every(ast.Subscript, *parts)
        )

    def _new(self, name: str) -> str:
        return next(f"{name}_{n}" for n in range(1, 1 << 30) if f"{name}_{n}" not in self.taken)

    @contextmanager
    def _renamed(self, made: Any) -> Iterator[tuple[ast.expr, list[Any]]]:
        """The element and the generators, whose variables are no one else's."""
        names: dict[str, ast.expr] = {}
        element, generators = made.elt, made.generators
        for g in generators:
            g.iter = Replaced(names).visit(g.iter)
            if (old := g.target.id) in self.taken:
                g.target = placed(ast.Name(self._new(old), ast.Store()), g.target)
                names[old] = placed(ast.Name(g.target.id, ast.Load()), g.target)
            self.taken.add(g.target.id)
            g.ifs = [Replaced(names).visit(test) for test in g.ifs]
        yield Replaced(names).visit(element), generators
        self.taken -= {g.target.id for g in generators}
