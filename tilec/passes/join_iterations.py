"""join_iterations: iterations of a sum whose tiles' rows are parts of a line of memory become one.

Before and after: TILE, as traced, so that plans are chosen for what they are made of. The L2 cache
moves lines of 128 bytes. A product in steps of 32 halves asks for each line in two iterations:

    for k in T.Pipelined(ceildiv(K, 32)):        for k in T.Pipelined(ceildiv(K, 64)):
        copy A[y, k * 32], a (128 x 32)              copy A[y, k * 64], a (128 x 64)
        copy B[x, k * 32], b (128 x 32)    ->        copy B[x, k * 64], b (128 x 64)
        gemm a, b, acc                               gemm a, b, acc

The sum's terms are added in the same order. Where the number of iterations is no multiple of those
that are joined, the last one also has what is behind the tensors' ends, which both copies fill with
zeros. Only loops that do nothing but multiply tiles that TMA may bring: as many bytes are on their
way as the author asked for.

Steps that no matrix instruction goes through (20 or 40 halves) are joined until one does, whoever
brings the tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.clusters import residents_of
from tilec.ir.copy_engines import CopyEngines
from tilec.ir.core import Func, Op, Region, Value
from tilec.ir.layout import LayoutRequest
from tilec.ir.types import BufferType, Extent
from tilec.passes.utils.building import with_types
from tilec.passes.utils.plans import is_open
from tilec.passes.utils.tile_ends import reaches
from tilec.target import CACHE_LINE, Target

LEAST_STAGES = 2
STEP = 32  # bytes of an operand's row that matrix instructions take at once
MOST = 8  # steps that become one


@dataclass(frozen=True, eq=False)
class _Tile:
    """A tile that the loop copies: `dim` of it is that which it walks along, `along` of its tensor,
    where it `begins` at 0 or anywhere."""

    copy: ops.Copy
    dim: int
    along: int
    begins: bool

    @property
    def step(self) -> int:
        return self.copy.dest.extents[self.dim]

    @property
    def uneven(self) -> int:
        """So many steps together are what matrix instructions go through."""
        bits = self.copy.dest.dtype.bits
        return STEP // math.gcd(STEP, self.step * bits // 8) if bits in (8, 16) else 1

    @property
    def end(self) -> Extent:
        """Where the tensor ends."""
        return self.copy.source.type.shape[self.along]

    @property
    def row(self) -> int:
        """Bytes of a row, where the loop walks along rows."""
        dest = self.copy.dest
        return _row(dest.type) if self.dim == len(dest.extents) - 1 else CACHE_LINE


def join_iterations(func: Func, target: Target) -> Func:
    if not func.body.has(ops.Gemm) or target.kind == "cpu":
        return func
    if ops.is_by_hand(func.body) or any(
        {"stages", "split"} & {*dict(o.choices)} for o in func.body.every(ops.AnnotateSchedule)
    ):
        return func
    sums = _Sums(func, target)
    body = func.body.rewrite(ops.For, sums.joined)
    return func.with_body(with_types(body, sums.made)) if sums.made else func


def _row(t: BufferType) -> int:
    """Bytes of a tile's row."""
    return t.static_shape[-1] * t.dtype.bits // 8


def _runs_ahead(o: ops.For) -> bool:
    return (o.num_stages > 1 or is_open(o)) and not (o.order or o.stage or o.inits)


class _Sums:
    def __init__(self, func: Func, target: Target) -> None:
        self.func, self.users = func, func.body.users
        self.facts = facts_of(func)
        self.engines = CopyEngines(func, target, self.facts)
        shared = (o.type for o in func.body.every(ops.Alloc) if o.type.space == "shared")
        blocks = residents_of(func)
        self.room = target.shared_bytes // blocks - sum(t.stage_bytes for t in shared)
        self.made: dict[Value, BufferType] = {}
        self.chosen = self.loops(func)

    def loops(self, func: Func) -> dict[Value, tuple[list[_Tile], int]]:
        """By the index of each loop that is joined its tiles, and how many iterations become one:
        the same in all loops that have a tile in common."""
        found, around = dict[Value, tuple[list[_Tile], int]](), dict[Op, Value]()
        for o in func.body.every(ops.For):
            if tiles := self.tiles(o):
                n = max(t.uneven for t in tiles)
                if n == 1:
                    n = min(CACHE_LINE // t.row for t in tiles if t.row < CACHE_LINE)
                if 2 <= n <= MOST and self.end(o, tiles, n, Builder(o.loc)) is not None:
                    found[o.body.args[0]] = tiles, n
                    around |= dict.fromkeys(o.body.ops, o.body.args[0])
        taken: dict[Value, int] = {}
        for o in func.body.every(ops.For):
            if known := found.get(o.body.args[0]):
                n, each = known[1], {t.copy.dest.buffer: t.copy.dest.type for t in known[0]}
                more = n * self.stages(o, n) - 1
                own = {v: max(taken.get(v, 0), t.stage_bytes * more) for v, t in each.items()}
                if sum((taken | own).values()) <= self.room:
                    taken |= own
                else:
                    del found[o.body.args[0]]
        while True:
            kinds: dict[Value, set[tuple[int, int]]] = {}
            for tiles, n in found.values():
                for t in tiles:
                    kinds.setdefault(t.copy.dest.buffer, set()).add((t.dim, n))
            unlike = {
                v
                for v, known in kinds.items()
                if len(known) > 1 or not self.joins(v, found, around)
            }
            left = {
                i: (tiles, n)
                for i, (tiles, n) in found.items()
                if unlike.isdisjoint(t.copy.dest.buffer for t in tiles)
            }
            if len(left) == len(found):
                return found
            found = left

    def joins(self, v: Value, found: Mapping[Value, object], around: Mapping[Op, Value]) -> bool:
        """Whether all that fills or multiplies a tile is in loops that are joined."""
        return all(
            around.get(x) in found for x in self.users[v] if isinstance(x, ops.Copy | ops.Gemm)
        )

    def stages(self, o: ops.For, n: int) -> int:
        return max(LEAST_STAGES, -(-o.num_stages // n))

    def joined(self, o: ops.For) -> list[Op] | None:
        if o.body.args[0] not in self.chosen:
            return None
        tiles, n = self.chosen[o.body.args[0]]
        b = Builder(o.loc)
        hi = self.end(o, tiles, n, b)
        assert hi is not None
        inner = Builder(o.loc)
        copies = {t.copy: t for t in tiles}
        for x in o.body.ops:
            if isinstance(x, ops.Gemm):
                x = replace(x, a=self.whole(x.a, tiles, n), b=self.whole(x.b, tiles, n))
            elif isinstance(x, ops.Copy):
                x = self.wider(copies[x], tiles, n, o.body.args[0], inner)
            inner.ops.append(x)
        body = replace(o.body, ops=tuple(inner.ops))
        stages = o.num_stages if is_open(o) else self.stages(o, n)
        return [*b.ops, replace(o, hi=hi, body=body, num_stages=stages)]

    def tiles(self, o: ops.For) -> list[_Tile]:
        """The tiles that a loop copies and multiplies, where it does nothing else."""
        counts = (self.facts.constant(o.lo), self.facts.constant(o.step)) == (0, 1)
        if not counts or o.kind != "pipelined" or not _runs_ahead(o):
            return []
        acts = [x for x in o.body.statements if not x.pure]
        copies = [x for x in acts if isinstance(x, ops.Copy)]
        products = [x for x in acts if isinstance(x, ops.Gemm)]
        if len(copies) + len(products) != len(acts) or not products:
            return []
        dims = self.dims(products)
        found = [self.tile(o, x, dims) for x in copies]
        tiles = [t for t in found if t is not None]
        steps = {t.step for t in tiles}
        if len(tiles) < len(copies) or {*dims} != {t.copy.dest.buffer for t in tiles}:
            return []
        if len(steps) != 1 or any(t.uneven > 1 for t in tiles):
            return tiles if len(steps) == 1 else []
        short = self.engines.target.has("tma") and any(t.row < CACHE_LINE for t in tiles)
        by_tma = all(self.engines.tma_may_load(t.copy, t.copy.dest.dtype) for t in tiles)
        return tiles if short and by_tma else []

    def dims(self, products: Sequence[ops.Gemm]) -> dict[Value, int]:
        """Of each operand the dimension that is summed over; nothing where that is not clear."""
        found: dict[Value, int] = {}
        for o in products:
            if o.metadata is not None or o.clear or o.accumulate is not None or not o.fast_accum:
                return {}
            for region, dim in zip((o.a, o.b), o.summed):
                if not region.is_whole or found.setdefault(region.buffer, dim + 2) != dim + 2:
                    return {}
        return found

    def tile(self, loop: ops.For, o: ops.Copy, dims: dict[Value, int]) -> _Tile | None:
        v = o.dest.buffer
        if v not in dims or len(v.buffer.shape) != 2 or not o.dest.is_whole:
            return None
        if v.space != "shared" or self.engines.safe.get(o.source.buffer):
            return None
        if not all(self.is_known(x, o) for x in self.users[v]):
            return None
        index = loop.body.args[0]
        along = [d for d, x in enumerate(o.source.offsets) if index in self.facts.origins.of(x)]
        kept = [d for d, e in enumerate(o.source.extents) if e != 1]
        if len(along) != 1 or len(kept) != 2 or kept[dims[v]] != along[0]:
            return None
        offset = self.facts.form(o.source.offsets[along[0]])
        begin, step = offset.without(index), offset.terms.get(index)
        if step != v.buffer.static_shape[dims[v]]:
            return None
        if index in self.facts.origins.of_all(begin.terms):
            return None
        return _Tile(o, dims[v], along[0], begin.constant == 0)

    def is_known(self, user: Op, copy: ops.Copy) -> bool:
        if isinstance(user, ops.AnnotateLayout):
            return isinstance(user.layout, LayoutRequest)
        fills = isinstance(user, ops.Copy) and user.dest.buffer is copy.dest.buffer
        return fills or isinstance(user, ops.Gemm)

    def end(self, o: ops.For, tiles: list[_Tile], n: int, b: Builder) -> Value | None:
        """The number of joined iterations, if they see no more than those did, and zeros."""
        step, trips = tiles[0].step, self.facts.constant(o.hi)
        begins = all(t.begins for t in tiles)
        if trips is not None:
            ends = [t.end for t in tiles]
            behind = begins and all(isinstance(e, int) and e <= trips * step for e in ends)
            return b.const(-(-trips // n), o.hi.dtype) if behind or trips % n == 0 else None
        made = self.facts.made_by(o.hi)
        if not begins or not isinstance(made, ops.Binary) or made.kind != "floordiv":
            return None
        if not all(reaches(self.func, self.facts, o.hi, step, t.end) for t in tiles):
            return None
        return b.binary("floordiv", b.binary("add", made.lhs, step * (n - 1)), step * n)

    def wider(self, tile: _Tile, tiles: list[_Tile], n: int, index: Value, b: Builder) -> ops.Copy:
        """A product where the tile begins at 0: four steps of 20 begin at multiples of 80."""
        s, d = tile.copy.source, tile.along
        if tile.begins:
            first = b.binary("mul", index, tile.step * n)
        else:
            more = b.binary("mul", index, tile.step * (n - 1))
            first = b.binary("add", s.offsets[d], more)
        source = s.cut(d, first, n * s.extents[d])
        return replace(tile.copy, source=source, dest=self.whole(tile.copy.dest, tiles, n))

    def whole(self, region: Region, tiles: list[_Tile], n: int) -> Region:
        v = region.buffer
        (t,) = (t for t in tiles if t.copy.dest.buffer is v)
        extents = tuple(e * n if d == t.dim else e for d, e in enumerate(t.copy.dest.extents))
        self.made[v] = replace(v.buffer, shape=extents)
        return replace(region, extents=extents)
