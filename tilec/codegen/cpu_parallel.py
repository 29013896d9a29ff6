"""What must be known of a `parallel` loop before it is spelled as vector code.

Two questions, which `Facts` answers:

- `LoopFacts.ends`: between which sums does an index lie over the whole loop? The sums are of values
  from outside the loop, so that one comparison before the loop can stand for a guard on every
  access (`check`).
- `vector_dimension`: which loop index runs along the lanes of vectors? That along which most
  accesses are contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.affine import Affine
from tilec.ir.analysis import Facts
from tilec.ir.core import Value, walk
from tilec.ir.ops import Alloc, ElementAccess, For, Load, Parallel
from tilec.ir.types import Extent

Ends = tuple[Affine, Affine]  # both included


@dataclass(frozen=True, slots=True)
class Check:
    """One dimension of an access that needs a guard: low >= 0 and high < extent, over the whole
    loop.
    """

    low: Affine | None
    high: Affine | None
    extent: Extent


@dataclass
class LoopFacts:
    """A parallel loop, and what has been found out about it. `unknowns`: the ends of the terms of
    sums that are computed inside."""

    loop: Parallel
    facts: Facts
    unknowns: dict[Value, Ends | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for arg in self.loop.body.args:  # first: the ends of loops inside are told from them
            self.unknowns[arg] = self._bounds(arg)
        for o in walk(self.loop.body):
            for v in (*o.results, *(arg for region in o.regions for arg in region.args)):
                self.unknowns[v] = self._bounds(v)
            if isinstance(o, For):
                self.unknowns[o.body.args[0]] = self._index(o)

    def _bounds(self, v: Value) -> Ends | None:
        lo, hi = self.facts.range(v)
        return None if lo is None or hi is None else (Affine(lo), Affine(hi))

    def _index(self, o: For) -> Ends | None:
        low, high, step = self.ends(o.lo), self.ends(o.hi), self.facts.range(o.step)[0]
        rising = step is not None and step > 0
        return (low[0], high[1] - Affine(1)) if rising and low and high else None

    def ends(self, v: Value) -> Ends | None:
        """Between what sums `v` lies whenever the body runs; None if that is not known."""
        form = self.facts.form(v)
        low = high = Affine(form.const)
        for term, n in form.terms.items():
            found = self.unknowns.get(term, (Affine.of(term),) * 2)
            if found is None:
                return None
            first, last = found if n > 0 else found[::-1]
            low, high = low + first.scaled(n), high + last.scaled(n)
        return low, high

    # --- guards ---

    def check(self, index: Value, extent: Extent) -> Check | None | bool:
        """What must be tested so that no access by `index` leaves [0, extent): a Check; True if
        nothing; None if no test before the loop can tell.
        """
        got, (above, below) = self.ends(index), self.facts.inside(index, extent)
        if got is not None:
            low, high = got
            above = above or self._is_at_least_zero(low)
            if isinstance(extent, int):
                below = below or self._is_at_least_zero(Affine(extent - 1) - high)
        if above and below:
            return True
        if got is None or (not above and low.constant is not None):
            return None  # it may leave the tensor, whatever the values outside are
        if not below and isinstance(extent, int) and high.constant is not None:
            return None
        return Check(None if above else low, None if below else high, extent)

    def _is_at_least_zero(self, a: Affine) -> bool:
        least = self.facts.reach(a)[0]
        return least is not None and least >= 0

    # --- lanes ---

    def vector_dimension(self) -> int:
        """Which loop index should run along the lanes."""
        extents = self.loop.extents
        return max(range(len(extents)), key=lambda d: (self._score(d), d))

    def is_handed_on(self, d: int) -> bool:
        """Whether iterations along `d` may write one and the same element of a buffer that they
        read, too: an array of the thread's own, which each writes anew, or an update. One after the
        other they find what a thread finds that does all of them."""
        arg, body = self.loop.body.args[d], self.loop.body
        read = {o.source for o in body.every(Load)} - {o.result for o in body.every(Alloc)}
        access = (o for o in body.every(ElementAccess) if o.buffer in read)
        stores = (o for o in access if any(e.writes for e in o.effects()))
        return any(not any(self.facts.slope(i, arg) for i in o.indices) for o in stores)

    def _score(self, d: int) -> float:
        """Accesses that one vector instruction does, stores twice as dear; a short loop fills few
        lanes.
        """
        if self.loop.extents[d] == 1:
            return -1e9
        arg, score = self.loop.body.args[d], 0.0
        for o in walk(self.loop.body):
            if not isinstance(o, ElementAccess):
                continue
            weight = 1.0 if isinstance(o, Load) else 2.0
            parts = [self.facts.slope(i, arg) for i in o.indices]
            *outer, last = parts or [0]
            strides = o.buffer.buffer.strides
            unit = (
                strides is None or not strides or strides[-1] == 1 or isinstance(strides[-1], str)
            )
            if any(p != 0 for p in outer) or last not in (0, 1) or (last == 1 and not unit):
                score -= 2 * weight
            else:
                score += weight
        return score * min(self.loop.extents[d], 16)
