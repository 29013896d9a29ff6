"""Regions that a loop over elements walks: boxes with unit strides."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Op, Substitution, Value, clone, inputs, upstream
from tilec.ir.ops import Binary, Cast, Const, Parallel
from tilec.ir.types import ScalarType

Split = tuple[Value | None, Value | None]  # a loop's index, and a value known before the loop


def _is_sum(o: Op, indices: tuple[Value, ...]) -> bool:
    """Whether it adds, or widens a loop's index."""
    if isinstance(o, Cast):
        return o.operand in indices and o.dtype.bits >= 32
    return isinstance(o, Binary) and o.kind in ("add", "sub")


class LoopRegions:
    """One `parallel`, and the ops (`hoisted`) that have to stand before what replaces it or part of
    it: the offsets of the regions."""

    def __init__(self, o: Parallel) -> None:
        self.o = o
        self.made = {r: x for x in o.body.ops for r in x.results}
        self.sums = {r: x for r, x in self.made.items() if _is_sum(x, o.body.args)}
        self.splits: dict[Value, Split | None] = {}
        self.extents = dict(zip(o.body.args, o.extents))
        self.hoisted: list[Op] = []
        self.subst: Substitution = {}

    def region(
        self, buffer: Value, indices: tuple[Value, ...]
    ) -> tuple[tuple[Value, ...], tuple[int, ...], list[Value]] | None:
        """(offsets, extents, loop indices in the order of the dimensions they run along), or None
        if the accesses are no box with unit strides. Loop indices of extent 1 are dropped."""
        offsets: list[Value] = []
        extents: list[int] = []
        order: list[Value] = []
        for index in indices:
            split = self.split(index)
            if split is None:
                return None
            along, offset = split
            if along is not None:
                if along in order:
                    return None
                order.append(along)
            offsets.append(offset if offset is not None else self.zero(index))
            extents.append(1 if along is None else self.extents[along])
        return tuple(offsets), tuple(extents), order

    def split(self, v: Value) -> Split | None:
        """`v` as loop index + value known before the loop; either may be None (absent, zero). None
        if it is not of this form."""
        for o in upstream((v,), self.sums, self.splits):
            self.splits[o.result] = self._sum(o)
        return self._part(v)

    def _part(self, v: Value) -> Split | None:
        if v in self.splits:
            return self.splits[v]
        if v in self.extents:
            return (v if self.extents[v] > 1 else None), None
        value = self.invariant(v)
        return None if value is None else (None, value)

    def _sum(self, o: Op) -> Split | None:
        """`split` of what an op of `sums` makes, from those of its operands."""
        if isinstance(o, Cast):
            return self._part(o.operand)
        assert isinstance(o, Binary)
        left, right = self._part(o.lhs), self._part(o.rhs)
        if left is None or right is None:
            return None
        along = left[0] or right[0]
        if (left[0] and right[0]) or (o.kind == "sub" and right[0]):
            return None
        if right[1] is None:
            return along, left[1]
        if left[1] is None and o.kind == "add":
            return along, right[1]
        whole = self.invariant(o.result) if along is None else None
        if whole is not None:
            return None, whole
        lhs = left[1] if left[1] is not None else self.zero(o.result)
        return along, self.emit(Binary(o.kind, lhs, right[1], loc=o.loc), o.result)

    def invariant(self, v: Value) -> Value | None:
        """`v` computed before the loop, None if it depends on the iteration or on memory."""
        needed = [*upstream((v,), self.made, self.subst)]
        if v in self.extents or not all(map(self._can_be_hoisted, needed)):
            return None
        self.hoisted += [clone(o, self.subst) for o in needed]
        return self.subst.get(v, v)

    def _can_be_hoisted(self, o: Op) -> bool:
        return o.pure and not any(x in self.extents for x in inputs(o))

    def zero(self, like: Value) -> Value:
        dtype = like.dtype
        return self.emit(Const(0, dtype, loc=self.o.loc), Value(ScalarType(dtype)))

    def emit(self, o: Op, like: Value) -> Value:
        made = Value(like.type, like.name)
        self.hoisted.append(replace(o, results=(made,)))
        return made

    def is_zero(self, v: Value) -> bool:
        for o in self.hoisted:
            if v in o.results:
                return isinstance(o, Const) and o.value == 0
        return False
