"""How many neighbours of a row a thread holds, and along which dimension of a loop its lanes run:
what a warp touches at once should lie side by side in memory.

Where no formula says how far apart neighbours are, some iterations' places are computed: most of
`x[q // 56, q % 56 + k]` count up with q."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np

from tilec.ir import ops
from tilec.ir.analysis import Facts
from tilec.ir.copy_engines import contiguous
from tilec.ir.core import Func, Op, Value, upstream
from tilec.ir.effects import buffers_read, buffers_written
from tilec.ir.fold import Number, fold
from tilec.ir.layout import Layout, bank_passes, row_major, swizzled
from tilec.ir.layout.queries import BANK_BYTES, BANKS
from tilec.ir.neighbours import run_of
from tilec.ir.types import BufferType, named_strides
from tilec.passes.utils.accesses import fragment_accesses, parallel_accesses
from tilec.passes.utils.gemm_layouts import SWIZZLES
from tilec.passes.utils.memory_access import MemoryFacts
from tilec.passes.utils.thread_masks import ThreadMasks

SECTOR_BYTES = 32  # that memory gives at once
MOST_SAMPLED = 32  # neighbours
MOST_FOLDED = 4096  # ops for an access, about: fewer neighbours where an index is long
FAR = 1 << 20  # elements: a stride that is not known
LARGE = 1 << 12  # a size


class Row(NamedTuple):
    """An access along rows of a tensor: bits from an element to its neighbour, elements that one
    instruction may take."""

    bits: int
    width: int


class Coalescing:
    """The accesses of a function's loops and copies to global memory: how many neighbours of a row
    a thread should hold, so that what a warp touches at once lies side by side there."""

    def __init__(self, func: Func) -> None:
        self.known = MemoryFacts(func)
        self.copied: dict[Value, list[Row]] = {}
        self.steps: dict[tuple[ops.Parallel, Op, int], int | None] = {}
        for o in func.body.every(ops.Copy):
            self._copy(o)

    def of_fragment(self, v: Value) -> list[Row]:
        """The rows that copies bring to a fragment or take from it."""
        return self.copied.get(v, [])

    def lanes_along(self, p: ops.Parallel) -> int:
        """The dimension that a loop's lanes run along: the last, but where along another one what
        it touches in tensors lies on less than half the lines, and no fragment says."""
        facts, last = self.known.facts, len(p.extents) - 1
        every = [a.op for a in parallel_accesses(p) if isinstance(a.op, ops.ElementAccess)]
        touched = [o for o in every if o.buffer.space == "global"]
        if any(o.buffer.space == "fragment" for o in every) or all(
            facts.slope(o.indices[-1], p.body.args[-1]) == 1 for o in touched
        ):
            return last

        def lines(dim: int) -> float:
            """Lines of 128 bytes that an access of as many lanes as there are banks lies on."""
            total, runs = 0.0, max(1.0, BANKS / p.extents[dim])
            for o in touched:
                step = self.usual_step(p, o, dim)
                away = BANKS if step is None else step * o.buffer.dtype.bits / 8 / BANK_BYTES
                total += min(BANKS, runs * max(1.0, away / runs))
            return total

        best = min(range(last + 1), key=lambda d: (lines(d), -d))
        return best if 2 * lines(best) < lines(last) else last

    def of_loop(self, p: ops.Parallel, dim: int = -1) -> list[Row]:
        """The rows that a loop runs along by one of its dimensions (the last), itself or by what is
        copied to and from its fragments."""
        rows: dict[Op | Value, list[Row]] = {}
        dim %= len(p.extents)
        last, bits = p.body.args[dim], 128
        for a in parallel_accesses(p):
            o, t = a.op, a.buffer.buffer
            if t.space == "fragment" and a.dims[-1:] == (dim,):
                rows[a.buffer] = self.of_fragment(a.buffer)
            elif t.space == "global" and self.known.facts.slope(a.indices[-1], last) == 1:
                assert isinstance(o, ops.ElementAccess)
                rows[o] = [Row(t.dtype.bits, self.known.memory(o, last, bits).width)]
            elif t.space == "global" and isinstance(o, ops.ElementAccess):
                if (width := self.known.apart(o, last, bits)) > 1:
                    rows[o] = [Row(t.dtype.bits * self.known.stride(o, last), width)]
                elif step := self.usual_step(p, o, dim):
                    away = t.dtype.bits * step
                    found = Row(away, self.known.memory(o, last, bits).width)
                    # Else a lane has a sector of its own wherever it is; and what others want of
                    # the same row is with what the widest access brings.
                    if away < 8 * SECTOR_BYTES:
                        rows[a.buffer] = [
                            max([found, *rows.get(a.buffer, ())], key=lambda r: r.width)
                        ]
        return [r for found in rows.values() for r in found]

    def on_chip(self, p: ops.Parallel, dim: int) -> list[Row]:
        """The same of shared memory, whose banks are a line of 128 bytes, for a loop of which some
        accesses leave out elements that are others': a thread's part of a row, say."""
        rows = []
        for a in parallel_accesses(p):
            o, t = a.op, a.buffer.buffer
            if t.space == "shared" and isinstance(o, ops.ElementAccess):
                step = self.usual_step(p, o, dim) or 0
                if 0 < step * t.dtype.bits < 8 * BANKS * BANK_BYTES:
                    rows.append(Row(step * t.dtype.bits, 128 // t.dtype.bits if step == 1 else 1))
        return rows if any(r.width == 1 for r in rows) else []

    def rows_alike(self, p: ops.Parallel, dim: int) -> tuple[int, int]:
        """(dimension, rows): how many rows of a loop whose lanes run along `dim` read the same in
        memory, as those of `words[i // 8, j]` do, whose eight fields are elements of a column. (-1,
        1) if none do."""
        facts, args = self.known.facts, p.body.args
        best = -1, 1
        for a in parallel_accesses(p):
            if not isinstance(a.op, ops.Load) or a.buffer.space not in ("global", "shared"):
                continue
            if facts.slope(a.indices[-1], args[dim]) != 1:
                continue
            for run in (run_of(facts, v, args) for v in a.indices[:-1]):
                if run is None or run.along in (None, args[dim]) or run.per & (run.per - 1):
                    continue
                row = args.index(run.along)
                if p.extents[row] % run.per == 0:
                    best = max(best, (row, run.per), key=lambda found: found[1])
        return best

    def usual_step(self, p: ops.Parallel, o: ops.ElementAccess, dim: int) -> int | None:
        """How many elements of a tensor most neighbours along a dimension of a loop are apart; None
        where that depends on what is in memory. `x[q // 56, q % 56 + k]` counts up with q but at
        the ends of rows."""
        if (p, o, dim) not in self.steps:
            found = offsets(p, o, dim, self.known.facts)
            apart = None if found is None else [b - a for a, b in zip(found, found[1:])]
            self.steps[p, o, dim] = abs(median_low(apart)) if apart else None
        return self.steps[p, o, dim]

    def _copy(self, o: ops.Copy) -> None:
        for tile, r in ((o.dest.buffer, o.source), (o.source.buffer, o.dest)):
            t = r.type
            if t.space == "global" and tile.space == "fragment" and r.extents[-1] > 1:
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


def widest_run(bits: int, rows: Sequence[Row]) -> int:
    """Neighbours in a thread that fill its access to any of `rows`, or to elements of `bits`."""
    return max(1, 128 // min([bits, *(r.bits for r in rows)]))


def narrowest(p: ops.Parallel) -> int:
    """Bits of the narrowest element a loop touches in memory: it sets the vector width."""
    widths = [a.buffer.dtype.bits for a in parallel_accesses(p) if a.buffer.space != "local"]
    return max(8, min(widths, default=32))


def offsets(p: ops.Parallel, o: ops.ElementAccess, dim: int, facts: Facts) -> list[int] | None:
    """Of which elements an access of a loop is at neighbours along one of its dimensions, where all
    that is the same for them is 0, unless it is known, and sizes are large; None where that depends
    on what is in memory, and of what a loop with fragments divides by a size: it waits for each
    element in turn, and those of one sector have come with the first (half precision, rows of 15 x
    17: 36 us, 50 side by side)."""
    needed = [*upstream(o.indices, p.body.defs)]
    folds = bool(fragment_accesses(p))
    own = {r for x in needed for r in x.results if not facts.origins.of(r).isdisjoint(p.body.args)}
    found = []
    sampled = min(MOST_SAMPLED, max(3, MOST_FOLDED // max(1, len(needed))))
    for n in range(min(p.extents[dim], sampled)):
        numbers: dict[Value, Number] = {v: n * (d == dim) for d, v in enumerate(p.body.args)}
        numbers |= {} if folds else {v: facts.constant(v) or LARGE for v in facts.sizes}
        known = functools.partial(_number, numbers, facts)
        for x in needed:
            number = fold(x, known) if len(x.results) == 1 else None
            if number is None and not own.isdisjoint(x.results):
                return None
            numbers |= dict.fromkeys(x.results, number or 0)
        pairs = zip(map(known, o.indices), _strides(o.buffer.buffer))
        found.append(sum(int(n) * stride for n, stride in pairs))
    return found


def _number(numbers: Mapping[Value, Number], facts: Facts, v: Value) -> Number:
    """The number that a value has at one iteration."""
    return numbers[v] if v in numbers else facts.constant(v) or 0


def _strides(t: BufferType) -> list[int]:
    """In elements, of each dimension."""
    strides = t.strides or named_strides("", t.shape)
    return [s if isinstance(s, int) else FAR for s in strides]


# --- how a shared tile lies that copies bring and loops read: its banks are counted ---------------


def fewest_conflicts(func: Func, buffer: Value, loops: Mapping[ops.Parallel, Layout]) -> Layout:
    """The layout of `buffer` in which loops of these layouts go over the banks least often: in rows
    as they are, where nothing is better and where it is not known who touches what, or with their
    chunks of 16 bytes exchanged, which no copy minds."""
    shape, bits = buffer.buffer.static_shape, buffer.dtype.bits
    rows = row_major(shape)
    fits = len(shape) > 1 and shape[-2] % 8 == 0
    widths = [w for w in SWIZZLES if fits and shape[-1] * bits // 8 % w == 0]
    places = [*_places(func, buffer, loops)] if widths else []
    if not places or any(at is None for at in places):
        return rows

    def passes(memory: Layout) -> int:
        return sum(bank_passes(memory.offsets()[at], bits) for at in places)

    return min((rows, *(swizzled(shape, bits, w) for w in widths)), key=passes)


def _places(func: Func, buffer: Value, loops: Mapping[ops.Parallel, Layout]) -> Iterator[Any]:
    """The elements of each access of a loop, by registers and lanes of a warp; None for one that is
    not known, and for what else is done to the tile than to fill it."""
    inside = {o: p for p in loops for o in p.body.every(ops.ElementAccess)}
    for o in func.body.users[buffer]:
        if isinstance(o, ops.ElementAccess) and o in inside:
            yield _elements(func, o, inside[o], loops[inside[o]])
        elif o.region_fields or buffer not in _filled(o):
            yield None


def _filled(o: Op) -> set[Value]:
    """The buffers that an op writes and does not read."""
    return {*buffers_written(o.effects())} - {*buffers_read(o.effects())}


def _elements(func: Func, o: ops.ElementAccess, p: ops.Parallel, layout: Layout) -> Any:
    values = ThreadMasks(func)
    coords = layout.table("reg", "lane")
    for d, (arg, extent) in enumerate(zip(p.body.args, p.extents)):
        values.known[arg] = np.minimum(coords[..., d], extent - 1)
    found = [values.evaluate(v) for v in o.indices]
    if any(at is None for at in found):
        return None
    inside = zip(found, o.buffer.buffer.static_shape)
    return tuple(np.broadcast_to(np.clip(at, 0, n - 1), coords.shape[:-1]) for at, n in inside)
