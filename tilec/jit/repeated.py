"""What several threads do alike, and their author has hardly meant: sums that he has written as
loops in `T.Parallel`, in fewer iterations than there are threads (an iteration is one thread's, and
threads without one of their own do another's again), and atomics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilec.ir import ops
from tilec.ir.core import Block, Func, Value, walk
from tilec.ir.errors import CompileWarning, warn
from tilec.ir.loc import Loc
from tilec.ir.uniformity import Level, uniformity_of

SHORT = 16  # sums of fewer elements take no longer than an exchange between threads
_WORDS = {"add": "sum", "max": "max", "min": "min"}


@dataclass(frozen=True)
class RepeatedSum:
    """One such sum of a `loop`: the word for its kind, of how many elements (None: not known),
    where."""

    loop: ops.Parallel
    word: str
    trips: int | None
    loc: Loc

    @property
    def open_extent(self) -> bool:
        """Whether the loop goes over a part of what is only known at run time: the front end has
        made it, with indices that no author writes."""
        return any(index.name.startswith(".") for index in self.loop.body.args)


def repeated_sums(func: Func, threads: int) -> Iterator[RepeatedSum]:
    """The first such sum of each parallel loop of `func` (TILE) that has no iteration for every
    other of so many threads, and whose layout its author has not chosen."""
    numbers = ops.constants(func.body)
    for o in func.body.every(ops.Parallel):
        if o.wanted is None and 0 < 2 * math.prod(o.extents) <= threads:
            found = next(_long_sums(o.body, numbers), None)
            if found is not None:
                yield RepeatedSum(o, *found)


def _long_sums(
    body: Block, numbers: dict[Value, bool | int | float]
) -> Iterator[tuple[str, int | None, Loc]]:
    for o in body.every(ops.For):
        indices = o.indices(numbers.get)
        trips = None if indices is None else len(indices)
        if trips is None or trips >= SHORT:
            yield from ((_WORDS[kind], trips, loc) for kind, loc in _sums(o))


def _sums(loop: ops.For) -> Iterator[tuple[str, Loc]]:
    """The kinds of what `loop` adds up of values that change with its index, and where."""
    changing, named = _changing(loop)
    made = loop.body.defs
    for (_, following), (carried, _) in ops.handed_on(loop):
        o = made.get(following)
        if isinstance(o, ops.Binary) and o.kind in _WORDS and carried in (o.lhs, o.rhs):
            other = o.rhs if o.lhs is carried else o.lhs
            if other in changing:
                yield o.kind, o.loc
    for s in loop.body.every(ops.Store):
        o = made.get(s.value)
        if not isinstance(o, ops.Binary) or o.kind not in _WORDS:
            continue
        if not (changing | named).isdisjoint(s.indices):
            continue
        for old, other in ((o.lhs, o.rhs), (o.rhs, o.lhs)):
            read = made.get(old)
            same = (
                isinstance(read, ops.Load) and read.source is s.dest and read.indices == s.indices
            )
            if same and other in changing:
                yield o.kind, s.loc


def _changing(loop: ops.For) -> tuple[set[Value], set[Value]]:
    """What depends on an element that the loop's index names; and what on the index itself."""
    by_index, found = {loop.body.args[0]}, set[Value]()
    for o in walk(loop.body):
        if isinstance(o, ops.Load) and not by_index.isdisjoint(o.indices):
            found.update(o.results)
        elif not found.isdisjoint(o.operands):
            found.update(o.results)
        elif not by_index.isdisjoint(o.operands):
            by_index.update(o.results)
    return found, by_index


# --- atomics that every thread of a block does alike ----------------------------------------------


_EACH_TIME = ("add", "xor")  # one more changes the result


def warn_of_repeated_atomics(func: Func) -> None:
    """Warn, at its line, of each atomic in a TILE function that every thread of a block does alike:
    legal, as in TileLang, and hardly meant. Outside of T.Parallel a scalar statement is each
    thread's own, so that T.atomic_add(Y[0], s[0]) adds as often as the block has threads. Not told
    are those that a thread may well mean: of a kernel that asks for its threads, with the previous
    value (a ticket), in an order with other memory (an arrival at a counter), and those that come
    out the same however often they are done (max, and, exchange)."""
    every = list(walk(func.body))
    found = [o for o in every if isinstance(o, ops.Atomic) and o.kind in _EACH_TIME]
    if not found or any(isinstance(o, (ops.ThreadIndex, ops.DeviceFence)) for o in every):
        return
    threads = func.attrs.get("threads")
    if threads == 1:
        return
    used = {v for o in every for v in o.operands}
    shared_out = {x for o in every if isinstance(o, ops.Parallel) for x in walk(o.body)}
    alike = uniformity_of(func)
    for o in found:
        levels = (alike.around(o), *map(alike.level, (*o.indices, o.value)))
        if o in shared_out or o.result in used or max(levels) > Level.BLOCK:
            continue
        name = o.dest.name
        times = f"{threads} times" if threads else "as often as there are threads"
        warn(
            CompileWarning,
            f"each thread of the block does this atomic {o.kind} of the same value to the same "
            f"element of {name}: it is done {times}",
            o.loc,
            f"for i in T.Parallel(1): T.atomic_{o.kind}({name}[…], …) does it once for the block\n"
            f"if each thread is to do it: for i in T.Parallel({threads or 'threads'})",
        )
