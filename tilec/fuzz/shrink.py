"""Makes a failing program smaller, as long as it fails in the same way.

It changes the source's syntax tree and the arguments, knowing nothing of the generator: drops
statements, replaces loops and branches by their bodies, expressions by their parts, numbers by
smaller ones and dtypes by float32. Changes that leave a program without a meaning (`meaning`), or
with another failure, are taken back. Passes are repeated until none helps.
"""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilec.fuzz.arrays import Array
from tilec.fuzz.program import SIZES, Launch, Program
from tilec.ir.types import DTYPES

Change = Callable[[], None]


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
        source = ast.unparse(ast.fix_missing_locations(self.tree)) + "\n"
        return Program(source, self.arguments, launch=self.launch)

    @property
    def function(self) -> ast.FunctionDef:
        """The kernel: what stands before it are macros."""
        return [n for n in self.tree.body if isinstance(n, ast.FunctionDef)][-1]


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
        for edits in PASSES:
            number = 0
            while time.monotonic() < end:
                draft = _Draft.of(best)
                edit = _nth(edits(draft), number)
                if edit is None:
                    break
                edit()
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


def _nth(changes: Iterator[Change], number: int) -> Change | None:
    for k, change in enumerate(changes):
        if k == number:
            return change
    return None


# --- passes: each gives the changes that it could make --------------------------------------------


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements, outer ones first."""
    for node in ast.walk(tree):
        for name in ("body", "orelse"):
            found = getattr(node, name, None)
            if isinstance(found, list) and found and isinstance(found[0], ast.stmt):
                if not isinstance(node, ast.Module):
                    yield found


def drop_halves(d: _Draft) -> Iterator[Change]:
    """Many statements at once."""
    for body in _bodies(d.tree):
        size = len(body) // 2
        while size > 1:
            for start in range(0, len(body) - size + 1, size):
                yield _dropper(body, start, size)
            size //= 2


def drop_statements(d: _Draft) -> Iterator[Change]:
    for body in _bodies(d.tree):
        for start in reversed(range(len(body))):
            if len(body) > 1 or not isinstance(body[0], ast.Pass):
                yield _dropper(body, start, 1)


def _dropper(body: list[ast.stmt], start: int, size: int) -> Change:
    def change() -> None:
        del body[start : start + size]
        if not body:
            body.append(ast.Pass())

    return change


def drop_parameters(d: _Draft) -> Iterator[Change]:
    """Parameters that nothing names, and macros."""
    used = {n.id for s in d.function.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    for a in d.function.args.args:
        if a.arg not in used:
            yield _without(d, a)
    for node in d.tree.body:
        if isinstance(node, ast.FunctionDef) and node.name not in used and node is not d.function:
            yield lambda node=node: d.tree.body.remove(node)  # type: ignore[misc]


def _without(d: _Draft, parameter: ast.arg) -> Change:
    def change() -> None:
        a = d.function.args
        place = a.args.index(parameter) - len(a.args) + len(a.defaults)
        if place >= 0:  # defaults are those of the last ones
            del a.defaults[place]
        a.args.remove(parameter)
        d.arguments.pop(parameter.arg, None)
        keywords = {n: v for n, v in d.launch.keywords.items() if n != parameter.arg}
        d.launch = replace(d.launch, keywords=keywords)

    return change


def unwrap(d: _Draft) -> Iterator[Change]:
    """A loop or a branch becomes its body, indices 0."""
    for body in _bodies(d.tree):
        for k, node in enumerate(body):
            if isinstance(node, ast.If):
                yield _replacer(body, k, node.body)
                if node.orelse:
                    yield _replacer(body, k, node.orelse)
            elif isinstance(node, ast.While):
                yield _replacer(body, k, node.body)
            elif isinstance(node, ast.For):
                names = [n for n in ast.walk(node.target) if isinstance(n, ast.Name)]
                zeros = {n.id: 0 for n in names}
                yield _replacer(body, k, [_substituted(s, zeros) for s in node.body])


def _replacer(body: list[ast.stmt], at: int, by: list[ast.stmt]) -> Change:
    def change() -> None:
        body[at : at + 1] = by

    return change


class _Substitute(ast.NodeTransformer):
    def __init__(self, values: dict[str, int]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.values and isinstance(node.ctx, ast.Load):
            return ast.Constant(self.values[node.id])
        return node


def _substituted(node: ast.stmt, values: dict[str, int]) -> ast.stmt:
    made: ast.stmt = _Substitute(values).visit(copy.deepcopy(node))
    return made


def drop_keywords(d: _Draft) -> Iterator[Change]:
    for node in ast.walk(d.tree):
        if isinstance(node, ast.Call):
            for k in node.keywords:
                if k.arg != "threads":
                    yield lambda node=node, k=k: node.keywords.remove(k)  # type: ignore[misc]


def simplify_expressions(d: _Draft) -> Iterator[Change]:
    """An expression becomes one of its operands, or a number."""
    for parent in ast.walk(d.function):
        for name, old in ast.iter_fields(parent):
            if isinstance(old, ast.expr) and name in ("value", "left", "right", "operand", "test"):
                for new in _parts(old):
                    yield _setter(parent, name, new)
            if isinstance(old, list) and isinstance(parent, ast.Call | ast.Tuple):
                for k, item in enumerate(old):
                    if isinstance(item, ast.expr):
                        for new in _parts(item):
                            yield _placer(old, k, new)


def _parts(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BinOp():
            return [node.left, node.right]
        case ast.UnaryOp():
            return [node.operand]
        case ast.Call(func=ast.Attribute(attr="if_then_else")):
            return node.args[1:]
        case ast.Call(func=ast.Attribute(attr="cast")) if not isinstance(
            node.args[0], ast.Constant
        ):
            return [node.args[0], ast.Call(node.func, [ast.Constant(1), *node.args[1:]], [])]
        case ast.Call(func=ast.Attribute(attr="copy" | "gemm" | "Tensor" | "Kernel")):
            return []
        case ast.Call() if node.args and all(isinstance(a, ast.expr) for a in node.args):
            return node.args
        case ast.Subscript():
            return [ast.Constant(1), ast.Constant(1.0)]
        case ast.Compare():
            return [ast.Constant(True)]
        case _:
            return []


def _setter(parent: ast.AST, name: str, new: ast.expr) -> Change:
    return lambda: setattr(parent, name, new)


def _placer(items: list[Any], k: int, new: ast.expr) -> Change:
    def change() -> None:
        items[k] = new

    return change


def smaller_numbers(d: _Draft) -> Iterator[Change]:
    """Every use of a number at once, then each alone: tiles that must agree shrink together."""
    numbers = [n for n in ast.walk(d.function) if _is_size(n)]
    for value in sorted({n.value for n in numbers}, reverse=True):  # type: ignore[attr-defined]
        for less in _less(value):
            same = [n for n in numbers if n.value == value]  # type: ignore[attr-defined]
            yield _renumber(same, less)
    for n in numbers:
        for less in _less(n.value):  # type: ignore[attr-defined]
            yield _renumber([n], less)


def _is_size(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1


def _less(value: int) -> list[int]:
    half = 1 << (value - 1).bit_length() - 1
    return [n for n in dict.fromkeys((1, half, value - 1)) if n < value]


def _renumber(nodes: list[Any], value: int) -> Change:
    def change() -> None:
        for n in nodes:
            n.value = value

    return change


def smaller_arrays(d: _Draft) -> Iterator[Change]:
    """Shorter extents, small whole numbers in them, plain strides. Extents that the source spells
    out change with it."""
    for name, a in list(d.arguments.items()):
        if not isinstance(a, Array):
            if a not in (0, 1):
                yield _argument(d, name, type(a)(1))
            continue
        for view in ("plain",):
            if a.view != view:
                yield _argument(d, name, replace(a, view=view))
        if a.content not in ("ints", "blank", "index"):
            yield _argument(d, name, replace(a, content="ints"))
        for k, extent in enumerate(a.shape):
            for less in _less(extent) if extent > 1 else []:
                yield _extent(d, name, k, less)


def _argument(d: _Draft, name: str, value: Any) -> Change:
    def change() -> None:
        d.arguments[name] = value

    return change


def _extent(d: _Draft, name: str, dim: int, value: int) -> Change:
    """A smaller extent of one tensor, and of all others that have the same run-time size."""

    def change() -> None:
        node = _annotated_extent(d, name, dim)
        for other, a in list(d.arguments.items()):
            if not isinstance(a, Array):
                continue
            shape = list(a.shape)
            for k in range(len(shape)):
                entry = _annotated_extent(d, other, k)
                named = isinstance(node, ast.Name) and isinstance(entry, ast.Name)
                if (named and entry.id == node.id) or (other == name and k == dim):
                    shape[k] = value
                    if isinstance(entry, ast.Constant):
                        entry.value = value
            d.arguments[other] = replace(a, shape=tuple(shape))

    return change


def _annotated_extent(d: _Draft, name: str, dim: int) -> Any:
    (found,) = [a for a in d.function.args.args if a.arg == name]
    within = [
        s.annotation
        for s in d.function.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and s.target.id == name
    ]
    annotation = found.annotation or (within[0] if within else None)
    if not isinstance(annotation, ast.Call):
        return None
    shape = annotation.args[0]
    return shape.elts[dim] if isinstance(shape, ast.Tuple) else shape


def smaller_launch(d: _Draft) -> Iterator[Change]:
    """Fewer blocks, smaller numbers of its keywords."""
    for axis, extent in enumerate(d.launch.grid):
        for less in _less(extent) if extent > 1 else []:
            grid = (*d.launch.grid[:axis], less, *d.launch.grid[axis + 1 :])
            yield _launched(d, replace(d.launch, grid=grid))
    for name, value in d.launch.keywords.items():
        if name != "threads" and value > 1:
            yield _launched(d, replace(d.launch, keywords={**d.launch.keywords, name: 1}))


def _launched(d: _Draft, launch: Launch) -> Change:
    return lambda: setattr(d, "launch", launch)


def plain_sizes(d: _Draft) -> Iterator[Change]:
    """Run-time sizes become compile-time ones."""
    for name in SIZES:
        if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(d.function)):
            value = _size(d, name)
            if value is not None:
                yield _constant_size(d, name, value)


def _size(d: _Draft, size: str) -> int | None:
    for name, a in d.arguments.items():
        if isinstance(a, Array):
            for k, extent in enumerate(a.shape):
                entry = _annotated_extent(d, name, k)
                if isinstance(entry, ast.Name) and entry.id == size:
                    return extent
    return None


def _constant_size(d: _Draft, size: str, value: int) -> Change:
    def change() -> None:
        d.tree = _Substitute({size: value}).visit(d.tree)

    return change


def plainer_dtypes(d: _Draft) -> Iterator[Change]:
    """One dtype everywhere by a plainer one."""
    strings = [n for n in ast.walk(d.function) if isinstance(n, ast.Constant) and n.value in DTYPES]
    for dtype in sorted({str(n.value) for n in strings}):
        for plainer in ("float32", "int32", "float16"):
            if dtype != plainer and dtype != "float32":
                yield _retyped(d, strings, dtype, plainer)


def _retyped(d: _Draft, strings: list[ast.Constant], dtype: str, plainer: str) -> Change:
    def change() -> None:
        for n in strings:
            if n.value == dtype:
                n.value = plainer
        for name, a in list(d.arguments.items()):
            if isinstance(a, Array) and a.dtype == dtype:
                d.arguments[name] = replace(a, dtype=plainer)

    return change


PASSES = (
    drop_halves,
    drop_statements,
    drop_parameters,
    unwrap,
    simplify_expressions,
    drop_keywords,
    plainer_dtypes,
    plain_sizes,
    smaller_launch,
    smaller_arrays,
    smaller_numbers,
)
