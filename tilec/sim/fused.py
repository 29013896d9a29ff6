"""Multiply-add rounded once, with NumPy's arithmetic.

A float32 product is exact in float64, and so are most sums of it; the few that are not are rounded
to odd, which makes the second rounding, to float32, right (Boldo and Melquiond, "Emulation of FMA
and correctly rounded sums: proved algorithms using rounding to odd", IEEE TC 57, 2008). float64
itself takes the algorithm of that paper."""

from __future__ import annotations

from typing import Any

import numpy as np

Value = Any

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
