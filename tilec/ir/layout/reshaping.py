"""Digits of a part of a tile, and of the same elements under another shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilec.ir.layout.normal import Digit, is_inside, set_bits


class UnevenError(ValueError):
    """Digits do not divide; its words go on from the name of the layout that they are of."""


def restricted(
    digits: Sequence[Digit], atom: tuple[int, ...], extents: tuple[int, ...]
) -> list[Digit]:
    """Digits of the sub-tile of `extents` at the origin; see `Layout.restrict`. Raises
    UnevenError."""
    zero = (0,) * len(extents)
    out: list[Digit] = []
    last = next((d for d in reversed(digits) if d.owner == "offset"), None)
    for d in digits:
        if is_inside(d, atom):
            leads_out = [s >= e for s, e in zip(d.step, extents)]
            if any(leads_out) and sum(s.bit_count() for s in d.step) > 1:
                raise _uneven(extents, d)
            out.append(Digit(d.owner, 2, zero) if any(leads_out) else d)
            continue
        dim = next((i for i, s in enumerate(d.step) if s), None)
        if dim is None or d.step[dim] * d.radix <= extents[dim]:
            out.append(d)
            continue
        if d.step[dim] >= extents[dim]:
            out.append(Digit(d.owner, d.radix, zero))
            continue
        kept, rest = divmod(extents[dim], d.step[dim])
        if rest or (d.radix % kept and d is not last):
            raise _uneven(extents, d)
        out.append(Digit(d.owner, kept, d.step))
        out.append(Digit(d.owner, d.radix // kept, zero))
    while out and out[-1].owner == "offset" and out[-1].replicates:
        out.pop()
    return out


def reshaped(
    digits: Sequence[Digit], atom: tuple[int, ...], before: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[list[Digit], tuple[int, ...]]:
    """Digits and atom of the same places under another shape than `before`; see `Layout.reshape`.
    Raises UnevenError."""
    old, new = strides_of(before), strides_of(shape)
    grown = [1] * len(shape)
    out: list[Digit] = []
    for d in digits:
        if is_inside(d, atom):
            step = [0] * len(shape)
            for i, s in enumerate(d.step):
                for k in set_bits(s):
                    to, value = _place(shape, new, old[i] << k)
                    if value & (value - 1):
                        raise _uneven(shape, d)
                    step[to] ^= value
                    grown[to] = max(grown[to], 2 * value)
            out.append(Digit(d.owner, 2, tuple(step)))
            continue
        flat = sum(s * t for s, t in zip(d.step, old))
        radix = d.radix
        while radix > 1 and flat:
            to, value = _place(shape, new, flat)
            room, rest = divmod(shape[to], value)
            count = min(room, radix)
            if rest or radix % count:
                raise _uneven(shape, d)
            out.append(
                Digit(d.owner, count, tuple(value if i == to else 0 for i in range(len(shape))))
            )
            radix, flat = radix // count, flat * count
        if radix > 1:
            out.append(Digit(d.owner, radix, (0,) * len(shape)))
    return out, tuple(grown)


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements between neighbours along each dimension of a dense row-major array."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _place(shape: tuple[int, ...], strides: Sequence[int], flat: int) -> tuple[int, int]:
    """The dimension of `shape` and the step along it that a row-major distance of `flat` elements
    is."""
    for i, (extent, stride) in enumerate(zip(shape, strides)):
        if stride <= flat < stride * extent and flat % stride == 0:
            return i, flat // stride
    raise UnevenError(f"cannot take the shape {shape}: its digits do not divide")


def _uneven(shape: tuple[int, ...], digit: Digit) -> UnevenError:
    return UnevenError(
        f"cannot be cut to {shape}: the {digit.owner} digit of radix "
        f"{digit.radix} and step {digit.step} does not divide"
    )
