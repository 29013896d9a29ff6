"""What a byte of memory is to the user: a buffer's name and the index of an element."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir import ops
from tilec.ir.core import Func, walk
from tilec.ir.layout import Layout
from tilec.ir.llvm import Function, Inst
from tilec.ir.loc import UNKNOWN, Loc
from tilec.ir.memory import MBARRIER_BYTES, version_bytes
from tilec.sim.findings import Index
from tilec.sim.numbers import BYTES, vector_of
from tilec.sim.order import Clocks
from tilec.sim.shadow import Conflict

if TYPE_CHECKING:
    from tilec.sim.agent import Agent

SHARED_BASE = 1024
"""The address of the first byte of shared memory, `@smem`."""

WORD = 4
WIDEST = 16  # what matrix instructions and engines move at least


@dataclass(frozen=True)
class SharedBuffer:
    """A buffer in shared memory: bytes `start` to `end` (exclusive) from the start of shared
    memory, `versions` copies of `stride` bytes. `bits` of one element; `layout` says where in a
    copy each element is (None: row-major)."""

    name: str
    start: int
    end: int
    bits: int
    shape: tuple[int, ...]
    versions: int = 1
    stride: int = 0
    layout: Layout | None = None

    def index_of(self, offset: int) -> Index | None:
        """The element at byte `offset` of shared memory, led by the copy's number where there are
        several; None for padding."""
        copy, inside = divmod(offset - self.start, self.stride or self.end - self.start)
        flat = inside * 8 // self.bits
        if self.layout is not None:
            found = _elements(self.layout)
            flat = int(found[flat]) if flat < len(found) else -1
        count = int(np.prod(self.shape, dtype=np.int64))
        if not 0 <= flat < count:
            return None
        index = tuple(int(i) for i in np.unravel_index(flat, self.shape))
        return index if self.versions == 1 else (copy, *index)

    def beyond(self, offset: int) -> Index | None:
        """The index that an element outside of the buffer would have; None where what differs in
        the first index does not lie one after the other."""
        if self.versions > 1 or not (self.layout is None or _leads(self.layout)):
            return None
        first = (offset - self.start) * 8 // self.bits
        leading, rest = divmod(first, int(np.prod(self.shape[1:], dtype=np.int64)))
        rest = rest if self.layout is None else int(_elements(self.layout)[rest])
        return (leading, *(int(i) for i in np.unravel_index(rest, self.shape[1:])))

    def outside(self, offset: int, size: int) -> str:
        """What an access of `size` bytes at byte `offset` would be of this buffer, and what the
        buffer has."""
        first, count = (offset - self.start) * 8 // self.bits, max(size * 8 // self.bits, 1)
        shape = f"({', '.join(map(str, self.shape))}{',' * (len(self.shape) == 1)})"
        after = f" and {count - 1} after it" if count > 1 else ""
        index = self.beyond(offset)
        if index is not None:
            what = f"{self.name}[{', '.join(map(str, index))}]"
            return f"{what}{after}; {self.name} has the shape {shape}"
        copies = f"{self.versions} times " if self.versions > 1 else ""
        total = (self.end - self.start) * 8 // self.bits
        return (
            f"element {first}{after} of {self.name}, as it lies in memory, which has {total} "
            f"({copies}the shape {shape})"
        )


@functools.cache
def _elements(layout: Layout) -> NDArray[np.int64]:
    """By place in memory, the row-major number of the element there; -1 for padding."""
    flat = layout.flat("offset").astype(np.int64)
    if layout.pad is None:
        return flat
    every, skip = layout.pad
    found = np.full(layout.span(), -1, np.int64)
    at = np.arange(len(flat))
    found[at + at // every * skip] = flat
    return found


def shared_buffers(func: Func) -> list[SharedBuffer]:
    """The buffers that a LOWERED function has in shared memory, mbarriers included."""
    found = []
    for o in walk(func.body):
        if not isinstance(o, ops.Alloc) or o.type.space not in ("shared", "barrier"):
            continue
        t, stride = o.type, version_bytes(o.type)
        bits = 8 * MBARRIER_BYTES if t.space == "barrier" else t.dtype.bits
        found.append(
            SharedBuffer(
                o.result.name,
                o.address,
                o.address + stride * t.versions,
                bits,
                t.static_shape,
                t.versions,
                stride,
                t.layout,
            )
        )
    return found


def shared_granule(function: Function) -> int:
    """Bytes in which accesses to shared memory may be told apart: a power of two up to 16 that
    divides the address and size of every access of the records."""
    found = WIDEST
    for block in function.blocks:
        for i in block.insts:
            found = min(found, _access_bytes(i))
    return found


def _access_bytes(i: Inst) -> int:
    if i.opcode in ("load", "store"):
        if i.operands[-1].type != "ptr addrspace(3)":
            return WIDEST
        type = i.operands[0].type if i.opcode == "store" or i.result is None else i.result.type
        count, kind = vector_of(type) or (1, type)
        align = int(i.text.rsplit(", align ", 1)[1].split(",")[0])
        size = count * BYTES.get(kind, 8) | align
        return size & -size
    word = i.row.split(".")
    if i.row.startswith("cp.async.") and word[2].isdigit():
        return int(word[2])
    return WORD if i.row.startswith("ld.cluster") else WIDEST


@functools.cache
def _leads(layout: Layout) -> bool:
    """Whether what differs in the first index lies one after the other, without padding."""
    each, found = int(np.prod(layout.shape[1:], dtype=np.int64)), _elements(layout)
    return layout.pad is None and bool((found // each == np.arange(len(found)) // each).all())


class SharedPlaces:
    """Finds the buffer of a byte. Buffers whose lives do not meet may lie over one another: the one
    that the record names is meant."""

    def __init__(self, buffers: Sequence[SharedBuffer]) -> None:
        self.buffers = tuple(buffers)
        self.bounds: dict[str, tuple[int, int]] = {}
        for b in buffers:
            start, end = self.bounds.get(b.name, (b.start, b.end))
            self.bounds[b.name] = min(start, b.start), max(end, b.end)

    def find(self, offset: int, name: str) -> tuple[str, Index | None]:
        """(buffer, element) at byte `offset`; ("", None) where there is no buffer."""
        here = [b for b in self.buffers if b.start <= offset < b.end]
        for b in sorted(here, key=lambda b: b.name != name):
            return b.name, b.index_of(offset)
        return name, None

    def beyond(self, offsets: Sequence[int], name: str) -> list[Index]:
        """The indices that elements outside of the buffer `name` would have, where they are
        known."""
        found = (b.beyond(o) for b in self.buffers if b.name == name for o in offsets)
        return [index for index in found if index is not None]

    def outside(self, offset: int, size: int, name: str, end: int) -> str:
        """What lies at `size` bytes from byte `offset` on that are not of the buffer `name` they
        were meant for; shared memory ends at byte `end`."""
        for b in self.buffers:
            if b.name == name:
                return b.outside(offset, size)
        return f"{size} bytes at byte {offset} of shared memory, which has {end}"


def tell(
    agent: Agent,
    clocks: Clocks,
    conflicts: Sequence[Conflict],
    find: Callable[[int], tuple[str, Index | None]],
) -> None:
    """Report conflicts of the record that the agent executes: one finding for each earlier access
    and kind. `find` names a granule."""
    groups: dict[tuple[str, int, bool], list[Conflict]] = {}
    for c in conflicts:
        groups.setdefault((c.kind, id(c.before), c.wrote), []).append(c)
    for group in groups.values():
        first = group[0]
        name, index = find(first.granule)
        indices = [i for _, i in (find(c.granule) for c in group[:8]) if i is not None]
        here = dict.fromkeys(t % clocks.threads for c in group for t in c.threads)
        others = dict.fromkeys(
            c.actor % clocks.threads for c in group if 0 <= c.actor < clocks.nobody
        )
        threads = sorted(here | others)
        what = f"{name}[{', '.join(map(str, index))}]" if index is not None else name or "memory"
        agent.block.report(
            agent,
            first.kind,
            _message(first, what, clocks),
            *_locations(agent.inst, first.before),
            buffer=name,
            indices=indices,
            threads=threads,
            warps=sorted({t // clocks.warp_size for t in threads}),
        )


def _locations(inst: Inst | None, before: Inst | None) -> list[Loc]:
    return [i.loc for i in (inst, before) if i is not None and i.loc is not UNKNOWN]


_ENGINES = {
    "mbarrier": "a TMA load",
    "cp.async": "a cp.async copy",
    "tma store": "a TMA store",
    "wgmma": "a wgmma",
}


def actor_name(actor: int, clocks: Clocks) -> str:
    """Who a column of the clocks is, for a message."""
    if actor < 0:
        return "a thread of another block"
    if actor < clocks.nobody:
        return _thread_name(actor, clocks)
    key = clocks.key(actor)
    word = key[1][0] if isinstance(key, tuple) and isinstance(key[1], tuple) else key
    return _ENGINES.get(str(word), f"an asynchronous {word}")


def _thread_name(row: int, clocks: Clocks) -> str:
    block, thread = divmod(row, clocks.threads)
    return f"thread {thread}" + (f" of the cluster's block {block}" if clocks.blocks > 1 else "")


def _message(c: Conflict, what: str, clocks: Clocks) -> str:
    does = "is written" if c.write else "is read"
    if c.kind == "uninitialised read":
        return f"{what} {does}, and nobody has written it"
    who = actor_name(c.actor, clocks)
    did = "wrote" if c.wrote else "read"
    if c.kind == "read before wait":
        return f"{what} {does} before the end of {who} that writes it has been waited for"
    if c.kind == "missing proxy fence":
        return f"{what} {does} asynchronously after {who} {did} it, without a proxy fence between"
    if c.kind == "overwritten before read":
        return f"{what} {does} while {who} may still have to read it: nothing orders the two"
    now = _thread_name(c.threads[0], clocks)
    now = f"by what {now} starts" if c.engine else f"by {now}"
    return f"{what} {does} {now}, and {who} {did} it: nothing orders the two"


def tell_several(
    agent: Agent, name: str, index: Index | None, threads: Any, update: bool = False
) -> None:
    """Report that lanes write different values to one place with one record, or (`update`) what
    each has computed from the value there."""
    what = f"{name}[{', '.join(map(str, index))}]" if index is not None else name or "one place"
    agent.block.report(
        agent,
        "data race",
        f"several threads write {'back what they read from' if update else 'different values to'} "
        f"{what} at once",
        *here(agent.inst),
        buffer=name,
        indices=[index] if index is not None else [],
        threads=[int(t) for t in threads[:8]],
    )


def here(inst: Inst | None) -> list[Loc]:
    """The location of a record."""
    return [] if inst is None else [inst.loc]


def threads_at(agent: Agent, at: NDArray[np.int64], bad: NDArray[np.bool_]) -> list[int]:
    """The threads whose addresses `at` are `bad`, a few of them."""
    if len(at) != len(agent.lanes):
        return [int(t) for t in agent.lanes[:1]]
    return [int(t) for t in agent.lanes[bad][:8]]
