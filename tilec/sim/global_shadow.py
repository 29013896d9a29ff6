"""Who touched a global tensor when: races within a block, and between blocks.

An element remembers its last write and two reads: the last one, and one before it by somebody who
is not ordered before that; and two atomics likewise, which conflict with reads and writes, and not
with one another. Tensors that the kernel only reads need no history. The blocks of one
cluster share their clocks; they are one `party`, a number that grows from cluster to cluster; what
they know of others is `across`.

The histories of a large tensor are kept in pages, which are made when one of their elements is
touched: 48 bytes a granule of what a run touches, not of what the tensor has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.llvm import Inst
from tilec.sim.clocks import Ints, Times
from tilec.sim.faults import Conflict, tell
from tilec.sim.findings import Index, Kind
from tilec.sim.shadow import Actors, Same, few

FOREIGN = -1  # the actor of a conflict with another cluster or block alone

_PAGE = 10  # bits of a granule's number within its page
PAGED = 1 << 24  # granules from which on a history is kept in pages


Find = Callable[[int], tuple[str, Index | None]]
"""Name and element of a granule."""


class _Entry:
    """By element: who (party and column), when, and with which record."""

    def __init__(self, count: int) -> None:
        self._hold(np.zeros((4, count), np.int32))

    def _hold(self, table: Times) -> None:
        self.table = table
        self.party, self.actor, self.time, self.record = table

    def grow(self) -> None:
        """Make room for twice as many."""
        self._hold(np.concatenate([self.table, np.zeros_like(self.table)], axis=1))

    def put(self, at: Ints, *entry: Any) -> None:
        """`entry`: party, actor, time and record."""
        for row, value in zip(self.table, entry):
            row[at] = value

    def copy(self, to: _Entry, at: Ints) -> None:
        to.table[:, at] = self.table[:, at]

    def unordered(
        self, at: Ints, party: int, behind: Times, rows: Ints, width: int
    ) -> NDArray[np.bool_] | None:
        """Which of the entries are not ordered before what `rows` do now; None: no entries.
        `behind`: the clocks, rows of `width`."""
        parties = self.party.take(at)
        if not parties.any():
            return None
        late: NDArray[np.bool_] = parties != party
        late &= parties != 0
        own = behind.take(rows * width + self.actor.take(at)) <= self.time.take(at)
        late |= own & (parties == party)
        return late


class GlobalShadow:
    """The history of one tensor: `count` granules."""

    def __init__(self, count: int) -> None:
        self.count = count
        # By page of granules, where its entries are; 0: nowhere, nobody has touched it.
        self._pages: Ints | None = None
        if count > PAGED:
            self._pages = np.zeros((count >> _PAGE) + 1, np.int64)
            count = 16 << _PAGE
        self._used = 1
        self.write_, self.read_, self.former = (_Entry(count) for _ in range(3))
        self.atomics: tuple[_Entry, _Entry] | None = None  # once there are some
        self._records: dict[int, int] = {}
        self._insts: list[Inst | None] = []

    def _record(self, inst: Inst | None) -> int:
        found = self._records.get(id(inst))
        if found is None:
            found = self._records[id(inst)] = len(self._insts)
            self._insts.append(inst)
        return found

    def _entries(self, granules: Ints) -> Ints:
        """Where the entries of granules are."""
        if self._pages is None:
            return granules
        pages = granules >> _PAGE
        found = self._pages.take(pages)
        if not found.all():
            new = np.unique(pages[found == 0])
            self._pages[new] = np.arange(self._used, self._used + len(new))
            self._used += len(new)
            while self._used << _PAGE > len(self.write_.party):
                for entry in (self.write_, self.read_, self.former, *(self.atomics or ())):
                    entry.grow()
            found = self._pages.take(pages)
        at: Ints = found << _PAGE | granules & (1 << _PAGE) - 1
        return at

    def read(self, by: Actors, granules: Ints, find: Find) -> None:
        """Actor i reads `granules[i]` (actors, k); `find` names a granule."""
        at = self._entries(granules)
        for entry in (self.write_, *(self.atomics or ())):
            self._check(entry, by, (at, granules), None, find)
        kept = self._late(self.read_, by, at)
        if kept is not None and kept.any():
            self.read_.copy(self.former, at[kept])
        # Who read before, and is not ordered, says more than who reads along.
        self._put(self.read_, by, at, self.former, kept)

    def write(self, by: Actors, granules: Ints, same: Same, find: Find) -> bool:
        """Actor i writes `granules[i]` (actors, k). Gives whether several write one granule."""
        at = self._entries(granules)
        for entry in (self.write_, self.read_, self.former, *(self.atomics or ())):
            self._check(entry, by, (at, granules), same, find)
        return self._put(self.write_, by, at)

    def atomic(self, by: Actors, granules: Ints, find: Find) -> None:
        """Actor i changes `granules[i]` (actors, k) by an atomic."""
        at = self._entries(granules)
        for entry in (self.write_, self.read_, self.former):
            self._check(entry, by, (at, granules), _never, find)
        if self.atomics is None:
            count = len(self.write_.party)
            self.atomics = _Entry(count), _Entry(count)
        last, former = self.atomics
        party, parties = by.order.clocks.party, last.party.take(at)
        own = (last.actor.take(at) == by.columns(at.shape)) & (parties == party)
        other = (parties != 0) & ~own
        if other.any():
            last.copy(former, at[other])
        self._put(last, by, at, former)

    def _put(
        self,
        entry: _Entry,
        by: Actors,
        at: Ints,
        former: _Entry | None = None,
        kept: NDArray[np.bool_] | None = None,
    ) -> bool:
        """Note what `by` do now. Gives whether several do it in one place; but for where they are
        `kept`, the entries of those that are lost so become `former` ones."""
        actors, clocks = by.columns(at.shape), by.order.clocks
        time, record = clocks.tick(by.active.inst), self._record(by.active.inst)
        entry.put(at, clocks.party, actors, time, record)
        lost = entry.actor.take(at) != actors
        if kept is not None:
            lost &= ~kept
        if former is not None and lost.any():
            former.put(at[lost], clocks.party, actors[lost], time, record)
        return bool(lost.any())

    def _late(self, entry: _Entry, by: Actors, at: Ints) -> NDArray[np.bool_] | None:
        """Which of the entries are not ordered before what `by` do now; None: no entries."""
        clocks, rows = by.order.clocks, by.team.rows[:, None]
        late = entry.unordered(at, clocks.party, clocks.seen.ravel(), rows, clocks.width)
        if late is None or clocks.across is None or not late.any():
            return late
        of = entry.party.take(at), entry.actor.take(at), entry.time.take(at)
        return clocks.across.unknown(late, of, rows)

    def _check(
        self, entry: _Entry, by: Actors, places: tuple[Ints, Ints], same: Same | None, find: Find
    ) -> None:
        """Tell of an access at `places` (entries, and the granules that they are of) that is not
        ordered behind what is noted there; `same`: of a write, who writes what is there already."""
        late = self._late(entry, by, places[0])
        if late is None or not late.any():
            return
        if same is not None:
            held = same()
            late &= ~(held if held.ndim == 2 else held[:, None])
        who = np.broadcast_to(by.team.rows[:, None], late.shape)[late]
        at, granules = (p[late] for p in places)
        clocks, wrote = by.order.clocks, entry not in (self.read_, self.former)
        found = []
        for i in few(entry.record[at]).tolist():
            g = int(at[i])
            ours = int(entry.party[g]) == clocks.party
            actor = int(entry.actor[g]) if ours else FOREIGN
            kind: Kind = "data race"
            if ours and same is None and actor > clocks.nobody:
                kind = "read before wait"
            before, place = self._insts[int(entry.record[g])], int(granules[i])
            write = same is not None
            found.append(Conflict(kind, place, (int(who[i]),), actor, before, write, wrote))
        tell(by.active, clocks, found, find)

    def written(self, granules: Ints) -> NDArray[np.bool_]:
        """Which of the granules somebody has written."""
        entries = granules
        if self._pages is not None:
            entries = self._pages.take(granules >> _PAGE) << _PAGE | granules & (1 << _PAGE) - 1
        written: NDArray[np.bool_] = self.write_.party.take(entries) != 0
        if self.atomics is not None:
            written |= self.atomics[0].party.take(entries) != 0
        return written


def _never() -> NDArray[np.bool_]:
    return np.zeros(1, np.bool_)
