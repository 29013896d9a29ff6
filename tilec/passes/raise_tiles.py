"""Turns loops over elements that only move a tile into the tile ops that later passes know how
to move.
"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Func, Op, Substitution, Value, clone, rewrite
from tilec.ir.ops import Binary, Cast, Const, Copy, Fill, Load, Parallel, Store, Yield, squeeze
from tilec.ir.types import BufferType, ScalarType
from tilec.target import Target


def raise_tiles(func: Func, target: Target) -> Func:
    """Before: TILE. After: TILE, and each `parallel` whose iterations each copy one element of a
    region to the same place of another (converting at most) is a `copy`, each that writes one
    value all over a region is a `fill`.

    The regions must be boxes with unit strides, walked in the same order on both sides: `dst[i +
    a, j + b] = src[c, i + d, j]`. An access out of a global tensor's bounds means the same in both
    forms. Every other loop is left alone.
    """
    return func.with_body(rewrite(func.body, _raise))


def _raise(o: Op) -> list[Op] | None:
    if not isinstance(o, Parallel) or o.layout is not None or 0 in o.extents:
        return None
    return _Loop(o).raised()


class _Loop:
    """One `parallel`, and the ops that have to stand before what replaces it."""

    def __init__(self, o: Parallel) -> None:
        self.o = o
        self.made = {r: x for x in o.body.ops for r in x.results}
        self.extents = dict(zip(o.body.args, o.extents))
        self.hoisted: list[Op] = []
        self.subst: Substitution = {}

    def raised(self) -> list[Op] | None:
        effects = [x for x in self.o.body.ops if not x.pure and not isinstance(x, Load | Yield)]
        if len(effects) != 1 or not isinstance(effects[0], Store):
            return None
        store = effects[0]
        if _space(store.dest) not in ("global", "shared", "fragment"):
            return None
        dest = self.region(store.dest, store.indices)
        if dest is None:
            return None
        offsets, extents, order = dest
        if len(order) != sum(e > 1 for e in self.o.extents):
            return None  # an index that selects no element: iterations write the same place
        made = self.copy(store, offsets, extents, order) or self.fill(store, offsets, extents)
        return None if made is None else [*self.hoisted, made]

    def copy(
        self,
        store: Store,
        offsets: tuple[Value, ...],
        extents: tuple[int, ...],
        order: list[Value],
    ) -> Op | None:
        value = self.made.get(store.value)
        if isinstance(value, Cast):
            value = self.made.get(value.operand)
        if not isinstance(value, Load) or value.source is store.dest:
            return None
        if _space(value.source) not in ("global", "shared", "fragment"):
            return None
        source = self.region(value.source, value.indices)
        if source is None or source[2] != order:
            return None
        source_offsets, source_extents, _ = source
        assert squeeze(source_extents) == squeeze(extents)
        return Copy(
            value.source,
            source_offsets,
            source_extents,
            store.dest,
            offsets,
            extents,
            coalesced_width=self.o.coalesced_width,
            loc=store.loc,
        )

    def fill(self, store: Store, offsets: tuple[Value, ...], extents: tuple[int, ...]) -> Op | None:
        t = store.dest.buffer
        whole = extents == t.shape and all(self.is_zero(v) for v in offsets)
        if t.space != "global" and not whole:
            return None
        value = self.invariant(store.value)
        if value is None:
            return None
        return Fill(store.dest, offsets, extents, value, loc=store.loc)

    # --- regions
    # ------------------------------------------------------------------------------------

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


def _space(buffer: Value) -> str:
    return buffer.type.space if isinstance(buffer.type, BufferType) else ""
