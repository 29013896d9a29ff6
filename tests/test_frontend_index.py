"""What the front end knows of indices, against all values they take (property tests)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import pytest

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

from tilec.frontend.index import Indices, Reach
from tilec.ir.affine import Affine
from tilec.ir.builder import Builder
from tilec.ir.core import Value
from tilec.ir.loc import UNKNOWN
from tilec.ir.ops import Binary, Const
from tilec.ir.types import INT32, ScalarType

KINDS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "//": "floordiv",
    "%": "mod",
    "min": "min",
    "max": "max",
}
PYTHON: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
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
    return PYTHON[tree[0]](evaluate(tree[1], values), evaluate(tree[2], values))


class Traced:
    """Unknown integers, and the arithmetic made of them."""

    def __init__(self, *reaches: Reach) -> None:
        self.indices, self.b = Indices(), Builder(UNKNOWN)
        self.atoms = [Value(ScalarType(INT32)) for _ in reaches]
        for v, reach in zip(self.atoms, reaches):
            self.indices.define(v, reach)

    def value(self, tree: object) -> Value:
        if isinstance(tree, Value):
            return tree
        if isinstance(tree, int):
            made = self.b.value(Const, tree, INT32)
        else:
            assert isinstance(tree, tuple)
            if tree[0] == "atom":
                return self.atoms[tree[1]]
            made = self.b.value(Binary, KINDS[tree[0]], self.value(tree[1]), self.value(tree[2]))
        self.indices.note(self.b.ops[-1])
        return made

    def affine(self, tree: object) -> Affine:
        return self.indices.form(self.value(tree))

    def reach(self, tree: object) -> Reach:
        return self.indices.reach_of(self.affine(tree))


@given(trees(3), trees(2))
def test_intervals_hold_and_are_attained_where_they_say_so(tree: object, other: object) -> None:
    traced = Traced(*(Reach(lo, hi, True) for lo, hi in ATOMS))
    points = list(itertools.product(*(range(lo, hi + 1) for lo, hi in ATOMS)))
    a, b = traced.affine(tree), traced.affine(other)
    values = [evaluate(tree, p) for p in points]
    reach = traced.indices.reach_of(a)
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
    traced = Traced(Reach(0))
    (k,) = traced.atoms
    start, stop = ("+", ("*", k, 32), 4), ("+", ("*", ("+", k, 1), 32), 4)
    assert traced.affine(("-", stop, start)).constant == 32
    assert traced.affine(("-", k, k)).constant == 0 and traced.affine(k).constant is None


def test_dependent_values_do_not_claim_to_be_attained() -> None:
    traced = Traced(Reach(0, 7, True))
    (i,) = traced.atoms
    half = traced.value(("//", i, 2))
    assert traced.reach(half).attained
    assert not traced.reach(("-", i, half)).attained  # 7 - 0 never happens
    assert traced.affine(("%", i, 8)) == Affine.of(i)
    assert traced.affine(("//", i, 8)).constant == 0


def test_conditions_around_an_index_count() -> None:
    traced = Traced(Reach(0, 7, True, depth=0), Reach(0, 3, True, depth=2))
    outer, inner = traced.atoms
    assert traced.reach(("+", outer, ("*", inner, 4))).depth == 0
    assert traced.reach(("+", ("*", inner, 4), 1)).depth == 2
    assert traced.reach(3).depth == 0
