"""exchange_partial_sums: blocks that share the iterations of a sum bring together what each of them
has added up.

Before: SCHEDULED, with at most one `cluster_sum` (of the blocks of a cluster) and one
`combine_parts` (of clusters, or single blocks). After: neither. A block leaves its registers for
the others as they are, 16 bytes of each thread next to those of its neighbours; the same thread
holds the same elements in all blocks. All sums are in the order of the blocks' numbers.

`cluster_sum` becomes stores to shared memory, arrivals and loads. A block publishes what it has
written by arriving at a barrier of whoever reads it.

- Two blocks: the first one loads the registers of the other and adds them.
- More: each block adds up one share of the vectors of all blocks, leaves the totals in its own
  shared memory and publishes them to the first block, which loads them. So no block has to bring in
  much more than one fragment.

The cluster begins together (its barriers are set up) and ends together (no shared memory goes while
it is read).

`combine_parts` becomes stores to global memory, a counter, and loads by who comes last. The
function takes a workspace for the parts of each fragment, and a counter for each sum. Nobody waits:
a block counts itself, and the last one that comes brings in the parts of all, its own among them,
so that the sum does not depend on who that is. The counter is at zero again then.

One that is `everywhere` is waited for by all blocks that share the sum, which bring in the parts
of all (attribute `cooperative`: they run at once). What they add to their counter makes 2^31, as in
`expand_grid_sync`; whoever goes last, by a second counter, puts the first at zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.clusters import parts_of, split_of, threads_of
from tilec.ir.core import Func, Op, Param, Substitution, Value
from tilec.ir.layout import row_major
from tilec.ir.types import BOOL, INT32, INT64, BufferType
from tilec.passes.utils.building import wait_for_blocks
from tilec.passes.utils.rings import elected, meeting
from tilec.target import Target

VECTOR_BITS = 128
BATCH = 8  # vectors on their way at once: the way to another block takes about a thousand clocks
CHUNK, WRITTEN = 8, 2  # parts that are loaded together; as often as that without a loop
REGISTERS = 200  # for the sums and what is on its way to them,
LEAST, IN_FLIGHT = 16, 128  # which takes so many


def exchange_partial_sums(func: Func, target: Target) -> Func:
    for o in func.body.every(ops.ClusterSum):
        func = _Gather(func, o, target).expanded()
    while (p := next(iter(func.body.every(ops.CombineParts)), None)) is not None:
        func = _Sum(func, p, target).expanded()
        func = func.with_attrs(cooperative=True) if p.everywhere else func
    return func


class _Vectors:
    """The registers of one fragment as vectors of 16 bytes, in each of `threads` threads: `lanes`
    elements each; `full` of them, and one more for the `left` elements. They go to `buffer`."""

    buffer: Value

    def __init__(self, fragment: Value, threads: int) -> None:
        layout = fragment.buffer.laid_out
        self.fragment = fragment
        self.threads = threads
        self.lanes = VECTOR_BITS // fragment.dtype.bits
        self.full, self.left = divmod(layout.size("reg"), self.lanes)

    @property
    def count(self) -> int:
        """Vectors of a thread; the last one may hold fewer elements."""
        return self.full + bool(self.left)

    @property
    def size(self) -> int:
        """Elements of all threads' vectors."""
        return self.count * self.threads * self.lanes

    @property
    def words(self) -> int:
        """Registers that they take."""
        return self.count * VECTOR_BITS // 32

    def offset(self, b: Builder, vector: Value) -> Value:
        """Where this thread's vector stands."""
        before = b.binary("mul", vector, self.threads * self.lanes)
        own = b.binary("mul", b.value(ops.ThreadIndex), self.lanes)
        return b.binary("add", before, own)

    def store(self, b: Builder, at: Value, values: list[Value]) -> None:
        """A vector to `buffer`."""
        packed = b.value(ops.Pack, tuple(values))
        b.emit(ops.MemStore, self.buffer, at, packed, VECTOR_BITS // 8)

    def register(self, b: Builder, vector: Value, element: int) -> Value:
        first = b.binary("mul", vector, self.lanes)
        return b.binary("add", first, element)

    def registers(self, b: Builder, vector: Value, elements: int) -> list[Value]:
        """The first `elements` of a vector, and zeros behind them."""
        v = self.fragment
        empty = b.zero(v.dtype)
        values = [b.value(ops.RegRead, v, self.register(b, vector, e)) for e in range(elements)]
        return values + [empty] * (self.lanes - elements)


class _Exchange:
    """What one op becomes. `top` and `end` are what the kernel does first and last, `params` what
    it takes."""

    def __init__(self, func: Func, o: Op) -> None:
        self.func, self.op, self.loc = func, o, o.loc
        self.threads = threads_of(func)
        self.barrier = meeting(func)
        self.top = Builder(func.loc)
        self.end: tuple[Op, ...] = ()
        self.params: tuple[Param, ...] = ()

    def expanded(self) -> Func:
        """The function with what the op becomes in its place."""
        subst: Substitution = {}
        done = self.func.body.rewrite(
            Op, lambda o: self.expand(subst) if o is self.op else None, subst
        )
        body = done.ending(self.end, self.top.ops)
        return replace(self.func, params=(*self.func.params, *self.params), body=body)

    def expand(self, subst: Substitution) -> list[Op]:
        """The ops; `subst` gets what takes the place of the op's results."""
        raise NotImplementedError


# --- in a cluster ---


class _Parts(_Vectors):
    """The registers of one fragment as vectors in the shared memory of each block."""

    def __init__(self, top: Builder, fragment: Value, threads: int) -> None:
        super().__init__(fragment, threads)
        t = BufferType((self.size,), fragment.dtype, "shared", layout=row_major((self.size,)))
        self.buffer = top.value(ops.Alloc, t, name=f"{fragment.name}_parts")

    def each(self, b: Builder, do: Callable[[Builder, list[Value], int], None]) -> None:
        """`do(builder, vectors, elements of each)` for all vectors, with numbers for their
        registers: a batch at a time, so that what it loads is on its way all at once."""
        batches, rest = divmod(self.full, BATCH)
        if batches:
            with b.counted(batches, "batch") as (batch, inner):
                first = inner.binary("mul", batch, BATCH)
                vectors = [inner.binary("add", first, i) for i in range(BATCH)]
                do(inner, vectors, self.lanes)
        if rest:
            do(b, [b.const(batches * BATCH + i) for i in range(rest)], self.lanes)
        if self.left:
            do(b, [b.const(self.full)], self.left)

    def write(self, b: Builder, vectors: list[Value], elements: int) -> None:
        """Vectors of registers to this block's shared memory."""
        for vector in vectors:
            values = self.registers(b, vector, elements)
            self.store(b, self.offset(b, vector), values)

    def load(self, b: Builder, vector: Value, block: Value) -> list[Value]:
        """The elements of one vector of another block."""
        got = b.value(ops.ClusterLoad, self.buffer, self.offset(b, vector), block, self.lanes)
        return [b.value(ops.Extract, got, e) for e in range(self.lanes)]


class _Gather(_Exchange):
    """One `cluster_sum`."""

    def __init__(self, func: Func, o: ops.ClusterSum, target: Target) -> None:
        super().__init__(func, o)
        self.blocks = split_of(func)
        self.end = (ops.ClusterBarrier(loc=func.loc),)
        top = self.top
        self.parts = [_Parts(top, v, self.threads) for v in o.fragments]
        warps = self.threads // target.warp_size
        self.direct = self.blocks == 2
        self.written = self._barrier("parts_written")
        self.summed = self.written if self.direct else self._barrier("shares_summed")
        writers = 1 if self.direct else self.blocks
        with top.when(elected(top)) as init:
            init.emit(ops.MbarrierInit, self.written, writers * warps)
            if not self.direct:
                init.emit(ops.MbarrierInit, self.summed, self.blocks * warps)
            init.emit(ops.MbarrierInitFence)
        top.emit(ops.ClusterBarrier)

    def _barrier(self, name: str) -> Value:
        return self.top.value(ops.Alloc, BufferType((1,), INT64, "barrier"), name=name)

    def expand(self, subst: Substitution) -> list[Op]:
        b = Builder(self.loc)
        b.emit(ops.Barrier, *self.barrier)  # all threads are done with what was in these bytes
        number = b.value(ops.ClusterIndex, 0)
        first = b.compare("eq", number, 0)
        if self.direct:
            with b.when(b.compare("ne", number, 0)) as give:
                self.write(give)
                self.publish(give, self.written, 1)
            with b.when(first) as take:
                self.wait(take, self.written)
                self.take(take)
            return b.ops
        self.write(b)
        self.publish(b, self.written, self.blocks)
        self.wait(b, self.written)
        for p in self.parts:
            self.sum_share(b, p, number)
        self.publish(b, self.summed, 1)
        with b.when(first) as take:
            self.wait(take, self.summed)
            self.take(take)
            take.emit(ops.Barrier, *self.barrier)  # what comes next may use the bytes
        return b.ops

    # --- steps ---

    def write(self, b: Builder) -> None:
        for p in self.parts:
            p.each(b, p.write)

    def publish(self, b: Builder, barrier: Value, blocks: int) -> None:
        """Each warp arrives once at the barrier of the first `blocks` blocks."""
        b.emit(ops.WarpSync)
        lane = b.value(ops.Lane)
        who = b.compare("lt", lane, blocks)
        b.emit(ops.MbarrierArrive, barrier, b.const(0), who, lane, publish=True)

    def wait(self, b: Builder, barrier: Value) -> None:
        b.emit(ops.MbarrierWait, barrier, b.const(0), b.const(0), acquire=True)

    def share(self, p: _Parts) -> int:
        """Vectors that each block adds up; the last blocks perhaps fewer."""
        return -(-p.count // self.blocks)

    def sum_share(self, b: Builder, p: _Parts, number: Value) -> None:
        """Add up this block's share of the vectors, in the order of the blocks."""
        share = self.share(p)
        start = b.binary("mul", number, share)
        last = b.const(p.count - 1)
        batch = max(1, BATCH // self.blocks)
        for i in range(0, share, batch):
            first = b.binary("add", start, i)
            # Beyond the last vector stands nothing: the last blocks may have no share.
            with b.when(b.compare("le", first, last)) as mine:
                self.sum_batch(mine, p, first, min(batch, share - i), last)

    def sum_batch(self, b: Builder, p: _Parts, first: Value, count: int, last: Value) -> None:
        """Add up `count` vectors from `first` on, as far as there are any; all loads are on their
        way before the first sum."""
        vectors = [b.binary("add", first, n) for n in range(count)]
        loaded = [
            [p.load(b, b.binary("min", v, last), b.const(n)) for n in range(self.blocks)]
            for v in vectors
        ]
        for vector, parts in zip(vectors, loaded):
            total = parts[0]
            for values in parts[1:]:
                total = [b.binary("add", x, y) for x, y in zip(total, values)]
            # Beyond the last vector stands a part that its own block has yet to read.
            with b.when(b.compare("le", vector, last)) as store:
                p.store(store, p.offset(store, vector), total)

    def take(self, b: Builder) -> None:
        """In the first block: every vector from the block that has it, on top of its own registers
        where that is another block's part, in their place where it is the total."""
        for p in self.parts:

            def some(into: Builder, vectors: list[Value], elements: int, p: _Parts = p) -> None:
                loaded = [p.load(into, v, self.holder(into, p, v)) for v in vectors]
                for vector, values in zip(vectors, loaded):
                    for e, value in enumerate(values[:elements]):
                        register = p.register(into, vector, e)
                        if self.direct:
                            own = into.value(ops.RegRead, p.fragment, register)
                            value = into.binary("add", own, value)
                        into.emit(ops.RegWrite, p.fragment, register, value)

            p.each(b, some)

    def holder(self, b: Builder, p: _Parts, vector: Value) -> Value:
        """The block whose vector the first one takes."""
        if self.direct:
            return b.const(1)
        return b.binary("floordiv", vector, self.share(p))


# --- through global memory ---


class _Stored(_Vectors):
    """The parts of one fragment in the workspace `buffer`."""

    def __init__(self, fragment: Value, threads: int, parts: int, name: str) -> None:
        super().__init__(fragment, threads)
        t = BufferType((parts, self.size), fragment.dtype, "global", align=VECTOR_BITS // 8)
        self.buffer = Value(t, name)

    def place(self, b: Builder, start: Value, part: int, vector: int) -> Value:
        """The offset of a vector of a part, from this thread's first one of `start`."""
        at = part * self.size + vector * self.threads * self.lanes
        return b.binary("add", start, at)

    def write(self, b: Builder, start: Value) -> None:
        for vector in range(self.count):
            elements = self.lanes if vector < self.full else self.left
            values = self.registers(b, b.const(vector), elements)
            self.store(b, self.place(b, start, 0, vector), values)


@dataclass(frozen=True)
class _Step:
    """Parts of some vectors that are loaded together, and so many times as many behind them."""

    vectors: range
    parts: range
    times: int = 1


class _Sum(_Exchange):
    """One `combine_parts`."""

    def __init__(self, func: Func, o: ops.CombineParts, target: Target) -> None:
        super().__init__(func, o)
        self.o, self.parts = o, o.parts
        self.kinds = dict(zip(o.fragments, o.kinds or ["add"] * len(o.fragments)))
        # Where a barrier orders shared memory only, each thread publishes what it has written, and
        # asks for what the others have.
        self.each = not target.has("global_barrier")
        taken: set[str] = set()
        self.stored = []
        for v in o.fragments:
            name = func.unused(f"{v.name}_parts", taken)
            taken.add(name)
            self.stored.append(_Stored(v, self.threads, self.parts, name))
        name, words = func.unused("counters", taken), 1 + o.everywhere
        self.counters = Value(BufferType((words,), INT32, "global", align=4), name)
        if not o.everywhere:
            flag = BufferType((1,), INT32, "shared", layout=row_major((1,)))
            self.came = self.top.value(ops.Alloc, flag, name="came_before")
        self.params = (
            *(Param(s.buffer, "workspace", s.buffer.name, self._bytes(s)) for s in self.stored),
            Param(self.counters, "counters", self.counters.name, 4 * words),
        )

    def _bytes(self, s: _Stored) -> int:
        """For each block of the user's grid, whose blocks may be the parts themselves."""
        return parts_of(self.func) * s.size * s.buffer.dtype.bits // 8

    def expand(self, subst: Substitution) -> list[Op]:
        o = self.o
        b = Builder(o.loc)
        number, part = (b.cast(v, INT64) for v in (o.sum, o.part))
        starts = [self.start(b, s, number) for s in self.stored]
        for s, start in zip(self.stored, starts):
            ahead = b.binary("mul", part, s.size)
            s.write(b, b.binary("add", start, ahead))
        if self.each:
            b.emit(ops.DeviceFence)
        b.emit(ops.Barrier, *self.barrier)  # all threads have written theirs
        if o.everywhere:
            with b.when(elected(b)) as one:
                self.meet(one, number, part)
            b.emit(ops.Barrier, *self.barrier)
            self.take(b, starts)
            subst[o.result] = b.const(True, BOOL)
            return b.ops
        with b.when(elected(b)) as one:
            zero = one.const(0)
            one.emit(ops.DeviceFence)
            before = one.value(ops.CountUp, self.counters, number, self.parts - 1)
            one.emit(ops.DeviceFence)
            one.emit(ops.Store, self.came, (zero,), before)
        came = b.value(ops.Load, self.came, (b.const(0),))
        last = b.compare("eq", came, self.parts - 1, name="last")
        with b.when(last) as add:
            self.take(add, starts)
        subst[o.result] = last
        return b.ops

    def meet(self, b: Builder, number: Value, part: Value) -> None:
        """Wait for the other blocks of the sum."""
        first = b.compare("eq", part, b.const(0, INT64))
        step = b.select(first, b.const((1 << 31) - self.parts + 1), b.const(1))
        came = b.binary("mul", number, 2)

        def atomic(b: Builder, kind: str, value: Value) -> Value:
            return b.value(ops.MemAtomic, self.counters, came, value, kind)

        wait_for_blocks(b, atomic, step)
        gone = b.binary("add", came, 1)
        left = b.value(ops.CountUp, self.counters, gone, self.parts - 1)
        with b.when(b.compare("eq", left, self.parts - 1)) as last:
            atomic(last, "exchange", last.const(0))
        b.emit(ops.DeviceFence)

    def take(self, b: Builder, starts: list[Value]) -> None:
        if self.each:
            b.emit(ops.DeviceFence)
        for s, start in zip(self.stored, starts):
            self.add_up(b, s, start)

    def start(self, b: Builder, s: _Stored, number: Value) -> Value:
        """This thread's first vector of the sum's first part."""
        first = b.binary("mul", number, self.parts * s.size)
        own = b.binary("mul", b.value(ops.ThreadIndex), s.lanes)
        return b.binary("add", first, b.cast(own, INT64))

    def add_up(self, b: Builder, s: _Stored, start: Value) -> None:
        """The registers from all parts, a few vectors after the others. What the next step needs is
        on its way before this one's is added up, and no more than that: without the syncs between
        them the assembler begins with all loads, and spills."""
        steps = self.steps(s)
        ahead: list[list[Value]] | None = None
        for step, following in zip(steps, (*steps[1:], None)):
            if step.times > 1:
                self.repeated(b, s, start, step)
                continue
            loaded = ahead or self.load(b, s, start, step)
            ahead = None
            if following is not None and following.times == 1:
                ahead = self.load(b, s, start, following)
            self.add(b, s, step, loaded)
            b.emit(ops.WarpSync)

    def steps(self, s: _Stored) -> list[_Step]:
        room = max(LEAST, min(IN_FLIGHT, REGISTERS - s.words)) // 2
        loads = room * 32 // VECTOR_BITS
        chunk = min(self.parts, CHUNK, loads)
        found = []
        for first in range(0, s.count, max(1, loads // chunk)):
            vectors = range(first, min(first + max(1, loads // chunk), s.count))
            parts = [range(p, min(p + chunk, self.parts)) for p in range(0, self.parts, chunk)]
            whole = self.parts // chunk
            if whole > WRITTEN:
                found += [_Step(vectors, parts[0]), _Step(vectors, parts[1], whole - 1)]
                parts = parts[whole:]
            found += [_Step(vectors, p) for p in parts]
        return found

    def repeated(self, b: Builder, s: _Stored, start: Value, step: _Step) -> None:
        """A step whose parts are followed by others: a loop."""
        at = Value(start.type, "at")
        inner = Builder(b.loc)
        moved = inner.binary("add", start, at)
        self.add(inner, s, step, self.load(inner, s, moved, step))
        inner.emit(ops.Yield)
        size = len(step.parts) * s.size
        bounds = (b.const(n, INT64) for n in (0, step.times * size, size))
        b.emit(ops.For, "serial", *bounds, (), inner.block([at]))

    def load(self, b: Builder, s: _Stored, start: Value, step: _Step) -> list[list[Value]]:
        """For each of the step's vectors, those of its parts."""
        return [
            [
                b.value(ops.MemLoad, s.buffer, s.place(b, start, p, v), s.lanes, VECTOR_BITS // 8)
                for p in step.parts
            ]
            for v in step.vectors
        ]

    def add(self, b: Builder, s: _Stored, step: _Step, loaded: list[list[Value]]) -> None:
        """Add what was loaded to the registers, which begin with the first part."""
        kind = self.kinds[s.fragment]
        for v, got in zip(step.vectors, loaded):
            vector = b.const(v)
            for e in range(s.lanes if v < s.full else s.left):
                register = s.register(b, vector, e)
                values = [b.value(ops.Extract, x, e) for x in got]
                new = step.parts[0] == 0
                total = values.pop(0) if new else b.value(ops.RegRead, s.fragment, register)
                for value in values:
                    total = b.binary(kind, total, value)
                b.emit(ops.RegWrite, s.fragment, register, total)
