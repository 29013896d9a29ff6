"""lower_stores: a fragment of matrix accumulators leaves for global memory through shared memory
and TMA.

Before: copies with the agent "tma_store", of fragments with their shared staging buffers or of
shared tiles. After: none. For a fragment every warp works alone on its own 16 rows of staging, one
chunk of columns at a time: wait until the last chunk has been read from there, write it (16-bit
elements as 8x8 matrices, by `stmatrix`, others in vectors), fence, and let one lane start the box.
A shared tile leaves at once, started by one thread. TMA drops what lies outside of the tensor, so
ragged tiles need no guards. The scope ends by waiting until its stores have read the block's shared
memory: what they write is complete when the launch is."""

from __future__ import annotations

import itertools
from dataclasses import replace

from tilec.ir.core import Block, Builder, Func, Op, Value, rewrite, walk
from tilec.ir.layout import CHUNK_ROWS, Layout, tma_box
from tilec.ir.ops import (
    Cast,
    Compare,
    Const,
    Copy,
    Lookup,
    MemStore,
    Pack,
    ProxyFence,
    RegRead,
    Scope,
    Stmatrix,
    TmaStore,
    TmaStoreCommit,
    TmaStoreWait,
    WarpSync,
    Yield,
)
from tilec.ir.types import INT32
from tilec.passes.lower_gemm import close, unrolled
from tilec.passes.stage_stores import staged_form
from tilec.passes.utils.addressing import Numbers, Place, narrow, shared_offset
from tilec.passes.utils.rings import TensorMaps, elected, only_if
from tilec.target import Target


def lower_stores(func: Func, target: Target) -> Func:
    """See the module's opening."""
    if not any(isinstance(o, Copy) and o.agent == "tma_store" for o in walk(func.body)):
        return func
    maps = TensorMaps()
    for p in func.params:
        if p.role == "tensor_map":
            maps.params[p.value.type] = p  # type: ignore[index]

    def visit(o: Op) -> None | Op | list[Op]:
        match o:
            case Copy(agent="tma_store", staging=None):
                return _boxes(o, maps)
            case Copy(agent="tma_store"):
                return _store(o, maps, target)
            case Scope(name="consumer"):
                return replace(o, body=_drained(o.body, func))
        return None

    body = rewrite(func.body, visit)
    if not any(isinstance(o, Scope) for o in body.ops):
        body = _drained(body, func)
    known = {p.value for p in func.params}
    extra = tuple(p for p in maps.params.values() if p.value not in known)
    return replace(func, params=(*func.params, *extra), body=body)


def _drained(body: Block, func: Func) -> Block:
    b = Builder(func.loc)
    wait = Builder(func.loc)
    wait.emit(TmaStoreWait, 0, True)
    only_if(b, b.value(Compare, "eq", Place(b).lane, b.value(Const, 0, INT32)), wait.ops)
    end = len(body.ops) - bool(body.ops and isinstance(body.ops[-1], Yield))
    return Block(body.args, (*body.ops[:end], *b.ops, *body.ops[end:]))


def _boxes(o: Copy, maps: TensorMaps) -> list[Op]:
    """One thread starts the boxes of a shared tile and waits until TMA has read them, so that the
    next barrier gives the tile free."""
    b, send = Builder(o.loc), Builder(o.loc)
    s = o.source.buffer.buffer
    assert s.layout is not None
    found = tma_box(s.layout, s.dtype.bits)
    assert found is not None
    box, swizzle = found
    tile_dims = [d for d, e in enumerate(s.static_shape) if e != 1]
    dest_dims = [d for d, e in enumerate(o.dest.extents) if e != 1]
    tile_of = dict(zip(dest_dims, tile_dims))
    dims = list(reversed(range(o.dest.buffer.buffer.rank)))
    full = tuple(box[tile_of[d]] if d in tile_of else 1 for d in dims)
    descriptor = maps.get(o.dest.buffer, full, swizzle, o.dest.dtype)
    offsets = s.layout.offsets()
    n = Numbers(send)
    for corner in itertools.product(*(range(0, e, x) for e, x in zip(s.static_shape, box))):
        at = []
        for d in dims:
            shift = n.const(corner[tile_of[d]] if d in tile_of else 0)
            at.append(n.op("add", narrow(send, o.dest.offsets[d]), shift))
        offset = n.const(int(offsets[corner]))
        send.emit(TmaStore, descriptor, tuple(at), o.source.buffer, offset)
    send.emit(TmaStoreCommit)
    send.emit(TmaStoreWait, 0, True)
    only_if(b, elected(b), send.ops)
    return b.ops


def _store(o: Copy, maps: TensorMaps, target: Target) -> list[Op]:
    b = Builder(o.loc)
    layout = o.source.buffer.buffer.layout
    assert layout is not None and o.staging is not None
    _, found = staged_form(layout, o.dest.dtype.bits, target)
    assert found is not None
    staging = o.staging.buffer.layout
    assert staging is not None
    bits = o.dest.dtype.bits
    rank = o.dest.buffer.buffer.rank
    box = (found.columns, CHUNK_ROWS, *(1 for _ in range(rank - 2)))
    descriptor = maps.get(o.dest.buffer, box, found.columns * bits // 8, o.dest.dtype)
    place = Place(b)
    lane, warp = place.lane, place.warp
    x = Numbers(b)
    first_lane = b.value(Compare, "eq", lane, x.const(0))
    own_rows = x.op("mul", warp, x.const(CHUNK_ROWS))
    origin = _warp_origin(x, layout, warp)
    own_offset = shared_offset(b, staging, (own_rows, x.const(0)))
    if found.matrices:
        row = x.op("mod", lane, x.const(16))
        column = x.op("mul", x.op("floordiv", lane, x.const(16)), x.const(8))
    else:
        row, column = (_lane_part(x, layout, lane, d) for d in range(2))
    row = x.op("add", own_rows, row)
    count = len(found.origins)
    c, inner = unrolled(b, count, "chunk")
    inner.emit(TmaStoreWait, 0, True)
    inner.emit(WarpSync)
    y = Numbers(inner)
    for access, (at_row, at_column) in enumerate(found.places):
        own = y.op("add", row, y.const(at_row)), y.op("add", column, y.const(at_column))
        offset = shared_offset(inner, staging, own)
        values = _values(inner, o, c, [chunk[access] for chunk in found.registers], found.run)
        if found.matrices:
            inner.emit(Stmatrix, o.staging, offset, values, found.transposed)
        else:
            inner.emit(MemStore, o.staging, offset, values[0], found.run * bits // 8)
    inner.emit(ProxyFence)
    inner.emit(WarpSync)
    at = []
    for d in (1, 0):
        step = inner.value(Lookup, tuple(corner[d] for corner in found.origins), c)
        start = y.op("add", narrow(inner, o.dest.offsets[d - 2]), origin[d])
        at.append(y.op("add", start, step))
    at += [narrow(inner, v) for v in reversed(o.dest.offsets[:-2])]
    # Without a branch: nothing that is computed for later chunks moves past it.
    inner.emit(TmaStore, descriptor, tuple(at), o.staging, own_offset, first_lane)
    inner.emit(TmaStoreCommit)
    close(b, "unroll", c, count, inner)
    return b.ops


def _values(
    b: Builder, o: Copy, chunk: Value, registers: list[tuple[int, ...]], run: int
) -> tuple[Value, ...]:
    """The registers of one access (of each chunk), converted, in vectors of `run`."""
    made = []
    for start in range(0, len(registers[0]), run):
        parts = []
        for e in range(start, start + run):
            at = b.value(Lookup, tuple(one[e] for one in registers), chunk)
            parts.append(b.value(RegRead, o.source.buffer, at))
        value = b.value(Pack, tuple(parts)) if run > 1 else parts[0]
        if value.dtype != o.dest.dtype:
            value = b.value(Cast, value, o.dest.dtype)
        made.append(value)
    return tuple(made)


def _lane_part(x: Numbers, layout: Layout, lane: Value, dim: int) -> Value:
    """What a lane's number adds to the coordinate along `dim`."""
    return x.combine([t for t in layout.forward_terms(dim) if t.source == "lane"], lambda _: lane)


def _warp_origin(x: Numbers, layout: Layout, warp: Value) -> tuple[Value, Value]:
    """Row and column of a warp's first element."""
    rows = columns = x.const(0)
    below = 1
    for d in layout.digits:
        if d.owner != "warp":
            continue
        digit = x.op("mod", x.op("floordiv", warp, x.const(below)), x.const(d.radix))
        rows = x.op("add", rows, x.op("mul", digit, x.const(d.step[0])))
        columns = x.op("add", columns, x.op("mul", digit, x.const(d.step[1])))
        below *= d.radix
    return rows, columns
