"""A reduction as loops over elements, for a target whose blocks are one thread."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Builder, Op, Region, Value
from tilec.ir.element_loops import element_indices
from tilec.ir.ops import Alloc, Binary, Cast, Const, For, Load, Parallel, Reduce, Store, Yield
from tilec.ir.types import INT32, BufferType, ScalarType
from tilec.passes.utils.reductions import as_dtype, combine, taken

LANES = 16  # sums of a row side by side, so that they are computed as vectors


def reduction_loops(o: Reduce) -> list[Op]:
    """The loops of `o`. Where its dimension is the last one, `LANES` chains of each row run side by
    side first, and are combined then."""
    b = Builder(o.loc)
    kept = [e for d, e in enumerate(o.source.extents) if d != o.dim]
    count = o.source.extents[o.dim]
    chained = o.dim == len(o.source.extents) - 1 and count >= 2 * LANES
    lanes = LANES if chained else 1
    partial: Value | None = None
    if chained:
        made = BufferType((*kept, lanes), o.accumulator, "fragment")
        partial = b.value(Alloc, made)
        args = _indices(len(kept) + 1)
        inner = Builder(o.loc)
        value = _chain(inner, o, args[:-1], args[-1], count // lanes, lanes)
        inner.emit(Store, partial, args, value)
        b.emit(Parallel, (*kept, lanes), inner.block(args))
    args = _indices(len(kept))
    inner = Builder(o.loc)
    if partial is None:
        value = _chain(inner, o, args, inner.value(Const, 0, INT32), count, 1)
    else:
        value = inner.value(Load, partial, (*args, inner.value(Const, 0, INT32)))
        for n in range(1, lanes):
            more = inner.value(Load, partial, (*args, inner.value(Const, n, INT32)))
            value = combine(inner, o, value, more)
        for n in range(count // lanes * lanes, count):
            at = inner.value(Const, n, INT32)
            value = combine(inner, o, value, _element(inner, o, args, at))
    place = _place(inner, o.dest, [a for a, e in zip(args, kept) if e != 1])
    if not o.clear:
        old = inner.value(Load, o.dest.buffer, place)
        value = combine(inner, o, as_dtype(inner, old, o.accumulator), value)
    inner.emit(Store, o.dest.buffer, place, as_dtype(inner, value, o.dest.dtype))
    if not kept:
        args, kept = _indices(1), [1]
    b.emit(Parallel, tuple(kept), inner.block(args))
    return b.ops


def _indices(count: int) -> tuple[Value, ...]:
    return tuple(Value(ScalarType(INT32), f"i{d}") for d in range(count))


def _chain(
    b: Builder, o: Reduce, args: Sequence[Value], start: Value, count: int, step: int
) -> Value:
    """`count` elements along the dimension from `start` on, `step` apart, combined."""
    first = _element(b, o, args, start)
    index, so_far = Value(ScalarType(INT32), "n"), Value(first.type, "so_far")
    inner = Builder(o.loc)
    steps = inner.value(Binary, "mul", index, inner.value(Const, step, INT32))
    more = _element(inner, o, args, inner.value(Binary, "add", start, steps))
    inner.emit(Yield, (combine(inner, o, so_far, more),))
    one, end = b.value(Const, 1, INT32), b.value(Const, count, INT32)
    return b.value(For, "serial", one, end, one, (first,), inner.block((index, so_far)))


def _element(b: Builder, o: Reduce, args: Sequence[Value], at: Value) -> Value:
    """The element at `at` along the dimension as it takes part."""
    own = (*args[: o.dim], at, *args[o.dim :])
    indices = []
    for offset, arg in zip(o.source.offsets, own):
        wide = arg if arg.dtype == offset.dtype else b.value(Cast, arg, offset.dtype)
        indices.append(b.value(Binary, "add", offset, wide))
    return taken(b, o, b.value(Load, o.source.buffer, tuple(indices)))


def _place(b: Builder, dest: Region, args: Sequence[Value]) -> tuple[Value, ...]:
    return element_indices(b, dest, args or (b.value(Const, 0, INT32),))
