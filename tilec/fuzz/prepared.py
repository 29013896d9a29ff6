"""Runs a kernel's own source in Python, on the words of `meaning`, its syntax tree changed.

`with T.Kernel(…)` becomes a loop over blocks, and so does a body that asks for T.program_id. A
subscript given to a word on tiles becomes a region. T.Parallel becomes one of two loops of `Words`:
done at once, with arrays for its indices and masks for its branches, where that can be, else
iteration by iteration. Statements of thread-level code are done for all threads at once.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilec.builtins.annotations import Macro, Size, Tensor
from tilec.builtins.choices import Auto
from tilec.frontend.source import Source, read_source
from tilec.fuzz.buffers import Buffer, Invalid, Place, Region
from tilec.fuzz.folds import Element, Folds
from tilec.fuzz.meaning import Words
from tilec.fuzz.numbers import Number, arithmetic, index
from tilec.fuzz.program import PLAIN, Launch
from tilec.ir.types import find_dtype
from tilec.support.syntax import copied, every, name_nodes, names_in

PYTHON_FAULTS = (
    ArithmeticError, AttributeError, LookupError, TypeError, UnboundLocalError, ValueError
)  # fmt: skip
REDUCTIONS = tuple(n for n in vars(Folds) if n.startswith("reduce"))
TILE_WORDS = ("copy", "fill", "clear", "gemm", *REDUCTIONS, "cumsum", "cummax", "any_of", "all_of")
ATOMICS = tuple(n for n in vars(Folds) if n.startswith("atomic"))
THREAD_WORDS = (
    "get_thread_binding", "get_thread_bindings", "thread_binding", "alloc_local", "get_lane_idx",
    "get_warp_idx", "get_warp_idx_sync", "get_warp_group_idx",
)  # fmt: skip
AXES = ("program_id", "get_block_binding", "get_block_bindings", "num_programs")


def run(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    launch: Launch = PLAIN,
    fnuz: bool = False,
) -> dict[str, Number]:
    """The tensors of a kernel's function after it has run, by name, those that the call makes among
    them: what of these nobody has written has an infinite error. `arguments`: arrays, which are
    left as they are, and scalars. `fnuz`: float8 is AMD's. Raises Invalid or Unclear for a program
    without a meaning."""
    source = read_source(function)
    place = Place(fnuz=fnuz)
    words = Words(place, launch)
    free = {name: source.lookup(name)[1] for name in source.visible_names()}
    scope: dict[str, Any] = {**free, "T": words, "_region_of": Region.of, "_slices": np.s_}
    scope["_element_of"] = Element
    given: dict[str, Any] = {}
    annotations = inspect.get_annotations(function, eval_str=True)
    late = _tensors_within(source)
    made_by_call = []
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = late.get(name, annotations.get(name))
        if isinstance(annotation, Tensor) and name in arguments:
            given[name] = _buffer(name, arguments[name], annotation, words, scope)
        elif isinstance(annotation, Tensor):
            made_by_call.append((name, annotation))
        elif name in arguments:
            given[name] = _scalar(annotation, arguments[name])
        else:
            value = launch.keywords.get(name, parameter.default)
            given[name] = value.values[0] if isinstance(value, Auto) else value
    for name, annotation in made_by_call:  # their sizes are those of the others
        extents = tuple(_extent(e, scope) for e in annotation.shape)
        given[name] = words.empty(name, extents, annotation.dtype)
    for name in ("make_swizzled_layout", "make_mma_swizzle_layout"):
        scope[name] = words.annotate_layout
    for name, value in free.items():
        if isinstance(value, Macro):
            _define(read_source(value.function), scope)
            scope[name] = scope[value.__name__]
    _define(source, scope)
    try:
        scope[source.name](**given)
    except PYTHON_FAULTS as e:
        raise Invalid(f"{type(e).__name__}: {e}") from e
    return {b.name: b.content() for b in words.tensors}


def returned(function: Callable[..., Any], out: tuple[str, ...]) -> tuple[str, ...]:
    """The names of what a call of the kernel gives back, in order."""
    last = read_source(function).node.body[-1]
    if out or not isinstance(last, ast.Return):
        return out
    return tuple(n.id for n in name_nodes(last))


def _define(source: Source, scope: dict[str, Any]) -> None:
    """Put the function, as Python runs it, into `scope`."""
    tree = ast.Module([changed(source.node)], [])
    code = compile(ast.fix_missing_locations(tree), source.file, "exec", dont_inherit=True)
    exec(code, scope)


def _tensors_within(source: Source) -> dict[str, Tensor]:
    """The tensors that a body annotates."""
    found = {}
    for s in source.node.body:
        match s:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Call() as call):
                sizes = {n: Size(n, fixed=True) for n in names_in(call.args[0])}
                text = compile(ast.Expression(call), source.file, "eval", dont_inherit=True)
                found[name] = eval(text, {**source.globals, **sizes})
    return found


def _buffer(
    name: str, value: Any, annotation: Tensor, words: Words, scope: dict[str, Any]
) -> Buffer:
    """A tensor argument; the sizes that it gives go to `scope`."""
    buffer = words.tensor(name, value.shape, annotation.dtype)
    buffer.fill_from(value)
    strides = tuple(s // value.itemsize for s in value.strides)
    for shown, found in (
        *zip(annotation.shape, value.shape),
        *zip(annotation.strides or (), strides),
    ):
        if isinstance(shown, Size) and not shown.op:
            scope[shown.text] = int(found) if shown.fixed else index(found)
    return buffer


def _extent(extent: int | Size, scope: Mapping[str, Any]) -> int:
    """What an extent is for the sizes in `scope`."""
    if isinstance(extent, int):
        return extent
    if not extent.op:
        return int(scope[extent.text])
    a, b = (_extent(x, scope) for x in extent.args)
    return int(arithmetic(extent.op, index(a), index(b)))


def _scalar(annotation: object, value: Any) -> Any:
    dtype = find_dtype(annotation)
    return Number(value, dtype) if dtype is not None else value


# --- the syntax tree ------------------------------------------------------------------------------


def changed(function: ast.FunctionDef) -> ast.FunctionDef:
    """A kernel or a macro as Python runs it, a copy; see the module's opening."""
    function = copied(function)
    function.decorator_list = []
    function.args.defaults, function.args.kw_defaults = [], []
    for a in (*function.args.args, *function.args.kwonlyargs):
        a.annotation = None
    function.body = [s for s in function.body if not _of_sizes(s)]
    if not any(isinstance(s, ast.With) for s in function.body) and _calls(function, *AXES):
        outside = [s for s in function.body if isinstance(s, ast.Return) or _calls(s, "empty")]
        body = [s for s in function.body if s not in outside]
        grid = ast.For(ast.Name("_", ast.Store()), _call("Kernel"), body, [])
        ends = [s for s in outside if isinstance(s, ast.Return)]
        function.body = [*(s for s in outside if s not in ends), grid, *ends]
    made = _Changed().visit(_Threads().visit(function))
    assert isinstance(made, ast.FunctionDef)
    return made


def _of_sizes(node: ast.stmt) -> bool:
    """`M, N = T.const("M, N")` or `A: T.Tensor(…)`: known before the body runs."""
    const = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    return isinstance(node, ast.AnnAssign) or (const and _is(node.value, "const"))  # type: ignore


class _Threads(ast.NodeTransformer):
    """Statements that name a thread's index or its own array, put under `with T.each_thread():`."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.AST]:
        if _calls(node.value, *THREAD_WORDS):
            self.names |= names_in(*node.targets)
            return node
        if not self._names_one(node):
            return node
        if not isinstance(node.targets[0], ast.Subscript):
            self.names |= names_in(node.targets[0])
            return self._wrapped(node)
        # all have read before one writes
        held = ast.Assign([ast.Name("_value", ast.Store())], node.value)
        node.value = ast.Name("_value", ast.Load())
        self.names.add("_value")
        return [self._wrapped(s) for s in (held, node)]

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        return self._wrapped(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return self._wrapped(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        return self._wrapped(node) if self._names_one(node.test) else self.generic_visit(node)

    def _names_one(self, node: ast.AST) -> bool:
        return not names_in(node).isdisjoint(self.names)

    def _wrapped(self, node: ast.stmt) -> ast.AST:
        if not self._names_one(node):
            return node
        if isinstance(node, ast.If) and any(_plain(n) for n in ast.walk(node)):
            raise Invalid("a variable that only some threads change")
        masked = _Masked().visit(node)
        body = masked if isinstance(masked, list) else [masked]
        return ast.With([ast.withitem(_call("each_thread"))], body)


class _Changed(ast.NodeTransformer):
    """Everything else of the module's opening."""

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        (item,) = node.items
        if isinstance(item.context_expr, ast.Call) and _is(
            item.context_expr, "when", "each_thread"
        ):
            return node
        target = item.optional_vars or ast.Name("_", ast.Store())
        return ast.For(target, item.context_expr, node.body, [])

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        condition = ast.Lambda(ast.arguments([], [], None, [], [], None, []), node.test)
        # the condition reads the variables of the function, which a lambda in it sees
        return ast.For(ast.Name("_", ast.Store()), _call("turns", condition), node.body, [])

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

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and _is(node.value, "empty"):
            (target,) = node.targets
            assert isinstance(target, ast.Name)
            node.value.args.insert(0, ast.Constant(target.id))
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        return _call("both" if isinstance(node.op, ast.And) else "either", *node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _call("opposite", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        pairs: list[ast.expr] = [
            ast.Compare(a, [op], [b]) for a, op, b in zip(sides, node.ops, sides[1:])
        ]
        return pairs[0] if len(pairs) == 1 else _call("both", *pairs)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if _is(node, *TILE_WORDS):
            node.args = [_as_region(a) for a in node.args]
        if _is(node, *ATOMICS):
            node.args[0] = _as_region(node.args[0], "_element_of")
            node.args[1:] = [_as_region(a) if _sliced(a) else a for a in node.args[1:]]
        if isinstance(node.func, ast.Attribute) and find_dtype(node.func.attr) and node.args:
            return _call("cast", node.args[0], node.func)
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
                taken = _call("when", ast.Name(name, ast.Load()), ast.Constant(holds))
                made.append(ast.With([ast.withitem(taken)], body))
        return made

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return _call("if_then_else", node.test, node.body, node.orelse)


def _at_once(loop: ast.For) -> bool:
    """Whether the iterations of a T.Parallel can be done at once: none goes a way of its own but
    by an `if` that changes no variable."""
    own = names_in(loop.target)
    for node in (n for s in loop.body for n in ast.walk(s)):
        match node:
            case ast.While() | ast.Break() | ast.Continue():
                return False
            case ast.For():
                if names_in(node.iter) & own:
                    return False
            case ast.If():
                if any(_plain(n) for n in ast.walk(node)):
                    return False
    return True


def _plain(node: ast.AST) -> bool:
    """Whether a name, no element, is assigned."""
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(t, ast.Name) for t in targets)


def _is(node: ast.expr, *words: str) -> bool:
    """Whether one of these words is called."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in words
    )


def _calls(node: ast.AST, *words: str) -> bool:
    """Whether one of these words is called somewhere in it."""
    return any(_is(n, *words) for n in every(ast.expr, node))


def _word(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("T", ast.Load()), name, ast.Load())


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(_word(name), list(arguments), [])


def _as_region(node: ast.expr, made: str = "_region_of") -> ast.expr:
    if not isinstance(node, ast.Subscript):
        return node
    index = ast.Subscript(ast.Name("_slices", ast.Load()), node.slice, ast.Load())
    return ast.Call(ast.Name(made, ast.Load()), [node.value, index], [])


def _sliced(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and any(every(ast.Slice, node))
