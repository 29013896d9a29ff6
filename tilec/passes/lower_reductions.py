"""lower_reductions: the elements of a warp are combined, first in each thread, then by shuffles.

Before: each `reduce` combines fragments whose elements along the dimension are one warp's
(`split_reductions`). After: none is left. A thread combines its registers in four chains; lanes
exchange what they have by the bits of their number that step along the dimension, so that all of
them end with the same result, bit for bit."""

from __future__ import annotations

from collections import defaultdict
from math import prod

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Value
from tilec.ir.errors import InternalError
from tilec.ir.layout import Layout
from tilec.ir.ops import Lookup, Reduce, RegRead, RegWrite, ShuffleXor
from tilec.passes.utils.reductions import combine, taken
from tilec.target import Target

CHAINS = 4  # a thread's sums under way: an addition takes four cycles


def lower_reductions(func: Func, target: Target) -> Func:
    return func.rewrite(Reduce, _lowered)


def _lowered(o: Reduce) -> list[Op]:
    source, dest = o.source.type.laid_out, o.dest.type.laid_out
    b = Builder(o.loc)
    registers = _registers(o, source, dest)
    with b.counted(len(registers), "row") as (row, inner):
        chains: list[Value] = []
        for n, column in enumerate(zip(*registers)):
            read = inner.value(RegRead, o.source.buffer, inner.value(Lookup, column, row))
            value = taken(inner, o, read)
            if n < CHAINS:
                chains.append(value)
            else:
                chains[n % CHAINS] = combine(inner, o, chains[n % CHAINS], value)
        while len(chains) > 1:
            pairs = [chains[i : i + 2] for i in range(0, len(chains), 2)]
            chains = [combine(inner, o, *p) if len(p) > 1 else p[0] for p in pairs]
        (value,) = chains
        for mask in _lane_masks(source, o.dim):
            value = combine(inner, o, value, inner.value(ShuffleXor, value, mask))
        if not o.clear:
            old = inner.value(RegRead, o.dest.buffer, row)
            value = combine(inner, o, inner.cast(old, o.accumulator), value)
        inner.emit(RegWrite, o.dest.buffer, row, inner.cast(value, o.dest.dtype))
    return b.ops


def _registers(o: Reduce, source: Layout, dest: Layout) -> list[list[int]]:
    """For each register of the result those of the source that are combined."""
    inner = prod(source.shape[o.dim + 1 :])
    held: dict[int, list[int]] = defaultdict(list)
    elements = source.flat("reg", "lane", "warp")[:, 0, 0].tolist()
    for at, register in {at: n for n, at in enumerate(elements)}.items():  # an element once
        held[at // (inner * source.shape[o.dim]) * inner + at % inner].append(register)
    kept = prod(source.shape) // source.shape[o.dim]
    wanted = [int(at) % kept for at in dest.flat("reg", "lane", "warp")[:, 0, 0]]
    found = [held[at] for at in wanted if at in held]
    if len(found) != len(wanted) or len({*map(len, found)}) > 1:
        raise InternalError(f"no thread has the results of {source} in {dest}", o.loc)
    return found


def _lane_masks(layout: Layout, dim: int) -> list[int]:
    """The bits of a lane's number that step along `dim`."""
    masks = []
    for d, weight in layout.of("lane"):
        if d.step[dim]:
            masks += [weight << bit for bit in range(d.radix.bit_length() - 1)]
    return masks
