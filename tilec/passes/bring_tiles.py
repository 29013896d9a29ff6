"""bring_tiles: a tile that threads read beside a loop's products, element by element, is brought
ahead.

Before: TILE; in a pipelined loop an element loop over what a product has given, or what one will
take, reads a tile of a tensor, as the bias of attention is read, or weights of four bits:

    for k in T.Pipelined(n):
        s = Q K[k]
        parallel (64, 64) { s[i, j] += bias[y + i, k * 64 + j] }

    for k in T.Pipelined(n):
        parallel (64, 64) { w[i, j] = decoded(W[y + i, (k * 64 + j) // 2]) }
        s += X[k] w

After: a copy in front of the element loop brings the tile to shared memory, where TMA can, so that
it runs ahead of its iteration as K does (`plan_pipeline`): threads that had waited for a product
waited as long again for memory, and those that decode waited for each element. So it is with
tensors that the kernel does not write, and tiles as large as the loop, or as what packs its
elements, where all have room; a row or a column is too little for TMA."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.clusters import threads_of
from tilec.ir.copy_engines import TMA_ALIGN, safe_values, tensor_map_fits
from tilec.ir.core import Func, Op, Value
from tilec.ir.effects import buffers_written, changing_tensors, effects_in
from tilec.ir.types import BufferType
from tilec.passes.plan_pipeline import BARRIER_BYTES, has_stages, staging_bytes
from tilec.passes.utils.regions import LoopRegions, Walked
from tilec.target import Target


def bring_tiles(func: Func, target: Target) -> Func:
    if not target.has("tma") or func.attrs.get("may_alias") or ops.is_by_hand(func.body):
        return func
    facts, safe = facts_of(func), safe_values(func)
    kept = changing_tensors(func)
    kept |= {p.value for p in func.params if p.role == "tensor" and safe.get(p.value)}

    def visit(o: ops.For) -> ops.For | None:
        if not has_stages(o):
            return None
        used = {r.buffer for x in o.body.every(ops.Gemm) for r in x.inputs}
        statements: list[Op] = []
        room = _room(func, o, target)
        for x in o.body.ops:
            if isinstance(x, ops.Gemm):
                used.add(x.c)
            beside = not used.isdisjoint(buffers_written(e for _, e in effects_in(x)))
            if isinstance(x, ops.Parallel) and beside and x.layout is None and x.wanted is None:
                tiles = _Tiles(x, o.body.args[0], facts, kept)
                loop = tiles.behind_copies()
                if tiles.bytes * _stages(o) <= room:
                    room -= tiles.bytes * _stages(o)
                    statements += loop
                    continue
            statements.append(x)
        changed = len(statements) > len(o.body.ops)
        return replace(o, body=o.body.with_ops(statements)) if changed else None

    return func.rewrite(ops.For, visit)


def _stages(o: ops.For) -> int:
    """The fewest stages that the tiles of a loop have."""
    return max(2, o.num_stages)


def _room(func: Func, o: ops.For, target: Target) -> int:
    """Bytes of shared memory that are left by what `func` allocates, by the stages of what is
    filled in the loop, and by what leaves through shared memory."""
    filled = {*buffers_written(e for _, e in effects_in(o.body))}
    taken = [
        x.type.stage_bytes * (_stages(o) if x.result in filled else 1)
        for x in func.body.every(ops.Alloc)
        if x.result.space == "shared"
    ]
    staging = staging_bytes(threads_of(func), True, target)
    return target.shared_bytes - BARRIER_BYTES - staging - sum(taken)


class _Tiles(LoopRegions):
    """What an element loop beside a product reads. `index`: that of the loop around it; `kept`:
    tensors whose elements are loaded where they are used."""

    def __init__(self, o: ops.Parallel, index: Value, facts: Facts, kept: set[Value]) -> None:
        super().__init__(o, facts)
        self.index, self.kept = index, kept
        self.b = Builder(o.loc)
        self.tiles: dict[tuple[Value, ...], tuple[Value, tuple[int, ...]]] = {}

    def behind_copies(self) -> list[Op]:
        """The loop behind copies of the tiles that it reads."""
        body = self.o.body.rewrite(ops.Load, self.from_tile)
        return [*self.before.ops, *self.b.ops, replace(self.o, body=body)]

    @property
    def bytes(self) -> int:
        """Of the tiles."""
        return sum(tile.buffer.stage_bytes for tile, _ in self.tiles.values())

    def from_tile(self, x: ops.Load) -> list[Op] | None:
        key = (x.source, *x.indices)
        if key not in self.tiles:
            found = self.walk(x)
            if found is None:
                return None
            t = BufferType(found.region.shape, x.source.dtype, "shared")
            tile = self.b.value(ops.Alloc, t, name=f"{x.source.name}_tile")
            self.b.emit(ops.Copy, found.region, self.b.whole(tile), loc=x.loc)
            self.tiles[key] = tile, found.per
        tile, per = self.tiles[key]
        b = Builder(x.loc)
        pairs = zip(self.o.body.args, per)
        at = tuple(a if n == 1 else b.binary("floordiv", a, n) for a, n in pairs)
        return [*b.ops, replace(x, source=tile, indices=at)]

    def walk(self, x: ops.Load) -> Walked | None:
        """The tile that all iterations read together, if TMA can bring it for each iteration of
        the loop around."""
        t = x.source.buffer
        if t.space != "global" or x.source in self.kept or not tensor_map_fits(t):
            return None
        if self.index not in self.facts.origins.of_all(x.indices):
            return None
        found, last = self.walked(x.source, x.indices, several=True), self.run(x.indices[-1])
        if last is None or found is None or found.order != self.o.body.args or len(found.order) < 2:
            return None
        units = (last.start.divisor(self.facts.divisor), found.region.extents[-1])
        return None if any(n * t.dtype.bits // 8 % TMA_ALIGN for n in units) else found
