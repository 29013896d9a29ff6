"""stage_stores: the shared memory that a fragment goes through on its way out by TMA.

Before: copies with the agent "tma_store" have no staging. After: each has a shared buffer with one
chunk of 16 rows for every warp, swizzled as its TMA box reads it; `plan_shared` places it like any
other. Elements of 8 bits are first brought together in fours (`convert_fragments`), so that a
thread writes whole words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilec.ir.core import Block, Builder, Func, Op, Value
from tilec.ir.layout import CHUNK_ROWS, Chunks, Layout, chunks, swizzled
from tilec.ir.ops import Alloc, Const, Copy, Parallel
from tilec.ir.types import INT32, BufferType
from tilec.passes.conversions import copy_whole
from tilec.passes.widen_copies import wider
from tilec.target import Target

WORD_BITS = 32


def stage_stores(func: Func, target: Target) -> Func:
    """Give every "tma_store" copy its staging buffer: one chunk for each warp. Copies that follow
    one another use the same one, for each warp waits until TMA has read its chunk."""
    return func.with_body(_staged(func.body, {}, func, target))


def _staged(block: Block, known: dict[BufferType, Value], func: Func, target: Target) -> Block:
    """`known`: the staging buffers made on the way to `block`."""
    known = dict(known)
    ops: list[Op] = []
    for o in block.ops:
        if isinstance(o, Copy) and o.agent == "tma_store" and o.source.buffer.space == "fragment":
            ops += _through_staging(o, known, func, target)
        elif o.region_fields and not isinstance(o, Parallel):
            inner: dict[str, Any] = {
                n: _staged(getattr(o, n), known, func, target) for n in o.region_fields
            }
            ops.append(replace(o, **inner))
        else:
            ops.append(o)
    return Block(block.args, tuple(ops))


def _through_staging(
    o: Copy, known: dict[BufferType, Value], func: Func, target: Target
) -> list[Op]:
    b = Builder(o.loc)
    f, dtype = o.source.buffer, o.dest.dtype
    layout, found = staged_form(f.layout, dtype.bits, target)
    assert found is not None
    if layout != f.layout:
        t = BufferType(f.shape, dtype, "fragment", layout=layout)
        words = b.value(Alloc, t, name=f"{o.source.name}_words")
        copy_whole(b, o.source, words)
        zeros = tuple(b.value(Const, 0, INT32) for _ in f.shape)
        o = replace(o, source=words, source_offsets=zeros)
    warps = int(func.attrs["threads"]) // target.warp_size
    shape = (warps * CHUNK_ROWS, found.columns)
    swizzle = swizzled(shape, dtype.bits, found.columns * dtype.bits // 8)
    t = BufferType(shape, dtype, "shared", layout=swizzle)
    if t not in known:
        known[t] = b.value(Alloc, t, name=f"{o.dest.name}_staging")
    return [*b.ops, replace(o, staging=known[t])]


def staged_form(
    layout: Layout | None, bits: int, target: Target
) -> tuple[Layout | None, Chunks | None]:
    """The layout from which a fragment of elements of `bits` bits is written to its staging, and
    how; None if there is no such way."""
    if layout is None:
        return None, None
    if bits < WORD_BITS // 2:
        layout = wider(layout, WORD_BITS // bits, bits) or layout
    found = chunks(layout, bits, target.has("stmatrix"))
    narrow = found is not None and not found.matrices and found.run * bits < WORD_BITS
    return layout, None if narrow else found
