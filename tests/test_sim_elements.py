"""Places and numbers of elements with gaps between them, against a list of all of them."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.sim.tensors import Elements

DIMENSIONS = st.lists(st.tuples(st.integers(1, 5), st.integers(-12, 12)), max_size=4)
NESTED = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.booleans()), max_size=4)


def check(shape: list[int], strides: list[int]) -> None:
    found = {
        sum(i * s for i, s in zip(index, strides))
        for index in itertools.product(*map(range, shape))
    }
    want = [p - min(found) for p in sorted(found)]
    elements = Elements(shape, strides)
    places = np.arange(want[-1] + 1)
    numbers, there = elements.numbers(places)
    assert places[there].tolist() == want
    assert elements.gaps == (len(want) < len(places))
    mine = numbers[there]
    assert (np.diff(mine) > 0).all()  # in the order of memory, none twice
    assert 0 <= numbers.min() and numbers.max() < elements.count
    assert np.flatnonzero(elements.exist(np.arange(elements.count))).tolist() == mine.tolist()
    assert [elements.place(n) for n in mine.tolist()] == want


@settings(max_examples=300, deadline=None)
@given(DIMENSIONS)
def test_any_strides(dimensions: list[tuple[int, int]]) -> None:
    check([n for n, _ in dimensions], [s for _, s in dimensions])


@settings(max_examples=300, deadline=None)
@given(NESTED)
def test_rows_with_gaps_between_them(dimensions: list[tuple[int, int, bool]]) -> None:
    shape, strides, reach = list[int](), list[int](), 1
    for extent, gap, backwards in dimensions:
        stride = reach + gap
        shape.insert(0, extent)
        strides.insert(0, -stride if backwards else stride)
        reach += stride * (extent - 1)
    check(shape, strides)
    assert Elements(shape, strides).count == np.prod(shape, dtype=int)


def test_what_is_kept_grows_with_the_elements() -> None:
    far = Elements((3, 4, 5), (2**40, -(2**33), 1))
    assert far.gaps and far.count == 60
    last = 2 * 2**40 + 3 * 2**33 + 4
    numbers, there = far.numbers(np.array([0, 4, 5, 2**33 - 1, 2**33, 4 * 2**33, last]))
    assert there.tolist() == [True, True, False, False, True, False, True]
    assert numbers[[0, 1, 4, 6]].tolist() == [0, 4, 5, 59]
    assert not Elements((7, 5), (5, 1)).gaps and not Elements((5, 7), (1, 5)).gaps
