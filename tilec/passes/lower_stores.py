"""lower_stores: a fragment of matrix accumulators leaves for global memory through shared memory
and TMA.

Before: copies with the engine "tma_store", of fragments with their shared staging buffers or of
shared tiles. After: none. For a fragment every warp works alone on its own 16 rows of staging, one
chunk of columns at a time: wait until the last chunk has been read from there, write it (16-bit
elements as 8x8 matrices, by `stmatrix`, others in vectors), fence, and let one lane start the box.
A shared tile leaves at once, started by one thread, who waits until TMA has read it before the next
barrier, behind which others may write the tile: in a loop that is where the next iteration meets.
TMA drops what lies outside of the tensor, so ragged tiles need no guards. The scope ends by waiting
until its stores have read the block's shared memory: what they write is complete when the launch
is. Reductions leave the same way."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.instr.memory import tma_reduces
from tilec.ir.layout import CHUNK_ROWS, Layout
from tilec.ir.types import DType
from tilec.passes.stage_stores import staged_form
from tilec.passes.utils.addressing import Place, combined, narrow, shared_offset
from tilec.passes.utils.building import read_packed
from tilec.passes.utils.rings import TensorMaps, elected
from tilec.target import Target


def lower_stores(func: Func, target: Target) -> Func:
    if not any(o.engine == "tma_store" for o in func.body.every(ops.Copy)):
        return func
    staged = any(o.staging is not None for o in func.body.every(ops.Copy))
    maps = TensorMaps(func)
    late = _Late(func)

    def visit(o: Op) -> None | Op | list[Op]:
        match o:
            case ops.Copy(engine="tma_store", staging=None):
                return _boxes(o, maps, o not in late.copies)
            case ops.Barrier() if o in late.barriers:
                return [*_read(o), o]
            case ops.For() if o.body.args[0] in late.loops:
                return [o, *_read(o)]
            case ops.Copy(engine="tma_store"):
                return _store(o, maps, target)
            case ops.Scope(name="consumer"):
                return replace(o, body=_drained(o.body, func, staged))
        return None

    body = func.body.rewrite(Op, visit)
    if not any(isinstance(o, ops.Scope) for o in body.ops):
        body = _drained(body, func, staged)
    return maps.added(body)


def _drained(body: Block, func: Func, staged: bool) -> Block:
    """`body`, and a wait for what is `staged`: who starts a shared tile has waited by himself."""
    if not staged:
        return body
    b = Builder(func.loc)
    with b.when(b.compare("eq", Place(b).lane, 0)) as wait:
        wait.emit(ops.TmaStoreWait, 0, True)
    return body.ending(b.ops)


class _Late:
    """Of the shared tiles that leave in a loop, those whose threads meet before any of them writes
    the tile again, since `insert_sync` has ordered that: their reads are waited for only there,
    and behind the loop if that is in the next iteration."""

    def __init__(self, func: Func) -> None:
        self.copies: set[ops.Copy] = set()
        self.barriers: set[ops.Barrier] = set()
        self.loops: set[Value] = set()  # by their indices: their bodies change
        if func.attrs.get("by_hand"):
            return  # the author's barriers may free a tile for other threads than they join
        stages = {o.result for o in func.body.every(ops.RingStage)}
        for loop in func.body.every(ops.For):
            statements = loop.body.ops
            for at, o in enumerate(statements):
                if not isinstance(o, ops.Copy) or o.engine != "tma_store" or o.staging is not None:
                    continue
                behind = (*statements[at + 1 :], *statements[:at])
                meets = (x for x in behind if x.has(ops.Barrier, ops.GridSync, ops.ClusterBarrier))
                first = next(meets, None)
                if o.source.buffer in stages or not isinstance(first, ops.Barrier):
                    continue
                self.copies.add(o)
                self.barriers.add(first)
                if statements.index(first) < at:
                    self.loops.add(loop.body.args[0])


def _read(o: Op) -> list[Op]:
    """The thread that started shared tiles waits until TMA has read them."""
    b = Builder(o.loc)
    with b.when(elected(b)) as wait:
        wait.emit(ops.TmaStoreWait, 0, True)
    return b.ops


def _boxes(o: ops.Copy, maps: TensorMaps, wait: bool) -> list[Op]:
    """One thread starts the boxes of a shared tile, and may `wait` until TMA has read them, so that
    the next barrier gives the tile free."""
    b, tile = Builder(o.loc), o.source.buffer
    how = (None, o.eviction_policy, o.reduction)
    with b.when(elected(b)) as send:
        for descriptor, at, offset in maps.boxes(send, tile, o.dest, dtype=_map_dtype(o)):
            send.emit(ops.TmaStore, descriptor, at, tile, send.const(offset), *how)
        send.emit(ops.TmaStoreCommit)
        if wait:
            send.emit(ops.TmaStoreWait, 0, True)
    return b.ops


def _store(o: ops.Copy, maps: TensorMaps, target: Target) -> list[Op]:
    b = Builder(o.loc)
    layout, bits = o.source.type.laid_out, o.dest.dtype.bits
    _, found = staged_form(o, target)
    assert found is not None and o.staging is not None
    staging = o.staging.buffer.laid_out
    rank = o.dest.type.rank
    box = (found.columns, CHUNK_ROWS, *(1 for _ in range(rank - 2)))
    descriptor = maps.get(o.dest.buffer, box, found.columns * bits // 8, _map_dtype(o))
    place = Place(b)
    lane, warp = place.lane, place.warp
    first_lane = b.compare("eq", lane, b.const(0))
    own_rows = b.fold("mul", warp, CHUNK_ROWS)
    origin = _part(b, layout, "warp", warp)
    own_offset = shared_offset(b, staging, (own_rows, b.const(0)))
    if found.matrices:
        row = b.fold("mod", lane, 16)
        column = b.fold("mul", b.fold("floordiv", lane, 16), 8)
    else:
        row, column = _part(b, layout, "lane", lane)
    row = b.fold("add", own_rows, row)
    count = len(found.origins)
    with b.counted(count, "chunk") as (c, inner):
        inner.emit(ops.TmaStoreWait, 0, True)
        inner.emit(ops.WarpSync)
        for access, (at_row, at_column) in enumerate(found.places):
            own = inner.fold("add", row, at_row), inner.fold("add", column, at_column)
            offset = shared_offset(inner, staging, own)
            values = _values(inner, o, c, [chunk[access] for chunk in found.registers], found.run)
            if found.matrices:
                inner.emit(ops.Stmatrix, o.staging, offset, values, found.transposed)
            else:
                inner.emit(ops.MemStore, o.staging, offset, values[0], found.run * bits // 8)
        inner.emit(ops.ProxyFence)
        inner.emit(ops.WarpSync)
        at = []
        for d in (1, 0):
            step = inner.value(ops.Lookup, tuple(corner[d] for corner in found.origins), c)
            start = inner.fold("add", narrow(inner, o.dest.offsets[d - 2]), origin[d])
            at.append(inner.fold("add", start, step))
        at += [narrow(inner, v) for v in reversed(o.dest.offsets[:-2])]
        # Without a branch: nothing that is computed for later chunks moves past it.
        sent = (o.staging, own_offset, first_lane, o.eviction_policy, o.reduction)
        inner.emit(ops.TmaStore, descriptor, tuple(at), *sent)
        inner.emit(ops.TmaStoreCommit)
    return b.ops


def _map_dtype(o: ops.Copy) -> DType:
    """The dtype by which the tensor's descriptor names its elements."""
    dtype = tma_reduces(o.reduction, o.dest.dtype) if o.reduction else o.dest.dtype
    assert dtype is not None
    return dtype


def _values(
    b: Builder, o: ops.Copy, chunk: Value, registers: list[tuple[int, ...]], run: int
) -> tuple[Value, ...]:
    """The registers of one access (of each chunk), converted, in vectors of `run`."""
    tables = list(zip(*registers))
    return tuple(
        read_packed(
            b,
            o.source.buffer,
            (b.value(ops.Lookup, t, chunk) for t in tables[start : start + run]),
            o.dest.dtype,
        )
        for start in range(0, len(tables), run)
    )


def _part(x: Builder, layout: Layout, owner: str, at: Value) -> list[Value]:
    """What the number of a lane or of a warp adds to the coordinates."""
    terms = ([t for t in layout.forward_terms(d) if t.source == owner] for d in range(layout.rank))
    return [combined(x, own, lambda _: at) for own in terms]
