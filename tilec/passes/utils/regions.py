"""Regions that a loop over elements walks: boxes with unit strides."""

from __future__ import annotations

from typing import NamedTuple

from tilec.ir.analysis import Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Op, Region, Substitution, Value, upstream
from tilec.ir.ops import Binary, Cast, Parallel
from tilec.ir.types import DType


class Walked(NamedTuple):
    """A box, and a loop's indices in the order of the dimensions they run along, those of one
    iteration left out."""

    region: Region
    order: tuple[Value, ...]


class LoopRegions:
    """One `parallel`, and `before` it the ops that have to stand before what replaces it or part of
    it: the offsets of the regions."""

    def __init__(self, o: Parallel, facts: Facts) -> None:
        self.o = o
        self.facts = facts
        self.made = o.body.makers
        self.extents = dict(zip(o.body.args, o.extents))
        self.before = Builder(o.loc)
        self.subst: Substitution = {}

    def walked(self, buffer: Value, indices: tuple[Value, ...]) -> Walked | None:
        """What accesses to elements at `indices` walk; None if that is no box with unit strides."""
        offsets: list[Value] = []
        extents: list[int] = []
        order: list[Value] = []
        for index in indices:
            slopes = {a: self.facts.slope(index, a) for a, e in self.extents.items() if e > 1}
            along = [a for a, slope in slopes.items() if slope != 0]
            if len(along) > 1 or any(slopes[a] != 1 or a in order for a in along):
                return None
            offset = self.at_first(index)
            if offset is None:
                return None
            order += along
            offsets.append(offset)
            extents.append(self.extents[along[0]] if along else 1)
        return Walked(Region(buffer, tuple(offsets), tuple(extents)), tuple(order))

    def invariant(self, v: Value) -> Value | None:
        """`v` computed before the loop, None if it depends on the iteration or on memory."""
        varies = any(e > 1 and a in self.facts.origins.of(v) for a, e in self.extents.items())
        return None if varies else self.at_first(v)

    def at_first(self, v: Value) -> Value | None:
        """What `v` is in the first iteration, computed before the loop; None if that depends on
        memory."""
        needed = [*upstream((v,), self.made, self.subst)]
        if not all(o.pure for o in needed):
            return None
        used = {v, *(x for o in needed for x in o.operands)}
        self.subst |= {a: self._zero(a.dtype) for a in self.o.body.args if a in used}
        for o in needed:
            self.subst[o.result] = self._again(o)
        return self.subst.get(v, v)

    def _again(self, o: Op) -> Value:
        """What `o` makes, before the loop; simpler where the loop's indices are 0."""
        zeros = self.before.known
        match o, [self.subst.get(v, v) for v in o.operands]:
            case Cast(), [x] if x in zeros:
                return self._zero(o.dtype)
            case Binary(kind=kind), [x, y] if kind in ("add", "mul") and (x in zeros or y in zeros):
                return self.before.fold(kind, x, y)
            case Binary(kind="sub"), [x, y] if y in zeros:
                return x
        made = o.clone(self.subst)
        self.before.ops.append(made)
        return made.result

    def _zero(self, dtype: DType) -> Value:
        zeros = (v for v in self.before.known if v.dtype == dtype)
        return next(zeros, None) or self.before.const(0, dtype)
