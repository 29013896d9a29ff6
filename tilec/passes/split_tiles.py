"""split_tiles: a shared tile that several copies fill side by side is a tile for each of them.

Before: TILE; keys whose positions lie in a tensor of their own, put together along the dimension
that a product sums over:

    copy KV[n * 64, 0], k[0, 0]: (64, 512)
    copy Positions[n * 64, 0], k[0, 512]: (64, 64)
    gemm q: (64, 576), k: (64, 576), s, transpose_b

After: TILE, and in a loop with stages

    copy KV[n * 64, 0], k_0: (64, 512)
    copy Positions[n * 64, 0], k_1: (64, 64)
    gemm q[0, 0]: (64, 512), k_0, s, transpose_b
    gemm q[0, 512]: (64, 64), k_1, s, transpose_b       adds to s

so that each is filled whole by one copy, and may run ahead of its readers (`plan_pipeline`). What
reads one part alone reads its tile. Sums are added up in the order that they had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region, Value, altered, walk
from tilec.ir.ops import Alloc, Copy, For, Gemm
from tilec.passes.plan_pipeline import copies_of, has_stages
from tilec.passes.utils.operands import part_of_sum
from tilec.target import Target

LEAST = 256
"""Bits of a part along the dimension that products sum over: what an instruction takes of it."""


def split_tiles(func: Func, target: Target) -> Func:
    loops = [o for o in func.body.every(For) if has_stages(o)]
    if target.kind == "cpu" or any(o.order or o.stage for o in loops):
        return func
    filled = (o.dest for loop in loops for o in copies_of(loop) if o in loop.body.ops)
    for v in dict.fromkeys(r.buffer for r in filled if not r.is_whole):
        found = _Split(func, v)
        if found.parts:
            func = func.rewrite(Op, found.visit)
    return func


class _Split:
    """How the tile `v` is split: along `dim`, into `parts` of (start, extent); none where it cannot
    be."""

    def __init__(self, func: Func, v: Value) -> None:
        self.v = v
        self.facts = facts_of(func)
        self.dim = -1
        self.parts: tuple[tuple[int, int], ...] = ()
        self.tiles: tuple[Value, ...] = ()
        uses = [o for o in walk(func.body) if v in o.operands]
        copies = [o for o in uses if isinstance(o, Copy) and o.dest.buffer is v]
        shape = v.buffer.static_shape
        dims = {d for o in copies for d, e in enumerate(o.dest.extents) if e != shape[d]}
        if len(shape) != 2 or len(dims) != 1 or v.buffer.layout is not None:
            return
        (self.dim,) = dims
        places = {self._place(o.dest) for o in copies}
        parts = sorted(p for p in places if p is not None)
        ends = [0, *(start + extent for start, extent in parts)]
        if None in places or [start for start, _ in parts] != ends[:-1]:
            return
        if ends[-1] != shape[self.dim] or any(e * v.dtype.bits % LEAST for _, e in parts):
            return
        if all(self._is_split_in(o, tuple(parts)) for o in uses):
            self.parts = tuple(parts)

    def _place(self, r: Region) -> tuple[int, int] | None:
        """Where a region lies along the dimension, and how far it goes."""
        at = [self.facts.constant(v) for v in r.offsets]
        if any(n is None or (n and d != self.dim) for d, n in enumerate(at)):
            return None
        return int(at[self.dim] or 0), r.extents[self.dim]

    def _covered(self, r: Region, parts: tuple[tuple[int, int], ...]) -> list[int]:
        """The numbers of the parts that a region is made of; none where it is not."""
        place = self._place(r)
        if place is None or r.extents[1 - self.dim] != r.type.shape[1 - self.dim]:
            return []
        start, end = place[0], sum(place)
        found = [i for i, (at, e) in enumerate(parts) if start <= at and at + e <= end]
        return found if sum(parts[i][1] for i in found) == end - start else []

    def _is_split_in(self, o: Op, parts: tuple[tuple[int, int], ...]) -> bool:
        """Whether an op that uses the tile can use its parts."""
        regions = [getattr(o, name) for name in ("source", "dest", "a", "b") if hasattr(o, name)]
        own = [r for r in regions if r.buffer is self.v]
        if not isinstance(o, Copy | Gemm) or len(own) != 1 or own[0].type.rank != 2:
            return False
        covered = self._covered(own[0], parts)
        if len(covered) == 1:
            return True
        if not isinstance(o, Gemm) or not covered or o.metadata is not None:
            return False
        other = o.b if o.a.buffer is self.v else o.a
        summed = self.dim - 2 == o.summed[other is o.a]
        return summed and other.type.space == "shared" and o.accumulate is None

    def visit(self, o: Op) -> list[Op] | None:
        if isinstance(o, Alloc) and o.result is self.v:
            b, t = Builder(o.loc), o.type
            for i, (_, extent) in enumerate(self.parts):
                shape = tuple(extent if d == self.dim else e for d, e in enumerate(t.shape))
                b.emit(Alloc, replace(t, shape=shape), name=f"{self.v.name}_{i}")
            self.tiles = tuple(x.result for x in b.ops)
            return b.ops
        if self.v not in o.operands:
            return None
        b = Builder(o.loc)
        if isinstance(o, Copy):
            side = "dest" if o.dest.buffer is self.v else "source"
            region = getattr(o, side)
            (i,) = self._covered(region, self.parts)
            part = self._part(b, region, i)
            return [*b.ops, altered(o, **{side: part})]
        assert isinstance(o, Gemm)
        mine = "a" if o.a.buffer is self.v else "b"
        region = getattr(o, mine)
        covered = self._covered(region, self.parts)
        begin = self.parts[covered[0]][0]
        for i in covered:
            start, extent = self.parts[i]
            piece = part_of_sum(b, o, start - begin, extent) if len(covered) > 1 else o
            changed: dict[str, Any] = {mine: self._part(b, region, i)}
            b.ops.append(altered(piece, **changed, clear=o.clear and i == covered[0]))
        return b.ops

    def _part(self, b: Builder, r: Region, i: int) -> Region:
        """The region of part `i` for its whole tile."""
        extents = tuple(self.parts[i][1] if d == self.dim else e for d, e in enumerate(r.extents))
        return Region(self.tiles[i], tuple(b.const(0) for _ in extents), extents)
