"""Everything at which the threads of a block wait for one another, and who waits for ever.

`Barriers` belongs to one block. Its methods take the threads that act; what may wait gives an
object as `ir.instr.machine.Waits` describes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilec.ir.types import MBARRIER_BYTES
from tilec.sim.clocks import Clock, Ints
from tilec.sim.findings import Kind
from tilec.sim.threads import BlockInfo, Threads, whole_warps
from tilec.sim.waits import (
    Mbarrier,
    Meeting,
    Pass,
    PhaseEnd,
    Published,
    RegisterPool,
    RegisterWait,
    Waiting,
)

_COPY = "a TMA load has written its shared memory"
_ARRIVAL = "a thread of another block has arrived at its mbarrier"
PEER_READ = "a thread of another block has read its shared memory"
PEER_WRITE = "a thread of another block has written to its shared memory"
SENT = "a copy to another block has read its shared memory"
NAMED_BARRIERS = 16


class Barriers:
    """The barriers of one block; `cluster`: those of the cluster's blocks by rank, filled as they
    are made. `at_launch`: registers of a thread when the block begins."""

    def __init__(self, block: BlockInfo, cluster: list[Barriers], at_launch: int) -> None:
        self.block, self.cluster = block, cluster
        cluster.append(self)
        self.mbarriers: dict[int, Mbarrier] = {}
        self.named: dict[int, Meeting] = {}
        self.all: Meeting | None = None  # of the whole cluster, kept by its first block
        self.whole: Meeting | None = None  # AMD's
        self._arrived: dict[int, Meeting] = {}  # thread -> the cluster's meeting it is to wait for
        self.published = Published(block.order)
        self.registers = RegisterPool(block.threads, block.warp_size, at_launch)
        self._published: dict[int, Clock] = {}  # thread -> what its last release fence made known
        self._met: dict[int, Clock] = {}  # thread -> what an acquire fence will put behind it
        self._visits: dict[tuple[int, str], tuple[int, Any]] = {}

    # --- warps ---

    def warp_sync(self, active: Threads) -> None:
        """All lanes of each warp have behind them what each of them has."""
        whole_warps(active)
        starts = np.flatnonzero(np.diff(active.lanes // self.block.warp_size)) + 1
        for lanes in np.split(active.lanes, starts):
            self.block.order.acquire(lanes, self.block.order.release(lanes))

    # --- mbarriers ---

    def init(self, active: Threads, address: Any, count: int) -> None:
        order = self.block.order
        for lane, at in zip(active.lanes, active.full(address)):
            if at % MBARRIER_BYTES:
                active.report("misaligned access", f"an mbarrier at address {at}")
            name = active.buffer
            before = self.mbarriers.get(int(at))
            if before is not None and not before.again:
                before.again = True
                message = f"{before} is initialised a second time, and may be in use by then"
                active.report("data race", message, before.inst)
            first = min([b.address for b in self.mbarriers.values() if b.name == name] + [int(at)])
            self.mbarriers[int(at)] = Mbarrier(
                int(at),
                name,
                (int(at) - first) // MBARRIER_BYTES,
                count,
                order.base + int(lane),
                order.mark(),
                active.inst,
            )

    def init_fence(self, active: Threads) -> None:
        rows = set((active.lanes + self.block.order.base).tolist())
        for b in self.mbarriers.values():
            b.fenced = b.fenced or b.made_by in rows

    def find(self, active: Threads, address: int) -> Mbarrier | None:
        """The mbarrier at an address of this block, for threads of any in the cluster; reports it
        where there is none that they can know of."""
        found = self.mbarriers.get(address)
        if found is None:
            name = active.buffer
            message = f"{name or 'an mbarrier'} at address {address} was never initialised"
            active.report("uninitialised read", message)
            return None
        if found.made_at:
            self._check_made(active, found)
        return found

    def _check_made(self, active: Threads, b: Mbarrier) -> None:
        """That the initialisation is behind the threads that use it."""
        order = active.block.order
        seen = order.clocks.seen[active.lanes + order.base, b.made_by]
        if (seen <= b.made_at).any():
            message = f"the initialisation of {b} is not ordered before its use"
            active.report(
                "data race", message, b.inst, threads=active.lanes[seen <= b.made_at].tolist()
            )
            b.made_at = 0

    def expect_tx(self, active: Threads, address: Any, bytes: int) -> None:
        """Threads announce bytes for the running phase, each at its address, and do not arrive."""
        for who, target in _grouped(active.lanes, [active.full(address)]):
            b = self.find(active, target[0])
            if b is not None:
                b.announce(bytes * len(who), active.inst)

    def arrive(
        self,
        active: Threads,
        address: Any,
        *,
        expect: int = 0,
        block: Any = None,
        cluster_scope: bool = False,
        where: Any = None,
        copies: bool = False,
    ) -> None:
        """Threads arrive, each at its address, here or in the block of this rank. With `copies` is
        behind the phase's end, too, what the engine of each has copied, though it is not behind the
        thread."""
        lanes, columns = active.lanes, [active.full(address)]
        if block is not None:
            columns.append(active.full(block))
        if where is not None:
            mask = active.full(where)
            lanes, columns = lanes[mask], [c[mask] for c in columns]
        for who, target in _grouped(lanes, columns):
            peer = self if block is None else self._peer(active, target[1])
            if peer is None:
                continue
            b = peer.find(active, target[0])
            if b is None:
                continue
            order = self.block.order
            if expect:
                b.announce(expect * len(who), active.inst)
            left = len(who)
            while left:
                if b.pending == 0:
                    message = (
                        f"{b} gets an arrival in phase {b.number} after all {b.count} of them, "
                        f"and still waits for {b.missing()}"
                    )
                    active.report("transaction bytes", message, b.expects, b.copies)
                    break
                part = min(left, b.pending)
                counted = who[len(who) - left :][:part]  # only these are behind the phase's end
                left -= part
                clock = order.release(counted)
                if copies:
                    engines = [
                        order.engine(("cp.async", n), generic=True) for n in counted.tolist()
                    ]
                    clock = order.completion(np.array(engines)).join(clock)
                rows = (counted + order.base).tolist()
                b.note(clock, {row: int(clock.seen[row]) for row in rows})
                b.pending -= part
                if cluster_scope:
                    b.publish(self.published.release(clock))
                if peer is not self:
                    for row in rows:
                        peer.visit(active, row, int(clock.seen[row]), _ARRIVAL)
                peer.settle(active, b)

    def complete(self, active: Threads, b: Mbarrier, bytes: int, clock: Clock, column: int) -> None:
        """An asynchronous copy has brought bytes."""
        b.tx -= bytes
        b.copies = active.inst
        self.visit(active, column, int(clock.seen[column]), _COPY)
        b.note(clock, {column: int(clock.seen[column])})
        self.settle(active, b)

    def settle(self, active: Threads, b: Mbarrier) -> None:
        """End the phase if it has all it waits for."""
        if not b.full():
            return
        late: Pass | None = b.end()
        if late is not None:
            message = (
                f"phase {b.number - 1} of {b} may end before a thread that waits for phase "
                f"{b.number - 2} has seen that end"
            )
            self._report(active, "parity can alias", message, late.inst, threads=late.threads)

    def wait(
        self, active: Threads, address: Any, parity: Any, *, cluster_scope: bool = False
    ) -> Waiting:
        address, parity = np.asarray(address), np.asarray(parity) & 1
        if address.ndim == parity.ndim == 0:
            pairs, which = np.array([[address, parity]]), np.zeros(len(active.lanes), np.int64)
        else:
            pairs = np.stack([active.full(address), active.full(parity)], -1)
            pairs, which = np.unique(pairs, axis=0, return_inverse=True)
        published = self.published if cluster_scope else None
        ends = [
            PhaseEnd(self.find(active, at), odd, published, active.inst)
            for at, odd in pairs.tolist()
        ]
        return Waiting(active, active.lanes, ends, which.ravel())

    # --- named barriers ---

    def named_sync(self, active: Threads, number: Any, threads: Any) -> Waiting:
        return Waiting(active, active.lanes, *self._come(active, number, threads))

    def named_arrive(self, active: Threads, number: Any, threads: Any) -> None:
        self._come(active, number, threads)

    def _come(self, active: Threads, number: Any, threads: Any) -> tuple[list[Meeting], Ints]:
        """Come to a barrier; gives the meetings and which of them each thread came to."""
        whole_warps(active)
        meetings, which = list[Meeting](), np.zeros(len(active.lanes), np.int64)
        columns = [active.full(number), active.full(threads)]
        for who, (n, wanted) in _grouped(active.lanes, columns):
            if not 0 <= n < NAMED_BARRIERS or wanted % self.block.warp_size or wanted <= 0:
                active.report("barrier divergence", f"there is no barrier {n} of {wanted} threads")
            meeting = self.named.get(n)
            if meeting is None:
                meeting = self.named[n] = Meeting(f"barrier {n}", wanted)
            if meeting.wanted != wanted:
                message = f"barrier {n} waits for {meeting.wanted} threads, and here for {wanted}"
                active.report("barrier divergence", message)
            meeting.add(self.block, who, self.block.order.release(who))
            if meeting.ready():
                self._check_size(active, meeting)
                del self.named[n]
            which[np.searchsorted(active.lanes, who)] = len(meetings)
            meetings.append(meeting)
        return meetings, which

    def _check_size(self, active: Threads, meeting: Meeting) -> None:
        if meeting.count > meeting.wanted:
            active.report(
                "barrier divergence",
                f"{meeting.count} threads came to {meeting.name}, which waits for {meeting.wanted}",
            )

    # --- the whole block, the cluster ---

    def block_barrier(self, active: Threads) -> Waiting:
        if self.whole is None:
            self.whole = Meeting("the barrier of the block", self.block.threads, self.met)
        meeting = self.whole
        known: dict[int, Clock] = {}
        for lane in active.lanes.tolist():
            clock = self._published.pop(lane, None)
            if clock is not None:
                known[id(clock)] = clock
        joined: Clock | None = None
        for clock in known.values():
            joined = clock if joined is None else joined.join(clock)
        meeting.add(self.block, active.lanes, joined)
        if meeting.ready():
            self.whole = None
        return _at(meeting, active)

    def fence(self, active: Threads, order: str) -> None:
        """LLVM's `fence` of a workgroup for shared memory: "release" makes what was done before
        part of the next barrier that these threads come to; "acquire" puts what others released
        before the last one behind them."""
        lanes = active.lanes.tolist()
        if order in ("release", "acq_rel", "seq_cst"):
            self._published.update(dict.fromkeys(lanes, self.block.order.release(active.lanes)))
        if order in ("acquire", "acq_rel", "seq_cst"):
            of: dict[int, tuple[Clock, list[int]]] = {}
            for lane in lanes:
                clock = self._met.pop(lane, None)
                if clock is not None:
                    of.setdefault(id(clock), (clock, []))[1].append(lane)
            for clock, who in of.values():
                threads = active.lanes if len(who) == len(lanes) else np.array(who)
                self.block.order.acquire(threads, clock)

    def met(self, lanes: Ints, clock: Clock) -> None:
        """These threads have passed AMD's barrier; an acquire fence will put `clock` behind
        them."""
        self._met.update(dict.fromkeys(lanes.tolist(), clock))

    def cluster_sync(self, active: Threads) -> Waiting:
        return _at(self._at_cluster(active), active)

    def cluster_arrive(self, active: Threads) -> None:
        meeting = self._at_cluster(active)
        for lane in active.lanes.tolist():
            if self._arrived.setdefault(lane, meeting) is not meeting:
                message = (
                    "threads arrive at the barrier of the cluster, and have not waited since they "
                    "arrived before"
                )
                active.report("barrier divergence", message, threads=[lane])

    def cluster_wait(self, active: Threads) -> Waiting | None:
        meetings = {self._arrived.pop(lane, None) for lane in active.lanes.tolist()}
        if len(meetings) > 1 or None in meetings:
            message = "threads wait at the barrier of the cluster without having arrived there"
            active.report("barrier divergence", message, threads=active.lanes[:8].tolist())
            return None
        (meeting,) = meetings
        assert meeting is not None
        return _at(meeting, active)

    def _at_cluster(self, active: Threads) -> Meeting:
        """The meeting of the cluster, to which these threads have come."""
        first = self.cluster[0]
        if first.all is None:
            total = self.block.threads * len(self.cluster)
            first.all = Meeting("the barrier of the cluster", total)
        meeting = first.all
        meeting.add(self.block, active.lanes, self.block.order.release(active.lanes))
        if meeting.ready():
            first.all = None
            for peer in self.cluster:
                peer.published.meet()
        return meeting

    # --- registers ---

    def setmaxnreg(self, active: Threads, registers: int, increase: bool) -> RegisterWait | None:
        whole_warps(active)
        warps = np.unique(active.lanes // self.block.warp_size)
        for group in np.unique(warps // 4):
            if len(warps[warps // 4 == group]) != 4:
                message = f"all four warps of warpgroup {group} must come to setmaxnreg together"
                active.report("barrier divergence", message)
        if increase:
            return RegisterWait(active, active.lanes, self.registers, registers)
        if (self.registers.of[warps] < registers).any():
            active.report(
                "register pool",
                f"setmaxnreg.dec to {registers} registers, more than the "
                f"{int(self.registers.of[warps].min())} that the warps have",
            )
        self.registers.take(warps, registers)
        return None

    # --- the end ---

    def deadlock(self, active: Threads, blocked: Sequence[Threads]) -> None:
        """Nobody can go on: say who waits for what."""
        lines, insts = [], []
        kind: Kind = "deadlock"
        for other in blocked:
            if other.waiting is None:
                continue
            warps = np.unique(other.lanes // self.block.warp_size)
            where = f" of block {other.block.index}" if len(self.cluster) > 1 else ""
            waits = "waits" if len(warps) == 1 else "wait"
            lines.append(f"{_range('warp', warps)}{where} {waits} {other.waiting.describe()}")
            insts.append(other.inst)
            if isinstance(other.waiting, RegisterWait):
                kind = "register pool"
        self._report(
            active, kind, "no thread can go on", *insts[1:], details=tuple(lines), first=insts[0]
        )
        for peer in self.cluster:
            peer.finish(active)

    def finish(self, active: Threads | None = None) -> None:
        """The block has ended, or cannot go on: bytes that were announced must have come."""
        for b in self.mbarriers.values():
            if b.tx and (b.pending == 0 or active is None):
                message = (
                    f"phase {b.number} of {b} announces {b.announced} bytes; {b.announced - b.tx} "
                    "have come"
                )
                self._report(
                    active, "transaction bytes", message, b.copies, first=b.expects or b.copies
                )
        if active is None:
            self._check_visits()

    def visit(self, active: Threads, column: int, time: int, what: str) -> None:
        """An engine, or a thread of another block, has used the block's shared memory, which must
        be there until then: some thread of the block has to have that behind it when it ends."""
        self._visits[column, what] = time, active.inst

    def _check_visits(self) -> None:
        order = self.block.order
        mine = slice(order.base, order.base + self.block.threads)
        behind = order.clocks.seen[mine].max(axis=0)
        for (column, what), (time, inst) in self._visits.items():
            if behind[column] < time:
                kind: Kind = "read before wait" if what in (_COPY, SENT) else "data race"
                self._report(None, kind, f"the block may end before {what}", first=inst)
        self._visits.clear()

    # --- inside ---

    def _peer(self, active: Threads, rank: int) -> Barriers | None:
        if 0 <= rank < len(self.cluster):
            return self.cluster[rank]
        active.report("out of bounds", f"block {rank} is not in the cluster")
        return None

    def _report(
        self, active: Threads | None, kind: Kind, message: str, *others: Any, **more: Any
    ) -> None:
        """`others`: records whose lines belong to the finding besides the one that is executed
        (`first`, if given)."""
        current = more.pop("first", active.inst if active else None)
        places = [i.loc for i in (current, *others) if i is not None]
        buffer = current.buffer if current is not None else ""
        self.block.report(active, kind, message, *places, buffer=buffer, **more)


def _at(meeting: Meeting, active: Threads) -> Waiting:
    return Waiting(active, active.lanes, [meeting], np.zeros(len(active.lanes), np.int64))


def _grouped(lanes: Ints, columns: Sequence[Any]) -> Iterator[tuple[Ints, tuple[int, ...]]]:
    """The lanes in groups that agree in all columns."""
    if not len(lanes):
        return
    if all(len(c) == 1 or (c == c[0]).all() for c in columns):
        yield lanes, tuple(int(c[0]) for c in columns)
        return
    unique, which = np.unique(np.stack(columns, -1), axis=0, return_inverse=True)
    for i, values in enumerate(unique):
        yield lanes[which.ravel() == i], tuple(int(v) for v in values)


def _range(word: str, numbers: Ints) -> str:
    first, last = int(numbers[0]), int(numbers[-1])
    if first == last:
        return f"{word} {first}"
    if len(numbers) == last - first + 1:
        return f"{word}s {first} to {last}"
    return f"{word}s {', '.join(map(str, numbers))}"
