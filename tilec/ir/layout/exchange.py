"""Exchanges inside a warp: from one fragment layout to another by selects and shuffles alone.

The idea. Where radices are powers of two, a register's number and a lane's number are strings of
bits, and a layout gives each bit a step. Two layouts of one tile often have the same steps in other
places. Let the two-register, two-lane tile on the left become the one on the right:

                 lane 0   lane 1                 lane 0   lane 1
     register 0    a        b       register 0     a        c
     register 1    c        d       register 1     b        d

It is a transpose: the register's bit and the lane's bit change places. Each lane keeps one value
and gives the other to its neighbour: one select (what to send), one shuffle with `lane ^ 1`, two
selects (where it goes). All registers of a thread do this two by two, and several pairs of bits one
after the other; the 4x4 transpose inside a quad that turns pairs of matrix accumulators into pieces
of 16 bytes is two such swaps. What remains is a permutation of lane bits (one shuffle with a lane
number of its own) and of registers (names only).

Values narrower than 32 bits travel together: registers that take the same way make up one word.

The plan is checked: it is played through on the table of elements and refused unless every register
of every lane of every warp ends with the element that layout `b` says.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from tilec.ir.layout.core import Ints, Layout
from tilec.ir.layout.normal import Digit, is_inside

Step = tuple[int, ...]
WORD_BITS = 32


@dataclass(frozen=True)
class Exchange:
    """How the registers of one layout become those of another.

    Registers are taken in groups of `2 ** len(swaps)` members, each of `pack` registers that travel
    as one value. `sources[g][m]`: registers of member m of group g in the old layout,
    `dests[g][m]`: where they end in the new one. `swaps`: lane masks; swap number i exchanges bit i
    of the member's number with the lane's bit in the mask. `turn`: afterwards bit `turn[p]` of the
    lane that is read from is bit p of the reader's own number; empty: itself.
    """

    pack: int
    swaps: tuple[int, ...]
    turn: tuple[int, ...]
    sources: tuple[tuple[tuple[int, ...], ...], ...]
    dests: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def price(self) -> int:
        """Instructions per thread: half a shuffle and one and a half selects for a value and swap,
        one shuffle for a turn."""
        values = len(self.sources) * len(self.sources[0])
        return values * (2 * len(self.swaps) + bool(self.turn))


@dataclass(frozen=True)
class _Bit:
    """A digit of a register's number, cut into bits as far as it goes."""

    radix: int
    step: Step
    weight: int


@functools.lru_cache(maxsize=1024)
def exchange(a: Layout, b: Layout, bits: int = WORD_BITS) -> Exchange | None:
    """How elements of `bits` bits get from fragment layout `a` to `b` inside each warp; None where
    swaps of register and lane bits do not lead there."""
    if a.shape != b.shape or any(a.size(o) != b.size(o) for o in ("reg", "lane", "warp")):
        return None
    if a.replicas("reg") != 1 or b.replicas("reg") != 1:
        return None
    regs, lanes, wanted = register_bits(a), lane_steps(a), lane_steps(b)
    pairs = _pairs(regs, lanes, wanted)
    if pairs is None:
        return None
    now = a.flat("reg", "lane", "warp")
    current = list(lanes)
    for position, bit in pairs:
        now = _swapped(now, bit.weight, 1 << position)
        current[position] = bit.step
    turn = _turn(current, wanted)
    if turn is None:
        return None
    lane = np.arange(1 << len(turn))
    source = sum((lane >> p & 1) << q for p, q in enumerate(turn))
    now = now[:, np.broadcast_to(source, lane.shape)]
    want = b.flat("reg", "lane", "warp")
    place = {int(v): r for r, v in enumerate(want[:, 0, 0])}
    ends = [place.get(int(v), -1) for v in now[:, 0, 0]]
    if -1 in ends or not np.array_equal(want[ends], now):
        return None
    moved = [bit for _, bit in pairs]
    packed = _packed(regs, moved, bits)
    sources = _groups(regs, moved, packed)
    dests = tuple(tuple(tuple(ends[r] for r in m) for m in g) for g in sources)
    masks = tuple(1 << p for p, _ in pairs)
    still = turn == tuple(range(len(turn)))
    return Exchange(1 << len(packed), masks, () if still else turn, sources, dests)


@functools.lru_cache(maxsize=1024)
def widened(layout: Layout, dim: int, run: int) -> Layout | None:
    """The layout nearest to a fragment's in which each thread's registers begin with `run` (a power
    of two) neighbours along `dim`: lane bits that hold some of them change places with register
    bits. None if the elements of a run lie in different warps, or registers are too few.

    Of the register bits that may go to the lanes those along `dim` with the smallest steps are
    taken, so that neighbouring lanes hold neighbouring runs.
    """
    if layout.shape[dim] % run or any(is_inside(d, layout.atom) for d in layout.digits):
        return None
    regs, lanes = register_bits(layout), list(lane_steps(layout))
    if lanes and len(lanes) != layout.size("lane").bit_length() - 1:
        return None
    steps = [_along(layout.rank, dim, 1 << k) for k in range(run.bit_length() - 1)]
    spare = [x for x in regs if x.radix == 2 and any(x.step) and x.step not in steps]
    spare.sort(key=lambda x: (not x.step[dim], x.step[dim], x.step))
    have = {x.step for x in regs if x.radix == 2}
    gone = set()
    for step in steps:
        if step in have:
            continue
        if step not in lanes or not spare:
            return None
        out = spare.pop(0)
        gone.add(out.step)
        lanes[lanes.index(step)] = out.step
    rest = [x for x in regs if x.step not in gone and x.step not in steps]
    digits = [
        *(Digit("reg", 2, s) for s in steps),
        *(Digit("reg", x.radix, x.step) for x in rest),
        *(Digit("lane", 2, s) for s in lanes),
        *(d for d in layout.digits if d.owner == "warp"),
    ]
    return Layout(layout.shape, tuple(digits), layout.atom)


def single_registers(layout: Layout) -> Layout:
    """The fragment without registers that repeat others of the same thread."""
    digits = tuple(d for d in layout.digits if d.owner != "reg" or not d.replicates)
    return Layout(layout.shape, digits, layout.atom)


def register_bits(layout: Layout) -> tuple[_Bit, ...]:
    """The digits of a register's number, minor first, each cut into bits and an odd rest."""
    found = []
    for d, weight in layout.of("reg"):
        radix, step = d.radix, d.step
        while radix % 2 == 0:
            found.append(_Bit(2, step, weight))
            radix, step, weight = radix // 2, tuple(2 * s for s in step), 2 * weight
        if radix > 1:
            found.append(_Bit(radix, step, weight))
    return tuple(found)


def lane_steps(layout: Layout) -> tuple[Step, ...]:
    """The step of each bit of a lane's number; empty if it is not made of bits."""
    found = []
    for d, _ in layout.of("lane"):
        radix, step = d.radix, d.step
        while radix % 2 == 0:
            found.append(step)
            radix, step = radix // 2, tuple(2 * s for s in step)
        if radix > 1:
            return ()
    return tuple(found)


def _along(rank: int, dim: int, step: int) -> Step:
    return tuple(step if i == dim else 0 for i in range(rank))


def _pairs(
    regs: tuple[_Bit, ...], lanes: tuple[Step, ...], wanted: tuple[Step, ...]
) -> list[tuple[int, _Bit]] | None:
    """(lane bit, register bit) pairs that have to change places; None if that is not all there is
    to do."""
    if len(lanes) != len(wanted):
        return None
    zero = tuple(0 for _ in lanes[0]) if lanes else ()
    if lanes.count(zero) != wanted.count(zero):
        return None
    by_step = {x.step: x for x in regs if x.radix == 2}
    entering = [s for s in wanted if s not in lanes]
    found = []
    for position, step in enumerate(lanes):
        if step in wanted:
            continue
        # Its own successor first, so that no turn is needed afterwards.
        follows = wanted[position] if wanted[position] in entering else entering[0]
        entering.remove(follows)
        if follows not in by_step:
            return None
        found.append((position, by_step[follows]))
    return found


def _swapped(now: Ints, weight: int, mask: int) -> Ints:
    """The elements after register bit `weight` and lane bit `mask` have changed places."""
    reg = np.arange(now.shape[0])[:, None]
    lane = np.arange(now.shape[1])[None, :]
    has = (lane & mask) != 0
    high = reg // weight % 2 == 1
    other_reg = np.where(high, reg - weight, reg + weight)
    same = has == high
    out: Ints = now[np.where(same, reg, other_reg), np.where(same, lane, lane ^ mask)]
    return out


def _turn(current: list[Step], wanted: tuple[Step, ...]) -> tuple[int, ...] | None:
    """For each lane bit the bit of the source lane that has its step now."""
    left = list(range(len(current)))
    turn = []
    for p, step in enumerate(wanted):
        fits = [q for q in left if current[q] == step]
        if not fits:
            return None
        q = p if p in fits else fits[0]
        left.remove(q)
        turn.append(q)
    return tuple(turn)


def _packed(regs: tuple[_Bit, ...], moved: list[_Bit], bits: int) -> list[_Bit]:
    """Register bits that stay, enough of them to fill a word."""
    stay = [x for x in regs if x.radix == 2 and x not in moved]
    count = max(1, WORD_BITS // bits).bit_length() - 1
    return stay[:count]


def _groups(
    regs: tuple[_Bit, ...], moved: list[_Bit], packed: list[_Bit]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    rest = [x for x in regs if x not in moved and x not in packed]
    assert prod(x.radix for x in (*rest, *moved, *packed)) == prod(x.radix for x in regs)
    return tuple(
        tuple(tuple(g + m + p for p in _sums(packed)) for m in _sums(moved)) for g in _sums(rest)
    )


def _sums(bits: list[_Bit]) -> list[int]:
    """The registers that the digits reach, the first digit counting fastest."""
    choices = [[d * x.weight for d in range(x.radix)] for x in reversed(bits)]
    return [sum(pick) for pick in product(*choices)]
