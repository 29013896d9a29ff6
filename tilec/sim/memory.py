"""The memory that a block sees: its own shared memory, that of its cluster, and the tensors.

Every access is checked, happens, and is counted. Out of bounds a read gives zeros and a write is
dropped; that, an address that is not aligned, a read of what nobody wrote and an access that
nothing orders are findings, and execution goes on. Addresses: see `SHARED_BASE`, `at_block` and
`tilec.sim.tensors`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.llvm import Inst
from tilec.ir.loc import Loc
from tilec.ir.semantics import numpy_dtype
from tilec.ir.types import DType
from tilec.sim.buffers import INSIDE_BLOCK, RANK_BITS, SharedBuffer
from tilec.sim.clocks import Ints, Order
from tilec.sim.counts import Counts
from tilec.sim.faults import tell_several
from tilec.sim.numbers import KINDS, through_unsigned
from tilec.sim.program import LoadStore
from tilec.sim.regions import GlobalMemory, Region, SharedMemory
from tilec.sim.shadow import Actors
from tilec.sim.tensors import Bytes, Storage
from tilec.sim.threads import Threads
from tilec.sim.trace import Tracer

Updates = frozenset[tuple[Loc, str]]
"""Statements, and the buffers that they store to."""

Regions = Sequence[tuple[Region, Ints | None]]
"""Those that an access acts in, and which of its addresses are there (None: all)."""


class BlockMemory:
    """What one block of a cluster can address.

    `shared_bytes`: size of its shared memory; `granule`: the narrowest access to it, in bytes;
    `cluster`: the memories of the cluster's blocks by rank, filled as they are made. `counts`: of
    what accesses cost (None: nothing is counted). `checks` False: nothing is checked but bounds,
    and nothing is reported but those. `updates`: stores that are a fault also where another thread
    stores the same value. `tracer` is told of what is written, and `step` says what time it is."""

    def __init__(
        self,
        order: Order,
        globals: GlobalMemory,
        shared_bytes: int,
        buffers: Sequence[SharedBuffer] = (),
        *,
        granule: int = 1,
        cluster: list[BlockMemory] | None = None,
        counts: Counts | None = None,
        checks: bool = True,
        seed: int = 0,
        updates: Updates = frozenset(),
        tracer: Tracer | None = None,
        step: Callable[[], int] = int,
    ) -> None:
        self.order, self.globals, self.checks = order, globals, checks
        self.counts, self.updates, self.tracer, self.step = counts, updates, tracer, step
        self.cluster = [] if cluster is None else cluster
        self.cluster.append(self)
        self.shared = SharedMemory(shared_bytes, buffers, order.clocks, granule, checks, seed)
        self._own: Regions = [(self.shared, None)]

    # --- threads ---

    def load(self, active: Threads, at: Any, access: LoadStore) -> Any:
        """The value that LLVM's load gives: one per lane, or one for all where `at` is one; a tuple
        of `access.count` of them for a vector."""
        uniform = np.ndim(at) == 0
        at = np.atleast_1d(np.asarray(at, np.int64))
        total = access.bytes * access.count
        self._count(active, access.space, at, total, "read")
        words = access.kind == "i32"
        regions = self._space(active, at, access)
        data = self._read(regions, self._threads(active), at, total, access.align, words=words)
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
        at = np.ascontiguousarray(active.full(at), np.int64)
        self._count(active, access.space, at, data.shape[1], "written")
        regions = self._space(active, at, access)
        self._write(regions, self._threads(active), at, data, access.align)

    def warp_read(self, active: Threads, at: Any, size: int = 16) -> Bytes:
        """ldmatrix: the `size` bytes at every lane's address (lanes, size), which go to all lanes
        of its warp."""
        at = np.ascontiguousarray(active.full(at), np.int64)
        self._count(active, "shared", at, size, "read")
        return self._read(self._own, self._threads(active, warps=True), at, size, size)

    def warp_write(self, active: Threads, at: Any, data: Bytes) -> None:
        """stmatrix: `data` (lanes, size) to every lane's address."""
        at = np.ascontiguousarray(active.full(at), np.int64)
        size = data.shape[1]
        self._count(active, "shared", at, size, "written")
        self._write(self._own, self._threads(active), at, np.ascontiguousarray(data), size)

    def peer_read(self, active: Threads, at: Any, size: int) -> Bytes:
        """`ld.shared::cluster`: the `size` bytes at every lane's address (lanes, size), in the
        shared memory of the blocks that the addresses name (`at_block`)."""
        regions, places = self._peers(active, at)
        return self._read(regions, self._threads(active), places, size, size)

    def peer_write(self, active: Threads, at: Any, data: Bytes) -> None:
        """`st.shared::cluster`: `data` (lanes, size) likewise."""
        regions, places = self._peers(active, at)
        self._write(regions, self._threads(active), places, data, data.shape[1])

    def _peers(self, active: Threads, at: Any) -> tuple[Regions, Ints]:
        """The shared memories that the lanes' addresses are in, and the addresses there."""
        at = np.ascontiguousarray(active.full(at), np.int64)
        ranks = at >> RANK_BITS
        regions = [(self._block_of(r), np.flatnonzero(ranks == r)) for r in np.unique(ranks)]
        return regions, at & INSIDE_BLOCK

    def atomic(self, active: Threads, at: Ints, value: Any, kind: str, space: str) -> Any:
        """LLVM's atomicrmw `kind`, of one thread after the other."""
        regions = self._own if space == "shared" else self.globals.regions(active, at)
        return self._atomics(active, regions, at, (value,), COMBINED[kind], kind == "xchg")

    def compare_exchange(
        self, active: Threads, at: Ints, compare: Any, value: Any, space: str
    ) -> Any:
        """LLVM's cmpxchg, of one thread after the other; gives what each has found."""
        regions = self._own if space == "shared" else self.globals.regions(active, at)
        return self._atomics(active, regions, at, (compare, value), _exchanged)

    def _atomics(
        self,
        active: Threads,
        regions: Regions,
        at: Ints,
        values: tuple[Any, ...],
        combined: Callable[..., Any],
        blind: bool = False,
        align: int = 0,
    ) -> Any:
        """What each thread has found, one after the other. Atomics never conflict with one
        another. `align`: of the places, where it is more than an element's."""
        before, dtype = np.zeros_like(values[0]), values[0].dtype
        size = dtype.itemsize
        across = self.order.clocks.across
        by = self._threads(active)
        for region, mine, pick in self._inside(regions, active, at, size, align or size):
            if region.shadow is not None:
                region.note_atomic(by.part(pick), mine, size, blind)
            with np.errstate(all="ignore"):
                for i in range(len(mine)):
                    place, n = mine[i : i + 1], i if pick is None else int(pick[i])
                    before[n] = region.storage.gather(place, size).view(dtype)[0, 0]
                    after = combined(before[n : n + 1], *(v[n : n + 1] for v in values))
                    made = np.ascontiguousarray(after.astype(dtype)).view(np.uint8)
                    region.storage.scatter(place, made.reshape(1, size))
                    self.globals.atomics += made.tobytes() != before[n].tobytes()
                    if across is not None:
                        across.atomic(self.order, int(active.lanes[n]), int(at[n]))
        return before

    def load_if(self, active: Threads, address: Any, cond: Any, size: int) -> tuple[Any, ...]:
        """See `Machine.load_if`."""
        at = np.ascontiguousarray(active.full(address), np.int64)
        on = active.full(cond) != 0
        data = np.zeros((len(at), size), np.uint8)
        if on.any():
            some = Threads(active.block, active.lanes[on])
            some.inst, where = active.inst, at[on]
            self._count(some, "global", where, size, "read")
            regions = self.globals.regions(some, where)
            words = size >= 4
            data[on] = self._read(regions, self._threads(some), where, size, size, words=words)
        if size == 1:
            return (data[:, 0].astype(np.int16),)
        return tuple(np.ascontiguousarray(data.view(np.int16 if size == 2 else np.int32).T))

    def red_add(self, active: Threads, address: Any, values: Sequence[Any], dtype: DType) -> None:
        """See `Machine.red_add`."""
        at = np.ascontiguousarray(active.full(address), np.int64)
        words = (np.ascontiguousarray(active.full(v)) for v in values)
        parts = [w.view(numpy_dtype(dtype)).reshape(len(w), -1).T for w in words]
        values = [v for part in parts for v in part]
        for n, value in enumerate(values):
            size = value.dtype.itemsize
            place = at + n * size
            regions = self.globals.regions(active, place)
            align = 0 if n else size * len(values)
            self._atomics(active, regions, place, (value,), np.add, align=align)

    def count_up(self, active: Threads, address: Any, last: Any) -> Any:
        """See `Machine.count_up`."""
        at = np.ascontiguousarray(active.full(address), np.int64)
        most = np.asarray(active.full(last)).astype(np.int32).view(np.uint32)

        def counted_up(old: Any, last: Any) -> Any:
            return np.where(old >= last, np.uint32(0), old + np.uint32(1))

        found = self._atomics(active, self.globals.regions(active, at), at, (most,), counted_up)
        return found.view(np.int32)

    def _count(self, active: Threads, space: str, at: Ints, size: int, does: str) -> None:
        if self.counts is not None:
            self.counts.threads(active, space, at, size, does)

    def _threads(self, active: Threads, warps: bool = False) -> Actors:
        return Actors(active, self.order, self.order.team(active.lanes), warps=warps)

    def _space(self, active: Threads, at: Ints, access: LoadStore) -> Regions:
        return self._own if access.space == "shared" else self.globals.regions(active, at)

    # --- engines ---

    def engine_read(
        self,
        active: Threads,
        at: Any,
        size: int,
        column: Any,
        issuers: Any = None,
        buffer: str = "",
        *,
        space: str = "shared",
    ) -> Bytes:
        """What an engine reads: `size` bytes at each of n addresses (n, size) in `space` ("shared",
        "global"), which no address tells: host memory lies at any. `column`: the
        engine, which all `issuers` (threads; None: the active ones) start; an array: one engine for
        each address, started by the thread of the same place in `issuers`. `buffer`: what it reads,
        where the record has several."""
        at = np.ascontiguousarray(at, np.int64)
        if not len(at):
            return np.zeros((0, size), np.uint8)
        regions, places, align = self._reached(active, at, size, space, "read")
        by = self._engines(active, column, issuers)
        return self._read(regions, by, places, size, align, buffer=buffer)

    def engine_write(
        self,
        active: Threads,
        at: Any,
        data: Bytes,
        column: Any,
        issuers: Any = None,
        *,
        space: str = "shared",
    ) -> None:
        """As `engine_read`: write `data` (n, size)."""
        at, data = np.ascontiguousarray(at, np.int64), np.ascontiguousarray(data)
        if not len(at):
            return
        regions, places, align = self._reached(active, at, data.shape[1], space, "written")
        self._write(regions, self._engines(active, column, issuers), places, data, align)

    def engine_atomic(
        self, active: Threads, at: Any, data: Any, column: Any, issuers: Any, kind: str
    ) -> None:
        """As `engine_write` to global memory: combine each element of `data` (n, elements of one
        address) with what is there, as LLVM's atomicrmw `kind` does."""
        size = data.dtype.itemsize * data.shape[1]
        regions, places, align = self._reached(active, at, size, "global", "written")
        by = self._engines(active, column, issuers)
        for region, mine, pick in self._inside(regions, active, places, size, align):
            if region.shadow is not None:
                region.note_atomic(by.part(pick), mine, size, False)
            old = region.storage.gather(mine, size).view(data.dtype)
            with np.errstate(all="ignore"):
                made = COMBINED[kind](old, _part(data, pick)).astype(data.dtype)
            region.storage.scatter(mine, np.ascontiguousarray(made).view(np.uint8))
            if self.tracer is not None and active.inst is not None:
                self._trace(self.tracer, active, active.inst, region, mine, size)

    def _engines(self, active: Threads, column: Any, issuers: Any) -> Actors:
        team = self.order.team(active.lanes if issuers is None else issuers)
        engines = np.asarray(column) if np.ndim(column) else int(column)
        return Actors(active, self.order, team, engines)

    def _reached(
        self, active: Threads, at: Ints, size: int, space: str, does: str
    ) -> tuple[Regions, Ints, int]:
        """The regions that an engine reaches, its addresses there, and what they must be aligned
        to."""
        if self.counts is not None:
            self.counts.engine(active.inst, space, does, size * len(at))
        if space == "global":
            return self.globals.regions(active, at), at, 1
        region = self._block_of(int(at[0]) >> RANK_BITS)
        return [(region, None)], at & INSIDE_BLOCK, min(size & -size, 16)

    def _block_of(self, rank: int) -> SharedMemory:
        """The shared memory that these upper bits of an address name."""
        return self.cluster[rank - 1].shared if 0 < rank <= len(self.cluster) else self.shared

    # --- what all accesses have in common ---

    def _inside(
        self,
        regions: Regions,
        active: Threads,
        at: Ints,
        size: int,
        align: int,
        buffer: str = "",
        words: bool = False,
    ) -> Iterator[tuple[Region, Ints, Ints | None]]:
        """Of each region: offsets of the `size` bytes that are inside, and their places in `at`
        (None: all). See `Region.reach`."""
        for region, pick in regions:
            mine, good = region.reach(
                active,
                _part(at, pick),
                size,
                align if self.checks else 1,
                buffer or active.buffer,
                words,
            )
            if good is not None:
                pick = np.flatnonzero(good) if pick is None else pick[good]
                mine = mine[good]
            if len(mine):
                yield region, mine, pick

    def _read(
        self,
        regions: Regions,
        by: Actors,
        at: Ints,
        size: int,
        align: int,
        buffer: str = "",
        words: bool = False,
    ) -> Bytes:
        """The `size` bytes at each address (n, size): one for each of the threads, or one for
        all."""
        data = np.zeros((len(at), size), np.uint8)
        for region, mine, pick in self._inside(regions, by.active, at, size, align, buffer, words):
            if region.shadow is not None:
                region.note_read(by.part(pick), mine, size)
            got = region.storage.gather(mine, size)
            if pick is None:
                return got
            data[pick] = got
        return data

    def _write(self, regions: Regions, by: Actors, at: Ints, data: Bytes, align: int) -> None:
        """Write `data` (n, size) at the addresses."""
        active, size = by.active, data.shape[1]
        update = active.inst is not None and (active.inst.loc, active.buffer) in self.updates
        for region, mine, pick in self._inside(regions, active, at, size, align):
            who, part, several = by.part(pick), _part(data, pick), False
            if region.shadow is not None:
                same = functools.partial(harmless, region.storage, mine, part, update)
                several = region.note_write(who, mine, size, same)
            region.storage.scatter(mine, part)
            gone = lost(region.storage, mine, part, update) if several else np.False_
            if gone.any():
                name, index = region.find(int(mine[gone][0]), active.buffer)
                tell_several(active, name, index, who.team.lanes[gone], update)
            if self.tracer is not None and active.inst is not None:
                self._trace(self.tracer, active, active.inst, region, mine, size)

    def _trace(
        self, tracer: Tracer, active: Threads, inst: Inst, region: Region, at: Ints, size: int
    ) -> None:
        def peek(place: int, count: int) -> bytes:
            return region.storage.gather(np.array([place - start]), count).tobytes()

        shared = isinstance(region, SharedMemory)
        # Tensors are traced by address, shared memory from where the block's begins.
        start = 0 if shared else region.start
        space = "shared" if shared else "global"
        block, step = active.block.index, self.step()
        tracer.memory_written(space, at + start, size, peek, block, inst.loc, step)


def harmless(
    storage: Storage, at: Ints, data: Bytes, update: bool, parts: int = 1
) -> NDArray[np.bool_]:
    """By lane, before a write: whether it is what is there already, not computed from that; or by
    each of so many parts of a lane's."""
    size = data.shape[1] // parts
    at = (at[:, None] + size * np.arange(parts)).ravel()
    return np.zeros(len(at), np.bool_) if update else ~storage.differs(at, data.reshape(-1, size))


def lost(storage: Storage, at: Ints, data: Bytes, update: bool) -> NDArray[np.bool_]:
    """By lane, after a write in which several wrote to one place: whether what it wrote, or added
    to what was there, is not kept."""
    if not update:
        return storage.differs(at, data)
    places, number = np.unique(at, return_inverse=True)
    several: NDArray[np.bool_] = (np.bincount(number, minlength=len(places)) > 1)[number]
    return several


def _part(x: NDArray[Any], pick: Ints | None) -> NDArray[Any]:
    return x if pick is None else x[pick]


def _exchanged(old: Any, compare: Any, value: Any) -> Any:
    return np.where(old == compare, value, old)


COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "fadd": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "xchg": lambda old, new: new,
    "umax": through_unsigned(np.maximum), "umin": through_unsigned(np.minimum),
    "fmax": np.fmax, "fmin": np.fmin,
}  # fmt: skip
"""What LLVM's atomicrmw makes of what is there and what it is given."""
