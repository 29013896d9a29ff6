"""A fragment's layout as an author writes it: which thread holds an element, at which of its
places.

    Fragment((4, 8), forward_fn=lambda i, j: (j, i))     element (i, j): thread j, register i

An author counts the threads of a block, so the same text means other lanes and warps on targets
with warps of another size: `layout_of_threads` gives a layout whose *lanes* are all threads, and
`in_warps` parts these into lanes and warps. An author may also name some of the threads only; the
layouts of compilers have an element for every thread. What the others hold is chosen here: copies,
so that the threads that were named hold what was asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.ir.errors import LayoutError
from tilec.ir.layout import fit
from tilec.ir.layout.core import Layout
from tilec.ir.layout.normal import Digit

__all__ = ["FragmentMisfitError", "Fragment", "in_warps"]

_Array = NDArray[np.int64]


class FragmentMisfitError(LayoutError):
    """A mapping to threads and registers that no layout of the compiler says."""


@dataclass(frozen=True, eq=False, repr=False)
class Fragment:
    """Where threads hold the elements of a tile of `shape`: `threads` and `registers` are arrays of
    `(*shape, replicas)`, the thread and the place in it of each copy of each element."""

    shape: tuple[int, ...]
    threads: _Array
    registers: _Array

    @staticmethod
    def from_functions(
        shape: object,
        forward_fn: Callable[..., Any] | None = None,
        forward_thread_fn: Callable[..., Any] | None = None,
        replicate: int = 1,
        forward_index_fn: Callable[..., Any] | None = None,
    ) -> Fragment:
        """The fragment of functions of coordinates; behind the coordinates both take the number of
        the copy where `replicate` is more than 1 (`forward_index_fn` never does). Without
        `forward_index_fn` the elements of a thread are in its registers row by row.

        Raises LayoutError for functions that fail or do not give ints of at least 0, and where two
        elements share a place.
        """
        extents = fit.extents(shape)
        if not isinstance(replicate, int) or replicate < 1:
            raise LayoutError(f"replicate of a fragment is {replicate!r}, the least is 1")
        whole = (*extents, replicate)
        copies = whole if replicate > 1 else extents
        if forward_fn is not None:
            if forward_thread_fn is not None or forward_index_fn is not None:
                raise LayoutError("a fragment has forward_fn or forward_thread_fn, not both")
            found = fit.evaluate_pair(copies, forward_fn)
        elif forward_thread_fn is not None:
            threads = fit.evaluate(copies, forward_thread_fn)
            if forward_index_fn is not None:
                registers = fit.evaluate(extents, forward_index_fn)
            else:
                registers = _places_in_turn(threads.reshape(whole)[..., 0])
            found = threads, registers.reshape((*extents, 1)) + np.zeros(whole, np.int64)
        else:
            raise LayoutError(
                "a fragment needs a function",
                hint="write T.Fragment((64, 8), forward_fn=lambda i, j: (i, j)): thread, register",
            )
        return _checked(extents, found[0].reshape(whole), found[1].reshape(whole))

    # --- numbers ---

    def get_input_shape(self) -> list[int]:
        """The extents of the tile."""
        return list(self.shape)

    def get_output_shape(self) -> list[int]:
        """How many elements a thread has, as a list."""
        return [int(self.registers.max()) + 1]

    def get_thread_size(self) -> int:
        """One more than the last thread that holds an element."""
        return int(self.threads.max()) + 1

    @property
    def replicas(self) -> int:
        """How many threads hold each element."""
        return int(self.threads.shape[-1])

    def map_forward_index(self, indices: Sequence[int]) -> list[int]:
        """The register that holds an element."""
        return [int(self.registers[(*indices, 0)])]

    def map_forward_thread(self, indices: Sequence[int]) -> int:
        """The thread that holds an element (a copy's number may stand behind its coordinates)."""
        given = tuple(indices)
        return int(self.threads[given if len(given) > len(self.shape) else (*given, 0)])

    def __call__(self, *indices: int) -> list[int]:
        return self.map_forward_index(indices)

    # --- equality ---

    @functools.cached_property
    def _key(self) -> tuple[tuple[int, ...], bytes, bytes]:
        order = np.argsort(self.threads, axis=-1, kind="stable")
        places = [np.take_along_axis(a, order, axis=-1) for a in (self.threads, self.registers)]
        return self.threads.shape, places[0].tobytes(), places[1].tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fragment) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def is_equal(self, other: Fragment) -> bool:
        """Whether all elements are in the same places."""
        return self == other

    # --- fragments made from this one ---

    def repeat(
        self, repeats: Sequence[int], repeat_on_thread: bool = False, lower_dim_first: bool = True
    ) -> Fragment:
        """A tile `repeats[d]` times as large along each dimension, of repetitions of this one: in
        more threads or in more registers; the last dimension's come first, or the first's."""
        if len(repeats) != len(self.shape) or min(repeats) < 1:
            raise LayoutError(
                f"repeats of a fragment of shape {self.shape} are {list(repeats)}",
                hint="write how often it is repeated along each dimension, at least 1",
            )
        threads = np.tile(self.threads, (*repeats, 1))
        registers = np.tile(self.registers, (*repeats, 1))
        number: _Array = np.zeros(threads.shape[:-1], np.int64)
        times = 1
        grid = np.indices(number.shape, dtype=np.int64)
        dims = range(len(self.shape))
        for d in reversed(dims) if lower_dim_first else dims:
            number += times * (grid[d] // self.shape[d])
            times *= repeats[d]
        if repeat_on_thread:
            threads = threads + number[..., None] * self.get_thread_size()
        else:
            registers = registers + number[..., None] * self.get_output_shape()[0]
        return _checked(number.shape, threads, registers)

    def replicate(self, replicate: int) -> Fragment:
        """The same tile held by `replicate` times as many threads."""
        if replicate < 1:
            raise LayoutError(f"a fragment is replicated {replicate} times, the least is 1")
        size = self.get_thread_size()
        threads = np.concatenate([self.threads + n * size for n in range(replicate)], axis=-1)
        return _checked(self.shape, threads, np.tile(self.registers, replicate))

    def condense_rep_var(self) -> Fragment:
        """Without copies of an element in one place of one thread."""
        size = int(self.registers.max()) + 1
        places = np.sort(self.threads * size + self.registers, axis=-1)
        first = np.concatenate([np.ones_like(places[..., :1]), np.diff(places)], axis=-1) != 0
        counts = first.sum(axis=-1)
        if counts.min() != counts.max():
            return self
        kept = places[first].reshape((*self.shape, int(counts.min())))
        return Fragment(self.shape, kept // size, kept % size)

    def reshape(self, shape: Sequence[int]) -> Fragment:
        """The same places for a tile of another shape, elements in row-major order."""
        if prod(shape) != prod(self.shape):
            raise LayoutError(f"a fragment of shape {self.shape} cannot take the shape {shape}")
        whole = (*shape, self.replicas)
        return Fragment(tuple(shape), self.threads.reshape(whole), self.registers.reshape(whole))

    def __repr__(self) -> str:
        return (
            f"Fragment({list(self.shape)} -> {self.get_output_shape()}, "
            f"replicate: {self.replicas}, thread: {self.get_thread_size()})"
        )

    # --- as the compiler's layout ---

    def layout(self, threads: int) -> Layout:
        """The layout, of so many threads (as lanes), in which each thread named here holds what it
        holds here.

        Raises LayoutError for threads beyond `threads`, FragmentMisfitError where none says it.
        """
        if self.get_thread_size() > threads:
            raise LayoutError(
                f"the fragment has elements in thread {self.get_thread_size() - 1}, "
                f"and a block has {threads} threads",
                hint=f"write a function that gives threads 0 to {threads - 1}",
            )
        found = layout_of_threads(self, threads)
        if found is None:
            raise FragmentMisfitError(
                f"the mapping of {self!r} to {threads} threads is not made of digits: each thread "
                "must hold as many elements, at constant distances"
            )
        return found


def _places_in_turn(threads: _Array) -> _Array:
    """For each element how many before it its thread holds."""
    order = np.argsort(threads, axis=None, kind="stable")
    sorted_threads = threads.ravel()[order]
    places = np.empty_like(order)
    places[order] = np.arange(order.size) - np.searchsorted(sorted_threads, sorted_threads)
    return places.reshape(threads.shape)


def _checked(shape: tuple[int, ...], threads: _Array, registers: _Array) -> Fragment:
    """The fragment. Raises LayoutError for threads below 0 and where two elements share a place."""
    for what, places in (("thread", threads), ("register", registers)):
        if places.min() < 0:
            message = f"a fragment's function gives {what} {places.min()}"
            raise LayoutError(message, hint="threads and registers count from 0")
    flat = np.broadcast_to(np.arange(prod(shape)).reshape((*shape, 1)), threads.shape).ravel()
    place = (threads * (int(registers.max()) + 1) + registers).ravel()
    order = np.argsort(place, kind="stable")
    clash = (np.diff(place[order]) == 0) & (np.diff(flat[order]) != 0)
    if clash.any():
        n = int(np.argmax(clash))
        a, b = (tuple(map(int, np.unravel_index(flat[order[n + i]], shape))) for i in (0, 1))
        at = int(order[n])
        raise LayoutError(
            f"a fragment's function puts {a} and {b} both in register "
            f"{registers.ravel()[at]} of thread {threads.ravel()[at]}",
            hint="each element needs a place of its own: a thread, and a register of it",
        )
    return Fragment(shape, threads, registers)


def layout_of_threads(f: Fragment, count: int) -> Layout | None:
    """The layout of `count` threads, all of them lanes, that has the elements of `f` where `f` has
    them; None if there is none."""
    held = int(f.registers.max()) + 1
    table: _Array = np.full((count, held), -1, np.int64)
    flat = np.arange(prod(f.shape)).reshape((*f.shape, 1))
    table[f.threads, f.registers] = np.broadcast_to(flat, f.threads.shape)
    named = np.flatnonzero((table >= 0).any(axis=1))
    if (table[named] < 0).any():
        return None
    places = np.stack(np.unravel_index(table[named], f.shape), axis=-1)
    own = places[0] - places[0, 0]
    if (own < 0).any():
        return None
    try:
        digits, atom = fit.digits(f.shape, own, 0)
    except LayoutError:
        return None
    registers = [Digit("reg", d.radix, d.step) for d in digits]
    for radices in _orders(count):
        steps = _steps(named, places[:, 0], radices)
        if steps is None:
            continue
        lanes = [Digit("lane", r, s) for r, s in zip(radices, steps)]
        try:
            found = Layout(f.shape, (*registers, *lanes), atom)
        except LayoutError:
            continue
        if np.array_equal(found.flat("lane", "reg")[named], table[named]):
            return found
    return None


def _orders(count: int) -> Iterator[tuple[int, ...]]:
    """What digits a number of threads may have: the lanes of a warp are bits, an odd factor may
    stand before or between the bits above them."""
    bits = (count & -count).bit_length() - 1
    odd = count >> bits
    if odd == 1:
        yield (2,) * bits
        return
    for below in range(min(bits, 5), bits + 1):
        yield (*(2,) * below, odd, *(2,) * (bits - below))


def _steps(
    threads: _Array, places: _Array, radices: tuple[int, ...]
) -> list[tuple[int, ...]] | None:
    """The step of each digit of a thread's number, where the first elements of `threads` are at
    `places`. A digit of which nothing is known is a replica's. None for threads that do not add
    up (the caller checks what is found)."""
    steps: list[_Array | None] = [None] * len(radices)
    for t, place in zip(threads, places):
        left, open_, rest = int(t), [], place.copy()
        for k, radix in enumerate(radices):
            value, left = left % radix, left // radix
            step = steps[k]
            if value and step is None:
                open_.append((k, value))
            elif value and step is not None:
                rest -= value * step
        if not open_:
            continue
        # Of several that are unknown the lowest stay replicas: threads below are not named.
        *lower, (k, value) = open_
        for other, _ in lower:
            steps[other] = np.zeros_like(rest)
        if (rest < 0).any() or (rest % value).any():
            return None
        steps[k] = rest // value
    rank = places.shape[-1]
    return [(0,) * rank if s is None else tuple(map(int, s)) for s in steps]


def in_warps(layout: Layout, warp_size: int, warps: int) -> Layout:
    """A layout of threads (all of them lanes) as one of lanes and warps, each element held by as
    many more threads as there are. Raises LayoutError where the threads do not divide so."""
    digits: list[Digit] = [d for d in layout.digits if d.owner == "reg"]
    lanes, threads = [], layout.size("lane")
    for d, weight in layout.of("lane"):
        room = max(1, warp_size // weight)
        if weight >= warp_size:
            digits.append(Digit("warp", d.radix, d.step))
        elif d.radix <= room:
            lanes.append(d)
        elif warp_size % weight or d.radix % room:
            raise LayoutError(
                f"a layout of {threads} threads does not part into warps of {warp_size}"
            )
        else:
            lanes.append(Digit("lane", room, d.step))
            far = tuple(room * s for s in d.step)
            digits.append(Digit("warp", d.radix // room, far))
    made = Layout(layout.shape, (*digits, *lanes), layout.atom)
    for owner, size in (("lane", warp_size), ("warp", warps)):
        if size % made.size(owner):
            raise LayoutError(
                f"a layout of {threads} threads, where {warps * warp_size} hold the fragment"
            )
        made = made.replicate(size // made.size(owner), owner)
    return made
