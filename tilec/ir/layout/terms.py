"""A layout as arithmetic: the few divisions, remainders and products that a code generator prints.

    value = sum of the plain terms, then XORed with the others;   term = ((source // div) % mod) *
    mul

Bits that lie side by side on both ends are one term, so a row-major layout has as many terms as
dimensions and a 128-byte swizzle one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tilec.ir.errors import LayoutError
from tilec.ir.layout.normal import Digit, is_inside, set_bits

__all__ = ["Term", "over_gaps"]


@dataclass(frozen=True, slots=True)
class Term:
    """`((source // div) % mod) * mul`; `mod` 0 means that no remainder is needed. `source` is an
    owner's name in forward terms, a dimension's number in inverse terms. `xor`: combined by XOR,
    after all that add."""

    source: str | int
    div: int
    mod: int
    mul: int
    xor: bool = False

    def __call__(self, value: int) -> int:
        value //= self.div
        return (value % self.mod if self.mod else value) * self.mul


def over_gaps(
    terms: Iterable[Term], shape: Sequence[int], every: int, skip: int
) -> tuple[Term, ...] | None:
    """Terms of the offset with padding included (`skip` elements after `every` ones), where each
    of them goes whole runs further or all others together stay in one; None where a sum may cross
    a gap."""

    def most(t: Term) -> int:
        last = (shape[int(t.source)] - 1) // t.div
        return t.mul * (min(last, t.mod - 1) if t.mod else last)

    terms = tuple(terms)
    if any(t.xor for t in terms) or sum(most(t) for t in terms if t.mul % every) >= every:
        return None
    return tuple(replace(t, mul=t.mul + t.mul // every * skip * (not t.mul % every)) for t in terms)


def weighted(digits: Iterable[Digit], owner: str) -> tuple[tuple[Digit, int], ...]:
    """The owner's digits, each with what one step of it adds to the owner's index."""
    out, weight = [], 1
    for d in digits:
        if d.owner == owner:
            out.append((d, weight))
            weight *= d.radix
    return tuple(out)


def forward_terms(
    digits: tuple[Digit, ...], atom: tuple[int, ...], owners: tuple[str, ...], dim: int
) -> tuple[Term, ...]:
    """Terms of the coordinate along `dim`, over the indices of `owners`."""
    plain: list[Term] = []
    crossed: list[Term] = []
    made: set[int] = set()
    for owner in owners:
        mine = weighted(digits, owner)
        size = mine[-1][0].radix * mine[-1][1] if mine else 1
        for d, weight in mine:
            if not is_inside(d, atom):
                if d.step[dim]:
                    _append(plain, Term(owner, weight, d.radix, d.step[dim]))
                continue
            for bit in set_bits(d.step[dim]):
                _append(crossed if bit in made else plain, Term(owner, weight, 2, 1 << bit))
                made.add(bit)
        plain, crossed = _open(plain, owner, size), _open(crossed, owner, size)
    return (*plain, *(replace(t, xor=True) for t in crossed))


def inverse_terms(
    shape: tuple[int, ...], digits: tuple[Digit, ...], atom: tuple[int, ...]
) -> tuple[Term, ...]:
    """Terms of the offset (in elements, before padding), over the coordinates. Where several
    offsets hold an element: the first of them."""
    mine = weighted(digits, "offset")
    plain: list[Term] = []
    for d, weight in mine:
        if not is_inside(d, atom):
            for dim, step in enumerate(d.step):
                if step:
                    plain.append(Term(dim, step, d.radix, weight))
    columns = _atom_inverse([(d.step, w) for d, w in mine if is_inside(d, atom)], atom)
    tops = [1 << image.bit_length() - 1 for image in columns.values()]
    additive = len(set(tops)) == len(tops)
    crossed: list[Term] = []
    for (dim, bit), image in columns.items():
        if additive:
            top = 1 << image.bit_length() - 1
            plain.append(Term(dim, 1 << bit, 2, top))
            image ^= top
        crossed += [Term(dim, 1 << bit, 2, 1 << k) for k in set_bits(image)]
    parts = []
    for terms in (plain, crossed):
        joined: list[Term] = []
        for t in sorted(terms, key=lambda t: (t.source, t.mul / t.div, t.div)):
            _append(joined, t)
        for dim, extent in enumerate(shape):
            joined = _open(joined, dim, extent)
        parts.append(sorted(joined, key=lambda t: (t.source, t.div)))
    return (*parts[0], *(replace(t, xor=True) for t in parts[1]))


def _append(terms: list[Term], t: Term) -> None:
    """Add a term, joined to the last one where it continues it."""
    if terms:
        u = terms[-1]
        if t.source == u.source and t.div == u.div * u.mod and t.mul == u.mul * u.mod:
            terms[-1] = replace(u, mod=u.mod * t.mod)
            return
    terms.append(t)


def _open(terms: list[Term], source: str | int, size: int) -> list[Term]:
    """Drop the remainder of terms that reach the top of their source's `size` values."""
    return [
        replace(t, mod=0) if t.source == source and t.mod and t.div * t.mod == size else t
        for t in terms
    ]


def _atom_inverse(
    bits: list[tuple[tuple[int, ...], int]], atom: tuple[int, ...]
) -> dict[tuple[int, int], int]:
    """For each bit (dimension, place) of an atom coordinate, the XOR of the offset weights that it
    flips: the inverse over GF(2) of `bits`, which are (step, weight). Gauss-Jordan elimination."""
    if any(w & (w - 1) for _, w in bits):
        raise LayoutError(
            "the swizzled bits of a memory layout lie above a digit that is no power of two"
        )
    places = [(i, k) for i, a in enumerate(atom) for k in range(a.bit_length() - 1)]
    rows = [
        (sum((step[i] >> k & 1) << n for n, (i, k) in enumerate(places)), w) for step, w in bits
    ]
    for n in range(len(places)):
        at = next(j for j in range(n, len(rows)) if rows[j][0] >> n & 1)
        rows[n], rows[at] = rows[at], rows[n]
        for j, (vector, image) in enumerate(rows):
            if j != n and vector >> n & 1:
                rows[j] = (vector ^ rows[n][0], image ^ rows[n][1])
    return {place: rows[n][1] for n, place in enumerate(places)}
