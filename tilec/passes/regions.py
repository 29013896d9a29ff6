"""Regions that a loop over elements walks: boxes with unit strides."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Op, Substitution, Value, clone
from tilec.ir.ops import Binary, Cast, Const, Parallel
from tilec.ir.types import ScalarType


class LoopRegions:
    """One `parallel`, and the ops (`hoisted`) that have to stand before what replaces it or part of
    it: the offsets of the regions."""

    def __init__(self, o: Parallel) -> None:
        self.o = o
        self.made = {r: x for x in o.body.ops for r in x.results}
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

    def split(self, v: Value) -> tuple[Value | None, Value | None] | None:
        """`v` as loop index + value known before the loop; either may be None (absent, zero). None
        if it is not of this form."""
        if v in self.extents:
            return (v if self.extents[v] > 1 else None), None
        o = self.made.get(v)
        if o is None:
            return None, v
        if isinstance(o, Cast) and o.operand in self.extents and o.dtype.bits >= 32:
            return self.split(o.operand)
        if isinstance(o, Binary) and o.kind in ("add", "sub"):
            left, right = self.split(o.lhs), self.split(o.rhs)
            if left is None or right is None:
                return None
            along = left[0] or right[0]
            if (left[0] and right[0]) or (o.kind == "sub" and right[0]):
                return None
            if right[1] is None:
                return along, left[1]
            if left[1] is None and o.kind == "add":
                return along, right[1]
            whole = self.invariant(v) if along is None else None
            if whole is not None:
                return None, whole
            lhs = left[1] if left[1] is not None else self.zero(v)
            return along, self.emit(Binary(o.kind, lhs, right[1], loc=o.loc), v)
        value = self.invariant(v)
        return None if value is None else (None, value)

    def invariant(self, v: Value) -> Value | None:
        """`v` computed before the loop, None if it depends on the iteration or on memory."""
        if v in self.extents:
            return None
        o = self.made.get(v)
        if o is None:
            return v
        if v in self.subst:
            return self.subst[v]
        if not o.pure or any(self.invariant(x) is None for x in o.operands):
            return None
        self.hoisted.append(clone(o, self.subst))
        return self.subst[v]

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
