"""Sums that an author has written as loops in `T.Parallel`, in fewer iterations than there are
threads: an iteration is one thread's, and threads without one of their own do another's again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tilec.ir.core import Op, Value, walk
from tilec.ir.ops import Binary, Const, For, Load, Parallel, Store, yielded

if TYPE_CHECKING:
    from tilec.ir.loc import Loc

SHORT = 16  # sums of fewer elements take no longer than an exchange between threads
_WORDS = {"add": "sum", "max": "max", "min": "min"}


def find_repeated_sum(
    loop: Parallel, threads: int | None, before: Iterable[Op]
) -> tuple[str, str, Loc] | None:
    """What to tell the author of the first such sum of `loop` (message, hint), and where; None
    where every other thread has an iteration, or `threads` is not known. `before`: what stands
    before it."""
    count = math.prod(loop.extents)
    if threads is None or not 0 < 2 * count <= threads:
        return None
    numbers: dict[Value, int] | None = None
    for o in walk(loop.body):
        if not isinstance(o, For):
            continue
        for kind, loc in _sums(o):
            if numbers is None:
                known = (o for o in (*before, *walk(loop.body)) if isinstance(o, Const))
                numbers = {o.result: o.value for o in known if isinstance(o.value, int)}
            trips = None
            if {o.lo, o.hi, o.step} <= numbers.keys():
                trips = len(range(numbers[o.lo], numbers[o.hi], numbers[o.step]))
            if trips is not None and trips < SHORT:
                continue
            many = "all elements" if trips is None else f"{trips} elements"
            message = (
                f"each iteration of this T.Parallel ({count}) takes the {_WORDS[kind]} of {many} "
                f"by itself, and {threads} threads have {count} iterations: others repeat them, or "
                "wait"
            )
            hint = (
                f"T.reduce_{_WORDS[kind]}(x, s, dim=1), of a tile, shares the elements out\n"
                "among all threads; or go over them in T.Parallel"
            )
            return message, hint, loc
    return None


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
