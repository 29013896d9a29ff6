"""The memory that a block sees: its own shared memory, that of its cluster, and the tensors.

Every access is checked, happens, and is counted. Out of bounds a read gives zeros and a write is
dropped; that, an address that is not aligned, a read of what nobody wrote and an access that
nothing orders are findings, and execution goes on. Addresses: see `SHARED_BASE`, `at_block` and
`tilec.sim.tensors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.llvm import Inst
from tilec.sim.counts import Counts
from tilec.sim.findings import MOST_NAMED, Index
from tilec.sim.global_memory import GlobalMemory
from tilec.sim.numbers import KINDS
from tilec.sim.order import Numbers, Order, Team
from tilec.sim.places import (
    SHARED_BASE,
    SharedBuffer,
    SharedPlaces,
    here,
    tell,
    tell_several,
    threads_at,
)
from tilec.sim.shadow import Conflict, Granules, Shadow
from tilec.sim.storage import Bytes, Storage
from tilec.sim.updates import Updates, is_update

if TYPE_CHECKING:
    from tilec.sim.agent import Agent
    from tilec.sim.program import Access

_RANK = 24  # the bit of an address from which on it names a block of the cluster
_INSIDE = (1 << _RANK) - 1
_GLOBAL = 1 << 40  # addresses of tensors begin here


def at_block(address: Any, rank: Any) -> Any:
    """The address in the shared memory of the cluster's block `rank` (`mapa`)."""
    return np.int32(1 << _RANK) * np.int32(rank + 1) | address


def inside(places: Numbers) -> Numbers:
    """The offsets of addresses in the shared memory of whatever block they name."""
    offsets: Numbers = (places & _INSIDE) - SHARED_BASE
    return offsets


@dataclass
class SharedMemory:
    """The shared memory of one block: noise until it is written."""

    storage: Storage
    shadow: Shadow | None
    places: SharedPlaces
    size: int


class Memory:
    """What one block of a cluster can address.

    `shared_bytes`: size of its shared memory; `granule`: the narrowest access to it, in bytes;
    `cluster`: the memories of the cluster's blocks by rank, filled as they are made. `party`: a
    number that the blocks of this cluster have and others have not. `checks` False: nothing is
    checked but bounds, and nothing is reported but those. `updates`: stores that are a fault also
    where another thread stores the same value."""

    def __init__(
        self,
        order: Order,
        globals: GlobalMemory,
        shared_bytes: int,
        buffers: Sequence[SharedBuffer] = (),
        *,
        granule: int = 1,
        cluster: list[Memory] | None = None,
        party: int = 1,
        counts: Counts | None = None,
        checks: bool = True,
        seed: int = 0,
        updates: Updates = frozenset(),
    ) -> None:
        self.updates = updates
        self.order, self.globals, self.party, self.checks = order, globals, party, checks
        self.counts = counts
        self.cluster = [] if cluster is None else cluster
        self.cluster.append(self)
        noise = np.random.default_rng(seed).bytes(max(-(-shared_bytes // 16), 1) * 16)
        storage = Storage(np.frombuffer(noise, np.uint8).copy())
        shadow = Shadow(order.clocks, shared_bytes, granule, self._tell) if checks else None
        self.shared = SharedMemory(storage, shadow, SharedPlaces(buffers), shared_bytes)
        self._shift = granule.bit_length() - 1

    # --- loads and stores of threads ---

    def load(self, agent: Agent, at: Any, access: Access) -> Any:
        """The value that LLVM's load gives: one per lane, or one for all where `at` is one; a tuple
        of `access.count` of them for a vector."""
        uniform = np.ndim(at) == 0
        total = access.bytes * access.count
        if access.space == "shared":
            data = self._shared_load(agent, _lanes(at), total, access)
        else:
            data = self.globals.load(self, agent, _lanes(at), total, access)
        kind = KINDS[access.kind]
        if access.count == 1:
            values = data.view(kind)[:, 0]
            value = values[0] if uniform else values
            return (value,) if access.vector else value
        columns = np.ascontiguousarray(data.view(kind).T)
        return tuple(columns[:, 0]) if uniform else tuple(columns)

    def store(self, agent: Agent, at: Any, value: Any, access: Access) -> None:
        """LLVM's store: `value` as `load` gives it. Of lanes that write to one place one wins."""
        kind, lanes = KINDS[access.kind], len(agent.lanes)
        parts = value if access.vector else (value,)
        block = np.empty((lanes, access.count), kind)
        for i, part in enumerate(parts):
            block[:, i] = part
        data = block.view(np.uint8)
        at = np.ascontiguousarray(np.broadcast_to(at, (lanes,)), np.int64)
        if access.space == "shared":
            self._shared_store(agent, at, data, access)
        else:
            self.globals.store(self, agent, at, data, access)

    def _shared_load(self, agent: Agent, at: Numbers, total: int, access: Access) -> Bytes:
        at, good = self._reach(agent, self.shared, at - SHARED_BASE, total, access.align)
        shared = self.shared
        if self.counts is not None:
            self.counts.shared(agent, access.inst, at, total, write=False)
        if shared.shadow is not None:
            team, places = self.order.team(agent.lanes), self._granules(at, total)
            if len(at) == 1:
                places = np.broadcast_to(places, (team.size, places.shape[1]))
            elif good is not None and good.any():
                team, places = self.order.team(agent.lanes[good]), places[good]
            if good is None or good.any():
                shared.shadow.read(agent, team, places, access.inst)
        data = shared.storage.gather(at, total)
        if good is not None:
            data[~good] = 0
        return data

    def _shared_store(self, agent: Agent, at: Numbers, data: Bytes, access: Access) -> None:
        shared, total = self.shared, data.shape[1]
        at, good = self._reach(agent, shared, at - SHARED_BASE, total, access.align)
        lanes = agent.lanes
        if self.counts is not None:
            self.counts.shared(agent, access.inst, at, total, write=True)
        if good is not None:
            if not good.any():
                return
            lanes, at, data = lanes[good], at[good], data[good]
        self._put(agent, shared, self.order.team(lanes), at, data)

    def _put(
        self,
        agent: Agent,
        shared: SharedMemory,
        team: Team,
        at: Numbers,
        data: Bytes,
        columns: Numbers | None = None,
    ) -> None:
        """Writes of threads, or of the engines that they start."""
        storage, total = shared.storage, data.shape[1]
        several = False
        if shared.shadow is not None:
            several = shared.shadow.write(
                agent,
                team,
                self._granules(at, total),
                agent.inst,
                lambda: self.harmless(agent.inst, storage, at, data),
                columns,
            )
        storage.scatter(at, data)
        if several:
            lost = self.lost(agent.inst, storage, at, data)
            if lost.any():
                name, index = self._place(agent, shared, int(at[lost][0]))
                update = is_update(agent.inst, self.updates)
                tell_several(agent, name, index, team.lanes[lost], update)

    def harmless(
        self, inst: Inst | None, storage: Storage, at: Numbers, data: Bytes
    ) -> NDArray[np.bool_]:
        """By lane, before a write: whether it is what is there already, not computed from that."""
        if is_update(inst, self.updates):
            return np.zeros(len(at), np.bool_)
        return ~storage.differs(at, data)

    def lost(
        self, inst: Inst | None, storage: Storage, at: Numbers, data: Bytes
    ) -> NDArray[np.bool_]:
        """By lane, after a write in which several wrote to one place: whether what it wrote, or
        added to what was there, is not kept."""
        if not is_update(inst, self.updates):
            return storage.differs(at, data)
        places, number = np.unique(at, return_inverse=True)
        several: NDArray[np.bool_] = (np.bincount(number, minlength=len(places)) > 1)[number]
        return several

    # --- warps ---

    def warp_read(self, agent: Agent, at: Any, size: int = 16) -> Bytes:
        """ldmatrix: the `size` bytes at every lane's address (lanes, size), which go to all lanes
        of its warp."""
        at = np.ascontiguousarray(agent.full(at), np.int64)
        shared = self.shared
        at, good = self._reach(agent, shared, at - SHARED_BASE, size, size)
        if self.counts is not None:
            self.counts.shared(agent, agent.inst, at, size, write=False)
        if shared.shadow is not None:
            team = self.order.team(agent.lanes)
            shared.shadow.warp_read(agent, team, self._granules(at, size), agent.inst)
        data = shared.storage.gather(at, size)
        if good is not None:
            data[~good] = 0
        return data

    def warp_write(self, agent: Agent, at: Any, data: Bytes) -> None:
        """stmatrix: `data` (lanes, size) to every lane's address."""
        at = np.ascontiguousarray(agent.full(at), np.int64)
        size = data.shape[1]
        at, good = self._reach(agent, self.shared, at - SHARED_BASE, size, size)
        if self.counts is not None:
            self.counts.shared(agent, agent.inst, at, size, write=True)
        lanes = agent.lanes
        if good is not None:
            lanes, at, data = lanes[good], at[good], data[good]
        if len(at):
            self._put(agent, self.shared, self.order.team(lanes), at, np.ascontiguousarray(data))

    # --- engines ---

    def engine_read(
        self,
        agent: Agent,
        at: Any,
        size: int,
        column: Any,
        issuers: Any = None,
        buffer: str = "",
    ) -> Bytes:
        """What an engine reads: `size` bytes at each of n addresses (n, size). `column`: the
        engine, which all `issuers` (threads; None: the agent's) start; an array: one engine for
        each address, started by the thread of the same place in `issuers`. `buffer`: what it reads,
        where the record has several."""
        at = np.ascontiguousarray(at, np.int64)
        team = self.order.team(agent.lanes if issuers is None else issuers)
        if not len(at):
            return np.zeros((0, size), np.uint8)
        if at[0] >= _GLOBAL:
            return self.globals.engine_read(self, agent, at, size, column, team)
        shared = self._block_of(at)
        offsets = (at & _INSIDE) - SHARED_BASE
        at, good = self._reach(agent, shared, offsets, size, _align(size), buffer)
        if shared.shadow is not None:
            if np.ndim(column):
                # Only what reads through the generic proxy has an engine for each thread.
                shared.shadow.read(agent, team, self._granules(at, size), agent.inst)
            else:
                places = self._cover(at, size)
                shared.shadow.engine_read(agent, team, int(column), places, agent.inst)
        if self.counts is not None:
            self.counts.engine(agent.inst, "shared read", size * len(at))
        data = shared.storage.gather(at, size)
        if good is not None:
            data[~good] = 0
        return data

    def engine_write(
        self, agent: Agent, at: Any, data: Bytes, column: Any, issuers: Any = None
    ) -> None:
        """As `engine_read`: write `data` (n, size)."""
        at, data = np.ascontiguousarray(at, np.int64), np.ascontiguousarray(data)
        team = self.order.team(agent.lanes if issuers is None else issuers)
        if not len(at):
            return
        if at[0] >= _GLOBAL:
            self.globals.engine_write(self, agent, at, data, column, team)
            return
        size = data.shape[1]
        shared = self._block_of(at)
        at, good = self._reach(agent, shared, (at & _INSIDE) - SHARED_BASE, size, _align(size))
        if good is not None:
            if not good.any():
                return
            if np.ndim(column):
                team, column = self.order.team(team.lanes[good]), column[good]
            at, data = at[good], data[good]
        if self.counts is not None:
            self.counts.engine(agent.inst, "shared write", data.size)
        if np.ndim(column):
            self._put(agent, shared, team, at, data, np.asarray(column))
            return
        if shared.shadow is not None:
            places = self._cover(at, size)
            shared.shadow.engine_write(agent, team, int(column), places, agent.inst)
        shared.storage.scatter(at, data)

    def peer_read(self, agent: Agent, at: Any, size: int) -> Bytes:
        """`ld.shared::cluster`: the `size` bytes at every lane's address (lanes, size), in the
        shared memory of the blocks that the addresses name (`at_block`)."""
        at = np.ascontiguousarray(agent.full(at), np.int64)
        out = np.zeros((len(at), size), np.uint8)
        ranks = at >> _RANK
        for rank in np.unique(ranks):
            mine = ranks == rank
            shared = self._block_of(at[mine])
            inside = (at[mine] & _INSIDE) - SHARED_BASE
            inside, good = self._reach(agent, shared, inside, size, size)
            if shared.shadow is not None:
                team = self.order.team(agent.lanes[mine])
                shared.shadow.read(agent, team, self._granules(inside, size), agent.inst)
            data = shared.storage.gather(inside, size)
            if good is not None:
                data[~good] = 0
            out[mine] = data
        return out

    # --- places ---

    def _block_of(self, at: Numbers) -> SharedMemory:
        rank = int(at[0]) >> _RANK
        return self.cluster[rank - 1].shared if 0 < rank <= len(self.cluster) else self.shared

    def _granules(self, at: Numbers, size: int) -> Numbers:
        """(n, k): the granules of the `size` bytes at each offset."""
        first = (at >> self._shift)[:, None]
        count = max(size >> self._shift, 1)
        return first if count == 1 else first + np.arange(count)

    def _cover(self, at: Numbers, size: int) -> Granules:
        """The granules of all pieces, as a range where they fill one."""
        low = int(at.min())
        if int(at.max()) + size - low == size * len(at):
            return slice(low >> self._shift, -(-(low + size * len(at)) >> self._shift))
        return self._granules(at, size).ravel()

    def _reach(
        self,
        agent: Agent,
        shared: SharedMemory,
        at: Numbers,
        size: int,
        align: int,
        buffer: str = "",
    ) -> tuple[Numbers, NDArray[np.bool_] | None]:
        """The offsets, moved inside where they are not, and which were inside (None: all).
        `buffer`: where they belong, if the record does not say it."""
        inst = agent.inst
        name = buffer or (inst.buffer if inst is not None else "")
        low, high = shared.places.bounds.get(name, (0, shared.size))
        if align > 1 and int(np.bitwise_or.reduce(at)) & (align - 1) and self.checks:
            self._misaligned(agent, shared, at, align)
        if int(at.min()) >= low and int(at.max()) + size <= high:
            return at, None
        good = (at >= low) & (at + size <= high)
        bad = at[~good]
        agent.block.report(
            agent,
            "out of bounds",
            shared.places.outside(int(bad[0]), size, name, shared.size),
            *here(inst),
            buffer=name,
            indices=shared.places.beyond(bad[:MOST_NAMED].tolist(), name),
            threads=threads_at(agent, at, ~good),
        )
        return np.where(good, at, low), good

    def _misaligned(self, agent: Agent, shared: SharedMemory, at: Numbers, align: int) -> None:
        bad = at & (align - 1) != 0
        name, index = self._place(agent, shared, int(at[bad][0]))
        agent.block.report(
            agent,
            "misaligned access",
            f"the address {int(at[bad][0]) + SHARED_BASE:#x} in shared memory is not a multiple of "
            f"{align}",
            *here(agent.inst),
            buffer=name,
            indices=[index] if index is not None else [],
            threads=threads_at(agent, at, bad),
        )

    def _place(self, agent: Agent, shared: SharedMemory, offset: int) -> tuple[str, Index | None]:
        return shared.places.find(offset, agent.inst.buffer if agent.inst is not None else "")

    def _tell(self, agent: Agent, conflicts: list[Conflict]) -> None:
        clocks = self.order.clocks
        tell(
            agent,
            clocks,
            conflicts,
            lambda granule: self._place(agent, self.shared, granule << self._shift),
        )


def _lanes(at: Any) -> Numbers:
    return np.atleast_1d(np.asarray(at, np.int64))


def _align(size: int) -> int:
    """What an engine's pieces must be aligned to."""
    return min(size & -size, 16)
