"""Who touched a global tensor when: races within a block, and between blocks, which nothing orders.

An element remembers its last write and two reads: the last one, and one before it by somebody who
is not ordered before that. Tensors that the kernel only reads need no history. The blocks of one
cluster share their clocks; they are one `party`, a number that grows from cluster to cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.llvm import Inst
from tilec.sim.findings import Kind
from tilec.sim.order import Clocks, Numbers, Team, Times
from tilec.sim.shadow import Conflict, Report, Same, _few

if TYPE_CHECKING:
    from tilec.sim.agent import Agent

FOREIGN = -1  # the actor of a conflict with another cluster or block alone


class _Entry:
    """By element: who (party and column), when, and with which record."""

    def __init__(self, count: int) -> None:
        self.party, self.actor, self.time, self.record = (
            np.zeros(count, np.int32) for _ in range(4)
        )

    def put(self, at: Any, party: int, actor: Any, time: int, record: int) -> None:
        self.party[at] = party
        self.actor[at] = actor
        self.time[at] = time
        self.record[at] = record

    def unordered(
        self, at: Numbers, party: int, behind: Times, rows: Numbers, width: int
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
        self.write_, self.read_, self.former = (_Entry(count) for _ in range(3))
        self._records: dict[int, int] = {}
        self._insts: list[Inst | None] = []

    def _record(self, inst: Inst | None) -> int:
        found = self._records.get(id(inst))
        if found is None:
            found = self._records[id(inst)] = len(self._insts)
            self._insts.append(inst)
        return found

    def read(
        self,
        agent: Agent,
        clocks: Clocks,
        party: int,
        team: Team,
        granules: Numbers,
        inst: Inst | None,
        report: Report,
        columns: Numbers | None = None,
    ) -> None:
        """Thread i of the team, or the engine `columns[i]` that it starts, reads `granules[i]`
        (lanes, k)."""
        rows = team.rows[:, None]
        late = self._late(self.write_, clocks, party, rows, granules)
        if late is not None and late.any():
            self._report(agent, self.write_, party, rows, granules, late, False, clocks, report)
        actors = np.broadcast_to(rows if columns is None else columns[:, None], granules.shape)
        kept = self._late(self.read_, clocks, party, rows, granules)
        if kept is not None and kept.any():
            self._keep(granules[kept])
        time, record = clocks.tick(inst), self._record(inst)
        self.read_.put(granules, party, actors, time, record)
        lost = self.read_.actor.take(granules) != actors
        if lost.any():
            self.former.put(granules[lost], party, actors[lost], time, record)

    def _keep(self, at: Numbers) -> None:
        """The last reads become the former ones."""
        for name in ("party", "actor", "time", "record"):
            getattr(self.former, name)[at] = getattr(self.read_, name)[at]

    def write(
        self,
        agent: Agent,
        clocks: Clocks,
        party: int,
        team: Team,
        granules: Numbers,
        inst: Inst | None,
        same: Same,
        report: Report,
        columns: Numbers | None = None,
    ) -> bool:
        """Thread i of the team, or the engine `columns[i]` that it starts, writes `granules[i]`
        (lanes, k). Gives whether several write one granule."""
        rows = team.rows[:, None]
        for entry in (self.write_, self.read_, self.former):
            late = self._late(entry, clocks, party, rows, granules)
            if late is not None and late.any():
                late &= ~same()[:, None]
                self._report(agent, entry, party, rows, granules, late, True, clocks, report)
        actors = np.broadcast_to(rows if columns is None else columns[:, None], granules.shape)
        self.write_.put(granules, party, actors, clocks.tick(inst), self._record(inst))
        return bool((self.write_.actor.take(granules) != actors).any())

    def _late(
        self, entry: _Entry, clocks: Clocks, party: int, rows: Numbers, granules: Numbers
    ) -> NDArray[np.bool_] | None:
        return entry.unordered(granules, party, clocks.seen.ravel(), rows, clocks.width)

    def _report(
        self,
        agent: Agent,
        entry: _Entry,
        party: int,
        rows: Numbers,
        granules: Numbers,
        late: NDArray[np.bool_],
        write: bool,
        clocks: Clocks,
        report: Report,
    ) -> None:
        who, at = np.broadcast_to(rows, granules.shape)[late], granules[late]
        wrote = entry is self.write_
        found = []
        for i in _few(entry.record[at]).tolist():
            g = int(at[i])
            ours = int(entry.party[g]) == party
            actor = int(entry.actor[g]) if ours else FOREIGN
            kind: Kind = "data race"
            if ours and wrote and not write and actor > clocks.nobody:
                kind = "read before wait"
            before = self._insts[int(entry.record[g])]
            found.append(Conflict(kind, g, (int(who[i]),), actor, before, write, wrote))
        if found:
            report(agent, found)

    @property
    def written(self) -> NDArray[np.bool_]:
        """By granule: whether somebody has written it."""
        written: NDArray[np.bool_] = self.write_.party != 0
        return written
