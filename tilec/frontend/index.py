"""What tracing knows of an integer: a sum of independent unknowns, and how far each of them
reaches.

`i + 4 - i` is 4 and `k * 32 + j` with j < 32 stays below a bound: the front end needs that much to
fold the extents of slices and to prove an index out of range. An `Affine` is `const + Σ coefficient
· atom`; an `Atom` is an integer that nothing more is known of than its range. Everything here is
immutable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False, slots=True)
class Atom:
    """An unknown integer, told apart by identity.

    It lies in `lo … hi` (None: no bound known). `attained`: both bounds really occur, whatever
    other atoms with different `roots` are. `roots` are the atoms that it was computed from in the
    end (itself if none: then `sources` is empty). `depth` counts the run-time conditions around its
    definition. `dense`: both bounds are known, and every integer between them occurs with every
    value of the other dense atoms. `name` is the user's, for messages.
    """

    lo: int | None = None
    hi: int | None = None
    attained: bool = False
    depth: int = 0
    sources: frozenset[Atom] = frozenset()
    dense: bool = False
    name: str = ""

    @property
    def extent(self) -> int:
        """How many integers a dense atom takes."""
        assert self.lo is not None and self.hi is not None
        return self.hi - self.lo + 1

    @property
    def roots(self) -> frozenset[Atom]:
        return self.sources or frozenset((self,))


@dataclass(frozen=True, slots=True)
class Interval:
    """`lo … hi`, None where unbounded. `attained`: both ends occur for some iteration."""

    lo: int | None
    hi: int | None
    attained: bool


@dataclass(frozen=True, slots=True)
class Affine:
    """`const` plus each atom times its coefficient (never 0)."""

    const: int = 0
    terms: dict[Atom, int] = field(default_factory=dict)

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            total = terms.pop(atom, 0) + c
            if total:
                terms[atom] = total
        return Affine(self.const + other.const, terms)

    def scaled(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        return Affine(self.const * factor, {a: c * factor for a, c in self.terms.items()})

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scaled(-1)

    @property
    def constant(self) -> int | None:
        """The value, if it is known."""
        return None if self.terms else self.const

    @property
    def roots(self) -> frozenset[Atom]:
        return frozenset().union(*(a.roots for a in self.terms))

    def interval(self) -> Interval:
        """The range of the sum; exact where the atoms are independent."""
        lo: int | None = self.const
        hi: int | None = self.const
        attained = True
        seen: set[Atom] = set()
        for atom, c in self.terms.items():
            first, last = (atom.lo, atom.hi) if c > 0 else (atom.hi, atom.lo)
            lo = None if lo is None or first is None else lo + c * first
            hi = None if hi is None or last is None else hi + c * last
            attained = attained and atom.attained and not (seen & atom.roots)
            seen |= atom.roots
        return Interval(lo, hi, attained)

    def depth(self) -> int:
        """The fewest run-time conditions that stood around any of its roots (0 for a constant)."""
        return min((a.depth for a in self.roots), default=0)


def unknown(parents: Iterable[Affine] = (), interval: Interval | None = None) -> Affine:
    """A fresh atom computed from `parents`, within `interval` if that is known."""
    found = interval or Interval(None, None, False)
    sources = frozenset().union(*(p.roots for p in parents))
    atom = Atom(found.lo, found.hi, found.attained, sources=sources)
    return Affine(0, {atom: 1})


def is_size(a: Affine) -> bool:
    """Whether it is an extent of a tensor, plus a number."""
    known = [(t.lo, t.hi, len(t.sources), c) for t, c in a.terms.items()]
    return known == [(0, None, 0, 1)]


def product(a: Affine, b: Affine) -> Affine:
    """`a * b`; affine only if one of them is a number."""
    if a.constant is not None:
        return b.scaled(a.constant)
    if b.constant is not None:
        return a.scaled(b.constant)
    return unknown((a, b), _nonnegative(a, b))


def floor_quotient(a: Affine, b: Affine) -> Affine:
    """`a // b`, rounded down."""
    d = b.constant
    if d is None or d <= 0:
        return unknown((a, b))
    if a.const % d == 0 and all(c % d == 0 for c in a.terms.values()):
        return Affine(a.const // d, {atom: c // d for atom, c in a.terms.items()})
    r = a.interval()
    lo = None if r.lo is None else r.lo // d
    hi = None if r.hi is None else r.hi // d
    if lo is not None and lo == hi:
        return Affine(lo)
    return unknown((a,), Interval(lo, hi, r.attained))


def floor_remainder(a: Affine, b: Affine) -> Affine:
    """`a % b`, of the sign of `b`."""
    d = b.constant
    if d is None or d <= 0:
        return unknown((a, b))
    if a.constant is not None:
        return Affine(a.constant % d)
    r = a.interval()
    if r.lo is not None and r.hi is not None and r.lo // d == r.hi // d:
        return a + Affine(-(r.lo // d) * d)
    return unknown((a,), Interval(0, d - 1, False))


def smaller(a: Affine, b: Affine) -> Affine:
    """min(a, b)."""
    difference = (a - b).constant
    if difference is not None:
        return a if difference <= 0 else b
    x, y = a.interval(), b.interval()
    lo = None if x.lo is None or y.lo is None else min(x.lo, y.lo)
    hi = min((v for v in (x.hi, y.hi) if v is not None), default=None)
    return unknown((a, b), Interval(lo, hi, False))


def larger(a: Affine, b: Affine) -> Affine:
    """max(a, b)."""
    return smaller(a.scaled(-1), b.scaled(-1)).scaled(-1)


def _nonnegative(a: Affine, b: Affine) -> Interval:
    x, y = a.interval(), b.interval()
    if x.lo is None or y.lo is None or x.lo < 0 or y.lo < 0:
        return Interval(None, None, False)
    hi = None if x.hi is None or y.hi is None else x.hi * y.hi
    return Interval(x.lo * y.lo, hi, False)
