"""How each warp's share of a fragment is cut into chunks that it stages in shared memory on their
way to a TMA box: 16 rows of 128, 64 or 32 bytes, which one swizzle covers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
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
    """The chunks of one warp, `columns` wide, and the accesses that write one. The last chunk of a
    row or column that is no multiple of them reaches back over the one before.

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
def chunks(layout: Layout, bits: int, matrices: bool, once: bool = False) -> Chunks | None:
    """The widest chunks that a two-dimensional fragment of elements of `bits` bits is made of; None
    if it is not. `matrices`: whether the machine has `stmatrix`. `once`: no element is in two."""
    plain = not any(is_inside(d, layout.atom) for d in layout.digits)
    if layout.rank != 2 or bits not in (8, 16, 32) or not plain:
        return None
    if layout.replicas("reg") * layout.replicas("lane") != 1 or not lane_steps(layout):
        return None
    matrices = matrices and bits == 16
    for repeats in (False,) if once else (False, True):
        for width in SWIZZLES:
            found = _cut(layout, bits, width * 8 // bits, matrices, repeats)
            if found is not None:
                return found
    return None


def _cut(layout: Layout, bits: int, columns: int, matrices: bool, repeats: bool) -> Chunks | None:
    rows = CHUNK_ROWS
    table = layout.table("reg", "lane")
    first = table[:, 0]
    register = {(int(r), int(c)): i for i, (r, c) in enumerate(first)}
    upright, turned = (matrices and lane_steps(layout) == steps for steps in _QUADS)
    if repeats:
        starts = _over_matrices(register, columns) if upright or turned else []
        if not starts:
            return None
    else:
        warps = [d.step for d in layout.digits if d.owner == "warp"]
        if any(r % rows or c % columns for r, c in warps):
            return None
        if ((table // (rows, columns)) != (first // (rows, columns))[:, None]).any():
            return None
        starts = [(r, c) for r, c in register if r % rows == c % columns == 0]
        if len(starts) * rows * columns != table.shape[0] * table.shape[1]:
            return None
    starts.sort(key=lambda at: (at[0], at[1]))
    inside = [(r, c) for r, c in register if r < rows and c < columns]
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


def _over_matrices(register: Iterable[tuple[int, int]], columns: int) -> list[tuple[int, int]]:
    """Where chunks begin that cover all 8x8 matrices of a warp, some of them twice; none where they
    are no grid, or too few beside one another for a chunk."""
    held = {(r // 8, c // 8) for r, c in register}
    down, across = ({at[d] for at in held} for d in (0, 1))
    if len(held) != len(down) * len(across):
        return []
    starts = [_covering(sorted(down), CHUNK_ROWS // 8), _covering(sorted(across), columns // 8)]
    return [(8 * r, 8 * c) for r, c in itertools.product(*starts)]


def _covering(numbers: Sequence[int], size: int) -> list[int]:
    """The least of each of the fewest runs of `size` neighbours that cover `numbers`; none if no
    such runs do."""
    starts: list[int] = []
    for _, run in itertools.groupby(enumerate(numbers), key=lambda at: at[1] - at[0]):
        own = [number for _, number in run]
        if len(own) < size:
            return []
        starts += own[: len(own) - size + 1 : size]
        if len(own) % size:
            starts.append(own[-size])
    return starts


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
