"""The memory that a block sees: its own shared memory, that of its cluster, and the tensors.

Every access is checked, happens, and is counted. Out of bounds a read gives zeros and a write is
dropped; that, an address that is not aligned, a read of what nobody wrote and an access that
nothing orders are findings, and execution goes on. Addresses: see `SHARED_BASE`, `at_block` and
`tilec.sim.machine.tensors`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.sim.machine.global_memory import GlobalMemory
from tilec.sim.machine.tensors import Bytes, Storage
from tilec.sim.machine.threads import Threads
from tilec.sim.program.numbers import KINDS
from tilec.sim.program.records import LoadStore
from tilec.sim.races.clocks import ClockRows, Ints, Order
from tilec.sim.races.shadow import Granules, Shadow
from tilec.sim.races.updates import Observer, Updates
from tilec.sim.reports.buffers import (
    GLOBAL_BASE,
    RANK_BITS,
    SHARED_BASE,
    SharedBuffer,
    SharedPlaces,
    inside,
)
from tilec.sim.reports.counts import Counts
from tilec.sim.reports.faults import Conflict, tell, threads_at
from tilec.sim.reports.findings import MOST_NAMED, Index
from tilec.sim.reports.trace import Tracer


@dataclass
class SharedMemory:
    """The shared memory of one block: noise until it is written."""

    storage: Storage
    shadow: Shadow | None
    places: SharedPlaces
    size: int


class BlockMemory(Observer):
    """What one block of a cluster can address.

    `shared_bytes`: size of its shared memory; `granule`: the narrowest access to it, in bytes;
    `cluster`: the memories of the cluster's blocks by rank, filled as they are made. `checks`
    False: nothing is checked but bounds, and nothing is reported but those. See `Observer` for the
    rest."""

    def __init__(
        self,
        order: Order,
        globals: GlobalMemory,
        shared_bytes: int,
        buffers: Sequence[SharedBuffer] = (),
        *,
        granule: int = 1,
        cluster: list[BlockMemory] | None = None,
        party: int = 1,
        counts: Counts | None = None,
        checks: bool = True,
        seed: int = 0,
        updates: Updates = frozenset(),
    ) -> None:
        super().__init__(order, party, counts, updates)
        self.globals, self.checks = globals, checks
        self.cluster = [] if cluster is None else cluster
        self.cluster.append(self)
        noise = np.random.default_rng(seed).bytes(max(-(-shared_bytes // 16), 1) * 16)
        storage = Storage(np.frombuffer(noise, np.uint8).copy())
        shadow = Shadow(order.clocks, shared_bytes, granule, self._tell) if checks else None
        self.shared = SharedMemory(storage, shadow, SharedPlaces(buffers), shared_bytes)
        self._shift = granule.bit_length() - 1

    # --- loads and stores of threads ---

    def load(self, active: Threads, at: Any, access: LoadStore) -> Any:
        """The value that LLVM's load gives: one per lane, or one for all where `at` is one; a tuple
        of `access.count` of them for a vector."""
        uniform = np.ndim(at) == 0
        total = access.bytes * access.count
        if access.space == "shared":
            data = self._shared_load(active, _lanes(at), total, access)
        else:
            data = self.globals.load(self, active, _lanes(at), total, access)
        kind = KINDS[access.kind]
        if access.count == 1:
            values = data.view(kind)[:, 0]
            value = values[0] if uniform else values
            return (value,) if access.vector else value
        columns = np.ascontiguousarray(data.view(kind).T)
        return tuple(columns[:, 0]) if uniform else tuple(columns)

    def store(self, active: Threads, at: Any, value: Any, access: LoadStore) -> None:
        """LLVM's store: `value` as `load` gives it. Of lanes that write to one place one wins."""
        kind, lanes = KINDS[access.kind], len(active.lanes)
        parts = value if access.vector else (value,)
        block = np.empty((lanes, access.count), kind)
        for i, part in enumerate(parts):
            block[:, i] = part
        data = block.view(np.uint8)
        at = np.ascontiguousarray(np.broadcast_to(at, (lanes,)), np.int64)
        if access.space == "shared":
            self._shared_store(active, at, data, access)
        else:
            self.globals.store(self, active, at, data, access)

    def _shared_load(self, active: Threads, at: Ints, total: int, access: LoadStore) -> Bytes:
        at, good = self._reach(active, self.shared, at - SHARED_BASE, total, access.align)
        shared = self.shared
        if self.counts is not None:
            self.counts.shared(active, at, total, write=False)
        if shared.shadow is not None:
            team, places = self.order.team(active.lanes), self._granules(at, total)
            if len(at) == 1:
                places = np.broadcast_to(places, (team.size, places.shape[1]))
            elif good is not None and good.any():
                team, places = self.order.team(active.lanes[good]), places[good]
            if good is None or good.any():
                shared.shadow.read(active, team, places)
        data = shared.storage.gather(at, total)
        if good is not None:
            data[~good] = 0
        return data

    def _shared_store(self, active: Threads, at: Ints, data: Bytes, access: LoadStore) -> None:
        shared, total = self.shared, data.shape[1]
        at, good = self._reach(active, shared, at - SHARED_BASE, total, access.align)
        lanes = active.lanes
        if self.counts is not None:
            self.counts.shared(active, at, total, write=True)
        if good is not None:
            if not good.any():
                return
            lanes, at, data = lanes[good], at[good], data[good]
        self._put(active, shared, self.order.team(lanes), at, data)

    def _put(
        self,
        active: Threads,
        shared: SharedMemory,
        team: ClockRows,
        at: Ints,
        data: Bytes,
        columns: Ints | None = None,
    ) -> None:
        """Writes of threads, or of the engines that they start."""
        storage, total = shared.storage, data.shape[1]
        several = False
        if shared.shadow is not None:
            several = shared.shadow.write(
                active,
                team,
                self._granules(at, total),
                lambda: self.harmless(active.inst, storage, at, data),
                columns,
            )
        storage.scatter(at, data)
        if several:
            find = functools.partial(self._place, active, shared)
            self.tell_lost(active, storage, at, data, team, find)

    # --- warps ---

    def warp_read(self, active: Threads, at: Any, size: int = 16) -> Bytes:
        """ldmatrix: the `size` bytes at every lane's address (lanes, size), which go to all lanes
        of its warp."""
        at = np.ascontiguousarray(active.full(at), np.int64)
        shared = self.shared
        at, good = self._reach(active, shared, at - SHARED_BASE, size, size)
        if self.counts is not None:
            self.counts.shared(active, at, size, write=False)
        if shared.shadow is not None:
            team = self.order.team(active.lanes)
            shared.shadow.warp_read(active, team, self._granules(at, size))
        data = shared.storage.gather(at, size)
        if good is not None:
            data[~good] = 0
        return data

    def warp_write(self, active: Threads, at: Any, data: Bytes) -> None:
        """stmatrix: `data` (lanes, size) to every lane's address."""
        at = np.ascontiguousarray(active.full(at), np.int64)
        size = data.shape[1]
        at, good = self._reach(active, self.shared, at - SHARED_BASE, size, size)
        if self.counts is not None:
            self.counts.shared(active, at, size, write=True)
        lanes = active.lanes
        if good is not None:
            lanes, at, data = lanes[good], at[good], data[good]
        if len(at):
            self._put(active, self.shared, self.order.team(lanes), at, np.ascontiguousarray(data))

    # --- engines ---

    def engine_read(
        self,
        active: Threads,
        at: Any,
        size: int,
        column: Any,
        issuers: Any = None,
        buffer: str = "",
    ) -> Bytes:
        """What an engine reads: `size` bytes at each of n addresses (n, size). `column`: the
        engine, which all `issuers` (threads; None: the active ones) start; an array: one engine for
        each address, started by the thread of the same place in `issuers`. `buffer`: what it reads,
        where the record has several."""
        at = np.ascontiguousarray(at, np.int64)
        team = self.order.team(active.lanes if issuers is None else issuers)
        if not len(at):
            return np.zeros((0, size), np.uint8)
        if at[0] >= GLOBAL_BASE:
            return self.globals.engine_read(self, active, at, size, column, team)
        shared = self._block_of(at)
        at, good = self._reach(active, shared, inside(at), size, _align(size), buffer)
        if shared.shadow is not None:
            if np.ndim(column):
                # Only what reads through the generic proxy has an engine for each thread.
                shared.shadow.read(active, team, self._granules(at, size))
            else:
                places = self._cover(at, size)
                shared.shadow.engine_read(active, team, int(column), places)
        if self.counts is not None:
            self.counts.engine(active.inst, "shared read", size * len(at))
        data = shared.storage.gather(at, size)
        if good is not None:
            data[~good] = 0
        return data

    def engine_write(
        self, active: Threads, at: Any, data: Bytes, column: Any, issuers: Any = None
    ) -> None:
        """As `engine_read`: write `data` (n, size)."""
        at, data = np.ascontiguousarray(at, np.int64), np.ascontiguousarray(data)
        team = self.order.team(active.lanes if issuers is None else issuers)
        if not len(at):
            return
        if at[0] >= GLOBAL_BASE:
            self.globals.engine_write(self, active, at, data, column, team)
            return
        size = data.shape[1]
        shared = self._block_of(at)
        at, good = self._reach(active, shared, inside(at), size, _align(size))
        if good is not None:
            if not good.any():
                return
            if np.ndim(column):
                team, column = self.order.team(team.lanes[good]), column[good]
            at, data = at[good], data[good]
        if self.counts is not None:
            self.counts.engine(active.inst, "shared write", data.size)
        if np.ndim(column):
            self._put(active, shared, team, at, data, np.asarray(column))
            return
        if shared.shadow is not None:
            places = self._cover(at, size)
            shared.shadow.engine_write(active, team, int(column), places)
        shared.storage.scatter(at, data)

    def peer_read(self, active: Threads, at: Any, size: int) -> Bytes:
        """`ld.shared::cluster`: the `size` bytes at every lane's address (lanes, size), in the
        shared memory of the blocks that the addresses name (`at_block`)."""
        at = np.ascontiguousarray(active.full(at), np.int64)
        out = np.zeros((len(at), size), np.uint8)
        ranks = at >> RANK_BITS
        for rank in np.unique(ranks):
            mine = ranks == rank
            shared = self._block_of(at[mine])
            offsets, good = self._reach(active, shared, inside(at[mine]), size, size)
            if shared.shadow is not None:
                team = self.order.team(active.lanes[mine])
                shared.shadow.read(active, team, self._granules(offsets, size))
            data = shared.storage.gather(offsets, size)
            if good is not None:
                data[~good] = 0
            out[mine] = data
        return out

    # --- places ---

    def _block_of(self, at: Ints) -> SharedMemory:
        rank = int(at[0]) >> RANK_BITS
        return self.cluster[rank - 1].shared if 0 < rank <= len(self.cluster) else self.shared

    def _granules(self, at: Ints, size: int) -> Ints:
        """(n, k): the granules of the `size` bytes at each offset."""
        first = (at >> self._shift)[:, None]
        count = max(size >> self._shift, 1)
        return first if count == 1 else first + np.arange(count)

    def _cover(self, at: Ints, size: int) -> Granules:
        """The granules of all pieces, as a range where they fill one."""
        low = int(at.min())
        if int(at.max()) + size - low == size * len(at):
            return slice(low >> self._shift, -(-(low + size * len(at)) >> self._shift))
        return self._granules(at, size).ravel()

    def _reach(
        self,
        active: Threads,
        shared: SharedMemory,
        at: Ints,
        size: int,
        align: int,
        buffer: str = "",
    ) -> tuple[Ints, NDArray[np.bool_] | None]:
        """The offsets, moved inside where they are not, and which were inside (None: all).
        `buffer`: where they belong, if the record does not say it."""
        name = buffer or active.buffer
        low, high = shared.places.bounds.get(name, (0, shared.size))
        if align > 1 and int(np.bitwise_or.reduce(at)) & (align - 1) and self.checks:
            self._misaligned(active, shared, at, align)
        if int(at.min()) >= low and int(at.max()) + size <= high:
            return at, None
        good = (at >= low) & (at + size <= high)
        bad = at[~good]
        active.report(
            "out of bounds",
            shared.places.outside(int(bad[0]), size, name, shared.size),
            buffer=name,
            indices=shared.places.beyond(bad[:MOST_NAMED].tolist(), name),
            threads=threads_at(active, at, ~good),
        )
        return np.where(good, at, low), good

    def _misaligned(self, active: Threads, shared: SharedMemory, at: Ints, align: int) -> None:
        bad = at & (align - 1) != 0
        name, index = self._place(active, shared, int(at[bad][0]))
        active.report(
            "misaligned access",
            f"the address {int(at[bad][0]) + SHARED_BASE:#x} in shared memory is not a multiple of "
            f"{align}",
            buffer=name,
            indices=[index] if index is not None else [],
            threads=threads_at(active, at, bad),
        )

    def _place(
        self, active: Threads, shared: SharedMemory, offset: int
    ) -> tuple[str, Index | None]:
        return shared.places.find(offset, active.buffer)

    def _tell(self, active: Threads, conflicts: list[Conflict]) -> None:
        clocks = self.order.clocks
        tell(
            active,
            clocks,
            conflicts,
            lambda granule: self._place(active, self.shared, granule << self._shift),
        )


class TracedMemory(BlockMemory):
    """`tracer` is set before the first access, and `step` says what time it is."""

    tracer: Tracer
    step: Callable[[], int]

    def store(self, active: Threads, at: Any, value: Any, access: LoadStore) -> None:
        super().store(active, at, value, access)
        self._wrote(active, active.full(at), access.bytes * access.count)

    def warp_write(self, active: Threads, at: Any, data: Bytes) -> None:
        super().warp_write(active, at, data)
        self._wrote(active, active.full(at), data.shape[1])

    def engine_write(
        self, active: Threads, at: Any, data: Bytes, column: Any, issuers: Any = None
    ) -> None:
        super().engine_write(active, at, data, column, issuers)
        self._wrote(active, at, data.shape[1])

    def _wrote(self, active: Threads, at: Any, width: int) -> None:
        """`width` bytes from each of the addresses on have been written by the record."""
        at = np.asarray(at, np.int64)
        if not len(at) or active.inst is None:
            return
        where, loc, step = active.block.index, active.inst.loc, self.step()
        if at[0] >= GLOBAL_BASE:
            peek = self.tracer.peek_global
            self.tracer.memory_written("global", at, width, peek, where, loc, step)
            return
        rank = int(at[0]) >> RANK_BITS
        owner = self if rank == 0 else self.cluster[rank - 1]
        offsets = inside(at)

        def peek_shared(address: int, size: int) -> bytes:
            return owner.shared.storage.gather(np.array([address]), size).tobytes()

        self.tracer.memory_written("shared", offsets, width, peek_shared, where, loc, step)


def _lanes(at: Any) -> Ints:
    return np.atleast_1d(np.asarray(at, np.int64))


def _align(size: int) -> int:
    """What an engine's pieces must be aligned to."""
    return min(size & -size, 16)
