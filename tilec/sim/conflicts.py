"""Accesses that nothing orders, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.llvm import Inst
from tilec.ir.loc import UNKNOWN, Loc
from tilec.sim.clocks import Clocks
from tilec.sim.findings import Index, Kind
from tilec.sim.threads import Threads


@dataclass(frozen=True, slots=True)
class Conflict:
    """An access that is not ordered behind an earlier one (`before` is its record, `actor` its
    column in the clocks), at `granule`. `threads`: rows of those who make the access now, or
    (`engine`) start what makes it."""

    kind: Kind
    granule: int
    threads: tuple[int, ...]
    actor: int
    before: Inst | None
    write: bool
    wrote: bool
    engine: bool = False


def tell(
    active: Threads,
    clocks: Clocks,
    conflicts: Sequence[Conflict],
    find: Callable[[int], tuple[str, Index | None]],
) -> None:
    """Report conflicts of the record that is executed: one finding for each earlier access
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
        active.block.report(
            active,
            first.kind,
            _message(first, what, clocks),
            *_locations(active.inst, first.before),
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
    active: Threads, name: str, index: Index | None, threads: Any, update: bool = False
) -> None:
    """Report that lanes write different values to one place with one record, or (`update`) what
    each has computed from the value there."""
    what = f"{name}[{', '.join(map(str, index))}]" if index is not None else name or "one place"
    active.block.report(
        active,
        "data race",
        f"several threads write {'back what they read from' if update else 'different values to'} "
        f"{what} at once",
        *here(active.inst),
        buffer=name,
        indices=[index] if index is not None else [],
        threads=[int(t) for t in threads[:8]],
    )


def here(inst: Inst | None) -> list[Loc]:
    """The location of a record."""
    return [] if inst is None else [inst.loc]


def threads_at(active: Threads, at: NDArray[np.int64], bad: NDArray[np.bool_]) -> list[int]:
    """The threads whose addresses `at` are `bad`, a few of them."""
    if len(at) != len(active.lanes):
        return [int(t) for t in active.lanes[:1]]
    return [int(t) for t in active.lanes[bad][:8]]
