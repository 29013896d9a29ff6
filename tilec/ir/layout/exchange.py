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

Two more steps serve replicas. A lane bit that says nothing may take over a register's bit: each
lane *keeps* one value of two. And a lane's bit may become a register's: each lane *gathers* its
neighbour's value beside its own.

Values narrower than 32 bits travel together: registers that take the same way make up one word.

The plan is checked: it is played through on the table of elements and refused unless every register
of every lane of every warp ends with the element that layout `b` says.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import product

import numpy as np

from tilec.ir.layout.core import Ints, Layout
from tilec.ir.layout.normal import Digit, is_inside

__all__ = ["Exchange", "exchange", "widened"]

Step = tuple[int, ...]
WORD_BITS = 32


@dataclass(frozen=True)
class Exchange:
    """How the registers of one layout become those of another.

    Registers are taken in groups of members, each of `pack` registers that travel as one value.
    `sources[g][m]`: registers of member m of group g in the old layout, `dests[g][m]`: where the
    members end in the new one. The steps, each with the masks of its lane bits: `keeps` (first, the
    last one first) leave of two members whose numbers differ in the highest bit the one that the
    lane's bit says; `swaps` number i exchanges bit i of the member's number with the lane's bit;
    `gathers` double the members, the new highest bit of their number being the lane's. `turn`:
    afterwards bit `turn[p]` of the lane that is read from is bit p of the reader's own number;
    empty: itself.
    """

    pack: int
    keeps: tuple[int, ...]
    swaps: tuple[int, ...]
    gathers: tuple[int, ...]
    turn: tuple[int, ...]
    sources: tuple[tuple[tuple[int, ...], ...], ...]
    dests: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def price(self) -> int:
        """Instructions per thread: half a shuffle and one and a half selects for a value and swap,
        a shuffle and two selects for a value to gather, one shuffle for a turn."""
        values = len(self.sources) * len(self.sources[0]) >> len(self.keeps)
        kept = values * ((1 << len(self.keeps)) - 1)
        gathered = 3 * values * ((1 << len(self.gathers)) - 1)
        turned = values << len(self.gathers) if self.turn else 0
        return kept + 2 * values * len(self.swaps) + gathered + turned


@dataclass(frozen=True)
class Bit:
    """A digit of a register's, a lane's or a warp's number, cut into bits as far as it goes."""

    radix: int
    step: Step
    weight: int


@functools.lru_cache(maxsize=1024)
def exchange(a: Layout, b: Layout, bits: int = WORD_BITS) -> Exchange | None:
    """How elements of `bits` bits get from fragment layout `a` to `b` inside each warp; None where
    these steps do not lead there."""
    if a.shape != b.shape or any(a.size(o) != b.size(o) for o in ("lane", "warp")):
        return None
    if a.replicas("reg") != 1 or b.replicas("reg") != 1:
        return None
    regs, lanes, wanted = bits_of(a, "reg"), lane_steps(a), lane_steps(b)
    found = _steps(regs, lanes, wanted)
    if found is None:
        return None
    keeps, swaps, gathers = found
    now = _Registers(a.flat("reg", "lane", "warp"))
    current = list(lanes)
    for position, bit in reversed(keeps):
        now.keep(bit.weight, 1 << position)
        current[position] = bit.step
    for position, bit in swaps:
        now.swap(bit.weight, 1 << position)
        current[position] = bit.step
    made = []
    for position in gathers:
        made.append(Bit(2, current[position], now.gather(1 << position)))
        current[position] = tuple(0 for _ in current[position])
    turn = _turn(current, wanted)
    if turn is None:
        return None
    now.turn(turn)
    ends = now.ends(b.flat("reg", "lane", "warp"))
    if ends is None:
        return None
    swapped, kept = [bit for _, bit in swaps], [bit for _, bit in keeps]
    packed = _packed(regs, swapped + kept, bits)
    rest = [x for x in regs if x not in (*swapped, *kept, *packed)]
    sources = _groups(rest, [*swapped, *kept], packed)
    places = _groups(rest, [*swapped, *made], packed)
    still = turn == tuple(range(len(turn)))
    return Exchange(
        1 << len(packed),
        tuple(1 << p for p, _ in keeps),
        tuple(1 << p for p, _ in swaps),
        tuple(1 << p for p in gathers),
        () if still else turn,
        sources,
        tuple(tuple(tuple(ends[r] for r in m) for m in g) for g in places),
    )


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
    regs, lanes = bits_of(layout, "reg"), list(lane_steps(layout))
    if lanes and len(lanes) != layout.size("lane").bit_length() - 1:
        return None
    along = [int(i == dim) for i in range(layout.rank)]
    steps = [tuple(i << k for i in along) for k in range(run.bit_length() - 1)]
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


def bits_of(layout: Layout, owner: str) -> tuple[Bit, ...]:
    """The digits of an owner's number, minor first, each cut into bits and an odd rest."""
    found = []
    for d, weight in layout.of(owner):
        radix, step = d.radix, d.step
        while radix % 2 == 0:
            found.append(Bit(2, step, weight))
            radix, step, weight = radix // 2, tuple(2 * s for s in step), 2 * weight
        if radix > 1:
            found.append(Bit(radix, step, weight))
    return tuple(found)


def lane_steps(layout: Layout) -> tuple[Step, ...]:
    """The step of each bit of a lane's number; empty if it is not made of bits."""
    found = bits_of(layout, "lane")
    return () if any(d.radix != 2 for d in found) else tuple(d.step for d in found)


def _steps(
    regs: tuple[Bit, ...], lanes: tuple[Step, ...], wanted: tuple[Step, ...]
) -> tuple[list[tuple[int, Bit]], list[tuple[int, Bit]], list[int]] | None:
    """Keeps and swaps as pairs of a lane bit and a register bit, and the lane bits to gather; None
    if these do not lead from one to the other."""
    if len(lanes) != len(wanted) or not lanes:
        return None
    zero = tuple(0 for _ in lanes[0])
    by_step = {x.step: x for x in regs if x.radix == 2}
    entering = [s for s in wanted if s not in lanes and s != zero]
    if any(s not in by_step for s in entering):
        return None
    leaving = [p for p, s in enumerate(lanes) if s not in wanted and s != zero]
    swaps = []
    for position in leaving[: len(entering)]:
        # Its own successor first, so that no turn is needed afterwards.
        follows = wanted[position] if wanted[position] in entering else entering[0]
        entering.remove(follows)
        swaps.append((position, by_step[follows]))
    idle = [p for p, s in enumerate(lanes) if s == zero]
    if len(entering) > len(idle):
        return None
    keeps = []
    for step in entering:
        position = next((p for p in idle if wanted[p] == step), idle[0])
        idle.remove(position)
        keeps.append((position, by_step[step]))
    return keeps, swaps, leaving[len(swaps) :]


class _Registers:
    """The element in every register of every lane of every warp, step by step; `numbers` has the
    number of each row of `table`."""

    def __init__(self, table: Ints) -> None:
        self.table = table
        self.numbers = list(range(len(table)))
        self.lane = np.arange(table.shape[1])[None, :]

    def swap(self, weight: int, mask: int) -> None:
        """Register bit `weight` and lane bit `mask` change places."""
        row = {n: i for i, n in enumerate(self.numbers)}
        high = np.array([n // weight % 2 == 1 for n in self.numbers])[:, None]
        other = [row[n - weight if n // weight % 2 else n + weight] for n in self.numbers]
        same = ((self.lane & mask) != 0) == high
        rows = np.where(same, np.arange(len(other))[:, None], np.array(other)[:, None])
        self.table = self.table[rows, np.where(same, self.lane, self.lane ^ mask)]

    def keep(self, weight: int, mask: int) -> None:
        """Of registers that differ in bit `weight` the one that the lane's bit says."""
        row = {n: i for i, n in enumerate(self.numbers)}
        self.numbers = [n for n in self.numbers if not n // weight % 2]
        low = np.array([row[n] for n in self.numbers])[:, None]
        high = np.array([row[n + weight] for n in self.numbers])[:, None]
        self.table = self.table[np.where((self.lane & mask) != 0, high, low), self.lane]

    def gather(self, mask: int) -> int:
        """Each register twice, for both values of the lane's bit; gives the new bit's weight."""
        weight = 1 << max(self.numbers).bit_length()
        sides = [self.table[:, (self.lane[0] & ~mask) | at] for at in (0, mask)]
        self.table = np.concatenate(sides)
        self.numbers += [n + weight for n in self.numbers]
        return weight

    def turn(self, turn: tuple[int, ...]) -> None:
        source = sum((self.lane[0] >> p & 1) << q for p, q in enumerate(turn))
        self.table = self.table[:, np.broadcast_to(source, self.lane[0].shape)]

    def ends(self, want: Ints) -> dict[int, int] | None:
        """The register of `want` that each is, in all lanes; None if some is none."""
        place = {int(v): r for r, v in enumerate(want[:, 0, 0])}
        found = [place.get(int(v), -1) for v in self.table[:, 0, 0]]
        if sorted(found) != list(range(len(want))) or not np.array_equal(want[found], self.table):
            return None
        return dict(zip(self.numbers, found))


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


def _packed(regs: tuple[Bit, ...], moved: list[Bit], bits: int) -> list[Bit]:
    """Register bits that stay, enough of them to fill a word."""
    stay = [x for x in regs if x.radix == 2 and x not in moved]
    count = max(1, WORD_BITS // bits).bit_length() - 1
    return stay[:count]


def _groups(
    rest: list[Bit], members: list[Bit], packed: list[Bit]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple(
        tuple(tuple(g + m + p for p in _sums(packed)) for m in _sums(members)) for g in _sums(rest)
    )


def _sums(bits: list[Bit]) -> list[int]:
    """The registers that the digits reach, the first digit counting fastest."""
    choices = [[d * x.weight for d in range(x.radix)] for x in reversed(bits)]
    return [sum(pick) for pick in product(*choices)]
