"""lower_threads: on a target whose blocks are one thread, what depends on the thread index becomes
parallel loops over the threads.

Before: tile ops are parallel loops (`lower_tiles`), barriers stand wherever threads exchange data
(`insert_sync`). After: no thread index. A body that asks for it is cut where all threads must have
come (at a barrier, a loop over a tile, a loop that contains one), and what lies between two cuts
runs for one thread after the other, or rather, for a vector of threads at once:

    t = thread_index                   parallel (threads) body(t) { S[t] = f(t) }
    S[t] = f(t)                 ->     (barrier)
    barrier                            parallel (threads) body(t) { Y[t] = S[255 - t] }
    Y[t] = S[255 - t]

Between cuts the threads of a correct program do not see one another, so any order will do. What a
thread computes before a cut and uses after it is computed again if that is only arithmetic, else
kept in a buffer with a place for each thread; so is a `local` buffer that is used on both sides.
What a loop or branch with a cut inside hands on lies in such a buffer, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.clusters import threads_of
from tilec.ir.core import Block, Func, Op, Substitution, Value, base, made_in, rewritten, walk
from tilec.ir.errors import CompileError
from tilec.ir.types import INT32, BufferType, ScalarType
from tilec.ir.uniformity import Level, asks_for_threads, uniformity_of, varying
from tilec.passes.utils.dce import keep_results
from tilec.target import Target


def lower_threads(func: Func, target: Target) -> Func:
    """Raises CompileError where threads would not come to a barrier together."""
    if not asks_for_threads(func):
        return func
    func = _ask_once(func)
    func = func.with_body(_Split(func).in_memory(func.body))
    return func.with_body(_Split(func).body(func.body))


def _ask_once(func: Func) -> Func:
    """`func` with one thread_index, at the top."""
    index = Value(ScalarType(INT32), "t")
    subst: Substitution = {}

    def visit(o: ops.ThreadIndex) -> Sequence[Op]:
        subst[o.result] = index
        return []

    body = func.body.rewrite(ops.ThreadIndex, visit, subst)
    first = ops.ThreadIndex(results=(index,), loc=func.loc)
    return func.with_body(replace(body, ops=(first, *body.ops)))


@base
class _Threads(Op):
    """A stretch of ops between two cuts; stands in the new body until its loop is built."""

    stretch: tuple[Op, ...] = ()


class _Split:
    """`per_thread`: every value that differs between threads, and the local buffers that do."""

    def __init__(self, func: Func) -> None:
        self.threads = threads_of(func)
        self.indices = {o.result for o in func.body.every(ops.ThreadIndex)}
        level = uniformity_of(func).level
        private = {
            o.result
            for o in func.body.every(ops.Alloc)
            if o.type.space == "local" and level(o.result) > Level.BLOCK
        }
        self.per_thread = varying(func.body, self.indices | private, allocs=False)
        self.defined: dict[Value, Op] = {}
        self.order: dict[Value, int] = {}  # of the values' making
        self.kept: dict[Value, Value] = {}

    # --- what is handed on ---

    def in_memory(self, block: Block) -> Block:
        """`block` where no op with a cut inside hands on a value of each thread's own: such a value
        lies in a local buffer instead."""
        return block.rewrite(Op, self._in_memory)

    def _in_memory(self, o: Op) -> Sequence[Op] | None:
        if not isinstance(o, (ops.For, ops.While, ops.If)) or not self._has_cut(o):
            return None
        places = [
            Value(BufferType((1,), r.dtype, "local"), r.name) if r in self.per_thread else None
            for r in o.results
        ]
        if not any(places):
            return None
        b = Builder(o.loc)
        zero = b.const(0)

        def load(values: Sequence[Value]) -> list[Op]:
            return [
                ops.Load(place, (zero,), results=(v,), loc=o.loc)
                for v, place in zip(values, places)
                if place is not None
            ]

        def store(values: Sequence[Value]) -> list[Op]:
            return [
                ops.Store(place, (zero,), v, loc=o.loc)
                for v, place in zip(values, places)
                if place is not None
            ]

        def region(block: Block) -> Block:
            """`block` with its last arguments, and what it yields of these, in memory."""
            held = load(block.args[-len(places) :]) if block.args else []
            decides = isinstance(o, ops.While) and block is o.cond
            return block.ending([] if decides else store(ops.yielded(block)), held)

        b.ops += [ops.Alloc(p.buffer, results=(p,), loc=o.loc) for p in places if p is not None]
        b.ops += [] if isinstance(o, ops.If) else store(o.inits)
        uniform = [n for n, place in enumerate(places) if place is None]
        done = keep_results(o.with_regions(region), uniform)
        return [*b.ops, done, *load(o.results)]

    def body(self, block: Block) -> Block:
        for o in walk(block):
            self.defined.update((r, o) for r in o.results)
        self.order = {v: i for i, v in enumerate(self.defined)}
        cut = self._cut(block)
        groups = [*cut.every(_Threads)]
        for group in groups:
            inside = {r for o in group.stretch for r in made_in(o)}
            for v in self._needed(group.stretch, inside):
                if not self._is_arithmetic(v) and v not in self.kept:
                    self.kept[v] = self._place(v)
        done = cut.rewrite(_Threads, self._loop)
        allocs = tuple(
            ops.Alloc(p.buffer, results=(p,), loc=self.defined[v].loc) for v, p in self.kept.items()
        )
        return replace(done, ops=allocs + done.ops)

    # --- cutting ---

    def _cut(self, block: Block) -> Block:
        done: list[Op] = []
        waiting: list[Op] = []
        made: set[Value] = set()  # by those that wait

        def flush() -> None:
            """End the stretch; what is the same for all threads is read where the first left it."""
            if not waiting:
                return
            uniform = [r for o in waiting for r in o.results if r not in self.per_thread]
            done.append(_Threads(stretch=tuple(waiting), loc=waiting[0].loc))
            waiting.clear()
            made.clear()
            for r in uniform:
                b = Builder(done[-1].loc)
                self.kept[r] = self._place(r)
                first = b.const(0)
                done.extend((*b.ops, ops.Load(self.kept[r], (first,), results=(r,), loc=b.loc)))

        for o in block.ops:
            if isinstance(o, ops.ThreadIndex):
                continue
            if isinstance(o, ops.Yield):
                flush()
                self._same_for_all(o, o.values)
                done.append(o)
            elif not self._depends(o):
                if not o.pure or not made.isdisjoint(o.operands):
                    flush()
                done.append(o)
            elif self._has_cut(o):
                flush()
                self._same_for_all(o, o.operands)
                done.append(o.with_regions(self._cut))
            else:
                waiting.append(o)
                made.update(o.results)
        flush()
        return Block(block.args, tuple(done))

    def _depends(self, o: Op) -> bool:
        touched = (v for x in walk(o) for v in (*x.operands, *x.results))
        return any(v in self.per_thread for v in touched)

    def _has_cut(self, o: Op) -> bool:
        """Whether all threads must have come to some op inside."""
        return any(
            isinstance(x, (ops.Barrier, ops.GridSync, ops.WarpSync))
            or (isinstance(x, ops.Parallel) and not self._depends(x))
            for region in o.regions
            for x in walk(region)
        )

    def _same_for_all(self, o: Op, values: Sequence[Value]) -> None:
        if any(v in self.per_thread for v in values):
            raise CompileError(
                f"a {o.opname} around a barrier or tile op depends on the thread index",
                o.loc,
                "move the barrier or tile op out, or make the condition the same for all threads",
            )

    # --- what crosses a cut ---

    def _needed(self, group: Sequence[Op], inside: set[Value]) -> list[Value]:
        """Values of other stretches that these ops use, in the order of their making."""
        found: set[Value] = set()
        left = [v for o in group for v in o.uses]
        for v in left:  # grows
            if v in found or v not in self.per_thread or v in inside or v in self.indices:
                continue
            found.add(v)
            if self._is_arithmetic(v):
                left += self.defined[v].uses
        return sorted(found, key=self.order.__getitem__)

    def _is_arithmetic(self, v: Value) -> bool:
        return self.defined[v].pure

    def _place(self, v: Value) -> Value:
        """A buffer with one element, or one local buffer, for each thread."""
        if isinstance(v.type, BufferType):
            shape = (*v.type.static_shape, self.threads)
        else:
            shape = (self.threads,)
        return Value(BufferType(shape, v.dtype, "shared"), v.name)

    # --- building ---

    def _loop(self, group: _Threads) -> Op:
        """The parallel loop over the threads of one stretch."""
        thread = Value(ScalarType(INT32), "t")
        b = Builder(group.loc)
        names: Substitution = {v: thread for v in self.indices}
        inside = {r for o in group.stretch for r in made_in(o)}
        for v in self._needed(group.stretch, inside):
            if v in self.kept:
                if not isinstance(v.type, BufferType):
                    names[v] = b.value(ops.Load, self.kept[v], (thread,), name=v.name)
            else:
                b.ops.append(self.defined[v].clone(names))
        for o in group.stretch:
            if isinstance(o, ops.Alloc) and o.result in self.kept:
                continue
            made = self._through_places(o.clone(names), thread)
            b.ops.append(made)
            for old, new in zip(o.results, made.results):
                if old in self.kept and not isinstance(old.type, BufferType):
                    b.emit(ops.Store, self.kept[old], (thread,), new)
        return ops.Parallel((self.threads,), b.block((thread,)), loc=group.loc)

    def _through_places(self, o: Op, thread: Value) -> Op:
        """`o` with its accesses to kept local buffers turned to this thread's place."""

        def visit(x: Op) -> Op | None:
            if isinstance(x, ops.ElementAccess) and x.buffer in self.kept:
                return x.at(self.kept[x.buffer], (*x.indices, thread))
            return None

        (made,) = rewritten([o], visit)
        return made
