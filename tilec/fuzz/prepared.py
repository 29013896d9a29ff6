"""Runs a kernel's own source in Python, changed by `syntax`, on the words of `meaning`."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tilec.builtins.annotations import Macro, Size, Tensor
from tilec.builtins.choices import Auto
from tilec.frontend.source import Source, read_source
from tilec.fuzz.buffers import Buffer, Invalid, Place, Region
from tilec.fuzz.meaning import Words
from tilec.fuzz.numbers import Number, arithmetic, index
from tilec.fuzz.program import PLAIN, Launch
from tilec.fuzz.syntax import changed, returned_names, shapes_within
from tilec.ir.types import find_dtype

PYTHON_FAULTS = (
    AttributeError,
    IndexError,
    ZeroDivisionError,
    TypeError,
    ValueError,
    UnboundLocalError,
    OverflowError,
)


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
    scope: dict[str, Any] = {**free, "T": words, "_region_of": Region.of}
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
        scope[name] = lambda *_: None
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
    return out or returned_names(read_source(function).node)


def _define(source: Source, scope: dict[str, Any]) -> None:
    """Put the function, as Python runs it, into `scope`."""
    node = copy.deepcopy(source.node)  # the compiler keeps the tree
    tree = ast.Module([changed(node)], [])
    code = compile(ast.fix_missing_locations(tree), source.file, "exec", dont_inherit=True)
    exec(code, scope)


def _tensors_within(source: Source) -> dict[str, Tensor]:
    """The tensors that a body annotates."""
    found = {}
    for name, call in shapes_within(source.node).items():
        names = {n.id for n in ast.walk(call.args[0]) if isinstance(n, ast.Name)}
        sizes = {n: Size(n, fixed=True) for n in names}
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
