"""The normal form of a list of digits, and the proof that it reaches every element once.

Two layouts that put the same elements in the same places have the same normal form, so layouts are
compared by equality. In it

- digits stand in the order of `OWNERS`, digits of radix 1 are gone;
- the atom is as small as the truly combined bits allow: a digit is XORed only where its step
changes two bits
  or shares a bit with another digit (or lies below such a bit), everything else adds;
- neighbours of one owner that continue one another (radix r step s, then step r*s) are one digit.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilec.ir.errors import LayoutError

__all__ = ["OWNERS", "Digit"]

OWNERS = ("reg", "lane", "warp", "offset")


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of an owner's index: `radix` values, each `step` further through the tile.

    `step` has one entry per tile dimension, in elements; all zero means that the digit does not
    change the element (the owner holds `radix` copies).
    """

    owner: str
    radix: int
    step: tuple[int, ...]

    @property
    def replicates(self) -> bool:
        return not any(self.step)


def is_inside(digit: Digit, atom: tuple[int, ...]) -> bool:
    """Whether the digit combines by XOR: a bit whose step lies inside the atom."""
    return digit.radix == 2 and any(digit.step) and all(s < a for s, a in zip(digit.step, atom))


@functools.lru_cache(maxsize=4096)  # passes make the same layouts again for each plan and tile
def normal_form(
    shape: tuple[int, ...], digits: tuple[Digit, ...], atom: tuple[int, ...]
) -> tuple[tuple[Digit, ...], tuple[int, ...]]:
    """Digits and atom in normal form. Raises LayoutError where they do not reach every element of
    `shape` exactly once per replica, or do not combine as the rules say."""
    _check_words(shape, digits, atom)
    bits = list(_split(digits, atom))
    atom = _least_atom(bits, atom)
    made: list[Digit] = []
    for owner in OWNERS:
        _merge_into(made, [d for d in bits if d.owner == owner], atom)
    _check_onto(shape, made, atom)
    return tuple(made), atom


def _check_words(shape: tuple[int, ...], digits: Iterable[Digit], atom: tuple[int, ...]) -> None:
    if any(e < 1 for e in shape):
        raise LayoutError(f"a layout of shape {shape} has an extent below 1")
    if len(atom) != len(shape) or any(a < 1 or a & (a - 1) for a in atom):
        raise LayoutError(f"the atom {atom} is not one power of two for each dimension of {shape}")
    for d in digits:
        if d.owner not in OWNERS:
            raise LayoutError(f"a digit is owned by {d.owner!r}; owners are {', '.join(OWNERS)}")
        if d.radix < 1 or len(d.step) != len(shape) or any(s < 0 for s in d.step):
            raise LayoutError(f"{d} is not a digit of a layout of shape {shape}")


def _split(digits: Iterable[Digit], atom: tuple[int, ...]) -> Iterator[Digit]:
    """`digits` with those that begin inside the atom cut into bits as far as they are inside it."""
    for d in digits:
        radix, step = d.radix, d.step
        bitwise = radix == 2 or all(s & (s - 1) == 0 for s in step)
        while radix > 1 and any(s % a for s, a in zip(step, atom)):
            if radix % 2 or not bitwise or any(s >= a for s, a in zip(step, atom)):
                raise LayoutError(
                    f"the {d.owner} digit of radix {d.radix} and step {d.step} is neither bits "
                    f"inside the atom {atom} nor a multiple of it"
                )
            yield Digit(d.owner, 2, step)
            radix, step = radix // 2, tuple(2 * s for s in step)
        if radix > 1:
            yield Digit(d.owner, radix, step)


def _least_atom(digits: list[Digit], atom: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest atom that holds every bit whose XOR is not a sum."""
    inside = [d.step for d in digits if is_inside(d, atom)]
    makers = Counter(
        (i, 1 << k) for step in inside for i, s in enumerate(step) for k in set_bits(s)
    )
    least = [1] * len(atom)
    for step in inside:
        single = sum(s.bit_count() for s in step) == 1
        if single and all(makers[i, s] == 1 for i, s in enumerate(step) if s):
            continue
        for i, s in enumerate(step):
            least[i] = max(least[i], 1 << s.bit_length())
    return tuple(least)


def _merge_into(made: list[Digit], digits: list[Digit], atom: tuple[int, ...]) -> None:
    """Append one owner's digits, joining each to the one before where it continues it."""
    first = len(made)
    for d in digits:
        if len(made) > first and not is_inside(d, atom) and not is_inside(made[-1], atom):
            last = made[-1]
            if all(s == last.radix * t for s, t in zip(d.step, last.step)):
                made[-1] = Digit(d.owner, last.radix * d.radix, last.step)
                continue
        made.append(d)


def _check_onto(shape: tuple[int, ...], digits: list[Digit], atom: tuple[int, ...]) -> None:
    """Inside the atom the bits must be a basis; above it, the steps along each dimension must
    nest."""
    along: list[list[tuple[int, int]]] = [[] for _ in shape]
    basis: list[int] = []
    width = [a.bit_length() - 1 for a in atom]
    for d in digits:
        if d.replicates:
            continue
        if is_inside(d, atom):
            basis.append(packed(d.step, width))
            continue
        dims = [i for i, s in enumerate(d.step) if s]
        if len(dims) != 1:
            raise LayoutError(
                f"the {d.owner} digit of radix {d.radix} steps diagonally by {d.step}"
            )
        along[dims[0]].append((d.step[dims[0]], d.radix))
    if len(basis) != sum(width) or gf2_rank(basis) != sum(width):
        raise LayoutError(f"the bits inside the atom {atom} do not reach each of its elements once")
    for i, extent in enumerate(shape):
        reached = atom[i]
        for step, radix in sorted(along[i]):
            if step != reached:
                what = "twice" if step < reached else "not at all"
                raise LayoutError(
                    f"in a layout of shape {shape}, element {min(step, reached)} of dimension {i} "
                    f"is reached {what}"
                )
            reached *= radix
        if reached != extent:
            raise LayoutError(
                f"the digits reach {reached} elements of dimension {i}, which has {extent}"
            )


def packed(step: tuple[int, ...], width: list[int]) -> int:
    """A step inside of an atom, whose dimensions have so many bits, as one number."""
    found, at = 0, 0
    for s, w in zip(step, width):
        found |= s << at
        at += w
    return found


def set_bits(value: int) -> Iterator[int]:
    """Places of the bits set in `value`, lowest first."""
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low


def gf2_rank(vectors: Iterable[int]) -> int:
    """Rank over GF(2) of vectors packed into integers."""
    pivots: list[int] = []
    for v in vectors:
        for p in pivots:
            v = min(v, v ^ p)
        if v:
            pivots.append(v)
    return len(pivots)
