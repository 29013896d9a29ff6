"""join_blocks: neighbouring blocks of the grid, each with a small tile of products, become one.

Before and after: TILE. What a block loads of A and B grows with the sides of its tile, what it
multiplies with their product; and an instruction of a warpgroup has 64 rows. Blocks of 32x32 wait
for the L2 cache. So `joined`, of the plan, of them along each dimension of the grid are one block:

    grid (N / 32, M / 32)                        grid (N / 128, M / 128)
    acc = alloc fragment<32x32>                  acc = alloc fragment<128x128>
    copy A[by * 32, k], a (32 x 64)        ->    copy A[by * 4 * 32, k], a (128 x 64)
    gemm a, b, acc                               gemm a, b, acc
    copy acc, C[by * 32, bx * 32] (32 x 32)      copy acc, C[by * 4 * 32, bx * 4 * 32] (128 x 128)

*Sides* of tiles and of loops over elements that go together have one extent: what is copied onto
one another, the rows of A and of C, a loop's index and what it indexes. Those that begin at the
extent times a block's index go along the grid. They may grow where nothing else asks for the index,
no part of such a side is taken and nothing is summed along it; what a block then has beyond the
author's grid must lie behind the ends of the tensors that it stores to. The author's threads are
those of his tile; how many a larger one has is open."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.affine import Affine
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.clusters import SINGLE, Dims
from tilec.ir.copy_engines import TMA_ALIGN
from tilec.ir.core import Block, Func, Op, Region, Value, walk, with_boxes
from tilec.ir.types import Extent
from tilec.ir.uniformity import threads_show
from tilec.passes.utils.building import with_types
from tilec.passes.utils.plans import pipelined
from tilec.passes.utils.tile_ends import reaches
from tilec.target import Target

Side = tuple[Value, int]
"""A dimension of an on-chip buffer, or (index, 0) of a loop over elements."""

AREAS = (64 * 128, 128 * 128, 128 * 256)  # of tiles that are worth a try,
TRIED = 2  # of each
WORTH = 0.85  # if an element of a larger tile takes so much less: 128x128 stays
LONGEST = 256  # of their sides
LOADED = 64  # elements of a tile whose products take as long as a row or column of operands
BY_THREADS = 2.0  # times as long where TMA brings no tile, since some begin inside of 16 bytes
ROWS = 64  # of the instruction of a warpgroup


def to_join(func: Func, joined: Dims) -> Func:
    """`func`, of which `join_blocks` makes so many blocks one."""
    return func if joined == SINGLE else func.with_attrs(joined=joined)


def join_blocks(func: Func, target: Target) -> Func:
    joined = func.attrs.get("joined", SINGLE)
    return func if joined == SINGLE else _Sides(func).joined(joined)


def ways_to_join(func: Func, target: Target) -> list[Dims]:
    """How many blocks along each dimension of the grid may be one, and had better be, if there are
    enough of them: of a kernel whose loops with stages bring tiles and multiply them, no more."""
    loops = pipelined(func.body)
    acts = [x for o in loops for x in o.body.statements if not x.pure]
    plain = all(isinstance(x, ops.Copy | ops.Gemm) for x in acts)
    fixed = ops.AnnotateSchedule, ops.AnnotateLayout, ops.GridSize
    if not plain or not target.has("setmaxnreg") or func.body.has(*fixed):
        return []
    if not any(o.body.has(ops.Gemm) for o in loops) or threads_show(func):
        return []
    if any(func.attrs.get(x) for x in ("min_blocks", "cluster_dims", "grid_from_launch")):
        return []
    return _Sides(func).ways()


class _Sides:
    """The sides of a function's tiles, and along which dimension of the grid they go."""

    def __init__(self, func: Func) -> None:
        self.func, self.facts = func, facts_of(func)
        self.blocks = {o.result: o.dim for o in func.body.every(ops.BlockIndex)}
        self.loops = {v: e for o in func.body.every(ops.Parallel)
                      for v, e in zip(o.body.args, o.extents)}  # fmt: skip
        self.parent: dict[Side, Side] = {}
        self.along: list[tuple[Side, int]] = []
        self.fixed: list[Side] = []
        self.kept = set[int]()  # dimensions whose blocks stay as they are
        self.boxes: dict[Region, dict[int, Side]] = {}
        self.ends: list[tuple[int, Affine, Extent, int]] = []
        for o in walk(func.body):
            self._op(o)
        self.dims = self._dims()

    # --- what goes together ---

    def _root(self, s: Side) -> Side:
        while (above := self.parent.get(s, s)) != s:
            s = above
        return s

    def _same(self, a: Side | None, b: Side | None) -> None:
        if a is None or b is None:
            self.fixed += [s for s in (a, b) if s is not None]
        else:
            self.parent[self._root(a)] = self._root(b)

    def _op(self, o: Op) -> None:
        match o:
            case ops.Copy():
                self._copy(o)
            case ops.Gemm() if o.metadata is None:
                (*_, m), (*_, n) = self._operand(o.a, o.summed[0]), self._operand(o.b, o.summed[1])
                self._same(m, (o.c, 0))
                self._same(n, (o.c, 1))
                self._numbers(() if o.accumulate is None else (o.accumulate,))
            case ops.Reduce():
                source, dest = self._box(o.source), self._box(o.dest)
                summed = source.pop(o.dim)
                self.fixed += [] if summed is None else [summed]
                for a, b in self._pairs((source, dest), (o.source, o.dest), o.dim):
                    self._same(a, b)
            case ops.Fill() if o.dest.type.space != "global":
                self._box(o.dest)
                self._numbers((o.value,))
            case ops.Load(source=v) | ops.Store(dest=v):
                for d, index in enumerate(o.indices):
                    self._index(o, v, d, index)
                self._numbers((o.value,) if isinstance(o, ops.Store) else ())
            case ops.Parallel():
                given = o.layout or o.wanted or o.coalesced_width
                self.fixed += [(v, 0) for v in o.body.args] if given else []
            case ops.Alloc() | ops.BlockIndex() | ops.UseSwizzle() | ops.Const():
                pass
            case ops.For() | ops.While() | ops.If() | ops.Yield():
                self._numbers(o.operands)
            case _ if o.pure:
                self._numbers(() if self._is_sum(o) else o.operands)
            case _:
                self.kept.update(self.blocks.values())

    def _is_sum(self, o: Op) -> bool:
        """Whether who uses what `o` makes is asked instead of `o`."""
        r = o.result
        return r.is_integer and r not in self.facts.form(r).terms

    def _numbers(self, values: Sequence[Value]) -> None:
        for v in values:
            if v.is_integer:
                self._place(self.facts.form(v))

    def _place(self, form: Affine) -> None:
        """A number that is `form`: a block's index counts in it with that of a loop along a side,
        as the number of an element of all blocks, or it says which block it is."""
        indices = {v: c for v, c in form.terms.items() if v in self.loops}
        for block, times in form.terms.items():
            if block in self.blocks:
                mine = [v for v, c in indices.items() if times == c * self.loops[v]]
                if len(mine) == 1:
                    self.along.append(((mine[0], 0), self.blocks[block]))
                    del indices[mine[0]]
                else:
                    self.kept.add(self.blocks[block])
        self.fixed += [(v, 0) for v in indices]

    def _index(self, o: Op, v: Value, d: int, index: Value) -> None:
        form, extent = self.facts.form(index), v.buffer.shape[d]
        if v.space == "global":
            self._place(form)
            if isinstance(o, ops.Store):
                for block in form.terms.keys() & self.blocks.keys():
                    others = [x for x in form.terms if x is not block and x not in self.loops]
                    rest = Affine(form.const, dict.fromkeys(others, 1))
                    self.ends.append((self.blocks[block], rest, extent, form.terms[block]))
            return
        alone = [x for x in form.terms if form == Affine.of(x) and self.loops.get(x) == extent]
        if alone:
            self._same((v, d), (alone[0], 0))
        else:
            self.fixed.append((v, d))
            self._place(form)

    def _box(self, r: Region) -> list[Side | None]:
        """The sides of a box; None for a part of one."""
        found: list[Side | None] = []
        own = self.boxes.setdefault(r, {})
        for d, (x, e) in enumerate(zip(r.offsets, r.extents)):
            whole = r.type.space != "global" and e == r.type.shape[d]
            if whole and self.facts.form(x) == Affine():
                own[d] = r.buffer, d
            elif r.type.space != "global":
                self.fixed.append((r.buffer, d))
                self._place(self.facts.form(x))
            found.append(own.get(d))
        return found

    def _operand(self, r: Region, summed: int) -> list[Side | None]:
        """The sides of a product's operand: the summed one first, which stays."""
        sides = self._box(r)[-2:]
        along = sides.pop(summed)
        self.fixed += [] if along is None else [along]
        return [along, *sides]

    def _pairs(
        self, sides: Sequence[list[Side | None]], boxes: Sequence[Region], without: int = -1
    ) -> Iterator[tuple[Side | None, Side | None]]:
        extents = [list(r.extents) for r in boxes]
        if without >= 0:
            del extents[0][without]
        kept = [[s for s, e in zip(*x) if e != 1] for x in zip(sides, extents)]
        return zip(*kept)

    def _copy(self, o: ops.Copy) -> None:
        """Between tiles, or a tile and a tensor, of which a box begins where a block does."""
        if o.coalesced_width or o.source.type.space == o.dest.type.space == "global":
            self.kept.update(self.blocks.values())
            return
        for near, far in ((o.dest, o.source), (o.source, o.dest)):
            if far.type.space == "global":
                sides = [s for s, e in zip(self._box(near), near.extents) if e != 1]
                self._tensor(far, sides, far is o.dest)
                return
        for a, b in self._pairs((self._box(o.source), self._box(o.dest)), (o.source, o.dest)):
            self._same(a, b)

    def _tensor(self, r: Region, sides: list[Side | None], stored: bool) -> None:
        left = iter(sides)
        for d, (x, e) in enumerate(zip(r.offsets, r.extents)):
            form, side = self.facts.form(x), None if e == 1 else next(left)
            begins = [v for v in form.terms if v in self.blocks]
            if side is not None and len(begins) == 1 and form.terms[begins[0]] == e:
                self.along.append((side, self.blocks[begins[0]]))
                self.boxes.setdefault(r, {})[d] = side
                if stored:
                    rest = form.without(begins[0])
                    end = r.type.shape[d]
                    self.ends.append((self.blocks[begins[0]], rest, end, e))
            else:
                self.kept.update(self.blocks[v] for v in begins)
                self.fixed += [] if side is None else [side]

    # --- which may grow ---

    def _extent(self, s: Side) -> int:
        v, d = s
        return self.loops[v] if v in self.loops else v.buffer.static_shape[d]

    def _dims(self) -> dict[Side, tuple[int, int]]:
        """By the root of sides that may grow: the dimension of the grid, and the extent."""
        found: dict[Side, set[int]] = {}
        extents: dict[Side, set[int]] = {}
        for s, dim in self.along:
            found.setdefault(self._root(s), set()).add(dim)
        known = {*self.parent, *(s for s, _ in self.along)}
        known |= {s for own in self.boxes.values() for s in own.values()}
        for s in known:
            extents.setdefault(self._root(s), set()).add(self._extent(s))
        for s in {self._root(s) for s in self.fixed} & found.keys():
            self.kept |= found[s]
        for s, dims in found.items():
            self.kept |= dims if len(dims) > 1 or len(extents[s]) > 1 else set()
        for dim in {d for dims in found.values() for d in dims}:
            own = {e for s, dims in found.items() if dim in dims for e in extents[s]}
            self.kept |= {dim} if len(own) > 1 else set()
        return {
            s: (min(dims), min(extents[s])) for s, dims in found.items() if not dims & self.kept
        }

    def ways(self) -> list[Dims]:
        """How many blocks along each dimension may be one: of tiles of about each area those that
        are said to take least."""
        tile = dict(self.dims.values())
        sums = [o.c for o in self.func.body.every(ops.Gemm)]
        least = self._by_threads(SINGLE) * sum(_cost(self._sides_of(v, SINGLE)) for v in sums)
        x, y, z = (range(1, LONGEST // tile[d] + 1 if d in tile else 2) for d in range(3))
        found: dict[int, dict[Dims, float]] = {}
        for joined in itertools.product(x, y, z):
            sides = [self._sides_of(v, joined) for v in sums]
            area = max(map(math.prod, sides), default=0)
            cost = self._by_threads(joined) * sum(map(_cost, sides)) / math.prod(joined)
            if area <= AREAS[-1] and cost < WORTH * least and self._may_join(joined):
                found.setdefault(bisect.bisect_left(AREAS, area), {})[joined] = cost
        return [x for ways in found.values() for x in sorted(ways, key=ways.__getitem__)[:TRIED]]

    def _by_threads(self, joined: Dims) -> float:
        """How much longer it takes where TMA cannot bring a tile: some begin inside of 16 bytes."""
        for r, own in self.boxes.items():
            last = len(r.extents) - 1
            if r.type.space == "global" and last in own:
                step = r.extents[last] * self._times(own[last], joined) * r.dtype.bits
                if step % (8 * TMA_ALIGN):
                    return BY_THREADS
        return 1.0

    def _sides_of(self, v: Value, joined: Dims) -> list[int]:
        """Of an accumulator."""
        return [e * self._times((v, d), joined) for d, e in enumerate(v.buffer.static_shape)]

    def _times(self, s: Side, joined: Dims) -> int:
        dim, _ = self.dims.get(self._root(s), (-1, 0))
        return 1 if dim < 0 else joined[dim]

    def _may_join(self, joined: Dims) -> bool:
        """Whether blocks have nothing beyond the grid, or never store it."""
        return all(n == 1 or self._ends(dim, n) for dim, n in enumerate(joined))

    def _ends(self, dim: int, n: int) -> bool:
        values = ops.yielded(self.func.grid)
        if dim >= len(values):
            return False
        count = self.facts.constant(values[dim])
        if count is not None and (count % n == 0 or count < n):
            return count % n == 0
        return all(
            rest == Affine() and reaches(self.func, self.facts, values[dim], step, extent)
            for d, rest, extent, step in self.ends
            if d == dim
        )

    # --- what becomes of it ---

    def joined(self, joined: Dims) -> Func:
        shapes = {}
        for o in self.func.body.every(ops.Alloc):
            t = o.type
            shape = tuple(
                e * self._times((o.result, d), joined) for d, e in enumerate(t.static_shape)
            )
            if shape != t.shape:
                shapes[o.result] = replace(t, shape=shape)

        def box(r: Region) -> Region:
            own = self.boxes.get(r, {})
            times = [self._times(own[d], joined) if d in own else 1 for d in range(len(r.extents))]
            extents = tuple(e * n for e, n in zip(r.extents, times))
            return r if extents == r.extents else replace(r, extents=extents)

        def visit(o: Op) -> Op | list[Op]:
            if isinstance(o, ops.BlockIndex) and joined[o.dim] > 1:
                b = Builder(o.loc)
                b.binary("mul", b.value(ops.BlockIndex, o.dim, name=o.result.name), joined[o.dim])
                return [*b.ops[:-1], replace(b.ops[-1], results=o.results)]
            if isinstance(o, ops.Parallel):
                extents = tuple(
                    e * self._times((v, 0), joined) for v, e in zip(o.body.args, o.extents)
                )
                return o if extents == o.extents else replace(o, extents=extents)
            return with_boxes(o, box)

        body = with_types(self.func.body.rewrite(Op, visit), shapes)
        attrs = {**self.func.attrs, "threads": None}
        for name in ("joined", "more_threads"):
            attrs.pop(name, None)
        return replace(self.func, body=body, grid=self._grid(joined), attrs=attrs)

    def _grid(self, joined: Dims) -> Block:
        b = Builder(self.func.loc, self.func.grid.statements)
        values = [*ops.yielded(self.func.grid)]
        for d, n in enumerate(joined[: len(values)]):
            if n > 1 and (count := self.facts.constant(values[d])) is not None:
                values[d] = b.const(-(-count // n), values[d].dtype)
            elif n > 1:
                values[d] = b.binary("floordiv", b.binary("add", values[d], n - 1), n)
        b.emit(ops.Yield, tuple(values))
        return b.block(self.func.grid.args)


def _cost(sides: Sequence[int]) -> float:
    """About what a tile takes, of products or of loads, in elements."""
    m, n = sides
    area = min(-(-m // ROWS) * ROWS * n, m * -(-n // ROWS) * ROWS)
    return math.hypot(area, LOADED * (m + n))
