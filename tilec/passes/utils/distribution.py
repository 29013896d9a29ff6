"""Spreading the iterations of a loop over a block's threads where no fragment says how."""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod

from tilec.ir.layout import Digit, Layout, blocked, leading_run

LINE_BYTES = 128
MISALIGNED = 0.5  # lines that an access of a warp touches beside those that it fills


def covering(extents: tuple[int, ...], warp_size: int, warps: int, vector: int) -> Layout:
    """A coalesced layout in which every thread works, whatever the extents: `vector` neighbours of
    the last dimension in a thread, then lanes along it. Where the extents do not divide, the layout
    covers a slightly larger tile (the least waste, wide rows first; powers of two for a tile of
    fewer elements than threads) and the loop skips what lies outside of its own."""
    plain = blocked(extents, warp_size, warps, vector)
    threads = warp_size * warps
    if idle(plain) == 1:
        return plain
    if prod(extents) // vector < threads:  # a few idle threads are better than all in each one
        wide = _power_of_two(-(-extents[-1] // vector)) * vector
        found = blocked((*map(_power_of_two, extents[:-1]), wide), warp_size, warps, vector)
        return found if found.size("reg") < plain.size("reg") else plain
    columns = -(-extents[-1] // vector)
    rows = extents[-2] if len(extents) > 1 else 1
    best: tuple[int, int, tuple[int, int]] | None = None
    wide = 1
    while wide <= threads:
        tall = threads // wide
        padded = (-(-rows // tall) * tall, -(-columns // wide) * wide)
        cost = padded[0] * padded[1]
        if (len(extents) > 1 or tall == 1) and (best is None or (cost, -wide) < best[:2]):
            best = (cost, -wide, padded)
        wide *= 2
    assert best is not None
    shape = (*extents[:-2], best[2][0], best[2][1] * vector)[-len(extents) :]
    found = blocked(shape, warp_size, warps, vector)
    return found if idle(found) < idle(plain) else plain


def along_rows(extents: tuple[int, ...], warp_size: int, warps: int, vector: int) -> Layout:
    """`covering`, but where a warp's access is no longer than a row, one warp makes all accesses of
    the row: a thread computes an address once for each of its rows."""
    wide = warp_size * vector
    if len(extents) != 2 or extents[1] < wide:
        return covering(extents, warp_size, warps, vector)
    tall, count = -(-extents[0] // warps), -(-extents[1] // wide)
    owners = (
        Digit("reg", vector, (0, 1)),
        Digit("lane", warp_size, (0, vector)),
        Digit("reg", count, (0, wide)),
        Digit("warp", warps, (1, 0)),
        Digit("reg", tall, (warps, 0)),
    )
    return Layout((tall * warps, count * wide), owners)


def with_rows(layout: Layout, dim: int, count: int) -> Layout:
    """A layout of `count` times as many rows along `dim`: a thread has so many that follow one
    another, behind its neighbours, for each that it has in `layout`."""
    _, run = leading_run(layout)
    shape = tuple(e * count if d == dim else e for d, e in enumerate(layout.shape))
    owners: list[Digit] = []
    held, rows = 1, Digit("reg", count, tuple(int(d == dim) for d in range(layout.rank)))
    for digit in layout.digits:
        if digit.owner == "reg" and held == run:
            owners.append(rows)
        held *= digit.radix if digit.owner == "reg" else 1
        step = (s * count if d == dim else s for d, s in enumerate(digit.step))
        owners.append(replace(digit, step=tuple(step)))
    return Layout(shape, (*owners, *([rows] if held == run else [])))


def _power_of_two(n: int) -> int:
    """The smallest one that is not below `n`."""
    return 1 << (n - 1).bit_length()


def folded_rows(
    extents: tuple[int, ...], warp_size: int, warps: int, bits: int, folds: int
) -> Layout | None:
    """How a tile is spread whose rows are folded `folds` times, and brought element by element,
    since they begin anywhere: each row in some lanes of one warp, a lane's columns as far apart as
    these lanes are many. The fewer lanes, the fewer shuffles for a fold, but the more lines of
    memory in an access of a warp, whose rows follow one another. None where the warps cannot have
    whole rows each."""
    if len(extents) != 2:
        return None
    rows, columns = extents
    each = rows * columns // (warp_size * warps)

    def price(lanes: int) -> float:
        shuffles = rows * lanes // (warp_size * warps) * int(log2(lanes))
        together = warp_size // lanes
        lines = together * max(columns if together > 1 else 0, lanes) * bits / (8 * LINE_BYTES)
        return 2 * folds * shuffles + 2 * each * (MISALIGNED + max(1.0, min(together, lines)))

    found = [
        n
        for n in (1 << i for i in range(warp_size.bit_length()))
        if columns % n == 0 and rows % (warps * (warp_size // n)) == 0
    ]
    if not found:
        return None
    lanes = min(found, key=price)
    tall = warp_size // lanes
    owners = (
        Digit("lane", lanes, (0, 1)),
        Digit("lane", tall, (1, 0)),
        Digit("reg", columns // lanes, (0, lanes)),
        Digit("warp", warps, (tall, 0)),
        Digit("reg", rows // (tall * warps), (tall * warps, 0)),
    )
    return Layout(extents, tuple(d for d in owners if d.radix > 1))


def each_thread(extents: tuple[int, ...]) -> Layout:
    """Every thread does all of the loop, the last dimension's neighbours one after the other."""
    rank = len(extents)
    steps = [tuple(int(i == d) for i in range(rank)) for d in range(rank)]
    digits = [Digit("reg", e, step) for e, step in zip(extents, steps) if e > 1]
    return Layout(extents, tuple(reversed(digits)))


def fewest_registers(extents: tuple[int, ...], warp_size: int, warps: int, vector: int) -> Layout:
    """The coalesced layout of a fragment in which its threads hold the least, and then as many as
    `vector` neighbours of the last dimension: narrow pieces may reach more threads of an odd
    tile."""
    found = []
    while vector:
        found.append(blocked(extents, warp_size, warps, vector))
        vector //= 2
    return min(found, key=lambda layout: layout.size("reg"))


def is_narrow(layout: Layout, bits: int) -> bool:
    """Whether a thread holds less than 16 bytes of a row, of elements of `bits` bits."""
    dim, run = leading_run(layout)
    return dim != layout.rank - 1 or run * bits < 128


def idle(layout: Layout) -> int:
    """How many threads hold each element: 1 if none repeats another's work."""
    return layout.replicas("lane") * layout.replicas("warp")
