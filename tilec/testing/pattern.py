"""Where the wrong elements of an array lie: kernels go wrong by rows, columns, tiles and edges.

An array counts as matrices, its last two dimensions. A place counts as wrong where nearly all of
its elements are, as some wrong ones are right by chance; and places make up the wrong elements
where nearly all are in them, as another mistake may have made the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Shares = npt.NDArray[np.float64]

NEARLY = 0.9  # of the elements of what counts as wrong
MOST = 0.95  # of the wrong elements, in places that make them up
TILES = (8, 16, 32, 64, 128, 256)
_PERIODS = (2, 4, 8, 16, 32, 64)
_LISTED = 4


def describe_pattern(wrong: Mask) -> list[str]:
    """Lines that say which places the elements in `wrong` make up; none for no pattern."""
    if wrong.ndim == 0 or not wrong.any():
        return []
    if wrong.all():
        return ["all elements are wrong"]
    lines = []
    matrices = wrong.reshape(-1, *((1,) * (wrong.ndim == 1)), *wrong.shape[-2:])
    if matrices.shape[0] > 1:
        hit: Mask = np.asarray(matrices.any((1, 2)))
        if not hit.all():
            which = [_index(i, wrong.shape[:-2]) for i in np.flatnonzero(hit)]
            lines.append(f"only in the matrices {_listed(which)} of {len(hit)}")
        matrices = matrices[hit]
    matrix = matrices.mean(0) >= NEARLY / 2 if len(matrices) > 1 else matrices[0]
    if not matrix.any():
        return lines
    found = _in_matrix(matrix, matrices, wrong.ndim == 1)
    return [*lines, *found]


def _in_matrix(matrix: Mask, matrices: Mask, is_vector: bool) -> list[str]:
    rows, columns = matrix.shape
    names = ("rows", "elements" if is_vector else "columns")
    if matrix.all():
        return ["all of their elements are wrong"] if len(matrices) > 1 else []
    by_row, by_column = matrix.mean(1), matrix.mean(0)
    for share, name, length in ((by_row, names[0], rows), (by_column, names[1], columns)):
        inside_each = share * matrix.size / length
        if length > 1 and _make_up(share, inside_each):
            rest = _rest(share, inside_each)
            return [f"whole {name} are wrong: {_places(share >= NEARLY)}{rest}"]
    box = [(int(i[0]), int(i[-1])) for i in (np.flatnonzero(by_row), np.flatnonzero(by_column))]
    (top, bottom), (left, right) = box
    inside = matrix[top : bottom + 1, left : right + 1]
    tiles = None if is_vector else _tiles(matrix)
    where = f"rows {top} to {bottom}, columns {left} to {right}"
    if inside.size > 1 and inside.mean() >= NEARLY and inside.size < matrix.size:
        edges = [
            word
            for word, at_edge in (
                ("the last rows", bottom == rows - 1 and top > 0),
                ("the last columns", right == columns - 1 and left > 0),
            )
            if at_edge
        ]
        more = f" ({' and '.join(edges)})" if edges else ""
        return [f"one block is wrong: {where}{more}"]
    if tiles is not None:
        return [tiles]
    for share, name in ((by_row, names[0]), (by_column, names[1])):
        period = _period(share > 0)
        if period:
            return [f"only in {name} {period}"]
    if inside.size < matrix.size:
        return [f"all within {where}" if not is_vector else f"all within {left} to {right}"]
    return []


def _make_up(share: Shares, counts: Shares) -> bool:
    """Whether some places, but not all, are wrong as a whole, and nearly all wrong elements are in
    these. `share` is the wrong part of each place, `counts` are its wrong elements."""
    hit = share >= NEARLY
    return bool(hit.any()) and not hit.all() and counts[hit].sum() >= MOST * counts.sum()


def _rest(share: Shares, counts: Shares) -> str:
    """How many wrong elements are in other places, in words."""
    left = round(float(counts[share < NEARLY].sum()))
    return f" ({left} more elsewhere)" if left else ""


def _places(hit: Mask) -> str:
    period = _period(hit)
    return period or _listed(_runs(np.flatnonzero(hit)))


def _period(hit: Mask) -> str:
    """ "i % 8 in {1, 3}" where the hit ones repeat so; "" where they do not."""
    for p in _PERIODS:
        if len(hit) < 2 * p:
            break
        whole = hit[: len(hit) // p * p].reshape(-1, p)
        if (whole == whole[0]).all() and (hit[len(whole) * p :] == whole[0][: len(hit) % p]).all():
            if 0 < whole[0].sum() < p:
                return f"i with i % {p} in {{{', '.join(map(str, np.flatnonzero(whole[0])))}}}"
    return ""


def _tiles(matrix: Mask) -> str | None:
    """The largest tiles of which each is wrong as a whole, or not at all."""
    rows, columns = matrix.shape
    sizes = [(m, n) for m in TILES if m <= rows for n in TILES if n <= columns]
    for m, n in sorted(sizes, key=lambda s: -s[0] * s[1]):
        share, counts = _by_tile(matrix, m, n)
        if _make_up(share, counts):
            at = [f"({i}, {j})" for i, j in np.argwhere(share >= NEARLY)]
            where = f"{_listed(at)} of {share.shape}"
            return f"whole tiles of {m} x {n} are wrong: {where}{_rest(share, counts)}"
    return None


def _by_tile(matrix: Mask, m: int, n: int) -> tuple[Shares, Shares]:
    """The share of wrong elements in each tile, and how many they are; tiles at the edges may be
    smaller."""
    starts = np.arange(0, matrix.shape[0], m), np.arange(0, matrix.shape[1], n)
    sums = np.add.reduceat(np.add.reduceat(matrix.astype(np.int64), starts[0], 0), starts[1], 1)
    ones = [
        np.minimum(size, length - start)
        for size, length, start in zip((m, n), matrix.shape, starts)
    ]
    return sums / np.multiply.outer(*ones), sums.astype(np.float64)


def _runs(numbers: npt.NDArray[np.intp]) -> list[str]:
    """ "3 to 5" for numbers that follow one another."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return [str(p[0]) if len(p) == 1 else f"{p[0]} to {p[-1]}" for p in parts if len(p)]


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more


def _index(flat: np.intp, shape: tuple[int, ...]) -> str:
    at = np.unravel_index(flat, shape)
    return str(int(at[0])) if len(at) == 1 else f"({', '.join(str(int(i)) for i in at)})"
