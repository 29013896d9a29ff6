"""flatten_rows: matrices whose rows follow one another without gaps are walked over as one row.

Before: TILE; the blocks of a grid each take a box of tensors of one shape, element by element:

    for i, j: C[by * BM + i, bx * BN + j] = f(A[by * BM + i, bx * BN + j], …)

Where a row is no whole number of 16 bytes, rows begin anywhere and a thread may take an element or
two of one at once. After: if all these tensors are `dense` (an attribute of the function: the
alignment of the first element, by the name of the argument), they have one dimension, and a block
takes as many elements as before, which follow one another:

    for e: C[n * BM * BN + e] = f(A[n * BM * BN + e], …)

`n` is the number of the block in its grid. The launch stays as it was: where tiles stick out of
the tensors, the last blocks have nothing to do and end at once. Every other kernel is left alone:
one that uses an index for anything but such elements (or to ask whether they are inside), a row or
a column for all of a tile, loops over tiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.affine import Affine
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.copy_engines import alignment
from tilec.ir.core import Block, Func, Op, Param, Region, Substitution, Value, walk
from tilec.ir.types import INT32, BufferType, Extent, ScalarType
from tilec.passes.utils.tile_ends import reaches
from tilec.target import Target


def flatten_rows(func: Func, target: Target) -> Func:
    dense = dict(func.attrs.get("dense", ()))
    if not dense:
        return func
    none = func.with_attrs(dense=())
    if func.attrs.get("grid_from_launch"):
        return none
    try:
        found = _Elements(func)
    except _Differs:
        return none
    names = {p.value: p.arg for p in func.params}
    given = {v: dense.get(names[v], 0) for v in found.tensors}
    if not all(given.values()) or all(alignment(v.buffer) >= a for v, a in given.items()):
        return none
    kept = tuple(sorted((names[v], a) for v, a in given.items()))
    return _Flat(found, dense).build().with_attrs(dense=kept)


class _Differs(Exception):
    """The kernel is not of the form that is looked for."""


class Side(NamedTuple):
    """A dimension of the tensors: elements of it in a tile, and the dimension of the grid whose
    blocks follow one another along it (None: one tile is all of it)."""

    tile: int
    block: int | None


class _Elements:
    """What a kernel does to the elements of its tensors. Raises _Differs unless each block does the
    same to each element of a box, which only its own number tells from the others'."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.defs = {**func.grid.defs, **func.body.defs}
        self.places = self._places()
        self.facts = facts_of(func)
        self.fixed = {
            o.source for o in func.body.every(ops.Load) if self.places.isdisjoint(o.indices)
        }
        self.sides: tuple[Side, ...] = ()
        self.shape: tuple[Extent, ...] = ()
        self.dtype = INT32
        self.tensors: set[Value] = set()
        self.tiles: set[Value] = set()
        self.guards: set[Value] = set()
        for o in func.body.ops:
            self._op(o)
        self._check_grid()

    def _places(self) -> set[Value]:
        """The values that say where a block or an iteration stands."""
        found: set[Value] = set()
        for o in walk(self.func.body):
            if isinstance(o, ops.Parallel):
                found.update(o.body.args)
            elif isinstance(o, ops.BlockIndex) or (o.pure and not found.isdisjoint(o.operands)):
                found.update(o.results)
        return found

    # --- the body ---

    def _op(self, o: Op) -> None:
        match o:
            case ops.Parallel(layout=None):
                self._loop(o)
            case ops.Copy():
                self._box(o.source)
                self._box(o.dest)
            case ops.Fill():
                self._box(o.dest)
                self._is_data(o.value)
            case ops.Load():
                self._is_data(*o.indices)
            case ops.Alloc() | ops.Assume() | ops.Yield():
                pass
            case _ if not o.pure:
                raise _Differs

    def _is_data(self, *values: Value) -> None:
        """Raise _Differs if one of the values depends on the place."""
        if not self.places.isdisjoint(values):
            raise _Differs

    def _loop(self, p: ops.Parallel) -> None:
        wide = [(a, e) for a, e in zip(p.body.args, p.extents) if e > 1]
        asked: set[Value] = set()
        self.inside: list[Affine] = []
        for o in walk(p.body):
            match o:
                case ops.If(cond=cond) if cond in self.places:
                    asked.add(cond)
                case ops.Load(source=v, indices=at) if self.places.isdisjoint(at):
                    pass
                case ops.Load(source=v, indices=at):
                    self._element(v, at, wide)
                case ops.Store(dest=v, indices=at, value=value):
                    self._is_data(value)
                    if v.space == "local":
                        self._is_data(*at)
                    else:
                        self._element(v, at, wide)
                case (
                    ops.For()
                    | ops.While()
                    | ops.If()
                    | ops.Yield()
                    | ops.Alloc(type=BufferType(space="local"))
                ):
                    self._is_data(*o.operands)
                case _ if not o.pure:
                    raise _Differs
        self._check_guards(asked)
        self.guards |= asked

    def _check_guards(self, asked: Iterable[Value]) -> None:
        """Raise _Differs unless each condition asks whether the element that a loop is at is one of
        the tensors', in one dimension or several."""
        left = [*asked]
        while left:
            o = self.defs.get(left.pop())
            match o:
                case ops.Binary(kind="and"):
                    left += o.lhs, o.rhs
                    continue
                case (
                    ops.Compare(kind="lt" | "le", lhs=x, rhs=y)
                    | ops.Compare(kind="gt" | "ge", lhs=y, rhs=x)
                ):
                    below = self.facts.form(x) - self.facts.form(y)
                    if o.kind in ("le", "ge"):
                        below -= Affine(1)
                    if below in self.inside:  # below zero where the element lies inside
                        continue
            raise _Differs

    def _element(
        self, v: Value, indices: Sequence[Value], wide: Sequence[tuple[Value, int]]
    ) -> None:
        """An access of a loop, whose indices of more than one iteration are `wide`."""
        left = [*wide]
        starts: list[Affine] = []
        extents: list[int] = []
        for index, size in zip(indices, v.buffer.shape):
            start, extent = self.facts.form(index), 1
            self.inside.append(start - self._size(size))
            if left and start.terms.get(left[0][0]) == 1:
                arg, extent = left.pop(0)
                start = start.without(arg)
            starts.append(start)
            extents.append(extent)
        if left:
            raise _Differs
        self._place(v, indices, starts, extents)

    def _box(self, r: Region) -> None:
        """A region that is copied or filled."""
        self._place(r.buffer, r.offsets, [*map(self.facts.form, r.offsets)], r.extents)

    def _place(
        self, v: Value, indices: Sequence[Value], starts: Sequence[Affine], extents: Sequence[int]
    ) -> None:
        """Each of `extents` elements from `starts` on, of a tensor or a tile."""
        t = v.buffer
        if v in self.fixed or t.layout is not None:
            raise _Differs
        if t.space == "global":
            sides = tuple(self._side(start, e) for start, e in zip(starts, extents))
            if self.tensors and (self.shape, self.sides) != (t.shape, sides):
                raise _Differs
            self.shape, self.sides, self.dtype = t.shape, sides, indices[0].dtype
            self.tensors.add(v)
        elif t.space in ("fragment", "shared"):
            if any(s != Affine() for s in starts) or tuple(extents) != t.shape:
                raise _Differs
            self.tiles.add(v)
        else:
            raise _Differs

    def _side(self, start: Affine, tile: int) -> Side:
        if start == Affine():
            return Side(tile, None)
        for v in start.terms:
            block = self.defs.get(v)
            if isinstance(block, ops.BlockIndex) and start == Affine.of(v).scaled(tile):
                return Side(tile, block.dim)
        raise _Differs

    def _size(self, extent: Extent) -> Affine:
        if isinstance(extent, int):
            return Affine(extent)
        return Affine.of(self.func.param(extent).value)

    # --- the launch ---

    def _check_grid(self) -> None:
        """All elements of the tensors are some block's, and nobody but their blocks is there."""
        extents = ops.yielded(self.func.grid)
        blocks = [s.block for s in self.sides if s.block is not None]
        others = [e for d, e in enumerate(extents) if d not in blocks]
        if len({*blocks}) < len(blocks) or any(self.facts.form(e) != Affine(1) for e in others):
            raise _Differs
        for extent, side in zip(self.shape, self.sides):
            if side.block is None:
                covered = isinstance(extent, int) and side.tile >= extent
            else:
                count = extents[side.block]
                covered = reaches(self.func, self.facts, count, side.tile, extent)
            if not covered:
                raise _Differs


class _Flat:
    """The function whose tensors have one dimension."""

    def __init__(self, found: _Elements, dense: Mapping[str, int]) -> None:
        self.found = found
        func = self.func = found.func
        self.count = prod(s.tile for s in found.sides)
        self.subst: Substitution = {}
        given = [p for p in func.params if p.value in found.tensors]
        name = given[0].arg
        self.total = Param(Value(ScalarType(found.dtype), f"{name}_elements"), "elements", name)
        for p in given:
            shape = (self.total.value.name,)
            t = replace(p.value.buffer, shape=shape, strides=(1,), align=dense[p.arg])
            self.subst[p.value] = Value(t, p.value.name)
        self.flat = {*self.subst.values()}

    def build(self) -> Func:
        """The whole function."""
        func = self.func
        b = Builder(func.loc)
        number = self._number(b)
        up = b.binary("add", self.total.value, self.count - 1)
        blocks = b.binary("floordiv", up, self.count)
        with b.when(b.compare("lt", number, blocks)) as inner:
            self.start = inner.binary("mul", number, self.count)
            for o in func.body.statements:
                inner.loc = o.loc
                self._op(inner, o)
        b.emit(ops.Yield)
        params = tuple(
            replace(p, value=self.subst.get(p.value, p.value)) for p in (*func.params, self.total)
        )
        return replace(func, params=params, body=b.block())

    def _number(self, b: Builder) -> Value:
        """This block's number in the grid."""
        number: Value | None = None
        for dim in reversed(range(len(ops.yielded(self.func.grid)))):
            index = b.cast(b.value(ops.BlockIndex, dim), self.found.dtype)
            if number is not None:
                size = b.cast(b.value(ops.GridSize, dim), self.found.dtype)
                index = b.binary("add", b.binary("mul", number, size), index)
            number = index
        assert number is not None
        return number

    def _op(self, b: Builder, o: Op) -> None:
        o = o.with_operands(self.subst)
        match o:
            case ops.Alloc() if o.result in self.found.tiles:
                made = b.value(ops.Alloc, replace(o.type, shape=(self.count,)), name=o.result.name)
                self.subst[o.result] = made
                self.flat.add(made)
            case ops.Parallel():
                b.ops.append(self._loop(o))
            case ops.Copy():
                source, dest = self._box(b, o.source), self._box(b, o.dest)
                b.ops.append(replace(o, source=source, dest=dest))
            case ops.Fill():
                b.ops.append(replace(o, dest=self._box(b, o.dest)))
            case ops.Assume():
                pass  # of tiles that are none any more
            case _ if self.found.places.isdisjoint(o.results):
                b.ops.append(o)

    def _box(self, b: Builder, r: Region) -> Region:
        is_tensor = r.type.space == "global"
        at = self.start if is_tensor else b.const(0)
        return replace(r, offsets=(at,), extents=(self.count,))

    def _loop(self, p: ops.Parallel) -> ops.Parallel:
        """The loop over the tile's elements, one after the other."""
        arg = Value(ScalarType(INT32), "e")
        b = Builder(p.loc)
        at = b.binary("add", self.start, b.cast(arg, self.found.dtype))
        inside = b.compare("lt", at, self.total.value)

        def visit(o: Op) -> None | Op | list[Op]:
            if isinstance(o, ops.If) and o.cond in self.found.guards:
                return replace(o, cond=inside)
            if isinstance(o, ops.ElementAccess):
                v = o.buffer
                if v in self.flat:
                    return o.at(v, (at if v.space == "global" else arg,))
            return None if self.found.places.isdisjoint(o.results) else []

        body = p.body.rewrite(Op, visit, self.subst)
        block = Block((arg,), (*b.ops, *body.ops))
        return replace(p, extents=(self.count,), body=block)
