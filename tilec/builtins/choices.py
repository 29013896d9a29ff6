"""What an author leaves to tilec or takes from it: `T.auto` and `T.annotate_schedule`.

These names are used as `T.auto`, … : `tilec.language` has them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.ir.caller import caller_loc
from tilec.ir.errors import CompileError, shown

__all__ = ["Auto", "annotate_schedule", "auto"]

DEFAULT_VALUES = (16, 32, 64, 128, 192, 224, 256)
"""Not only powers of two: 192 fills registers where 256 does not fit, and 14336, the width of many
feed-forward layers, is 64 tiles of 224: with two rows of tiles few of 132 units are idle."""

FINE = 8
"""Its multiples are tried as well where a launch has few tiles: 1536x1536 are 128 tiles of 192x96,
and 333 rows are two of 168."""


@dataclass(frozen=True, eq=False, slots=True)
class Auto:
    """A compile-time parameter that tilec chooses for each problem size; see `auto`."""

    values: tuple[int, ...] = DEFAULT_VALUES

    @property
    def fine(self) -> int:
        """Whose multiples are tried beside the values where a launch has few tiles; 0: none."""
        return FINE if self.values == DEFAULT_VALUES else 0

    def __call__(self, *values: int) -> Auto:
        for v in values:
            if not isinstance(v, int) or isinstance(v, bool) or v < 1:
                message = f"T.auto chooses among positive ints, {shown(v)} is none"
                hint = "write BM: T.constexpr = T.auto(64, 128, 256)"
                raise CompileError(message, caller_loc(), hint=hint)
        if not values:
            hint = "write T.auto without parentheses, or T.auto(64, 128, 256)"
            raise CompileError("T.auto() lists nothing to choose from", caller_loc(), hint=hint)
        return Auto(tuple(dict.fromkeys(values)))

    def __repr__(self) -> str:
        return "T.auto" if self.values == DEFAULT_VALUES else f"T.auto{self.values}"


auto = Auto()
"""`BM: T.constexpr = T.auto` or `= T.auto(64, 128, 256)`: a tile parameter left to tilec.

Chosen at a launch by the predicted time for the sizes at hand (docs/schedules.md), among the ints
listed, or 16, 32, 64, 128, 192, 224 and 256, where there are few tiles other multiples of 8 as
well. An argument of a call wins. Raises CompileError for what is not a positive int."""


def annotate_schedule(
    *,
    persistent: bool | None = None,
    specialise: bool | None = None,
    consumers: str | None = None,
    cluster: int | Sequence[int] | None = None,
    split: int | Sequence[int] | None = None,
    raster_group: int | None = None,
    store: str | None = None,
    overlap: bool | None = None,
    roles: bool | None = None,
    stages: int | None = None,
) -> None:
    """Fix parts of the schedule; what is not named stays tilec's choice.

    `persistent`: as many blocks as the machine holds, each of which walks over the grid.
    `specialise`: warps of their own bring tiles by TMA. `consumers`: "cooperative" (all threads
    share a tile) or "pingpong" (two groups, each with tiles of its own, take turns; 128 threads
    each). `cluster`: neighbours along the grid's dimensions that load what they share once.
    `split`: blocks that share one sum, as a cluster or through global memory; two numbers are the
    blocks of a cluster, and how many such clusters share it. `raster_group`: blocks along grid
    dimension 1 that are visited before dimension 0 advances. `store`: "tma" (through shared memory)
    or "direct". `overlap`: threads compute with the result of one product of an iteration while
    others run (a softmax beside the products of attention). `roles`: the products in front of such
    a computation and those behind it in groups of 128 threads of their own. `stages`: stages of the
    buffers of each T.Pipelined, also where num_stages (above 1) asks for others.

    The CPU target has no schedules and ignores it. Raises ResourceError where a GPU target cannot
    hold such a schedule, and says what would fit.
    """
