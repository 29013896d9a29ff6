"""Buffers, tiles and printing in the reference interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from interp_machine import InterpError, Machine, Memory, Results, executes, lane_of

from tilec.ir import semantics as num
from tilec.ir import types as t
from tilec.ir.core import Op, Region, Value
from tilec.ir.ops import schedule, tile


@executes(tile.Alloc)
def _alloc(m: Machine, o: tile.Alloc) -> tuple[Memory]:
    per_lane = o.type.space == "local" and m.lanes > 0
    shape = (m.lanes, *o.type.static_shape) if per_lane else o.type.static_shape
    dtype = num.numpy_dtype(o.type.dtype)
    if o.type.dtype.is_float:
        data = np.full(shape, np.nan).astype(dtype)
    else:
        data = m.noise.integers(0, 2 if o.type.dtype == t.BOOL else 8, shape).astype(dtype)
    return (Memory(data, o.type, per_lane),)


def _locate(m: Machine, where: Value, indices: Sequence[Value]) -> tuple[Memory, Any, Any]:
    """(memory, index, inside): NumPy indices clamped into the buffer, and which lanes are in
    bounds.
    """
    memory = m.memory(where)
    got = [m.get(i).astype(np.int64) for i in indices]
    shape = memory.data.shape[1:] if memory.per_lane else memory.data.shape
    inside = np.asarray(True)
    for i, extent in zip(got, shape, strict=True):
        inside = inside & (i >= 0) & (i < extent)
    if memory.type.space != "global" and not np.all(inside | ~m.active() if m.lanes else inside):
        raise InterpError(f"index out of bounds of {where}: {[i.tolist() for i in got]}"[:300])
    clamped: list[Any] = [np.where(inside, i, 0) for i in got]
    if memory.per_lane:
        clamped.insert(0, np.arange(m.lanes))
    return memory, tuple(clamped), inside


@executes(tile.Load)
def _load(m: Machine, o: tile.Load) -> Results:
    memory, index, inside = _locate(m, o.source, o.indices)
    if memory.data.size == 0:
        return (np.broadcast_to(memory.safe, inside.shape),)
    got = memory.data[index]
    return (np.asarray(got) if memory.safe is None else np.where(inside, got, memory.safe),)


@executes(tile.Store)
def _store(m: Machine, o: tile.Store) -> None:
    memory, index, inside = _locate(m, o.dest, o.indices)
    value = m.get(o.value)
    shape = np.broadcast_shapes(inside.shape, value.shape, *(np.shape(i) for i in index))
    if m.lanes and m.mask is not None:
        shape = (m.lanes,)
        inside = inside & m.mask
    inside = np.broadcast_to(inside, shape)
    if not shape:
        if inside:
            memory.data[index] = value
        return
    where = tuple(np.broadcast_to(i, shape)[inside] for i in index)
    memory.data[where] = np.broadcast_to(value, shape)[inside]


def read_region(m: Machine, r: Region) -> np.ndarray:
    """The elements of a region, shaped as its extents, with the safe value out of a global
    tensor's bounds.
    """
    memory = m.memory(r.buffer)
    index, inside = _places(m, r, memory)
    if memory.type.space != "global":
        return memory.data[index]
    if memory.data.size == 0:
        return np.full(r.extents, memory.safe)
    return np.where(inside, memory.data[index], memory.safe)


def write_region(m: Machine, r: Region, values: np.ndarray) -> None:
    """Write `values` (shaped as its extents) onto a region; out of a global tensor's bounds
    nothing happens.
    """
    memory = m.memory(r.buffer)
    index, inside = _places(m, r, memory)
    full = tuple(np.broadcast_to(i, r.extents)[inside] for i in index)
    memory.data[full] = np.broadcast_to(values, r.extents)[inside]


def _places(m: Machine, r: Region, memory: Memory) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    if memory.per_lane:
        raise InterpError(f"a tile op on {r.buffer}, which each lane has its own copy of")
    starts = [m.scalar(v) for v in r.offsets]
    inside = np.ones(r.extents, bool)
    index = []
    for d, (start, extent) in enumerate(zip(starts, r.extents, strict=True)):
        shape = [1] * len(starts)
        shape[d] = extent
        i = (start + np.arange(extent)).reshape(shape)
        ok = (i >= 0) & (i < memory.data.shape[d])
        inside = inside & ok
        index.append(np.where(ok, i, 0))
    if memory.type.space != "global" and not inside.all():
        raise InterpError(f"region {starts} + {list(r.extents)} out of bounds of {r.buffer}")
    return tuple(index), inside


def _each_lane(m: Machine, buffers: Sequence[Value]) -> Iterator[Machine]:
    """`m` itself, or one machine per active lane where a buffer exists once per lane."""
    if not any(m.memory(b).per_lane for b in buffers):
        yield m
        return
    for lane in np.flatnonzero(m.active()):
        yield m.of_lane(lane)


@executes(Op)
def _evaluate(m: Machine, o: Op) -> Results | None:
    """Any other op: what it computes of what it reads is its result, or goes where it writes."""
    if o.pure:
        return (o.evaluate(*map(m.get, o.operands)),)
    effects = [e for e in o.effects() if e.region is not None]
    written = [_boxed(e.region) for e in effects if e.writes]
    read = {e.buffer for e in effects if e.reads}
    for one in _each_lane(m, [r.buffer for r in written] + [*read]):
        given: dict[str, Any] = {}
        for name in o.operand_fields:
            x = getattr(o, name)
            if isinstance(x, Region) and x.buffer in read:
                given[name] = read_region(one, x)
            elif isinstance(x, Value) and isinstance(x.type, t.BufferType) and x in read:
                given[name] = one.memory(x).data
            elif isinstance(x, Value) and not isinstance(x.type, t.BufferType):
                given[name] = one.get(x)
        made = o.evaluate(**given)
        for r, values in zip(written, made if isinstance(made, tuple) else (made,), strict=True):
            if r.offsets:
                write_region(one, r, values)
            else:
                one.memory(r.buffer).data[...] = values
    return None


def _boxed(r: Region | None) -> Region:
    assert r is not None
    return r


@executes(tile.DeviceAssert)
def _device_assert(m: Machine, o: tile.DeviceAssert) -> None:
    assert np.all(m.get(o.cond) | ~m.active()), o.text


@executes(tile.Print)
def _print(m: Machine, o: tile.Print) -> None:
    if o.buffer is not None:
        m.printed.append(f"{o.format}{m.memory(o.buffer).data}")
        return
    values = [m.get(v) for v in o.values]
    if all(v.ndim == 0 for v in values):
        m.printed.append(o.format.format(*(v.item() for v in values)))
        return
    for lane in np.flatnonzero(m.active()):
        m.printed.append(o.format.format(*(lane_of(v, lane).item() for v in values)))


@executes(tile.AnnotateSafeValue)
def _annotate_safe_value(m: Machine, o: tile.AnnotateSafeValue) -> None:
    memory = m.memory(o.dest)
    m.env[o.dest] = Memory(memory.data, memory.type, memory.per_lane, m.get(o.value))


@executes(tile.AnnotateLayout)
@executes(tile.UseSwizzle)
@executes(schedule.Barrier)
@executes(schedule.WarpSync)
@executes(schedule.ProxyFence)
def _nothing(m: Machine, o: Op) -> None:
    """A wish about speed, or a wait: threads run in lockstep, so they are all here."""
