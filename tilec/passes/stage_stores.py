"""stage_stores: the shared memory that a fragment goes through on its way out.

Before: copies with the engine "tma_store" have no staging, and copies by threads take a fragment as
its layout has it. After: each of the former has a shared buffer with one chunk of 16 rows for every
warp, swizzled as its TMA box reads it. One of the latter whose warps would write pieces of many
rows at once, at addresses that divide 32-byte sectors, is a copy into a shared tile and one from
there by whole rows, if shared memory has room for the tile. `plan_shared` places these buffers like
any other. Elements of 8 bits are first brought together in fours (`convert_fragments`), so that a
thread writes whole words."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilec.ir.builder import Builder
from tilec.ir.clusters import groups_of, threads_of
from tilec.ir.copy_engines import leaves_by_rows, ragged_tensors
from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.layout import CHUNK_ROWS, Chunks, Layout, chunks, padded, rows_at_once, swizzled
from tilec.ir.ops import Alloc, AtomicTile, Copy, For, Parallel, Scope, While
from tilec.ir.types import PAD_BYTES, BufferType
from tilec.passes.utils.building import copy_whole
from tilec.passes.utils.distribution import along_rows
from tilec.passes.widen_copies import wider
from tilec.target import Target

WORD_BITS = 32
FEWER_ROWS = 4  # how many times fewer a warp must touch at once to be worth the way
BARRIERS = 1024  # bytes of shared memory that are kept for them


def stage_stores(func: Func, target: Target) -> Func:
    return func.with_body(_Stager(func, target).block(func.body, {}, False))


class _Stager:
    def __init__(self, func: Func, target: Target) -> None:
        self.target = target
        self.warps = threads_of(func) // target.warp_size
        self.ragged = ragged_tensors(func)
        self.consumer_groups = groups_of(func)
        types = [o.type for o in func.body.every(Alloc)]
        sizes = [(t, t.stage_bytes * t.stages) for t in types if t.space == "shared"]
        self.taken = sum(size for _, size in sizes)
        self.rings = sum(size for t, size in sizes if t.stages > 1)

    def block(self, block: Block, known: dict[BufferType, Value], again: bool) -> Block:
        """`known`: the staging buffers made on the way to `block`; `again`: whether it stands in a
        loop, so that rings keep their memory while it runs."""
        known = dict(known)
        ops: list[Op] = []
        for o in block.ops:
            fragment = isinstance(o, Copy) and o.source.type.space == "fragment"
            if isinstance(o, Copy) and fragment and o.engine == "tma_store":
                if o.reduction and not self.has_room(self.staging(o)[0], again):
                    ops.append(AtomicTile(o.source, o.dest, o.reduction, "threads", loc=o.loc))
                else:
                    ops += self.by_tma(o, known)
            elif isinstance(o, Copy) and fragment and self.leaves_by_rows(o, again):
                ops += self.by_rows(o)
            elif isinstance(o, Scope):  # groups store as they hold it
                ops.append(o)
            elif o.region_fields and not isinstance(o, Parallel):
                inside = again or isinstance(o, (For, While))
                ops.append(o.with_regions(partial(self.block, known=known, again=inside)))
            else:
                ops.append(o)
        return Block(block.args, tuple(ops))

    def by_tma(self, o: Copy, known: dict[BufferType, Value]) -> list[Op]:
        """Copies that follow one another use the same staging, for each warp waits until TMA has
        read its chunk."""
        b = Builder(o.loc)
        t, layout = self.staging(o)
        o = _in_layout(b, o, layout)
        if t not in known:
            known[t] = b.value(Alloc, t, name=f"{o.dest.buffer.name}_staging")
        return [*b.ops, replace(o, staging=known[t])]

    def staging(self, o: Copy) -> tuple[BufferType, Layout | None]:
        """The buffer that a fragment is staged in, and the layout from which it is written."""
        dtype = o.dest.dtype
        layout, found = staged_form(o, self.target)
        assert found is not None
        shape = (self.warps * CHUNK_ROWS, found.columns)
        swizzle = swizzled(shape, dtype.bits, found.columns * dtype.bits // 8)
        return BufferType(shape, dtype, "shared", layout=swizzle), layout

    def leaves_by_rows(self, o: Copy, again: bool) -> bool:
        return self.scatters(o) and self.has_room(_rows(o), again)

    def scatters(self, o: Copy) -> bool:
        """Whether a warp's stores of a whole fragment meet many rows of a tensor whose rows begin
        anywhere in a sector."""
        f, dest = o.source.type, o.dest.buffer
        if o.engine != "threads" or f.layout is None or not o.source.is_whole:
            return False
        if f.rank < 2 or not leaves_by_rows(dest, f.static_shape[-1], o.vector, self.ragged):
            return False
        rows = along_rows(f.static_shape, self.target.warp_size, self.warps, o.vector)
        return rows_at_once(f.layout) >= FEWER_ROWS * rows_at_once(rows)

    def has_room(self, t: BufferType, again: bool) -> bool:
        """Whether a buffer fits beside all that is in use while it is: `plan_shared` would refuse
        the kernel otherwise."""
        size = t.stage_bytes
        needed = (
            self.taken + size * self.consumer_groups if again else self.taken - self.rings + size
        )
        return needed + BARRIERS <= self.target.shared_bytes

    def by_rows(self, o: Copy) -> list[Op]:
        b = Builder(o.loc)
        t = _rows(o)
        o = _in_layout(b, o, _in_words(o.source.type.laid_out, t.dtype.bits))
        rows = b.value(Alloc, t, name=f"{o.dest.buffer.name}_rows")
        tile = b.whole(rows)
        b.emit(Copy, o.source, tile, engine="threads", vector=1)
        return [*b.ops, replace(o, source=tile)]


def _rows(o: Copy) -> BufferType:
    """The shared tile that a fragment goes through."""
    shape, dtype = o.source.extents, o.dest.dtype
    layout = padded(shape, shape[-1], PAD_BYTES * 8 // dtype.bits)
    return BufferType(shape, dtype, "shared", layout=layout)


def _in_layout(b: Builder, o: Copy, layout: Layout | None) -> Copy:
    """The copy from a fragment of the destination's dtype in `layout`."""
    f = o.source.type
    if layout == f.layout:
        return o
    t = BufferType(f.shape, o.dest.dtype, "fragment", layout=layout)
    words = b.value(Alloc, t, name=f"{o.source.buffer.name}_words")
    copy_whole(b, o.source.buffer, words)
    return replace(o, source=b.whole(words))


def _in_words(layout: Layout, bits: int) -> Layout:
    """The layout from which a thread writes whole words, where shuffles lead there."""
    return wider(layout, WORD_BITS // bits, bits) or layout if bits < WORD_BITS // 2 else layout


def staged_form(o: Copy, target: Target) -> tuple[Layout | None, Chunks | None]:
    """The layout from which the fragment of `o` is written to its staging, and how; None if there
    is no such way."""
    layout, bits = o.source.type.layout, o.dest.dtype.bits
    if layout is None:
        return None, None
    layout = _in_words(layout, bits)
    found = chunks(layout, bits, target.has("stmatrix"), once=bool(o.reduction))
    narrow = found is not None and not found.matrices and found.run * bits < WORD_BITS
    return layout, None if narrow else found
