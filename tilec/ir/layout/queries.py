"""What hardware makes of a layout: vector width, bank conflicts, the price of a conversion, 8x8
matrices.

All are functions of layouts, evaluated over every element they concern, so there is no second table
to keep true.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilec.ir.errors import LayoutError
from tilec.ir.layout.core import Ints, Layout
from tilec.ir.layout.exchange import Bit, bits_of, exchange
from tilec.ir.layout.normal import Digit

__all__ = [
    "vector_width", "has_runs", "leading_run", "rows_behind", "rows_at_once", "bank_conflicts",
    "bank_passes", "Conversion", "conversion", "MatrixAccess", "matrix_rows", "matrix_access",
    "ldmatrix_ok", "stmatrix_ok",
]  # fmt: skip

BANKS = 32
BANK_BYTES = 4
PHASE_BYTES = 128
"""What one pass over the banks delivers."""
LANE_BYTES = 16
"""What a lane gets from one access at most."""


def _addresses(fragment: Layout, memory: Layout) -> Ints:
    """The memory offset of every (reg, lane, warp) of a fragment. Dimensions that memory has in
    front of the fragment's count tiles alike, one behind the other along the last axis."""
    if memory.shape[-fragment.rank :] != fragment.shape:
        raise LayoutError(
            f"a fragment of shape {fragment.shape} against memory of shape {memory.shape}"
        )
    at = fragment.flat("reg", "lane", "warp")
    tiles = memory.offsets().reshape(-1, math.prod(fragment.shape))
    return np.concatenate([offsets[at] for offsets in tiles], axis=-1)


@functools.lru_cache(maxsize=4096)
def vector_width(fragment: Layout, memory: Layout, max_elems: int) -> int:
    """The largest power of two up to `max_elems` of consecutive registers that lie, in every
    thread, at consecutive offsets of which the first is a multiple of the width."""
    at = _addresses(fragment, memory)
    width = 1 << max(max_elems, 1).bit_length() - 1
    while width > 1 and not _consecutive(at, width):
        width //= 2
    return width


def _consecutive(at: Ints, width: int) -> bool:
    if at.shape[0] % width:
        return False
    groups = at.reshape(at.shape[0] // width, width, *at.shape[1:])
    first = groups[:, :1]
    run = np.arange(width, dtype=np.int32).reshape(1, width, 1, 1)
    return bool(np.all(first % width == 0) and np.all(groups == first + run))


@functools.lru_cache(maxsize=4096)
def has_runs(memory: Layout, count: int) -> bool:
    """Whether every `count` elements of the last dimension, from a multiple of `count` on, lie at
    consecutive offsets, of which the first is a multiple of `count`."""
    return memory.shape[-1] % count == 0 and _consecutive(memory.offsets().reshape(-1, 1, 1), count)


@functools.lru_cache(maxsize=4096)
def leading_run(layout: Layout) -> tuple[int, int]:
    """(dimension, length): how many of a thread's first registers are neighbours along a
    dimension, each run starting at a multiple of its length. (-1, 1) if none are."""
    regs = [d for d in layout.digits if d.owner == "reg"]
    if not regs:
        return -1, 1
    dim = next((i for i, s in enumerate(regs[0].step) if s), -1)
    if dim < 0:
        return -1, 1
    run, used = 1, 0
    for d in regs:
        if d.step[dim] != run or any(s for i, s in enumerate(d.step) if i != dim):
            break
        run *= d.radix & -d.radix
        used += 1
        if d.radix & (d.radix - 1):
            break
    rest = [d for d in layout.digits if d.owner != "reg"] + regs[used:]
    while run > 1 and any(d.step[dim] % run for d in rest):
        run //= 2
    return (dim, run) if run > 1 else (-1, 1)


@functools.lru_cache(maxsize=4096)
def rows_behind(layout: Layout) -> tuple[int, int]:
    """(dimension, length): how many rows that follow one another along another dimension a thread
    has behind the neighbours of `leading_run`, from a multiple of their number on. (-1, 1) if it
    has none."""
    dim, run = leading_run(layout)
    step, count = next((d.step, d.radix) for d, w in (*layout.of("reg"), _NONE) if w >= run)
    row = next((i for i, s in enumerate(step) if s), -1)
    rest = [d.step[row] for d in layout.digits if d.step != step]
    if row in (-1, dim) or sum(step) != 1 or count & (count - 1) or any(s % count for s in rest):
        return -1, 1
    return row, count


_NONE = Digit("reg", 1, ()), 1 << 31
"""What comes behind a thread's registers, with its weight."""


@functools.lru_cache(maxsize=4096)
def rows_at_once(layout: Layout) -> int:
    """In how many rows of the last dimension the lanes of a warp have their first registers."""
    lanes = layout.table("lane")[:, :-1]
    return len(np.unique(lanes, axis=0))


@functools.lru_cache(maxsize=4096)
def bank_conflicts(fragment: Layout, memory: Layout, bits: int, vector: int) -> int:
    """How many times the banks are gone over for one access of a warp, at worst, for each time that
    would do: 1 is free of conflicts. `vector` registers of `bits` each are accessed together.

    32 banks of 4 bytes; accesses of 8 and 16 bytes per lane go in phases of 128 bytes (16 and 8
    lanes); lanes that want the same word share it.
    """
    return _times(_addresses(fragment, memory), bits, vector)


def bank_passes(at: Ints, bits: int) -> int:
    """How many times the banks are gone over where the lanes of a warp access the elements of
    `bits` at the offsets `at` (registers, lanes), side by side ones of a lane together, if each
    access takes as long as the worst."""
    places, width = at[:, :, None], max(LANE_BYTES * 8 // bits, 1)
    while width > 1 and not _consecutive(places, width):
        width //= 2
    once = max(width * bits // 8 // BANK_BYTES, 1)
    return len(at) // width * once * _times(places, bits, width)


def _times(at: Ints, bits: int, vector: int) -> int:
    places = at[::vector].transpose(0, 2, 1).reshape(-1, at.shape[1]).astype(np.int64)
    return int(wavefronts(places * bits // 8, max(vector * bits // 8, 1)).max())


def wavefronts(rows: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """How many times the banks are gone over for each group of lanes that are served together:
    `rows` are the addresses, in bytes, of an access by a warp each (below 0: of a lane that makes
    none), of `size` bytes in each lane."""
    together = min(rows.shape[1], BANKS, max(PHASE_BYTES // size, 1))
    if rows.shape[1] % together:
        together = rows.shape[1]
    groups = rows.reshape(-1, together, 1)
    groups = groups[np.any(groups >= 0, axis=(1, 2))]
    words = np.where(groups >= 0, groups // BANK_BYTES + np.arange(-(-size // BANK_BYTES)), -1)
    words = np.sort(words.reshape(len(groups), -1), axis=1)
    banks = words % BANKS + np.arange(len(words))[:, None] * BANKS
    count = np.bincount(banks[first_of_each(words)], minlength=len(words) * BANKS)
    most: NDArray[np.int64] = count.reshape(-1, BANKS).max(axis=1)
    return most


def first_of_each(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """In sorted rows the first of equal numbers; none of those below 0."""
    new = rows >= 0
    new[:, 1:] &= rows[:, 1:] != rows[:, :-1]
    return new


# --- conversion ---


@dataclass(frozen=True)
class Conversion:
    """How the values of one fragment get into the places of another.

    `kind`: "same" (nothing to do), "registers" (each thread has what it needs: register i of the
    new layout is register `registers[i]` of the old one), "shuffle" (inside each warp, as
    `exchange` says), "shared" (through shared memory). `price`: instructions per thread, roughly.
    """

    kind: str
    price: int
    registers: tuple[int, ...] = ()


BARRIER_PRICE = 20
SHARED_PRICE = 2
"""Of one access to shared memory: its address, and banks that conflict."""


@functools.lru_cache(maxsize=1024)
def conversion(a: Layout, b: Layout, bits: int = 32) -> Conversion:
    """The cheapest way for elements of `bits` bits from fragment layout `a` to `b`, both of one
    shape and as many lanes and warps."""
    if a.shape != b.shape or any(a.size(o) != b.size(o) for o in ("lane", "warp")):
        raise LayoutError(f"no conversion from {a} to {b}: other shape, lanes or warps")
    if a.digits == b.digits and a.atom == b.atom:
        return Conversion("same", 0, tuple(range(a.size("reg"))))
    have, want = a.flat("reg", "lane", "warp"), b.flat("reg", "lane", "warp")
    place = {int(v): i for i, v in reversed(list(enumerate(have[:, 0, 0])))}
    source = [place.get(int(v), -1) for v in want[:, 0, 0]]
    if -1 not in source and np.array_equal(have[source], want):
        moves = sum(i != s for i, s in enumerate(source))
        return Conversion(
            "registers" if moves or len(source) != len(have) else "same", moves, tuple(source)
        )
    price = SHARED_PRICE * (have.shape[0] + want.shape[0]) + 2 * BARRIER_PRICE
    plan = exchange(a, b, bits)
    if plan is not None and plan.price <= price:
        return Conversion("shuffle", plan.price)
    return Conversion("shared", price)


# --- 8x8 matrices of 16 bits ---


@dataclass(frozen=True)
class MatrixAccess:
    """How ldmatrix or stmatrix moves a fragment: `count` matrices per instruction, `transposed` or
    not.

    `rows` says who gives which address: in it, lane l's eight consecutive registers are the row of
    16 bytes whose address lane l supplies, one group of eight registers for each instruction (lanes
    above 8 * `count` repeat).
    """

    count: int
    transposed: bool
    rows: Layout


@functools.lru_cache(maxsize=4096)
def matrix_rows(fragment: Layout, count: int, transposed: bool) -> Layout | None:
    """The fragment regrouped into rows of 8x8 matrices (see `MatrixAccess.rows`), None if its
    digits cannot be.

    PTX ISA, `ldmatrix`: thread l receives elements 2*(l%4) and +1 of row l/4 of each matrix, one
    matrix for each pair of registers; with .trans, elements l/4 of rows 2*(l%4) and +1. Lane l
    addresses row l%8 of matrix l/8.
    """
    reg, lane = (bits_of(fragment, owner) for owner in ("reg", "lane"))
    matrices = count.bit_length() - 1
    used = (*reg[: 1 + matrices], *lane)
    if len(used) != 1 + matrices + 5 or any(d.radix != 2 for d in used):
        return None
    pair, quad, group = reg[:1], lane[:2], lane[2:]
    row, within = ((*pair, *quad), group) if transposed else (group, (*pair, *quad))
    idle = Digit("lane", 4 // count, (0,) * fragment.rank)
    digits = (
        *(_owned("reg", d) for d in within),
        *(_owned("reg", d) for d in reg[1 + matrices :]),
        *(_owned("lane", d) for d in row),
        *(_owned("lane", d) for d in reg[1 : 1 + matrices]),
        idle,
        *(d for d in fragment.digits if d.owner == "warp"),
    )
    return Layout(fragment.shape, digits, fragment.atom)


def _owned(owner: str, d: Bit) -> Digit:
    return Digit(owner, d.radix, d.step)


@functools.lru_cache(maxsize=4096)
def matrix_access(fragment: Layout, memory: Layout, bits: int) -> MatrixAccess | None:
    """The widest ldmatrix/stmatrix that moves `fragment` from or to `memory`, None if none does.

    It takes 16-bit elements, rows of 16 bytes that are contiguous and aligned in memory, and a
    fragment that holds 8x8 matrices as the instruction distributes them.
    """
    if bits != 16:
        return None
    for count in (4, 2, 1):
        for transposed in (False, True):
            rows = matrix_rows(fragment, count, transposed)
            if rows is not None and vector_width(rows, memory, 8) == 8:
                return MatrixAccess(count, transposed, rows)
    return None


def ldmatrix_ok(fragment: Layout, memory: Layout, bits: int) -> bool:
    """Whether ldmatrix can read the fragment from memory (see `matrix_access`)."""
    return matrix_access(fragment, memory, bits) is not None


def stmatrix_ok(fragment: Layout, memory: Layout, bits: int) -> bool:
    """Whether stmatrix can write the fragment to memory: the same distribution as ldmatrix's, and
    one writer each."""
    return ldmatrix_ok(fragment, memory, bits) and fragment.replicas("lane") == 1
