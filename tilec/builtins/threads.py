"""Threads: who they are, where they meet, what they say to one another."""

from __future__ import annotations

from builtins import int as _Int
from typing import Any

__all__ = [
    "get_thread_bindings", "get_block_bindings", "get_lane_idx", "get_warp_idx",
    "get_warp_idx_sync", "get_warp_group_idx", "sync_threads", "sync_grid", "sync_warp",
    "shfl_sync", "shfl_xor", "shfl_up", "shfl_down", "warp_reduce_sum", "warp_reduce_max",
    "warp_reduce_min", "warp_reduce_bitand", "warp_reduce_bitor", "thread_return",
]  # fmt: skip

ALL_LANES = 0xFFFFFFFF


def thread_return() -> None:
    """The thread is done: a `return`, which may also stand in a macro. Not in a loop that runs at
    run time."""


def get_thread_bindings() -> Any:
    """This thread's index along the three dimensions of its block: `tx, ty, tz`."""


def get_block_bindings() -> Any:
    """This block's index along the three axes of the grid."""


def get_lane_idx(warp_size: _Int | None = None) -> Any:
    """This thread's index in its warp; `warp_size`: by default that of the target, 32 on NVIDIA
    and the CPU, 64 on AMD."""


def get_warp_idx(warp_size: _Int | None = None) -> Any:
    """The index of this thread's warp in its block."""


def get_warp_idx_sync(warp_size: _Int | None = None) -> Any:
    """The same as `get_warp_idx`."""


def get_warp_group_idx(warp_size: _Int | None = None, warps_per_group: _Int | None = 4) -> Any:
    """The index of this thread's group of `warps_per_group` warps (None: 4) in its block."""


def sync_threads(barrier_id: Any = None, arrive_count: _Int | None = None) -> None:
    """All threads of the block meet here (in a `T.ws`: those of the group), and see what the others
    have written to memory before. `barrier_id`, 1 to 15: at that barrier, `arrive_count` threads
    meet (whole warps of 32, by default the block), wherever they come from.

    `barrier_id` may be a run-time int, the same for all threads of a warp: those that name one
    number meet, as in `T.sync_threads(1 + tx // 64, 64)`. What tiles exchange stays in order
    beside it. Where barriers have no numbers (the CPU, AMD) all threads that come meet instead.
    A number at run time that no barrier has is found by the simulator; on a GPU it is undefined.

    Raises CompileError under a condition that is not the same for all of them, for other numbers,
    and, for a part of the block, on targets without such barriers (AMD's). Warns where a warp may
    name several numbers.
    """


def sync_grid() -> None:
    """All blocks have done what stands before it when one does what stands behind.

    Where it stands in the body of `T.Kernel` itself, and a block needs nothing behind it that it
    has made before but indices, sizes and what it can compute again, the kernel is split there into
    launches that follow one another: grids may have any size.

    Elsewhere, in loops, conditions and functions, and where something lives across it on chip, the
    blocks wait for one another at a counter of the launch's own: a cooperative launch, of which all
    blocks run at once. Raises LaunchError for more blocks than that (the CPU, where each is a
    thread of its own, has 1,024). All blocks must come: a loop or a condition around it that may
    differ between blocks is a CompileWarning, and a deadlock in the simulator where it does. In
    `T.Parallel`, as a statement of the loop's own body, it makes two loops of it.

    Raises CompileError where a part of a block's threads comes only.
    """


def sync_warp(mask: _Int | None = None) -> None:
    """The threads of each warp meet here, and see what the others have written. `mask`: all lanes
    take part, whatever it says."""


def shfl_sync(value: Any, srcLane: Any, width: _Int = 32, mask: _Int = ALL_LANES) -> Any:  # noqa: N803
    """`value` as lane `srcLane` of the warp has it. All lanes take part.

    `width`: a power of two up to the lanes of a warp; lanes are numbered within groups of so many.
    Raises CompileError in `T.Parallel`, whose iterations are not bound to threads, and where the
    threads of a warp may have gone different ways.
    """


def shfl_xor(value: Any, delta: Any, width: _Int = 32, mask: _Int = ALL_LANES) -> Any:
    """`value` as the lane has it whose number differs in the bits of `delta`; see `shfl_sync`."""


def shfl_up(value: Any, delta: Any, width: _Int = 32, mask: _Int = ALL_LANES) -> Any:
    """`value` as the lane `delta` below has it; the first `delta` lanes of each group keep their
    own. See `shfl_sync`."""


def shfl_down(value: Any, delta: Any, width: _Int = 32, mask: _Int = ALL_LANES) -> Any:
    """`value` as the lane `delta` above has it; the last `delta` lanes of each group keep their
    own. See `shfl_sync`."""


def warp_reduce_sum(value: Any) -> Any:
    """The sum of `value` over the warp, in its dtype, the same bits in all lanes."""


def warp_reduce_max(value: Any) -> Any:
    """The largest `value` of the warp; a nan is left out, as by `T.max`."""


def warp_reduce_min(value: Any) -> Any:
    """The smallest `value` of the warp; a nan is left out, as by `T.min`."""


def warp_reduce_bitand(value: Any) -> Any:
    """The bits that `value` has in all lanes of the warp."""


def warp_reduce_bitor(value: Any) -> Any:
    """The bits that `value` has in any lane of the warp."""
