"""Buffers, tiles and printing in the reference interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import interp_scalar as num
import numpy as np
from interp_machine import InterpError, Machine, Memory, Results, executes, lane_of

from tilec.ir import types as t
from tilec.ir.core import Op, Region, Value
from tilec.ir.ops import schedule, tile


@executes(tile.Alloc)
def _alloc(m: Machine, o: tile.Alloc) -> tuple[Memory]:
    per_lane = o.type.space == "local" and m.lanes > 0
    shape = (m.lanes, *o.type.static_shape) if per_lane else o.type.static_shape
    dtype = num.NUMPY[o.type.dtype]
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


@executes(tile.Copy)
def _copy(m: Machine, o: tile.Copy) -> None:
    for one in _each_lane(m, (o.source.buffer, o.dest.buffer)):
        got = read_region(one, o.source)
        values = num.cast(got, o.source.dtype, o.dest.dtype).reshape(o.dest.extents)
        write_region(one, o.dest, values)


@executes(tile.Fill)
def _fill(m: Machine, o: tile.Fill) -> None:
    for one in _each_lane(m, (o.dest.buffer,)):
        write_region(one, o.dest, one.get(o.value))


@executes(tile.Gemm)
def _gemm(m: Machine, o: tile.Gemm) -> None:
    rows, cols, depth = o.shape
    a = read_region(m, o.a).reshape(o.a.extents[-2:])
    b = read_region(m, o.b).reshape(o.b.extents[-2:])
    a, b = a.T if o.transpose_a else a, b.T if o.transpose_b else b
    assert a.shape == (rows, depth) and b.shape == (depth, cols)
    c = m.memory(o.c)
    if o.c.dtype.is_int:
        c_old = np.zeros_like(c.data) if o.clear else c.data
        done = c_old.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)
    else:
        if o.allow_tf32 and o.a.dtype == t.FLOAT32:
            a, b = num.round_tf32(a), num.round_tf32(b)
        c_old = np.zeros_like(c.data) if o.clear else c.data
        done = c_old.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
    c.data[...] = done.astype(c.data.dtype)


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
