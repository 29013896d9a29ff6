"""How many neighbours of a row a thread should hold, so that what a warp touches at once lies side
by side in memory; and what rows of shared memory that are set apart cost those who walk down a
column of them, and those who take whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from tilec.ir.copy_engines import contiguous
from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.layout import Layout, bank_conflicts, leading_run
from tilec.ir.layout.queries import BANK_BYTES, BANKS
from tilec.ir.ops import Copy, ElementAccess, Parallel
from tilec.passes.utils.accesses import parallel_accesses
from tilec.passes.utils.memory_access import MemoryFacts


class Row(NamedTuple):
    """An access along rows of a tensor: bits of an element, elements that one instruction may
    take."""

    bits: int
    width: int


class Coalescing:
    """The accesses of a function's loops and copies to global memory."""

    def __init__(self, func: Func) -> None:
        self.known = MemoryFacts(func)
        self.copied: dict[Value, list[Row]] = {}
        for o in walk(func.body):
            if isinstance(o, Copy):
                self._copy(o)

    def of_fragment(self, v: Value) -> list[Row]:
        """The rows that copies bring to a fragment or take from it."""
        return self.copied.get(v, [])

    def of_loop(self, p: Parallel) -> list[Row]:
        """The rows that a loop runs along, itself or by what is copied to and from its
        fragments."""
        rows: dict[Op | Value, list[Row]] = {}
        last, bits = p.body.args[-1], 128
        for a in parallel_accesses(p):
            o, t = a.op, a.buffer.buffer
            if t.space == "fragment" and a.dims[-1:] == (len(p.extents) - 1,):
                rows[a.buffer] = self.of_fragment(a.buffer)
            elif t.space == "global" and self.known.facts.slope(a.indices[-1], last) == 1:
                assert isinstance(o, ElementAccess)
                rows[o] = [Row(t.dtype.bits, self.known.memory(o, last, bits).width)]
        return [r for found in rows.values() for r in found]

    def _copy(self, o: Copy) -> None:
        for tile, r in ((o.dest.buffer, o.source), (o.source.buffer, o.dest)):
            t = r.buffer.buffer
            if t.space == "global" and tile.buffer.space == "fragment" and r.extents[-1] > 1:
                width = contiguous(t, r.offsets, r.extents, self.known.facts)
                self.copied.setdefault(tile, []).append(Row(t.dtype.bits, width))


def neighbours(rows: Sequence[Row], widest: int) -> int:
    """A power of two up to `widest`: the fewest transactions of 128 bytes for all rows together,
    then the fewest instructions, then whole rows of a warp in one instruction.

    A row whose instructions must be narrow pays for each neighbour that a thread holds beside it:
    the lanes of one instruction lie that far apart (CUDA C++ Programming Guide, coalesced access).
    """

    def cost(count: int) -> tuple[float, float, int]:
        taken = [(min(r.width, count), max(1.0, count * r.bits / 8 / BANK_BYTES)) for r in rows]
        return sum(lines / n for n, lines in taken), sum(1 / n for n, _ in taken), count

    counts = [1 << n for n in range(widest.bit_length())]
    return min(counts, key=cost) if rows else widest


def walk_price(memory: Layout, bits: int, lanes: int, held: Sequence[Layout], moved: int) -> float:
    """Of a padded buffer's accesses, in instructions of a warp and times that they go over the
    banks: `lanes` threads walk down a column at once, fragments of the layouts `held` are copied
    whole, and so is the buffer to or from global memory, `moved` times."""
    total, (every, skip) = prod(memory.shape), memory.pad or (memory.shape[-1], 0)
    row, widest = every + skip, gcd(every, skip, 128 // bits)
    words = np.arange(lanes) * row * bits // (8 * BANK_BYTES)
    walked = int(np.bincount(np.unique(words) % BANKS).max())
    price = total / lanes * (1 + walked)
    for layout in held:
        dim, run = leading_run(layout)
        if layout.shape != memory.shape:
            continue
        width = gcd(widest, run) if dim == layout.rank - 1 else 1
        times = max(1, width * bits // 32) * bank_conflicts(layout, memory, bits, width)
        price += layout.size("reg") * layout.size("warp") / width * (1 + times)
    return price + moved * total / (32 * widest) * (1 + max(1, widest * bits // 32))
