"""Intrinsics over integers that LLVM's optimiser makes of other code, by the number of bits. LLVM
language reference, "Bit Manipulation Intrinsics" and those that follow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.sim import numbers

Value = Any
Compute = Callable[..., Value]


def _ordered(pick: Compute, signed: bool) -> Callable[[int], Compute]:
    def compute(a: Value, b: Value) -> Value:
        if signed:
            return pick(a, b)
        return pick(numbers.unsigned(a), numbers.unsigned(b)).view(a.dtype)

    return lambda bits: compute


def _compared(signed: bool) -> Callable[[int], Compute]:
    def compute(a: Value, b: Value) -> Value:
        if not signed:
            a, b = numbers.unsigned(a), numbers.unsigned(b)
        return np.sign((a > b).astype(np.int8) - (a < b).astype(np.int8))

    return lambda bits: compute


def _exact(compute: Compute, signed: bool) -> Compute:
    """The result with as many bits as it needs."""

    def exact(a: Value, b: Value) -> Value:
        if not signed:
            a, b = numbers.unsigned(a), numbers.unsigned(b)
        return compute(np.asarray(a).astype(object), np.asarray(b).astype(object))

    return exact


def _saturated(compute: Compute, signed: bool) -> Callable[[int], Compute]:
    exact = _exact(compute, signed)

    def saturate(a: Value, b: Value) -> Value:
        kind = a.dtype if signed else numbers.unsigned(a).dtype
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        return np.clip(exact(a, b), low, high).astype(kind).view(a.dtype)[()]

    return lambda bits: saturate


def with_overflow(name: str) -> Callable[[Value, Value], tuple[Value, Value]]:
    """`sadd`, `uadd`, `ssub`, ... `.with.overflow`: the result, and whether it does not fit."""
    compute = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name[1:]]
    exact = _exact(compute, name[0] == "s")

    def made(a: Value, b: Value) -> tuple[Value, Value]:
        result = compute(a, b)
        seen = result if name[0] == "s" else numbers.unsigned(result)
        return result, np.asarray(exact(a, b) != np.asarray(seen).astype(object), np.bool_)[()]

    return made


def _funnel(left: bool) -> Callable[[int], Compute]:
    """The upper (`left`) or lower half of two numbers side by side after a shift."""

    def of(bits: int) -> Compute:
        def compute(high: Value, low: Value, by: Value) -> Value:
            a, b = numbers.unsigned(high), numbers.unsigned(low)
            kind = a.dtype.type
            by = (numbers.unsigned(by) % kind(bits)).astype(kind)
            back = (kind(bits) - by) % kind(bits)  # not by all bits, which is undefined
            if left:
                found = np.where(by == 0, a, a << by | b >> back)
            else:
                found = np.where(by == 0, b, a << back | b >> by)
            return found.astype(kind).view(high.dtype)[()]

        return compute

    return of


def _reversed(step: int) -> Callable[[int], Compute]:
    """Pieces of `step` bits in the other order."""

    def of(bits: int) -> Compute:
        def compute(x: Value) -> Value:
            source = numbers.unsigned(x)
            kind = source.dtype.type
            found, mask = kind(0) * source, kind((1 << step) - 1)
            for at in range(0, bits, step):
                found = found | (source >> kind(at) & mask) << kind(bits - step - at)
            return found.view(x.dtype)

        return compute

    return of


def _trailing_zeros(bits: int) -> Compute:
    def compute(x: Value, zero_is_poison: Value) -> Value:
        u = numbers.unsigned(x)
        below = ~u & (u - u.dtype.type(1))  # ones where the zeros at the end are
        return np.bitwise_count(below).astype(x.dtype)

    return compute


BY_BITS: dict[str, Callable[[int], Compute]] = {
    "smin": _ordered(np.minimum, True),
    "smax": _ordered(np.maximum, True),
    "umin": _ordered(np.minimum, False),
    "umax": _ordered(np.maximum, False),
    "scmp": _compared(True),
    "ucmp": _compared(False),
    "sadd.sat": _saturated(np.add, True),
    "uadd.sat": _saturated(np.add, False),
    "ssub.sat": _saturated(np.subtract, True),
    "usub.sat": _saturated(np.subtract, False),
    "fshl": _funnel(True),
    "fshr": _funnel(False),
    "bswap": _reversed(8),
    "bitreverse": _reversed(1),
    "cttz": _trailing_zeros,
    "abs": lambda bits: lambda x, lowest_is_poison: np.abs(x),
}
"""Of each intrinsic what it computes of integers of so many bits."""
