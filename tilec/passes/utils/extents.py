"""Extents that tiles may have in place of their own, a little larger."""

from __future__ import annotations

from tilec.ir.types import next_power_of_2

ATOM = 16  # rows and columns of every matrix instruction divide it


def rounded(extent: int) -> int:
    """The next extent that divides well: at most an eighth more of a long one."""
    if extent <= ATOM:
        return next_power_of_2(extent)
    return up(extent, max(ATOM, 1 << (extent // 8).bit_length() - 1))


def up(extent: int, unit: int) -> int:
    """The next multiple."""
    return -(-extent // unit) * unit


def shared_by(m: int, n: int, square: bool, warps: int) -> tuple[int, int]:
    """The smallest product tile of at least that size of which every warp has a part, whole
    atoms."""

    found = []
    for along in (1 << i for i in range(warps.bit_length()) if warps % (1 << i) == 0):
        rows, columns = up(m, ATOM * along), up(n, ATOM * (warps // along))
        if square:
            rows = columns = max(rows, columns)
        found.append((rows * columns, rows, columns))
    return min(found)[1:]
