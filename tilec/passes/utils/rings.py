"""Ring buffers: the positions, barriers and box copies that pipelined loops are made of."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeGuard

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Param, Region, Value
from tilec.ir.effects import effects_in
from tilec.ir.instr import find_instruction
from tilec.ir.layout import tma_box
from tilec.ir.types import INT32, INT64, BufferType, DType, TensorMapType, Type
from tilec.passes.utils.addressing import narrow
from tilec.passes.utils.building import with_types
from tilec.passes.utils.dependence import live_ranges, once
from tilec.passes.utils.multicast import Multicast
from tilec.passes.utils.slicing import can_run_ahead


def waited_by_all(o: Op, threads: int) -> bool:
    """Whether `o` is a product by an engine of all `threads` of a scope as one group: each of them
    waits until it has ended, for all."""
    if not isinstance(o, ops.Gemm) or not o.by_engine:
        return False
    return find_instruction(o.instr).warps * 32 == threads


def ring_copies(loop: ops.For) -> list[ops.Copy]:
    """The copies of a pipelined loop's iteration that run ahead: at the top of its body, or under a
    condition there."""
    if loop.kind != "pipelined":
        return []
    return [o for o in once(loop.body) if isinstance(o, ops.Copy) and o.ahead]


def fills_tile(o: Op) -> TypeGuard[ops.Copy]:
    """Whether an op copies from global to shared memory."""
    sides = (o.source.type.space, o.dest.type.space) if isinstance(o, ops.Copy) else ()
    return sides == ("global", "shared")


def is_brought(o: Op) -> TypeGuard[ops.Copy]:
    """Whether producer warps bring the tile that an op fills."""
    return isinstance(o, ops.Copy) and o.engine == "tma"


def changed_rings(body: Block) -> set[Value]:
    """Rings in whose stages threads change what TMA has brought."""
    root = {o.result: o.root for o in body.every(ops.RingStage)}
    brought = {root[o.dest] for o in body.every(ops.TmaLoad) if o.dest in root}
    written = (e.buffer for _, e in effects_in(body) if e.writes and e.engine == "threads")
    return brought & {root[v] for v in written if v in root}


def with_stages(func: Func, stages: Mapping[Value, int], ahead: bool) -> Func:
    """`func` with so many stages of these shared buffers, whose copies from global memory run
    `ahead` or do not."""

    def visit(o: ops.Copy) -> None | Op:
        if o.dest.buffer not in stages or o.source.type.space != "global":
            return None
        return replace(o, ahead=ahead, engine=o.engine if ahead else "threads")

    typed = {v: replace(v.buffer, stages=n) for v, n in stages.items()}
    return func.with_body(with_types(func.body.rewrite(ops.Copy, visit), typed))


def settle(func: Func) -> Func:
    """`func`, where who brings each tile is known: what TMA was to bring and cannot, and threads
    cannot bring for a later iteration of a loop, does not run ahead. `attrs["ahead"]` lists what
    does: (line, buffer, stages, engine)."""
    func = _without_stray(func) if func.attrs.get("specialise") else func
    copies = [o for o in func.body.every(ops.Copy) if o.ahead]
    rows = ((o.loc.line, o.dest.buffer, o.engine) for o in copies)
    ahead = tuple((line, v.name, v.buffer.stages, engine) for line, v, engine in rows)
    return func.with_attrs(ahead=ahead) if ahead else func


def _without_stray(func: Func) -> Func:
    fine: set[ops.Copy] = set()
    for loop in func.body.every(ops.For):
        copies = ring_copies(loop)
        buffers = Counter(o.dest.buffer for o in copies)
        fine |= {
            o
            for o in copies
            if loop.num_stages > 1 and buffers[o.dest.buffer] == 1 and can_run_ahead(loop, o)
        }
    ahead = [o for o in func.body.every(ops.Copy) if o.ahead and o.engine != "tma"]
    ranges = live_ranges(func.body, {o.dest.buffer for o in ahead}, fills_tile)
    changed = {v for v, x in ranges.items() if isinstance(x, list) and any(r.changed for r in x)}
    stray = {o.dest.buffer for o in ahead if o not in fine or o.dest.buffer in changed}
    return with_stages(func, dict.fromkeys(stray, 1), ahead=False) if stray else func


def meeting(func: Func) -> tuple[int, int]:
    """Number and threads of the barrier at which the threads of the user's program meet: the
    block's (0, 0), or, where there are producer warps beside them, one of their own."""
    threads = int(func.attrs["threads"] or 0)  # 0: the CPU's code generator chooses
    return (1, threads) if int(func.attrs.get("launch_threads", threads)) != threads else (0, 0)


def elected(b: Builder, every_warps: int = 0, lanes: int = 1) -> Value:
    """True in one thread of the scope, or, with `every_warps`, in one thread of every so many
    warps (in the first `lanes` threads of such a warp)."""
    zero = b.const(0)
    lane = b.value(ops.Lane)
    first_lane = b.compare("eq", lane, zero)
    if lanes > 1:
        first_lane = b.compare("lt", lane, lanes)
    warp = b.value(ops.Warp)
    if every_warps == 1:
        return first_lane
    if every_warps:
        warp = b.binary("mod", warp, every_warps)
    first_warp = b.compare("eq", warp, zero)
    return b.binary("and", first_lane, first_warp)


class Position:
    """Where a scope stands in a ring: a (stage, phase) pair that it carries for itself.

    A pair is advanced once per acquire that is executed, never computed from a loop index, so
    loops may be nested, skipped or left early."""

    def __init__(self, b: Builder, stages: int, phase: int, name: str) -> None:
        local = BufferType((1,), INT32, "local")
        self.stages = stages
        self.stage = b.value(ops.Alloc, local, name=f"{name}_stage")
        self.phase = b.value(ops.Alloc, local, name=f"{name}_phase")
        zero = b.const(0)
        b.emit(ops.Store, self.stage, (zero,), zero)
        b.emit(ops.Store, self.phase, (zero,), b.const(phase))

    def get_stage(self, b: Builder) -> Value:
        return b.value(ops.Load, self.stage, (b.const(0),), name="stage")

    def get_phase(self, b: Builder) -> Value:
        return b.value(ops.Load, self.phase, (b.const(0),), name="phase")

    def before(self, b: Builder, stage: Value) -> Value:
        """The stage before `stage`."""
        at_start = b.compare("eq", stage, 0)
        less = b.binary("sub", stage, 1)
        return b.select(at_start, b.const(self.stages - 1), less)

    def advance(self, b: Builder, stage: Value, phase: Value | None = None) -> None:
        zero = b.const(0)
        following = b.binary("add", stage, 1)
        wrap = b.compare("eq", following, self.stages)
        b.emit(ops.Store, self.stage, (zero,), b.select(wrap, zero, following))
        if phase is not None:
            turned = b.binary("xor", phase, b.cast(wrap, INT32))
            b.emit(ops.Store, self.phase, (zero,), turned)

    def skip(self, b: Builder, count: Value) -> None:
        """Advance by `count` (i32, not negative) acquires at once."""
        zero, stages = b.const(0), b.const(self.stages)
        ahead = b.binary("add", self.get_stage(b), count)
        rounds = b.binary("floordiv", ahead, stages)
        b.emit(ops.Store, self.stage, (zero,), b.binary("mod", ahead, stages))
        turned = b.binary("and", b.binary("add", self.get_phase(b), rounds), 1)
        b.emit(ops.Store, self.phase, (zero,), turned)


@dataclass(eq=False)
class Ring:
    """The buffers that are filled and freed together, and the pair of barriers that guards them.

    `arrivals`: how many times a block must release a stage; `release_every`: one thread of every so
    many warps releases (4: a warpgroup, whose instruction reads for all its warps). `links`: the
    blocks of the cluster that load into one another's stages, as what their numbers differ by (0:
    the block itself); a stage is released to each of them, and `number` is this block's own.
    `repeated`: bytes of a stage that come once more."""

    name: str
    buffers: tuple[Value, ...]
    stages: int
    arrivals: int
    release_every: int
    links: tuple[int, ...] = (0,)
    repeated: int = 0
    number: Value | None = None
    full: Value = field(init=False)
    empty: Value = field(init=False)

    @property
    def bytes(self) -> int:
        """Bytes that fill one stage."""
        return sum(v.buffer.bytes for v in self.buffers) + self.repeated

    def allocate(self, b: Builder) -> None:
        stages = BufferType((self.stages,), INT64, "barrier")
        self.full = b.value(ops.Alloc, stages, name=f"{self.name}_full")
        self.empty = b.value(ops.Alloc, stages, name=f"{self.name}_empty")

    def initialise(self, b: Builder) -> None:
        b.emit(ops.MbarrierInit, self.full, 1)
        b.emit(ops.MbarrierInit, self.empty, self.arrivals * len(self.links))

    def wait_full(self, b: Builder, at: Position, only: Value | None = None) -> Value:
        """Wait until the stage at `at` is filled (`only` threads for which this holds); returns the
        stage."""
        stage = at.get_stage(b)
        wait = ops.MbarrierWait(self.full, stage, at.get_phase(b), loc=b.loc)
        b.branch(only, [wait])
        return stage

    def wait_free(self, b: Builder, at: Position) -> Value:
        """Wait until the stage at `at` is free; returns the stage."""
        stage = at.get_stage(b)
        b.emit(ops.MbarrierWait, self.empty, stage, at.get_phase(b))
        return stage

    def wait_empty(self, b: Builder, at: Position) -> Value:
        """Wait until the stage at `at` is free and announce its bytes; returns the stage."""
        stage = self.wait_free(b, at)
        b.emit(ops.MbarrierExpect, self.full, stage, self.bytes)
        return stage

    def release(self, b: Builder, stage: Value, guard: Value | None = None) -> None:
        who = elected(b, self.release_every, len(self.links))
        if guard is not None:
            who = b.binary("and", who, guard)
        b.emit(ops.MbarrierArrive, self.empty, stage, who, self._linked(b))

    def free(self, b: Builder, at: Position, stage: Value, phase: Value) -> None:
        """Release the stage that was waited for at `at`, and move on."""
        if self.release_every == 1:
            b.emit(ops.WarpSync)
        self.release(b, stage)
        at.advance(b, stage, phase)

    def _linked(self, b: Builder) -> Value | None:
        """The block that this lane releases a stage to; None where blocks load for themselves."""
        if self.number is None:
            return None
        differs = b.value(ops.Lane)
        if self.links != tuple(range(len(self.links))):
            table = sum(link << 4 * i for i, link in enumerate(self.links))
            at = b.binary("and", differs, 7)
            shift = b.binary("shl", at, 2)
            moved = b.binary("shr", b.const(table), shift)
            differs = b.binary("and", moved, 7)
        return b.binary("xor", self.number, differs)


class TensorMaps:
    """The TMA descriptors a kernel takes as parameters, one for each different box of a tensor;
    those that `func` has are among them."""

    def __init__(self, func: Func) -> None:
        self.func = func
        given = (p for p in func.params if p.role == "tensor_map")
        self.params: dict[Type, Param] = {p.value.type: p for p in given}
        self.viewed = frozenset(func.attrs.get("viewed", ()))
        self.turned = dict(func.attrs.get("turned", ()))

    def get(self, tensor: Value, box: tuple[int, ...], swizzle: int, dtype: DType) -> Value:
        """The descriptor's value; `box` is innermost first, `dtype` that of shared memory."""
        dims = tuple(reversed(self.turned.get(tensor.name, range(tensor.buffer.rank))))
        view = tensor.buffer.static_shape if tensor.name in self.viewed else ()
        t = TensorMapType(tensor.name, dims, box, swizzle, dtype, view)
        if t not in self.params:
            n = sum(p.arg == tensor.name for p in self.params.values())
            name = f"{tensor.name}_map{n or ''}"
            self.params[t] = Param(Value(t, name), "tensor_map", tensor.name)
        return self.params[t].value

    def boxes(
        self,
        b: Builder,
        tile: Value,
        region: Region,
        shape: tuple[int, ...] | None = None,
        box: tuple[int, ...] | None = None,
        dtype: DType | None = None,
        moved: Mapping[int, Value] | None = None,
    ) -> Iterator[Box]:
        """What moves a shared tile, or the first `shape` of it, to or from a region of a tensor (in
        boxes of `box`, else the largest), of elements that the descriptor calls `dtype` (None: as
        the tile does). `moved`: as of `boxes_of`."""
        t = tile.buffer
        found = tma_box(t.layout, t.dtype.bits)
        assert found is not None
        extents, how = shape or t.static_shape, (box or found[0], found[1], dtype or t.dtype)
        return self.boxes_of(b, region, extents, t.laid_out.offsets(), how, moved or {})

    def boxes_of(
        self,
        b: Builder,
        region: Region,
        extents: tuple[int, ...],
        places: Any,
        how: tuple[tuple[int, ...], int, DType],
        moved: Mapping[int, Value],
    ) -> Iterator[Box]:
        """The boxes of a tile with these extents, whose elements are at `places` in its memory, to
        or from a region; `how`: the extents of a box, its swizzle, and its dtype. `moved`: along
        which dimensions of the tile it begins how much further in the tensor."""
        box, swizzle, dtype = how
        wide = (d for d, e in enumerate(region.extents) if e != 1)
        tile_of = dict(zip(wide, (d for d, e in enumerate(extents) if e != 1)))
        dims = [tile_of.get(d, -1) for d in reversed(range(region.type.rank))]
        sizes = tuple(box[d] if d >= 0 else 1 for d in dims)
        descriptor = self.get(region.buffer, sizes, swizzle, dtype)
        for corner in itertools.product(*(range(0, e, x) for e, x in zip(extents, box))):
            coords = []
            for d, base in zip(dims, reversed(region.offsets)):
                at = narrow(b, base)
                if d >= 0 and corner[d]:
                    at = b.binary("add", at, corner[d])
                if d in moved:
                    at = b.binary("add", at, moved[d])
                coords.append(at)
            yield Box(descriptor, tuple(coords), int(places[corner]))

    def prefetch(self, b: Builder) -> None:
        for p in self.params.values():
            b.emit(ops.PrefetchMap, p.value)

    def added(self, body: Block) -> Func:
        """The function with `body` and all of the descriptors."""
        params = {p.value: p for p in (*self.func.params, *self.params.values())}
        return replace(self.func, params=tuple(params.values()), body=body)


class Box(NamedTuple):
    """One box: its descriptor, where it begins in the tensor (innermost first), and in the tile's
    memory, in elements."""

    descriptor: Value
    coords: tuple[Value, ...]
    offset: int


def tma_boxes(
    b: Builder, o: ops.Copy, maps: TensorMaps, barrier: Value, stage: Value, multicast: Multicast
) -> None:
    """The box copies that bring one tile into stage `stage` of its buffer; of a tile that several
    blocks share, this block's part into the buffers of all of them."""
    tile = o.dest.buffer
    ring_stage = b.value(ops.RingStage, tile, stage)
    shape = tile.buffer.static_shape
    share = multicast.shares.get(tile)
    blocks = None
    moved: dict[int, Value] = {}
    start = b.const(0)
    if share is not None:
        shape = (*shape[: share.along], share.extent, *shape[share.along + 1 :])
        part, blocks = multicast.part(b, share), multicast.receivers(b, share)
        moved[share.along] = b.binary("mul", part, share.pitch)
        start = b.binary("mul", part, share.step)
    box = share.box if share else None
    for descriptor, coords, offset in maps.boxes(b, tile, o.source, shape, box, moved=moved):
        where = b.const(offset)
        if share is not None:
            where = b.binary("add", where, start)
        at_barrier = (barrier, stage, blocks, o.eviction_policy)
        b.emit(ops.TmaLoad, ring_stage, where, descriptor, coords, *at_barrier)
