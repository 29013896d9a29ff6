"""How each warp's share of a fragment is cut into chunks that it stages in shared memory on their
way to a TMA box: 16 rows of 128, 64 or 32 bytes, which one swizzle covers."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from tilec.ir.layout.core import Layout
from tilec.ir.layout.exchange import lane_steps
from tilec.ir.layout.named import SWIZZLES
from tilec.ir.layout.normal import is_inside

__all__ = ["CHUNK_ROWS", "Chunks", "chunks"]

CHUNK_ROWS = 16  # what one warp's stmatrix writes
WIDEST_ACCESS = 16  # bytes
_QUADS = (
    ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)),  # lanes of a matrix: four along a row
    ((2, 0), (4, 0), (0, 1), (0, 2), (0, 4)),  # transposed: four along a column
)


@dataclass(frozen=True)
class Chunks:
    """The chunks of one warp, `columns` wide, and the accesses that write one.

    `origins`: (row, column) of each chunk's first element from the warp's own first one. An access
    writes, in each lane, `run` neighbours of a row, or (`matrices`) four 8x8 matrices as `stmatrix`
    takes them (or, `transposed`, as `stmatrix.trans` does), two elements of each in a lane.
    `places`: where in the chunk each access begins (in lane 0). `registers[chunk][access]`: the
    registers it takes, in order.
    """

    columns: int
    run: int
    matrices: bool
    transposed: bool
    origins: tuple[tuple[int, int], ...]
    places: tuple[tuple[int, int], ...]
    registers: tuple[tuple[tuple[int, ...], ...], ...]


@functools.lru_cache(maxsize=1024)
def chunks(layout: Layout, bits: int, matrices: bool) -> Chunks | None:
    """The widest chunks that a two-dimensional fragment of elements of `bits` bits is made of; None
    if it is not. `matrices`: whether the machine has `stmatrix`."""
    plain = not any(is_inside(d, layout.atom) for d in layout.digits)
    if layout.rank != 2 or bits not in (8, 16, 32) or not plain:
        return None
    if layout.replicas("reg") * layout.replicas("lane") != 1 or not lane_steps(layout):
        return None
    for width in SWIZZLES:
        found = _cut(layout, bits, width * 8 // bits, matrices and bits == 16)
        if found is not None:
            return found
    return None


def _cut(layout: Layout, bits: int, columns: int, matrices: bool) -> Chunks | None:
    rows = CHUNK_ROWS
    warps = [d.step for d in layout.digits if d.owner == "warp"]
    if any(r % rows or c % columns for r, c in warps):
        return None
    table = layout.table("reg", "lane")
    first = table[:, 0]
    if ((table // (rows, columns)) != (first // (rows, columns))[:, None]).any():
        return None
    register = {(int(r), int(c)): i for i, (r, c) in enumerate(first)}
    starts = [(r, c) for r, c in register if r % rows == c % columns == 0]
    if len(starts) * rows * columns != table.shape[0] * table.shape[1]:
        return None
    starts.sort(key=lambda at: (at[0], at[1]))
    inside = [(r, c) for r, c in register if r < rows and c < columns]
    upright, turned = (matrices and lane_steps(layout) == steps for steps in _QUADS)
    if upright or turned:
        run, made = 2, [(0, c) for c in range(0, columns, 16)]
        parts = [(r, c + e) for c in (0, 8) for r in (0, 8) for e in (0, 1)]
        if turned:
            parts = [(r + e, c) for c in (0, 8) for r in (0, 8) for e in (0, 1)]
    else:
        run = _longest_run(table, WIDEST_ACCESS * 8 // bits)
        made = sorted(at for at in inside if at[1] % run == 0)
        parts = [(0, e) for e in range(run)]
    try:
        registers = tuple(
            tuple(tuple(register[r + y + i, c + x + j] for i, j in parts) for y, x in made)
            for r, c in starts
        )
    except KeyError:
        return None
    return Chunks(columns, run, upright or turned, turned, tuple(starts), tuple(made), registers)


def _longest_run(table: np.ndarray, limit: int) -> int:
    """How many neighbours of a row every lane holds, aligned to their number."""
    held = {(int(r), int(c)) for r, c in table[:, 0]}
    run = 1
    while run < limit:
        wide = 2 * run
        whole = all((r, c - c % wide + e) in held for r, c in held for e in range(wide))
        if not whole or (table[0, :, 1] % wide).any():
            break
        run = wide
    return run
