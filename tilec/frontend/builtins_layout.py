"""Builtins about layouts: where the author wants the elements of tiles."""

from __future__ import annotations

import ast
import math

from tilec import language as T
from tilec.frontend.arithmetic import affine_of, static_int
from tilec.frontend.builtins import Call, builtin, int_argument, shape_argument
from tilec.frontend.builtins_tile import buffer_dict, dict_entry, tile_level
from tilec.frontend.expressions import Expressions
from tilec.frontend.lambdas import index_function
from tilec.frontend.layouts import check_layout, fragment_layout
from tilec.frontend.placements import IndexMap, map_of, placement
from tilec.frontend.values import Buffer, Scalar, describe
from tilec.ir.errors import CompileError, LayoutError
from tilec.ir.layout import Fragment, Layout, LayoutRequest
from tilec.ir.ops import AnnotateLayout

_MOST_ELEMENTS = 1 << 22  # more are those of a tensor, no tile's


@builtin(T.annotate_layout)
def annotate_layout(t: Expressions, c: Call) -> None:
    tile_level(t, c)
    for buffer, layout in buffer_dict(t, c, "layouts"):
        key, value = dict_entry(t, c, "layouts", buffer)
        if buffer.is_global:
            _place(t, buffer, layout, key, value)
            continue
        if isinstance(layout, Fragment) and buffer.type.space == "fragment":
            shape, place = buffer.type.static_shape, t.frame.loc(value)
            layout = fragment_layout(t, buffer.name, shape, layout, place)
            if layout is None:
                continue
        if not isinstance(layout, Layout | LayoutRequest):
            raise t.error(
                f"the layout of {buffer.name} is {describe(layout)}",
                f"write make_swizzled_layout({buffer.name}) or T.Layout({buffer.name}.shape, …)",
                value,
            )
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
        raise t.error(
            f"the layout of {describe(buffer)} {what}; a tensor has one layout in a kernel",
            "annotate it once, at the top level of the kernel, below with T.Kernel",
            key,
        )
    same = len(given.shape) == len(buffer.shape) and all(
        (affine_of(a) - affine_of(b)).constant == 0 for a, b in zip(given.shape, buffer.shape)
    )
    if not same:
        raise LayoutError(
            f"the layout has another shape than {describe(buffer)}",
            loc,
            f"write T.Layout({buffer.name}.shape, …), with one coordinate for each dimension",
        )
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
    extents = shape_argument(t, Call(c.builtin, c.node, {"shape": shape}, c.nodes), "shape")
    if math.prod(extents) > _MOST_ELEMENTS:
        return IndexMap(extents, index_function(t, fn_node, len(extents)), t.frame.loc(fn_node))
    try:
        return Layout.from_function(extents, index_function(t, fn_node, len(extents)))
    except CompileError as e:
        if e.loc is not None:
            raise
        strides = [math.prod(extents[d + 1 :]) for d in range(len(extents))]
        rows = " + ".join(i if s == 1 else f"{i} * {s}" for i, s in zip("ijklmn", strides))
        hint = f"each element needs an offset of its own, from 0: {rows} is row-major"
        raise type(e)(e.message, t.frame.loc(fn_node), e.hint or hint) from None


@builtin(T.Fragment, raw=True)
def fragment(t: Expressions, c: Call) -> Fragment:
    extents, copies = _extents(t, c), 1
    if "replicate" in c.nodes:
        value = {"replicate": t.expression(c.nodes["replicate"])}
        copies = int_argument(t, Call(c.builtin, c.node, value, c.nodes), "replicate", 1)
    functions = {}
    for name in ("forward_fn", "forward_thread_fn", "forward_index_fn"):
        node = c.nodes.get(name)
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            continue
        rank = len(extents) + (copies > 1 and name != "forward_index_fn")
        functions[name] = index_function(t, node, rank)
    try:
        return Fragment.from_functions(extents, replicate=copies, **functions)
    except CompileError as e:
        if e.loc is not None:
            raise
        hint = "each element needs a thread and a register of its own: lambda i, j: (thread, index)"
        place = next((c.nodes[name] for name in functions), c.node)
        raise type(e)(e.message, t.frame.loc(place), e.hint or hint) from None


def _extents(t: Expressions, c: Call) -> tuple[int, ...]:
    """The argument `shape` of a builtin that evaluates its arguments itself."""
    shape = t.expression(c.nodes["shape"])
    return shape_argument(t, Call(c.builtin, c.node, {"shape": shape}, c.nodes), "shape")


def _size(t: Expressions, extent: int | Scalar | T.Size) -> int | Scalar:
    """An extent of a tensor."""
    found = t.size_value(extent) if isinstance(extent, T.Size) else extent
    assert not isinstance(found, T.Size)
    return found
