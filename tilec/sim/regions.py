"""Regions of memory: the shared memory of each block, and the caller's arrays, in which the
kernel's loads and stores act in place. What of them an access reaches, what is there to the user,
and who touched it."""

from __future__ import annotations

import ctypes
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilec.sim.buffers import SHARED_BASE, SharedBuffer, SharedPlaces
from tilec.sim.clocks import Clocks, Ints, Known
from tilec.sim.faults import Conflict, tell, threads_at
from tilec.sim.findings import MOST_NAMED, Findings, Index, element_name
from tilec.sim.global_shadow import GlobalShadow
from tilec.sim.shadow import Actors, Granules, Same, Shadow
from tilec.sim.tensors import TENSOR_SPACING, Elements, GlobalTensor, Restorable, Storage
from tilec.sim.threads import Threads
from tilec.sim.waits import Published, check_published

Mask = NDArray[np.bool_]

_CHUNK = 1 << 20  # elements that are looked at together in the end
_NAMED = 8  # elements of a finding


class Region(ABC):
    """Memory with its history. `start`: the address of its first byte; offsets count from there.
    `shadow`: who touched it (None: nobody asks)."""

    storage: Storage
    start: int
    shadow: Shadow | GlobalShadow | None

    def reach(
        self, active: Threads, at: Ints, size: int, align: int, buffer: str, words: bool
    ) -> tuple[Ints, Mask | None]:
        """The offsets of addresses, and at which of them `size` bytes are inside (None: all). What
        is not, or not at a multiple of `align`, is reported. `buffer`: which is meant; `words`:
        what lies between elements smaller than a word counts as inside."""
        offsets = at - self.start
        if align > 1 and int(np.bitwise_or.reduce(at)) & (align - 1):
            bad = at & (align - 1) != 0
            name, index = self.find(int(offsets[bad][0]), buffer)
            active.report(
                "misaligned access",
                self.misaligned(int(offsets[bad][0]), align),
                buffer=name,
                indices=[index],
                threads=threads_at(active, at, bad),
            )
        good = self.inside(offsets, size, buffer, words)
        if good is None or good.all():
            return offsets, None
        self.report_outside(active, offsets, size, buffer, ~good)
        return offsets, good

    @abstractmethod
    def find(self, offset: int, buffer: str) -> tuple[str, Index | None]:
        """Name and element of the byte at an offset; the `buffer` that the record names is meant
        where several lie there."""

    @abstractmethod
    def misaligned(self, offset: int, align: int) -> str:
        """What is said of an access that is not at a multiple of `align`."""

    @abstractmethod
    def inside(self, at: Ints, size: int, buffer: str, words: bool) -> Mask | None:
        """See `reach`."""

    @abstractmethod
    def report_outside(self, active: Threads, at: Ints, size: int, buffer: str, bad: Mask) -> None:
        """Report accesses that are not inside."""

    @abstractmethod
    def note_read(self, by: Actors, at: Ints, size: int) -> None:
        """Check a read at offsets against what was done before, and note it. There must be a
        shadow."""

    @abstractmethod
    def note_write(self, by: Actors, at: Ints, size: int, same: Same) -> bool:
        """The same of a write. Gives whether several write to one place."""

    @abstractmethod
    def note_atomic(self, by: Actors, at: Ints, size: int, blind: bool) -> None:
        """The same of atomics, one of each thread; `blind`: they do not look at what was there."""


class SharedMemory(Region):
    """The shared memory of one block, of `size` bytes: noise until it is written. `granule`: the
    narrowest access to it, in bytes."""

    start = SHARED_BASE
    shadow: Shadow | None

    def __init__(
        self,
        size: int,
        buffers: Sequence[SharedBuffer],
        clocks: Clocks,
        granule: int,
        checks: bool,
        seed: int,
    ) -> None:
        noise = np.random.default_rng(seed).bytes(max(-(-size // 16), 1) * 16)
        self.storage = Storage(np.frombuffer(noise, np.uint8).copy())
        self.size, self.places, self.clocks = size, SharedPlaces(buffers), clocks
        self.shadow = Shadow(clocks, size, granule, self._tell) if checks else None
        # What has been published to the block, once threads of other blocks write here.
        self.published: Published | None = None
        self._shift = granule.bit_length() - 1

    def find(self, offset: int, buffer: str) -> tuple[str, Index | None]:
        return self.places.find(offset, buffer)

    def misaligned(self, offset: int, align: int) -> str:
        address = offset + SHARED_BASE
        return f"the address {address:#x} in shared memory is not a multiple of {align}"

    def inside(self, at: Ints, size: int, buffer: str, words: bool) -> Mask | None:
        low, high = self.places.bounds.get(buffer, (0, self.size))
        if int(at.min()) >= low and int(at.max()) + size <= high:
            return None
        return (at >= low) & (at + size <= high)

    def report_outside(self, active: Threads, at: Ints, size: int, buffer: str, bad: Mask) -> None:
        active.report(
            "out of bounds",
            self.places.outside(int(at[bad][0]), size, buffer, self.size),
            buffer=buffer,
            indices=self.places.beyond(at[bad][:MOST_NAMED].tolist(), buffer),
            threads=threads_at(active, at, bad),
        )

    def note_read(self, by: Actors, at: Ints, size: int) -> None:
        assert self.shadow is not None
        if self.published is not None:
            check_published(by.active, self.published, self.shadow, at, size)
        if isinstance(by.engines, int):
            self.shadow.read(by, self._cover(at, size))
        elif by.warps:
            self.shadow.warp_read(by, self._granules(at, size))
        else:  # an engine for each thread has only what reads through the generic proxy
            places = self._granules(at, size)
            self.shadow.read(by, np.broadcast_to(places, (by.team.size, places.shape[1])))

    def note_write(self, by: Actors, at: Ints, size: int, same: Same) -> bool:
        assert self.shadow is not None
        if isinstance(by.engines, int):
            held = functools.partial(self._held, at, size, same)
            self.shadow.engine_write(by, self._cover(at, size), held)
            return False
        return self.shadow.write(by, self._granules(at, size), same)

    def note_atomic(self, by: Actors, at: Ints, size: int, blind: bool) -> None:
        assert self.shadow is not None
        self.shadow.atomic(by, self._granules(at, size), blind)

    def _held(self, at: Ints, size: int, same: Same) -> Mask:
        """By granule of `_cover`: whether it holds already what is written."""
        granules, places = self._cover(at, size), self._granules(at, size)
        held = same(places.shape[1])
        if not isinstance(granules, slice):
            return held
        found = np.zeros(granules.stop - granules.start, np.bool_)
        found[places.ravel() - granules.start] = held
        return found

    def _granules(self, at: Ints, size: int) -> Ints:
        """(n, k): the granules of the `size` bytes at each offset."""
        first = (at >> self._shift)[:, None]
        count = max(size >> self._shift, 1)
        return first if count == 1 else first + np.arange(count)

    def _cover(self, at: Ints, size: int) -> Granules:
        """(1, k): the granules of all pieces, as a range where they fill one."""
        low = int(at.min())
        if int(at.max()) + size - low == size * len(at):
            return slice(low >> self._shift, -(-(low + size * len(at)) >> self._shift))
        return self._granules(at, size).reshape(1, -1)

    def _tell(self, active: Threads, conflicts: list[Conflict]) -> None:
        find = self.places.find
        tell(active, self.clocks, conflicts, lambda g: find(g << self._shift, active.buffer))


class TensorMemory(Region):
    """A tensor. `elements`: where it has elements, if that is not everywhere from the lowest to the
    highest; None: everywhere, or nobody asks. What the kernel only reads has no shadow."""

    shadow: GlobalShadow | None

    def __init__(self, tensor: GlobalTensor, checks: bool, keep: bool) -> None:
        self.tensor = tensor
        self.storage = Restorable(tensor.memory) if keep else Storage(tensor.memory)
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

    def find(self, offset: int, buffer: str = "") -> tuple[str, Index | None]:
        return self.tensor.name, self.tensor.index_of(self.start + offset)

    def misaligned(self, offset: int, align: int) -> str:
        t = self.tensor
        return f"byte {offset - t.first} of {t.name} is not at a multiple of {align}"

    def inside(self, at: Ints, size: int, buffer: str, words: bool) -> Mask | None:
        """Accesses that begin and end in an element."""
        item, end = self.tensor.itemsize, self.storage.size
        everywhere = self.elements is None or (words and item < 4)
        if everywhere and int(at.min()) >= 0 and int(at.max()) + size <= end:
            return None
        good: Mask = (at >= 0) & (at + size <= end)
        if self.elements is not None:
            first = np.where(good, at, 0)
            for place in (first, first + size - 1) if size > item else (first,):
                good &= self.elements.numbers(np.minimum(place, end - 1) // item)[1]
        return good

    def report_outside(self, active: Threads, at: Ints, size: int, buffer: str, bad: Mask) -> None:
        active.report(
            "out of bounds",
            self.tensor.outside(self.start + int(at[bad][0]), size),
            buffer=self.tensor.name,
            threads=threads_at(active, at, bad),
        )

    def note_read(self, by: Actors, at: Ints, size: int) -> None:
        assert self.shadow is not None
        by, granules = self._noted(by, at, size)
        self.shadow.read(by, granules, self.name_granule)
        fresh = ~self.shadow.written(granules) if self.tensor.output else np.False_
        if fresh.any():
            name, index = self.name_granule(int(granules[fresh][0]))
            by.active.report(
                "uninitialised read",
                f"{element_name(name, index)} is read, and nobody has written it",
                buffer=name,
                indices=[index],
            )

    def note_write(self, by: Actors, at: Ints, size: int, same: Same) -> bool:
        assert self.shadow is not None
        each, granules = self._noted(by, at, size)
        parts = granules.size // len(at)
        every = (lambda: same(parts)[None]) if by.together else same
        return self.shadow.write(each, granules, every, self.name_granule)

    def note_atomic(self, by: Actors, at: Ints, size: int, blind: bool) -> None:
        assert self.shadow is not None
        by, granules = self._noted(by, at, size)
        self.shadow.atomic(by, granules, self.name_granule)

    def _noted(self, by: Actors, at: Ints, size: int) -> tuple[Actors, Ints]:
        """Who acts, and (actors, k) the granules: an engine that all threads start counts as that
        of the first one."""
        granules = self.granules(at, size)
        if by.together:
            one = by.order.team(by.team.lanes[:1])
            return replace(by, team=one, engines=np.array([by.engines])), granules.reshape(1, -1)
        return by, np.broadcast_to(granules, (by.team.size, granules.shape[1]))

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


def _share(tensors: Sequence[TensorMemory]) -> None:
    """Give tensors whose memory overlaps one history, if one of them is written: a call may pass
    parts of one array."""
    group: list[TensorMemory] = []
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
    """The tensors of one launch. `checks` False: nothing but bounds is checked. `keep`: what the
    arrays hold now can be had back by `restore`. `elsewhere`: what there is at an address that is
    in none of them."""

    def __init__(
        self,
        tensors: Sequence[GlobalTensor],
        checks: bool = True,
        keep: bool = False,
        elsewhere: Callable[[int], TensorMemory | None] | None = None,
    ) -> None:
        self._elsewhere, self._found = elsewhere, list[TensorMemory]()
        self._by_number = {t.number: TensorMemory(t, checks, keep and t.written) for t in tensors}
        if checks:
            _share(list(self._by_number.values()))
        self._by_name = {t.tensor.name: t for t in self._by_number.values()}
        self.left: dict[int, Known] = {}  # see `Across`
        self.atomics = 0  # that have changed something

    def restore(self) -> None:
        """Give the arrays what they held when this memory was made."""
        for t in (*self._by_number.values(), *self._found):
            if isinstance(t.storage, Restorable):
                t.storage.restore()

    def regions(self, active: Threads, at: Ints) -> list[tuple[TensorMemory, Ints | None]]:
        """The tensors that the addresses are in, each with the places of its addresses in `at`
        (None: all). What is in no tensor is reported."""
        low, high = int(at.min()) >> TENSOR_SPACING, int(at.max()) >> TENSOR_SPACING
        if low == high:
            one = self._by_number.get(low - 1)
            if one is not None:
                return [(one, None)]
        numbers = at >> TENSOR_SPACING
        found: list[tuple[TensorMemory, Ints | None]] = []
        lost = np.zeros(len(at), np.bool_)
        for n in np.unique(numbers).tolist():
            one, mine = self._by_number.get(n - 1), numbers == n
            if one is None:
                lost |= mine
            else:
                found.append((one, np.flatnonzero(mine)))
        if self._elsewhere is not None:
            found += self._outside(at, lost)
        if lost.any():
            message = f"the address {int(at[lost][0]):#x} is in none of the kernel's tensors"
            active.report("out of bounds", message, threads=threads_at(active, at, lost))
        return found

    def _outside(self, at: Ints, lost: Mask) -> Iterator[tuple[TensorMemory, Ints]]:
        """What is elsewhere, as `regions` gives it; it is `lost` no more."""
        missing = np.zeros_like(lost)
        while (left := lost & ~missing).any():
            address = int(at[left][0])
            held = [t for t in self._found if t.start <= address < t.start + t.storage.size]
            one = held[0] if held else self._elsewhere(address) if self._elsewhere else None
            if one is None:
                missing |= at == address
                continue
            if not held:
                self._found.append(one)
            mine = left & (at >= one.start) & (at < one.start + one.storage.size)
            lost &= ~mine
            yield one, np.flatnonzero(mine)

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
            findings.add(
                "never written",
                f"{missing} of {total} elements of {t.tensor.name} are never written",
                buffer=t.tensor.name,
                indices=[t.find(offset)[1] for offset in first],
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


# --- memory by its addresses ----------------------------------------------------------------------


_MAPS = Path("/proc/self/maps")  # proc(5); other systems have none, and all is out of bounds


class Mapping(GlobalTensor):
    """A piece of this process's memory, byte by byte, at its own address."""

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data)


class HostMemory(TensorMemory):
    """As a tensor of bytes, whose elements have no names."""

    def find(self, offset: int, buffer: str = "") -> tuple[str, Index | None]:
        return buffer or "memory", None


def _mapped() -> Iterator[tuple[int, int, str]]:
    for line in _MAPS.read_text().splitlines() if _MAPS.exists() else ():
        places, permissions, *_ = line.split()
        low, high = (int(x, 16) for x in places.split("-"))
        yield low, high, permissions


def host_memory(address: int, checks: bool, keep: bool) -> HostMemory | None:
    """The mapping that an address is in, of this process's own memory as the operating system has
    mapped it; None if none that may be read. Nobody says where an array ends there; what is in no
    mapping is out of bounds."""
    for low, high, permissions in _mapped():
        if low <= address < high and permissions.startswith("r"):
            size = high - low
            held = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(low))
            written = permissions[1] == "w"
            made = Mapping("memory", held, 0, (size,), (1,), "uint8", 1, written, False, -1)
            return HostMemory(made, checks, keep and written)
    return None
