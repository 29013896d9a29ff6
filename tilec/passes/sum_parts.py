"""sum_parts: `sum_parts` becomes stores to global memory, a counter, and loads by who comes last.

Before: SCHEDULED, with at most one `sum_parts`. After: none; the function takes a workspace for the
parts of each fragment, and a counter for each sum. A block writes its registers as they are, 16
bytes of each thread next to those of its neighbours, and counts itself. Nobody waits: the last one
that comes brings in the parts of all blocks, its own among them, and adds them up in the order of
their numbers, so that the sum does not depend on who that is. The counter is at zero again then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.ir.core import Block, Builder, Func, Op, Param, Substitution, Value, rewrite, walk
from tilec.ir.layout import row_major
from tilec.ir.ops import (
    Alloc,
    Barrier,
    Binary,
    Cast,
    Compare,
    Const,
    CountUp,
    DeviceFence,
    Extract,
    For,
    Load,
    MemLoad,
    MemStore,
    Pack,
    RegRead,
    RegWrite,
    Store,
    SumParts,
    ThreadIndex,
    WarpSync,
    Yield,
)
from tilec.ir.types import INT32, INT64, BufferType
from tilec.passes.utils.rings import const, elected, only_if
from tilec.passes.utils.vectors import VECTOR_BITS, Vectors
from tilec.target import Target

CHUNK, WRITTEN = 8, 2  # parts that are loaded together; as often as that without a loop
REGISTERS = 200  # for the sums and what is on its way to them,
LEAST, IN_FLIGHT = 16, 128  # which takes so many


def sum_parts(func: Func, target: Target) -> Func:
    """See the module's opening."""
    sums = [o for o in walk(func.body) if isinstance(o, SumParts)]
    if not sums:
        return func
    (o,) = sums
    made = _Sum(func, o, target)
    subst: Substitution = {}

    def visit(o: Op) -> None | list[Op]:
        return made.expand(o, subst) if isinstance(o, SumParts) else None

    body = rewrite(func.body, visit, subst)
    return replace(
        func,
        params=(*func.params, *made.params),
        body=Block((), (*made.top.ops, *body.ops)),
    )


class _Stored(Vectors):
    """The parts of one fragment in the workspace `buffer`."""

    def __init__(self, fragment: Value, threads: int, parts: int, name: str) -> None:
        super().__init__(fragment, threads)
        t = BufferType((parts, self.size), fragment.dtype, "global", align=VECTOR_BITS // 8)
        self.buffer = Value(t, name)

    def place(self, b: Builder, start: Value, part: int, vector: int) -> Value:
        """The offset of a vector of a part, from this thread's first one of `start`."""
        at = part * self.size + vector * self.threads * self.lanes
        return b.value(Binary, "add", start, b.value(Const, at, INT64))

    def write(self, b: Builder, start: Value) -> None:
        for vector in range(self.count):
            elements = self.lanes if vector < self.full else self.left
            values = self.registers(b, const(b, vector), elements)
            packed = b.value(Pack, tuple(values))
            at = self.place(b, start, 0, vector)
            b.emit(MemStore, self.buffer, at, packed, VECTOR_BITS // 8)


@dataclass(frozen=True)
class _Step:
    """Parts of some vectors that are loaded together, and so many times as many behind them."""

    vectors: range
    parts: range
    times: int = 1


class _Sum:
    """One `sum_parts`. `top` is what the kernel does first, `params` what it takes."""

    def __init__(self, func: Func, o: SumParts, target: Target) -> None:
        self.parts = o.parts
        # Where a barrier orders shared memory only, each thread publishes what it has written, and
        # asks for what the others have.
        self.each = not target.has("global_barrier")
        threads = int(func.attrs["threads"])
        specialised = int(func.attrs["launch_threads"]) != threads
        self.barrier = (1, threads) if specialised else (0, 0)
        taken = {p.value.name for p in func.params}

        def unused(name: str) -> str:
            while name in taken:
                name += "_"
            taken.add(name)
            return name

        self.stored = [
            _Stored(v, threads, self.parts, unused(f"{v.name}_parts")) for v in o.fragments
        ]
        self.counters = Value(BufferType((1,), INT32, "global", align=4), unused("counters"))
        self.top = Builder(func.loc)
        flag = BufferType((1,), INT32, "shared", layout=row_major((1,)))
        self.came = self.top.value(Alloc, flag, name="came_before")
        self.params = [
            *(Param(s.buffer, "workspace", s.buffer.name, self._bytes(s)) for s in self.stored),
            Param(self.counters, "counters", self.counters.name, 4),
        ]

    def _bytes(self, s: _Stored) -> int:
        """Of one sum."""
        return self.parts * s.size * s.buffer.dtype.bits // 8

    def expand(self, o: SumParts, subst: Substitution) -> list[Op]:
        b = Builder(o.loc)
        number, part = (b.value(Cast, v, INT64) for v in (o.sum, o.part))
        starts = [self.start(b, s, number) for s in self.stored]
        for s, start in zip(self.stored, starts):
            ahead = b.value(Binary, "mul", part, b.value(Const, s.size, INT64))
            s.write(b, b.value(Binary, "add", start, ahead))
        if self.each:
            b.emit(DeviceFence)
        b.emit(Barrier, *self.barrier)  # all threads have written theirs
        one = Builder(o.loc)
        zero = const(one, 0)
        one.emit(DeviceFence)
        before = one.value(CountUp, self.counters, number, self.parts - 1)
        one.emit(DeviceFence)
        one.emit(Store, self.came, (zero,), before)
        only_if(b, elected(b), one.ops)
        came = b.value(Load, self.came, (const(b, 0),))
        last = b.value(Compare, "eq", came, const(b, self.parts - 1), name="last")
        add = Builder(o.loc)
        if self.each:
            add.emit(DeviceFence)
        for s, start in zip(self.stored, starts):
            self.add_up(add, s, start)
        only_if(b, last, add.ops)
        subst[o.result] = last
        return b.ops

    def start(self, b: Builder, s: _Stored, number: Value) -> Value:
        """This thread's first vector of the sum's first part."""
        first = b.value(Binary, "mul", number, b.value(Const, self.parts * s.size, INT64))
        own = b.value(Binary, "mul", b.value(ThreadIndex), const(b, s.lanes))
        return b.value(Binary, "add", first, b.value(Cast, own, INT64))

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
            b.emit(WarpSync)

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
        moved = inner.value(Binary, "add", start, at)
        self.add(inner, s, step, self.load(inner, s, moved, step))
        inner.emit(Yield)
        size = len(step.parts) * s.size
        bounds = (b.value(Const, n, INT64) for n in (0, step.times * size, size))
        b.emit(For, "serial", *bounds, (), inner.block([at]))

    def load(self, b: Builder, s: _Stored, start: Value, step: _Step) -> list[list[Value]]:
        """For each of the step's vectors, those of its parts."""
        return [
            [
                b.value(MemLoad, s.buffer, s.place(b, start, p, v), s.lanes, VECTOR_BITS // 8)
                for p in step.parts
            ]
            for v in step.vectors
        ]

    def add(self, b: Builder, s: _Stored, step: _Step, loaded: list[list[Value]]) -> None:
        """Add what was loaded to the registers, which begin with the first part."""
        for v, got in zip(step.vectors, loaded):
            vector = const(b, v)
            for e in range(s.lanes if v < s.full else s.left):
                register = s.register(b, vector, e)
                values = [b.value(Extract, x, e) for x in got]
                new = step.parts[0] == 0
                total = values.pop(0) if new else b.value(RegRead, s.fragment, register)
                for value in values:
                    total = b.value(Binary, "add", total, value)
                b.emit(RegWrite, s.fragment, register, total)
