"""What is known of an integer while code is printed: the smallest and largest value it can have.

The emitter meets every value once, in order, so a table from its spelling to an interval is enough. It
decides when a division that rounds to minus infinity is LLVM's unsigned one, when an addition cannot wrap,
and which comparisons are decided already. Only what is proved enters: a thread's index, a literal loop's
index, sizes (not negative), and what arithmetic makes of these without leaving the type.
"""

from __future__ import annotations

from collections.abc import Callable

from tilec.ir.llvm import Val

Interval = tuple[int, int]

WIDTH = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}


def limits(type: str) -> Interval:
    """The signed range of an LLVM integer type."""
    half = 1 << (WIDTH[type] - 1)
    return -half, half - 1


class Ranges:
    """Intervals of signed integer values, by their spelling in the function being printed."""

    def __init__(self) -> None:
        self._known: dict[str, Interval] = {}

    def get(self, v: Val) -> Interval:
        """The interval of `v` (of an integer type); the whole type where nothing is known."""
        if v.literal is not None:
            return v.literal, v.literal
        return self._known.get(v.ref) or limits(v.type)

    def set(self, v: Val, lo: int, hi: int) -> Val:
        """Note that `v` lies in [lo, hi] (ignored where its type says no more); returns `v`."""
        if v.literal is None:
            low, high = limits(v.type)
            if lo > low or hi < high:
                self._known[v.ref] = (max(lo, low), min(hi, high))
        return v

    def nonneg(self, v: Val) -> bool:
        """Whether `v`, read as a signed number, cannot be negative."""
        if v.literal is not None:
            return v.literal >= 0
        known = self._known.get(v.ref)
        return known is not None and known[0] >= 0

    def result(self, kind: str, a: Val, b: Val) -> Interval | None:
        """The interval of the mathematical result of a `Binary` kind, None where nothing can be said. It may
        lie outside the type: then the operation can wrap."""
        rule = _RULES.get(kind)
        return rule(self.get(a), self.get(b)) if rule else None

    def decided(self, kind: str, a: Val, b: Val) -> bool | None:
        """The answer of a comparison where the intervals give it."""
        (al, ah), (bl, bh) = self.get(a), self.get(b)
        match kind:
            case "lt" | "ge":
                sure, never = ah < bl, al >= bh
            case "le" | "gt":
                sure, never = ah <= bl, al > bh
            case _:
                sure, never = False, ah < bl or bh < al
        if kind in ("ge", "gt", "ne"):
            sure, never = never, sure
        return True if sure else False if never else None


def _corners(fn: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    def rule(a: Interval, b: Interval) -> Interval:
        found = [fn(x, y) for x in a for y in b]
        return min(found), max(found)

    return rule


def _divided(a: Interval, b: Interval) -> Interval | None:
    if b[0] <= 0:
        return None
    found = [x // y for x in a for y in b]
    return min(found), max(found)


def _remainder(a: Interval, b: Interval) -> Interval | None:
    if b[0] <= 0:
        return None
    return (0, min(a[1], b[1] - 1)) if a[0] >= 0 else (0, b[1] - 1)


def _truncated(
    rule: Callable[[Interval, Interval], Interval | None],
) -> Callable[[Interval, Interval], Interval | None]:
    return lambda a, b: rule(a, b) if a[0] >= 0 else None


def _and(a: Interval, b: Interval) -> Interval | None:
    tops = [i[1] for i in (a, b) if i[0] >= 0]
    return (0, min(tops)) if tops else None


def _or(a: Interval, b: Interval) -> Interval | None:
    if a[0] < 0 or b[0] < 0:
        return None
    return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1


def _shl(a: Interval, b: Interval) -> Interval | None:
    if b[0] < 0 or b[1] > 63:
        return None
    return _corners(lambda x, y: x << y)(a, b)


def _shr(a: Interval, b: Interval) -> Interval | None:
    if b[0] < 0 or b[1] > 63:
        return None
    return _corners(lambda x, y: x >> y)(a, b)


_RULES: dict[str, Callable[[Interval, Interval], Interval | None]] = {
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "mul": _corners(lambda x, y: x * y),
    "floordiv": _divided,
    "mod": _remainder,
    "truncdiv": _truncated(_divided),
    "truncmod": _truncated(_remainder),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "and": _and,
    "or": _or,
    "xor": _or,
    "shl": _shl,
    "shr": _shr,
}
