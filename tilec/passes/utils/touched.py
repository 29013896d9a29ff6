"""Where iterations of a loop over elements touch memory, where no formula says it: found by
computing their places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low

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
    made = defining_ops(p.body)
    needed = [*upstream(o.indices, made)]
    strides = _strides(o.buffer.buffer)
    found = []
    for place in places:
        numbers: dict[Value, Number] = dict(zip(p.body.args, place))

        def known(v: Value) -> Number:
            return numbers[v] if v in numbers else facts.constant(v) or 0

        for x in needed:
            number = None if len(x.results) != 1 or x.regions else fold(x, known)
            if number is None and any(
                a in facts.origins.of(r) for r in x.results for a in p.body.args
            ):
                return None
            numbers |= dict.fromkeys(x.results, number or 0)
        found.append(sum(int(known(v)) * s for v, s in zip(o.indices, strides)))
    return found


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
