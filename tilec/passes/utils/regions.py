"""Regions that a loop over elements walks: boxes with unit strides."""

from __future__ import annotations

from typing import NamedTuple

from tilec.ir.analysis import Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Op, Region, Substitution, Value, upstream
from tilec.ir.neighbours import Run, run_of
from tilec.ir.ops import Binary, Cast, Parallel
from tilec.ir.types import DType


class Walked(NamedTuple):
    """A box, and a loop's indices in the order of the dimensions they run along, those of one
    iteration left out; of each, how many neighbours have the same element."""

    region: Region
    order: tuple[Value, ...]
    per: tuple[int, ...]


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

    def run(self, index: Value) -> Run | None:
        """How an index goes with the loop's; None if neighbours are further apart than 1, or not
        the same for all, or where it goes with several."""
        found = run_of(self.facts, index, [a for a, e in self.extents.items() if e > 1])
        whole = found is None or found.along is None or self.extents[found.along] % found.per == 0
        return found if whole else None

    def walked(
        self, buffer: Value, indices: tuple[Value, ...], several: bool = False
    ) -> Walked | None:
        """What accesses to elements at `indices` walk; None if that is no box with unit strides.
        `several`: neighbours may have one element."""
        offsets: list[Value] = []
        extents: list[int] = []
        order: list[Value] = []
        each: list[int] = []
        for index in indices:
            run, offset = self.run(index), self.at_first(index)
            if run is None or run.along in order or offset is None:
                return None
            if run.per > 1 and not several:
                return None
            if run.along is not None:
                order.append(run.along)
                each.append(run.per)
            offsets.append(offset)
            extents.append(1 if run.along is None else self.extents[run.along] // run.per)
        return Walked(Region(buffer, tuple(offsets), tuple(extents)), tuple(order), tuple(each))

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
            case Binary(kind="floordiv"), [x, _] if x in zeros:
                return x
            case Binary(kind="sub"), [x, y] if y in zeros:
                return x
        made = o.clone(self.subst)
        self.before.ops.append(made)
        return made.result

    def _zero(self, dtype: DType) -> Value:
        zeros = (v for v in self.before.known if v.dtype == dtype)
        return next(zeros, None) or self.before.const(0, dtype)
