"""lower_barriers: barriers that the author made are initialised, his TMA copies become boxes.

Before: SCHEDULED; `mbarrier_init` ops stand where barriers were allocated, `tma_copy` ops name
regions, as do copies with the engine "tma_store" of parts of shared buffers. After: one thread of
the block initialises the barriers, before anything else is done, and the threads meet; neither of
these copies is left: one thread of the scope starts the boxes, whose bytes it announces where they
are loaded. Nor is a `cluster_copy` (`utils/peer_copies.py`): where there was one, or a `tma_copy`
for several blocks, those of a cluster begin and end together, so that each is there while others
use its shared memory. A wait for asynchronous products names the fragments that they use."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.clusters import cluster_of, size
from tilec.ir.core import Block, Func, Op, Region, Value, within
from tilec.ir.errors import LayoutError
from tilec.ir.types import INT32, BufferType
from tilec.passes.utils.groups import warps_of
from tilec.passes.utils.peer_copies import box_of, part_of, pieces, send, store
from tilec.passes.utils.rings import Box, TensorMaps, elected
from tilec.target import Target


def lower_barriers(func: Func, target: Target) -> Func:
    """Raises CompileError for a copy that TMA cannot do."""
    inits = [o for o in func.body.every(ops.MbarrierInit)]
    if not func.attrs.get("by_hand"):
        return func
    lowering = _Lowering(func, target)
    # what writes to other blocks of the cluster
    several = any(o.mask for o in func.body.every(ops.TmaCopy))
    copies = several or func.body.has(ops.ClusterCopy)
    body = func.body.rewrite(Op, lowering.visit)
    if not inits and not copies:
        return func.with_body(body)
    top = Builder(func.loc, filter(_is_barrier, body.ops))
    if inits:
        with top.when(elected(top)) as first:
            first.ops += inits
            first.emit(ops.MbarrierInitFence)
            lowering.maps.prefetch(first)
    for phase in lowering.phases.values():
        top.ops.append(ops.Alloc(_PHASE, results=(phase,), loc=func.loc))
        zero = top.const(0)
        top.emit(ops.Store, phase, (zero,), zero)
    top.emit(ops.ClusterBarrier if copies else ops.Barrier)
    rest = Block((), tuple(o for o in body.ops if not _is_barrier(o)))
    end = [ops.ClusterBarrier(loc=func.loc)] if copies else []
    return lowering.maps.added(rest.ending(end, top.ops))


def _is_barrier(o: Op) -> bool:
    return isinstance(o, ops.Alloc) and o.type.space == "barrier"


_PHASE = BufferType((1,), INT32, "local")


class _Lowering:
    def __init__(self, func: Func, target: Target) -> None:
        self.warps = warps_of(func, target)
        self.blocks = size(cluster_of(func))
        self.maps = TensorMaps(func)
        self.facts = facts_of(func)
        self.phases: dict[Value, Value] = {}  # of each gate, the phase that its first block is in
        self.in_flight: dict[ops.WgmmaWait, tuple[Value, ...]] = {}
        self.find_products(func.body)

    def find_products(self, body: Block) -> None:
        """What may be in flight at each wait for products: what those of its group use."""
        products: dict[tuple[int, int], dict[Value, None]] = {}
        waits: list[tuple[ops.WgmmaWait, tuple[int, int]]] = []
        for o, around in within(body) if body.has(ops.WgmmaWait) else ():
            group = 0, 0
            for scope in (x for x in around if isinstance(x, ops.Scope)):
                group = scope.first_warp, scope.warps
            if isinstance(o, ops.Gemm) and o.asynchronous:
                held = (v for v in (o.c, o.a.buffer) if v.space == "fragment")
                products.setdefault(group, {}).update(dict.fromkeys(held))
            if isinstance(o, ops.WgmmaWait):
                waits.append((o, group))
        self.in_flight = {o: tuple(products.get(group, ())) for o, group in waits}

    def visit(self, o: Op) -> None | list[Op]:
        match o:
            case ops.MbarrierInit():
                return []
            case ops.WgmmaWait(fragments=()):
                held = self.in_flight[o]
                return [replace(o, fragments=held)] if held else []
            case ops.TmaCopy():
                b = Builder(o.loc)
                total = math.prod(o.dest.extents) * o.dest.dtype.bits // 8
                with b.when(elected(b)) as inner:
                    inner.emit(ops.MbarrierExpectTx, o.barrier, o.stage, total)
                    if o.mask:
                        self.for_several(inner, o)
                    else:
                        self.bring(inner, o)
                return b.ops
            case ops.Copy(engine="tma_store", staging=None, reduction="") if not o.source.is_whole:
                return self.send(o)
            case ops.ClusterCopy(engine="tma"):
                found = pieces(o, self.facts)
                assert found is not None
                return send(o, found)
            case ops.ClusterCopy():
                return store(o, self.warps(o))
        return None

    def for_several(self, b: Builder, o: ops.TmaCopy) -> None:
        """One thread tells the first block that this one's tile is free; there it waits for all of
        them before it starts the boxes."""
        assert o.gate is not None and o.rank is not None
        blocks = [n for n in range(o.mask.bit_length()) if o.mask >> n & 1]
        first, come, told = blocks[0], b.const(0), b.const(1)
        phase = self.phases.setdefault(o.gate, Value(_PHASE, f"{o.gate.name}_phase"))
        among, alone = Builder(o.loc), Builder(o.loc)
        at = among.value(ops.Load, phase, (come,))
        turned = among.binary("xor", at, told)
        among.emit(ops.Store, phase, (come,), turned)
        among.emit(ops.MbarrierWait, o.gate, told, turned)
        among.emit(ops.MbarrierArrive, o.gate, come, None, among.const(first), True)
        with among.when(among.compare("eq", o.rank, first)) as start:
            start.emit(ops.MbarrierWait, o.gate, come, at, True)
            start.emit(ops.MbarrierArrive, o.gate, told)
            for n in blocks[1:]:
                start.emit(ops.MbarrierArrive, o.gate, told, None, start.const(n))
            self.bring(start, o, start.const(o.mask))
        if len(blocks) == self.blocks:
            b.ops += among.ops
            return
        self.bring(alone, o)
        bit = b.binary("and", b.binary("shr", b.const(o.mask), o.rank), told)
        b.branch(b.compare("eq", bit, told), among.ops, alone.ops)

    def bring(self, b: Builder, o: ops.TmaCopy, blocks: Value | None = None) -> None:
        """The boxes started, by one thread, for the `blocks` of the cluster."""
        at_barrier = (o.barrier, o.stage, blocks, o.cache)
        for where, box in self.boxes(b, o, o.dest, o.source):
            b.emit(ops.TmaLoad, o.dest.buffer, where, box.descriptor, box.coords, *at_barrier)

    def send(self, o: ops.Copy) -> list[Op]:
        """One thread starts the boxes of a part of a shared buffer, and waits until TMA has read
        them, so that who meets it next may write there."""
        b = Builder(o.loc)
        with b.when(elected(b)) as inner:
            for where, box in self.boxes(inner, o, o.source, o.dest):
                to = box.descriptor, box.coords
                inner.emit(ops.TmaStore, *to, o.source.buffer, where, None, o.eviction_policy)
            inner.emit(ops.TmaStoreCommit)
            inner.emit(ops.TmaStoreWait, 0, True)
        return b.ops

    def boxes(self, b: Builder, o: Op, tile: Region, tensor: Region) -> Iterator[tuple[Value, Box]]:
        """Each box between a part of a shared buffer and a tensor, and where it begins in the
        buffer's memory."""
        part = part_of(tile, self.facts)
        found = box_of(tile, part) if part is not None else None
        if part is None or found is None:
            raise _unfit(o, tile)
        base, how = part.moved(b), (*found, tile.dtype)
        for box in self.maps.boxes_of(b, tensor, tile.extents, part.places, how, {}):
            yield b.binary("add", base, box.offset), box


def _unfit(o: Op, tile: Region) -> LayoutError:
    v = tile.buffer
    extents = "x".join(map(str, tile.extents))
    return LayoutError(
        f"TMA cannot fill this {extents} part of {v.name} as it lies in shared memory ({v.type})",
        o.loc,
        "fill whole tiles, or parts that begin at multiples of 128 bytes of a row known at compile "
        "time; leave the layout to tilec; or write T.copy",
    )
