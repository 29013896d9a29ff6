"""What the blocks of different clusters know of one another: by atomics on global memory, between
fences of the device.

A cluster's clocks say nothing of other clusters. A thread that has fenced publishes with each
atomic behind the fence what was behind it; whoever reads the word by an atomic of his own, and
fences after that, has all of it behind him: what atomics have left in a word stays there for all
that come (PTX ISA, "Memory Consistency Model", sections "Release-Acquire Patterns", "Causality
Order": the words change by read-modify-write only)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilec.sim.order import Numbers, Order, Times

if TYPE_CHECKING:
    from tilec.sim.order import Clocks

Known = dict[int, Times]
"""Of each cluster, by its party: times by column of its clocks, up to which it is known."""


def _join(known: Known, more: Known) -> None:
    for party, times in more.items():
        mine = known.get(party)
        known[party] = times if mine is None else _latest(mine, times)


def _latest(a: Times, b: Times) -> Times:
    size = min(len(a), len(b))
    out = (a if len(a) > len(b) else b).copy()
    out[:size] = np.maximum(a[:size], b[:size])
    return out


class Across:
    """What the cluster `party` knows of others. `left`: what atomics have left in each word, by its
    address; all clusters of a run have the same."""

    def __init__(self, clocks: Clocks, party: int, left: dict[int, Known]) -> None:
        self.clocks, self.party, self.left = clocks, party, left
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
            known = {self.party: order.release(np.array([lane])).seen.copy()}
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
        self, late: NDArray[np.bool_], of: tuple[Times, Times, Times], rows: Numbers
    ) -> NDArray[np.bool_]:
        """Which of the `late` accesses (`of`: party, column, time) of other clusters the threads in
        `rows` do not have behind them."""
        parties, actors, times = of
        late = np.broadcast_to(late, np.broadcast_shapes(late.shape, rows.shape)).copy()
        for column, time, known in self._learnt:
            knows = self.clocks.seen[rows, column] > time
            for party, seen in known.items():
                before = seen.take(actors, mode="clip") > times
                late &= ~(knows & (parties == party) & before & (actors < len(seen)))
        return late
