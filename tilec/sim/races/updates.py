"""Which stores put back what they have read: `h[bin[t]] += 1`, by each thread for itself.

That several threads store one value to one element is harmless in itself, and common. Here it is
not: each has computed it from what was there before, so that all but one of the results are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilec.ir.analysis import Level, uniformity_of
from tilec.ir.core import Func, Op, Value, defining_ops, walk
from tilec.ir.llvm import Inst
from tilec.ir.loc import Loc
from tilec.ir.ops import MemLoad, MemStore
from tilec.sim.machine.tensors import Bytes, Storage
from tilec.sim.machine.threads import Threads
from tilec.sim.races.clocks import ClockRows, Ints, Order
from tilec.sim.reports.counts import Counts
from tilec.sim.reports.faults import tell_several
from tilec.sim.reports.findings import Index

Updates = frozenset[tuple[Loc, str]]
"""Statements, and the buffers that they store to."""


def updates(func: Func) -> Updates:
    """The updates of a LOWERED function in which the element depends on the thread. (Where it does
    not, all threads act as one.)"""
    made = defining_ops(func.body)
    uniformity = uniformity_of(func)
    return frozenset(
        (o.loc, o.dest.name)
        for o in walk(func.body)
        if isinstance(o, MemStore)
        and uniformity.level(o.offset) > Level.BLOCK
        and _reads(o.value, (o.dest, o.offset), made)
    )


def is_update(inst: Inst | None, known: Updates) -> bool:
    """Whether a record is of one of the updates."""
    return inst is not None and (inst.loc, inst.buffer) in known


def _reads(value: Value, place: tuple[Value, Value], made: dict[Value, Op]) -> bool:
    """Whether `value` is computed from what is loaded from `place`: a buffer and an offset."""
    seen: set[Value] = set()
    todo = [value]
    while todo:
        v = todo.pop()
        o = made.get(v)
        if v in seen or o is None:
            continue
        seen.add(v)
        if isinstance(o, MemLoad):
            if (o.source, o.offset) == place:
                return True
        todo += o.operands
    return False


@dataclass
class Observer:
    """What notes the accesses of a block: its clocks; `party`, a number that the blocks of its
    cluster have and others have not; `counts` of what they cost (None: nothing is counted).
    `updates`: stores that are a fault also where another thread stores the same value."""

    order: Order
    party: int
    counts: Counts | None
    updates: Updates

    def harmless(
        self, inst: Inst | None, storage: Storage, at: Ints, data: Bytes
    ) -> NDArray[np.bool_]:
        """By lane, before a write: whether it is what is there already, not computed from that."""
        if is_update(inst, self.updates):
            return np.zeros(len(at), np.bool_)
        return ~storage.differs(at, data)

    def lost(self, inst: Inst | None, storage: Storage, at: Ints, data: Bytes) -> NDArray[np.bool_]:
        """By lane, after a write in which several wrote to one place: whether what it wrote, or
        added to what was there, is not kept."""
        if not is_update(inst, self.updates):
            return storage.differs(at, data)
        places, number = np.unique(at, return_inverse=True)
        several: NDArray[np.bool_] = (np.bincount(number, minlength=len(places)) > 1)[number]
        return several

    def tell_lost(
        self,
        active: Threads,
        storage: Storage,
        at: Ints,
        data: Bytes,
        team: ClockRows,
        find: Callable[[int], tuple[str, Index | None]],
    ) -> None:
        """Report what is `lost`. `find` names an offset."""
        lost = self.lost(active.inst, storage, at, data)
        if lost.any():
            update = is_update(active.inst, self.updates)
            tell_several(active, *find(int(at[lost][0])), team.lanes[lost], update)
