"""The arithmetic that NumPy lacks: integer intrinsics that LLVM's optimiser makes of other code
(LLVM language reference, "Bit Manipulation Intrinsics" and those that follow it), and
multiply-add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim.numbers import BINARY, through_unsigned
from tilec.sim.undefined import OVERFLOWS, unsigned

Value = Any
Compute = Callable[..., Value]


def _compared(a: Value, b: Value) -> Value:
    return np.sign((a > b).astype(np.int8) - (a < b).astype(np.int8))


def _saturated(compute: Compute, signed: bool) -> Compute:
    def saturate(a: Value, b: Value) -> Value:
        wide = (a, b) if signed else (unsigned(a), unsigned(b))
        kind = wide[0].dtype
        exact = compute(*(np.asarray(v).astype(object) for v in wide))
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        return np.clip(exact, low, high).astype(kind).view(a.dtype)[()]

    return saturate


def with_overflow(name: str) -> Callable[[Value, Value], tuple[Value, Value]]:
    """`sadd`, `uadd`, `ssub`, ... `.with.overflow`: the result, and whether it does not fit."""
    compute = BINARY[name[1:]]
    overflows = OVERFLOWS[name[1:], "nsw" if name[0] == "s" else "nuw"]

    def made(a: Value, b: Value) -> tuple[Value, Value]:
        result = compute(a, b)
        return result, np.asarray(overflows(a, b, result), np.bool_)[()]

    return made


def _funnel(left: bool) -> Compute:
    """The upper (`left`) or lower half of two numbers side by side after a shift."""

    def compute(bits: int, high: Value, low: Value, by: Value) -> Value:
        a, b = unsigned(high), unsigned(low)
        kind = a.dtype.type
        by = (unsigned(by) % kind(bits)).astype(kind)
        back = (kind(bits) - by) % kind(bits)  # not by all bits, which is undefined
        if left:
            found = np.where(by == 0, a, a << by | b >> back)
        else:
            found = np.where(by == 0, b, a << back | b >> by)
        return (found.astype(kind) & kind((1 << bits) - 1)).view(high.dtype)[()]

    return compute


def _reversed(step: int) -> Compute:
    """Pieces of `step` bits in the other order."""

    def compute(bits: int, x: Value) -> Value:
        source = unsigned(x)
        kind = source.dtype.type
        found, mask = kind(0) * source, kind((1 << step) - 1)
        for at in range(0, bits, step):
            found = found | (source >> kind(at) & mask) << kind(bits - step - at)
        return found.view(x.dtype)

    return compute


def _leading_zeros(bits: int, x: Value, zero_is_poison: Value) -> Value:
    """All bits below the highest are set, then counted."""
    u = unsigned(x)
    for step in (1, 2, 4, 8, 16, 32):
        if step < bits:
            u = u | u >> u.dtype.type(step)
    return (bits - np.bitwise_count(u)).astype(x.dtype)


def _trailing_zeros(bits: int, x: Value, zero_is_poison: Value) -> Value:
    u = unsigned(x)
    below = ~u & (u - u.dtype.type(1))  # ones where the zeros at the end are
    return np.minimum(np.bitwise_count(below), bits).astype(x.dtype)


INTEGERS: dict[str, Compute] = {
    "smin": np.minimum,
    "smax": np.maximum,
    "umin": through_unsigned(np.minimum),
    "umax": through_unsigned(np.maximum),
    "scmp": _compared,
    "ucmp": lambda a, b: _compared(unsigned(a), unsigned(b)),
    "sadd.sat": _saturated(np.add, True),
    "uadd.sat": _saturated(np.add, False),
    "ssub.sat": _saturated(np.subtract, True),
    "usub.sat": _saturated(np.subtract, False),
    "ctpop": lambda x: np.bitwise_count(unsigned(x)).astype(x.dtype),
    "abs": lambda x, lowest_is_poison: np.abs(x),
}
"""Of each intrinsic what it computes of integers."""

BY_BITS: dict[str, Callable[..., Value]] = {
    "fshl": _funnel(True), "fshr": _funnel(False), "bswap": _reversed(8),
    "bitreverse": _reversed(1), "ctlz": _leading_zeros, "cttz": _trailing_zeros,
}  # fmt: skip
"""The same, where the number of bits is the first argument: i4 is held in a wider type."""


# --- multiply-add ---
#
# Rounded once, with NumPy's arithmetic. A float32 product is exact in float64, and so are most sums
# of it; the few that are not are rounded to odd, which makes the second rounding, to float32, right
# (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
# rounding to odd", IEEE TC 57, 2008). float64 itself takes the algorithm of that paper.


_SPLIT = float(2**27 + 1)
_DROPPED = {np.float32: (29, 2.0**-126), np.float16: (42, 2.0**-14)}
"""Bits of float64 that a narrower type lacks, and the least number where it lacks no more."""


def fma(a: Value, b: Value, c: Value) -> Value:
    """a * b + c of float16, float32 or float64, rounded once, to nearest even."""
    kind = a.dtype.type
    if kind is np.float64:
        return _fma_double(a, b, c)
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    dropped, least = _DROPPED[kind]
    bits = total.view(np.int64) & ((1 << dropped) - 1)
    tie = (bits == 1 << (dropped - 1)) | (np.abs(total) < least)
    if tie.any():
        total = np.where(tie, _odd_sum(product, c.astype(np.float64)), total)
    return total.astype(kind)


def _two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b and what its rounding lost (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _odd_sum(a: Value, b: Value) -> Value:
    """a + b in float64 rounded to odd: where it is not exact, the neighbour with an odd last
    bit."""
    total, lost = _two_sum(a, b)
    inexact = np.isfinite(lost) & (lost != 0)
    bits = np.asarray(total).view(np.int64)
    step = np.where((lost > 0) == (total > 0), 1, -1)
    odd: Value = np.where(inexact & (bits & 1 == 0), bits + step, bits).view(np.float64)
    return odd


def _parts(a: Value) -> tuple[Value, Value]:
    """a as the sum of two numbers of at most 26 bits (Veltkamp)."""
    wide = a * _SPLIT
    high = wide - (wide - a)
    return high, a - high


def _fma_double(a: Value, b: Value, c: Value) -> Value:
    plain = a * b + c
    (ah, al), (bh, bl) = _parts(a), _parts(b)
    high = a * b
    low = ((ah * bh - high) + ah * bl + al * bh) + al * bl
    near, lost = _two_sum(c, low)
    total, more = _two_sum(high, near)
    rest = _odd_sum(more, lost)
    found = total + rest
    # Where a part overflows, or is not a number, the plain form says what is right.
    return np.where(np.isfinite(found) & np.isfinite(plain), found, plain)[()]
