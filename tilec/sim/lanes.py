"""Values on their way between the lanes of a warp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tilec.sim.agent import Agent

Ints = NDArray[np.int64]


def whole_warps(m: Agent) -> bool:
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


def gather(m: Agent, value: Any, source: Any) -> Any:
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


def lane_numbers(m: Agent) -> Ints:
    """Of each thread its number in its warp."""
    numbers: Ints = m.lanes % m.block.warp_size
    return numbers


def first_lane(m: Agent, value: Any) -> Any:
    """In every thread the value of the first lane of its warp that is here."""
    if np.ndim(value) == 0:
        return value
    warps = m.lanes // m.block.warp_size
    _, first, of = np.unique(warps, return_index=True, return_inverse=True)
    return value[first[of]]
