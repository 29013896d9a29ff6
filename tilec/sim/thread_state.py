"""Threads of one block that go the same way, and the values they hold.

It is also the machine as those threads see it: the `m` of segments and of the rows' semantics (the
Protocol `tilec.ir.instr.machine.Machine`), which it hands on to the block's parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from tilec.ir.llvm import Inst
from tilec.sim import matrices, numbers, undefined
from tilec.sim.barriers import Barriers
from tilec.sim.block import ThreadBlock
from tilec.sim.clocks import Ints
from tilec.sim.engines import Engines
from tilec.sim.faults import tell_behaviour, tell_index, tell_outside, tell_undefined
from tilec.sim.memory import BlockMemory
from tilec.sim.program import LoadStore, Operand, operand_value
from tilec.sim.threads import Threads
from tilec.sim.waits import NewAtomic, Waiting


class Group:
    """Lanes that parted (those of `whole`) and meet again at the segment `merge`; `outer` is the
    group they parted in. `total` lanes are still to come or here. None of them touches the slots
    `beside`, which stay with `whole`."""

    __slots__ = ("arrived", "beside", "merge", "outer", "total", "whole")

    def __init__(self, merge: int, whole: ThreadState, beside: frozenset[int]) -> None:
        self.merge, self.whole, self.beside = merge, whole, beside
        self.outer, self.total = whole.group, len(whole.lanes)
        self.arrived: list[ThreadState] = []


Of = ParamSpec("Of")
Result = TypeVar("Result")


def _of(
    part: str, act: Callable[Concatenate[Any, Threads, Of], Result]
) -> Callable[Concatenate[ThreadState, Of], Result]:
    """A primitive that a part of the block has."""
    return lambda self, /, *args, **named: act(getattr(self.block, part), self, *args, **named)


class ThreadState(Threads):
    """`env`: the values that live across segments; `at`: the segment to run next; `taken`: the
    values with which these lanes went away from the others of their group (None: not known)."""

    __slots__ = ("at", "env", "group", "taken")

    block: ThreadBlock

    def __init__(
        self, block: ThreadBlock, lanes: Ints, env: list[Any], at: int, group: Group | None
    ) -> None:
        super().__init__(block, lanes)
        self.env, self.at, self.group = env, at, group
        self.taken: list[Any] | None = None

    # --- what segments call ---

    def call(
        self, semantics: Callable[..., Any], inst: Inst, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """A row or intrinsic that does not wait."""
        self.inst = self.block.executing = inst
        args = self.defined(inst, tuple(map(undefined.touched, args)))
        return self.compute(semantics, inst, args)

    def compute(
        self, semantics: Callable[..., Any], inst: Inst, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """One that takes arguments as they are."""
        self.inst = self.block.executing = inst
        result: tuple[Any, ...] = semantics(self, *args)
        return result

    def count(self, work: str, inst: Inst) -> None:
        """Count a "special" function of each lane, or a "shuffle" of each warp."""
        counts = self.block.memory.counts
        if counts is not None:
            counts.work(self, inst, work)

    def load(self, access: LoadStore, at: Any) -> Any:
        self.inst = access.inst
        (at,) = self.defined(access.inst, (at,))
        if access.space == "constant":
            return self.block.constant(at, access)
        return self.block.memory.load(self, at, access)

    def store(self, access: LoadStore, at: Any, value: Any) -> None:
        self.inst = self.block.executing = access.inst
        at, value = self.defined(access.inst, (at, undefined.touched(value)))
        self.block.memory.store(self, at, value, access)

    def atomic(self, inst: Inst, kind: str, type: str, space: str, at: Any, value: Any) -> Any:
        """LLVM's atomicrmw."""
        self.inst = self.block.executing = inst
        at, value = self.defined(inst, (at, value))
        at = np.ascontiguousarray(self.full(at), np.int64)
        given = np.asarray(self.full(value), numbers.kind_of(type))
        return self.block.memory.atomic(self, at, given, kind, space)

    def compare_exchange(
        self, inst: Inst, type: str, space: str, at: Any, compare: Any, value: Any
    ) -> tuple[Any, Any]:
        """LLVM's cmpxchg: what was there, and whether it was `compare`."""
        self.inst = self.block.executing = inst
        at, compare, value = self.defined(inst, (at, compare, value))
        at = np.ascontiguousarray(self.full(at), np.int64)
        kind = numbers.kind_of(type)
        asked, given = (np.asarray(self.full(x), kind) for x in (compare, value))
        found = self.block.memory.compare_exchange(self, at, asked, given, space)
        return found, found == asked

    def order_memory(self, order: str) -> None:
        """LLVM's `fence`: "release" or "acquire"."""
        self.block.barriers.fence(self, order)

    def print_line(self, text: str, values: tuple[Any, ...]) -> None:
        self.block.print_line(self, text, values)

    def device_assert(self, inst: Inst, cond: Any) -> None:
        """T.device_assert: reported where it does not hold."""
        self.inst = self.block.executing = inst
        (cond,) = self.defined(inst, (cond,))
        failed = ~np.asarray(self.full(cond), np.bool_)
        if failed.any():
            message = inst.text.partition("assertion failed: ")[2]
            self.report("assertion failed", message, threads=self.lanes[failed].tolist())

    def written_register(self, inst: Inst, slot: str, value: Any) -> None:
        self.block.written_register(self, inst, slot, undefined.settled(value))

    def start_wait(self, inst: Inst, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """A row that may wait: sets `waiting` if it does, else gives its results."""
        self.inst = inst
        found = self.block.semantics(inst)(self, *self.defined(inst, args))
        if found is None or isinstance(found, tuple):
            return found
        self.waiting = found
        return None

    def defined(self, inst: Inst, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values; where one was never written that is said, and it goes on with zeros."""
        if not any(map(undefined.is_undefined, values)):
            return values
        tell_undefined(self, inst, values)
        types = [v.type for v in inst.operands]
        if inst.opcode == "store":
            types = [types[1], types[0]]
        return tuple(_defined(x, t) for x, t in zip(values, types))

    # --- what LLVM leaves undefined ---

    def divide(self, inst: Inst, compute: Callable[..., Any], a: Any, b: Any) -> Any:
        """A division, which must not be by zero in any lane, nor overflow."""

        def compute_one(a: Any, b: Any) -> Any:
            bad = undefined.undefined_division(inst.opcode, a, b)
            made = undefined.checked(compute, inst)(a, b)
            if not np.count_nonzero(bad):
                return made
            words = f"{inst.opcode} by 0, or with a result that does not fit"
            message = f"{words}: LLVM takes for granted that this is not executed"
            tell_behaviour(self, inst, message, bad)
            return undefined.lost_where(made, bad, undefined.poison(words, inst.loc))

        return numbers.each(compute_one, a, b)

    def assume(self, inst: Inst, cond: Any) -> None:
        """`llvm.assume`."""
        wrong = ~np.asarray(undefined.filled(cond, np.False_), np.bool_)
        if np.count_nonzero(wrong):
            tell_behaviour(self, inst, "LLVM takes for granted here what does not hold", wrong)

    # --- arrays of one's own, and indices ---

    def check_index(self, inst: Inst, extents: tuple[int, ...], indices: tuple[Any, ...]) -> None:
        """That an element which is going to be accessed is in its buffer, in each dimension. What
        is in none is left to the access, which finds that there is no such place."""
        if any(isinstance(i, undefined.Lost) for i in indices):
            return
        bad, place = np.False_, np.int64(0)
        for i, n in zip(indices, extents):
            bad = bad | (i < 0) | (i >= n)
            place = place * n + i
        if np.count_nonzero(bad):
            buffers = self.block.setting.buffers
            if not any(b.stages > 1 for b in buffers if b.name == inst.buffer):
                bad = bad & (place >= 0) & (place < math.prod(extents))
            rows = np.stack([self.full(i) for i in indices], -1)
            tell_index(self, inst, extents, rows, self.full(bad))

    def pick(self, inst: Inst, slot: str, parts: tuple[Any, ...], index: Any) -> Any:
        """The element of a stack array at `index`; the first one for what is out of bounds."""
        index, _ = self._inside(inst, slot, len(parts), index)
        return undefined.read_at(numbers.pick(parts, index), inst.loc)

    def put(
        self, inst: Inst, slot: str, parts: tuple[Any, ...], index: Any, value: Any
    ) -> tuple[Any, ...]:
        """The stack array with `value` at `index`; what is out of bounds is dropped."""
        index, good = self._inside(inst, slot, len(parts), index)
        return numbers.put(parts, index, value, good)

    def _inside(self, inst: Inst, slot: str, size: int, index: Any) -> tuple[Any, Any]:
        """`index` with 0 for what is out of bounds, which is reported, and where it is not (None:
        it is nowhere)."""
        if isinstance(index, undefined.Lost):
            index = self.defined(inst, (undefined.UNDEF, index))[1]
        good = (index >= 0) & (index < size)
        if good.all():
            return index, None
        tell_outside(self, inst, slot, size, self.full(index), ~self.full(good))
        return np.where(good, index, 0)[()], self.full(good)

    # --- the primitives of `Machine` ---

    warp_sync = _of("barriers", Barriers.warp_sync)
    mbarrier_init = _of("barriers", Barriers.init)
    mbarrier_init_fence = _of("barriers", Barriers.init_fence)
    mbarrier_expect_tx = _of("barriers", Barriers.expect_tx)
    mbarrier_arrive = _of("barriers", Barriers.arrive)
    mbarrier_wait = _of("barriers", Barriers.wait)
    barrier_sync = _of("barriers", Barriers.named_sync)
    barrier_arrive = _of("barriers", Barriers.named_arrive)
    cluster_sync = _of("barriers", Barriers.cluster_sync)
    cluster_arrive = _of("barriers", Barriers.cluster_arrive)
    cluster_wait = _of("barriers", Barriers.cluster_wait)
    block_barrier = _of("barriers", Barriers.block_barrier)
    setmaxnreg = _of("barriers", Barriers.setmaxnreg)
    cp_async = _of("engines", Engines.cp_async)
    cp_async_commit = _of("engines", Engines.cp_async_commit)
    cp_async_wait = _of("engines", Engines.cp_async_wait)
    tma_load = _of("engines", Engines.tma_load)
    tma_store = _of("engines", Engines.tma_store)
    tma_store_commit = _of("engines", Engines.tma_store_commit)
    tma_store_wait = _of("engines", Engines.tma_store_wait)
    wgmma = _of("engines", Engines.wgmma)
    wgmma_wait = _of("engines", Engines.wgmma_wait)
    cluster_load = _of("engines", Engines.cluster_load)
    cluster_store = _of("engines", Engines.cluster_store)
    cluster_send = _of("engines", Engines.cluster_send)
    ldmatrix = _of("memory", matrices.ldmatrix)
    stmatrix = _of("memory", matrices.stmatrix)
    mma = mma_sp = _of("memory", matrices.mma)
    count_up = _of("memory", BlockMemory.count_up)
    load_if = _of("memory", BlockMemory.load_if)
    red_add = _of("memory", BlockMemory.red_add)

    def proxy_fence(self) -> None:
        self.block.order.fence(self.lanes)

    def pause(self) -> Waiting:
        news = NewAtomic(self.block.setting.globals)
        return Waiting(self, self.lanes, [news], np.zeros(len(self.lanes), np.int64))

    def device_fence(self) -> None:
        order = self.block.order
        if order.clocks.across is not None:
            order.clocks.across.fence(order, self.lanes)

    # --- parting and meeting ---

    def part(
        self,
        mask: Any,
        live: Iterable[int],
        copies: Sequence[tuple[int, Operand]],
        at: int,
        group: Group | None,
    ) -> ThreadState:
        """The state of the lanes in `mask`, which go on at `at` with the values `live`."""
        env: list[Any] = [None] * len(self.env)
        beside = group.beside if group is not None and group.whole is self else ()
        for slot in live:
            env[slot] = _BESIDE if slot in beside else _take(self.env[slot], mask)
        made = ThreadState(self.block, self.lanes[mask], env, at, group)
        if group is not None and group.whole is self:
            made.taken = list(env)
        for slot, operand in copies:
            env[slot] = _take(operand_value(self.env, operand), mask)
            if made.taken is not None:
                made.taken[slot] = _CHANGED
        return made


_CHANGED, _BESIDE = object(), object()


def meet(states: Sequence[ThreadState], live: Iterable[int], group: Group) -> ThreadState:
    """The lanes of all go on together where their group meets. What none of them has changed is
    what they had before they parted."""
    if len(states) == 1:
        only = states[0]
        only.at, only.group, only.taken = group.merge, group.outer, None
        _take_back(only, group)
        return only
    lanes = np.concatenate([s.lanes for s in states])
    order = np.argsort(lanes, kind="stable")
    sizes = [len(s.lanes) for s in states]
    env: list[Any] = [None] * len(states[0].env)
    made = ThreadState(states[0].block, lanes[order], env, group.merge, group.outer)
    _take_back(made, group)
    live = [slot for slot in live if slot not in group.beside]
    known = [s.taken for s in states if s.taken is not None]
    if len(known) == len(states) and len(lanes) == len(group.whole.lanes):
        made.taken = group.whole.taken
        before = group.whole.env
        kept = [s for s in live if all(x.env[s] is t[s] for x, t in zip(states, known))]
        for slot in kept:
            env[slot] = before[slot]
        live = set(live).difference(kept)
    for slot in live:
        env[slot] = _join([s.env[slot] for s in states], sizes, order)
    return made


def _take_back(made: ThreadState, group: Group) -> None:
    """What stayed with the whole group, of these lanes of it."""
    whole = group.whole
    if len(made.lanes) == len(whole.lanes):
        for slot in group.beside:
            made.env[slot] = whole.env[slot]
    else:
        places = np.searchsorted(whole.lanes, made.lanes)
        for slot in group.beside:
            made.env[slot] = _take(whole.env[slot], places)


def _take(x: Any, mask: Any) -> Any:
    if type(x) is tuple:
        return tuple(_take(e, mask) for e in x)
    if isinstance(x, (np.ndarray, undefined.Partly)) and x.ndim:
        return x[mask]
    return x


def _join(values: list[Any], sizes: list[int], order: Any) -> Any:
    """What lanes hold who meet: `values`, each of so many of them, in the `order` of all."""
    first = values[0]
    if type(first) is tuple:
        return tuple(_join([v[i] for v in values], sizes, order) for i in range(len(first)))
    if all(type(v) is np.ndarray and v.ndim for v in values):
        return np.concatenate(values)[order]
    if all(v is first for v in values):
        if not isinstance(first, np.ndarray) or not first.ndim:
            return first
    if (flight := undefined.joint_flight(values)) is not None:
        return undefined.in_flight(
            (_join([undefined.settled(v) for v in values], sizes, order),), flight
        )[0]
    lost = [v for v in values if isinstance(v, undefined.Lost)]
    defined = [v for v in values if type(v) is not undefined.Undefined]
    if not defined:
        return undefined.first_read(lost)
    kind = defined[0].dtype.type
    if not lost and all(np.ndim(v) == 0 for v in values):
        if all(v.tobytes() == first.tobytes() for v in values):
            return first

    def of_lanes(part: Callable[[Any], Any], kind: Any) -> Any:
        made = np.empty(len(order), kind)
        start = 0
        for v, n in zip(values, sizes):
            made[start : start + n] = part(v)
            start += n
        return made[order]

    made = of_lanes(lambda v: undefined.filled(v, kind(0)), kind)
    if not lost:
        return made
    origin = undefined.first_read(lost)
    sure = of_lanes(lambda v: undefined.sure_in(v, origin), np.bool_)
    return undefined.partly(made, of_lanes(undefined.lost_in, np.bool_), sure, origin.origin)


def _defined(x: Any, type: str) -> Any:
    """`x` with zeros for what is undefined."""
    vector = numbers.vector_of(type)
    if vector:
        parts = x if isinstance(x, tuple) else (x,) * vector[0]
        return tuple(_defined(e, vector[1]) for e in parts)
    return undefined.filled(x, numbers.kind_of(type)(0))
