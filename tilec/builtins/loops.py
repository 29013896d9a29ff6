"""Loops of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Parallel", "Pipelined", "serial", "unroll", "vectorized", "Persistent"]


def Parallel(*extents: Any, coalesced_width: int | None = None, loop_layout: Any = None) -> Any:
    """`for i, j in T.Parallel(m, n):` iterations in any order, spread over the block's threads.

    Extents are ints; those that only a call gives make it a loop over tiles. An iteration must not
    read what another one writes, nor update (`+=`) what another one updates: see docs/language.md.
    Raises CompileError where that is certain or the index of an update is read from memory; warns
    (CompileWarning) where it may be.

    `coalesced_width`: the most elements of a row that a thread has side by side.
    `loop_layout`: a `T.Fragment` of the extents, which says which thread runs which iteration;
    targets without threads, and loops that each thread runs for itself, leave it out.
    """


def Pipelined(
    start: Any,
    stop: Any = None,
    num_stages: int | None = None,
    order: Sequence[int] | None = None,
    stage: Sequence[int] | None = None,
    reversible: bool = False,
    group: Sequence[Sequence[int]] | None = None,
) -> Any:
    """A loop whose copies run at least `num_stages` iterations ahead of its computation.

    0 or 1 in a loop without a tile product: nothing runs ahead (nor does it in `T.serial`). Without
    a number, and in a loop with a tile product where more than `num_stages` fit: as many as fit in
    shared memory, at most 8. `annotate_schedule(stages=)` fixes the number. A copy from global to
    shared memory runs ahead, at the top of the body or under a condition, where it fills its buffer
    whole before that is read, or copies beside it (in a short loop: pages of a cache) fill the
    rest; several loops may fill one buffer. Where producer warps bring tiles (TMA), so do copies in
    front of the loop or in loops inside. A PerformanceWarning says why another copy of a loop with
    `num_stages` does not, the stage `plan` what does.

    A `break` in it is allowed (the same in all threads of a block), but then nothing runs ahead.
    `order` and `stage` have one int per statement of the body that acts (a copy, a product, a loop
    over elements …): its place in the code, and in which stage of the pipeline it works. Copies of
    stage s run as many iterations ahead as the last stage is above s; those of the last stage do
    not. -1 leaves a statement to tilec. What one iteration computes stays as it is written: data
    that a later stage needs decide the order. Where products run beside what threads compute
    (wgmma), statements of neighbouring stages are an iteration apart, in the order of `order`; a
    PerformanceWarning says why they are not where that cannot be. With `group`, lists of the
    statements' numbers, both have one int per group, whose statements stay together. Raises
    CompileError for lists that do not fit the body, orders against data, and stages before that of
    what is read.
    `reversible`: the iterations may run in the opposite order.
    """


def serial(start: Any, stop: Any = None, step: int = 1) -> Any:
    """An ordinary loop, the same as `range`."""


def unroll(start: Any, stop: Any = None, step: int = 1) -> Any:
    """A loop whose iterations are written out in the compiled code."""


def vectorized(start: Any, stop: Any = None) -> Any:
    """A loop whose iterations become one vector instruction where that can be done."""


def Persistent(domain: Any, wave_size: Any = None, index: Any = None, group_size: int = 8) -> Any:
    """`for bx, by in T.Persistent([gx, gy], num_blocks, block):` the tiles that fall to this block.

    Tiles are dealt round robin to `wave_size` blocks (default: the whole grid), of which this is
    `index` (default: this block). Neighbouring tiles come in groups of `group_size` along the
    first dimension, which then varies fastest, for the L2 cache. Every tile is visited once.
    """
