"""What is ordered behind what: vector clocks of a cluster's threads and asynchronous engines.

Time is a counter that grows with every access to memory and every release. Every thread is a row
and a column; every engine (the TMA loads that complete on one mbarrier, a thread's cp.async copies,
a warpgroup's wgmma) is a column. `seen[u, c]` is the time up to which thread u has behind it what c
did: an access that c made at time a happened before what u does now if and only if
`seen[u, c] > a`. A thread has its own accesses behind it always. Two more tables say the same of
what an asynchronous engine that u starts may rely on. `fenced`: writes through the generic proxy
count for it only from a proxy fence on, by whomever they are behind. `fetched`: a thread's reads
count only from its own proxy fence on; what orders threads does not keep an engine from overwriting
what an earlier load has yet to fetch. Releases, acquires and barriers hand on all three.

The method is that of FastTrack (Flanagan and Freund, PLDI 2009) over arrays; the proxies are those
of the PTX ISA, "Memory Consistency Model", section "Proxies".
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.llvm import Inst

Times = NDArray[np.int32]
Ints = NDArray[np.int64]
Rows = slice | Ints

ALWAYS = 2**31 - 1  # what a thread knows of itself


SEEN, FENCED, FETCHED = range(3)
_NOTHING: Times = np.zeros(0, np.int32)


class Clock:
    """Times by column: what somebody who acquires this has behind them. `tables`: of `seen`,
    `fenced` and `fetched`, as far as there is something in them."""

    __slots__ = ("tables",)

    def __init__(self, seen: Times, fenced: Times, fetched: Times = _NOTHING) -> None:
        self.tables = seen, fenced, fetched

    @property
    def seen(self) -> Times:
        return self.tables[SEEN]

    def join(self, other: Clock) -> Clock:
        """What is behind either."""
        if other is self:
            return self
        return Clock(*map(_latest, self.tables, other.tables))


def _latest(a: Times, b: Times) -> Times:
    if len(a) < len(b):
        a, b = b, a
    if len(a) == len(b):
        return np.maximum(a, b)
    out = a.copy()
    np.maximum(out[: len(b)], b, out=out[: len(b)])
    return out


class ClockRows:
    """Threads as the clocks know them. `rows`: their rows; `pick`: the same as a slice
    where it is one; `warps`: the warp of each; `bits`: its bit in a mask of the warp's lanes."""

    __slots__ = ("bits", "lanes", "members", "pick", "rows", "size", "warps", "whole")

    def __init__(self, clocks: Clocks, lanes: Any, base: int) -> None:
        self.lanes = lanes  # keeps the array, and with it its id, alive
        self.rows: Ints = np.asarray(lanes, np.int64) + base
        self.size = len(self.rows)
        first, last = int(self.rows[0]), int(self.rows[-1])
        self.pick: Rows = slice(first, last + 1) if last - first + 1 == self.size else self.rows
        self.warps = clocks.warp_of[self.rows]
        place = self.rows - clocks.warp_first[self.warps]
        self.bits = np.left_shift(clocks.mask_type.type(1), place.astype(clocks.mask_type))
        self.members = np.unique(self.warps)
        self.whole = int(clocks.warp_size_of[self.members].sum()) == self.size


class Clocks:
    """The clocks of a cluster of `blocks` blocks of `threads` threads each; `party` is a number
    that no other cluster of the run has.

    Columns: a thread's row first; then `nobody`, who wrote what was never written; then engines.
    `log[t]` is the record that made the access at time t (None: a release)."""

    def __init__(self, threads: int, warp_size: int, blocks: int = 1, party: int = 1) -> None:
        self.threads, self.warp_size, self.blocks = threads, warp_size, blocks
        self.party = party
        self.mask_type = np.dtype(np.uint64 if warp_size > 32 else np.uint32)
        rows = threads * blocks
        self.rows = self.nobody = rows
        self.keys: list[Hashable] = []
        self._columns: dict[Hashable, int] = {}
        self._capacity = rows + 32
        self.tables = self._tables(rows)
        self.generic = np.zeros(self._capacity, np.bool_)
        self.generic[: rows + 1] = True
        self.used = FETCHED  # tables that hold something: `fetched` only where there are fences
        self.now = 1
        self.log: list[Inst | None] = [None]
        # Warps do not cross blocks; the last one of a block may be short.
        local = np.arange(threads) // warp_size
        per_block = int(local[-1]) + 1
        self.warps = per_block * blocks
        self.warp_of: Ints = np.concatenate([local + b * per_block for b in range(blocks)])
        self.warp_first: Ints = np.searchsorted(self.warp_of, np.arange(self.warps))
        self.warp_size_of: Ints = np.bincount(self.warp_of)
        self.across: Across | None = None  # what is known of other clusters
        self._row_stale = np.ones(rows, np.bool_)
        self._known_warps: Times = np.zeros((rows, self.warps), np.int32)
        self._warp_stale = np.ones((len(self.tables), self.warps), np.bool_)
        self._warp_least = [[_NOTHING] * self.warps for _ in self.tables]

    def _tables(self, rows: int) -> tuple[Times, Times, Times]:
        seen = np.zeros((rows, self._capacity), np.int32)
        fenced = np.zeros((rows, self._capacity), np.int32)
        seen[np.arange(rows), np.arange(rows)] = ALWAYS
        return seen, fenced, np.zeros((rows, rows), np.int32)

    @property
    def seen(self) -> Times:
        return self.tables[SEEN]

    @property
    def fenced(self) -> Times:
        return self.tables[FENCED]

    @property
    def fetched(self) -> Times:
        """Without columns for engines, which say themselves when they have read."""
        return self.tables[FETCHED]

    def order(self, rank: int) -> Order:
        """These clocks as the block `rank` of the cluster uses them."""
        return Order(self, rank)

    # --- time ---

    def tick(self, inst: Inst | None) -> int:
        """The time of an access by the record `inst`."""
        time = self.now
        self.now = time + 1
        self.log.append(inst)
        return time

    # --- columns ---

    def engine(self, key: Hashable, generic: bool) -> int:
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = self.nobody + 1 + len(self.keys)
            self.keys.append(key)
            if found >= self._capacity:
                self._grow()
            self.generic[found] = generic
        return found

    def _grow(self) -> None:
        more = self._capacity
        self._capacity += more
        wide = [np.ascontiguousarray(np.pad(t, ((0, 0), (0, more)))) for t in self.tables[:FETCHED]]
        self.tables = wide[SEEN], wide[FENCED], self.fetched
        self.generic = np.pad(self.generic, (0, more))
        self._warp_stale[:] = True

    @property
    def width(self) -> int:
        """Columns that `seen` has room for: row u begins at u * width in its flat form."""
        return self._capacity

    def key(self, column: int) -> Hashable:
        """The engine's key of a column behind `nobody`."""
        return self.keys[column - self.nobody - 1]

    # --- what is known ---

    def changed(self, team: ClockRows) -> None:
        """Rows of the team have been written."""
        self._row_stale[team.pick] = True
        self._warp_stale[:, team.members] = True

    def known_warps(self, team: ClockRows) -> Times:
        """(lanes, warps): up to when each lane has all threads of a warp behind it."""
        stale = self._row_stale[team.pick]
        if stale.any():
            rows = team.rows[stale]
            part = self.seen[rows, : self.rows]
            self._known_warps[rows] = np.minimum.reduceat(part, self.warp_first, axis=1)
            self._row_stale[rows] = False
        found: Times = self._known_warps[team.pick]
        return found

    def warp_least(self, warp: int, table: int) -> Times:
        """By column: what every thread of a warp has behind it, as one of the tables says it."""
        if self._warp_stale[table, warp]:
            first = int(self.warp_first[warp])
            rows = slice(first, first + int(self.warp_size_of[warp]))
            self._warp_least[table][warp] = self.tables[table][rows].min(axis=0)
            self._warp_stale[table, warp] = False
        return self._warp_least[table][warp]

    def least(self, team: ClockRows, table: int = SEEN) -> Times:
        """By column: what every thread of the team has behind it."""
        if team.size == 1:
            row: Times = self.tables[table][team.rows[0]]
            return row
        if not team.whole:
            found: Times = self.tables[table][team.pick].min(axis=0)
            return found
        parts = [self.warp_least(int(w), table) for w in team.members]
        return parts[0] if len(parts) == 1 else np.minimum.reduce(parts)


class Order:
    """The clocks as one block of the cluster (`rank`) uses them: threads are numbered in the
    block."""

    def __init__(self, clocks: Clocks, rank: int = 0) -> None:
        self.clocks = clocks
        self.base = rank * clocks.threads
        self._teams: dict[tuple[int, int], ClockRows] = {}

    def team(self, lanes: Any) -> ClockRows:
        """Threads of the block (sorted numbers) as the clocks know them; kept for those that come
        again."""
        lanes = np.asarray(lanes)
        first, size = int(lanes[0]), len(lanes)
        key = (first, size) if int(lanes[-1]) - first + 1 == size else (-1, id(lanes))
        found = self._teams.get(key)
        if found is None:
            if len(self._teams) > 1000:
                self._teams.clear()
            found = self._teams[key] = ClockRows(self.clocks, lanes, self.base)
        return found

    # --- engines ---

    def engine(self, key: Hashable, generic: bool = False) -> int:
        """The column of an engine of this block. `generic`: it accesses memory through the generic
        proxy (cp.async), not the asynchronous one. `key` begins with what it is: "mbarrier" (TMA
        loads), "cp.async", "tma store", "wgmma", or words for a message."""
        return self.clocks.engine((self.base, key), generic)

    def mark(self) -> int:
        """A time: what was done so far was done before it."""
        return self.clocks.tick(None)

    def completion(self, column: Any) -> Clock:
        """What an engine, or several of one kind, did until now, for those who learn of its
        completion."""
        clocks = self.clocks
        seen = np.zeros(clocks.width, np.int32)
        seen[column] = self.mark()
        generic = np.all(clocks.generic[column])
        return Clock(seen, np.zeros(0, np.int32) if generic else seen)

    def learn(self, lanes: Any, columns: Any, times: Any) -> None:
        """These threads have behind them what the columns (one, or one each) did before `times`."""
        team = self.team(lanes)
        columns = np.broadcast_to(columns, team.rows.shape)
        clocks = self.clocks
        at = team.rows, columns
        clocks.seen[at] = np.maximum(clocks.seen[at], times)
        done = np.where(clocks.generic[columns], 0, times)
        clocks.fenced[at] = np.maximum(clocks.fenced[at], done)
        clocks.changed(team)

    # --- threads ---

    def release(self, lanes: Any) -> Clock:
        """What the threads have behind them, themselves included."""
        team, clocks = self.team(lanes), self.clocks
        known = [table[team.pick].max(axis=0) for table in clocks.tables[: clocks.used]]
        known[SEEN][team.pick] = clocks.tick(None)
        return Clock(*known)

    def acquire(self, lanes: Any, clock: Clock) -> None:
        """The threads have behind them what the clock says."""
        team, clocks = self.team(lanes), self.clocks
        for table, times in zip(clocks.tables, clock.tables):
            n = len(times)
            if not n:
                continue
            if isinstance(team.pick, slice):
                part = table[team.pick, :n]
                np.maximum(part, times, out=part)
            else:
                table[team.pick, :n] = np.maximum(table[team.pick, :n], times)
        clocks.changed(team)

    def fence(self, lanes: Any) -> None:
        """A proxy fence: what has been written behind each of the threads, and what each itself has
        read, is now behind the asynchronous engines they start."""
        team, clocks = self.team(lanes), self.clocks
        time = clocks.tick(None)
        held = np.maximum(clocks.fenced[team.pick], clocks.seen[team.pick])
        held[np.arange(team.size), team.rows] = time
        clocks.fenced[team.pick] = held
        clocks.fetched[team.rows, team.rows] = time
        clocks.used = len(clocks.tables)
        clocks.changed(team)


# --- without checks ---


class NoClocks(Clocks):
    """Clocks that nobody keeps: everybody has everything behind them, so that nothing is found."""

    def __init__(self, threads: int, warp_size: int, blocks: int = 1, party: int = 1) -> None:
        super().__init__(threads, warp_size, blocks, party)
        self.everything = Clock(*(table[0] for table in self.tables))

    def _tables(self, rows: int) -> tuple[Times, Times, Times]:
        table: Times = np.broadcast_to(np.int32(ALWAYS), (rows, self._capacity))
        return table, table, table[:, :rows]

    def order(self, rank: int) -> Order:
        return NoOrder(self, rank)

    def tick(self, inst: Inst | None) -> int:
        self.now += 1
        return self.now

    def engine(self, key: Hashable, generic: bool = False) -> int:
        return self.nobody + 1


class NoOrder(Order):
    """The order of a block whose accesses are not checked."""

    def __init__(self, clocks: NoClocks, rank: int = 0) -> None:
        super().__init__(clocks, rank)
        self._everything = clocks.everything

    def completion(self, *_: Any, **__: Any) -> Clock:
        return self._everything

    def learn(self, *_: Any, **__: Any) -> None:
        return

    release, acquire, fence = completion, learn, learn


# --- other clusters ---
#
# What the blocks of different clusters know of one another: by atomics on global memory, between
# fences of the device.
#
# A cluster's clocks say nothing of other clusters. A thread that has fenced publishes with each
# atomic behind the fence what was behind it; whoever reads the word by an atomic of his own, and
# fences after that, has all of it behind him: what atomics have left in a word stays there for all
# that come (PTX ISA, "Memory Consistency Model", sections "Release-Acquire Patterns", "Causality
# Order": the words change by read-modify-write only).

Known = dict[int, Times]
"""Of each cluster, by its party: times by column of its clocks, up to which it is known."""


def _join(known: Known, more: Known) -> None:
    for party, times in more.items():
        mine = known.get(party)
        known[party] = times if mine is None else _latest(mine, times)


class Across:
    """What a cluster knows of others. `left`: what atomics have left in each word, by its
    address; all clusters of a run have the same."""

    def __init__(self, clocks: Clocks, left: dict[int, Known]) -> None:
        self.clocks, self.left = clocks, left
        self._published: dict[int, Known] = {}  # by row of the clocks: what the last fence did
        self._read: dict[int, Known] = {}  # by row: what a fence will put behind it
        self._learnt: list[tuple[int, int, Known]] = []  # who has this column behind him at a time

    def fence(self, order: Order, lanes: Any) -> None:
        """`fence.acq_rel.gpu` of each of these threads of a block."""
        for lane in lanes.tolist():
            row = order.base + lane
            read = self._read.pop(row, None)
            if read:
                column = order.engine(("device", lane), generic=True)
                self._learnt.append((column, order.mark(), read))
                order.learn(np.array([lane]), column, order.mark())
            seen = self.clocks.seen[row]
            known = {self.clocks.party: order.release(np.array([lane])).seen.copy()}
            for column, time, more in self._learnt:
                if seen[column] > time:
                    _join(known, more)
            self._published[row] = known

    def atomic(self, order: Order, lane: int, address: int) -> None:
        """A thread changes a word: it publishes there, and may learn from there."""
        row = order.base + lane
        word = self.left.setdefault(address, {})
        _join(self._read.setdefault(row, {}), word)
        _join(word, self._published.get(row, {}))

    def unknown(
        self, late: NDArray[np.bool_], of: tuple[Times, Times, Times], rows: Ints
    ) -> NDArray[np.bool_]:
        """Which of the `late` accesses (`of`: party, column, time) of other clusters the threads in
        `rows` do not have behind them."""
        late = np.broadcast_to(late, np.broadcast_shapes(late.shape, rows.shape)).copy()

        def chosen(x: Any) -> Ints:
            found: Ints = np.broadcast_to(x, late.shape)[late]
            return found

        parties, actors, times, rows = map(chosen, (*of, rows))
        left, flat = np.flatnonzero(late), late.reshape(-1)
        asked = {*parties.tolist()}
        for column, time, known in reversed(self._learnt):  # who came last knows most
            knows = self.clocks.seen[rows, column] > time
            if not knows.any():
                continue
            for party in asked & known.keys():
                seen = known[party]
                before = seen.take(actors, mode="clip") > times
                before &= knows & (parties == party) & (actors < len(seen))
                if before.any():
                    flat[left[before]] = False
                    rest = ~before
                    left, rows, knows = left[rest], rows[rest], knows[rest]
                    parties, actors, times = parties[rest], actors[rest], times[rest]
            if not len(left):
                break
        return late
