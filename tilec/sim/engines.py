"""The asynchronous engines of a block: cp.async, TMA, and wgmma's reads of shared memory.

What they do happens at once when it is issued; when it is visible is a matter of the clocks: an
engine's accesses have its column (see `order`), and who waits for a group, or for the phase of an
mbarrier that counts the bytes, has the column behind it from there on. Whoever looks earlier, or
changes what is still being read, is reported by whoever checks that access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.instr.instruction import MatrixInstruction
from tilec.ir.llvm import Inst
from tilec.ir.loc import UNKNOWN, Loc
from tilec.ir.ops import atomicrmw
from tilec.ir.semantics import numpy_dtype
from tilec.ir.types import TFLOAT32
from tilec.sim.barriers import PEER_READ, PEER_WRITE, SENT, Barriers
from tilec.sim.buffers import at_block, inside
from tilec.sim.clocks import Clock, Ints
from tilec.sim.intrinsics import round_tf32
from tilec.sim.matrices import WARPS, product
from tilec.sim.memory import BlockMemory
from tilec.sim.tensors import ALIGNMENT, PIECE, Box, TensorMap, box_at
from tilec.sim.threads import BlockInfo, Threads
from tilec.sim.undefined import Flight, in_flight, is_undefined, settled, touched, waited
from tilec.sim.waits import check_published

_QUIET_NAN = np.uint32(0x7FFFE000)


class Groups:
    """The times at which a thread (or warpgroup) has committed its groups."""

    def __init__(self, owners: int) -> None:
        self.times = np.zeros((owners, 8), np.int64)
        self.count = np.zeros(owners, np.int64)

    def commit(self, owners: Ints, time: int) -> None:
        if self.count[owners].max(initial=0) >= self.times.shape[1]:
            self.times = np.pad(self.times, ((0, 0), (0, self.times.shape[1])))
        self.times[owners, self.count[owners]] = time
        self.count[owners] += 1

    def done(self, owners: Ints, pending: int) -> Ints:
        """Of each the time of the youngest group that is done when at most `pending` are not; 0
        where there is none."""
        last = self.count[owners] - pending - 1
        found: Ints = np.where(last >= 0, self.times[owners, np.maximum(last, 0)], 0)
        return found


class Engines:
    """The engines of one block. `maps`: the tensor maps of the launch."""

    def __init__(
        self, block: BlockInfo, memory: BlockMemory, barriers: Barriers, maps: Sequence[TensorMap]
    ) -> None:
        self.block, self.memory, self.barriers, self.maps = block, memory, barriers, maps
        warpgroups = -(-block.threads // (WARPS * block.warp_size))
        self._copies = Groups(block.threads)
        self._copy_columns = np.full(block.threads, -1, np.int64)
        self._stores = Groups(block.threads)
        self._unread: dict[int, tuple[int, Inst | None]] = {}  # thread -> its last store
        self._products = Groups(warpgroups)
        self._issued: dict[tuple[int, int], Clock] = {}  # (warpgroup, time) -> its threads
        # (warpgroup, time) -> a product, and what is in the registers that it reads as it goes
        self._held: dict[tuple[int, int], tuple[Inst | None, str, set[bytes]]] = {}

    # --- cp.async ---

    def _columns(self, lanes: Ints) -> Ints:
        found = self._copy_columns[lanes]
        for lane in lanes[found < 0].tolist():
            self._copy_columns[lane] = self.block.order.engine(("cp.async", lane), generic=True)
        columns: Ints = self._copy_columns[lanes]
        return columns

    def cp_async(
        self, active: Threads, dest: Any, source: Any, bytes: int, valid: Any = None
    ) -> None:
        """See `Machine.cp_async`. Where fewer than `bytes` are read, threads are taken together
        that read as many."""
        memory, lanes = self.memory, active.lanes
        source, columns = active.full(source), self._columns(lanes)
        data = np.zeros((len(lanes), bytes), np.uint8)
        sizes = active.full(bytes if valid is None else valid)
        if (source[sizes > 0] % bytes).any():
            message = f"cp.async of {bytes} bytes from an address that is not a multiple of them"
            active.report("misaligned access", message)
        for size in np.unique(np.clip(sizes, 0, bytes)).tolist():
            mine = np.clip(sizes, 0, bytes) == size
            if size:
                got = memory.engine_read(
                    active, source[mine], size, columns[mine], lanes[mine], space="global"
                )
                data[mine, :size] = got
        memory.engine_write(active, active.full(dest), data, columns, lanes)

    def cp_async_commit(self, active: Threads) -> None:
        self._copies.commit(active.lanes, self.block.order.mark())

    def cp_async_wait(self, active: Threads, pending: int) -> None:
        times = self._copies.done(active.lanes, pending)
        if times.any():
            self.block.order.learn(active.lanes, self._columns(active.lanes), times)

    # --- TMA ---

    def _map(self, number: Any) -> TensorMap:
        found: TensorMap = self.maps[int(np.atleast_1d(number)[0])]
        return found

    def tma_load(
        self,
        active: Threads,
        dest: Any,
        map: Any,
        corner: Sequence[Any],
        barrier: Any,
        blocks: Any = None,
    ) -> None:
        """See `Machine.tma_load`."""
        kind = self._map(map)
        columns = [active.full(x) for x in (dest, barrier, *corner)]
        masks = None if blocks is None else active.full(blocks)
        for i, lane in enumerate(active.lanes.tolist()):
            place, gate, *at = (int(c[i]) for c in columns)
            mask = None if masks is None else int(masks[i])
            self._load_box(active, lane, kind, place, gate, at, mask)

    def _load_box(
        self,
        active: Threads,
        lane: int,
        kind: TensorMap,
        place: int,
        gate: int,
        at: Sequence[int],
        mask: int | None,
    ) -> None:
        memory, issuer = self.memory, np.array([lane])
        box = box_at(kind, at)
        self._check_begin(active, box, place, False)
        data = np.zeros((box.bytes // box.row_bytes, box.row_bytes), np.uint8)
        ranks: list[int | None] = [None]
        if mask is not None:
            ranks = [r for r in range(mask.bit_length()) if mask >> r & 1]
        for number, rank in enumerate(ranks):
            if rank is not None and rank >= len(self.barriers.cluster):
                active.report("out of bounds", f"multicast to block {rank}, not in the cluster")
                continue
            peer = self.barriers if rank is None else self.barriers.cluster[rank]
            column = peer.block.order.engine(("mbarrier", gate))
            if number == 0 and len(box.at):
                size = box.inside.stop - box.inside.start
                got = memory.engine_read(active, box.at, size, column, issuer, space="global")
                data[box.numbers, box.inside] = got
                if kind.dtype == TFLOAT32:
                    data = _rounded(data)
            places = box.places(place)
            if rank is not None:
                places = at_block(places, rank)
            memory.engine_write(active, places, data.reshape(-1, PIECE), column, issuer)
            self._complete(active, peer, gate, "a TMA load", box.bytes, column)

    def _complete(
        self, active: Threads, peer: Barriers, gate: int, what: str, bytes: int, column: int
    ) -> Clock | None:
        """Let the mbarrier of a copy, which must know of it, count its bytes; gives what the engine
        has done by then, None where there is no mbarrier."""
        b = peer.find(active, gate)
        if b is None:
            return None
        if not b.fenced:
            message = (
                f"{what} completes on {b}, whose initialisation no fence has made visible to it"
            )
            active.report("missing proxy fence", message, b.inst)
            b.fenced = True
        clock = self.block.order.completion(column)
        peer.complete(active, b, bytes, clock, column)
        return clock

    def _check_begin(self, active: Threads, box: Box, place: int, store: bool) -> None:
        """Report a box that a GPU ends at with an illegal instruction."""
        if place % ALIGNMENT:
            message = f"a box at {place:#x}, not a multiple of {ALIGNMENT}"
            active.report("misaligned access", message)
        if box.begin % PIECE:
            active.report(
                "misaligned access",
                f"a box {box.begin} bytes behind the begin of a row, not a multiple of {PIECE}",
            )
        if store and box.before:
            active.report("out of bounds", "a store by TMA that begins before the tensor")

    def tma_store(
        self,
        active: Threads,
        map: Any,
        corner: Sequence[Any],
        source: Any,
        where: Any = None,
        reduction: str = "",
    ) -> None:
        """See `Machine.tma_store`. The reads of shared memory and the writes of the tensor have a
        column each, since `wait_group.read` waits for the former only."""
        kind = self._map(map)
        columns = [active.full(x) for x in (source, *corner)]
        acts = np.ones(len(active.lanes), np.bool_) if where is None else active.full(where)
        memory, order = self.memory, self.block.order
        for i in np.flatnonzero(acts).tolist():
            lane, issuer = int(active.lanes[i]), active.lanes[i : i + 1].copy()
            place, *at = (int(c[i]) for c in columns)
            box = box_at(kind, at)
            self._check_begin(active, box, place, True)
            column = order.engine(("tma store", lane))
            got = memory.engine_read(active, box.places(place), PIECE, column, issuer)
            rows = got.reshape(-1, box.row_bytes)[box.numbers, box.inside]
            if rows.size:
                out = order.engine(("tma store", lane, "out"))
                rows = np.ascontiguousarray(rows)
                if reduction:
                    elements = rows.view(numpy_dtype(kind.dtype))
                    how = atomicrmw(reduction, kind.dtype)
                    memory.engine_atomic(active, box.at, elements, out, issuer, how)
                else:
                    memory.engine_write(active, box.at, rows, out, issuer, space="global")
                if box.spilled:
                    name, last = kind.tensor.name, kind.sizes[0]
                    active.report(
                        "out of bounds",
                        f"TMA stores whole 16 bytes: rows of {name} have {last} elements, and the "
                        f"{box.spilled} bytes behind them are written too",
                    )
            self._unread[lane] = order.mark(), active.inst

    def tma_store_commit(self, active: Threads) -> None:
        self._stores.commit(active.lanes, self.block.order.mark())

    def tma_store_wait(self, active: Threads, pending: int, read: bool) -> None:
        order = self.block.order
        times = self._stores.done(active.lanes, pending)
        for lane, time in zip(active.lanes.tolist(), times.tolist()):
            if not time or lane not in self._unread:
                continue
            one = np.array([lane])
            order.learn(one, order.engine(("tma store", lane)), time)
            if not read:
                order.learn(one, order.engine(("tma store", lane, "out")), time)
            if self._unread[lane][0] < time:
                del self._unread[lane]

    # --- wgmma ---

    def wgmma(
        self,
        active: Threads,
        instr: MatrixInstruction,
        a: Sequence[Sequence[Any]],
        b: Sequence[Any],
        c: Sequence[Any] | None,
        *,
        a_transposed: bool = False,
        b_transposed: bool = False,
        keep: Any = 1,
        metadata: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        """See `Machine.wgmma`. A product begins when the last of the four warps has come to it, so
        who has waited for it has behind it what all of them did before."""
        order = self.block.order
        teams = self._warpgroups(active)
        columns = [order.engine(("wgmma", g)) for g in teams]
        a = [tuple(map(touched, part)) for part in a]
        sums = None if c is None else tuple(map(settled, c))
        made = product(
            active, self.memory, columns, instr, a, b, sums, (a_transposed, b_transposed), keep,
            metadata,
        )  # fmt: skip
        times: dict[int, int] = {}
        for g, lanes in teams.items():
            clock = order.release(lanes)
            times[g] = order.mark()
            self._products.commit(np.array([g]), times[g])
            self._issued[g, times[g]] = clock
        if not self.memory.checks:
            return made
        inst = active.inst
        held = [*(w for part in a if len(a[0]) > 1 for w in part), *metadata]
        for g, words in self._by_group(active, teams, held).items():
            self._held[g, times[g]] = inst, instr.name, words

        def touch(read: Loc) -> None:
            now = active.block.executing
            first = read if read is not UNKNOWN or now is None else now.loc
            self.block.report(
                active,
                "operand in flight",
                f"the accumulator of {instr.name} is used before its product has been waited for",
                first,
                inst.loc if inst is not None else UNKNOWN,
                buffer=now.buffer if now is not None else "",
            )

        return in_flight(made, Flight(times, touch))

    def wgmma_wait(
        self, active: Threads, pending: int, registers: Sequence[Any]
    ) -> tuple[Any, ...]:
        order = self.block.order
        done: dict[int, int] = {}
        teams = self._warpgroups(active)
        named = self._by_group(active, teams, registers) if self._held else {}
        for g, lanes in teams.items():
            done[g] = time = int(self._products.done(np.array([g]), pending)[0])
            if not time:
                continue
            order.learn(lanes, order.engine(("wgmma", g)), time)
            issued = self._issued.get((g, time))  # None: that is behind them already
            if issued is not None:
                order.acquire(lanes, issued)
            for key in [k for k in self._issued if k[0] == g and k[1] < time]:
                del self._issued[key]
            for key in [k for k in self._held if k[0] == g and k[1] <= time]:
                self._held[key][2].difference_update(named.get(g, ()))
                if not self._held[key][2]:
                    del self._held[key]
        return tuple(waited(x, done) for x in registers)

    def _by_group(
        self, active: Threads, teams: Mapping[int, Ints], registers: Sequence[Any]
    ) -> dict[int, set[bytes]]:
        """What is in registers of 32 bits, for each warpgroup that has some."""
        whole = (active.full(settled(x)) for x in registers if not is_undefined(x))
        words = [np.asarray(x) for x in whole if x.dtype.itemsize == 4]
        of = {g: np.isin(active.lanes, lanes) for g, lanes in teams.items()} if words else {}
        return {g: {x[mine].tobytes() for x in words} for g, mine in of.items()}

    def _warpgroups(self, active: Threads) -> dict[int, Ints]:
        """The threads of each warpgroup, which must all be here."""
        size = WARPS * self.block.warp_size
        if len(active.lanes) == size and active.lanes[-1] - active.lanes[0] == size - 1:
            return {int(active.lanes[0]) // size: active.lanes}
        of = active.lanes // size
        found = {int(g): active.lanes[of == g] for g in np.unique(of)}
        for g, lanes in found.items():
            if len(lanes) != size:
                message = f"{len(lanes)} of the {size} threads of warpgroup {g} come to wgmma"
                active.report("barrier divergence", message)
        return found

    # --- other blocks ---

    def cluster_load(
        self, active: Threads, address: Any, block: Any, words: int
    ) -> tuple[Any, ...]:
        """See `Machine.cluster_load`."""
        ranks = self._ranks(active, block, "a load from")
        places = at_block(active.full(address).astype(np.int64), ranks)
        data = self.memory.peer_read(active, places, 4 * words)
        time = self.block.order.mark()
        for other in np.unique(ranks).tolist():
            self._check_published(active, other, places[ranks == other], 4 * words)
            for instr in (active.lanes[ranks == other] + self.block.order.base).tolist():
                self.barriers.cluster[other].visit(active, instr, time, PEER_READ)
        return tuple(np.ascontiguousarray(data.view(np.int32).T))

    def cluster_store(
        self, active: Threads, address: Any, block: Any, words: Sequence[Any], bytes: int
    ) -> None:
        """See `Machine.cluster_store`."""
        ranks = self._ranks(active, block, "a store to")
        places = at_block(active.full(address).astype(np.int64), ranks)
        columns = [active.full(w).astype(np.int32) for w in words]
        data = np.ascontiguousarray(np.stack(columns, -1)).view(np.uint8)[:, :bytes]
        self.memory.peer_write(active, places, np.ascontiguousarray(data))
        time = self.block.order.mark()
        for other in np.unique(ranks).tolist():
            peer = self.barriers.cluster[other]
            if peer is self.barriers:
                continue
            self.memory.cluster[other].shared.published = peer.published
            for row in (active.lanes[ranks == other] + self.block.order.base).tolist():
                peer.visit(active, row, time, PEER_WRITE)

    def cluster_send(
        self, active: Threads, source: Any, dest: Any, barrier: Any, block: Any, bytes: int
    ) -> None:
        """See `Machine.cluster_send`."""
        ranks = self._ranks(active, block, "a copy to")
        columns = [active.full(x).astype(np.int64) for x in (source, dest, barrier)]
        pieces = np.arange(0, bytes, PIECE)
        for i, lane in enumerate(active.lanes.tolist()):
            (at, there, gate), rank = (int(c[i]) for c in columns), int(ranks[i])
            if at % PIECE or there % PIECE:
                active.report("misaligned access", "a bulk copy from or to no multiple of 16 bytes")
            peer, issuer = self.barriers.cluster[rank], np.array([lane])
            column = peer.block.order.engine(("mbarrier", gate))
            data = self.memory.engine_read(active, at + pieces, PIECE, column, issuer)
            places = at_block(there + pieces, rank)
            self.memory.engine_write(active, places, data, column, issuer)
            clock = self._complete(active, peer, gate, "a bulk copy", bytes, column)
            if clock is not None:
                self.barriers.visit(active, column, int(clock.seen[column]), SENT)

    def _ranks(self, active: Threads, block: Any, what: str) -> Any:
        """The blocks that threads name; those that are in the cluster."""
        ranks = active.full(block)
        most = len(self.barriers.cluster) - 1
        if ((ranks < 0) | (ranks > most)).any():
            active.report("out of bounds", f"{what} a block outside of the cluster")
        return np.clip(ranks, 0, most)

    def _check_published(self, active: Threads, rank: int, places: Any, size: int) -> None:
        shadow = self.memory.cluster[rank].shared.shadow
        if self.barriers.cluster[rank] is self.barriers or shadow is None:
            return
        check_published(active, self.barriers.published, shadow, inside(places), size)

    # --- the end ---

    def finish(self) -> None:
        """The block ends: its TMA stores must have read shared memory."""
        for lane, (_, inst) in self._unread.items():
            self.block.report(
                None,
                "read before wait",
                "the block ends before its TMA store has been waited for",
                *([inst.loc] if inst else []),
                buffer=inst.buffer if inst else "",
                threads=[lane],
            )
        self._unread.clear()
        for loc, name in {(x[0].loc if x[0] else UNKNOWN, x[1]) for x in self._held.values()}:
            self.block.report(
                None,
                "operand in flight",
                f"no wait for {name} names the registers that it reads: others may have been put "
                "there before it has ended",
                loc,
            )
        self._held.clear()


def _rounded(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """float32 as a map of TF32 brings it to shared memory (see
    `tilec.ir.instr.memory.TMA_CONVERSIONS`)."""
    rounded: NDArray[Any] = round_tf32(data.view(np.float32), _QUIET_NAN)
    return rounded.view(np.uint8)
