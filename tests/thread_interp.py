"""Executes LOWERED functions on the CPU, all threads of a scope in lockstep: what the passes made,
without LLVM.

`run_threads(func, args)` runs every block, the blocks of a cluster together. Scalars are arrays
over the scope's threads, shared memory is one array of bytes that starts as noise, scopes are
generators that take turns where they wait on an mbarrier. An access outside of a tensor raises, so
a missing guard is an error and not a number. It knows nothing of races: it checks addresses,
layouts, guards, rings and instruction operands."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from interp import Args, _grid, bind
from race_check import Clock, RaceCheck

from tilec.ir import ops
from tilec.ir import semantics as num
from tilec.ir import types as t
from tilec.ir.clusters import cluster_of, launched_cluster
from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.instr import find_instruction
from tilec.ir.layout import Layout
from tilec.ir.ops import atomicrmw
from tilec.sim.memory import COMBINED
from tilec.target import Target

Threads = np.ndarray


class BadAccess(Exception):
    """A thread touched what it must not."""


class _Shared:
    """A block's shared memory, by byte address."""

    def __init__(self, size: int, noise: np.random.Generator) -> None:
        self.bytes = noise.integers(0, 256, size + 16, np.uint8)

    def load(self, address: np.ndarray, dtype: t.DType) -> np.ndarray:
        raw = self.bytes[address[..., None] + np.arange(dtype.bytes)]
        return np.ascontiguousarray(raw).view(num.numpy_dtype(dtype))[..., 0]

    def store(self, address: np.ndarray, values: np.ndarray, dtype: t.DType) -> None:
        raw = np.ascontiguousarray(values.astype(num.numpy_dtype(dtype)))[..., None].view(np.uint8)
        self.bytes[address[..., None] + np.arange(dtype.bytes)] = raw


class _Barrier:
    def __init__(self) -> None:
        self.count = self.pending = self.tx = self.phase = 0

    def settle(self) -> None:
        if self.count and self.pending == 0 and self.tx == 0:
            self.phase ^= 1
            self.pending = self.count


class _Machine:
    """One block: memory, barriers, and the values of one scope's threads."""

    def __init__(
        self,
        func: Func,
        target: Target,
        env: dict[Value, Any],
        args: Args,
        block: tuple[int, ...],
        grid: tuple[int, ...],
        seed: int,
    ) -> None:
        self.func, self.target, self.args = func, target, args
        self.noise = np.random.default_rng(seed)
        self.block, self.grid = block, grid
        self.shared = _Shared(int(func.attrs["shared_bytes"]), self.noise)
        shared = (o.type.dtype for o in func.body.every(ops.Alloc) if o.type.space == "shared")
        self.granule = min((d.bytes for d in shared), default=1)  # is accessed as a whole
        self.races = RaceCheck(len(self.shared.bytes) // self.granule)
        self.agents = 0
        self.barriers: dict[tuple[Value, int], _Barrier] = {}
        self.turns: Counter[int] = Counter()  # passes less waits of each named barrier
        self.passes = 0  # of all of them: two groups may hand a turn to and fro
        self.address: dict[Value, Any] = {}
        self.base = env
        self.tensors: dict[str, tuple[np.ndarray, np.ndarray, int]] = {}
        self.cluster = launched_cluster(func)
        self.peers: list[_Machine] = [self]  # the blocks of its cluster, by number
        self.meeting = [0, 0]  # threads at the cluster barrier, times it has opened

    def agent(self, first_warp: int, warps: int) -> _Agent:
        self.agents += 1
        return _Agent(self, first_warp, warps, dict(self.base))


_MAY_WAIT = (
    ops.For, ops.While, ops.If, ops.Scope, ops.MbarrierWait, ops.ClusterBarrier, ops.OrderedWait,
)  # fmt: skip


_NUMBERS = {ops.Binary, ops.Unary, ops.Fma, ops.Compare, ops.Cast}


@functools.cache
def _places(layout: Layout, *owners: str) -> tuple[np.ndarray, ...]:
    """Rows and columns of a matrix that registers hold."""
    return tuple(np.moveaxis(layout.table(*owners), -1, 0))


class _Agent:
    def __init__(
        self, m: _Machine, first_warp: int, warps: int, env: dict[Value, Any], group: int = 0
    ) -> None:
        self.m = m
        self.group, self.consumer_groups = group, 1
        self.size = m.target.warp_size
        self.n = warps * self.size
        self.lanes = np.arange(self.n)
        self.env = env
        self.constants: dict[Op, np.ndarray] = {}
        self.first = first_warp
        self.mask = np.ones(self.n, bool)
        self.frags: dict[Value, np.ndarray] = {}
        self.clock = Clock(m.agents, self.size)
        self.races = m.races

    @property
    def mask(self) -> np.ndarray:
        """The threads that are here; `whole`: all of them."""
        return self._mask

    @mask.setter
    def mask(self, mask: np.ndarray) -> None:
        self._mask, self.whole = mask, bool(mask.all())

    def get(self, v: Value) -> np.ndarray:
        got = self.env[v]
        if type(got) is not np.ndarray or not got.ndim:
            one = np.asarray(got)
            got = self.env[v] = np.full(self.n, one, one.dtype)
        return got

    def one(self, v: Value) -> int:
        """A value that all active threads agree on."""
        got = self.get(v) if self.whole else self.get(v)[self.mask]
        if not (got == got[0]).all():
            raise BadAccess(f"%{v.name} differs among threads")
        return int(got[0])

    def run(self, block: Block) -> Iterator[None]:
        for o in block.ops:
            if isinstance(o, _MAY_WAIT):
                yield from self.op(o)
            elif not isinstance(o, ops.Yield):
                self.simple(o)

    def set(self, o: Op, value: Any) -> None:
        self.env[o.results[0]] = value

    def op(self, o: Op) -> Iterator[None]:
        match o:
            case ops.For():
                yield from self.loop(o)
            case ops.While():
                yield from self.repeat(o)
            case ops.If():
                yield from self.branch(o)
            case ops.Scope():
                raise AssertionError("scopes are started by the machine")
            case ops.MbarrierWait():
                b = self.barrier(o.barrier, o.stage)
                parity = self.one(o.parity)
                while b.phase == parity:
                    yield
            case ops.ClusterBarrier():
                if not self.mask.all():
                    raise BadAccess("a cluster barrier that not all threads reach")
                at = self.m.peers[0].meeting
                at[0] += self.n
                opened = at[1]
                if at[0] == len(self.m.peers) * int(self.m.func.attrs["launch_threads"]):
                    at[:] = 0, opened + 1
                while at[1] == opened:
                    yield
            case ops.OrderedWait():
                turn = self.m.turns
                turn[o.id + self.group] -= 1  # -1: it waits, 0: both have been here
                while turn[o.id + self.group] < 0:
                    yield

    def loop(self, o: ops.For) -> Iterator[None]:
        index, hi, step = bounds = self.get(o.lo), self.get(o.hi), self.get(o.step)
        carried = [self.get(v) for v in o.inits]
        outer = self.mask
        alike = self.whole and all((x == x[0]).all() for x in bounds)
        for n in range(*(int(x[0]) for x in bounds)) if alike else ():
            self.env[o.body.args[0]] = np.full(self.n, n, index.dtype)
            self.env.update(zip(o.body.args[1:], carried))
            yield from self.run(o.body)
            carried = [self.get(v) for v in ops.yielded(o.body)]
        while not alike:
            mask = outer & (index < hi)
            if not mask.any():
                break
            self.mask = mask
            self.env[o.body.args[0]] = index
            for a, v in zip(o.body.args[1:], carried):
                self.env[a] = v
            yield from self.run(o.body)
            got = [self.get(v) for v in ops.yielded(o.body)]
            carried = [np.where(mask, g, c) for g, c in zip(got, carried)]
            index = np.where(mask, index + step, index)
        self.mask = outer
        for r, v in zip(o.results, carried):
            self.env[r] = v

    def repeat(self, o: ops.While) -> Iterator[None]:
        carried = [self.get(v) for v in o.inits]
        outer = self.mask
        active = outer.copy()
        while True:
            for a, v in zip(o.cond.args, carried):
                self.env[a] = v
            self.mask = active
            yield from self.run(o.cond)
            active = active & self.get(ops.yielded(o.cond)[0]).astype(bool)
            if not active.any():
                break
            self.mask = active
            for a, v in zip(o.body.args, carried):
                self.env[a] = v
            yield from self.run(o.body)
            got = [self.get(v) for v in ops.yielded(o.body)]
            carried = [np.where(active, g, c) for g, c in zip(got, carried)]
        self.mask = outer
        for r, v in zip(o.results, carried):
            self.env[r] = v

    def branch(self, o: ops.If) -> Iterator[None]:
        outer, cond = self.mask, self.get(o.cond).astype(bool)
        sides = []
        for region, mask in ((o.then, outer & cond), (o.orelse, outer & ~cond)):
            if mask.any():
                self.mask = mask
                yield from self.run(region)
                sides.append([self.get(v) for v in ops.yielded(region)])
            else:
                sides.append(None)
        self.mask = outer
        for i, r in enumerate(o.results):
            a, b = (s[i] if s else None for s in sides)
            if a is None or b is None:
                self.env[r] = b if a is None else a
            else:
                self.env[r] = np.where(cond if np.ndim(a) == 1 else cond[:, None], a, b)

    # --- one op ---

    def simple(self, o: Op) -> None:
        get, put, lanes = self.get, self.set, self.lanes
        if type(o) in _NUMBERS:
            return put(o, o.evaluate(*map(get, o.operands)))
        if isinstance(o, ops.Const):
            if o not in self.constants:
                put(o, o.evaluate())
                self.constants[o] = get(o.result)
            return put(o, self.constants[o])
        if isinstance(o, ops.MemLoad | ops.MemStore):
            return self.memory(o)
        if isinstance(o, ops.RegRead):
            return put(o, self.frags[o.fragment][lanes, get(o.index)])
        if isinstance(o, ops.RegWrite):
            return self.write(o.fragment, get(o.index), get(o.value))
        match o:
            case ops.AndOr():
                put(o, o.evaluate(get(o.value)))
            case ops.Bitcast() if o.lanes > 1 or get(o.operand).ndim > 1:
                bits = np.ascontiguousarray(get(o.operand)).reshape(self.n, -1)
                got = bits.view(num.numpy_dtype(o.dtype))
                put(o, got if o.lanes > 1 else got[:, 0])
            case ops.Bitcast():
                put(o, o.evaluate(get(o.operand)))
            case ops.Select():
                a, b, cond = get(o.on_true), get(o.on_false), get(o.cond).astype(bool)
                put(o, np.where(cond if np.ndim(a) == 1 else cond[:, None], a, b))
            case ops.ShuffleXor():
                put(o, self.shuffle(o.value, lanes % self.size ^ o.mask))
            case ops.Shuffle():
                put(o, self.shuffle(o.value, get(o.lane)))
            case ops.BlockIndex():
                put(o, np.int32(self.m.block[o.dim]))
            case ops.GridSize():
                put(o, np.int32(self.m.grid[o.dim]))
            case ops.ClusterIndex():
                put(o, np.int32(self.m.block[o.dim] % self.m.cluster[o.dim]))
            case ops.Lane():
                put(o, (lanes % self.size).astype(np.int32))
            case ops.Warp():
                put(o, (lanes // self.size).astype(np.int32))
            case ops.ThreadIndex():
                first = self.first if self.consumer_groups == 1 else 0
                put(o, (lanes + first * self.size).astype(np.int32))
            case ops.Lookup():
                put(o, np.asarray(o.table, np.int32)[get(o.index)])
            case ops.Alloc():
                self.alloc(o)
            case ops.RingStage():
                base, per = self.m.address[o.root][:1], o.root.buffer.stage_bytes
                self.m.address[o.result] = base
                self.env[o.result] = get(o.stage) * per + self.env.get(o.root, 0)
            case ops.Load():
                at = self.flat(o.source, o.indices)
                put(o, self.frags[o.source][lanes, at])
            case ops.Store():
                at = self.flat(o.dest, o.indices)
                self.write(o.dest, at, get(o.value))
            case ops.Pack():
                put(o, np.stack([get(v) for v in o.values], -1))
            case ops.Extract():
                self.env[o.result] = self.env[o.vector][:, o.index]
            case ops.Misaligned():
                put(o, self.misaligned(o))
            case ops.Realign():
                put(o, self.realign(o))
            case ops.ClusterLoad():
                address = self.where(o.source, get(o.offset)[:, None] + np.arange(o.lanes))
                if (address[:, 0] % (o.lanes * o.source.dtype.bytes)).any():
                    raise BadAccess(f"misaligned access to {o.source.type}")
                got = self.m.peers[self.one(o.block)].shared.load(address, o.source.dtype)
                put(o, got[:, 0] if o.lanes == 1 else got)
            case ops.MemAtomic():
                self.count(o)
            case ops.CpAsync():
                self.cp_async(o)
            case ops.Ldmatrix():
                self.ldmatrix(o)
            case ops.Stmatrix():
                self.stmatrix(o)
            case ops.Mma():
                self.mma(o)
            case ops.Wgmma():
                self.wgmma(o)
            case ops.TmaLoad() | ops.TmaStore():
                self.tma(o)
            case ops.MbarrierInit():
                for s in range(o.barrier.buffer.size):
                    b = self.m.barriers.setdefault((o.barrier, s), _Barrier())
                    b.count = b.pending = o.count
            case ops.MbarrierExpect():
                b = self.barrier(o.barrier, o.stage)
                b.tx += o.bytes
                b.pending -= 1
                b.settle()
            case ops.MbarrierArrive():
                mask = self.mask if o.guard is None else self.mask & get(o.guard).astype(bool)
                where = np.zeros(self.n, int) if o.block is None else get(o.block)
                for s, n in zip(get(o.stage)[mask], where[mask]):
                    m = self.m if o.block is None else self.m.peers[int(n)]
                    b = m.barriers[o.barrier, int(s)]
                    b.pending -= 1
                    if b.pending < 0:
                        raise BadAccess("more arrivals than the barrier expects")
                    b.settle()
            case ops.Barrier() if not self.mask.all():
                raise BadAccess(f"a barrier that not all threads reach, at {o.loc}")
            case ops.OrderedArrive():
                self.m.passes += 1
                self.m.turns[o.id + (self.group + 1) % self.consumer_groups] += 1
            case ops.ConsumerGroup():
                put(o, np.int32(self.group))
            case ops.Barrier():
                self.clock.epoch += 1
            case ops.WarpSync():
                self.clock.warp_epoch += 1
            case ops.ProxyFence():
                self.races.fence(self.clock)
            case ops.CpAsyncCommit():
                self.clock.commit("cp_async")
            case ops.TmaStoreCommit():
                self.clock.commit("tma_store")
            case ops.CpAsyncWait() | ops.TmaStoreWait() | ops.WgmmaWait():
                kind = o.opname.removesuffix("_wait")
                self.races.wait(self.clock, kind, o.pending)
            case ops.MbarrierInitFence() | ops.PrefetchMap() | ops.CheckIndex():
                pass
            case _:
                raise AssertionError(f"no meaning for {o.opname}")

    def alloc(self, o: ops.Alloc) -> None:
        b = o.type
        if b.space in ("shared", "barrier"):
            assert o.address >= 0
            self.m.address[o.result] = [o.address]
            self.env[o.result] = 0
            return
        count = b.size if b.space == "local" else b.layout.size("reg")
        kind = num.numpy_dtype(b.dtype)
        noise = self.m.noise.integers(1, 100, (self.n, count))
        self.frags[o.result] = noise.astype(kind)

    def flat(self, v: Value, indices: tuple[Value, ...]) -> np.ndarray:
        at: Any = 0
        for e, i in zip(v.buffer.static_shape, indices):
            at = at * e + self.get(i)
        return np.broadcast_to(at, (self.n,))

    def write(self, v: Value, at: np.ndarray, value: np.ndarray) -> None:
        if self.whole:
            self.frags[v][self.lanes, at] = value
            return
        who = np.flatnonzero(self.mask)
        self.frags[v][who, at[who]] = value[who]

    def barrier(self, v: Value, slot: Value) -> _Barrier:
        return self.m.barriers[v, self.one(slot)]

    # --- memory ---

    def where(self, v: Value, offset: np.ndarray) -> np.ndarray:
        """Byte addresses of element offsets of a shared buffer (or its version)."""
        return self.m.address[v][0] + self.env.get(v, 0) + offset * v.dtype.bits // 8

    def tensor(self, v: Value) -> tuple[np.ndarray, np.ndarray, int]:
        """A tensor's storage as a flat array, which elements belong to it, and where it starts."""
        found = self.m.tensors.get(v.name)
        if found is None:
            found = self.m.tensors[v.name] = self._tensor(v)
        return found

    def _tensor(self, v: Value) -> tuple[np.ndarray, np.ndarray, int]:
        a = self.m.args[v.name]
        low = a
        while isinstance(low.base, np.ndarray):
            low = low.base
        flat = low.reshape(-1)
        address = [x.__array_interface__["data"][0] for x in (a, low)]
        start = (address[0] - address[1]) // a.itemsize
        inside = np.zeros(flat.shape, bool)
        at = np.full((), start)
        for e, s in zip(a.shape, a.strides):
            at = np.add.outer(at, np.arange(e) * s // a.itemsize)
        inside[at.ravel()] = True
        return flat, inside, start

    def memory(self, o: ops.MemLoad | ops.MemStore) -> None:
        load = isinstance(o, ops.MemLoad)
        v = o.source if load else o.dest
        lanes = o.lanes if load else getattr(o.value.type, "lanes", 1)
        mask = self.mask if o.guard is None else self.mask & self.get(o.guard).astype(bool)
        at = self.get(o.offset).astype(np.int64)[:, None] + np.arange(lanes)
        kind = num.numpy_dtype(v.dtype)
        if load:
            out = np.zeros((self.n, lanes), kind)
            if o.other is not None:
                out[:] = self.get(o.other)[:, None]
        else:
            value = self.get(o.value)
            value = value[:, None] if value.ndim < 2 else value
        whole = self.whole if mask is self.mask else bool(mask.all())
        mine = slice(None) if whole else mask
        if v.buffer.space == "shared":
            address = self.where(v, at.T).T[mine]
            if (address[:, 0] % o.align).any():
                raise BadAccess(f"misaligned access to {v.type}")
            touched = self.granules(address, v.dtype.bytes)
            who = self.lanes if whole else np.flatnonzero(mask)
            if load:
                self.races.read(self.clock, touched, who, f"load of {v.name} at {o.loc}")
                out[mine] = self.m.shared.load(address, v.dtype)
            else:
                self.races.write(self.clock, touched, who, f"store to {v.name} at {o.loc}")
                self.m.shared.store(address, value[mine], v.dtype)
        else:
            flat, inside, start = self.tensor(v)
            at = (at + start)[mine]
            if len(at):
                gaps = load and o.words  # between rows
                if at.min() < 0 or at.max() >= len(flat) or not (gaps or inside[at].all()):
                    raise BadAccess(f"access outside of {v.name} at {o.loc}")
            if load:
                out[mine] = flat[at]
            else:
                flat[at] = value[mine]
        if load and o.words:
            self.set(o, np.ascontiguousarray(out).view(np.uint32))
        elif load:
            self.set(o, out[:, 0] if lanes == 1 else out)

    def count(self, o: ops.MemAtomic) -> None:
        """One lane after the other; of a counter that the launch brings along."""
        mask = self.mask if o.guard is None else self.mask & self.get(o.guard).astype(bool)
        flat, _, start = self.tensor(o.dest)
        at, value = self.get(o.offset).astype(np.int64) + start, self.get(o.value)
        had = np.zeros(self.n, flat.dtype)
        for lane in np.flatnonzero(mask):
            had[lane] = flat[at[lane]]
            flat[at[lane]] = value[lane] + (had[lane] if o.kind == "add" else 0)
        assert o.kind in ("add", "exchange")
        self.set(o, had)

    def misaligned(self, o: ops.Misaligned) -> np.ndarray:
        size = o.source.dtype.bytes
        start = self.m.args[o.source.name].__array_interface__["data"][0]
        return ((start + self.get(o.offset).astype(np.int64) * size) % 16 // size).astype(np.int32)

    def realign(self, o: ops.Realign) -> np.ndarray:
        lanes = 128 // o.dtype.bits
        words = np.ascontiguousarray(self.env[o.words]).view(num.numpy_dtype(o.dtype))
        number = np.arange(lanes)
        got = np.take_along_axis(words, self.get(o.skip)[:, None] + number, 1)
        if o.valid is None:
            return got
        return np.where(number < self.get(o.valid)[:, None], got, np.zeros((), got.dtype))

    def granules(self, address: np.ndarray, size: int) -> np.ndarray:
        """All granules of elements of `size` bytes at these addresses."""
        each = self.m.granule
        if size % each or (address % each).any():
            raise BadAccess(f"an access to a part of an element of {each} bytes")
        return address[..., None] // each + np.arange(size // each)

    def cp_async(self, o: ops.CpAsync) -> None:
        size = o.source.dtype.bytes
        count = o.bytes // size
        valid = np.full(self.n, o.bytes) if o.valid is None else self.get(o.valid)
        at = self.get(o.source_offset).astype(np.int64)[:, None] + np.arange(count)
        live = (np.arange(count)[None] * size < valid[:, None]) & self.mask[:, None]
        flat, inside, start = self.tensor(o.source)
        at = at + start
        if not inside[at[live]].all():
            raise BadAccess(f"cp.async outside of {o.source.name}")
        values = np.zeros((self.n, count), flat.dtype)
        values[live] = flat[at[live]]
        address = self.where(o.dest, self.get(o.dest_offset))[:, None] + np.arange(count) * size
        if (address[self.mask][:, 0] % o.bytes).any():
            raise BadAccess("misaligned cp.async")
        touched = self.granules(address[self.mask], size)
        who = np.flatnonzero(self.mask)
        self.races.late_write(self.clock, touched, who, f"cp.async to {o.dest.name} at {o.loc}")
        self.m.shared.store(address[self.mask], values[self.mask], o.dest.dtype)

    def tma(self, o: ops.TmaLoad | ops.TmaStore) -> None:
        load = isinstance(o, ops.TmaLoad)
        kind = o.map.type
        a = self.m.args[kind.tensor]
        view = a.transpose(kind.dims)  # innermost first
        size = a.itemsize
        shared, offset = (o.dest, o.dest_offset) if load else (o.source, o.source_offset)
        guard = None if load else o.guard
        active = self.mask if guard is None else self.mask & self.get(guard).astype(bool)
        for thread in np.flatnonzero(active):
            corner = [int(self.get(c)[thread]) for c in o.coords]
            base = int(np.broadcast_to(self.where(shared, self.get(offset)), (self.n,))[thread])
            if base % 128:
                raise BadAccess("a TMA box that is not aligned to 128 bytes")
            index = np.indices(kind.box).reshape(len(kind.box), -1)
            linear = np.ravel_multi_index(tuple(index[::-1]), kind.box[::-1]) * size
            address = base + linear
            if kind.swizzle:
                address ^= ((address >> 7) & (kind.swizzle // 16 - 1)) << 4
            source = index + np.asarray(corner)[:, None]
            ok = ((source >= 0) & (source < np.asarray(view.shape)[:, None])).all(0)
            if load:
                values = np.zeros(index.shape[1], a.dtype)
                values[ok] = view[tuple(source[:, ok])]
                if kind.dtype == t.TFLOAT32:  # such a descriptor makes the load round
                    values = num.round_tf32(values)
                slot = int(self.get(o.stage)[thread])
                mask = None if o.blocks is None else int(self.get(o.blocks)[thread])
                for n, m in enumerate(self.m.peers):
                    if m is self.m if mask is None else mask >> n & 1:
                        m.shared.store(address, values, o.dest.dtype)
                        b = m.barriers[o.barrier, slot]
                        b.tx -= index.shape[1] * size
                        b.settle()
                if mask is not None and mask >> len(self.m.peers):
                    raise BadAccess("multicast to a block outside of the cluster")
            else:
                touched = self.granules(address[None, ok], size)
                what = f"TMA store at {o.loc}"
                self.races.engine_read(self.clock, "tma_store", touched, np.array([thread]), what)
                got = self.m.shared.load(address[ok], o.source.dtype)
                place = tuple(source[:, ok])
                if o.reduction:
                    got = COMBINED[atomicrmw(o.reduction, o.source.dtype)](view[place], got)
                view[place] = got

    def shuffle(self, v: Value, lane: np.ndarray) -> np.ndarray:
        mask = self.mask.reshape(-1, self.size)
        if (mask.any(1) != mask.all(1)).any():
            raise BadAccess("a shuffle that not all lanes of a warp reach")
        if (lane < 0).any() or (lane >= self.size).any():
            raise BadAccess("a shuffle from a lane that does not exist")
        return self.get(v)[np.arange(self.n) // self.size * self.size + lane]

    # --- matrices ---

    def ldmatrix(self, o: ops.Ldmatrix) -> None:
        address = self.where(o.source, self.get(o.offset))
        register = self.one(o.register)
        frag = self.frags[o.dest]
        used = np.flatnonzero(np.arange(self.n) % self.size < 8 * o.count)
        touched = self.granules(address[used], 16)
        self.races.read(self.clock, touched, used, f"ldmatrix of {o.source.name} at {o.loc}")
        width = o.source.dtype.bytes
        each = 16 // width  # elements of a row of a matrix; a register holds a quarter of it
        pack = each // 4
        assert width == 2 or not o.transposed
        rows = self.m.shared.load(address[:, None] + np.arange(each) * width, o.source.dtype)
        rows = rows.reshape(-1, self.size, each)
        lane = np.arange(self.size)
        for q in range(o.count):
            matrix = rows[:, 8 * q : 8 * q + 8, :]
            for e in range(pack):
                r, c = lane // 4, pack * (lane % 4) + e
                if o.transposed:
                    r, c = c, r
                frag[:, pack * (register + q) + e] = matrix[:, r, c].reshape(-1)

    def stmatrix(self, o: ops.Stmatrix) -> None:
        address = self.where(o.dest, self.get(o.offset)).reshape(-1, self.size)
        lane = np.arange(self.size)
        for q, v in enumerate(o.values):
            pairs = self.env[v].reshape(-1, self.size, 2)
            matrix = np.zeros((pairs.shape[0], 8, 8), pairs.dtype)
            for e in range(2):
                r, c = lane // 4, 2 * (lane % 4) + e
                if o.transposed:
                    r, c = c, r
                matrix[:, r, c] = pairs[:, :, e]
            at = address[:, 8 * q : 8 * q + 8, None] + 2 * np.arange(8)
            who = np.arange(self.n).reshape(-1, self.size)[:, :8].ravel()
            touched = self.granules(at.reshape(-1, 8), 2)
            self.races.write(self.clock, touched, who, f"stmatrix at {o.loc}")
            self.m.shared.store(at, matrix, o.dest.dtype)

    def mma(self, o: ops.Mma) -> None:
        row = find_instruction(o.instr)
        parts = []
        for frag, register, layout, pack in (
            (o.a, o.a_register, row.a, row.packs[0]),
            (o.b, o.b_register, row.b, row.packs[1]),
            (o.c, o.c_register, row.c, row.packs[2]),
        ):
            first, count = self.one(register) * pack, layout.size("reg")
            regs = self.frags[frag][:, first : first + count].reshape(-1, self.size, count)
            parts.append((regs, layout, frag, first, count))
        tiles = []
        for regs, layout, *_ in parts:
            tile = np.zeros((len(regs), *layout.shape), regs.dtype)
            tile[:, *_places(layout, "lane", "reg")] = regs
            tiles.append(tile)
        _, layout, frag, first, count = parts[2]
        out = row.semantics(*tiles)[:, *_places(layout, "lane", "reg")]
        self.frags[frag][:, first : first + count] = out.reshape(self.n, count)

    def wgmma(self, o: ops.Wgmma) -> None:
        row = find_instruction(o.instr)
        groups = self.n // 128
        steps = len(o.b_steps)
        per, held = row.c.size("reg"), row.a.size("reg")
        keep = True if o.accumulate is None else bool(self.one(o.accumulate))
        in_registers = o.a.buffer.space == "fragment"
        a_at = tuple(x.reshape(128, held) for x in _places(row.a, "warp", "lane", "reg"))
        c_at = tuple(x.reshape(128, per) for x in _places(row.c, "warp", "lane", "reg"))
        for g in range(groups):
            threads = slice(g * 128, (g + 1) * 128)
            for i in range(o.m_blocks):
                regs = self.frags[o.c][threads, i * per : (i + 1) * per]
                total = np.zeros((row.m, row.n), regs.dtype)
                if keep:
                    total[c_at] = regs
                for s in range(steps):
                    n = i * steps + s
                    if in_registers:
                        a = np.zeros((row.m, row.k), self.frags[o.a].dtype)
                        mine = self.frags[o.a][threads, n * held : (n + 1) * held]
                        a[a_at] = mine
                    else:
                        a = self.operand(
                            o.a, o.a_offset, g, o.a_fields, o.a_steps[n], row.m, o.a_transposed
                        )
                    b = self.operand(
                        o.b, o.b_offset, g, o.b_fields, o.b_steps[s], row.n, o.b_transposed
                    )
                    total = row.semantics(a, b.T, total)
                regs[:] = total[c_at]
        self.clock.commit("wgmma")

    def operand(
        self, v: Value, offset: Value, group: int, fields: int, step: int, size: int, mn_major: bool
    ) -> np.ndarray:
        """An operand tile of `size` rows or columns and 32 bytes of k, (size, k), read as PTX's
        matrix descriptor says."""
        each = v.dtype.bytes
        start = np.broadcast_to(self.where(v, self.get(offset)), (self.n,))[group * 128]
        start = int(start) + 16 * step
        width = {1: 128, 2: 64, 3: 32}[fields >> 62]
        sbo, lbo = (fields >> 32 & 0x3FFF) * 16, (fields >> 16 & 0x3FFF) * 16
        mn, k = np.meshgrid(np.arange(size), np.arange(32 // each), indexing="ij")
        if mn_major:
            assert each == 2
            per = width // 2
            at = start + mn // per * lbo + k // 8 * sbo + k % 8 * width + mn % per * 2
        else:
            at = start + mn // 8 * sbo + mn % 8 * width + k * each
        at = at ^ (((at >> 7) & (width // 16 - 1)) << 4)
        who, what = np.full(size, group * 128), f"wgmma of {v.name}"
        self.races.engine_read(self.clock, "wgmma", self.granules(at, v.dtype.bytes), who, what)
        return self.m.shared.load(at, v.dtype)


def run_threads(
    func: Func,
    target: Target,
    args: Args,
    launched: int | None = None,
    seed: int = 0,
    grid: tuple[int, ...] = (),
) -> None:
    """Run a LOWERED function for every block; arrays in `args` (by the user's parameter names) are
    changed.

    `launched`: how many clusters a persistent kernel gets. `grid`: the launch's own, where the
    kernel leaves it to the launch."""
    made_here = ("tensor_map", "grid")
    plain = replace(func, params=tuple(p for p in func.params if p.role not in made_here))
    counters = [p for p in func.params if p.role == "counters"]  # which a launch brings along
    args = {**args, **{p.arg: np.zeros(p.value.buffer.shape, np.int32) for p in counters}}
    env = bind(plain, args)
    extents = (*(grid or _grid(plain, env)), 1, 1)[:3]
    for p in func.params:
        if p.role == "grid":
            env[p.value] = np.int32(extents[p.dim])
    cluster = launched_cluster(func)
    if func.attrs.get("persistent") or grid:
        clusters = [-(-e // c) for e, c in zip(extents, cluster_of(func))]
        if func.attrs.get("persistent"):
            total = int(np.prod(clusters))
            clusters = [min(total, launched or total), 1, 1]
        extents = tuple(n * c for n, c in zip(clusters, cluster))
    if any(e % c for e, c in zip(extents, cluster)):
        raise BadAccess(f"a grid of {extents} in clusters of {cluster}")
    for first in np.ndindex(*(e // c for e, c in zip(extents[::-1], cluster[::-1]))):
        peers = [
            _Machine(
                func,
                target,
                env,
                args,
                tuple(f * c + i for f, c, i in zip(first[::-1], cluster, inside[::-1])),
                extents,
                seed,
            )
            for inside in np.ndindex(*cluster[::-1])
        ]
        _run_cluster(peers)


def _run_cluster(peers: list[_Machine]) -> None:
    running = []
    for m in peers:
        m.peers = peers
        running.append(_block(m))
    stuck = 0
    while running:
        before = [_progress(m) for m in peers]
        for block in list(running):
            try:
                next(block)
            except StopIteration:
                running.remove(block)
                stuck = 0
        stuck = stuck + 1 if [_progress(m) for m in peers] == before else 0
        if stuck > 3:
            raise BadAccess("deadlock: every scope waits")


def _block(m: _Machine) -> Iterator[None]:
    """One block: what all threads do, its scopes side by side, and what all threads do then."""
    body = m.func.body
    places = [i for i, o in enumerate(body.ops) if isinstance(o, ops.Scope)]
    threads = int(m.func.attrs["launch_threads"])
    main = m.agent(0, threads // m.target.warp_size)
    if not places:
        yield from main.run(body)
        return
    yield from main.run(Block((), body.ops[: places[0]]))
    running = []
    # What all threads agree on, the scopes may use too.
    known = {
        v: x if np.ndim(x) == 0 else x[0]
        for v, x in main.env.items()
        if np.ndim(x) == 0 or (x == x[0]).all()
    }
    for s in (body.ops[i] for i in places):
        assert isinstance(s, ops.Scope)
        warps = s.warps // s.consumer_groups
        for group in range(s.consumer_groups):
            env = dict(known)
            m.agents += 1
            agent = _Agent(m, s.first_warp + group * warps, warps, env, group)
            agent.consumer_groups = s.consumer_groups
            running.append(agent.run(s.body))
    while running:
        for agent in list(running):
            try:
                next(agent)
            except StopIteration:
                running.remove(agent)
        yield
    yield from main.run(Block((), body.ops[places[-1] + 1 :]))


def _progress(m: _Machine) -> tuple[Any, ...]:
    states = tuple((b.phase, b.pending, b.tx) for b in m.barriers.values())
    return (*states, *m.turns.values(), m.passes, *m.meeting)
