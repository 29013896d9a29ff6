"""How far an integer reaches, as far as tracing knows.

The front end folds the extents of slices and proves an index out of range by the sums that integers
are (`tilec.ir.affine`). Of the unknowns in them it knows a `Reach`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.ir.affine import Affine, Forms
from tilec.ir.core import Op, Value
from tilec.ir.intervals import Range
from tilec.ir.ops import Binary


@dataclass(slots=True)
class Reach:
    """Where an integer lies.

    In `lo … hi` (None: no bound known). `attained`: both bounds really occur, whatever other
    integers with different `roots` are. `roots` are the unknowns that it was computed from in the
    end (kept where `attained`). `depth`: the fewest run-time conditions that stood around the
    definition of one of these, 0 for a number. `dense`: both bounds are known, and every integer
    between them occurs with every value of the other dense ones. `name` is the user's, for
    messages.
    """

    lo: int | None = None
    hi: int | None = None
    attained: bool = False
    depth: int = 0
    dense: bool = False
    name: str = ""
    roots: frozenset[Value] = frozenset()

    @property
    def extent(self) -> int:
        """How many integers a dense one takes."""
        assert self.lo is not None and self.hi is not None
        return self.hi - self.lo + 1


_ANYWHERE = Reach()


class Indices(Forms):
    """The sums and the reach of all integers traced so far."""

    def __init__(self) -> None:
        super().__init__()
        self._unknowns: dict[Value, Reach] = {}

    def define(self, value: Value, reach: Reach) -> None:
        """Say how far an integer reaches that no arithmetic makes."""
        self._unknowns[value] = reach

    def of(self, unknown: Value) -> Reach:
        """The reach of a term of a sum."""
        return self._unknowns.get(unknown, _ANYWHERE)

    def range(self, value: Value) -> Range:
        reach = self.of(value)
        return reach.lo, reach.hi

    def is_size(self, a: Affine) -> bool:
        """Whether it is an extent of a tensor, plus a number."""
        return [*a.terms.values()] == [1] and all(
            v not in self._forms and self.range(v) == (0, None) for v in a.terms
        )

    def reach_of(self, a: Affine) -> Reach:
        """The reach of a sum; exact where its unknowns are independent."""
        if not a.terms:
            return Reach(a.const, a.const, True)
        lo, hi = self.reach(a)
        attained, roots = True, frozenset[Value]()
        depths = []
        for v in a.terms:
            term = self.of(v)
            depths.append(term.depth)
            if attained := attained and term.attained:
                own = term.roots or frozenset((v,))
                attained = roots.isdisjoint(own)
                roots |= own
        return Reach(lo, hi, attained, min(depths), roots=roots if attained else frozenset())

    def unknown(self, o: Op, parts: Sequence[Affine], found: Range) -> Affine:
        result = o.results[0]
        behind = [self.reach_of(p) for p in parts if p.terms]
        attained = False
        if isinstance(o, Binary) and o.kind == "floordiv" and (parts[1].constant or 0) > 0:
            attained = behind[0].attained
        depth = min((r.depth for r in behind), default=0)
        roots = behind[0].roots if attained else frozenset()
        self._unknowns[result] = Reach(*found, attained, depth, roots=roots)
        return Affine.of(result)
