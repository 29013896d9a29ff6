"""Sums that an author has written as loops in `T.Parallel`, in fewer iterations than there are
threads: an iteration is one thread's, and threads without one of their own do another's again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.loc import Loc
from tilec.ir.ops import Binary, For, Load, Parallel, Store, constants, yielded

SHORT = 16  # sums of fewer elements take no longer than an exchange between threads
_WORDS = {"add": "sum", "max": "max", "min": "min"}


@dataclass(frozen=True)
class RepeatedSum:
    """One such sum of a `loop`: the word for its kind, of how many elements (None: not known),
    where."""

    loop: Parallel
    word: str
    trips: int | None
    loc: Loc


def repeated_sums(func: Func, threads: int) -> Iterator[RepeatedSum]:
    """The first such sum of each parallel loop of `func` (TILE) that has no iteration for every
    other of so many threads, and whose layout its author has not chosen."""
    numbers = constants(func.body)
    for o in walk(func.body):
        if isinstance(o, Parallel) and o.wanted is None and 0 < 2 * math.prod(o.extents) <= threads:
            found = next(_long_sums(o.body, numbers), None)
            if found is not None:
                yield RepeatedSum(o, *found)


def _long_sums(
    body: Block, numbers: dict[Value, bool | int | float]
) -> Iterator[tuple[str, int | None, Loc]]:
    for o in walk(body):
        if isinstance(o, For):
            indices = o.indices(numbers.get)
            trips = None if indices is None else len(indices)
            if trips is None or trips >= SHORT:
                yield from ((_WORDS[kind], trips, loc) for kind, loc in _sums(o))


def _sums(loop: For) -> Iterator[tuple[str, Loc]]:
    """The kinds of what `loop` adds up of values that change with its index, and where."""
    changing, named = _changing(loop)
    made: dict[Value, Op] = {r: o for o in walk(loop.body) for r in o.results}
    for carried, following in zip(loop.body.args[1:], yielded(loop.body)):
        o = made.get(following)
        if isinstance(o, Binary) and o.kind in _WORDS and carried in (o.lhs, o.rhs):
            other = o.rhs if o.lhs is carried else o.lhs
            if other in changing:
                yield o.kind, o.loc
    for s in walk(loop.body):
        o = made.get(s.value) if isinstance(s, Store) else None
        if not isinstance(s, Store) or not isinstance(o, Binary) or o.kind not in _WORDS:
            continue
        if not (changing | named).isdisjoint(s.indices):
            continue
        for old, other in ((o.lhs, o.rhs), (o.rhs, o.lhs)):
            read = made.get(old)
            same = isinstance(read, Load) and read.source is s.dest and read.indices == s.indices
            if same and other in changing:
                yield o.kind, s.loc


def _changing(loop: For) -> tuple[set[Value], set[Value]]:
    """What depends on an element that the loop's index names; and what on the index itself."""
    by_index, found = {loop.body.args[0]}, set[Value]()
    for o in walk(loop.body):
        if isinstance(o, Load) and not by_index.isdisjoint(o.indices):
            found.update(o.results)
        elif not found.isdisjoint(o.operands):
            found.update(o.results)
        elif not by_index.isdisjoint(o.operands):
            by_index.update(o.results)
    return found, by_index
