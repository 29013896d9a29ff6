"""Who touched shared memory when: every access is checked against the last write and the reads
since, and then noted.

Memory is cut into granules, the narrowest access of the program. A granule has its last write (time
and column, see `order`) and, for each warp or engine that reads, its last read: the time and the
mask of the lanes that took part. A read replaces the warp's read before it if whoever is ordered
behind the new one is behind the old one too; else the old one is kept in a second entry, at the
earliest time of what that holds, so that an entry never says more than what happened: what is
reported did happen, without order.

An access that is not ordered is classified by what the other one was: "read before wait" of what an
engine has written, "missing proxy fence", "overwritten before read", "data race".
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.sim.clocks import FENCED, FETCHED, SEEN, ClockRows, Clocks, Ints, Order, Times
from tilec.sim.faults import Conflict
from tilec.sim.findings import Kind
from tilec.sim.threads import Threads

Granules = Ints | slice
Same = Callable[..., NDArray[np.bool_]]
"""Which of the written pieces, or of so many parts of each, hold already what is written."""


@dataclass(frozen=True, slots=True)
class Actors:
    """Who makes an access: the threads of a `team`, which execute a record; or (`engines`) the
    column of the engine that all of them start, or an array of those that each starts. `warps`:
    what a thread reads goes to all of its warp."""

    active: Threads
    order: Order
    team: ClockRows
    engines: int | Ints | None = None
    warps: bool = False

    def part(self, pick: Ints | None) -> Actors:
        """Some of the threads (None: all), with their engines."""
        if pick is None or isinstance(self.engines, int):
            return self
        engines = None if self.engines is None else self.engines[pick]
        return replace(self, team=self.order.team(self.team.lanes[pick]), engines=engines)

    def columns(self, shape: tuple[int, ...]) -> Ints:
        """(actors, k): the column of each in the clocks."""
        columns = self.team.rows if self.engines is None else np.asarray(self.engines)
        return np.broadcast_to(columns[:, None], shape)

    @property
    def together(self) -> bool:
        """Whether all threads start one engine, which then is the only actor."""
        return isinstance(self.engines, int)

    def who(self, actor: int) -> tuple[int, ...]:
        """The rows of those who make the access of an actor, or start it."""
        rows = self.team.rows
        return tuple(rows.tolist()) if self.together else (int(rows[actor]),)


Report = Callable[[Threads, list[Conflict]], None]

MOST_NAMED = 32  # conflicts of one access that are reported, besides one for each earlier access
MOST_SHARED = (
    1000  # writes by several threads to one place that are kept before they are sorted out
)


class _Reads:
    """By reader and granule: the time of a read, and the mask of the lanes of the warp that took
    part."""

    def __init__(self, readers: int, count: int, mask_type: Any) -> None:
        self.times: Times = np.zeros((readers, count), np.int32)
        self.masks: NDArray[Any] = np.zeros((readers, count), mask_type)

    def grow(self) -> None:
        """Make room for twice as many readers."""
        self.times = np.concatenate([self.times, np.zeros_like(self.times)])
        self.masks = np.concatenate([self.masks, np.zeros_like(self.masks)])


class Shadow:
    """The history of the shared memory of one block: `size` bytes in granules of `granule`."""

    def __init__(self, clocks: Clocks, size: int, granule: int, report: Report) -> None:
        self.clocks, self.granule, self.report = clocks, granule, report
        self.count = -(-size // granule)
        self.w_time: Times = np.zeros(self.count, np.int32)
        self.w_actor: Ints = np.full(self.count, clocks.nobody)
        self.slots: list[int] = []  # of each reader: a warp, or its column as an engine
        self._slot_of: dict[tuple[bool, int], int] = {}
        self._is_engine: list[bool] = []
        self._slot_of_warp = np.full(clocks.warps, -1, np.int64)
        self._reads = _Reads(4, self.count, clocks.mask_type)
        self._older: _Reads | None = None
        self._shared: dict[int, tuple[Ints, Ints]] = {}  # time -> granules, actors
        # Times and actors of the last atomics, and of those before them by others.
        self._atomics: list[tuple[Times, Ints]] = []

    # --- accesses ---

    def read(self, by: Actors, granules: Granules) -> None:
        """Thread i of the team reads `granules[i]` (lanes, k), or the engine that all of them start
        reads `granules` (1, k)."""
        behind = self._behind(by, _at(self.w_actor, granules))
        self._read(by, granules, behind, by.team.bits[:, None])

    def warp_read(self, by: Actors, granules: Ints) -> None:
        """As `read`, where what a lane addresses goes to all lanes of its warp (ldmatrix)."""
        team = by.team
        behind = np.stack([self.clocks.warp_least(int(w), SEEN) for w in team.members])
        warp = np.searchsorted(team.members, team.warps)[:, None]
        every = np.bitwise_or.reduceat(team.bits, np.searchsorted(team.warps, team.members))
        # A thread always has its own writes behind it; that of the others must be looked up.
        self._read(by, granules, behind[warp, self.w_actor.take(granules)], every[warp])

    def _read(self, by: Actors, granules: Granules, behind: Times, bits: NDArray[Any]) -> None:
        """`behind`: what who reads has behind it of those who wrote; `bits`: see `_note_reads`."""
        time = self.clocks.tick(by.active.inst)
        bad = behind <= _at(self.w_time, granules)
        if self._atomics:
            bad &= self._is_written(granules)
            self._against_atomics(by, granules, write=False)
        if np.count_nonzero(bad):
            self._report_after_writes(by, granules, bad, write=False)
        if isinstance(by.engines, int):
            slot = self._slot(True, by.engines)  # may make room in the table
            self._reads.times[slot, granules] = time
        else:
            assert not isinstance(granules, slice)
            self._note_reads(by.team, granules, time, bits)

    def write(self, by: Actors, granules: Ints, same: Same) -> bool:
        """Thread i writes `granules[i]` (lanes, k), or the engine that it starts does. Gives
        whether several threads write one granule."""
        time = self.clocks.tick(by.active.inst)
        bad = self._behind(by, self.w_actor.take(granules)) < self.w_time.take(granules)
        if np.count_nonzero(bad):
            bad &= ~same()[:, None]
            self._report_after_writes(by, granules, bad, write=True)
        if self.slots:
            self._against_reads(by, granules, same)
        if self._atomics:
            self._against_atomics(by, granules, True, same)
        actors = by.columns(granules.shape)
        self.w_actor[granules] = actors
        self.w_time[granules] = time
        lost = self.w_actor.take(granules) != actors
        if not np.count_nonzero(lost):
            return False
        several = np.isin(granules, granules[lost])
        if len(self._shared) > MOST_SHARED:
            current = set(np.unique(self.w_time).tolist())
            self._shared = {t: x for t, x in self._shared.items() if t in current}
        self._shared[time] = granules[several], actors[several]
        return True

    def atomic(self, by: Actors, granules: Ints, blind: bool) -> None:
        """Thread i of the team changes `granules[i]` (lanes, k) by an atomic; `blind`: whatever
        was there."""
        clocks, wrote = self.clocks, self.w_time.take(granules)
        time = clocks.tick(by.active.inst)
        behind = self._behind(by, self.w_actor.take(granules))
        if not self._atomics:
            nobody = np.full(self.count, clocks.nobody)
            self._atomics = [(np.zeros(self.count, np.int32), nobody.copy()) for _ in range(2)]
        (times, actors), (former, others) = self._atomics
        bad = (behind <= wrote) & ((wrote > 0) | ((times.take(granules) == 0) & (not blind)))
        if np.count_nonzero(bad):
            self._report_after_writes(by, granules, bad, write=not blind and bool(wrote[bad].all()))
        if self.slots:
            self._against_reads(by, granules, lambda: np.zeros(1, np.bool_))
        mine = by.columns(granules.shape)
        other = actors.take(granules) != mine
        former[granules[other]] = times[granules[other]]
        others[granules[other]] = actors[granules[other]]
        times[granules], actors[granules] = time, mine
        lost = actors.take(granules) != mine
        former[granules[lost]], others[granules[lost]] = time, mine[lost]

    def engine_write(self, by: Actors, granules: Granules, same: Same) -> None:
        """An asynchronous engine that all threads start writes granules."""
        assert isinstance(by.engines, int)
        time = self.clocks.tick(by.active.inst)
        actors = _at(self.w_actor, granules)
        bad = self._behind(by, actors) < _at(self.w_time, granules)
        if self.slots:
            self._against_reads(by, granules)
        self._against_atomics(by, granules, write=True)
        if np.count_nonzero(bad):
            # Blocks of a cluster may bring the same rows for one another.
            bad &= self.clocks.generic[actors] | ~same()
            self._report_after_writes(by, granules, bad, write=True)
        self.w_time[granules] = time
        self.w_actor[granules] = by.engines

    # --- notes ---

    def _slot(self, engine: bool, number: int) -> int:
        """The line of the table of reads that belongs to a warp or an engine."""
        key = engine, number
        found = self._slot_of.get(key)
        if found is None:
            found = self._slot_of[key] = len(self.slots)
            self.slots.append(number)
            self._is_engine.append(engine)
            if not engine:
                self._slot_of_warp[number] = found
            if found >= len(self._reads.times):
                for reads in self._tables():
                    reads.grow()
        return found

    def _note_reads(self, team: ClockRows, granules: Ints, time: int, bits: NDArray[Any]) -> None:
        """`bits` (lanes, 1): the lanes of its warp that get what a lane addresses."""
        slots = self._slot_of_warp[team.warps]
        if slots.min() < 0:
            for w in team.members:
                self._slot(False, int(w))
            slots = self._slot_of_warp[team.warps]
        at = (slots * self.count)[:, None] + granules
        reads, masks = self._reads.times.ravel(), self._reads.masks.ravel()
        before = reads.take(at)
        reads[at] = time
        kept = before > 0
        if np.count_nonzero(kept):
            own = np.take_along_axis(self.clocks.known_warps(team), team.warps[:, None], 1)
            kept = before >= np.maximum(own, 1)
            # Reads of the lane's own warp that are not ordered before this one.
            former = masks.take(at) if np.count_nonzero(kept) else None
        else:
            former = None
        masks[at] = bits
        if (masks.take(at) != bits).any():
            np.bitwise_or.at(masks, at.ravel(), np.broadcast_to(bits, at.shape).ravel())
        if former is None:
            return
        kept &= ((former & ~masks.take(at)) != 0) & (before > self.w_time.take(granules))
        if np.count_nonzero(kept):
            self._keep_old(at[kept], before[kept], former[kept])

    def _keep_old(self, at: Ints, time: Times, mask: NDArray[Any]) -> None:
        if self._older is None:
            self._older = _Reads(len(self._reads.times), self.count, self.clocks.mask_type)
        at, first = np.unique(at, return_index=True)
        time, mask = time[first], mask[first]
        reads, masks = self._older.times.ravel(), self._older.masks.ravel()
        # An older entry is dropped once a write has come between: it is behind that write.
        stale = reads[at] <= self.w_time[at % self.count]
        masks[at] = np.where(stale, mask, masks[at] | mask)
        reads[at] = np.where(stale, time, np.minimum(reads[at], time))

    # --- checks ---

    def _is_written(self, granules: Granules) -> NDArray[np.bool_]:
        """Where a plain write came before, or nothing: not what atomics alone have written."""
        written: NDArray[np.bool_] = _at(self.w_time, granules) > 0
        written |= _at(self._atomics[0][0], granules) == 0
        return written

    def _against_atomics(
        self, by: Actors, granules: Granules, write: bool, same: Same | None = None
    ) -> None:
        """An access that is not ordered behind the atomics since the last write."""
        found: list[Conflict] = []
        for times, actors in self._atomics:
            last, who = _at(times, granules), _at(actors, granules)
            late = (self._behind(by, who) <= last) & (last > _at(self.w_time, granules))
            if same is not None and np.count_nonzero(late):
                late &= ~same()[:, None]
            for n, k in np.argwhere(late)[few(last[late])].tolist():
                granule, before = int(_numbers(granules)[n, k]), self.clocks.log[int(last[n, k])]
                found.append(
                    Conflict("data race", granule, by.who(n), int(who[n, k]), before, write, True,
                             by.together)
                )  # fmt: skip
        if found:
            self.report(by.active, found)

    def _behind(self, by: Actors, actors: Ints) -> Times:
        """(actors, k): what each of those who act has behind it of the `actors` of its granules."""
        if isinstance(by.engines, int):
            return self._relied(by.team).take(actors)
        rows = (by.team.rows * self.clocks.width)[:, None]
        return self.clocks.seen.ravel().take(rows + actors)

    def _relied(self, issuers: ClockRows) -> Times:
        """By column: what an engine that all issuers start may rely on."""
        clocks = self.clocks
        fenced = clocks.least(issuers, FENCED)
        return np.where(clocks.generic, fenced, clocks.least(issuers))

    def _report_after_writes(
        self, by: Actors, granules: Granules, bad: NDArray[np.bool_], write: bool
    ) -> None:
        """Accesses, where they are `bad`, that are not ordered behind the last writes."""
        clocks, places, at = self.clocks, np.argwhere(bad), _numbers(granules)[bad]
        ordered, found = clocks.least(by.team) if by.together else None, []
        for i in few(self.w_time[at], () if by.together else self._shared).tolist():
            granule, threads = int(at[i]), by.who(int(places[i, 0]))
            time, actor = int(self.w_time[granule]), int(self.w_actor[granule])
            if ordered is None and self._by_another(threads[0], granule):
                continue
            kind: Kind = "data race"
            if time == 0:
                kind = "uninitialised read"
            elif ordered is not None and clocks.generic[actor] and ordered[actor] > time:
                kind = "missing proxy fence"
            elif actor > clocks.nobody and not write:
                kind = "read before wait"
            before = clocks.log[time]
            found.append(Conflict(kind, granule, threads, actor, before, write, True, by.together))
        if found:
            self.report(by.active, found)

    def _by_another(self, row: int, granule: int) -> bool:
        """Whether a thread that wrote the same to a granule, with the record that wrote it last, is
        ordered before what `row` does now."""
        time = int(self.w_time[granule])
        if time not in self._shared:
            return False
        places, writers = self._shared[time]
        return bool((self.clocks.seen[row, writers[places == granule]] > time).any())

    def _against_reads(self, by: Actors, granules: Granules, same: Same | None = None) -> None:
        """A write that is not ordered behind the reads since the last one."""
        clocks, team, ordered = self.clocks, by.team, None
        pick: Granules
        if by.together:  # what it may rely on is one row
            ordered = clocks.least(team)
            seen, pick = ordered[None].copy(), slice(1)
            seen[0, : clocks.rows] = clocks.least(team, FETCHED)
            warps = np.minimum.reduceat(seen[:, : clocks.rows], clocks.warp_first, axis=1)
        else:
            seen, pick, warps = clocks.seen, team.pick, clocks.known_warps(team)
        # (readers, actors, 1): up to when each has a reader behind it, all its threads.
        known = np.stack(
            [
                seen[pick, number] if engine else warps[:, number]
                for number, engine in zip(self.slots, self._is_engine)
            ]
        )[:, :, None]
        found: list[Conflict] = []
        for reads in self._tables():
            last = _at(reads.times[: len(self.slots)], granules)
            late = last >= np.maximum(known, 1)
            if not np.count_nonzero(late):
                continue
            # What is older than the last write is behind that one.
            late &= last > _at(self.w_time, granules)
            if same is not None:
                late &= ~same()[:, None]
            slot, actor, k = np.nonzero(late)
            at, rows = _numbers(granules)[actor, k], team.rows[actor]
            found += self._readers(rows, seen, slot, at, last[late], reads.masks[slot, at], ordered)
        if found:
            self.report(by.active, found)

    def _tables(self) -> list[_Reads]:
        return [self._reads] if self._older is None else [self._reads, self._older]

    def _readers(
        self,
        rows: Ints,
        seen: Times,
        slot: Ints,
        granules: Ints,
        time: Times,
        mask: NDArray[Any],
        ordered: Times | None = None,
    ) -> list[Conflict]:
        """Of writes by `rows` (or by an engine, for which `seen` has one row, and `ordered` says
        what those who start it have behind them), those that come after a read which is not ordered
        before."""
        clocks = self.clocks
        found: list[Conflict] = []
        for s in np.unique(slot).tolist():
            pick = slot == s
            who = rows[pick]
            row = who if ordered is None else np.zeros_like(who)
            if self._is_engine[s]:
                column = np.full(len(row), self.slots[s])
                unordered = seen[row, column] <= time[pick]
            else:
                first = clocks.warp_first[self.slots[s]]
                lanes = np.arange(clocks.warp_size_of[self.slots[s]])
                took = mask[pick][:, None] >> lanes.astype(clocks.mask_type) & 1
                open_ = (took != 0) & (seen[row[:, None], first + lanes] <= time[pick][:, None])
                unordered, column = open_.any(1), first + open_.argmax(1)
            late = np.flatnonzero(unordered)
            for i in late[few(time[pick][late])].tolist():
                actor, read = int(column[i]), int(time[pick][i])
                fenced = ordered is None or ordered[actor] <= read
                kind: Kind = "overwritten before read" if fenced else "missing proxy fence"
                granule, before = int(granules[pick][i]), clocks.log[read]
                engine = ordered is not None
                found.append(
                    Conflict(kind, granule, (int(who[i]),), actor, before, True, False, engine)
                )
        return found


def _at(table: NDArray[Any], granules: Granules) -> NDArray[Any]:
    """(…, actors, k): what a table, along its last dimension, has of granules."""
    if isinstance(granules, slice):
        return table[..., None, granules]
    return table.take(granules, axis=-1)


def _numbers(granules: Granules) -> Ints:
    """(actors, k): the granules."""
    if isinstance(granules, slice):
        return np.arange(granules.start, granules.stop)[None]
    return granules


def few(times: Times, whole: Container[int] = ()) -> Ints:
    """Places in `times` that are enough to report: the first ones, the first of each time, and all
    whose time is in `whole`."""
    if len(times) <= MOST_NAMED:
        return np.arange(len(times))
    each, first = np.unique(times, return_index=True)
    parts = [np.arange(MOST_NAMED), first]
    parts += [np.flatnonzero(times == t) for t in each.tolist() if t in whole]
    return np.unique(np.concatenate(parts))
