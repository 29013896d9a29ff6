"""From a function coordinate -> offset to digits: evaluate it everywhere, take the digits off one
by one.

The offsets are a permutation of 0 … n-1 (after gaps of constant length are taken for padding).
Turned round, they are a sequence of coordinates; its first digit is the longest run of equal steps
from the start, the next one the same of every radix-th entry, and so on. Whether the digits found
say the whole function is for the caller to check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.errors import LayoutError
from tilec.ir.layout.normal import Digit

_Array = NDArray[np.int64]


def evaluate(shape: tuple[int, ...], fn: Callable[..., Any]) -> _Array:
    """`fn` at every coordinate, as an array of `shape`. Raises LayoutError for results that are no
    offsets."""
    grid = np.indices(shape, dtype=np.int64)
    try:
        out = np.asarray(fn(*grid))
        vectorised = out.shape == shape and out.dtype.kind in "iu"
    except (TypeError, ValueError, IndexError):
        vectorised = False
    if not vectorised:
        flat = [fn(*at) for at in np.ndindex(*shape)]
        if not all(isinstance(v, (int, np.integer)) for v in flat):
            wrong = next(v for v in flat if not isinstance(v, (int, np.integer)))
            raise LayoutError(
                f"a layout function gives an int (an offset in elements), not {wrong!r}"
            )
        out = np.array([int(v) for v in flat], dtype=np.int64).reshape(shape)
    return out.astype(np.int64)


Run = tuple[int, tuple[int, ...]]
"""A radix and the step (per dimension) between the elements it counts."""


def runs(shape: tuple[int, ...], offsets: _Array) -> tuple[tuple[int, int] | None, list[Run]]:
    """The padding and the runs, minor first, that `offsets` are made of. Raises LayoutError if they
    are not."""
    order = np.argsort(offsets, axis=None, kind="stable")
    places = offsets.ravel()[order]
    if places[0] != 0:
        raise LayoutError(f"the lowest offset of the layout function is {places[0]}, not 0")
    gaps = np.diff(places)
    if np.any(gaps == 0):
        n = int(np.argmin(gaps))
        first, second = (_coordinate(order[n + i], shape) for i in (0, 1))
        raise LayoutError(
            f"the layout function puts {first} and {second} both at offset {places[n]}"
        )
    sequence = np.stack([np.asarray(c) for c in np.unravel_index(order, shape)], axis=-1)
    found: list[Run] = []
    while len(sequence) > 1:
        step = sequence[1]
        equal = np.all(sequence == np.arange(len(sequence))[:, None] * step, axis=1)
        length = len(sequence) if equal.all() else int(np.argmin(equal))
        if length < 2 or np.any(sequence[0]):
            raise misfit(shape)
        while len(sequence) % length:
            length -= 1
        if length == 1:
            raise misfit(shape)
        found.append((length, tuple(int(s) for s in step)))
        sequence = sequence[::length]
    return _padding(gaps), found


def diagonal(step: tuple[int, ...]) -> bool:
    """Whether a run goes along more than one dimension, as only XORed bits may."""
    return sum(s > 0 for s in step) > 1


def several_bits(step: tuple[int, ...]) -> bool:
    """Whether a run changes more than one bit of the coordinates, as XORed bits of one dimension
    do."""
    return sum(s.bit_count() for s in step) > 1


def digits(
    shape: tuple[int, ...], found: list[Run], crossed: Callable[[tuple[int, ...]], bool]
) -> tuple[tuple[Digit, ...], tuple[int, ...]]:
    """Digits and atom for `found`; runs that are `crossed` begin with bits inside the atom."""
    atom = [1] * len(shape)
    out = []
    for radix, step in found:
        while crossed(step) and radix % 2 == 0:
            out.append(Digit("offset", 2, step))
            atom = [max(a, 1 << s.bit_length()) for a, s in zip(atom, step)]
            radix, step = radix // 2, tuple(2 * s for s in step)
        out.append(Digit("offset", radix, step))
    return tuple(out), tuple(atom)


def misfit(shape: tuple[int, ...]) -> LayoutError:
    return LayoutError(
        f"the layout function of shape {shape} is not made of digits, XOR and padding",
        hint="use tilec.layout.make_swizzled_layout(buffer), "
        "or a sum of strides and XORed bit fields",
    )


def _coordinate(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))


def _padding(gaps: _Array) -> tuple[int, int] | None:
    wide = np.flatnonzero(gaps != 1)
    return (int(wide[0]) + 1, int(gaps[wide[0]]) - 1) if len(wide) else None
