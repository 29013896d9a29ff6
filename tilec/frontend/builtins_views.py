"""Builtins that show a buffer's memory as another buffer."""

from __future__ import annotations

import ast
import math

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins import Call, builtin
from tilec.frontend.expressions import Expressions
from tilec.frontend.narrow import on_chip
from tilec.frontend.values import Buffer, Scalar, describe
from tilec.ir.ops import View
from tilec.ir.types import ON_CHIP, UINT8, BufferType, DType, Extent

UNNAMED = "_"  # an extent that no size parameter holds


@builtin(T.reshape)
def reshape(t: Expressions, c: Call) -> Buffer | None:
    if c["src"] is None and t.options.tilelang:
        return None  # of a tensor that this variant does not have
    source = _source(t, c)
    return _view(t, c, source, source.dtype)


@builtin(T.view)
def view(t: Expressions, c: Call) -> Buffer | None:
    if c["src"] is None and t.options.tilelang:
        return None
    source = _source(t, c)
    dtype = source.dtype if c["dtype"] is None else c.dtype("dtype")
    return _view(t, c, source, dtype)


def of_memory(
    t: Expressions, source: Buffer, shape: object, dtype: object, node: ast.Call
) -> Buffer:
    """`T.Tensor(shape, dtype, A.data)` in a kernel: `T.view(A, shape, dtype)`."""
    nodes = dict(zip(("shape", "dtype", "src"), node.args))
    made = view(t, Call(t, "view", node, {"src": source, "shape": shape, "dtype": dtype}, nodes))
    assert isinstance(made, Buffer)
    return made


def _source(t: Expressions, c: Call) -> Buffer:
    source = c["src"]
    if not isinstance(source, Buffer) or source.type.space == "barrier":
        hint = "name a tensor, or what T.alloc_shared, T.alloc_fragment or T.alloc_local made"
        raise c.wrong("src", f"is {describe(source)}, not a buffer", hint)
    if source.value in t.at_addresses:
        hint = "call T.make_tensor again, with the other shape and dtype"
        raise t.error(f"a view of {describe(source)}, which T.make_tensor made", hint)
    return source


def _view(t: Expressions, c: Call, source: Buffer, dtype: DType) -> Buffer:
    c.of("memory")
    shape = source.shape if c["shape"] is None else c.several("shape")
    extents = [_extent(t, c, e, not d and source.is_global) for d, e in enumerate(shape)]
    _check_size(t, c, source, extents, dtype)
    packed, stored = dtype if dtype in ON_CHIP else None, extents
    if source.is_global and (packed or source.packed):
        stored = _in_bytes(t, c, source, extents, dtype)
    elif dtype is not source.dtype and min(dtype.bits, source.dtype.bits) < 8:
        raise t.error(
            f"a view of {describe(source)} as {dtype.name}: on chip elements of four bits have a "
            "byte or two each",
            "view the tensor that it comes from, or allocate it as bytes and take the bits apart",
        )
    in_bytes = packed is not None and source.is_global
    own = UINT8 if in_bytes else on_chip(dtype)
    made = BufferType(tuple(e for e, _ in stored), own, source.type.space)
    value = t.emit(View, source.value, made).result
    value.name = source.value.name
    shape, held = (tuple(v for _, v in x) for x in (extents, stored))
    return Buffer(value, shape, t.loc, packed=packed, stored=held if in_bytes else None)


def _check_size(
    t: Expressions,
    c: Call,
    source: Buffer,
    extents: list[tuple[Extent, int | Scalar]],
    dtype: DType,
) -> None:
    """Raise CompileError for a view of more or fewer bits than there are."""
    ours = _bits([e for e, _ in extents], dtype)
    if source.is_global and source.packed is not None:
        theirs = _bits(source.type.shape, source.type.dtype)  # those of its bytes
    else:
        theirs = _bits(source.type.shape, source.dtype)
    if ours != theirs and None not in (ours, theirs):
        said = f"{ours} bits, {source.name} {theirs}"
        raise t.error(
            f"T.{c.builtin} of {describe(source)} as {_shown(extents)} {dtype.name} has {said}",
            "give a shape of as many elements",
            c.place("shape") if c["shape"] is not None else None,
        )


def _in_bytes(
    t: Expressions,
    c: Call,
    source: Buffer,
    extents: list[tuple[Extent, int | Scalar]],
    dtype: DType,
) -> list[tuple[Extent, int | Scalar]]:
    """The extents, in memory, of a tensor in whose bytes elements are, or shall be, packed."""
    if dtype.bits >= 8:
        return extents
    last, _ = extents[-1]
    if not isinstance(last, int) or last % 2:
        raise t.error(
            f"T.{c.builtin} of {describe(source)} as {_shown(extents)} {dtype.name}: elements "
            "of four bits come in pairs, a byte each",
            "write a last extent that is even, and known at compile time",
            c.place("shape") if c["shape"] is not None else None,
        )
    return [*extents[:-1], (last // 2, last // 2)]


def extent_of(t: Expressions, given: object) -> tuple[Extent, int | Scalar] | None:
    """An extent as types have it, and as a value; None for what is none."""
    known = static_int(given)
    if known is not None and known > 0:
        return known, known
    sizes = (x for x in t.sizes.items() if x[1] is given)
    return next(((n, v) for n, v in sizes if isinstance(v, Scalar)), None)


def _extent(t: Expressions, c: Call, given: object, free: bool) -> tuple[Extent, int | Scalar]:
    """An extent; one that is `free`, the first of a tensor's view, may be any whole number: where
    an element lies does not depend on it, and the tensor's own end is looked at."""
    if (found := extent_of(t, given)) is not None:
        return found
    if free and isinstance(given, Scalar) and given.dtype.kind in ("int", "uint"):
        return UNNAMED, given
    hint = "write a positive int, or a size that a tensor's annotation names"
    if not free and isinstance(given, Scalar):
        hint += "; the first extent of a tensor's view may be any number"
    raise t.error(f"an extent of T.{c.builtin} is {describe(given)}", hint, c.place("shape"))


def _bits(shape: tuple[Extent, ...] | list[Extent], dtype: DType) -> int | None:
    known = [e for e in shape if isinstance(e, int)]
    return math.prod(known) * dtype.bits if len(known) == len(shape) else None


def _shown(extents: list[tuple[Extent, int | Scalar]]) -> str:
    return "(" + ", ".join(str(e) for e, _ in extents) + ")"
