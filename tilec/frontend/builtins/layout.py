"""Builtins about layouts: where the author wants the elements of tiles."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from tilec import language as T
from tilec.frontend.arithmetic import affine_of, static_int
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.builtins.tile import buffer_dict
from tilec.frontend.expressions import Expressions
from tilec.frontend.layouts import check_layout, fragment_layout
from tilec.frontend.placements import IndexMap, map_of, placement
from tilec.frontend.values import Buffer, Scalar, describe, is_literal
from tilec.ir.errors import CompileError, LayoutError
from tilec.ir.layout import Fragment, Layout, LayoutRequest
from tilec.ir.ops import AnnotateLayout
from tilec.ir.types import DType, contiguous_strides
from tilec.support.syntax import copied, names_in

_MOST_ELEMENTS = 1 << 22  # more are those of a tensor, no tile's


@builtin(T.annotate_layout, of="tiles")
def annotate_layout(t: Expressions, c: Call) -> None:
    for buffer, layout, key, value in buffer_dict(t, c, "layouts"):
        if buffer.is_global:
            _place(t, buffer, layout, key, value)
            continue
        if isinstance(layout, Fragment) and buffer.type.space == "local":
            continue  # each thread has the whole of it
        if isinstance(layout, Fragment) and buffer.type.space == "fragment":
            shape, place = buffer.type.static_shape, t.frame.loc(value)
            layout = fragment_layout(t, buffer.name, shape, layout, place)
            if layout is None:
                continue
        if not isinstance(layout, Layout | LayoutRequest):
            hint = f"write make_swizzled_layout({buffer.name}) or T.Layout({buffer.name}.shape, …)"
            raise t.error(f"the layout of {buffer.name} is {describe(layout)}", hint, value)
        check_layout(t, buffer, layout, t.frame.loc(value))
        t.emit(AnnotateLayout, buffer.value, layout)


def _place(t: Expressions, buffer: Buffer, given: object, key: ast.AST, value: ast.AST) -> None:
    """Have a tensor's elements where `given` says."""
    loc = t.frame.loc(value)
    if isinstance(given, Layout) and given.is_memory:
        given = map_of(given, loc)
    if not isinstance(given, IndexMap) or buffer.packed is not None:
        raise t.error(
            f"{describe(buffer)} is a tensor argument, its layout is {describe(given)}",
            f"write T.Layout({buffer.name}.shape, lambda …), which says where its elements are, or "
            "annotate the shared buffer that it is copied to",
            key,
        )
    if len(t.builders) > 1 or buffer.value in t.placements:
        what = "has another layout already" if buffer.value in t.placements else "is in a block"
        message = f"the layout of {describe(buffer)} {what}; a tensor has one layout in a kernel"
        hint = "annotate it once, at the top level of the kernel, below with T.Kernel"
        raise t.error(message, hint, key)
    same = len(given.shape) == len(buffer.shape) and all(
        (affine_of(a) - affine_of(b)).constant == 0 for a, b in zip(given.shape, buffer.shape)
    )
    if not same:
        hint = f"write T.Layout({buffer.name}.shape, …), with one coordinate for each dimension"
        raise LayoutError(f"the layout has another shape than {describe(buffer)}", loc, hint)
    t.placements[buffer.value] = placement(t, given)


# --- layouts as values ----------------------------------------------------------------------------


@builtin(T.Layout, raw=True)
def layout(t: Expressions, c: Call) -> Layout | IndexMap:
    fn_node = c.nodes["fn"]
    shape = t.expression(c.nodes["shape"])
    given = shape if isinstance(shape, tuple | list) else ()
    known = [static_int(e) for e in given]
    if None in known and all(isinstance(e, int | Scalar | T.Size) for e in given):
        sizes = tuple(_size(t, e) for e in given)
        return IndexMap(sizes, index_function(t, fn_node, len(sizes)), t.frame.loc(fn_node))
    extents = c.but(shape=shape).shape("shape")
    if math.prod(extents) > _MOST_ELEMENTS:
        return IndexMap(extents, index_function(t, fn_node, len(extents)), t.frame.loc(fn_node))
    strides = zip("ijklmn", contiguous_strides(extents))
    rows = " + ".join(i if s == 1 else f"{i} * {s}" for i, s in strides)
    hint = f"each element needs an offset of its own, from 0: {rows} is row-major"
    with _at(t, fn_node, hint):
        return Layout.from_function(extents, index_function(t, fn_node, len(extents)))


@builtin(T.Fragment, raw=True)
def fragment(t: Expressions, c: Call) -> Fragment:
    extents, copies = c.but(shape=t.expression(c.nodes["shape"])).shape("shape"), 1
    if "replicate" in c.nodes:
        copies = c.but(replicate=t.expression(c.nodes["replicate"])).integer("replicate", 1)
    functions = {}
    for name in ("forward_fn", "forward_thread_fn", "forward_index_fn"):
        node = c.nodes.get(name)
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            continue
        rank = len(extents) + (copies > 1 and name != "forward_index_fn")
        functions[name] = index_function(t, node, rank)
    hint = "each element needs a thread and a register of its own: lambda i, j: (thread, index)"
    with _at(t, next((c.nodes[name] for name in functions), c.node), hint):
        return Fragment.from_functions(extents, replicate=copies, **functions)


@contextmanager
def _at(t: Expressions, node: ast.expr, hint: str) -> Iterator[None]:
    """Errors that have no place get this one, and a hint."""
    try:
        yield
    except CompileError as e:
        if e.loc is not None:
            raise
        raise type(e)(e.message, t.frame.loc(node), e.hint or hint) from None


def _size(t: Expressions, extent: int | Scalar | T.Size) -> int | Scalar:
    """An extent of a tensor."""
    found = t.size_value(extent) if isinstance(extent, T.Size) else extent
    assert not isinstance(found, T.Size)
    return found


# --- functions of coordinates ---------------------------------------------------------------------


_ALLOWED = (
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.BoolOp, ast.Constant, ast.Name, ast.Load,
    ast.Tuple, ast.List, ast.Call, ast.Attribute, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
    ast.Subscript,
)  # fmt: skip


def index_function(t: Expressions, node: ast.expr, rank: int) -> Callable[..., Any]:
    """The function from `rank` coordinates to an offset that `node` means: the one place for a
    lambda. It is checked and then compiled as the Python function it is, since a layout evaluates
    it once for each element. Names in it are compile-time values; its parameters are the element's
    coordinates.

    Raises CompileError unless it is a lambda of `rank` parameters over compile-time values.
    """
    if not isinstance(node, ast.Lambda):
        value = t.as_python(t.expression(node))
        if isinstance(value, T.Elementwise) or not callable(value):
            hint = f"write lambda {', '.join('ijklmn'[:rank])}: …"
            raise t.error(f"{describe(value)} is not a lambda", hint, node)
        return value
    args = node.args
    names = [a.arg for a in args.args]
    fits = len(names) <= rank if args.vararg else len(names) == rank
    if args.kwarg or args.kwonlyargs or args.defaults or not fits:
        hint = f"write lambda {', '.join('ijklmn'[:rank])}: …"
        raise t.error(f"this lambda must take {rank} coordinates", hint, at=node)
    names += [args.vararg.arg] if args.vararg else []
    namespace: dict[str, Any] = {"__builtins__": {}}
    # A copy: the syntax tree is kept for the next trace of the same source.
    body = _Lifter(t, names, namespace).visit(copied(node.body))
    lifted = ast.Lambda(args=args, body=body)
    tree = ast.fix_missing_locations(ast.Expression(ast.copy_location(lifted, node)))
    function: Callable[..., Any] = eval(compile(tree, t.frame.source.file, "eval"), namespace)
    return function


def _is_ours(function: FunctionType) -> bool:
    module = function.__module__
    return module.split(".", 1)[0] == "tilec" and module != "tilec.intrinsics.swizzles"


class _Lifter(ast.NodeTransformer):
    """Replaces every subexpression that holds no coordinate by a name bound to its value."""

    def __init__(self, t: Expressions, coordinates: list[str], namespace: dict[str, Any]) -> None:
        self.t = t
        self.coordinates = set(coordinates)
        self.namespace = namespace

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, _ALLOWED):
            self.t.refuse(node)
        if isinstance(node, ast.expr) and names_in(node).isdisjoint(self.coordinates):
            return self._bound(node)
        return self.generic_visit(node)

    def _bound(self, node: ast.expr) -> ast.expr:
        value = self.t.expression(node)
        if isinstance(value, Scalar):
            message = f"a layout must be known at compile time, this is {describe(value)}"
            hint = "use ints, T.constexpr parameters and the lambda's coordinates"
            raise self.t.error(message, hint, node)
        usable = is_literal(value) or isinstance(value, str | DType | tuple | list | T.Elementwise)
        usable = usable or (isinstance(value, FunctionType) and not _is_ours(value))
        if not usable and value not in (min, max, abs):
            message = f"{describe(value)} cannot stand in a layout's lambda"
            raise self.t.error(message, "use numbers, tuples, min, max and abs", node)
        name = f"value{len(self.namespace)}"
        self.namespace[name] = value
        return ast.copy_location(ast.Name(name, ast.Load()), node)
