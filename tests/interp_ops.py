"""Scalar ops and control flow of the reference interpreter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from interp_machine import Machine, Memory, Results, executes

from tilec.ir import semantics as num
from tilec.ir.core import Value, walk
from tilec.ir.ops import control, scalar, schedule, thread

WARP_SIZE = 32


@executes(scalar.BlockIndex)
def _block_index(m: Machine, o: scalar.BlockIndex) -> Results:
    return (np.asarray(m.block[o.dim], np.int32),)


@executes(scalar.GridSize)
def _grid_size(m: Machine, o: scalar.GridSize) -> Results:
    return (np.asarray(m.grid[o.dim], np.int32),)


@executes(scalar.ThreadIndex)
def _thread_index(m: Machine, o: scalar.ThreadIndex) -> Results:
    return (np.arange(m.threads, dtype=np.int32),)


@executes(thread.Lane)
def _lane(m: Machine, o: thread.Lane) -> Results:
    return (np.arange(m.threads, dtype=np.int32) % WARP_SIZE,)


@executes(thread.Warp)
def _warp(m: Machine, o: thread.Warp) -> Results:
    return (np.arange(m.threads, dtype=np.int32) // WARP_SIZE - m.first_warp,)


# --- control flow -------------------------------------------------------------------------------


def _bind_args(m: Machine, args: Sequence[Value], values: Sequence[np.ndarray]) -> None:
    m.env.update(zip(args, values, strict=True))


def _merge(mask: np.ndarray, new: Sequence[np.ndarray], old: Sequence[np.ndarray]) -> Results:
    return tuple(np.where(mask, a, b) for a, b in zip(new, old, strict=True))


@executes(control.For)
def _for(m: Machine, o: control.For) -> Results:
    index, hi, step = m.get(o.lo), m.get(o.hi), m.get(o.step)
    carried: Results = tuple(m.get(v) for v in o.inits)
    while True:
        alive = np.asarray(np.where(step > 0, index < hi, index > hi))
        if alive.ndim == 0:
            if not alive:
                return carried
            _bind_args(m, o.body.args, (index, *carried))
            carried = m.run(o.body)
        else:
            alive = alive & m.active()
            if not alive.any():
                return carried
            _bind_args(m, o.body.args, (index, *carried))
            with m.masked(alive):
                carried = _merge(alive, m.run(o.body), carried)
        index = num.binary("add", index, step, o.lo.dtype)


@executes(control.While)
def _while(m: Machine, o: control.While) -> Results:
    carried: Results = tuple(m.get(v) for v in o.inits)
    kept = m.mask
    while True:
        _bind_args(m, o.cond.args, carried)
        (alive,) = m.run(o.cond)
        if alive.ndim == 0:
            if not alive:
                break
            _bind_args(m, o.body.args, carried)
            carried = m.run(o.body)
        else:
            m.mask = alive & m.active()
            if not m.mask.any():
                break
            _bind_args(m, o.body.args, carried)
            carried = _merge(m.mask, m.run(o.body), carried)
    m.mask = kept
    return carried


@executes(control.If)
def _if(m: Machine, o: control.If) -> Results:
    cond = m.get(o.cond)
    if cond.ndim == 0:
        return m.run(o.then if cond else o.orelse)
    taken, other = cond & m.active(), ~cond & m.active()
    results: list[Results] = []
    for mask, block in ((taken, o.then), (other, o.orelse)):
        if mask.any():
            with m.masked(mask):
                results.append(m.run(block))
    return _merge(taken, results[0], results[1]) if len(results) == 2 else results[0]


@executes(schedule.Scope)
def _scope(m: Machine, o: schedule.Scope) -> None:
    warps = np.arange(m.threads) // WARP_SIZE
    inside = (warps >= o.first_warp) & (warps < o.first_warp + o.warps) & m.active()
    if not inside.any():
        return
    outer, m.first_warp = m.first_warp, o.first_warp
    with m.masked(inside):
        m.run(o.body)
    m.first_warp = outer


@executes(control.Parallel)
def _parallel(m: Machine, o: control.Parallel) -> None:
    if m.lanes and any(
        (x.per_lane if isinstance(x, Memory) else x.ndim)
        for inner in walk(o.body)
        for v in inner.operands
        if (x := m.env.get(v)) is not None
    ):
        for lane in np.flatnonzero(m.active()):
            _parallel(m.of_lane(lane), o)
        return
    lanes = math.prod(o.extents)
    if lanes == 0:
        return
    inner_machine = m.fork(dict(m.env), lanes)
    indices = np.indices(o.extents, np.int32).reshape(len(o.extents), lanes)
    _bind_args(inner_machine, o.body.args, list(indices))
    inner_machine.run(o.body)
