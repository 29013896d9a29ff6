"""Which cells of a matrix of parameters run where not all are asked for.

A test of several axes (programs, targets, sizes) that are independent of one another goes through
the same code in most of its cells: the target's part does not know the program, nor the program the
target. Marked `covering(strength)` it runs in a covering array of its cells, those in which each
choice of `strength` values of different axes occurs at least once, spread evenly: with 1 each value
("each choice"), with 2 each pair. `--every-cell` runs all of them, and so does who names one.

    @pytest.mark.covering(1)
    @pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
    @pytest.mark.parametrize("name", ["sum", "product", "scan"])

runs in three cells of nine: each program, and each target, once. The axes are the `parametrize`
marks; for a list of tuples, `axes` names those of its arguments that are.

The tests of a module are an axis, too, where all ask one part of the compiler that does not know
targets. A module marked `turns` runs what differs in `target` alone for one GPU, the next test for
the next (and for the CPU, if the test does): each GPU runs a share of the module's tests. A test
that asks more of one target is marked with its name, `turns("cuda:sm_90a")`, and runs for it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence

import pytest

Row = tuple[Hashable, ...]


def covering(rows: Sequence[Row], strength: int) -> list[int]:
    """The numbers of rows, the same in each call: as few as a greedy search finds, in which every
    `strength` values of different columns that meet in any row meet. Of equally good ones it takes
    that whose values have been taken least often."""
    met = [set(itertools.combinations(enumerate(row), min(strength, len(row)))) for row in rows]
    missing = set().union(*met)
    used: Counter[tuple[int, Hashable]] = Counter()
    pairs: Counter[tuple[object, ...]] = Counter()
    chosen = []
    while missing:
        gains = [len(mine & missing) for mine in met]
        most = max(gains)
        best = min(
            (i for i, gain in enumerate(gains) if gain == most),
            key=lambda i: (
                sum(used[place] for place in enumerate(rows[i])),
                sum(pairs[two] for two in itertools.combinations(enumerate(rows[i]), 2)),
            ),
        )
        missing -= met[best]
        used.update(enumerate(rows[best]))
        pairs.update(itertools.combinations(enumerate(rows[best]), 2))
        chosen.append(best)
    return sorted(chosen)


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the cells that do not run from the tests that were chosen by what else says."""
    if config.getoption("--every-cell"):
        return
    out = _left_out(items)
    out |= _turns([item for item in items if item not in out])
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]


def _left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Of the tests those that are marked, and not among the cells that run."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("covering"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    out: set[pytest.Item] = set()
    for cells in functions.values():
        mark = cells[0].get_closest_marker("covering")
        assert mark is not None
        strength = mark.args[0]
        rows = [_row(cell, mark.kwargs.get("axes", ())) for cell in cells]
        kept = {*covering(rows, strength)}
        out.update(cell for i, cell in enumerate(cells) if i not in kept)
    return out


def _turns(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Of the tests in modules that are marked those of a GPU that others of the module run for."""
    cells: dict[Row, dict[str, pytest.Item]] = {}
    for item in items:
        given = dict(getattr(getattr(item, "callspec", None), "params", {}))
        target = str(given.pop("target", None))
        if target not in ("None", "cpu") and item.get_closest_marker("turns"):
            rest = tuple((name, _value(value)) for name, value in given.items())
            cells.setdefault((item.path, item.nodeid.partition("[")[0], rest), {})[target] = item
    out: set[pytest.Item] = set()
    used: Counter[tuple[Hashable, str]] = Counter()
    for (module, *_), gpus in cells.items():
        mark = next(iter(gpus.values())).get_closest_marker("turns")
        asked = gpus.keys() & set(mark.args if mark else ())
        kept = asked or {min(gpus, key=lambda target: used[module, target])}
        used.update((module, target) for target in kept)
        out.update(item for target, item in gpus.items() if target not in kept)
    return out


def _row(item: pytest.Item, axes: Sequence[str]) -> Row:
    """The value of each axis; of an axis with several arguments they are one value."""
    given = item.callspec.params  # type: ignore[attr-defined]
    names = [(name,) for name in axes] or [_names(m) for m in item.iter_markers("parametrize")]
    return tuple(tuple(_value(given[name]) for name in axis) for axis in names)


def _names(mark: pytest.Mark) -> tuple[str, ...]:
    names = mark.args[0]
    return tuple(n.strip() for n in names.split(",")) if isinstance(names, str) else tuple(names)


def _value(given: object) -> Hashable:
    """What tells values of one axis apart: cells share the objects that are no numbers or texts, or
    tuples of these."""
    if isinstance(given, tuple):
        return tuple(map(_value, given))
    plain = isinstance(given, int | float | str | None)
    return (type(given), given) if plain else id(given)
