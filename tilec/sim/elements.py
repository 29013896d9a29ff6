"""Where a tensor with gaps between its rows has elements, without a table of its whole span.

Places are numbers of elements from the lowest one on. Strides taken by size, an element lies at a
sum of steps; where each stride is longer than what lies within it, as in every ordinary view,
division gives the steps back. Strides that interleave (sliding windows) are one `run` together,
with a mask of that run. Elements are numbered without the gaps, in the order of memory, so that
what is noted of each takes as much room as the tensor has elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tilec.sim.clocks import Numbers

Truths = NDArray[np.bool_]
Places = TypeVar("Places", int, Numbers)


class Elements:
    """The places of a tensor of `shape` with `strides` in elements; none of its extents is 0.

    `count`: numbers that are given out, at least one an element. `gaps`: whether places between the
    lowest and the highest element are none of the tensor's.
    """

    def __init__(self, shape: Sequence[int], strides: Sequence[int]) -> None:
        steps = sorted((abs(s), n) for n, s in zip(shape, strides) if n > 1 and s)
        nested, reach = len(steps), 1
        for i in reversed(range(len(steps))):
            inner = 1 + sum(s * (n - 1) for s, n in steps[:i])
            if steps[i][0] < inner:
                break
            nested = i
        within, outer = steps[:nested], steps[nested:]
        self._mask: Truths | None = None
        if within:
            reach = 1 + sum(s * (n - 1) for s, n in within)
            mask = _mask(within, reach)
            self._mask = None if mask.all() else mask
        while outer and outer[0][0] == reach and self._mask is None:  # it goes on without a gap
            reach *= outer.pop(0)[1]
        self._run = self.count = reach
        # (stride, extent, numbers within one step), longest stride first.
        self._outer: list[tuple[int, int, int]] = []
        for stride, extent in outer:
            self._outer.insert(0, (stride, extent, self.count))
            self.count *= extent
        self.gaps = bool(self._outer) or self._mask is not None

    def numbers(self, places: Numbers) -> tuple[Numbers, Truths]:
        """The number of each place, and whether there is an element. Places are not negative and
        not behind the highest element."""
        left, there = places, np.ones(places.shape, np.bool_)
        found: Numbers = np.zeros(places.shape, np.int64)
        for stride, extent, within in self._outer:
            step = left // stride
            left = left - step * stride
            found += step * within
            there &= step < extent
        there &= left < self._run
        if self._mask is not None:
            there &= self._mask.take(left, mode="clip")
        return np.minimum(found + left, self.count - 1), there

    def place(self, number: Places) -> Places:
        """The place that has a number, or places of several."""
        at = number * 0
        for stride, _, within in self._outer:
            step, number = number // within, number % within
            at = at + step * stride
        return at + number

    def exist(self, numbers: Numbers) -> Truths:
        """Which of the numbers are elements: all, but for those in the gaps of a run."""
        if self._mask is None:
            return np.ones(numbers.shape, np.bool_)
        return self._mask.take(numbers % self._run)


def _mask(steps: Sequence[tuple[int, int]], reach: int) -> Truths:
    """By place of a run of `reach`: whether one of these strides' elements is there."""
    mask = np.zeros(reach, np.bool_)
    shape, strides = [n for _, n in steps], [s for s, _ in steps]
    np.lib.stride_tricks.as_strided(mask, shape, strides)[...] = True
    return mask
