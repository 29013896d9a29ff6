"""A reduction as loops over elements, for a target whose blocks are one thread."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Builder, Op, Region, Value
from tilec.ir.element_loops import carried, each_element, element_indices, shifted
from tilec.ir.ops import Alloc, Load, Reduce, Store
from tilec.ir.types import BufferType
from tilec.passes.utils.reductions import combine, taken

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
        with each_element(b, (*kept, lanes)) as (inner, at):
            value = _chain(inner, o, at[:-1], at[-1], count // lanes, lanes)
            inner.emit(Store, partial, at, value)
    with each_element(b, kept or (1,)) as (inner, at):
        args = at[: len(kept)]
        if partial is None:
            value = _chain(inner, o, args, inner.const(0), count, 1)
        else:
            value = inner.value(Load, partial, (*args, inner.const(0)))
            for n in range(1, lanes):
                more = inner.value(Load, partial, (*args, inner.const(n)))
                value = combine(inner, o, value, more)
            for n in range(count // lanes * lanes, count):
                last = inner.const(n)
                value = combine(inner, o, value, _element(inner, o, args, last))
        place = _place(inner, o.dest, [a for a, e in zip(args, kept) if e != 1])
        if not o.clear:
            old = inner.value(Load, o.dest.buffer, place)
            value = combine(inner, o, inner.cast(old, o.accumulator), value)
        inner.emit(Store, o.dest.buffer, place, inner.cast(value, o.dest.dtype))
    return b.ops


def _chain(
    b: Builder, o: Reduce, args: Sequence[Value], start: Value, count: int, step: int
) -> Value:
    """`count` elements along the dimension from `start` on, `step` apart, combined."""

    def more(inner: Builder, n: Value, so_far: Value) -> Value:
        steps = inner.binary("mul", n, step)
        at = inner.binary("add", start, steps)
        return combine(inner, o, so_far, _element(inner, o, args, at))

    first = _element(b, o, args, start)
    one, end = b.const(1), b.const(count)
    return carried(b, one, end, first, more)


def _element(b: Builder, o: Reduce, args: Sequence[Value], at: Value) -> Value:
    """The element at `at` along the dimension as it takes part."""
    own = (*args[: o.dim], at, *args[o.dim :])
    indices = tuple(shifted(b, offset, arg) for offset, arg in zip(o.source.offsets, own))
    return taken(b, o, b.value(Load, o.source.buffer, indices))


def _place(b: Builder, dest: Region, args: Sequence[Value]) -> tuple[Value, ...]:
    return element_indices(b, dest, args or (b.const(0),))
