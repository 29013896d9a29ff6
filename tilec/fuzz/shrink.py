"""Makes a failing program smaller, as long as it fails in the same way.

It changes the source's syntax tree and the arguments, knowing nothing of the generator: deletes
nodes, replaces them by their parts, numbers by smaller ones and dtypes by float32. Changes that
leave a program without a meaning (`meaning`), or with another failure, are taken back. Passes are
repeated until none helps.
"""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilec.fuzz.program import Array, Launch, Program
from tilec.ir.types import DTYPES
from tilec.support.syntax import Replaced, copied, names_in

Change = Callable[[], Any]
_WHOLE = ("copy", "gemm", "Tensor", "StridedTensor", "Buffer", "Kernel")  # calls that stay


@dataclass
class _Draft:
    """A program that is being changed."""

    tree: ast.Module
    arguments: dict[str, Any]
    launch: Launch

    @staticmethod
    def of(program: Program) -> _Draft:
        return _Draft(ast.parse(program.source), dict(program.arguments), program.launch)

    def program(self) -> Program:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and getattr(node, "body", True) == []:
                node.body.append(ast.Pass())  # type: ignore[attr-defined]
        source = ast.unparse(ast.fix_missing_locations(self.tree)) + "\n"
        return Program(source, self.arguments, launch=self.launch)

    @property
    def function(self) -> ast.FunctionDef:
        """The kernel: what stands before it are macros."""
        return [n for n in self.tree.body if isinstance(n, ast.FunctionDef)][-1]

    def extents(self) -> Iterator[tuple[str, int, ast.expr]]:
        """Of every array, each dimension and how its annotation spells it."""
        annotations: dict[str, Any] = {a.arg: a.annotation for a in self.function.args.args}
        annotations |= {name: s.annotation for name, s in _annotated(self.function).items()}
        for name, annotation in annotations.items():
            if isinstance(self.arguments.get(name), Array) and isinstance(annotation, ast.Call):
                shape = annotation.args[0]
                nodes = shape.elts if isinstance(shape, ast.Tuple) else [shape]
                yield from ((name, k, node) for k, node in enumerate(nodes))


def _annotated(function: ast.FunctionDef) -> dict[str, ast.AnnAssign]:
    """The parameters that the body annotates."""
    return {
        s.target.id: s
        for s in function.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
    }


def shrink(
    program: Program,
    fails: Callable[[Program], bool],
    seconds: float = 60.0,
    progress: Callable[[Program], None] = lambda _: None,
) -> Program:
    """The smallest program found in `seconds` for which `fails` still holds, which it does for
    `program`."""
    end = time.monotonic() + seconds
    tried: set[str] = {program.digest}
    best = program
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for changes in PASSES:
            number = 0
            while time.monotonic() < end:
                draft = _Draft.of(best)
                change = next(itertools.islice(changes(draft), number, None), None)
                if change is None:
                    break
                change()
                candidate = draft.program()
                if candidate.digest not in tried:
                    tried.add(candidate.digest)
                    if _still(candidate, fails):
                        best, smaller = candidate, True
                        progress(best)
                        continue  # what is at this place now has not been looked at
                number += 1
    return best


def _still(candidate: Program, fails: Callable[[Program], bool]) -> bool:
    """`fails`, where a candidate may be no program at all."""
    try:
        return fails(candidate)
    except Exception:  # any: a name that is gone, a shape that does not fit
        return False


# --- passes: each gives the changes that it could make --------------------------------------------


def _lists(tree: ast.AST, *names: str) -> Iterator[list[Any]]:
    """Every list of statements, or of keywords, outer ones first."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module):
            found = (getattr(node, name, None) for name in names)
            yield from (items for items in found if isinstance(items, list))


def delete_halves(d: _Draft) -> Iterator[Change]:
    """Many statements at once."""
    for body in _lists(d.tree, "body", "orelse"):
        size = len(body) // 2
        while size > 1:
            for start in range(0, len(body) - size + 1, size):
                yield partial(body.__delitem__, slice(start, start + size))
            size //= 2


def delete_nodes(d: _Draft) -> Iterator[Change]:
    """A statement, last ones first."""
    for body in _lists(d.tree, "body", "orelse"):
        for k in reversed(range(len(body))):
            if len(body) > 1 or not isinstance(body[0], ast.Pass):
                yield partial(body.__delitem__, k)


def delete_keywords(d: _Draft) -> Iterator[Change]:
    for keywords in _lists(d.tree, "keywords"):
        for k, keyword in enumerate(keywords):
            if keyword.arg != "threads":
                yield partial(keywords.__delitem__, k)


def delete_parameters(d: _Draft) -> Iterator[Change]:
    """Parameters that nothing names, and macros."""
    annotated = _annotated(d.function)
    rest = [s for s in d.function.body if s not in annotated.values()]
    used = names_in(*rest)
    for a in d.function.args.args:
        if a.arg not in used:
            yield partial(_delete_parameter, d, a, annotated.get(a.arg))
    for node in d.tree.body:
        if isinstance(node, ast.FunctionDef) and node.name not in used and node is not d.function:
            yield partial(d.tree.body.remove, node)


def _delete_parameter(d: _Draft, parameter: ast.arg, annotation: ast.stmt | None) -> None:
    a = d.function.args
    place = a.args.index(parameter) - len(a.args) + len(a.defaults)
    if place >= 0:  # defaults are those of the last ones
        del a.defaults[place]
    a.args.remove(parameter)
    if annotation is not None:
        d.function.body.remove(annotation)
    d.arguments.pop(parameter.arg, None)
    keywords = {n: v for n, v in d.launch.keywords.items() if n != parameter.arg}
    d.launch = replace(d.launch, keywords=keywords)


def delete_results(d: _Draft) -> Iterator[Change]:
    """One of several tensors that are returned, with its statement where nothing else names it."""
    body = d.function.body
    if not isinstance(end := body[-1], ast.Return) or not isinstance(end.value, ast.Tuple):
        return
    for result in end.value.elts if len(end.value.elts) > 1 else ():
        name = getattr(result, "id", None)
        named = [s for s in body if any(getattr(n, "id", None) == name for n in ast.walk(s))]
        yield partial(
            _delete_result, d, end.value.elts, result, named[0] if len(named) == 2 else None
        )


def _delete_result(
    d: _Draft, results: list[ast.expr], result: ast.expr, made: ast.stmt | None
) -> None:
    results.remove(result)
    if made is not None:
        d.function.body.remove(made)


def unwrap(d: _Draft) -> Iterator[Change]:
    """A loop or a branch becomes its body, indices 0."""
    for body in _lists(d.tree, "body", "orelse"):
        for k, node in enumerate(body):
            if not isinstance(node, ast.If | ast.While | ast.For):
                continue
            target = getattr(node, "target", ast.Pass())
            zeros = Replaced(dict.fromkeys(names_in(target), ast.Constant(0)))
            for inner in (node.body, node.orelse):
                if inner:
                    by = [zeros.visit(copied(s)) for s in inner]
                    yield partial(body.__setitem__, slice(k, k + 1), by)


def simplify_expressions(d: _Draft) -> Iterator[Change]:
    """An expression becomes one of its operands, or a number."""
    for parent in ast.walk(d.function):
        for name, old in ast.iter_fields(parent):
            if isinstance(old, ast.expr) and name in ("value", "left", "right", "operand", "test"):
                yield from (partial(setattr, parent, name, new) for new in _parts(old))
            if isinstance(old, list) and isinstance(parent, ast.Call | ast.Tuple):
                for k, item in enumerate(old):
                    yield from (partial(old.__setitem__, k, new) for new in _parts(item))


def _parts(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.BinOp():
            return [node.left, node.right]
        case ast.UnaryOp():
            return [node.operand]
        case ast.Call(func=ast.Attribute(attr=word), args=[_, *_]) if word not in _WHOLE:
            if word == "cast" and not isinstance(node.args[0], ast.Constant):
                return [node.args[0], ast.Call(node.func, [ast.Constant(1), *node.args[1:]], [])]
            return node.args[1:] if word == "if_then_else" else node.args
        case ast.Call(func=ast.Name()):
            return node.args
        case ast.Subscript():
            return [ast.Constant(1), ast.Constant(1.0)]
        case ast.Compare():
            return [ast.Constant(True)]
    return []


def plainer_dtypes(d: _Draft) -> Iterator[Change]:
    """One dtype everywhere by a plainer one."""
    strings = [n for n in ast.walk(d.function) if isinstance(n, ast.Constant) and n.value in DTYPES]
    for dtype in sorted({str(n.value) for n in strings} - {"float32"}):
        same = [n for n in strings if n.value == dtype]
        for plainer in ("float32", "int32", "float16"):
            if plainer != dtype:
                yield partial(_retype, d, same, dtype, plainer)


def _retype(d: _Draft, strings: list[ast.Constant], dtype: str, plainer: str) -> None:
    for n in strings:
        n.value = plainer
    for name, a in d.arguments.items():
        if isinstance(a, Array) and a.dtype == dtype:
            d.arguments[name] = replace(a, dtype=plainer)


def plain_sizes(d: _Draft) -> Iterator[Change]:
    """Run-time sizes become compile-time ones."""
    for name, k, node in d.extents():
        if isinstance(node, ast.Name):
            known = Replaced({node.id: ast.Constant(d.arguments[name].shape[k])})
            yield partial(known.visit, d.tree)


def smaller_arguments(d: _Draft) -> Iterator[Change]:
    """Fewer blocks, shorter extents, plain strides, small whole numbers."""
    grid, keywords = d.launch.grid, d.launch.keywords
    for k, extent in enumerate(grid):
        for less in _less(extent):
            launch = replace(d.launch, grid=(*grid[:k], less, *grid[k + 1 :]))
            yield partial(setattr, d, "launch", launch)
    for name, value in keywords.items():
        if name != "threads" and value > 1:
            launch = replace(d.launch, keywords={**keywords, name: 1})
            yield partial(setattr, d, "launch", launch)
    for name, a in d.arguments.items():
        if not isinstance(a, Array):
            if a not in (0, 1):
                yield partial(d.arguments.__setitem__, name, type(a)(1))
            continue
        for plainer in (replace(a, view="plain"), replace(a, content="ints")):
            if plainer != a and a.content not in ("blank", "index") or plainer.view != a.view:
                yield partial(d.arguments.__setitem__, name, plainer)
    for name, k, node in d.extents():
        for less in _less(d.arguments[name].shape[k]):
            yield partial(_resize, d, name, k, node, less)


def _resize(d: _Draft, name: str, dim: int, node: ast.expr, value: int) -> None:
    """Another extent of one tensor, also where it is spelled out, and of all others that have the
    same run-time size."""
    for other, k, entry in [*d.extents()]:
        named = isinstance(node, ast.Name) and isinstance(entry, ast.Name) and entry.id == node.id
        if named or (other, k) == (name, dim):
            a = d.arguments[other]
            d.arguments[other] = replace(a, shape=(*a.shape[:k], value, *a.shape[k + 1 :]))
    if isinstance(node, ast.Constant):
        node.value = value


def smaller_numbers(d: _Draft) -> Iterator[Change]:
    """Every use of a number at once, then each alone: tiles that must agree shrink together."""
    numbers = [n for n in ast.walk(d.function) if isinstance(n, ast.Constant)]
    numbers = [n for n in numbers if type(n.value) is int]
    groups: dict[Any, list[ast.Constant]] = {}
    for n in numbers:
        groups.setdefault(n.value, []).append(n)
    for same in (
        *(groups[value] for value in sorted(groups, reverse=True)),
        *([n] for n in numbers),
    ):
        for less in _less(same[0].value):
            yield partial(_renumber, same, less)


def _renumber(nodes: list[ast.Constant], value: int) -> None:
    for n in nodes:
        n.value = value


def _less(value: Any) -> list[int]:
    """1, the power of two below, and the number below."""
    if value < 2:
        return []
    half = 1 << (value - 1).bit_length() - 1
    return [n for n in dict.fromkeys((1, half, value - 1)) if n < value]


PASSES = (
    delete_halves, delete_nodes, delete_parameters, delete_results, unwrap, simplify_expressions,
    delete_keywords, plainer_dtypes, plain_sizes, smaller_arguments, smaller_numbers,
)  # fmt: skip
