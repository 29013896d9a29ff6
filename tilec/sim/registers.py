"""What a thread's stack slot is to the user: a fragment's or a variable's element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.llvm import Inst
from tilec.ir.loc import UNKNOWN, Loc
from tilec.sim.buffers import RegisterBuffer, first_warps
from tilec.sim.findings import MOST_NAMED, Index
from tilec.sim.threads import Threads
from tilec.sim.undefined import POISON, VARIABLE, Lost, Partly, is_poison, lost_parts


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
        what = _spelled(name, indices[0] if indices else None) if name else "a value"
        read = "read" if name else "used here"
        active.block.report(
            active,
            "uninitialised read",
            f"{what} is {read}, and nobody has written it",
            *(loc for loc in (lost.loc, inst.loc) if loc is not UNKNOWN),
            buffer=name,
            indices=list(dict.fromkeys(indices)),
            threads=(sure if len(sure) else lanes).tolist(),
        )


def tell_behaviour(active: Threads, inst: Inst, message: str, bad: Any, *others: Loc) -> None:
    """Report that what `inst` does is undefined in the lanes in which `bad` holds."""
    if active.block.checks:
        active.block.report(
            active,
            "undefined behaviour",
            message,
            *(loc for loc in (inst.loc, *others) if loc is not UNKNOWN),
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
    shape = f"({', '.join(map(str, extents))}{',' * (len(extents) == 1)})"
    active.block.report(
        active,
        "out of bounds",
        f"{_spelled(inst.buffer, found[0])}; {inst.buffer} has the shape {shape}",
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


def _spelled(name: str, index: Index | None) -> str:
    return f"{name}[{', '.join(map(str, index))}]" if index else name
