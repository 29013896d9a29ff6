"""From a function coordinate -> offset to digits: evaluate it everywhere, take the digits off one
by one.

The offsets are a permutation of 0 … n-1 (after gaps of constant length are taken for padding).
Turned round, they are a sequence of coordinates; its first digit is the longest run of equal steps
from the start, the next one the same of every radix-th entry, and so on. Whether the digits found
say the whole function is for the caller to check.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.errors import CompileError, LayoutError, shown
from tilec.ir.layout.normal import Digit

_Array = NDArray[np.int64]


_MOST_ELEMENTS = 1 << 22  # more than any shared memory holds


def extents(shape: object) -> tuple[int, ...]:
    """The extents of a layout as its author gave them. Raises LayoutError."""
    entries = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else ()
    whole = [e for e in entries if isinstance(e, int | np.integer) and not isinstance(e, bool)]
    if not entries or len(whole) != len(entries) or min(whole) < 1:
        message = f"the shape of a layout is {shown(shape)}, not a tuple of positive ints"
        raise LayoutError(message, hint="write T.Layout((64, 64), lambda i, j: i * 64 + j)")
    if math.prod(map(int, whole)) > _MOST_ELEMENTS:
        message = f"a layout of {shown(shape)} has more elements than any shared memory holds"
        raise LayoutError(message, hint="lay out one tile: T.Layout(A_shared.shape, …)")
    return tuple(map(int, whole))


def evaluate(shape: tuple[int, ...], fn: Callable[..., Any]) -> _Array:
    """`fn` at every coordinate, as an array of `shape`; a tuple of coordinates counts row by row in
    the smallest box that holds them all. Raises LayoutError where it fails, and for results that
    are no offsets."""
    return _row_major(_components(shape, fn))


def evaluate_pair(shape: tuple[int, ...], fn: Callable[..., Any]) -> tuple[_Array, _Array]:
    """The two numbers, or tuples of coordinates, that `fn` gives at every coordinate. Raises
    LayoutError for anything else."""
    first: list[_Array] = []
    second: list[_Array] = []
    for which, out in ((0, first), (1, second)):
        out.extend(_components(shape, functools.partial(_part_of_pair, fn, which)))
    return _row_major(first), _row_major(second)


def _part_of_pair(fn: Callable[..., Any], which: int, *at: Any) -> Any:
    found = fn(*at)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise LayoutError(
            f"the function of a fragment gives a thread and a register, not {shown(found)}",
            hint="write forward_fn=lambda i, j: (thread, register)",
        )
    return found[which]


def _row_major(parts: list[_Array]) -> _Array:
    total = parts[0]
    for p in parts[1:]:
        if p.min() < 0 or total.min() < 0:
            least = min(int(p.min()), int(total.min()))
            raise LayoutError(f"a coordinate that the layout function gives is {least}, below 0")
        total = total * (int(p.max()) + 1) + p
    return total


def _components(shape: tuple[int, ...], fn: Callable[..., Any]) -> list[_Array]:
    """`fn` at every coordinate: an array for each number that it gives there."""
    if not callable(fn):
        raise LayoutError(f"the function of a layout is {shown(fn)}")
    try:
        got = fn(*np.indices(shape, dtype=np.int64))
        several = got if isinstance(got, tuple | list) else [got]
        out = [np.asarray(x) for x in several]
        whole = all(x.shape in ((), shape) and x.dtype.kind in "iu" for x in out)
        if several and whole and (several is got or out[0].shape == shape):
            return [np.broadcast_to(x, shape).astype(np.int64) for x in out]
    except Exception:  # it may take ints, one at a time
        pass
    every = [_numbers(fn, at) for at in np.ndindex(*shape)]
    if len({len(x) for x in every}) != 1:
        raise LayoutError("the layout function gives tuples of different lengths")
    return [np.array(x, np.int64).reshape(shape) for x in zip(*every)]


def _numbers(fn: Callable[..., Any], at: tuple[int, ...]) -> tuple[int, ...]:
    try:
        value = fn(*at)
    except CompileError:
        raise
    except Exception as e:  # of whatever kind, it is the author's
        message = f"the layout function fails at {at}: {type(e).__name__}: {e}"
        raise LayoutError(message) from None
    several = tuple(value) if isinstance(value, tuple | list) and value else (value,)
    for x in several:
        if not isinstance(x, int | np.integer) or not -(2**62) < x < 2**62:
            raise LayoutError(
                f"a layout function gives an int (an offset in elements), not {shown(value)}"
            )
    return tuple(map(int, several))


def sequence(
    shape: tuple[int, ...], offsets: _Array
) -> tuple[tuple[int, int] | None, NDArray[np.int64]]:
    """The padding, and the coordinates in order of their offsets. Raises LayoutError if two
    elements share an offset."""
    order = np.argsort(offsets, axis=None, kind="stable")
    places = offsets.ravel()[order]
    if places[0] != 0:
        raise LayoutError(f"the lowest offset of the layout function is {places[0]}, not 0")
    gaps = np.diff(places)
    if np.any(gaps == 0):
        n = int(np.argmin(gaps))
        pair = (np.unravel_index(order[n + i], shape) for i in (0, 1))
        first, second = (tuple(map(int, at)) for at in pair)
        raise LayoutError(
            f"the layout function puts {first} and {second} both at offset {places[n]}"
        )
    return _padding(gaps), np.stack(np.unravel_index(order, shape), axis=-1)


def limits(shape: tuple[int, ...]) -> list[int]:
    """What to try for `digits`' `limit`, fewest XORs first."""
    return [0, *(1 << k for k in range(2, max(shape).bit_length() + 1))]


def digits(
    shape: tuple[int, ...], coordinates: _Array, limit: int
) -> tuple[tuple[Digit, ...], tuple[int, ...]]:
    """Digits and atom of a sequence of coordinates. Runs that go along several dimensions are XORed
    bits, and so are those that change several bits of one coordinate by steps below `limit`: a step
    of 3 may be two bits of a swizzle or the third of a dimension, and only the whole function
    tells.

    Raises LayoutError where a run has no length.
    """
    atom = [1] * len(shape)
    out: list[Digit] = []
    while len(coordinates) > 1:
        step = tuple(int(s) for s in coordinates[1])
        equal = np.all(coordinates == np.arange(len(coordinates))[:, None] * step, axis=1)
        radix = len(coordinates) if equal.all() else int(np.argmin(equal))
        if radix > 1 and _crosses(step, limit):
            radix = 2
            atom = [max(a, 1 << s.bit_length()) for a, s in zip(atom, step)]
        while radix > 1 and len(coordinates) % radix:
            radix -= 1
        if radix < 2:
            raise misfit(shape)
        out.append(Digit("offset", radix, step))
        coordinates = coordinates[::radix]
    return tuple(out), tuple(atom)


def _crosses(step: tuple[int, ...], limit: int) -> bool:
    several = sum(s.bit_count() for s in step) > 1
    return sum(s > 0 for s in step) > 1 or (several and max(step) < limit)


def misfit(shape: tuple[int, ...]) -> LayoutError:
    return LayoutError(
        f"the layout function of shape {shape} is not made of digits, XOR and padding",
        hint="use tilec.layout.make_swizzled_layout(buffer), "
        "or a sum of strides and XORed bit fields",
    )


def _padding(gaps: _Array) -> tuple[int, int] | None:
    wide = np.flatnonzero(gaps != 1)
    return (int(wide[0]) + 1, int(gaps[wide[0]]) - 1) if len(wide) else None
