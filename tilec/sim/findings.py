"""What the simulator has found wrong: one `Finding` per fault, however often it shows, and
what to do about it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

from tilec.ir.loc import UNKNOWN, Loc

Kind = Literal[
    "data race", "read before wait", "missing proxy fence", "overwritten before read",
    "out of bounds", "uninitialised read", "undefined behaviour", "deadlock",
    "barrier divergence", "transaction bytes", "operand in flight", "register pool",
    "misaligned access", "never written", "counter not reset", "step limit", "parity can alias",
    "unknown asm", "assertion failed", "unordered metadata",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_FINDINGS = 100  # different ones that are kept; all are counted
MOST_NAMED = 8  # elements, threads and warps that one finding names

Index = tuple[int, ...]


def element_name(name: str, index: Index | None) -> str:
    """A buffer's element as a kernel writes it; the buffer's own name without an index."""
    return f"{name}[{', '.join(map(str, index))}]" if index else name


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of the kernel, as it showed first.

    `locations`: the lines that are at fault, the one that was being executed first. `buffer` is the
    user's name of what was touched, `indices` some of its elements. `threads` are numbers in the
    block, `roles` what these threads do ("producer", ...). `block` is the block's coordinates, x
    first. `details` are further lines of text, such as who waits for what. `times` counts how often
    the same fault showed.
    """

    kind: Kind
    message: str
    locations: tuple[Loc, ...] = ()
    buffer: str = ""
    indices: tuple[Index, ...] = ()
    threads: tuple[int, ...] = ()
    warps: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()
    block: Index = ()
    details: tuple[str, ...] = ()
    times: int = 1


def _different(values: Iterable[_T]) -> tuple[_T, ...]:
    """The first values that differ."""
    return tuple(itertools.islice(dict.fromkeys(values), MOST_NAMED))


class Findings:
    """The findings of a run, in the order in which they showed. Equal ones (kind, locations and
    buffer) are one; after the first `MOST_FINDINGS` others are only counted, in `dropped`."""

    def __init__(self) -> None:
        self._found: dict[tuple[Kind, tuple[Loc, ...], str], Finding] = {}
        self.dropped = 0

    def add(
        self,
        kind: Kind,
        message: str,
        locations: Sequence[Loc] = (),
        *,
        buffer: str = "",
        indices: Iterable[Index | None] = (),
        threads: Sequence[int] = (),
        warps: Sequence[int] = (),
        roles: Sequence[str] = (),
        block: Index = (),
        details: Sequence[str] = (),
    ) -> None:
        """Report a fault; see `Finding` for what the arguments say. Of locations, indices (None:
        not known), threads and warps the first `MOST_NAMED` different ones are kept."""
        places = _different(loc for loc in locations if loc is not UNKNOWN)
        key = (kind, places, buffer)
        known = self._found.get(key)
        if known is not None:
            self._found[key] = replace(known, times=known.times + 1)
            return
        if len(self._found) >= MOST_FINDINGS:
            self.dropped += 1
            return
        self._found[key] = Finding(
            kind,
            message,
            places,
            buffer,
            _different(tuple(map(int, index)) for index in indices if index is not None),
            _different(map(int, threads)),
            _different(map(int, warps)),
            tuple(roles),
            tuple(int(i) for i in block),
            tuple(details),
        )

    def __iter__(self) -> Iterator[Finding]:
        return iter(tuple(self._found.values()))

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, kind: object) -> bool:
        """Whether there is a finding of this kind."""
        return any(f.kind == kind for f in self._found.values())


# --- advice ---
#
# What to do about a finding: one line where one change is likely to be the right one.

_OURS: tuple[Kind, ...] = (
    "read before wait", "missing proxy fence", "deadlock", "barrier divergence",
    "transaction bytes", "operand in flight", "register pool", "misaligned access",
    "parity can alias", "counter not reset", "undefined behaviour",
)  # fmt: skip
"""What a kernel without barriers by hand cannot do wrong: these barriers, waits, addresses and
operations are the compiler's."""


_BY_HAND: dict[str, str] = {
    "read before wait": "wait in front of it: T.barrier_wait, T.ptx_wait_group or T.wait_wgmma",
    "missing proxy fence": "write T.fence_proxy_async() between the writes and who reads by TMA or "
    "wgmma",
    "deadlock": "in every phase let as many threads arrive as the barrier counts, before others "
    "wait for it",
    "barrier divergence": "let all threads of the group come to it, and as many as it counts",
    "transaction bytes": "announce what copies bring: T.tma_copy does that by itself",
    "operand in flight": "write T.wait_wgmma(0) before it is changed",
    "register pool": "let the groups take no more by T.inc_max_nreg than others gave back",
    "parity can alias": "let each thread that waits for a barrier wait for every phase of it, in "
    "order: a parity does not tell a phase from the one after the next",
}
"""What the author of a kernel that orders barriers and copies by hand may have done wrong."""


def advice(f: Finding, by_hand: bool = False) -> str:
    """The change that a finding suggests; "" where there is none. `by_hand`: the kernel's author
    orders barriers and asynchronous copies."""
    name = f.buffer
    if by_hand and f.kind in _BY_HAND:
        return _BY_HAND[f.kind]
    if f.kind in _OURS:
        if f.kind == "undefined behaviour":
            return "tilec gives every operation a result: please report this as its fault"
        return "tilec itself places waits, fences and barriers: please report this as its fault"
    match f.kind:
        case "uninitialised read" if name:
            return f"write {name} before it is read, in the first iteration too"
        case "out of bounds" if name:
            return f"keep the index inside of {name}: a condition, T.min or a larger extent"
        case "unordered metadata":
            return "make the values and the metadata with tilec.sparse.compress"
        case "never written":
            return f"let the grid (T.ceildiv) and the conditions reach every element of {name}"
        case "data race" if "another block" in f.message or "cluster's block" in f.message:
            return "blocks run in any order: let each write elements that no other one touches"
        case "data race" if f.message.startswith("several threads"):
            return "give each iteration an element of its own, or let one thread write"
        case "data race" | "overwritten before read":
            return (
                "threads and iterations run in any order: read from another buffer, or write in a "
                "loop of its own"
            )
    return ""
