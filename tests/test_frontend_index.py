"""What the front end knows of indices, against all values they take (property tests)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

from tilec.frontend.index import (
    Affine,
    Atom,
    floor_quotient,
    floor_remainder,
    larger,
    product,
    smaller,
)

OPERATIONS: dict[str, tuple[Callable[[Affine, Affine], Affine], Callable[[int, int], int]]] = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (product, lambda a, b: a * b),
    "//": (floor_quotient, lambda a, b: a // b),
    "%": (floor_remainder, lambda a, b: a % b),
    "min": (smaller, min),
    "max": (larger, max),
}
ATOMS = [(0, 3), (-2, 5), (7, 7), (1, 6)]


def trees(depth: int) -> st.SearchStrategy[object]:
    leaf = st.one_of(st.integers(0, len(ATOMS) - 1).map(lambda n: ("atom", n)), st.integers(-5, 9))
    if depth == 0:
        return leaf
    below = trees(depth - 1)
    divisor = st.integers(1, 7)
    return st.one_of(
        leaf,
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), below, below),
        st.tuples(st.sampled_from(["//", "%"]), below, divisor),
    )


def evaluate(tree: object, values: tuple[int, ...]) -> int:
    if isinstance(tree, int):
        return tree
    assert isinstance(tree, tuple)
    if tree[0] == "atom":
        return values[tree[1]]
    return OPERATIONS[tree[0]][1](evaluate(tree[1], values), evaluate(tree[2], values))


def affine(tree: object, atoms: list[Affine]) -> Affine:
    if isinstance(tree, int):
        return Affine(tree)
    assert isinstance(tree, tuple)
    if tree[0] == "atom":
        return atoms[tree[1]]
    return OPERATIONS[tree[0]][0](affine(tree[1], atoms), affine(tree[2], atoms))


@given(trees(3), trees(2))
def test_intervals_hold_and_are_attained_where_they_say_so(tree: object, other: object) -> None:
    atoms = [Affine(0, {Atom(lo, hi, True): 1}) for lo, hi in ATOMS]
    points = list(itertools.product(*(range(lo, hi + 1) for lo, hi in ATOMS)))
    a, b = affine(tree, atoms), affine(other, atoms)
    values = [evaluate(tree, p) for p in points]
    reach = a.interval()
    assert reach.lo is None or reach.lo <= min(values)
    assert reach.hi is None or reach.hi >= max(values)
    if reach.attained:
        assert (reach.lo, reach.hi) == (min(values), max(values))
    if a.constant is not None:
        assert set(values) == {a.constant}
    difference = (a - b).constant
    if difference is not None:
        assert {v - evaluate(other, p) for v, p in zip(values, points)} == {difference}


def test_slices_of_moving_tiles_have_constant_extents() -> None:
    k = Affine(0, {Atom(0, None): 1})
    start, stop = k.scaled(32) + Affine(4), (k + Affine(1)).scaled(32) + Affine(4)
    assert (stop - start).constant == 32
    assert (k - k).constant == 0 and k.constant is None


def test_dependent_atoms_do_not_claim_to_be_attained() -> None:
    i = Affine(0, {Atom(0, 7, True): 1})
    half = floor_quotient(i, Affine(2))
    assert half.interval().attained
    assert not (i - half).interval().attained  # 7 - 0 never happens
    assert floor_remainder(i, Affine(8)).terms == i.terms
    assert floor_quotient(i, Affine(8)).constant == 0


def test_conditions_around_an_index_count() -> None:
    outer, inner = Atom(0, 7, True, depth=0), Atom(0, 3, True, depth=2)
    assert Affine(0, {outer: 1, inner: 4}).depth() == 0
    assert Affine(1, {inner: 4}).depth() == 2
    assert Affine(3).depth() == 0
