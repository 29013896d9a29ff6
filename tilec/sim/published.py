"""What a block of a cluster may read in the shared memory of the others.

An arrival at another block's mbarrier orders what asynchronous engines did, and no more, unless it
is a release at the scope of the cluster and the wait an acquire at that scope (PTX ISA, "Memory
Consistency Model", sections "Scope" and "Release-Acquire Patterns"). The clocks of `order` make no
difference between scopes; here is kept, for each block, up to when it knows at the scope of the
cluster what each thread did. What is known of a thread of another block without it may be read by
engines only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilec.sim.memory import inside
from tilec.sim.order import Clock, Times

if TYPE_CHECKING:
    from tilec.sim.block import Block
    from tilec.sim.shadow import Shadow

Numbers = NDArray[np.int64]


class Published:
    """`times[r]`: up to when what the cluster's thread r did has been published to this block."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.times: Times = np.zeros(block.order.clocks.rows, np.int32)

    def meet(self) -> None:
        """All threads of the cluster have met."""
        self.times[:] = self.block.order.mark()

    def release(self, clock: Clock) -> Times:
        """What threads of this block publish when they have `clock` behind them: all of it that
        their own block did, and what had been published to it."""
        order = self.block.order
        mine = slice(order.base, order.base + self.block.threads)
        times = np.minimum(clock.seen[: len(self.times)], self.times)
        times[mine] = clock.seen[mine]
        return times

    def acquire(self, times: Times) -> None:
        """A wait at the scope of the cluster has ended."""
        np.maximum(self.times, times, out=self.times)

    def unknown(self, shadow: Shadow, places: Numbers, size: int) -> Any:
        """The record that wrote any of the `size` bytes at the addresses, in the shared memory of
        another block, without having published it to this one; None if there is none."""
        first = inside(places) // shadow.granule
        granules = first[:, None] + np.arange(max(size // shadow.granule, 1))
        granules = np.clip(granules, 0, shadow.count - 1)  # what is outside has been reported
        wrote, who = shadow.w_time[granules], shadow.w_actor[granules]
        threads = who < len(self.times)
        bad = threads & (wrote >= self.times[np.where(threads, who, 0)])
        return shadow.clocks.log[int(wrote[bad][0])] if bad.any() else None
