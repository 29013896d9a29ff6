"""Fragments whose elements stay in their warps: selects, shuffles and names of registers, as
`tilec.ir.layout.exchange` plans them; and parts of fragments, which are names alone."""

from __future__ import annotations

from tilec.ir.analysis import Facts
from tilec.ir.core import Builder, Op, Value
from tilec.ir.errors import InternalError
from tilec.ir.layout import Exchange, exchange
from tilec.ir.ops import (
    Copy,
    Extract,
    Lane,
    Lookup,
    RegRead,
    RegWrite,
    Shuffle,
    ShuffleXor,
)
from tilec.passes.utils.addressing import Numbers
from tilec.passes.utils.building import counted, read_packed


def exchange_registers(o: Copy) -> list[Op]:
    """The ops of a copy between fragments with the engine "shuffle". Elements travel in the
    narrower of the two dtypes."""
    s, d = o.source.buffer.buffer, o.dest.buffer.buffer
    assert s.layout is not None and d.layout is not None
    narrow = s if s.dtype.bits <= d.dtype.bits else d
    plan = exchange(s.layout, d.layout, narrow.dtype.bits)
    if plan is None:
        raise InternalError(f"no exchange from {s} to {d}", o.loc)
    b = Builder(o.loc)
    n = Numbers(b)
    lane = b.value(Lane)
    highs = {
        mask: b.compare("eq", _lane_bit(n, lane, mask), n.const(1))
        for mask in (*plan.keeps, *plan.swaps, *plan.gathers)
    }
    reader = _reader(n, lane, plan)
    count = len(plan.sources)
    with counted(b, count, "group") as (g, inner):
        values = []
        for m in range(len(plan.sources[0])):
            tables = [tuple(group[m][e] for group in plan.sources) for e in range(plan.pack)]
            registers = (inner.value(Lookup, table, g) for table in tables)
            values.append(read_packed(inner, o.source.buffer, registers, narrow.dtype))
        for mask in reversed(plan.keeps):
            half = len(values) // 2
            pairs = list(zip(values[:half], values[half:]))
            values = [inner.select(highs[mask], high, low) for low, high in pairs]
        for i, mask in enumerate(plan.swaps):
            _swap(inner, values, 1 << i, mask, highs[mask])
        for mask in plan.gathers:
            others = [inner.value(ShuffleXor, v, mask) for v in values]
            pairs = list(zip(values, others))
            values = [inner.select(highs[mask], other, own) for own, other in pairs]
            values += [inner.select(highs[mask], own, other) for own, other in pairs]
        if reader is not None:
            values = [inner.value(Shuffle, v, reader) for v in values]
        for m, value in enumerate(values):
            if value.dtype != d.dtype:
                value = inner.cast(value, d.dtype)
            for e in range(plan.pack):
                at = inner.value(Lookup, tuple(group[m][e] for group in plan.dests), g)
                one = value if plan.pack == 1 else inner.value(Extract, value, e)
                inner.emit(RegWrite, o.dest.buffer, at, one)
    return b.ops


def rename_registers(o: Copy, facts: Facts) -> list[Op]:
    """The ops of a copy between a fragment and its part at an offset that is a number: each thread
    has the elements already."""
    s, d = o.source.buffer.buffer, o.dest.buffer.buffer
    assert s.layout is not None and d.layout is not None
    tables = [
        layout.table("reg", "lane", "warp") - [facts.constant(v) for v in offsets]
        for layout, offsets in ((s.layout, o.source.offsets), (d.layout, o.dest.offsets))
    ]
    where = {tuple(map(int, at)): r for r, at in enumerate(tables[0][:, 0, 0])}
    pairs = [
        (where[tuple(map(int, at))], r)
        for r, at in enumerate(tables[1][:, 0, 0])
        if tuple(map(int, at)) in where
    ]
    if any((tables[0][i] != tables[1][j]).any() for i, j in pairs) or len(pairs) != min(
        len(t) for t in tables
    ):
        raise InternalError(f"{s} and {d} do not share their registers", o.loc)
    b = Builder(o.loc)
    with counted(b, len(pairs), "register") as (g, inner):
        source, dest = (inner.value(Lookup, tuple(p[i] for p in pairs), g) for i in range(2))
        value = inner.value(RegRead, o.source.buffer, source)
        inner.emit(RegWrite, o.dest.buffer, dest, value)
    return b.ops


def _swap(b: Builder, values: list[Value], bit: int, mask: int, high: Value) -> None:
    """Exchange a bit of the values' numbers with the lane's bit in `mask`, which is set where
    `high` holds: a lane keeps one value of each two and gives the other."""
    for m in range(len(values)):
        if m & bit:
            continue
        first, second = values[m], values[m | bit]
        given = b.select(high, first, second)
        taken = b.value(ShuffleXor, given, mask)
        values[m] = b.select(high, taken, first)
        values[m | bit] = b.select(high, second, taken)


def _reader(n: Numbers, lane: Value, plan: Exchange) -> Value | None:
    """The lane that each lane reads from in the end; None if it is itself."""
    if not plan.turn:
        return None
    total = n.const(0)
    for p, q in enumerate(plan.turn):
        total = n.op("add", total, n.op("mul", _lane_bit(n, lane, 1 << p), 1 << q))
    return total


def _lane_bit(n: Numbers, lane: Value, mask: int) -> Value:
    return n.op("mod", n.op("floordiv", lane, mask), 2)
