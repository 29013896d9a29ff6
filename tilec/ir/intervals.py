"""Interval arithmetic on integers: a range is (lo, hi), both included, None where there is no
bound.

Each function gives a range that holds every result of the op on operands from the given ranges,
before any wrapping: who calls it asks whether the result fits its dtype. (None, None) means
nothing is known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tilec.ir.types import DType

Range = tuple[int | None, int | None]
MOST = 1 << 62  # the divisor of zero


def dtype_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype (bool: 0 and 1)."""
    return dtype.limits


def low_bit(n: int) -> int:
    """Largest power of two that divides `n`."""
    return n & -n if n else MOST


def add(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def negate(r: Range) -> Range:
    return (None if r[1] is None else -r[1], None if r[0] is None else -r[0])


def union(a: Range, b: Range) -> Range:
    lo = None if a[0] is None or b[0] is None else min(a[0], b[0])
    hi = None if a[1] is None or b[1] is None else max(a[1], b[1])
    return lo, hi


def _mul(a: Range, b: Range) -> Range:
    if None not in a and None not in b:
        ends = [x * y for x in a for y in b if x is not None and y is not None]
        return min(ends), max(ends)
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        return a[0] * b[0], None
    constant, other = (a, b) if a[0] == a[1] and a[0] is not None else (b, a)
    if constant[0] is None or constant[0] != constant[1]:
        return None, None
    n, (lo, hi) = constant[0], other if constant[0] >= 0 else negate(other)
    return None if lo is None else lo * abs(n), None if hi is None else hi * abs(n)


def _divisor(b: Range) -> Range:
    """A divisor's range without zero, where it has no sign."""
    return (1, b[1]) if b[0] == 0 and b[1] != 0 else b


def _floordiv(a: Range, b: Range) -> Range:
    by_zero = b[0] == 0  # gives 0
    b = _divisor(b)
    if b[0] is None or b[0] < 1 or (b[1] is not None and b[1] < b[0]):  # or there is none
        return None, None
    least, most = b[0], b[1]
    lo, hi = a
    if lo is not None:
        lo = lo // least if lo < 0 else (0 if most is None else lo // most)
    if hi is not None:
        hi = hi // least if hi >= 0 else (-1 if most is None else hi // most)
    return union((lo, hi), (0, 0)) if by_zero else (lo, hi)


def _mod(a: Range, b: Range) -> Range:
    b = _divisor(b)
    if b[0] is None or b[0] < 1:
        return None, None
    if a[0] is not None and a[1] is not None and 0 <= a[0] and a[1] < b[0]:
        return a
    most = add(b[1], -1)
    if a[0] is not None and a[0] >= 0 and a[1] is not None:
        most = a[1] if most is None else min(most, a[1])
    return 0, most


def _truncdiv(a: Range, b: Range) -> Range:
    if a[0] is not None and a[0] >= 0:
        return _floordiv(a, b)
    b = _divisor(b)
    if b[0] is None or b[0] < 1:
        return None, None
    lo = None if a[0] is None else -(-a[0] // b[0])
    hi = None if a[1] is None else max(a[1] // b[0], 0)
    return lo, hi


def _truncmod(a: Range, b: Range) -> Range:
    if a[0] is not None and a[0] >= 0:
        return _mod(a, b)
    if b[0] is None or b[0] < 1 or b[1] is None:
        return None, None
    return 1 - b[1], b[1] - 1


def _min(a: Range, b: Range) -> Range:
    his = [x for x in (a[1], b[1]) if x is not None]
    return union(a, b)[0], min(his) if his else None


def _and(a: Range, b: Range) -> Range:
    his = [r[1] for r in (a, b) if r[0] is not None and r[0] >= 0 and r[1] is not None]
    if not any(r[0] is not None and r[0] >= 0 for r in (a, b)):
        return None, None
    return 0, min(his) if his else None


def _or(a: Range, b: Range) -> Range:
    if a[0] is None or b[0] is None or a[0] < 0 or b[0] < 0:
        return None, None
    if a[1] is None or b[1] is None:
        return 0, None
    return 0, (1 << max(a[1], b[1]).bit_length()) - 1


def _shifted(by: Callable[[Range, Range], Range], a: Range, b: Range) -> Range:
    """By so many bits: a product with powers of two, or a division by them."""
    if b[0] is None or b[1] is None or not 0 <= b[0] <= b[1] < 64:
        return None, None
    return by(a, (1 << b[0], 1 << b[1]))


RANGES: dict[str, Callable[[Range, Range], Range]] = {
    "add": lambda a, b: (add(a[0], b[0]), add(a[1], b[1])),
    "sub": lambda a, b: (add(a[0], negate(b)[0]), add(a[1], negate(b)[1])), "mul": _mul,
    "floordiv": _floordiv, "mod": _mod, "truncdiv": _truncdiv, "truncmod": _truncmod, "min": _min,
    "max": lambda a, b: negate(_min(negate(a), negate(b))), "and": _and, "or": _or, "xor": _or,
    "shl": functools.partial(_shifted, _mul), "shr": functools.partial(_shifted, _floordiv),
}  # fmt: skip


def decide(kind: str, a: Range, b: Range) -> Range:
    """The result of a comparison as a range: (1, 1), (0, 0) or (0, 1)."""
    less = a[1] is not None and b[0] is not None and a[1] < b[0]
    at_most = a[1] is not None and b[0] is not None and a[1] <= b[0]
    more = a[0] is not None and b[1] is not None and a[0] > b[1]
    at_least = a[0] is not None and b[1] is not None and a[0] >= b[1]
    equal = at_most and at_least
    true, false = {
        "lt": (less, at_least),
        "le": (at_most, more),
        "gt": (more, at_most),
        "ge": (at_least, less),
        "eq": (equal, less or more),
        "ne": (less or more, equal),
    }[kind]
    return (1, 1) if true else (0, 0) if false else (0, 1)
