"""Cells that run are few, bring each choice of values, and are the same in each call; what is
named, or asked for, runs."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from covering import covering

pytest_plugins = "pytester"


@pytest.mark.parametrize(
    "sizes, strength, most",
    [((3, 4), 1, 4), ((3, 4), 2, 12), ((2, 3, 4), 1, 4), ((2, 3, 4), 2, 12), ((4, 4, 4), 2, 22)],
)
def test_every_choice_occurs(sizes: tuple[int, ...], strength: int, most: int) -> None:
    rows = [*itertools.product(*(range(n) for n in sizes))]
    chosen = covering(rows, strength)
    assert len(chosen) <= most and chosen == covering(rows, strength)
    for columns in itertools.combinations(range(len(sizes)), strength):
        found = {tuple(rows[i][c] for c in columns) for i in chosen}
        assert found == {*itertools.product(*(range(sizes[c]) for c in columns))}


def test_values_of_a_short_axis_take_turns() -> None:
    rows = [*itertools.product(range(12), range(4))]
    assert {*Counter(rows[i][1] for i in covering(rows, 1)).values()} == {3}


MARKED = """
import pytest

@pytest.mark.covering(1)
@pytest.mark.parametrize("target", ["cpu", "cuda", "hip"])
@pytest.mark.parametrize("m, n", [(1, 2), (3, 4)])
def test_two(target, m, n): pass

@pytest.mark.covering(1, axes=("name", "target"))
@pytest.mark.parametrize("name, size, target", [(a, 2.0, b) for a in "xyz" for b in "uv"])
def test_list(name, size, target): pass

@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_whole(size): pass
"""


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        ((), {"test_two": 3, "test_list": 3, "test_whole": 4}),
        (("--every-cell",), {"test_two": 6, "test_list": 6, "test_whole": 4}),
        (("-k", "test_two and cuda"), {"test_two": 2}),
        (("test_marked.py::test_list[x-2.0-v]",), {"test_list": 1}),
    ],
    ids=["usual", "every", "words", "named"],
)
def test_cells_that_run(
    asked: tuple[str, ...], counts: dict[str, int], pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_marked=MARKED)
    pytester.makeconftest((Path(__file__).parent / "covering.py").read_text() + HOOKS)
    done = pytester.runpytest("-v", "-p", "no:xdist", "-W", "ignore", *asked)
    ran = [line.split("::")[1] for line in done.outlines if "PASSED" in line]
    assert Counter(name.partition("[")[0] for name in ran) == counts


HOOKS = """
def pytest_addoption(parser):
    parser.addoption("--every-cell", action="store_true")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    leave_out(config, items)
"""
