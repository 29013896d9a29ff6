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
TURNS = """
import pytest

pytestmark = pytest.mark.turns

@pytest.mark.parametrize("target", ["cpu", "cuda", "hip"])
@pytest.mark.parametrize("size", [1, 2])
def test_turns(target, size): pass

@pytest.mark.turns("hip")
@pytest.mark.parametrize("target", ["cuda", "hip"])
def test_asked(target): pass

@pytest.mark.parametrize("target", ["cuda", "hip"])
def test_next(target): pass
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
    ran = run(pytester, MARKED, *asked)
    assert Counter(name.partition("[")[0] for name in ran) == counts


def test_a_module_takes_turns_at_the_gpus(pytester: pytest.Pytester) -> None:
    """What asks for one has it, and counts; the CPU has its part in any case."""
    ran = run(pytester, TURNS)
    wanted = ["turns[1-cpu]", "turns[1-cuda]", "turns[2-cpu]", "turns[2-hip]", "asked[hip]"]
    assert ran == {f"test_{name}" for name in (*wanted, "next[cuda]")}
    assert len(run(pytester, TURNS, "--every-cell")) == 10


def run(pytester: pytest.Pytester, source: str, *asked: str) -> set[str]:
    """The names of the tests of a module that have run."""
    pytester.makepyfile(test_marked=source)
    pytester.makeconftest((Path(__file__).parent / "covering.py").read_text() + HOOKS)
    done = pytester.runpytest("-v", "-p", "no:xdist", "-W", "ignore", *asked)
    return {line.split("::")[1].split()[0] for line in done.outlines if "PASSED" in line}


HOOKS = """
def pytest_addoption(parser):
    parser.addoption("--every-cell", action="store_true")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    leave_out(config, items)
"""
