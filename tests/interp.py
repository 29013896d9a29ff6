"""The reference interpreter of the TILE IR: what a kernel means, in NumPy, without a compiler.

`run_tile(func, args)` executes every block of the grid in order and changes the arrays in `args`.
It is the oracle that passes and code generators are tested against, so it follows the docstrings
of `tilec.ir.ops` literally and is slow where slow is simple.

The iterations of a `parallel` run in lockstep as lanes: inside one, a scalar is an array over the
lanes, a condition is a mask, and a `local` buffer allocated there exists once per lane. A kernel
that asks for its thread index runs the same way with its threads as the lanes (enough for programs
free of races). On-chip memory starts as noise, an index out of an on-chip buffer raises
`InterpError`.

A new op is one function decorated with `@executes(Class)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import interp_scalar as num
import numpy as np

from tilec.ir import types as t
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.ops import control, scalar, tile

Args = Mapping[str, Any]
Results = tuple[np.ndarray, ...]


class InterpError(Exception):
    """The program did something that has no meaning (an on-chip access out of bounds, …)."""


@dataclass
class Memory:
    """One buffer's elements. `per_lane`: the first axis is the lane. `safe`: what reads out of
    bounds give.
    """

    data: np.ndarray
    type: t.BufferType
    per_lane: bool = False
    safe: Any = None

    def of_lane(self, lane: int) -> Memory:
        return Memory(self.data[lane], self.type, False, self.safe) if self.per_lane else self


@dataclass
class Machine:
    """One block's state. `lanes` is 0 where one thread of control runs; `mask` (or None) the
    lanes that do.
    """

    func: Func
    env: dict[Value, Any]
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    threads: int
    lanes: int
    noise: np.random.Generator
    printed: list[str]
    mask: np.ndarray | None = None

    def get(self, value: Value) -> np.ndarray:
        return self.env[value]

    def memory(self, value: Value) -> Memory:
        return self.env[value]

    def active(self) -> np.ndarray:
        return np.ones(self.lanes, bool) if self.mask is None else self.mask

    def scalar(self, value: Value) -> int:
        """A value that must be the same in all active lanes, as an int."""
        got = self.get(value)
        if got.ndim == 0:
            return int(got)
        found = np.unique(got[self.active()])
        if found.size != 1:
            raise InterpError(
                f"{value} differs between lanes where one value is needed: {found[:4]}"
            )
        return int(found[0])

    @contextmanager
    def masked(self, mask: np.ndarray) -> Iterator[None]:
        kept, self.mask = self.mask, mask
        yield
        self.mask = kept

    def run(self, block: Block) -> Results:
        """Execute a region; the values its Yield hands over."""
        for o in block.ops:
            if isinstance(o, control.Yield):
                return tuple(self.get(v) for v in o.values)
            execute = EXECUTE.get(type(o))
            if execute is None:
                raise InterpError(f"the interpreter does not know {o.opname} (line {o.loc.line})")
            got = execute(self, o)
            for r, x in zip(o.results, got or (), strict=True):
                self.env[r] = x
        return ()


EXECUTE: dict[type[Op], Callable[[Machine, Any], Sequence[Any] | None]] = {}


def executes(cls: type[Op]) -> Callable[[Any], Any]:
    """The decorated function executes ops of class `cls`: (machine, op) -> values of its
    results.
    """

    def register(fn: Any) -> Any:
        EXECUTE[cls] = fn
        return fn

    return register


# --- entry --------------------------------------------------------------------------------------


def run_tile(func: Func, args: Args, grid: Sequence[int] | None = None, seed: int = 0) -> list[str]:
    """Run `func` for every block; arrays in `args` (by the user's parameter names) are changed in
    place.

    `grid` is needed only where the kernel leaves it to the launch. Returns the lines printed.
    """
    with np.errstate(all="ignore"):
        env = bind(func, args)
        extents = tuple(int(v) for v in grid or _grid(func, env))
        if not extents:
            raise InterpError("the kernel leaves its grid to the launch: give grid=")
        full = (*extents, 1, 1)[:3]
        threads = int(func.attrs.get("threads") or 128)
        lanes = threads if any(isinstance(o, scalar.ThreadIndex) for o in walk(func.body)) else 0
        noise = np.random.default_rng(seed)
        printed: list[str] = []
        for z, y, x in product(range(full[2]), range(full[1]), range(full[0])):
            machine = Machine(func, dict(env), (x, y, z), full, threads, lanes, noise, printed)
            machine.run(func.body)
        return printed


def _grid(func: Func, env: dict[Value, Any]) -> tuple[int, ...]:
    machine = Machine(func, dict(env), (0, 0, 0), (1, 1, 1), 1, 0, np.random.default_rng(0), [])
    return tuple(int(v) for v in machine.run(func.grid))


def bind(func: Func, args: Args) -> dict[Value, Any]:
    """The environment of a kernel's parameters."""
    env: dict[Value, Any] = {}
    for p in func.params:
        got = args[p.arg]
        match p.role:
            case "tensor":
                kind = p.value.buffer
                if got.dtype != num.NUMPY[kind.dtype] or got.ndim != kind.rank:
                    raise InterpError(f"{p.arg}: {got.dtype}{got.shape} given for {kind}")
                for have, want in zip(got.shape, kind.shape):
                    if isinstance(want, int) and have != want:
                        raise InterpError(f"{p.arg}: {got.shape} given for {kind}")
                env[p.value] = Memory(got, kind, safe=np.zeros((), got.dtype))
            case "scalar":
                env[p.value] = num.array(got, p.value.dtype)
            case "size":
                env[p.value] = num.array(got.shape[p.dim], p.value.dtype)
            case "stride":
                env[p.value] = num.array(got.strides[p.dim] // got.itemsize, p.value.dtype)
            case _:
                raise InterpError(f"{p.arg}: no meaning for a parameter of role {p.role!r}")
    return env


# --- scalar ops ---------------------------------------------------------------------------------


@executes(scalar.Const)
def _const(m: Machine, o: scalar.Const) -> Results:
    if o.dtype.is_float and o.dtype not in num.SATURATING:
        return (num.cast(np.asarray(o.value, np.float64), t.FLOAT64, o.dtype),)
    return (np.asarray(o.value).astype(num.NUMPY[o.dtype]),)


@executes(scalar.Binary)
def _binary(m: Machine, o: scalar.Binary) -> Results:
    return (num.binary(o.kind, m.get(o.lhs), m.get(o.rhs), o.lhs.dtype),)


@executes(scalar.Unary)
def _unary(m: Machine, o: scalar.Unary) -> Results:
    return (num.unary(o.kind, m.get(o.operand), o.operand.dtype),)


@executes(scalar.Fma)
def _fma(m: Machine, o: scalar.Fma) -> Results:
    return (num.fma(m.get(o.a), m.get(o.b), m.get(o.c), o.a.dtype),)


@executes(scalar.Compare)
def _compare(m: Machine, o: scalar.Compare) -> Results:
    return (num.compare(o.kind, m.get(o.lhs), m.get(o.rhs)),)


@executes(scalar.Select)
def _select(m: Machine, o: scalar.Select) -> Results:
    return (np.where(m.get(o.cond), m.get(o.on_true), m.get(o.on_false)),)


@executes(scalar.Cast)
def _cast(m: Machine, o: scalar.Cast) -> Results:
    return (num.cast(m.get(o.operand), o.operand.dtype, o.dtype),)


@executes(scalar.Bitcast)
def _bitcast(m: Machine, o: scalar.Bitcast) -> Results:
    return (num.bitcast(m.get(o.operand), o.dtype),)


@executes(scalar.BlockIndex)
def _block_index(m: Machine, o: scalar.BlockIndex) -> Results:
    return (np.asarray(m.block[o.dim], np.int32),)


@executes(scalar.GridSize)
def _grid_size(m: Machine, o: scalar.GridSize) -> Results:
    return (np.asarray(m.grid[o.dim], np.int32),)


@executes(scalar.ThreadIndex)
def _thread_index(m: Machine, o: scalar.ThreadIndex) -> Results:
    return (np.arange(m.threads, dtype=np.int32),)


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


@executes(control.Parallel)
def _parallel(m: Machine, o: control.Parallel) -> None:
    if m.lanes and any(
        (x.per_lane if isinstance(x, Memory) else x.ndim)
        for inner in walk(o.body)
        for v in inner.operands
        if (x := m.env.get(v)) is not None
    ):
        for lane in np.flatnonzero(m.active()):
            env = {
                v: x.of_lane(lane) if isinstance(x, Memory) else _of_lane(x, lane)
                for v, x in m.env.items()
            }
            one = Machine(m.func, env, m.block, m.grid, m.threads, 0, m.noise, m.printed)
            _parallel(one, o)
        return
    lanes = math.prod(o.extents)
    if lanes == 0:
        return
    inner_machine = Machine(
        m.func, dict(m.env), m.block, m.grid, m.threads, lanes, m.noise, m.printed
    )
    indices = np.indices(o.extents, np.int32).reshape(len(o.extents), lanes)
    _bind_args(inner_machine, o.body.args, list(indices))
    inner_machine.run(o.body)


def _of_lane(x: np.ndarray, lane: int) -> np.ndarray:
    return x[lane] if x.ndim else x


# --- memory -------------------------------------------------------------------------------------


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


def read_region(
    m: Machine, where: Value, offsets: Sequence[Value], extents: Sequence[int]
) -> np.ndarray:
    """The elements of a region, shaped as `extents`, with the safe value out of a global
    tensor's bounds.
    """
    memory = m.memory(where)
    index, inside = _region(m, where, memory, offsets, extents)
    if memory.type.space != "global":
        return memory.data[index]
    if memory.data.size == 0:
        return np.full(extents, memory.safe)
    return np.where(inside, memory.data[index], memory.safe)


def write_region(
    m: Machine, where: Value, offsets: Sequence[Value], extents: Sequence[int], values: np.ndarray
) -> None:
    """Write `values` (shaped as `extents`) onto a region; out of a global tensor's bounds
    nothing happens.
    """
    memory = m.memory(where)
    index, inside = _region(m, where, memory, offsets, extents)
    full = tuple(np.broadcast_to(i, extents)[inside] for i in index)
    memory.data[full] = np.broadcast_to(values, extents)[inside]


def _region(
    m: Machine, where: Value, memory: Memory, offsets: Sequence[Value], extents: Sequence[int]
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    if memory.per_lane:
        raise InterpError(f"a tile op on {where}, which each lane has its own copy of")
    starts = [m.scalar(v) for v in offsets]
    inside = np.ones(tuple(extents), bool)
    index = []
    for d, (start, extent) in enumerate(zip(starts, extents, strict=True)):
        shape = [1] * len(starts)
        shape[d] = extent
        i = (start + np.arange(extent)).reshape(shape)
        ok = (i >= 0) & (i < memory.data.shape[d])
        inside = inside & ok
        index.append(np.where(ok, i, 0))
    if memory.type.space != "global" and not inside.all():
        raise InterpError(f"region {starts} + {list(extents)} out of bounds of {where}")
    return tuple(index), inside


def _each_lane(m: Machine, buffers: Sequence[Value]) -> Iterator[Machine]:
    """`m` itself, or one machine per active lane where a buffer exists once per lane."""
    if not any(m.memory(b).per_lane for b in buffers):
        yield m
        return
    for lane in np.flatnonzero(m.active()):
        env = {
            v: x.of_lane(lane) if isinstance(x, Memory) else _of_lane(x, lane)
            for v, x in m.env.items()
        }
        yield Machine(m.func, env, m.block, m.grid, m.threads, 0, m.noise, m.printed)


@executes(tile.Copy)
def _copy(m: Machine, o: tile.Copy) -> None:
    for one in _each_lane(m, (o.source, o.dest)):
        got = read_region(one, o.source, o.source_offsets, o.source_extents)
        values = num.cast(got, o.source.dtype, o.dest.dtype).reshape(o.dest_extents)
        write_region(one, o.dest, o.dest_offsets, o.dest_extents, values)


@executes(tile.Fill)
def _fill(m: Machine, o: tile.Fill) -> None:
    for one in _each_lane(m, (o.dest,)):
        write_region(one, o.dest, o.offsets, o.extents, one.get(o.value))


@executes(tile.Gemm)
def _gemm(m: Machine, o: tile.Gemm) -> None:
    rows, cols, depth = o.shape
    a = read_region(m, o.a, o.a_offsets, o.a_extents).reshape(o.a_extents[-2:])
    b = read_region(m, o.b, o.b_offsets, o.b_extents).reshape(o.b_extents[-2:])
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
        m.printed.append(o.format.format(*(_of_lane(v, lane).item() for v in values)))


@executes(tile.AnnotateSafeValue)
def _annotate_safe_value(m: Machine, o: tile.AnnotateSafeValue) -> None:
    memory = m.memory(o.dest)
    m.env[o.dest] = Memory(memory.data, memory.type, memory.per_lane, m.get(o.value))


@executes(tile.AnnotateLayout)
@executes(tile.UseSwizzle)
def _nothing(m: Machine, o: Op) -> None:
    """A wish about speed: no meaning."""
