"""What is said of accesses that nothing orders, and of what threads hold in registers: values that
nobody wrote, elements that are not there, operations that LLVM leaves undefined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.llvm import Inst
from tilec.ir.loc import Loc
from tilec.sim.buffers import RegisterBuffer, first_warps
from tilec.sim.clocks import Clocks, Ints
from tilec.sim.findings import MOST_NAMED, Index, Kind, element_name
from tilec.sim.threads import Threads
from tilec.sim.undefined import POISON, VARIABLE, Lost, Partly, is_poison, lost_parts


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
        here = dict.fromkeys(t % clocks.threads for c in group for t in c.threads)
        others = dict.fromkeys(
            c.actor % clocks.threads for c in group if 0 <= c.actor < clocks.nobody
        )
        threads = sorted(here | others)
        what = element_name(name, index) or "memory"
        active.report(
            first.kind,
            _message(first, what, clocks),
            first.before,
            buffer=name,
            indices=[find(c.granule)[1] for c in group[:MOST_NAMED]],
            threads=threads,
            warps=sorted({t // clocks.warp_size for t in threads}),
        )


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
    active: Threads, name: str, index: Index | None, threads: Ints, update: bool
) -> None:
    """Report that lanes write different values to one place with one record, or (`update`) what
    each has computed from the value there."""
    what = element_name(name, index) or "one place"
    active.report(
        "data race",
        f"several threads write {'back what they read from' if update else 'different values to'} "
        f"{what} at once",
        buffer=name,
        indices=[index],
        threads=threads[:MOST_NAMED].tolist(),
    )


def threads_at(active: Threads, at: NDArray[np.int64], bad: NDArray[np.bool_]) -> list[int]:
    """The threads whose addresses `at` are `bad`, a few of them."""
    if len(at) != len(active.lanes):
        return [int(t) for t in active.lanes[:1]]
    return [int(t) for t in active.lanes[bad][:8]]


# --- stack slots ---
#
# What a thread's stack slot is to the user: a fragment's or a variable's element.


def tell_undefined(active: Threads, inst: Inst, values: Sequence[Any]) -> None:
    """Report that `inst` is given values that were never written, or that LLVM leaves undefined:
    one finding for each buffer."""
    told = set[str]()
    for lost in lost_parts(tuple(values)):
        if is_poison(lost):
            words = f"the result of {lost.slot.removeprefix(POISON)} is used here"
            bad = lost.lost if isinstance(lost, Partly) else np.True_
            tell_behaviour(active, inst, words, bad, lost.loc)
            continue
        held = _holder(active, lost.slot)
        name = held.value.name if held is not None else _variable(lost.slot)
        if name in told:
            continue
        told.add(name)
        lanes = sure = active.lanes
        if isinstance(lost, Partly):
            lanes, sure = lanes[lost.lost], lanes[lost.sure & lost.lost]
        found = (_element(active, held, lost, int(t)) for t in sure[:MOST_NAMED])
        indices = [i for i in found if i is not None]
        what = element_name(name, indices[0] if indices else None) if name else "a value"
        read = "read" if name else "used here"
        active.block.report(
            active,
            "uninitialised read",
            f"{what} is {read}, and nobody has written it",
            lost.loc,
            inst.loc,
            buffer=name,
            indices=indices,
            threads=(sure if len(sure) else lanes).tolist(),
        )


def tell_behaviour(active: Threads, inst: Inst, message: str, bad: Any, *others: Loc) -> None:
    """Report that what `inst` does is undefined in the lanes in which `bad` holds."""
    if active.block.checks:
        active.block.report(
            active,
            "undefined behaviour",
            message,
            inst.loc,
            *others,
            buffer=inst.buffer,
            threads=active.lanes[active.full(bad)].tolist(),
        )


def tell_outside(
    active: Threads, inst: Inst, slot: str, size: int, index: NDArray[Any], bad: NDArray[np.bool_]
) -> None:
    """Report that `inst` names elements `index` of a stack array of `size`, which are not there
    where `bad` holds."""
    held = _holder(active, slot)
    name = held.value.name if held is not None else "an array"
    shape = held.value.buffer.static_shape if held is not None else (size,)
    at = int(index[bad][0])
    what = f"{name}[{at}]" if len(shape) == 1 else f"element {at} of {name}"
    does = "written" if inst.opcode == "store" else "read"
    active.block.report(
        active,
        "out of bounds",
        f"{what} is {does}; {name} has {'x'.join(map(str, shape))} elements",
        inst.loc,
        buffer=name,
        indices=[(int(i),) for i in index[bad][:MOST_NAMED]] if len(shape) == 1 else [],
        threads=active.lanes[bad].tolist(),
    )


def tell_index(
    active: Threads,
    inst: Inst,
    extents: tuple[int, ...],
    indices: NDArray[Any],
    lanes: NDArray[np.bool_],
) -> None:
    """Report that `inst` names an element that is not in a buffer of these `extents`: `indices`
    (lanes, dimensions) of these `lanes`, whose places may be other elements'."""
    if not lanes.any():
        return
    found = [tuple(int(i) for i in row) for row in indices[lanes][:MOST_NAMED]]
    active.block.report(
        active,
        "out of bounds",
        f"{element_name(inst.buffer, found[0])}; {inst.buffer} has the shape {extents}",
        inst.loc,
        buffer=inst.buffer,
        indices=found,
        threads=active.lanes[lanes].tolist(),
    )


def _variable(slot: str) -> str:
    return slot.removeprefix(VARIABLE) if slot.startswith(VARIABLE) else ""


def _holder(active: Threads, slot: str) -> RegisterBuffer | None:
    """The buffer that has a stack slot."""
    return next((r for r in active.block.registers if slot in r.slots), None)


def _element(active: Threads, held: RegisterBuffer | None, lost: Lost, thread: int) -> Index | None:
    """The element that `thread` holds in the slot."""
    if held is None:
        return None
    t = held.value.buffer
    slot = held.slots.index(lost.slot)
    register = lost.part if held.is_array else slot * held.pack + lost.part
    if t.layout is None or t.space != "fragment":
        inside = register < int(np.prod(t.static_shape))
        return _unravelled(register, t.static_shape) if inside else None
    first = first_warps(active.block.func.body).get(held.value, 0)
    warp, lane = divmod(thread, active.block.warp_size)
    owners = t.layout.flat("warp", "lane", "reg")
    at = (warp - first, lane, register)
    if not all(0 <= i < n for i, n in zip(at, owners.shape)):
        return None
    return _unravelled(int(owners[at]), t.static_shape)


def _unravelled(flat: int, shape: tuple[int, ...]) -> Index:
    return tuple(int(i) for i in np.unravel_index(flat, shape))
