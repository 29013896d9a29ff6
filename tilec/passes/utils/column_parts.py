"""A part of the columns of a fragment: what the statements that touch it become for those who hold
that part only.

Statements are split that give columns of the result columns of what they take: fills, loops over
elements (what else they touch is the same, at the same places), products (a part of the columns of
B), copies to and from a tensor, branches of such statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilec.ir.builder import Builder
from tilec.ir.core import Block, Op, Region, Substitution, Value
from tilec.ir.errors import ResourceError
from tilec.ir.ops import Copy, ElementAccess, Fill, Gemm, If, Load, Parallel, Store
from tilec.passes.utils.building import columns


@dataclass(frozen=True)
class ColumnPart:
    """Part `number` of `count` of fragments: `own` are the buffers that hold it, `tiles` those that
    hold the part of tiles whose columns are shared out in the same way. `refuse` makes the error
    for a statement that cannot be split."""

    number: int
    count: int
    own: Mapping[Value, Value]
    tiles: Mapping[Value, Value]
    refuse: Callable[[Op, str], ResourceError]

    def statement(self, o: Op, subst: Substitution) -> list[Op]:
        """What `o` becomes, with fresh values; `subst` as of `clone`."""
        made = Builder(o.loc)
        self._emit(made, o.clone(subst))
        return made.ops

    def _emit(self, b: Builder, o: Op) -> None:
        if self.own.keys().isdisjoint(o.uses):
            b.ops.append(o)
            return
        match o:
            case Fill() if o.dest.is_whole:
                b.ops.append(replace(o, dest=b.whole(self.own[o.dest.buffer])))
            case Gemm() if o.c in self.own and o.metadata is None:
                b.ops.append(replace(o, b=self._columns_of_b(o), c=self.own[o.c]))
            case Copy() if o.source.buffer in self.own and o.source.is_whole:
                source = b.whole(self.own[o.source.buffer])
                b.ops.append(replace(o, source=source, dest=self._columns(b, o, o.dest)))
            case Copy() if o.dest.buffer in self.own and o.dest.is_whole:
                dest = b.whole(self.own[o.dest.buffer])
                b.ops.append(replace(o, dest=dest, source=self._columns(b, o, o.source)))
            case Parallel():
                b.ops.append(self._parallel(o))
            case If() if not o.results:
                b.ops.append(replace(o, then=self._block(o.then), orelse=self._block(o.orelse)))
            case _:
                raise self.refuse(o, "it cannot be done for a part of the columns")

    def _block(self, block: Block) -> Block:
        b = Builder()
        for o in block.ops:
            b.loc = o.loc
            self._emit(b, o)
        return replace(block, ops=tuple(b.ops))

    def _columns(self, b: Builder, o: Copy, other: Region) -> Region:
        """The part of the other side of a copy, whose last dimension is the columns."""
        mine = o.source if o.source.buffer in self.own else o.dest
        width = mine.extents[-1] // self.count
        if other.extents[-1] != mine.extents[-1] or other.type.space != "global":
            raise self.refuse(o, "the other side is no tensor with the same columns")
        return columns(b, other, self.number * width, width)

    def _columns_of_b(self, o: Gemm) -> Region:
        tile = self.tiles.get(o.b.buffer)
        if tile is None or o.transpose_b or not o.b.is_whole:
            raise self.refuse(o, "its B is not a tile, brought whole, with the result's columns")
        return Region(tile, o.b.offsets, tile.buffer.static_shape)

    def _parallel(self, o: Parallel) -> Parallel:
        """The loop over a part of the indices that count columns: what is not a part has those of
        the whole."""
        args = o.body.args
        accesses = [x for x in o.body.every(ElementAccess) if x.buffer in self.own]
        found = {x.indices[-1] for x in accesses}
        index = next(iter(found))
        width = accesses[0].buffer.buffer.static_shape[-1] // self.count
        dim = args.index(index) if index in args else -1
        if len(found) > 1 or dim < 0 or o.extents[dim] != width * self.count:
            raise self.refuse(o, "one of its indices would have to be the column everywhere")
        part = Value(index.type, index.name)
        top = Builder(o.loc)
        number = top.fold("add", part, self.number * width)

        def visit(x: Op) -> None | Op:
            if isinstance(x, Load | Store) and x.buffer in self.own:
                return x.at(self.own[x.buffer], (*x.indices[:-1], part))
            if any(v in self.own for v in x.operands):
                raise self.refuse(x, "it is more than a load or store of elements")
            return None

        body = Block((), o.body.ops).rewrite(Op, visit, {index: number})
        new_args = (*args[:dim], part, *args[dim + 1 :])
        extents = (*o.extents[:dim], width, *o.extents[dim + 1 :])
        return replace(o, extents=extents, body=Block(new_args, (*top.ops, *body.ops)))
