"""Votes: what the threads of a warp, or of a block, say together.

By shuffles and shared memory, on every target alike. Threads that the kernel did not ask for, of a
block whose number is no multiple of a warp, have no say."""

from typing import Any

from tilec.builtins.threads import ALL_LANES

__all__ = [
    "activemask", "all_sync", "any_sync", "ballot", "ballot_sync", "get_block_extent",
    "get_block_extents", "get_thread_extent", "get_thread_extents", "match_all_sync",
    "match_any_sync", "shuffle_elect", "syncthreads_and", "syncthreads_count", "syncthreads_or",
]  # fmt: skip


def get_thread_extent(dim: int = 0) -> Any:
    """How many threads a block has along a dimension: an int. Raises CompileError where the
    number is left to tilec."""


def get_thread_extents() -> Any:
    """How many threads a block has along its three dimensions."""


def get_block_extent(dim: int = 0) -> Any:
    """How many blocks the grid has along a dimension."""


def get_block_extents() -> Any:
    """How many blocks the grid has along its three dimensions."""


def any_sync(predicate: Any, mask: Any = ALL_LANES) -> Any:
    """1 if `predicate` (a bool or an int) holds in any lane of the warp, else 0. `mask`: the lanes
    that have a say, a bit for each. All lanes of the warp must come here.

    Raises CompileError in `T.Parallel`, for a float, and where the threads of a warp may have gone
    different ways; so do all votes.
    """


def all_sync(predicate: Any, mask: Any = ALL_LANES) -> Any:
    """1 if `predicate` holds in all lanes of the warp, else 0; see `any_sync`."""


def ballot_sync(predicate: Any, mask: Any = ALL_LANES) -> Any:
    """The lanes of the warp where `predicate` holds: a uint64 with a bit for each; see
    `any_sync`."""


def ballot(predicate: Any) -> Any:
    """`ballot_sync` of all lanes."""


def activemask() -> Any:
    """The lanes of the warp that the kernel asked for: a uint64 with a bit for each."""


def match_any_sync(value: Any, mask: Any = ALL_LANES) -> Any:
    """The lanes of the warp that have the same `value` as this one: a uint32 with a bit for each
    (of 32 lanes); see `any_sync`."""


def match_all_sync(value: Any, mask: Any = ALL_LANES) -> Any:
    """`mask` if its lanes all have the same `value`, else 0; see `any_sync`."""


def shuffle_elect(thread_extent: int = 0) -> Any:
    """Whether this thread is the first of its group of `thread_extent` threads (0: of the
    block)."""


def syncthreads_count(predicate: Any) -> Any:
    """In how many threads of the block `predicate` holds: an int32. All of them meet here; raises
    CompileError under a condition that is not the same for all."""


def syncthreads_and(predicate: Any) -> Any:
    """1 if `predicate` holds in all threads of the block, else 0; see `syncthreads_count`."""


def syncthreads_or(predicate: Any) -> Any:
    """1 if `predicate` holds in any thread of the block, else 0; see `syncthreads_count`."""
