"""stage_reductions: what is combined lies in registers.

Before: TILE. After: TILE, and each `reduce` reads a whole fragment and writes one: tiles in shared
memory and parts of fragments are copied before and after. Of a tile in shared memory that would
take too many registers, slices along the reduced dimension are combined one after the other."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilec.ir.builder import Builder
from tilec.ir.clusters import threads_of
from tilec.ir.core import Func, Op, Region
from tilec.ir.ops import Copy, Fill, Reduce
from tilec.passes.utils.building import beside, part
from tilec.passes.utils.reductions import neutral
from tilec.target import Target

MOST = 64  # registers of a thread that a copy of a tile may take


def stage_reductions(func: Func, target: Target) -> Func:
    def visit(o: Reduce) -> None | list[Op]:
        if _is_fragment(o.source) and _is_fragment(o.dest):
            return None
        threads = threads_of(func)
        length = _slice_length(o, threads)
        if length < o.source.extents[o.dim]:
            return _by_slices(o, length)
        b = Builder(o.loc)
        source, dest = o.source, o.dest
        if not _is_fragment(source):
            source = beside(b, source, "fragment", "held")
            b.emit(Copy, o.source, source)
        if not _is_fragment(dest):
            dest = beside(b, dest, "fragment", "held")
            if not o.clear:
                b.emit(Copy, o.dest, dest)
        b.ops.append(replace(o, source=source, dest=dest))
        if dest is not o.dest:
            b.emit(Copy, dest, o.dest)
        return b.ops

    return func if target.kind == "cpu" else func.rewrite(Reduce, visit)


def _slice_length(o: Reduce, threads: int) -> int:
    """How many elements along the dimension are combined at once: those of a divisor of all."""
    length = o.source.extents[o.dim]
    if o.source.type.space != "shared":
        return length
    bits = prod(o.source.extents) // length * o.source.dtype.bits
    fits = [n for n in range(1, length + 1) if length % n == 0 and bits * n <= 32 * MOST * threads]
    return max(fits, default=length)


def _by_slices(o: Reduce, length: int) -> list[Op]:
    """The reduction as a loop over slices, whose results are combined in the dtype of partial
    results."""
    b = Builder(o.loc)
    so_far = beside(b, o.dest, "fragment", "held", o.accumulator)
    if o.clear:
        b.emit(Fill, so_far, neutral(b, o, o.accumulator))
    else:
        b.emit(Copy, o.dest, so_far)
    count = o.source.extents[o.dim] // length
    with b.counted(count, "slice", "serial") as (number, inner):
        first = inner.binary("mul", number, length)
        piece = part(inner, o.source, o.dim, first, length)
        held = beside(inner, piece, "fragment", "held")
        inner.emit(Copy, piece, held)
        inner.emit(Reduce, held, so_far, o.dim, o.kind, clear=False, propagate_nan=o.propagate_nan)
    b.emit(Copy, so_far, o.dest)
    return b.ops


def _is_fragment(r: Region) -> bool:
    return r.type.space == "fragment" and r.is_whole
