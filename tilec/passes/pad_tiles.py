"""pad_tiles: extents that the threads cannot share evenly, or that no matrix instruction steps
through, get larger.

Before: TILE. After: TILE, and a fragment as of 100x100 or 17x33 elements, of which each thread
would hold far more than its part, has the next extents that spread well, and so has a product in
it. What is beyond a tile's own extents is never stored:

    acc = alloc fragment<100x100>            acc = alloc fragment<128x128>
    copy A[y, k], a: shared<100x32>          copy A[y, k], a: shared<128x32>
    gemm a, b, acc                     ->    gemm a, b, acc
    parallel (100, 100) { f(acc[i, j]) }     parallel (128, 128) { if i, j inside: f(acc[i, j]) }
    copy acc, C[y, x]                        parallel (128, 128) { if …: C[y + i, x + j] = acc[…] }

So does one of 64x72 elements on a GPU whose instructions have 16 columns at least, and one that is
done sooner so: of 80x112, of which two of four warps would have a part, 80x128, which the wide
instruction steps through as columns of 80 and rows of 128.

A tile of A or B is copied with the rows behind it, which only reach the part of the product that
nobody stores; where that cannot be (another block may write them, threads fill the tile, or it is
a fragment), it is cleared first. An extent is padded alike wherever a fragment has it, so that
loops over several fragments still fit all of them; a product of a fragment's part stays as it is.

What stands along K counts, so K is padded with zeros alone: where the wide instruction does not
step through it (heads of 40 or 72 numbers) and every copy ends where the rows of its tensor do,
behind which they read as 0.

Rows of a shared tile that only the narrowest swizzle fits (heads of 80 or 112 numbers) are made
whole ones of the next: TMA brings them in half as many boxes. Products read what they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region, Value
from tilec.ir.effects import buffers_written, changing_tensors, effects_in, is_clonable
from tilec.ir.element_loops import ELEMENTWISE, boxes, loop_of
from tilec.ir.layout.named import SWIZZLES
from tilec.ir.types import BufferType
from tilec.ir.values import Effect
from tilec.passes.utils.accesses import fragment_accesses, parallel_accesses
from tilec.passes.utils.building import with_types
from tilec.passes.utils.larger_extents import (
    deeper,
    fragments_of,
    larger_extents,
    of_warps,
)
from tilec.passes.utils.plans import stages_of
from tilec.passes.utils.reductions import neutral
from tilec.passes.utils.tile_ends import SharedTiles, ends, same_dim, up
from tilec.target import SECTOR, Target

ROW = SWIZZLES[1]  # rows that fit this one gained nothing from the widest
MORE = 4 / 3  # of its columns that a tile gets at most
LEAST_STAGES = 2  # of a pipelined loop that a plan may make deeper


def pad_tiles(func: Func, target: Target) -> Func:
    if target.kind == "cpu":
        return func
    deep = deeper(func, target)
    pads = larger_extents(func, target, deep)
    return _widen_rows(_Padding(func, pads, deep).run() if pads else func, target)


def _widen_rows(func: Func, target: Target) -> Func:
    """Shared operands that copies fill, with rows of whole `ROW` bytes, where all of it fits."""
    shapes = dict[Value, tuple[int, ...]]()
    tiles = SharedTiles(func)
    for o in func.body.every(ops.Gemm):
        if o.metadata is not None or not of_warps(o, target):
            continue
        for x in (o.a, o.b):
            *rows, columns = x.type.static_shape
            unit = ROW * 8 // x.dtype.bits
            wide = up(columns, unit)
            if columns < wide <= MORE * columns and tiles.may_grow(x, -1):
                shapes[x.buffer] = (*rows, wide)
    for user, e in effects_in(func.body) if shapes else ():
        stays = isinstance(user, ops.Alloc | ops.Copy | ops.Gemm) and _stays(user, e)
        if e.buffer in shapes and not stays:
            del shapes[e.buffer]
    return _Padding(func, {}, {}, shapes).run() if shapes and _fits(func, target, shapes) else func


def _stays(o: Op, e: Effect) -> bool:
    """Whether an op does to a tile what it may do to a wider one: nothing but copies from global
    memory fills it, and products alone read it. Rows that begin inside of sectors are slow however
    they come."""
    if not isinstance(o, ops.Copy):
        return True
    t = o.source.type
    row = t.shape[-1]
    return t.space == "global" and isinstance(row, int) and row * t.dtype.bits % (8 * SECTOR) == 0


def _fits(func: Func, target: Target, shapes: dict[Value, tuple[int, ...]]) -> bool:
    """Whether shared memory holds tiles of these shapes, as many of each as were asked for."""
    stages = dict[Value, int]()
    for o in func.body.every(ops.For):
        if o.kind == "pipelined":
            copied = (x.dest.buffer for x in o.body.every(ops.Copy))
            stages |= dict.fromkeys(copied, max(stages_of(o, LEAST_STAGES), 1))
    tiles = (o.result for o in func.body.every(ops.Alloc))
    taken = sum(
        replace(v.buffer, shape=shapes.get(v, v.buffer.shape)).stage_bytes * stages.get(v, 1)
        for v in tiles
        if v.space == "shared"
    )
    return taken <= target.shared_bytes


class _Padding:
    """`pads`: what extents become; `deep`: K of products; `shapes`: of shared operands, beside."""

    def __init__(
        self,
        func: Func,
        pads: dict[int, int],
        deep: dict[ops.Gemm, int],
        shapes: Mapping[Value, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        self.func = func
        self.pads = pads
        self.deep = deep
        self.written = changing_tensors(func)
        self.facts = facts_of(func)
        self.shapes = dict[Value, tuple[int, ...]](shapes)
        self.products = set[Value]()
        for v in fragments_of(func):
            self.shapes[v] = tuple(pads.get(e, e) for e in v.buffer.static_shape)
        for o in func.body.every(ops.Gemm):
            self.products.add(o.c)
            for region, dim in zip((o.a, o.b), o.summed):
                self._operand(region, -3 - dim)
                if o in deep:
                    self._operand(region, dim, deep[o])
            if o.metadata is not None:
                self._operand(o.metadata, -1 if o.transpose_metadata else -2)
        self.shapes = {v: s for v, s in self.shapes.items() if s != v.buffer.static_shape}
        shared = [v for v in self.shapes if v.space == "shared"]
        self.wide = {o: done for o in func.body.every(ops.Copy) if (done := self._widened(o))}
        loops = func.body.every(ops.Parallel)
        self.filled = {store: o for o in loops if (store := self._fills(o))}
        complete = self.wide.keys() | self.filled.keys()
        written = [e for o, e in effects_in(func.body) if o not in complete]
        self.cleared = {v for v in buffers_written(written) if v in shared}
        self.cleared |= self.products & {*self.shapes}
        self.defined = self._defined()
        held = {x.buffer for o in func.body.every(ops.Gemm) for x in (o.a, o.b)}
        self.cleared |= (held & {*self.shapes}) - {*shared} - self.defined

    def _defined(self) -> set[Value]:
        """Fragments that hold numbers everywhere, also in what they have more: results of products,
        and what is copied from such alone."""
        writers: dict[Value, list[Op]] = {}
        for o, e in effects_in(self.func.body):
            if e.region is not None and e.writes:
                writers.setdefault(e.region.buffer, []).append(o)

        def copies(o: Op) -> bool:
            if not isinstance(o, ops.Copy) or o.source.buffer not in found:
                return False
            return self._is_fragment(o.source) and self._is_fragment(o.dest)

        found = set(self.products)
        while more := {
            v for v, made in writers.items() if v not in found and all(map(copies, made))
        }:
            found |= more
        return found

    def _operand(self, x: Region, dim: int, grown: int = 0) -> None:
        """Make room in a shared operand for the rows or columns that the product has more."""
        v, extent = x.buffer, x.extents[dim]
        more = (grown or self.pads.get(extent, extent)) - extent
        if v.space == "shared" and more:
            shape = list(v.buffer.static_shape)
            shape[dim] += more
            old = self.shapes.get(v, tuple(shape))
            self.shapes[v] = tuple(map(max, old, shape))

    def _is_whole(self, x: Region) -> bool:
        """Of a buffer that gets larger."""
        return (
            x.buffer in self.shapes
            and x.is_whole
            and all(self.facts.constant(v) == 0 for v in x.offsets)
        )

    def _is_fragment(self, x: Region) -> bool:
        """All of a fragment that gets larger."""
        return self._is_whole(x) and x.type.space == "fragment"

    def _grown(self, x: Region) -> Region:
        return replace(x, extents=self.shapes[x.buffer])

    def _widened(self, o: ops.Copy) -> ops.Copy | None:
        """A copy of a whole tile into shared memory that brings what is behind it, too."""
        if (
            not self._is_whole(o.dest)
            or o.dest.type.space != "shared"
            or o.source.type.space != "global"
            or o.source.buffer in self.written
        ):
            return None
        dest = self._grown(o.dest)
        wide = iter(w for w, e in zip(dest.extents, o.dest.extents) if e != 1)
        if any(w != e for w, e in zip(dest.extents, o.dest.extents) if e == 1):
            return None
        source = tuple(e if e == 1 else next(wide) for e in o.source.extents)
        return replace(o, source=replace(o.source, extents=source), dest=dest)

    def _fills(self, o: ops.Parallel) -> ops.Store | None:
        """What a loop stores in all of a shared tile that gets larger, if it computes it from
        tensors: what it reads beyond its extents is in their bounds, or 0."""
        acts = [x for x in o.body.statements if not is_clonable(x, self.written)]
        if len(acts) == 1 and isinstance(store := acts[0], ops.Store) and o.layout is None:
            t = store.dest.buffer
            if store.dest in self.shapes and t.space == "shared" and t.static_shape == o.extents:
                return store if store.indices == o.body.args else None
        return None

    def run(self) -> Func:
        """The ops for the larger extents, then the buffers that have them."""
        body = self.func.body.rewrite(Op, self._op)
        grown = {v: replace(v.buffer, shape=s) for v, s in self.shapes.items()}
        return self.func.with_body(with_types(body, grown))

    def _op(self, o: Op) -> None | Op | list[Op]:
        match o:
            case ops.Alloc() if o.result in self.cleared:
                return [o, *self._clear(o.result, o)]
            case ops.Gemm():
                return self._gemm(o)
            case ops.Parallel():
                return self._loop(o)
            case ops.Fill() if self._is_whole(o.dest):
                return replace(o, dest=self._grown(o.dest))
            case ops.Copy() if o in self.wide:
                return self.wide[o]
            case ops.Copy():
                return self._copy(o)
            case ops.Reduce() if self._is_fragment(o.source) or self._is_fragment(o.dest):
                return self._reduction(o)
            case _ if type(o) in ELEMENTWISE and any(map(self._is_fragment, boxes(o))):
                return self._elements(o)
        return None

    def _clear(self, v: Value, o: Op) -> list[Op]:
        b = Builder(o.loc)
        nothing = b.zero(v.dtype)
        b.emit(ops.Fill, self._grown(b.whole(v)), nothing)
        return b.ops

    def _gemm(self, o: ops.Gemm) -> Op:
        m, n, k = o.shape
        m, n, k = self.pads.get(m, m), self.pads.get(n, n), self.deep.get(o, k)

        def grown(x: Region, rows: int, columns: int, transposed: bool) -> Region:
            own = (columns, rows) if transposed else (rows, columns)
            return replace(x, extents=(*x.extents[:-2], *own))

        made = replace(
            o,
            a=grown(o.a, m, k if o.metadata is None else k // 2, o.transpose_a),
            b=grown(o.b, k, n, o.transpose_b),
        )
        if o.metadata is None:
            return made
        words = o.metadata.extents[-2 if o.transpose_metadata else -1]
        return replace(made, metadata=grown(o.metadata, m, words, o.transpose_metadata))

    def _loop(self, o: ops.Parallel) -> Op | None:
        if o in self.filled.values():
            return self._filling(o)
        dims = {d for a in fragment_accesses(o) if a.buffer in self.shapes for d in a.dims}
        extents = tuple(self.pads.get(e, e) if d in dims else e for d, e in enumerate(o.extents))
        if extents == o.extents:
            return None
        if self._is_own(o, extents):
            return replace(o, extents=extents)
        return self._guarded(o, extents)

    def _filling(self, o: ops.Parallel) -> ops.Parallel:
        """The loop over all that its tile has now, with zeros for what is more. A choice between an
        element and 0 stays one, so that it may still be a copy's (`recognise_gathers`)."""
        (store,) = (x for x in o.body.statements if x in self.filled)
        assert isinstance(store, ops.Store)
        extents, made = self.shapes[store.dest], o.body.makers
        b = Builder(o.loc)
        both = inside = b.all_of(*_inside(b, o.body.args, o.extents, extents))
        chosen = made.get(store.value)
        other = made.get(chosen.on_false) if isinstance(chosen, ops.Select) else None
        zero = isinstance(other, ops.Const) and other.value == 0
        if not (isinstance(chosen, ops.Select) and zero and chosen.cond in made):
            chosen = None
        for x in o.body.statements:
            if x is chosen:
                x = replace(x, cond=both)
            elif x is store and chosen is None:
                value = b.select(inside, store.value, b.zero(store.dest.dtype))
                x = replace(store, value=value)
            b.ops.append(x)
            if chosen is not None and x is made[chosen.cond]:
                both = b.all_of(chosen.cond, inside)  # asked before the element is loaded
        b.emit(ops.Yield)
        return replace(o, extents=extents, body=b.block(o.body.args), inside=False)

    def _is_own(self, o: ops.Parallel, extents: tuple[int, ...]) -> bool:
        """Whether what the loop would do beyond its own extents stays beyond those of products'
        results, which are there, and is nothing else."""
        more = {d for d, e in enumerate(extents) if e != o.extents[d]}
        return all(isinstance(x, ops.Load | ops.Store) for x, _ in effects_in(o.body)) and all(
            a.buffer.space == "fragment"
            and a.dims
            and (a.buffer in self.products or not more & {*a.dims})
            and (more <= {*a.dims} or not a.write)
            for a in parallel_accesses(o)
        )

    def _copy(self, o: ops.Copy) -> Op | None:
        """A copy of a whole fragment: of all that it has now to another one, else an element loop
        over what it had."""
        sides = (o.source, o.dest)
        whole = [x for x in sides if self._is_fragment(x)]
        if not whole:
            return None
        if o.source in whole and o.source.buffer not in self.defined:
            return self._elements(o, o.coalesced_width)  # nobody has written what is more
        if len(whole) == 2:
            source, dest = map(self._grown, sides)
            if source.shape == dest.shape:
                return replace(o, source=source, dest=dest)
        if len(whole) == 1 and whole[0] is o.source and o.dest.type.space == "global":
            grown = self._grown(o.source)
            more = [d for d, e in enumerate(grown.extents) if e != o.source.extents[d]]
            dims = [same_dim(o.source, d, o.dest) for d in more]
            if all(ends(o.dest, d, self.facts) for d in dims):  # what is more is not written
                extents = list(o.dest.extents)
                for d, there in zip(more, dims):
                    assert there is not None
                    extents[there] = grown.extents[d]
                return replace(o, source=grown, dest=replace(o.dest, extents=tuple(extents)))
        return self._elements(o, o.coalesced_width)

    def _reduction(self, o: ops.Reduce) -> list[Op]:
        """A reduction of what the fragment had: what is beyond changes nothing along the dimension,
        and gives results that nobody stores along others."""
        b, source, dest = Builder(o.loc), o.source, o.dest
        extents = tuple(self.pads.get(e, e) for e in source.extents)
        if extents != source.extents:
            v, has = source.buffer, self.shapes.get(source.buffer, source.extents)
            made = BufferType(extents, v.dtype, "fragment")
            held = b.value(ops.Alloc, made, name=f"{v.name}_filled")
            with b.each_element(extents) as (inner, at):
                inside = inner.all_of(*_inside(inner, at, source.extents, extents))
                there = (i if h == e else inner.binary("min", i, h - 1)
                         for i, h, e in zip(at, has, extents))  # fmt: skip
                own, other = inner.value(ops.Load, v, tuple(there)), neutral(inner, o, v.dtype)
                inner.emit(ops.Store, held, at, inner.select(inside, own, other))
            source = b.whole(held)
        if dest.buffer in self.shapes:
            dest = self._grown(dest)
        b.ops.append(replace(o, source=source, dest=dest))
        return b.ops

    def _elements(self, o: Op, width: int = 0) -> Op:
        """An elementwise op as the loop over what its fragments had."""
        loop = loop_of(o, width=width)
        return self._guarded(loop, tuple(self.pads.get(e, e) for e in loop.extents))

    def _guarded(self, o: ops.Parallel, extents: tuple[int, ...]) -> ops.Parallel:
        """The loop over `extents`, which acts in its own."""
        b = Builder(o.loc)
        cond = b.conjunction(_inside(b, o.body.args, o.extents, extents))
        if cond is None:
            return o
        b.branch(cond, o.body.statements)
        b.emit(ops.Yield)
        return replace(o, extents=extents, body=b.block(o.body.args), inside=False)


def _inside(
    b: Builder, args: Sequence[Value], extents: Sequence[int], grown: Sequence[int]
) -> list[Value]:
    """Tests that indices below `grown` are below `extents`, of those that may not be."""
    sides = zip(args, extents, grown)
    return [b.compare("lt", arg, own) for arg, own, more in sides if more > own]
