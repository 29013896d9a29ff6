"""check_barriers: what barriers by hand are certain to get wrong is said before any code is made.

Before and after: TILE, in which groups of threads are scopes; nothing is changed. Looked at are the
numbers of threads that come to each place at most, not the order of what they do: a wait that no
arrival can end, a phase that needs more arrivals than there are, bytes that nothing brings, a
meeting of more threads than come to it. Raises CompileError; a phase that ends in the middle of one
place's arrivals is a CompileWarning, for a barrier may be meant to count several. The rest is found
by the simulator, which executes the program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilec.ir import ops
from tilec.ir.core import Func, Op, Value
from tilec.ir.errors import CompileError, CompileWarning, warn
from tilec.ir.instr.sync import NAMED_BARRIERS
from tilec.ir.uniformity import LANES, Level, parted, uniformity_of, varying
from tilec.passes.utils.thread_masks import ThreadMasks, Visit, visits
from tilec.target import Target

_Arrival = ops.MbarrierArrive | ops.MbarrierExpect | ops.ClusterCopy
_Announcement = ops.MbarrierExpect | ops.MbarrierExpectTx


def check_barriers(func: Func, target: Target) -> Func:
    if func.body.has(ops.GridSync):
        _check_grid(func)
    if not ops.is_by_hand(func.body) and not any(_is_named(v) for v in visits(func, target)):
        return func
    found = tuple(visits(func, target))
    _check_named(func, found)
    _check_clusters(found)
    numbers = ops.constants(func.body)
    for barrier in {v.op.barrier: None for v in found if isinstance(v.op, ops.MbarrierInit)}:
        _Phases(barrier, found, numbers).check()
    return func


# --- barriers of the block, by number -------------------------------------------------------------


def _is_named(v: Visit) -> bool:
    return isinstance(v.op, ops.Barrier | ops.BarrierArrive) and bool(
        v.op.id or v.op.threads or _number_of(v.op) is not None
    )


def _number_of(o: Op) -> Value | None:
    """The number of a barrier that is known at run time only."""
    return o.number if isinstance(o, ops.Barrier) else None


def _check_named(func: Func, found: tuple[Visit, ...]) -> None:
    block = len(found[0].threads) if found else 0
    named: dict[tuple[int | None, int], list[Visit]] = {}
    for v in filter(_is_named, found):
        assert isinstance(v.op, ops.Barrier | ops.BarrierArrive)
        known = v.op.id if _number_of(v.op) is None else None
        named.setdefault((known, v.op.threads or block), []).append(v)
    _check_numbers(func, [v for (n, _), places in named.items() if n is None for v in places])
    number: int | str
    for (given, count), places in named.items():
        # A number known at run time may be any: who names one may meet all that name another.
        places += [
            v
            for (n, other), more in named.items()
            if other == count and n != given and (n is None or given is None)
            for v in more
            if v not in places
        ]
        number = given if given is not None else "of a run-time number"
        first = next((v for v in places if isinstance(v.op, ops.Barrier)), places[0])
        come = int(np.count_nonzero(np.logical_or.reduce([v.threads for v in places])))
        if count > come:
            raise CompileError(
                f"barrier {number} is of {count} threads, and {come} of the block's {block} come "
                "to it: those wait for ever",
                first.op.loc,
                f"write {come}" if count > block else f"write {come}, or let the others come, too",
            )
        if not any(isinstance(v.op, ops.Barrier) for v in places):
            others = [n for i, n in named if i == number and n != count]
            seen = f", only for {others[0]} of them" if others else ""
            raise CompileError(
                f"{count} threads arrive at barrier {number}, and nobody waits for so many{seen}",
                first.op.loc,
                f"write T.sync_threads({number}, {count}) where the others wait",
            )
        for v in places:
            if _number_of(v.op) is not None:
                continue  # each of them may meet some
            if isinstance(v.op, ops.Barrier) and v.exact and v.count > count:
                warn(
                    CompileWarning,
                    f"{v.count} threads come to barrier {number}, which lets {count} go on as soon "
                    "as they are there",
                    v.op.loc,
                    f"write T.sync_threads({number}, {v.count}), or a number for each group",
                )


def _check_numbers(func: Func, places: list[Visit]) -> None:
    """Numbers that are known at run time, as far as they follow from the thread's index."""
    masks, facts = ThreadMasks(func), uniformity_of(func)
    lanes = int(func.attrs.get("warp_size") or LANES)
    for v in places:
        number = _number_of(v.op)
        assert number is not None
        differs, known = facts.level(number) is Level.THREAD, masks.evaluate(number)
        if known is not None:
            come = np.flatnonzero(v.threads)
            numbers = np.broadcast_to(known, v.threads.shape)[come]
            differs = len({*zip(come // lanes, numbers)}) > len({*(come // lanes)})
            for bad in numbers[(numbers < 0) | (numbers >= NAMED_BARRIERS)]:
                raise CompileError(
                    f"barrier_id of T.sync_threads is {bad} in some threads",
                    v.op.loc,
                    f"a block has barriers 0 to {NAMED_BARRIERS - 1}",
                )
        if differs:
            warn(
                CompileWarning,
                f"the {lanes} threads of a warp come to one barrier together, and may name several "
                "here",
                v.op.loc,
                f"name the same in a warp, such as 1 + tx // {lanes}",
            )


# --- the grid ---------


def _check_grid(func: Func) -> None:
    """Warn of T.sync_grid where blocks may go different ways."""
    blocks = {o.result for o in func.body.every(ops.BlockIndex)}
    for o, around in parted(func.body, varying(func.body, blocks, allocs=False)):
        if isinstance(o, ops.GridSync):
            warn(
                CompileWarning,
                "T.sync_grid waits for all blocks, and stands in a loop or a condition (line "
                f"{around.loc.line}) that may differ between them: those that come wait for ever",
                o.loc,
                "let what is around it depend on sizes and scalars only",
            )


# --- clusters -------------------------------------------------------------------------------------


def _check_clusters(found: tuple[Visit, ...]) -> None:
    parts = {v.op.part: v.op for v in found if isinstance(v.op, ops.ClusterBarrier)}
    if "wait" in parts and "arrive" not in parts:
        raise CompileError(
            "T.cluster_wait waits for those who arrive, and there is no T.cluster_arrive",
            parts["wait"].loc,
            "write T.cluster_arrive() in front of it, or T.cluster_sync() for both",
        )


# --- mbarriers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Phases:
    """What is done at the barriers of one buffer."""

    barrier: Value
    found: tuple[Visit, ...]
    numbers: dict[Value, int | float | bool]

    def check(self) -> None:
        counts = {
            v.op.slot: v.op
            for v in self.found
            if isinstance(v.op, ops.MbarrierInit) and self._of(v)
        }
        for v in self.found:
            if isinstance(v.op, ops.MbarrierWait) and self._of(v) and self._parity(v.op) != 1:
                self._check_wait(v, counts)
        for v in self.found:
            if isinstance(v.op, _Arrival) and self._of(v):
                self._check_arrival(v, counts)

    def _of(self, v: Visit) -> bool:
        return getattr(v.op, "barrier", None) is self.barrier

    def _parity(self, wait: ops.MbarrierWait) -> int | None:
        found = self.numbers.get(wait.parity)
        return None if found is None else int(found)

    def _slot(self, v: Visit) -> int | None:
        found = self.numbers.get(v.op.stage)  # type: ignore[attr-defined]
        return None if found is None else int(found)

    def _name(self, slot: int | None) -> str:
        if self.barrier.buffer.static_shape[0] == 1:
            return self.barrier.name
        return f"{self.barrier.name}[{'i' if slot is None else slot}]"

    def _at(self, kind: type | object, slot: int | None) -> list[Visit]:
        """What may be done at a barrier."""
        places = (v for v in self.found if isinstance(v.op, kind) and self._of(v))  # type: ignore[arg-type]
        return [v for v in places if slot is None or self._slot(v) in (None, slot)]

    def _check_wait(self, v: Visit, counts: dict[int, ops.MbarrierInit]) -> None:
        slot = self._slot(v)
        name, arrivals = self._name(slot), self._at(_Arrival, slot)
        announced = self._at(_Announcement, slot)
        if announced:
            op = announced[0].op
            assert isinstance(op, ops.MbarrierExpect | ops.MbarrierExpectTx)
            instead = (
                f"write T.barrier_arrive({name})" if isinstance(op, ops.MbarrierExpect) else ""
            )
            raise CompileError(
                f"{op.bytes:,} bytes are announced on {name} that no copy brings: T.tma_copy "
                f"announces its own, and line {v.op.loc.line} would wait for ever",
                op.loc,
                instead or "leave it out",
            )
        if not arrivals:
            raise CompileError(
                f"nobody arrives at {name}, for whose phase this waits",
                v.op.loc,
                f"write T.barrier_arrive({name}) where it is done what is waited for; T.tma_copy "
                "announces bytes, and arrives nowhere",
            )
        if slot is None or self._parity(v.op) != 0 or slot not in counts:  # type: ignore[arg-type]
            return
        if all(self._is_behind(a, v) for a in arrivals):
            raise CompileError(
                f"this waits for a phase of {name} that only its own threads end, on line "
                f"{arrivals[0].op.loc.line} behind it",
                v.op.loc,
                "arrive in front of the wait, or let other threads arrive",
            )
        if any(a.repeated or getattr(a.op, "block", None) is not None for a in arrivals):
            return
        come, count = sum(a.count for a in arrivals), counts[slot].count
        if come < count:
            raise CompileError(
                f"a phase of {name} ends with {count} arrivals, and {come} come in all: line "
                f"{v.op.loc.line} would wait for ever",
                counts[slot].loc,
                f"write {come} for it, or let more threads arrive",
            )

    def _is_behind(self, arrival: Visit, wait: Visit) -> bool:
        """Whether who arrives has waited before, for the first phase."""
        if getattr(arrival.op, "block", None) is not None:  # another block's threads do
            return False
        order = self.found.index(arrival) > self.found.index(wait)
        own = not np.any(arrival.threads & ~wait.threads)
        return order and own and wait.exact and not wait.repeated

    def _check_arrival(self, v: Visit, counts: dict[int, ops.MbarrierInit]) -> None:
        slot = self._slot(v)
        if slot not in counts or not v.exact or getattr(v.op, "block", None) is not None:
            return
        count = counts[slot].count
        if v.count > count:
            warn(
                CompileWarning,
                f"{v.count} threads arrive at {self._name(slot)}, a phase of which ends with "
                f"{count} arrival{'s' * (count != 1)}",
                v.op.loc,
                f"write {v.count} for its arrive_count, or let one arrive: if tx == 0:",
            )
