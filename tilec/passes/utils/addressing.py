"""From layouts to arithmetic: coordinates of a register, offsets of a coordinate, bounds of an
index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Substitution, Value, upstream, walk
from tilec.ir.errors import InternalError
from tilec.ir.layout import Layout, Term, over_gaps
from tilec.ir.ops import Alloc, AnnotateSafeValue, Const, Lane, RingStage, Warp
from tilec.ir.types import INT32, INT64, BufferType, DType, Extent


def combined(b: Builder, terms: Sequence[Term], source: Callable[[Term], Value]) -> Value:
    """What terms of these sources make together."""
    total = b.const(0)
    for t in terms:
        value = b.fold("floordiv", source(t), t.div)
        value = b.fold("mod", value, t.mod) if t.mod else value
        total = b.fold("xor" if t.xor else "add", total, b.fold("mul", value, t.mul))
    return total


class Place:
    """This thread's place in its scope: lane and warp, made once where they are first asked for."""

    def __init__(self, b: Builder) -> None:
        self.b = b

    @cached_property
    def lane(self) -> Value:
        return self.b.value(Lane)

    @cached_property
    def warp(self) -> Value:
        return self.b.value(Warp)

    def make(self, layout: Layout) -> None:
        """Bring into being what `coordinates` of this layout will ask for, here."""
        if layout.size("lane") > 1:
            _ = self.lane
        if layout.size("warp") > 1:
            _ = self.warp


def coordinates(b: Builder, layout: Layout, place: Place, reg: Value) -> list[Value]:
    """The coordinate that register `reg` of this thread holds, one i32 per dimension."""

    def source(t: Term) -> Value:
        if t.source == "reg":
            return reg
        return place.lane if t.source == "lane" else place.warp

    return [combined(b, layout.forward_terms(d), source) for d in range(len(layout.shape))]


def narrow(b: Builder, v: Value) -> Value:
    """`v` as i32."""
    return b.cast(v, INT32)


def shared_offset(b: Builder, layout: Layout, coords: Sequence[Value]) -> Value:
    """Offset in elements of a coordinate in a shared buffer, padding included: i32, whatever the
    coordinates are. A sum where it can be one, of which LLVM takes what does not change out of
    loops."""
    coords = [narrow(b, c) for c in coords]
    terms, pad = layout.inverse_terms(), layout.pad
    padded = over_gaps(terms, layout.shape, *pad) if pad else None
    offset = combined(b, padded or terms, lambda t: coords[int(t.source)])
    if pad and padded is None:
        every, skip = pad
        extra = b.fold("mul", b.fold("floordiv", offset, every), skip)
        offset = b.fold("add", offset, extra)
    return offset


def unique_replica(b: Builder, layout: Layout, place: Place) -> Value | None:
    """True in the one thread among those that hold the same elements that acts for them; None if
    no element is held twice."""
    lanes = _first_of(b, layout, "lane", place.lane)
    return b.conjunction([*lanes, *_first_of(b, layout, "warp", place.warp)])


def unique_register(b: Builder, layout: Layout, register: Value) -> Value | None:
    """True in the first of a thread's registers that hold the same element; None if none is held
    twice."""
    return b.conjunction(_first_of(b, layout, "reg", register))


def _first_of(b: Builder, layout: Layout, owner: str, at: Value) -> list[Value]:
    """That the owner's index `at` is the first among those with the same elements."""
    conds = []
    below = 1
    for d in layout.digits:
        if d.owner != owner:
            continue
        if not any(d.step) and d.radix > 1:
            digit = b.fold("mod", b.fold("floordiv", at, below), d.radix)
            conds.append(b.compare("eq", digit, 0))
        below *= d.radix
    return conds


class Tensors:
    """What a function knows about its tensors and buffers: sizes, strides, safe values, roots."""

    def __init__(self, func: Func) -> None:
        self.named = {p.value.name: p.value for p in func.params}
        self.constants = {o.result: o for o in func.body.every(Const)}
        self.safe: dict[Value, Const] = {}
        for o in func.body.every(AnnotateSafeValue):
            if o.value not in self.constants:
                raise InternalError("a safe value that is not a constant", o.loc)
            self.safe[o.dest] = self.constants[o.value]
        self.root: dict[Value, Value] = {}
        for x in walk(func.body):
            if isinstance(x, RingStage):
                self.root[x.result] = self.root.get(x.root, x.root)
            elif isinstance(x, Alloc):
                self.root[x.result] = x.result

    def number(self, b: Builder, e: Extent, dtype: DType) -> Value:
        """An extent or stride as a value of `dtype`."""
        if isinstance(e, int):
            return b.const(e, dtype)
        return b.cast(self.named[e], dtype)

    def offset(self, b: Builder, t: BufferType, indices: Sequence[Value]) -> Value:
        """Offset in elements of an element of a global tensor: i64."""
        return self._sum(b, t, indices, INT64)

    def short_offset(self, b: Builder, t: BufferType, indices: Sequence[Value]) -> Value:
        """The same of an element that is there: as a sum of 32 bits, where sizes are such that no
        offset is longer."""
        sizes = [v.dtype for name, v in self.named.items() if name in t.shape]
        dtype = INT32 if sizes and {*sizes} == {INT32} else INT64
        return b.cast(self._sum(b, t, indices, dtype), INT64)

    def _sum(self, b: Builder, t: BufferType, indices: Sequence[Value], dtype: DType) -> Value:
        total = b.const(0, dtype)
        if t.strides is None:  # contiguous
            for index, extent in zip(indices, t.shape):
                wide = b.cast(index, dtype)
                if b.known.get(total) != 0:
                    total = b.fold("mul", total, self.number(b, extent, dtype))
                total = b.fold("add", total, wide)
            return total
        for index, stride in zip(indices, t.strides):
            wide = b.cast(index, dtype)
            if stride == 1:
                step = wide
            elif isinstance(stride, int):
                step = b.fold("mul", wide, stride)
            else:
                step = b.fold("mul", wide, self.number(b, stride, dtype))
            total = b.fold("add", total, step)
        return total


def clone_expression(
    b: Builder, v: Value, inner: dict[Value, Op], subst: Substitution
) -> Value | None:
    """`v` computed again at `b`: values of `inner` (what a region defines) are cloned, those in
    `subst` (which grows) replaced. None, and nothing is made, where a value of the region cannot
    be made twice."""
    needed = [*upstream((v,), inner, subst)]
    if not all(o.pure for o in needed):
        return None
    b.ops += [o.clone(subst) for o in needed]
    return subst.get(v, v)
