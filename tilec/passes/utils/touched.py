"""Where iterations of a loop over elements touch memory, where no formula says it: found by
computing their places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import NamedTuple

from tilec.ir.analysis import Facts
from tilec.ir.core import Value, defining_ops, upstream
from tilec.ir.fold import Number, fold
from tilec.ir.ops import ElementAccess, Parallel
from tilec.ir.types import BufferType, Extent

MOST_SAMPLED = 32  # neighbours
FAR = 1 << 20  # elements: a stride that is not known


def usual_step(p: Parallel, o: ElementAccess, dim: int, facts: Facts) -> int | None:
    """How many elements of a tensor most neighbours along a dimension of a loop are apart; None
    where that depends on what is in memory. `x[q // 56, q % 56 + k]` counts up with q but at the
    ends of rows."""
    count = min(p.extents[dim], MOST_SAMPLED)
    rank = len(p.extents)
    places = [tuple(n * (d == dim) for d in range(rank)) for n in range(count)]
    found = offsets(p, o, places, facts)
    if found is None or count == 1:
        return None
    return abs(median_low([b - a for a, b in zip(found, found[1:])]))


def offsets(
    p: Parallel, o: ElementAccess, places: Iterable[Sequence[int]], facts: Facts
) -> list[int] | None:
    """Of which elements an access of a loop is at some of its iterations, where all that is the
    same for them is 0, unless it is known; None where that depends on what is in memory."""
    needed = [*upstream(o.indices, defining_ops(p.body))]
    own = {r for x in needed for r in x.results if not facts.origins.of(r).isdisjoint(p.body.args)}
    found = []
    for place in places:
        numbers: dict[Value, Number] = dict(zip(p.body.args, place))
        for x in needed:
            number = fold(x, _Known(numbers, facts)) if len(x.results) == 1 else None
            if number is None and not own.isdisjoint(x.results):
                return None
            numbers |= dict.fromkeys(x.results, number or 0)
        at = map(_Known(numbers, facts), o.indices)
        found.append(sum(int(n) * s for n, s in zip(at, _strides(o.buffer.buffer))))
    return found


class _Known(NamedTuple):
    """The number that a value has at one iteration."""

    numbers: dict[Value, Number]
    facts: Facts

    def __call__(self, v: Value) -> Number:
        return self.numbers[v] if v in self.numbers else self.facts.constant(v) or 0


def _strides(t: BufferType) -> list[int]:
    """In elements, of each dimension."""
    strides: Sequence[Extent] | None = t.strides
    if strides is None:
        total, found = 1, list[int]()
        for e in reversed(t.shape):
            found.insert(0, total)
            total = total * e if isinstance(e, int) else FAR
        return found
    return [s if isinstance(s, int) else FAR for s in strides]
