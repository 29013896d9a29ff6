"""Tensors and tiles as the meaning of a program holds them, and what it may not do with them.

Every element remembers which iteration of the T.Parallel at hand, and which block, has read and
written it. A program in which one of them touches what another one writes has no meaning, and
neither has one that reads what nobody wrote: `Invalid` is raised. So a program that is changed at
random (`shrink`) stays one whose results are defined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilec.fuzz.numbers import Array, Number, held, literal
from tilec.ir.types import DType

_NOBODY, _SEVERAL = -1, -2
_COMBINE: dict[str, np.ufunc] = {
    "add": np.add, "max": np.fmax, "min": np.fmin, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip
_BY_ATOMICS = {kind: -3 - number for number, kind in enumerate(_COMBINE)}


class Invalid(Exception):
    """The program has no meaning that all targets must agree on."""


@dataclass
class Place:
    """Where the program is: the block's number, the T.Parallel (0 outside) and its iteration, as an
    array where all are done at once. `mask`: which of these take the branch at hand."""

    block: int = 0
    loop: int = 0
    iteration: Array | None = None
    mask: Array | None = None
    loops: int = 0
    fnuz: bool = False


class Touched:
    """Who read and wrote each element; "who" is a number."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.read = np.full(shape, _NOBODY, np.int64)
        self.written = np.full(shape, _NOBODY, np.int64)

    def reads(self, at: tuple[Array, ...], who: Any) -> bool:
        """Note that `who` reads; whether no one else writes there."""
        before = self.read[at]
        who = np.broadcast_to(who, before.shape)
        self.read[at] = np.where((before == _NOBODY) | (before == who), who, _SEVERAL)
        if who.size > 1:
            lost = self.read[at] != who  # several at once
            self.read[tuple(np.broadcast_to(a, lost.shape)[lost] for a in at)] = _SEVERAL
        writer = self.written[at]
        return bool(np.all((writer == _NOBODY) | (writer == who)))

    def writes(self, at: tuple[Array, ...], who: Any) -> bool:
        """Note that `who` writes; whether no one else reads or writes there."""
        reader, writer = self.read[at], self.written[at]
        who = np.broadcast_to(who, writer.shape)
        self.written[at] = who
        clear = np.all((reader == _NOBODY) | (reader == who))
        clear &= np.all((writer == _NOBODY) | (writer == who))
        return bool(clear and np.all(self.written[at] == who))


class Buffer:
    """A tensor in global memory (`tile` False) or a tile of a block."""

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: DType, place: Place, tile: bool
    ) -> None:
        self.name, self.shape, self.dtype, self.place, self.tile = name, shape, dtype, place, tile
        self.value = np.zeros(shape, held(dtype))
        self.error = np.zeros(shape)
        self.known = np.zeros(shape, bool)
        self.safe: Any = 0
        self.blocks = Touched(shape)
        self.threads = 0  # where every thread has its own: along the first dimension
        self._loop = -1

    def fill_from(self, array: Array) -> None:
        """Take the content of an argument."""
        self.value[...] = array.astype(held(self.dtype))
        self.known[...] = True

    def content(self) -> Number:
        """What a tensor holds in the end: anything, where nobody has written."""
        error = np.where(self.known, self.error, np.inf)
        return Number(self.value, self.dtype, error)

    # --- elements ---

    def __getitem__(self, index: Any) -> Number:
        at, inside = self._at(index, "read")
        safe = self.converted(self.safe).value
        if 0 in self.shape:
            return Number(np.broadcast_to(safe, inside.shape), self.dtype)
        self._note(Touched.reads, "read where another one writes it", at, inside)
        clipped = tuple(np.where(inside, a, 0) for a in at)
        if not np.all(self.known[clipped] | ~inside):
            raise Invalid(f"{self.name} is read before it is written")
        error = np.where(inside, self.error[clipped], 0.0)
        return Number(np.where(inside, self.value[clipped], safe), self.dtype, error)

    def __setitem__(self, index: Any, value: Any) -> None:
        at, inside = self._at(index, "written")
        number = self.converted(value)
        where = self._note(Touched.writes, "written where another one touches it", at, inside)
        self.value[where] = np.broadcast_to(number.value, inside.shape)[inside]
        self.error[where] = np.broadcast_to(number.error, inside.shape)[inside]
        self.known[where] = True

    def update(self, index: Any, value: Any, kind: str) -> None:
        """Combine elements with `value`, by atomics: several iterations or blocks may, one kind of
        atomic at a time."""
        at, inside = self._at(index, "updated")
        number = self.converted(value)
        where = self._note(
            Touched.writes, "updated where another one touches it", at, inside, _BY_ATOMICS[kind]
        )
        if not np.all(self.known[where]):
            raise Invalid(f"{self.name} is updated before it is written")
        values, error = (
            np.broadcast_to(a, inside.shape)[inside] for a in (number.value, number.error)
        )
        _COMBINE[kind].at(self.value, where, values)
        rounds = kind == "add" and self.dtype.is_float  # in an order that nobody knows
        unknown = np.where((error > 0) | rounds, np.inf, 0.0)
        np.maximum.at(self.error, where, unknown)

    def inside(self, index: Any) -> Array:
        """Which of the elements exist."""
        return self._at(index, "updated")[1]

    def converted(self, value: Any) -> Number:
        """A number or a literal in this buffer's dtype."""
        if isinstance(value, Number):
            return value.to(self.dtype, self.place.fnuz)
        return literal(value, self.dtype, self.place.fnuz)

    def _at(self, index: Any, what: str) -> tuple[tuple[Array, ...], Array]:
        """Coordinates as arrays of one shape (that of the iterations at hand), and which of them
        are in bounds and touched."""
        entries = index if isinstance(index, tuple) else (index,)
        if self.threads:
            entries = (np.arange(self.threads), *entries)
        if len(entries) != len(self.shape):
            raise Invalid(f"{len(entries)} indices of {self.name}")
        arrays = []
        for e, extent in zip(entries, self.shape):
            if isinstance(e, Number):
                if not e.exact():
                    raise Invalid("an index hangs on a number that is rounded")
                arrays.append(e.value.astype(np.int64))
            else:
                arrays.append(np.asarray(_from_the_end(e, extent), np.int64))
        shape = () if self.place.iteration is None else self.place.iteration.shape
        at = tuple(np.broadcast_to(a, np.broadcast_shapes(a.shape, shape)) for a in arrays)
        inside = np.ones(at[0].shape if at else (), bool)
        for a, extent in zip(at, self.shape):
            inside = inside & (a >= 0) & (a < extent)
        mask = self.place.mask
        if self.tile and not np.all(inside if mask is None else inside | ~mask):
            raise Invalid(f"{self.name} is {what} outside of its bounds")
        if mask is not None:
            inside = inside & mask
        return at, inside

    # --- who touches what ---

    def _note(
        self,
        touch: Callable[..., bool],
        what: str,
        at: tuple[Array, ...],
        inside: Array,
        together: int | None = None,
    ) -> tuple[Array, ...]:
        """Note who touches these elements, which must be nobody else's; their coordinates.
        `together`: stands for all who do the same."""
        where = tuple(np.broadcast_to(a, inside.shape)[inside] for a in at)
        block = self.place.block if together is None else together
        clear = self.tile or touch(self.blocks, where, block)
        if self.place.iteration is not None:
            if self._loop != self.place.loop:
                self._loop, self._iterations = self.place.loop, Touched(self.shape)
            one = self.place.iteration if together is None else np.asarray(together)
            who = np.broadcast_to(one, inside.shape)[inside]
            clear &= touch(self._iterations, where, who)
        if not clear:
            raise Invalid(f"{self.name} is {what}")
        return where


def _from_the_end(index: Any, extent: int) -> Any:
    """An index; a literal that is negative counts from the end."""
    return index + extent if isinstance(index, int) and index < 0 else index


@dataclass(frozen=True)
class Region:
    """What a word on tiles is given: a buffer, where it starts, and its extents where they are
    written (None: those of the other side)."""

    buffer: Buffer
    starts: tuple[int, ...]
    extents: tuple[int | None, ...]

    @staticmethod
    def of(buffer: Buffer, index: Any = None) -> Region:
        """`A[i, j:j + 8]`, or all of a buffer, as a region."""
        if index is None:
            return Region(buffer, (0,) * len(buffer.shape), buffer.shape)
        entries = index if isinstance(index, tuple) else (index,)
        sliced = any(isinstance(e, slice) for e in entries)
        starts: list[int] = []
        extents: list[int | None] = []
        for e in entries:
            if isinstance(e, slice):
                low = 0 if e.start is None else int(e.start)
                high = buffer.shape[len(starts)] if e.stop is None else int(e.stop)
                starts.append(low)
                extents.append(high - low)
            else:
                starts.append(int(_from_the_end(e, buffer.shape[len(starts)])))
                extents.append(1 if sliced else None)
        return Region(buffer, tuple(starts), tuple(extents))

    def filled(self, other: tuple[int, ...]) -> tuple[int, ...]:
        """The extents, open ones as those of the other side; leading dimensions drop."""
        if None not in self.extents:
            return tuple(int(e or 0) for e in self.extents)
        lead = len(self.extents) - len(other)
        return (1,) * lead + tuple(other) if lead >= 0 else tuple(other[-len(self.extents) :])

    def at(self, extents: tuple[int, ...]) -> tuple[Array, ...]:
        """The coordinates of a box that starts here."""
        return np.ix_(*(np.arange(s, s + e) for s, e in zip(self.starts, extents)))
