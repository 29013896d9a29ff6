"""A kernel as the simulator runs it: segments, and what follows each.

A segment is a part of a basic block that ends at a branch or at a record that may wait. What lives
across segments is in their `env`, a list; `Segment.live_in` says which of it is still needed,
so that little is copied where the lanes of a warp part. `records` makes a program of a kernel's
records, `scheduler` goes from segment to segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilec.ir.llvm import Inst


@dataclass(frozen=True, slots=True)
class Const:
    """An operand that is a number."""

    value: Any


NOWHERE = -1
"""Where lanes meet that do not meet before they end."""

Operand = int | Const
"""A slot of `env`, or a number."""


def operand_value(env: Sequence[Any], operand: Operand) -> Any:
    """What an operand holds."""
    return env[operand] if type(operand) is int else operand.value  # type: ignore[union-attr]


@dataclass(slots=True)
class Edge:
    """Going on at the segment `target`; `copies` are its phis: (slot, operand)."""

    target: int
    copies: tuple[tuple[int, Operand], ...] = ()


@dataclass(slots=True)
class Branch:
    """`beside`: the slots that are needed where lanes meet again and that nobody touches before
    (None: not looked for)."""

    cond: Operand
    then: Edge
    orelse: Edge
    merge: int
    inst: Inst
    beside: frozenset[int] | None = None


@dataclass(slots=True)
class Wait:
    """A record that may wait; its results go to `result`."""

    inst: Inst
    args: tuple[Operand, ...]
    result: int | None
    next: int


End = Edge | Branch | Wait | None


@dataclass(slots=True)
class Segment:
    """`run(active, env)` executes it, and reads or writes the slots `touched`; `end` is what
    follows: None where the thread ends."""

    index: int
    label: str
    insts: list[Inst]
    end: End = None
    live_in: tuple[int, ...] = ()
    touched: frozenset[int] = frozenset()
    run: Any = None


@dataclass(frozen=True, slots=True)
class LoadStore:
    """A load or store: `count` elements of the LLVM type `kind`; `space` "global", "shared" or
    "constant"."""

    inst: Inst
    space: str
    kind: str
    count: int
    vector: bool
    align: int
    bytes: int


@dataclass(slots=True)
class Program:
    """All segments; `params[i]` is the slot of parameter i (None: it is not used). `granule`: bytes
    in which accesses to shared memory may be told apart, a power of two up to 16 that divides the
    address and size of each."""

    segments: list[Segment]
    slots: int
    params: list[int | None]
    start: list[Any]
    granule: int
