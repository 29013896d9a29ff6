"""Global memory: the caller's arrays, in which the kernel's loads and stores act in place."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.sim.machine.tensors import (
    TENSOR_SPACING,
    Bytes,
    Elements,
    GlobalTensor,
    Restorable,
    Storage,
)
from tilec.sim.machine.threads import Threads
from tilec.sim.program.records import LoadStore
from tilec.sim.races.clocks import ClockRows, Ints, Known
from tilec.sim.races.global_shadow import GlobalShadow
from tilec.sim.races.updates import Observer
from tilec.sim.reports.faults import Conflict, tell, threads_at
from tilec.sim.reports.findings import Findings, Index

_CHUNK = 1 << 20  # elements that are looked at together in the end
_NAMED = 8  # elements of a finding


class _Tensor:
    """A tensor with its history. `elements`: where it has elements, if that is not everywhere from
    the lowest to the highest; None: everywhere, or nobody asks."""

    def __init__(self, tensor: GlobalTensor, checks: bool, keep: bool) -> None:
        self.tensor = tensor
        self.storage = Restorable(tensor.memory) if keep else Storage(tensor.memory)
        # What is at byte 0 of the memory.
        self.start = tensor.address - tensor.first
        self.granule = tensor.itemsize & -tensor.itemsize
        self._each = tensor.itemsize // self.granule  # granules of an element
        # Of memory that other tensors have a part of: from where on its bytes are numbered.
        self._common: int | None = None
        self.elements: Elements | None = None
        self.count = len(tensor.memory) // self.granule
        if checks and 0 not in tensor.shape:
            elements = Elements(tensor.shape, tensor.strides)
            if elements.gaps:
                self.elements, self.count = elements, elements.count * self._each
        self.shadow = GlobalShadow(self.count) if checks and tensor.written else None

    def find(self, offset: int) -> tuple[str, Index | None]:
        """Name and element of the byte at an offset."""
        return self.tensor.name, self.tensor.index_of(self.start + offset)

    @property
    def place(self) -> int:
        """Where its memory begins."""
        return int(self.tensor.memory.ctypes.data)

    def share(self, shadow: GlobalShadow, start: int, granule: int) -> None:
        """Have one history with other tensors, by bytes from `start` on."""
        self.shadow, self._common, self.granule = shadow, self.place - start, granule

    def name_granule(self, granule: int) -> tuple[str, Index | None]:
        """Name and element of a granule."""
        if self._common is not None:
            return self.find(granule * self.granule - self._common)
        if self.elements is None:
            return self.find(granule * self.granule)
        return self.find(self.elements.place(granule // self._each) * self.tensor.itemsize)

    def granules(self, at: Ints, size: int) -> Ints:
        """(n, k): the granules of the `size` bytes at each offset, numbered without the gaps."""
        if self._common is not None:
            first = (at + self._common) // self.granule
            return first[:, None] + np.arange(max(size // self.granule, 1))
        first = at // self.granule
        if self.elements is not None:
            places = first if self._each == 1 else first // self._each
            numbers, _ = self.elements.numbers(places)
            first = numbers if self._each == 1 else numbers * self._each + first % self._each
        count = max(size // self.granule, 1)
        if count == 1:
            return first[:, None]
        every: Ints = first[:, None] + np.arange(count)
        return every if self.elements is None else np.minimum(every, self.count - 1)

    def inside(self, at: Ints, size: int) -> NDArray[np.bool_]:
        """Which of the `size` bytes at each offset begin and end in an element."""
        good: NDArray[np.bool_] = (at >= 0) & (at + size <= self.storage.size)
        if self.elements is not None:
            first = np.where(good, at, 0)
            item = self.tensor.itemsize
            for place in (first, first + size - 1) if size > item else (first,):
                last = np.minimum(place, self.storage.size - 1)
                good &= self.elements.numbers(last // item)[1]
        return good

    def unwritten(self) -> tuple[int, int, list[int]]:
        """How many elements nobody has written, of how many, and the offsets of some."""
        missing, total, named = 0, 0, list[int]()
        for start in range(0, self.count, _CHUNK * self._each):
            numbers = np.arange(start, min(start + _CHUNK * self._each, self.count), self._each)
            numbers //= self._each
            places = numbers
            if self.elements is not None:
                numbers = numbers[self.elements.exist(numbers)]
                places = self.elements.place(numbers)
            at = places * self.tensor.itemsize
            if self.shadow is not None:
                at = at[~self.shadow.written(self.granules(at, 1)[:, 0])]
            total += len(places)
            missing += len(at)
            named += at[: _NAMED - len(named)].tolist()
        return missing, total, named


def _share(tensors: Sequence[_Tensor]) -> None:
    """Give tensors whose memory overlaps one history, if one of them is written: a call may pass
    parts of one array."""
    group: list[_Tensor] = []
    end = 0
    for t in [*sorted((t for t in tensors if t.storage.size), key=lambda t: t.place), None]:
        if t is not None and group and t.place < end:
            group.append(t)
            end = max(end, t.place + t.storage.size)
            continue
        if len(group) > 1 and any(x.shadow is not None for x in group):
            start = group[0].place
            apart = functools.reduce(int.__or__, (x.granule | x.place - start for x in group))
            granule = apart & -apart
            shadow = GlobalShadow(-(-(end - start) // granule))
            for x in group:
                x.share(shadow, start, granule)
        if t is not None:
            group, end = [t], t.place + t.storage.size


class GlobalMemory:
    """The tensors of one launch, in the caller's arrays. `checks` False: nothing but bounds is
    checked. `keep`: what the arrays hold now can be had back by `restore`."""

    def __init__(
        self, tensors: Sequence[GlobalTensor], checks: bool = True, keep: bool = False
    ) -> None:
        self.checks = checks
        self._by_number = {t.number: _Tensor(t, checks, keep and t.written) for t in tensors}
        if checks:
            _share(list(self._by_number.values()))
        self._by_name = {t.tensor.name: t for t in self._by_number.values()}
        self.left: dict[int, Known] = {}  # see `Across`

    def restore(self) -> None:
        """Give the arrays what they held when this memory was made."""
        for t in self._by_number.values():
            if isinstance(t.storage, Restorable):
                t.storage.restore()

    # --- loads and stores of threads ---

    def load(
        self, observer: Observer, active: Threads, at: Ints, total: int, access: LoadStore
    ) -> Bytes:
        """The `total` bytes at each address (n, total): one for each of the active lanes, or one
        for all."""
        if observer.counts is not None:
            observer.counts.globals(active, at, total, write=False)
        data = np.zeros((len(at), total), np.uint8)
        words = access.kind == "i32"
        for t, mine, pick in self._inside(active, at, total, access.align, words):
            if t.shadow is not None:
                lanes = active.lanes if len(at) == 1 else _part(active.lanes, pick)
                team = observer.order.team(lanes)
                self._read(observer, active, t, team, t.granules(mine, total))
            got = t.storage.gather(mine, total)
            if pick is None:
                return got
            data[pick] = got
        return data

    def store(
        self, observer: Observer, active: Threads, at: Ints, data: Bytes, access: LoadStore
    ) -> None:
        """Write `data` (lanes, size) at the addresses."""
        total = data.shape[1]
        if observer.counts is not None:
            observer.counts.globals(active, at, total, write=True)
        for t, mine, pick in self._inside(active, at, total, access.align):
            team = observer.order.team(_part(active.lanes, pick))
            self._write(observer, active, t, team, mine, _part(data, pick))

    def count_up(self, observer: Observer, active: Threads, at: Ints, last: Any) -> Any:
        """See `Machine.count_up`: of one thread after the other. Atomics never conflict with one
        another."""
        before = np.zeros(len(at), np.int32)
        across = observer.order.clocks.across
        for t, mine, pick in self._inside(active, at, 4, 4):
            for i in range(len(mine)):
                place, n = mine[i : i + 1], i if pick is None else int(pick[i])
                count = int(t.storage.gather(place, 4).view(np.uint32)[0, 0])
                after = np.array([[0 if count >= int(last[n]) else count + 1]], np.uint32)
                t.storage.scatter(place, after.view(np.uint8))
                before[n] = np.uint32(count).astype(np.int32)
                if across is not None:
                    across.atomic(observer.order, int(active.lanes[n]), int(at[n]))
        return before

    # --- engines ---

    def engine_read(
        self, observer: Observer, active: Threads, at: Ints, size: int, column: Any, team: ClockRows
    ) -> Bytes:
        """See `BlockMemory.engine_read`."""
        if observer.counts is not None:
            observer.counts.engine(active.inst, "global read", size * len(at))
        data = np.zeros((len(at), size), np.uint8)
        for t, mine, pick in self._inside(active, at, size, 1):
            if t.shadow is not None:
                who, columns, places = _actors(observer, t, team, column, pick, mine, size)
                self._read(observer, active, t, who, places, columns)
            got = t.storage.gather(mine, size)
            if pick is None:
                return got
            data[pick] = got
        return data

    def engine_write(
        self,
        observer: Observer,
        active: Threads,
        at: Ints,
        data: Bytes,
        column: Any,
        team: ClockRows,
    ) -> None:
        """See `BlockMemory.engine_write`."""
        size = data.shape[1]
        if observer.counts is not None:
            observer.counts.engine(active.inst, "global write", data.size)
        for t, mine, pick in self._inside(active, at, size, 1):
            part = _part(data, pick)
            if t.shadow is not None:
                who, columns, places = _actors(observer, t, team, column, pick, mine, size)
                t.shadow.write(
                    active,
                    observer.order.clocks,
                    observer.party,
                    who,
                    places,
                    functools.partial(_unchanged, t, mine, part, places),
                    self._teller(observer, t),
                    columns,
                )
            t.storage.scatter(mine, np.ascontiguousarray(part))

    # --- at the end ---

    def finish(self, findings: Findings, names: Sequence[str] | None = None) -> None:
        """Report elements of the outputs (those the call has allocated, or `names`) that no block
        has written."""
        for t in self._by_number.values():
            wanted = t.tensor.output if names is None else t.tensor.name in names
            wanted = wanted and not t.tensor.counters
            if not wanted or not t.tensor.memory.size:
                continue
            missing, total, first = t.unwritten()
            if not missing:
                continue
            found = [t.find(offset)[1] for offset in first]
            findings.add(
                "never written",
                f"{missing} of {total} elements of {t.tensor.name} are never written",
                buffer=t.tensor.name,
                indices=[i for i in found if i is not None],
            )

    def check_counters(self, findings: Findings) -> None:
        """Report counters that the next launch would not find at zero."""
        for t in self._by_number.values():
            if t.tensor.counters and t.storage.data.any():
                findings.add(
                    "counter not reset",
                    f"{t.tensor.name} does not hold zeros when all blocks have ended",
                    buffer=t.tensor.name,
                )

    # --- inside ---

    def _inside(
        self, active: Threads, at: Ints, size: int, align: int, words: bool = False
    ) -> Iterator[tuple[_Tensor, Ints, Ints | None]]:
        """Of each tensor that the addresses are in: offsets of the `size` bytes inside, and
        their places in `at` (None: all). `words`: what lies between elements smaller than a
        word counts as inside."""
        for t, pick in self._tensors(active, at):
            between = words and t.tensor.itemsize < 4
            mine, good = self._reach(active, t, _part(at, pick) - t.start, size, align, between)
            if good is not None:
                pick = np.flatnonzero(good) if pick is None else pick[good]
                mine = mine[good]
            if len(mine):
                yield t, mine, pick

    def _tensors(self, active: Threads, at: Ints) -> list[tuple[_Tensor, Ints | None]]:
        """The tensors that the addresses are in, each with the places of its addresses in `at`
        (None: all). What is in no tensor is reported."""
        low, high = int(at.min()) >> TENSOR_SPACING, int(at.max()) >> TENSOR_SPACING
        if low == high:
            one = self._by_number.get(low - 1)
            if one is not None:
                return [(one, None)]
        numbers = at >> TENSOR_SPACING
        found: list[tuple[_Tensor, Ints | None]] = []
        lost = np.zeros(len(at), np.bool_)
        for n in np.unique(numbers).tolist():
            one, mine = self._by_number.get(n - 1), numbers == n
            if one is None:
                lost |= mine
            else:
                found.append((one, np.flatnonzero(mine)))
        if lost.any():
            active.report(
                "out of bounds",
                f"the address {int(at[lost][0]):#x} is in none of the kernel's tensors",
                threads=threads_at(active, at, lost),
            )
        return found

    def _reach(
        self, active: Threads, t: _Tensor, at: Ints, size: int, align: int, between: bool = False
    ) -> tuple[Ints, NDArray[np.bool_] | None]:
        """The offsets into the tensor's memory, and which of them are inside (None: all).
        `between`: what lies between its elements counts as inside."""
        if align > 1 and self.checks:
            moved = at + t.start
            if int(np.bitwise_or.reduce(moved)) & (align - 1):
                self._misaligned(active, t, at, moved & (align - 1) != 0, align)
        everywhere = between or t.elements is None
        if everywhere and int(at.min()) >= 0 and int(at.max()) + size <= t.storage.size:
            return at, None
        good = t.inside(at, size)
        if good.all():
            return at, None
        active.report(
            "out of bounds",
            t.tensor.outside(t.start + int(at[~good][0]), size),
            buffer=t.tensor.name,
            threads=threads_at(active, at, ~good),
        )
        return at, good

    def _misaligned(
        self, active: Threads, t: _Tensor, at: Ints, bad: NDArray[np.bool_], align: int
    ) -> None:
        name, index = t.find(int(at[bad][0]))
        active.report(
            "misaligned access",
            f"byte {int(at[bad][0]) - t.tensor.first} of {name} is not at a multiple of {align}",
            buffer=name,
            indices=[index] if index is not None else [],
            threads=threads_at(active, at, bad),
        )

    def _teller(self, observer: Observer, t: _Tensor) -> Any:
        def report(active: Threads, conflicts: list[Conflict]) -> None:
            tell(active, observer.order.clocks, conflicts, t.name_granule)

        return report

    def _read(
        self,
        observer: Observer,
        active: Threads,
        t: _Tensor,
        team: ClockRows,
        places: Ints,
        columns: Ints | None = None,
    ) -> None:
        assert t.shadow is not None
        t.shadow.read(
            active,
            observer.order.clocks,
            observer.party,
            team,
            np.broadcast_to(places, (team.size, places.shape[1])),
            self._teller(observer, t),
            columns,
        )
        if t.tensor.output:
            fresh = ~t.shadow.written(places)
            if fresh.any():
                name, index = t.name_granule(int(places[fresh][0]))
                active.report(
                    "uninitialised read",
                    f"{name}{list(index or ())} is read, and nobody has written it",
                    buffer=name,
                    indices=[index] if index is not None else [],
                )

    def _write(
        self,
        observer: Observer,
        active: Threads,
        t: _Tensor,
        team: ClockRows,
        at: Ints,
        data: Bytes,
    ) -> None:
        several = False
        if t.shadow is not None:
            places = t.granules(at, data.shape[1])
            several = t.shadow.write(
                active,
                observer.order.clocks,
                observer.party,
                team,
                places,
                lambda: observer.harmless(active.inst, t.storage, at, data),
                self._teller(observer, t),
            )
        t.storage.scatter(at, data)
        if several:
            observer.tell_lost(active, t.storage, at, data, team, t.find)


def _actors(
    observer: Observer,
    t: _Tensor,
    team: ClockRows,
    column: Any,
    pick: Ints | None,
    at: Ints,
    size: int,
) -> tuple[ClockRows, Ints, Ints]:
    """Threads, engines and granules, in step, of an engine's access."""
    if np.ndim(column):
        columns = np.asarray(column)
        if pick is not None:
            team, columns = observer.order.team(team.lanes[pick]), columns[pick]
        return team, columns, t.granules(at, size)
    one = observer.order.team(team.lanes[:1])
    return one, np.array([column]), t.granules(at, size).reshape(1, -1)


def _unchanged(t: _Tensor, at: Ints, data: Bytes, places: Ints) -> NDArray[np.bool_]:
    same = ~t.storage.differs(at, data)
    return same if len(same) == len(places) else np.array([bool(same.all())])


def _part(x: NDArray[Any], pick: Ints | None) -> NDArray[Any]:
    return x if pick is None else x[pick]
