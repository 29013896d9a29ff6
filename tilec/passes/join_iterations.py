"""join_iterations: iterations of a sum whose tiles' rows are parts of a line of memory become one.

Before and after: TILE. The L2 cache moves lines of 128 bytes. A product in steps of 32 halves asks
for each line in two iterations, and for the same line twice:

    for k in T.Pipelined(ceildiv(K, 32)):        for k in T.Pipelined(ceildiv(K, 64)):
        copy A[y, k * 32], a (128 x 32)              copy A[y, k * 64], a (128 x 64)
        copy B[x, k * 32], b (128 x 32)    ->        copy B[x, k * 64], b (128 x 64)
        gemm a, b, acc                               gemm a, b, acc

The sum's terms are added in the same order. Where the number of iterations is no multiple of those
that are joined, the last one also has what is behind the tensors' ends, which both copies fill with
zeros. Only loops that do nothing but copy tiles and multiply them, where the author has asked for
stages: as many bytes are on their way as he asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region, Value, defining_ops, rewrite, users_of
from tilec.ir.layout import LayoutRequest
from tilec.ir.memory import stage_bytes
from tilec.ir.ops import (
    Alloc,
    AnnotateLayout,
    AnnotateSafeValue,
    AnnotateSchedule,
    Binary,
    Copy,
    For,
    Gemm,
    Yield,
    constants,
    is_by_hand,
)
from tilec.target import Target

LINE = 128  # bytes


@dataclass(frozen=True, eq=False)
class _Tile:
    """A tile that the loop copies: `dim` of it, and of its tensor, is that which it walks along."""

    copy: Copy
    dim: int
    along: int

    @property
    def step(self) -> int:
        return self.copy.dest.extents[self.dim]

    @property
    def end(self) -> object:
        """Where the tensor ends."""
        return self.copy.source.type.shape[self.along]

    @property
    def row(self) -> int:
        """Bytes of a row, where the loop walks along rows."""
        dest = self.copy.dest
        return self.step * dest.dtype.bits // 8 if self.dim == len(dest.extents) - 1 else LINE

    def wider(self, n: int, region: Region, dim: int) -> tuple[int, ...]:
        return tuple(e * n if d == dim else e for d, e in enumerate(region.extents))


def join_iterations(func: Func, target: Target) -> Func:
    if not target.has("tma") or is_by_hand(func.body):
        return func
    if any("stages" in dict(o.choices) for o in func.body.every(AnnotateSchedule)):
        return func
    sums = _Sums(func, target)
    body = rewrite(func.body, lambda o: sums.joined(o) if isinstance(o, For) else None)
    if not sums.made:
        return func
    return func.with_body(rewrite(body, sums.renamed))


class _Sums:
    def __init__(self, func: Func, target: Target) -> None:
        self.defs = defining_ops(func.body)
        self.users = users_of(func.body)
        self.numbers = constants(func.body)
        safe = func.body.every(AnnotateSafeValue)
        self.safe = {o.dest for o in safe if self.numbers.get(o.value) != 0}
        shared = (o.type for o in func.body.every(Alloc) if o.type.space == "shared")
        blocks = int(func.attrs.get("min_blocks", 1))
        self.room = target.shared_bytes // blocks - sum(map(stage_bytes, shared))
        self.sizes = {p.value: p.value.name for p in func.params if p.role == "size"}
        self.made: dict[Value, Value] = {}

    def joined(self, o: For) -> list[Op] | None:
        tiles = self.tiles(o)
        if not tiles:
            return None
        n = min(LINE // t.row for t in tiles if t.row < LINE)
        stages = max(2, -(-o.num_stages // n))
        more = sum(stage_bytes(t.copy.dest.type) for t in tiles) * (n * stages - 1)
        if n < 2 or more > self.room:
            return None
        b = Builder(o.loc)
        hi = self.end(o, tiles, n, b)
        if hi is None:
            return None
        self.room -= more
        step = b.const(tiles[0].step * n)
        inner = Builder(o.loc)
        at = inner.binary("mul", o.body.args[0], step)
        for x in o.body.ops:
            inner.ops.append(self.wider(x, tiles, n, at))
        body = replace(o.body, ops=tuple(inner.ops))
        return [*b.ops, replace(o, hi=hi, body=body, num_stages=stages)]

    def tiles(self, o: For) -> list[_Tile]:
        """The tiles that a loop copies and multiplies, where it does nothing else."""
        plain = o.kind == "pipelined" and o.num_stages > 1 and not (o.order or o.stage or o.inits)
        if not plain or self.numbers.get(o.lo) != 0 or self.numbers.get(o.step) != 1:
            return []
        acts = [x for x in o.body.ops if not x.pure and not isinstance(x, Yield)]
        copies = [x for x in acts if isinstance(x, Copy)]
        products = [x for x in acts if isinstance(x, Gemm)]
        if len(copies) + len(products) != len(acts) or not products:
            return []
        dims = self.dims(products)
        found = [self.tile(o, x, dims) for x in copies]
        tiles = [t for t in found if t is not None]
        steps = {t.step for t in tiles}
        if len(tiles) < len(copies) or {*dims} != {t.copy.dest.buffer for t in tiles}:
            return []
        return tiles if len(steps) == 1 and any(t.row < LINE for t in tiles) else []

    def dims(self, products: Sequence[Gemm]) -> dict[Value, int]:
        """Of each operand the dimension that is summed over; nothing where that is not clear."""
        found: dict[Value, int] = {}
        for o in products:
            if o.metadata is not None or o.clear or o.accumulate is not None or not o.fast_accum:
                return {}
            for region, dim in ((o.a, 0 if o.transpose_a else 1), (o.b, 1 if o.transpose_b else 0)):
                if not region.is_whole or found.setdefault(region.buffer, dim) != dim:
                    return {}
        return found

    def tile(self, loop: For, o: Copy, dims: dict[Value, int]) -> _Tile | None:
        v, index = o.dest.buffer, loop.body.args[0]
        if v not in dims or len(v.buffer.shape) != 2 or not o.dest.is_whole:
            return None
        if v.buffer.space != "shared" or o.source.type.space != "global":
            return None
        if o.source.buffer in self.safe or not all(self.is_known(x, o) for x in self.users[v]):
            return None
        along = [d for d, x in enumerate(o.source.offsets) if self.depends(x, loop)]
        if len(along) != 1 or o.source.dtype != o.dest.dtype:
            return None
        (d,) = along
        made = self.defs.get(o.source.offsets[d])
        step = v.buffer.static_shape[dims[v]]
        if not isinstance(made, Binary) or made.kind != "mul":
            return None
        sides = {made.lhs: made.rhs, made.rhs: made.lhs}
        if self.numbers.get(sides.get(index, index)) != step:
            return None
        kept = [i for i, e in enumerate(o.source.extents) if e != 1]
        if len(kept) != 2 or d not in kept or kept.index(d) != dims[v]:
            return None
        return _Tile(o, dims[v], d)

    def is_known(self, user: Op, copy: Copy) -> bool:
        if isinstance(user, AnnotateLayout):
            return isinstance(user.layout, LayoutRequest)
        return user is copy or isinstance(user, Gemm)

    def depends(self, v: Value, loop: For) -> bool:
        """Whether `v` may differ between iterations."""
        if v in loop.body.args:
            return True
        made = self.defs.get(v)
        if made is None or made not in loop.body.ops:
            return False
        return any(self.depends(x, loop) for x in made.operands)

    def end(self, o: For, tiles: list[_Tile], n: int, b: Builder) -> Value | None:
        """The number of joined iterations, if they see no more than those did, and zeros."""
        step, trips = tiles[0].step, self.numbers.get(o.hi)
        if isinstance(trips, int) and not isinstance(trips, bool):
            ends = [t.end for t in tiles]
            behind = all(isinstance(e, int) and e <= trips * step for e in ends)
            return b.const(-(-trips // n)) if behind or trips % n == 0 else None
        made = self.defs.get(o.hi)
        if not isinstance(made, Binary) or made.kind != "floordiv":
            return None
        rounded = self.defs.get(made.lhs)
        if self.numbers.get(made.rhs) != step or not isinstance(rounded, Binary):
            return None
        if rounded.kind != "add" or self.numbers.get(rounded.rhs) != step - 1:
            return None
        if any(t.end != self.sizes.get(rounded.lhs, 0) for t in tiles):
            return None
        return b.binary("floordiv", b.binary("add", rounded.lhs, step * n - 1), step * n)

    def wider(self, o: Op, tiles: list[_Tile], n: int, at: Value) -> Op:
        if isinstance(o, Gemm):
            return replace(o, a=self.whole(o.a, tiles, n), b=self.whole(o.b, tiles, n))
        for t in tiles:
            if t.copy is o:
                s = t.copy.source
                offsets = tuple(at if d == t.along else x for d, x in enumerate(s.offsets))
                source = replace(s, offsets=offsets, extents=t.wider(n, s, t.along))
                return replace(t.copy, source=source, dest=self.whole(t.copy.dest, tiles, n))
        return o

    def whole(self, region: Region, tiles: list[_Tile], n: int) -> Region:
        v = region.buffer
        (t,) = (t for t in tiles if t.copy.dest.buffer is v)
        extents = t.wider(n, t.copy.dest, t.dim)
        if v not in self.made:
            self.made[v] = Value(replace(v.buffer, shape=extents), v.name)
        return replace(region, buffer=self.made[v], extents=extents)

    def renamed(self, o: Op) -> Op | None:
        """Where the tiles are made, or described."""
        if isinstance(o, Alloc) and o.result in self.made:
            v = self.made[o.result]
            return replace(o, type=v.buffer, results=(v,))
        if isinstance(o, AnnotateLayout) and o.dest in self.made:
            return replace(o, dest=self.made[o.dest])
        return None
