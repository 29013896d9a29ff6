"""Threads that execute a record together, the block that they are of, and values on their way
between the lanes of a warp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.core import Func
from tilec.ir.instr.semantics import Waits
from tilec.ir.llvm import Inst
from tilec.ir.loc import Loc
from tilec.ir.ops import Scope
from tilec.sim.buffers import RegisterBuffer
from tilec.sim.clocks import Ints, Order
from tilec.sim.findings import Findings, Kind
from tilec.target import Target

Coordinates = tuple[int, int, int]


class BlockInfo:
    """What every part of the simulator may know of the block that it works for.

    `cluster_dims`: the blocks of a cluster. `registers`: the user's buffers that threads hold in
    stack slots. `executing`: the last instruction or store that any of its threads came to."""

    func: Func
    target: Target
    findings: Findings
    registers: Sequence[RegisterBuffer]
    checks: bool
    threads: int
    warp_size: int
    grid: Coordinates
    cluster_dims: Coordinates
    index: Coordinates
    order: Order
    executing: Inst | None

    def report(
        self,
        active: Threads | None,
        kind: Kind,
        message: str,
        *locations: Loc,
        threads: Sequence[int] = (),
        warps: Sequence[int] = (),
        **about: Any,
    ) -> None:
        """A fault of this block, `about` as of `Findings.add`. Without `threads` the active ones
        are meant."""
        if not len(threads) and active is not None and "details" not in about:
            threads = active.lanes.tolist()
        if not len(warps):
            warps = sorted({int(t) // self.warp_size for t in threads})
        about |= {"threads": threads, "warps": warps, "roles": roles_of(self.func, warps)}
        self.findings.add(kind, message, locations, block=self.index, **about)


class Threads:
    """Threads of one block that execute a record together: `lanes` are their numbers, sorted,
    `inst` is the record, `waiting` what has to come true before they go on."""

    __slots__ = ("block", "inst", "lanes", "waiting")

    def __init__(self, block: BlockInfo, lanes: Ints) -> None:
        self.block, self.lanes = block, lanes
        self.inst: Inst | None = None
        self.waiting: Waits | None = None

    def full(self, x: Any) -> NDArray[Any]:
        """A value with one number per lane."""
        if type(x) is np.ndarray and x.shape == self.lanes.shape:
            return x
        return np.broadcast_to(x, self.lanes.shape)

    @property
    def buffer(self) -> str:
        """The user's name of what the record accesses, "" if it has none."""
        return self.inst.buffer if self.inst is not None else ""

    def report(self, kind: Kind, message: str, *others: Inst | None, **about: Any) -> None:
        """A fault of the record, in which `others` have a part; `buffer` if it is not the one that
        the record names."""
        places = [i.loc for i in (self.inst, *others) if i is not None]
        self.block.report(self, kind, message, *places, **{"buffer": self.buffer, **about})


def roles_of(func: Func, warps: Sequence[int]) -> tuple[str, ...]:
    """What these warps do, by the names of their scopes; nothing where all do the same."""
    scopes = [*func.body.every(Scope)]
    found = [
        o.name for o in scopes if any(o.first_warp <= w < o.first_warp + o.warps for w in warps)
    ]
    return tuple(dict.fromkeys(found))


# --- lanes of a warp ---


def whole_warps(m: Threads) -> bool:
    """Whether every warp of which a lane is here is here whole, as far as the block has it;
    reports it where not."""
    size, lanes = m.block.warp_size, m.lanes
    threads = m.block.threads
    if len(lanes) == threads:
        return True
    warps, counts = np.unique(lanes // size, return_counts=True)
    wanted = np.minimum(size, threads - warps * size)
    missing = warps[counts != wanted]
    if not len(missing):
        return True
    absent = np.setdiff1d(np.arange(missing[0] * size, (missing[0] + 1) * size), lanes)
    m.block.report(
        m,
        "barrier divergence",
        f"all lanes of a warp must come here together; of warp {missing[0]} lane "
        f"{absent[0] % size} is elsewhere",
        threads=[int(t) for t in absent],
        warps=[int(w) for w in missing],
    )
    return False


def gather(m: Threads, value: Any, source: Any) -> Any:
    """`value` as it is in lane `source` of each thread's warp. Where that lane is not here, which
    is reported, a thread keeps its own."""
    here = whole_warps(m)
    if np.ndim(value) == 0:
        return value
    size, lanes = m.block.warp_size, m.lanes
    wanted = lanes // size * size + source
    if len(lanes) == m.block.threads and here:
        known = wanted < len(lanes)
        at = np.where(known, wanted, lanes)
    else:
        found = np.minimum(np.searchsorted(lanes, wanted), len(lanes) - 1)
        known = lanes[found] == wanted
        at = np.where(known, found, np.arange(len(lanes)))
    return value[at]


def lane_numbers(m: Threads) -> Ints:
    """Of each thread its number in its warp."""
    numbers: Ints = m.lanes % m.block.warp_size
    return numbers


def first_lane(m: Threads, value: Any) -> Any:
    """In every thread the value of the first lane of its warp that is here."""
    if np.ndim(value) == 0:
        return value
    warps = m.lanes // m.block.warp_size
    _, first, of = np.unique(warps, return_index=True, return_inverse=True)
    return value[first[of]]
