"""lower_barriers: barriers that the author made are initialised, his TMA copies become boxes.

Before: SCHEDULED; `mbarrier_init` ops stand where barriers were allocated, `tma_copy` ops name
regions. After: one thread of the block initialises them all, before anything else is done, and the
threads meet; no `tma_copy` is left: one thread of the scope announces the bytes and starts the
boxes. Nor is a `cluster_copy` (`utils/peer_copies.py`): where there was one, or a `tma_copy` for
several blocks, those of a cluster begin and end together, so that each is there while others use
its shared memory. A wait for asynchronous products names the fragments that they use."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from tilec.ir.analysis import facts_of
from tilec.ir.clusters import cluster_of, size
from tilec.ir.core import Block, Builder, Func, Op, Value, rewrite, squeeze, walk
from tilec.ir.errors import LayoutError
from tilec.ir.layout import tma_box
from tilec.ir.ops import (
    Alloc,
    Barrier,
    Binary,
    ClusterBarrier,
    ClusterCopy,
    Compare,
    Gemm,
    If,
    Load,
    MbarrierArrive,
    MbarrierExpectTx,
    MbarrierInit,
    MbarrierInitFence,
    MbarrierWait,
    Scope,
    Store,
    TmaCopy,
    TmaLoad,
    WgmmaWait,
    Yield,
)
from tilec.ir.types import INT32, BufferType
from tilec.passes.select_copies import MAX_BOX
from tilec.passes.utils.addressing import narrow
from tilec.passes.utils.groups import warps_of
from tilec.passes.utils.peer_copies import Part, part_of, pieces, send, store
from tilec.passes.utils.rings import TensorMaps, const, elected, only_if
from tilec.target import Target


def lower_barriers(func: Func, target: Target) -> Func:
    """See the module's opening. Raises CompileError for a copy that TMA cannot do."""
    inits = [o for o in walk(func.body) if isinstance(o, MbarrierInit)]
    if not func.attrs.get("by_hand"):
        return func
    lowering = _Lowering(func, target)
    copies = any(_reaches_others(o) for o in walk(func.body))
    body = rewrite(func.body, lowering.visit)
    if not inits and not copies:
        return func.with_body(body)
    top = Builder(func.loc)
    top.ops += [o for o in body.ops if _is_barrier(o)]
    if inits:
        first = Builder(func.loc)
        first.ops += inits
        first.emit(MbarrierInitFence)
        lowering.maps.prefetch(first)
        only_if(top, elected(top), first.ops)
    for phase in lowering.phases.values():
        top.ops.append(Alloc(_PHASE, results=(phase,), loc=func.loc))
        zero = const(top, 0)
        top.emit(Store, phase, (zero,), zero)
    top.emit(ClusterBarrier if copies else Barrier)
    top.ops += [o for o in body.ops if not _is_barrier(o)]
    if copies:
        last = [top.ops.pop()] if isinstance(top.ops[-1], Yield) else []
        top.emit(ClusterBarrier)
        top.ops += last
    params = {p.value: p for p in (*func.params, *lowering.maps.params.values())}
    return replace(func.with_body(top.block()), params=tuple(params.values()))


def _reaches_others(o: Op) -> bool:
    """Whether it writes to other blocks of the cluster."""
    return isinstance(o, ClusterCopy) or (isinstance(o, TmaCopy) and bool(o.mask))


def _is_barrier(o: Op) -> bool:
    return isinstance(o, Alloc) and o.type.space == "barrier"


_PHASE = BufferType((1,), INT32, "local")


class _Lowering:
    def __init__(self, func: Func, target: Target) -> None:
        self.warps = warps_of(func, target)
        self.blocks = size(cluster_of(func))
        self.maps = TensorMaps()
        for p in func.params:
            if p.role == "tensor_map":
                self.maps.params[p.value.type] = p  # type: ignore[index]
        self.facts = facts_of(func)
        self.phases: dict[Value, Value] = {}  # of each gate, the phase that its first block is in
        self.in_flight: dict[WgmmaWait, tuple[Value, ...]] = {}
        self.find_products(func.body)

    def find_products(self, body: Block) -> None:
        """What may be in flight at each wait for products: what those of its group use."""
        products: dict[tuple[int, int], dict[Value, None]] = {}
        waits: list[tuple[WgmmaWait, tuple[int, int]]] = []

        def visit(block: Block, group: tuple[int, int]) -> None:
            for o in block.ops:
                if isinstance(o, Gemm) and o.asynchronous:
                    held = (v for v in (o.c, o.a.buffer) if v.buffer.space == "fragment")
                    products.setdefault(group, {}).update(dict.fromkeys(held))
                if isinstance(o, WgmmaWait):
                    waits.append((o, group))
                inner = (o.first_warp, o.warps) if isinstance(o, Scope) else group
                for region in o.regions:
                    visit(region, inner)

        visit(body, (0, 0))
        self.in_flight = {o: tuple(products.get(group, ())) for o, group in waits}

    def visit(self, o: Op) -> None | list[Op]:
        match o:
            case MbarrierInit():
                return []
            case WgmmaWait(fragments=()):
                held = self.in_flight[o]
                return [replace(o, fragments=held)] if held else []
            case TmaCopy():
                b, inner = Builder(o.loc), Builder(o.loc)
                total = math.prod(o.dest.extents) * o.dest.dtype.bits // 8
                inner.emit(MbarrierExpectTx, o.barrier, o.stage, total)
                if o.mask:
                    self.for_several(inner, o)
                else:
                    self.boxes(inner, o)
                only_if(b, elected(b), inner.ops)
                return b.ops
            case ClusterCopy(engine="tma"):
                found = pieces(o, self.facts)
                assert found is not None
                return send(o, found)
            case ClusterCopy():
                return store(o, self.warps(o))
        return None

    def for_several(self, b: Builder, o: TmaCopy) -> None:
        """One thread tells the first block that this one's tile is free; there it waits for all of
        them before it starts the boxes."""
        assert o.gate is not None and o.rank is not None
        blocks = [n for n in range(o.mask.bit_length()) if o.mask >> n & 1]
        first, come, told = blocks[0], const(b, 0), const(b, 1)
        phase = self.phases.setdefault(o.gate, Value(_PHASE, f"{o.gate.name}_phase"))
        among, start, alone = (Builder(o.loc) for _ in range(3))
        at = among.value(Load, phase, (come,))
        turned = among.value(Binary, "xor", at, told)
        among.emit(Store, phase, (come,), turned)
        among.emit(MbarrierWait, o.gate, told, turned)
        among.emit(MbarrierArrive, o.gate, come, None, const(among, first), True)
        start.emit(MbarrierWait, o.gate, come, at, True)
        start.emit(MbarrierArrive, o.gate, told)
        for n in blocks[1:]:
            start.emit(MbarrierArrive, o.gate, told, None, const(start, n))
        self.boxes(start, o, const(start, o.mask))
        only_if(among, among.value(Compare, "eq", o.rank, const(among, first)), start.ops)
        if len(blocks) == self.blocks:
            b.ops += among.ops
            return
        among.emit(Yield)
        self.boxes(alone, o)
        alone.emit(Yield)
        bit = b.value(Binary, "and", b.value(Binary, "shr", const(b, o.mask), o.rank), told)
        b.emit(If, b.value(Compare, "eq", bit, told), among.block(), alone.block())

    def boxes(self, b: Builder, o: TmaCopy, blocks: Value | None = None) -> None:
        """The boxes started, by one thread, for the `blocks` of the cluster."""
        t, region = o.dest.buffer.buffer, o.source
        part = part_of(o.dest, self.facts)
        if part is None:
            raise _unfit(o)
        base = part.moved(b)
        box, swizzle = _box(o, part)
        wide = (d for d, e in enumerate(region.extents) if e != 1)
        tile_of = dict(zip(wide, (d for d, e in enumerate(o.dest.extents) if e != 1)))
        dims = [tile_of.get(d, -1) for d in reversed(range(region.buffer.buffer.rank))]
        extents = tuple(box[d] if d >= 0 else 1 for d in dims)
        map = self.maps.get(region.buffer, extents, swizzle, t.dtype)
        for corner in itertools.product(*(range(0, e, x) for e, x in zip(o.dest.extents, box))):
            coords = []
            for d, start in zip(dims, reversed(region.offsets)):
                at = narrow(b, start)
                if d >= 0 and corner[d]:
                    at = b.value(Binary, "add", at, const(b, corner[d]))
                coords.append(at)
            where = b.value(Binary, "add", base, const(b, int(part.places[corner])))
            at_barrier = (o.barrier, o.stage, blocks, o.cache)
            b.emit(TmaLoad, o.dest.buffer, where, map, tuple(coords), *at_barrier)


def _box(o: TmaCopy, part: Part) -> tuple[tuple[int, ...], int]:
    """The box (its extents, its swizzle) by which TMA fills a part of a shared buffer."""
    layout, extents = o.dest.buffer.buffer.layout, o.dest.extents
    assert layout is not None
    bits = o.dest.dtype.bits
    whole = tma_box(layout, bits)
    columns = extents[-1] if whole is None else math.gcd(whole[0][-1], extents[-1])
    try:
        narrow_part = layout.restrict((*extents[:-1], columns))
        panel = narrow_part.reshape(squeeze(narrow_part.shape) or (1,))
    except LayoutError:
        raise _unfit(o) from None
    found = tma_box(panel, bits)
    if found is None or any(e > MAX_BOX for e in found[0]):
        raise _unfit(o)
    sizes = iter(found[0])
    box = tuple(1 if e == 1 else next(sizes) for e in narrow_part.shape)
    if squeeze(narrow_part.shape) == ():
        box = (1,) * len(extents)
    table = panel.offsets().reshape(narrow_part.shape)
    inside = table[tuple(slice(0, x) for x in box)]
    for corner in itertools.product(*(range(0, e, x) for e, x in zip(extents, box))):
        here = part.places[tuple(slice(at, at + x) for at, x in zip(corner, box))]
        if here.shape != inside.shape or not np.array_equal(here - here.flat[0], inside):
            raise _unfit(o)
    return box, found[1]


def _unfit(o: TmaCopy) -> LayoutError:
    v = o.dest.buffer
    extents = "x".join(map(str, o.dest.extents))
    return LayoutError(
        f"TMA cannot fill this {extents} part of {v.name} as it lies in shared memory ({v.type})",
        o.loc,
        "fill whole tiles, or parts that begin at multiples of 128 bytes of a row known at compile "
        "time; leave the layout to tilec; or write T.copy",
    )
