"""Covering arrays: of the combinations of several parameters' values, few in which every pair of
values of two parameters occurs. A fault seldom needs three to be as they are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations of a value of each axis, the same in each call: as few as a greedy search finds,
    in which every two values of different axes meet."""
    sizes = [range(len(a)) for a in axes]
    rows = list(itertools.product(*sizes))
    met = [set(itertools.combinations(enumerate(row), 2)) for row in rows]
    missing = set().union(*met)
    chosen = []
    while missing:
        best = max(range(len(rows)), key=lambda i: len(met[i] & missing))
        missing -= met[best]
        chosen.append(tuple(a[i] for a, i in zip(axes, rows[best])))
    return chosen
