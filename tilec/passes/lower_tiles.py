"""lower_tiles: on a target whose blocks are one thread, tile ops become parallel loops, and
products what micro-kernels take.

Before: TILE. After: no elementwise tile op, and every `gemm` is in one form: all three operands on
chip and of the type they are computed in, B not transposed. What is not is packed into a new
buffer."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region, Value
from tilec.ir.element_loops import (
    ELEMENTWISE,
    boxes,
    element_indices,
    in_turn,
    is_private,
    loop_of,
    shifted,
)
from tilec.ir.errors import CompileError
from tilec.ir.ops import Alloc, Copy, Gemm, Load, Parallel, Reduce, Store
from tilec.ir.types import FLOAT32, FLOAT64, TFLOAT32, BufferType, DType
from tilec.ir.uniformity import asks_for_threads, uniformity_of
from tilec.passes.utils.accesses import is_by_each_thread
from tilec.passes.utils.reductions import combine, taken
from tilec.target import Target


def lower_tiles(func: Func, target: Target) -> Func:
    """Raises CompileError for a sum of floats in an integer."""
    by_threads, uniformity = asks_for_threads(func), uniformity_of(func)

    def lower(o: Op) -> Sequence[Op] | None:
        if isinstance(o, Gemm):
            b = Builder(o.loc)
            _gemm(b, o)
            return b.ops
        if isinstance(o, Reduce):
            return reduction_loops(o)
        if isinstance(o, Parallel) and by_threads and is_by_each_thread(o, uniformity):
            return in_turn(o)
        if type(o) not in ELEMENTWISE:
            return None
        # What the iterations of a parallel loop store may differ from thread to thread.
        own = by_threads or boxes(o)[0].type.space == "local"
        return in_turn(loop_of(o)) if own and is_private(o, uniformity) else [loop_of(o)]

    return func.rewrite(Op, lower)


# --- gemm ---------------------------------------------------------------------------------------


def compute_dtype(o: Gemm) -> DType:
    """What a product is computed in: float64 if any operand is, else float32; integers in the
    accumulator's type.
    """
    a, b, c = o.a.dtype, o.b.dtype, o.c.dtype
    if c.is_int and (a.is_float or b.is_float):
        both = f"{o.a.buffer.type} and {o.b.buffer.type}"
        raise CompileError(
            f"gemm of {both} into the integer accumulator {o.c.type}",
            o.loc,
            "make the accumulator float32",
        )
    if c.is_int:
        return c
    return FLOAT64 if FLOAT64 in (a, b, c) else FLOAT32


def _gemm(b: Builder, o: Gemm) -> None:
    m, n, k = o.shape
    dtype = compute_dtype(o)
    tf32 = o.allow_tf32 and o.a.dtype == FLOAT32 and dtype == FLOAT32
    a, right, transposed = o.a, o.b, o.transpose_a
    if tf32 or a.dtype != dtype or a.type.space == "global":
        packed = _packed(b, a, transposed, (m, k), dtype, tf32)
        a, transposed = b.whole(packed), False
    if tf32 or right.dtype != dtype or right.type.space == "global" or o.transpose_b:
        packed = _packed(b, right, o.transpose_b, (k, n), dtype, tf32)
        right = b.whole(packed)
    c = o.c
    if c.dtype != dtype:
        c = b.value(Alloc, BufferType((m, n), dtype, "fragment"))
        if not o.clear:
            _convert(b, o.c, c)
    b.emit(Gemm, a, right, c, transpose_a=transposed, clear=o.clear)
    if c is not o.c:
        _convert(b, c, o.c)


def _packed(
    b: Builder, source: Region, transposed: bool, shape: tuple[int, int], dtype: DType, tf32: bool
) -> Value:
    """A new buffer of `shape` with the operand in `dtype`, the last two dimensions swapped if
    `transposed`.
    """
    made = b.value(Alloc, BufferType(shape, dtype, "shared"))
    with b.each_element(shape) as (inner, at):
        row, column = at[::-1] if transposed else at
        *outer, i, j = source.offsets
        where = (*outer, shifted(inner, i, row), shifted(inner, j, column))
        value = inner.value(Load, source.buffer, where)
        if tf32:
            value = inner.cast(value, TFLOAT32)
        inner.emit(Store, made, at, inner.cast(value, dtype))
    return made


def _convert(b: Builder, source: Value, dest: Value) -> None:
    b.ops.append(loop_of(Copy(b.whole(source), b.whole(dest), loc=b.loc)))


# --- reductions -----------------------------------------------------------------------------------


LANES = 16  # sums of a row side by side, so that they are computed as vectors


def reduction_loops(o: Reduce) -> list[Op]:
    """A reduction as loops over elements. Where its dimension is the last one, `LANES` chains of
    each row run side by side first, and are combined then."""
    b = Builder(o.loc)
    kept = [e for d, e in enumerate(o.source.extents) if d != o.dim]
    count = o.source.extents[o.dim]
    chained = o.dim == len(o.source.extents) - 1 and count >= 2 * LANES
    lanes = LANES if chained else 1
    partial: Value | None = None
    if chained:
        made = BufferType((*kept, lanes), o.accumulator, "fragment")
        partial = b.value(Alloc, made)
        with b.each_element((*kept, lanes)) as (inner, at):
            value = _chain(inner, o, at[:-1], at[-1], count // lanes, lanes)
            inner.emit(Store, partial, at, value)
    with b.each_element(kept or (1,)) as (inner, at):
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
        wide = [a for a, e in zip(args, kept) if e != 1]
        place = element_indices(inner, o.dest, wide or [inner.const(0)])
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
    return b.carried(one, end, first, more)


def _element(b: Builder, o: Reduce, args: Sequence[Value], at: Value) -> Value:
    """The element at `at` along the dimension as it takes part."""
    own = (*args[: o.dim], at, *args[o.dim :])
    indices = tuple(shifted(b, offset, arg) for offset, arg in zip(o.source.offsets, own))
    return taken(b, o, b.value(Load, o.source.buffer, indices))
