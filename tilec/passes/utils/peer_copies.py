"""Parts of shared buffers, and what moves them: the boxes of TMA; the pieces in which bulk copies
take a tile to another block of the cluster, and the loop of the threads that store what does not
lie in such pieces."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np

from tilec.ir.analysis import Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Op, Region, Value, squeeze
from tilec.ir.errors import LayoutError
from tilec.ir.layout import has_runs, tma_box
from tilec.ir.ops import ClusterCopy, ClusterStore, MbarrierArrive, MbarrierExpect, MemLoad
from tilec.ir.ops import ClusterSend as Send
from tilec.passes.utils.addressing import Place, narrow, shared_offset
from tilec.passes.utils.rings import elected

PIECE = 16  # bytes: what a bulk copy moves, and where it begins, are multiples of it
MOST_PIECES = 64
MAX_BOX = 256  # elements of a TMA box in one dimension
WARP = 32  # threads; of targets with clusters


@dataclass(frozen=True)
class Part:
    """A part of a shared buffer. `places`: where each of its elements lies, in elements from the
    buffer's start, if it begins at `first`; it begins `steps` further: index times elements."""

    first: tuple[int, ...]
    places: Any
    steps: tuple[tuple[Value, int], ...]

    def moved(self, b: Builder) -> Value:
        """How far that is, in elements (i32)."""
        total = b.const(0)
        for index, step in self.steps:
            far = b.binary("mul", narrow(b, index), step)
            total = b.binary("add", total, far)
        return total


def part_of(region: Region, facts: Facts) -> Part | None:
    """None where the elements lie otherwise to one another from place to place."""
    t = region.type
    offsets = t.laid_out.offsets()
    first, steps = list[int](), list[tuple[Value, int]]()
    for d, (at, extent, size) in enumerate(zip(region.offsets, region.extents, t.static_shape)):
        known = 0 if extent == size else facts.constant(at)
        first.append(int(known or 0))
        if known is None:
            step = _step(offsets, d, extent)
            if step is None or facts.divisor(at) % extent:
                return None
            steps.append((at, step))
    inside = tuple(slice(at, at + e) for at, e in zip(first, region.extents))
    return Part(tuple(first), offsets[inside], tuple(steps))


def box_of(tile: Region, part: Part) -> tuple[tuple[int, ...], int] | None:
    """The box (its extents, its swizzle) by which TMA fills a part of a shared buffer, or takes
    it; None if there is none."""
    layout, extents = tile.type.laid_out, tile.extents
    bits = tile.dtype.bits
    whole = tma_box(layout, bits)
    columns = extents[-1] if whole is None else gcd(whole[0][-1], extents[-1])
    try:
        narrow_part = layout.restrict((*extents[:-1], columns))
        panel = narrow_part.reshape(squeeze(narrow_part.shape) or (1,))
    except LayoutError:
        return None
    found = tma_box(panel, bits)
    if found is None or any(e > MAX_BOX for e in found[0]):
        return None
    sizes = iter(found[0])
    box = tuple(1 if e == 1 else next(sizes) for e in narrow_part.shape)
    if squeeze(narrow_part.shape) == ():
        box = (1,) * len(extents)
    table = panel.offsets().reshape(narrow_part.shape)
    inside = table[tuple(slice(0, x) for x in box)]
    for corner in product(*(range(0, e, x) for e, x in zip(extents, box))):
        here = part.places[tuple(slice(at, at + x) for at, x in zip(corner, box))]
        if here.shape != inside.shape or not np.array_equal(here - here.flat[0], inside):
            return None
    return box, found[1]


def _step(offsets: Any, dim: int, extent: int) -> int | None:
    """How many places in memory one index of `dim` counts for, where it is a multiple of `extent`;
    None where that differs from place to place."""
    size = offsets.shape[dim]
    if size % extent:
        return None
    parts = [offsets.take(range(at, at + extent), dim) for at in range(0, size, extent)]
    far = int(parts[1].flat[0] - parts[0].flat[0]) if len(parts) > 1 else 0
    same = all(np.array_equal(p - parts[0], np.full_like(p, n * far)) for n, p in enumerate(parts))
    return far // extent if same and far % extent == 0 else None


@dataclass(frozen=True)
class Pieces:
    """What a copy consists of: (elements from the start of the source, and of the destination, and
    how many) for each piece, as far as is known before the parts are `moved`."""

    source: Part
    dest: Part
    runs: tuple[tuple[int, int, int], ...]


def pieces(o: ClusterCopy, facts: Facts) -> Pieces | None:
    """The pieces in which bulk copies can move a tile; None where its bytes do not lie so."""
    source, dest = part_of(o.source, facts), part_of(o.dest, facts)
    bits = o.source.dtype.bits
    if source is None or dest is None or bits % 8:
        return None
    order = np.argsort(source.places, axis=None)
    a, b = (p.places.ravel()[order] for p in (source, dest))
    ends = np.flatnonzero((np.diff(a) != 1) | (np.diff(b) != 1)) + 1
    starts = [0, *ends.tolist()]
    counts = np.diff([*starts, len(a)]).tolist()
    runs = tuple((int(a[i]), int(b[i]), n) for i, n in zip(starts, counts))
    steps = [step for part in (source, dest) for _, step in part.steps]
    numbers = [*steps, *(n for run in runs for n in run)]
    if len(runs) > MOST_PIECES or any(n * bits // 8 % PIECE for n in numbers):
        return None
    return Pieces(source, dest, runs)


def send(o: ClusterCopy, found: Pieces) -> list[Op]:
    """One thread announces the bytes at the other block's barrier, arrives there, and starts the
    copies that complete on it."""
    assert o.barrier is not None and o.stage is not None
    b, size = Builder(o.loc), o.source.dtype.bits // 8
    with b.when(elected(b)) as inner:
        source, dest = found.source.moved(inner), found.dest.moved(inner)
        total = prod(o.source.extents) * size
        inner.emit(MbarrierExpect, o.barrier, o.stage, total, o.block)
        for at, there, count in found.runs:
            begin, end = inner.fold("add", source, at), inner.fold("add", dest, there)
            to = o.dest.buffer, end, o.block, o.barrier, o.stage
            inner.emit(Send, o.source.buffer, begin, count * size, *to)
    return b.ops


def store(o: ClusterCopy, warps: int) -> list[Op]:
    """The threads of a scope of `warps` load the tile and store it over there, in vectors where
    both sides have neighbours."""
    b = Builder(o.loc)
    shape, dtype = o.source.shape or (1,), o.source.dtype
    lanes = _lanes(o)
    vectors, threads = prod(shape) // lanes, warps * WARP
    place = Place(b)
    thread = b.fold("add", b.fold("mul", place.warp, WARP), place.lane)
    with b.counted(-(-vectors // threads), "part") as (round, inner):
        number = inner.fold("add", inner.fold("mul", round, threads), thread)
        some = inner.compare("lt", number, inner.const(vectors)) if vectors % threads else None
        with inner.when(some) as work:
            left, at = work.fold("mul", number, lanes), list[Value]()
            for extent in reversed(shape[1:]):
                at.insert(0, work.fold("mod", left, extent))
                left = work.fold("floordiv", left, extent)
            at.insert(0, left)
            here, there = _place(work, o.source, at), _place(work, o.dest, at)
            value = work.value(MemLoad, o.source.buffer, here, lanes, lanes * dtype.bits // 8)
            work.emit(ClusterStore, o.dest.buffer, there, value, o.block)
    return b.ops


def arrive(o: ClusterCopy) -> list[Op]:
    """One thread tells the other block's barrier of what all of them have stored, behind a
    barrier of theirs."""
    b = Builder(o.loc)
    with b.when(elected(b)) as inner:
        inner.emit(MbarrierArrive, o.barrier, o.stage, None, o.block, True)
    return b.ops


def _place(b: Builder, region: Region, at: list[Value]) -> Value:
    """Where the element of the region with these indices, without extents of 1, is."""
    inner = iter(at)
    coords = [narrow(b, v) for v in region.offsets]
    wide = [e != 1 for e in region.extents]
    coords = [b.fold("add", c, next(inner)) if w else c for c, w in zip(coords, wide)]
    layout = region.type.laid_out
    return shared_offset(b, layout, coords)


def _lanes(o: ClusterCopy) -> int:
    """Elements of the widest vectors, of at most 16 bytes, that lie together on both sides."""
    lanes = PIECE * 8 // o.source.dtype.bits
    while lanes > 1 and not all(_together(r, lanes) for r in (o.source, o.dest)):
        lanes //= 2
    return lanes


def _together(region: Region, lanes: int) -> bool:
    layout = region.type.laid_out
    part = [d for d, e in enumerate(region.extents) if e != region.type.static_shape[d]]
    columns = (region.shape or (1,))[-1]
    last = max((d for d, e in enumerate(region.extents) if e != 1), default=0)
    if columns % lanes or last in part or last != len(region.extents) - 1:
        return False
    return has_runs(layout, lanes)
