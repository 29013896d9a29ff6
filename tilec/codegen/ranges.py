"""What is known of an integer while code is printed: the smallest and largest value it can have.

The emitter meets every value once, in order, so a table from its spelling to an interval is enough.
It decides when a division that rounds to minus infinity is LLVM's unsigned one, when an addition
cannot wrap, and which comparisons are decided already. Only what is proved enters: a thread's
index, a literal loop's index, sizes (not negative), and what arithmetic makes of these without
leaving the type.
"""

from __future__ import annotations

import functools

from tilec.codegen.lanes import literal_of
from tilec.ir.intervals import RANGES, Range, decide
from tilec.ir.llvm import Val, elem_of

Interval = tuple[int, int]

WIDTH = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}


@functools.cache
def limits(type: str) -> Interval:
    """The signed range of an LLVM integer type, or of a vector's elements."""
    half = 1 << (WIDTH[elem_of(type)] - 1)
    return -half, half - 1


class Ranges:
    """Intervals of signed integer values, by their spelling in the function being printed."""

    def __init__(self) -> None:
        self._known: dict[str, Interval] = {}

    def get(self, v: Val) -> Interval:
        """The interval of `v` (of an integer type); the whole type where nothing is known."""
        if v.literal is not None:
            return v.literal, v.literal
        known = self._known.get(v.ref)
        if known is not None:
            return known
        number = literal_of(v)
        return limits(v.type) if number is None else (number, number)

    def set(self, v: Val, lo: int, hi: int) -> Val:
        """Note that `v` lies in [lo, hi], in place of what was known; returns `v`."""
        if v.literal is None:
            low, high = limits(v.type)
            self._known[v.ref] = (max(lo, low), min(hi, high))
        return v

    def nonneg(self, v: Val) -> bool:
        """Whether `v`, read as a signed number, cannot be negative."""
        if v.literal is not None:
            return v.literal >= 0
        known = self._known.get(v.ref)
        return known is not None and known[0] >= 0

    def result(self, kind: str, a: Val, b: Val) -> Interval | None:
        """The interval of the mathematical result of a `Binary` kind; None where it can leave the
        type (the operation can wrap) or nothing can be said."""
        rule = RANGES.get(kind)
        if rule is None:
            return None
        lo, hi = rule(self.get(a), self.get(b))
        low, high = limits(a.type)
        return (lo, hi) if lo is not None and hi is not None and low <= lo and hi <= high else None

    def decided(self, kind: str, a: Val, b: Val) -> bool | None:
        """The answer of a comparison where the intervals give it."""
        found: Range = decide(kind, self.get(a), self.get(b))
        return bool(found[0]) if found[0] == found[1] else None
