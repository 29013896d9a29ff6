"""lower_stores: a fragment of matrix accumulators leaves for global memory through shared memory
and TMA.

Before: copies with the agent "tma_store", each with its shared staging buffer. After: none. Every
warp works alone on its own 16 rows of staging, one chunk of columns at a time: wait until the last
chunk has been read from there, write 8x8 matrices (`stmatrix`), fence, and let one lane start the
box. TMA drops what lies outside of the tensor, so ragged tiles need no guards. The scope ends by
waiting for its stores."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Block, Builder, Func, Op, Value, rewrite, walk
from tilec.ir.layout import Layout
from tilec.ir.ops import (
    Cast,
    Compare,
    Const,
    Copy,
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
from tilec.passes.addressing import Numbers, Place, narrow, shared_offset
from tilec.passes.lower_gemm import close, unrolled
from tilec.passes.rings import TensorMaps, only_if
from tilec.passes.select_copies import store_atoms
from tilec.passes.stage_stores import ROWS
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
            case Copy(agent="tma_store"):
                return _store(o, maps)
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
    wait.emit(TmaStoreWait, 0, False)
    only_if(b, b.value(Compare, "eq", Place(b).lane, b.value(Const, 0, INT32)), wait.ops)
    end = len(body.ops) - bool(body.ops and isinstance(body.ops[-1], Yield))
    return Block(body.args, (*body.ops[:end], *b.ops, *body.ops[end:]))


def _store(o: Copy, maps: TensorMaps) -> list[Op]:
    b = Builder(o.loc)
    layout = o.source.buffer.layout
    assert layout is not None and o.staging is not None
    found = store_atoms(layout)
    assert found is not None
    m_blocks, column_blocks = found
    staging = o.staging.buffer.layout
    assert staging is not None
    columns = o.staging.buffer.static_shape[1]
    bits = o.dest.dtype.bits
    rank = o.dest.buffer.rank
    box = (columns, ROWS, *(1 for _ in range(rank - 2)))
    descriptor = maps.get(o.dest, box, columns * bits // 8)
    place = Place(b)
    lane, warp = place.lane, place.warp
    x = Numbers(b)
    first_lane = b.value(Compare, "eq", lane, x.const(0))
    own_rows = x.op("mul", warp, x.const(ROWS))
    row = x.op("add", own_rows, x.op("mod", lane, x.const(16)))
    half = x.op("mul", x.op("floordiv", lane, x.const(16)), x.const(8))
    origin = _warp_origin(x, layout, warp)
    own_offset = shared_offset(b, staging, (own_rows, x.const(0)))
    chunks = 8 * column_blocks // columns
    i, rows = unrolled(b, m_blocks, "i")
    j, inner = unrolled(rows, chunks, "chunk")
    y = Numbers(inner)
    wait = Builder(o.loc)
    wait.emit(TmaStoreWait, 0, True)
    only_if(inner, first_lane, wait.ops)
    inner.emit(WarpSync)
    per_chunk = columns // 8
    step_row = next((d.step[0] for d in layout.digits[2:] if d.owner == "reg" and d.step[0]), 0)
    base = y.op("mul", y.op("add", y.op("mul", i, y.const(chunks)), j), y.const(per_chunk * 4))
    for q in range(0, per_chunk, 2):
        values = []
        for p in range(4):
            pair = []
            for e in range(2):
                reg = y.op("add", base, y.const(4 * (q + p // 2) + 2 * (p % 2) + e))
                value = inner.value(RegRead, o.source, reg)
                if value.dtype != o.dest.dtype:
                    value = inner.value(Cast, value, o.dest.dtype)
                pair.append(value)
            values.append(inner.value(Pack, tuple(pair)))
        column = y.op("add", half, y.const(8 * q))
        offset = shared_offset(inner, staging, (row, column))
        inner.emit(Stmatrix, o.staging, offset, tuple(values))
    inner.emit(ProxyFence)
    inner.emit(WarpSync)
    send = Builder(o.loc)
    z = Numbers(send)
    at = [
        z.op(
            "add",
            z.op("add", narrow(send, o.dest_offsets[-1]), origin[1]),
            z.op("mul", j, z.const(columns)),
        ),
        z.op(
            "add",
            z.op("add", narrow(send, o.dest_offsets[-2]), origin[0]),
            z.op("mul", i, z.const(step_row)),
        ),
        *(narrow(send, v) for v in reversed(o.dest_offsets[:-2])),
    ]
    send.emit(TmaStore, descriptor, tuple(at), o.staging, own_offset)
    send.emit(TmaStoreCommit)
    only_if(inner, first_lane, send.ops)
    close(rows, "unroll", j, chunks, inner)
    close(b, "unroll", i, m_blocks, rows)
    return b.ops


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
