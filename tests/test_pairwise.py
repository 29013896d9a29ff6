"""Covering arrays hold every pair, and are small."""

from __future__ import annotations

import itertools

import pytest
from pairwise import pairwise


@pytest.mark.parametrize(
    "sizes, most", [((2, 3), 6), ((2, 3, 4), 12), ((2, 2, 2), 5), ((4, 3, 3, 2), 15), ((5,), 0)]
)
def test_every_pair_occurs(sizes: tuple[int, ...], most: int) -> None:
    axes = [[f"{n}{i}" for i in range(size)] for n, size in enumerate(sizes)]
    rows = pairwise(*axes)
    assert len(rows) <= most
    for one, other in itertools.combinations(range(len(axes)), 2):
        assert {(r[one], r[other]) for r in rows} == {*itertools.product(axes[one], axes[other])}
    assert rows == pairwise(*axes)
