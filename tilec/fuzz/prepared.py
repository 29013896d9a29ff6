"""Runs a kernel's own source in Python, on the words of `meaning`.

The function's syntax tree is changed first: `with T.Kernel(…)` becomes a loop over blocks, a
subscript given to a word on tiles a region, T.Parallel one of two loops of `Words`: done at once,
with arrays for its indices and masks for its branches, where that can be, else iteration by
iteration.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tilec.annotations import Size
from tilec.annotations import Tensor as TensorAnnotation
from tilec.frontend.source import read_source
from tilec.fuzz.buffers import Buffer, Invalid, Place, Region
from tilec.fuzz.meaning import Words
from tilec.fuzz.numbers import Number, index
from tilec.ir.types import find_dtype

TILE_WORDS = ("copy", "fill", "clear", "gemm")


class _Prepared(ast.NodeTransformer):
    """The function as Python runs it; see the module's opening."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.decorator_list = []
        for a in (*node.args.args, *node.args.kwonlyargs):
            a.annotation = None
        return node

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        (item,) = node.items
        if isinstance(item.context_expr, ast.Call) and _is(item.context_expr, "when"):
            return node
        target = item.optional_vars or ast.Name("_", ast.Store())
        return ast.For(target, item.context_expr, node.body, [])

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        condition = ast.Lambda(ast.arguments([], [], None, [], [], None, []), node.test)
        # the condition reads the variables of the function, which a lambda in it sees
        turns = ast.Call(_word("turns"), [condition], [])
        return ast.For(ast.Name("_", ast.Store()), turns, node.body, [])

    def visit_For(self, node: ast.For) -> ast.AST:
        match node.iter:
            case ast.Call(func=ast.Attribute(attr="Parallel") as word):
                word.attr = "every" if _at_once(node) else "each"
                if word.attr == "every":
                    _Masked().generic_visit(node)
            case ast.Call(func=ast.Name(id="range")):
                node.iter.func = _word("serial")
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if _is(node, *TILE_WORDS):
            node.args = [_as_region(a) for a in node.args]
        if _is(node, "Persistent"):
            for keyword in node.keywords:
                keyword.arg = "index_" if keyword.arg == "index" else keyword.arg
        return node


class _Masked(ast.NodeTransformer):
    """`if` of all iterations at once."""

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        self.generic_visit(node)
        name = f"_taken{node.lineno}"
        made: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], node.test)]
        for body, holds in ((node.body, True), (node.orelse, False)):
            if body:
                taken = ast.Call(
                    _word("when"), [ast.Name(name, ast.Load()), ast.Constant(holds)], []
                )
                made.append(ast.With([ast.withitem(taken)], body))
        return made


def _at_once(loop: ast.For) -> bool:
    """Whether the iterations of a T.Parallel can be done at once: none goes a way of its own but
    by an `if` that changes no variable."""
    own = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    for node in (n for s in loop.body for n in ast.walk(s)):
        match node:
            case ast.While() | ast.IfExp() | ast.BoolOp() | ast.Break() | ast.Continue():
                return False
            case ast.For():
                if any(isinstance(n, ast.Name) and n.id in own for n in ast.walk(node.iter)):
                    return False
            case ast.If():
                if any(isinstance(n, ast.Assign | ast.AugAssign) and _plain(n)
                       for n in ast.walk(node)):  # fmt: skip
                    return False
    return True


def _plain(node: ast.AugAssign | ast.Assign) -> bool:
    """Whether a name, no element, is assigned."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(t, ast.Name) for t in targets)


def _is(node: ast.Call, *words: str) -> bool:
    """Whether one of these words is called."""
    return isinstance(node.func, ast.Attribute) and node.func.attr in words


def _word(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("T", ast.Load()), name, ast.Load())


def _as_region(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Subscript):
        return node
    entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    index = ast.Tuple([_slice_call(e) for e in entries], ast.Load())
    region = ast.Name("_region_of", ast.Load())
    return ast.Call(region, [node.value, index], [])


def _slice_call(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Slice):
        return node
    ends: list[ast.expr] = [e or ast.Constant(None) for e in (node.lower, node.upper)]
    return ast.Call(ast.Name("slice", ast.Load()), ends, [])


def run(
    function: Callable[..., Any], arguments: Mapping[str, Any], fnuz: bool = False
) -> dict[str, Number]:
    """The tensors of a kernel's function after it has run, by name. `arguments`: arrays, which are
    left as they are, and scalars. `fnuz`: float8 is AMD's. Raises Invalid or Unclear for a program
    without a meaning."""
    source = read_source(function)
    place = Place(fnuz=fnuz)
    words = Words(place)
    scope: dict[str, Any] = {**source.globals, "T": words, "_region_of": Region.of}
    buffers: dict[str, Buffer] = {}
    given: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(function, eval_str=True).items():
        value = arguments[name]
        if isinstance(annotation, TensorAnnotation):
            buffer = Buffer(name, value.shape, annotation.dtype, place, tile=False)
            buffer.fill_from(value)
            buffers[name] = given[name] = buffer
            for extent, size in zip(annotation.shape, value.shape):
                if isinstance(extent, Size) and not extent.op:
                    scope[extent.text] = index(size)
        else:
            given[name] = _scalar(annotation, value)
    tree = ast.Module([_Prepared().visit(source.node)], [])
    for name in ("make_swizzled_layout", "make_mma_swizzle_layout"):
        scope[name] = words.Layout if name not in scope else (lambda *_: None)
    code = compile(ast.fix_missing_locations(tree), source.file, "exec", dont_inherit=True)
    exec(code, scope)
    try:
        scope[source.name](**given)
    except (IndexError, ZeroDivisionError, TypeError, ValueError, UnboundLocalError) as e:
        raise Invalid(f"{type(e).__name__}: {e}") from e
    return {n: Number(b.value, b.dtype, b.error, fnuz) for n, b in buffers.items()}


def _scalar(annotation: object, value: Any) -> Any:
    dtype = find_dtype(annotation)
    return Number(value, dtype) if dtype is not None else value
