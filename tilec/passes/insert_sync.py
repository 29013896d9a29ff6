"""insert_sync: barriers and proxy fences where threads exchange data through shared or global
memory.

Before: pipelined rings are in order among themselves; nothing else is synchronised. After: between
two accesses of the same bytes by different threads, one of them a write, every path has a barrier
of the scope; between a thread's write and an asynchronous engine's read, and between what a thread
does in a ring's stage and TMA's next write there, is also a proxy fence.

The pass walks each scope, keeping what has been read and written since the last barrier; a loop's
body is walked until its end brings nothing new to its beginning, and behind the loop counts also
what was so before it, unless it is known to run. A barrier that only its first iteration needs
stands in front of the loop. Where threads part (a condition
that is not the same for all of them) no barrier may stand: what is inside counts as one access,
and what its threads exchange among themselves there is the user's to order. Two shared buffers
conflict where their bytes overlap (`plan_shared` comes first; on the CPU, whose thread-level code
is cut at these barriers, each has bytes of its own). A group of threads that the author parted off
(a scope) has barriers of its own for what it exchanges inside of itself; what such groups exchange
with one another is the author's to order, but for the proxy fence before he lets others know of it
(`mbarrier_arrive`). Accesses inside a pipelined loop to
its own rings are skipped: `expand_pipeline` ordered them; the loop as a whole reads and writes
them. Where the whole scope is the one group of threads that executes an asynchronous product, the
wait for the product tells each of them that all have read the operands."""

from __future__ import annotations

import operator
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, fields, replace

from tilec.ir import ops
from tilec.ir.affine import Affine
from tilec.ir.analysis import facts_of
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.dependence import runs
from tilec.ir.effects import buffers_read, effects_in, written_tensors
from tilec.ir.errors import CompileError
from tilec.ir.instr.sync import NAMED_BARRIERS
from tilec.ir.loc import Loc
from tilec.ir.memory import stage_bytes
from tilec.ir.uniformity import Level, uniformity_of
from tilec.ir.verify import allowed, needs_all
from tilec.passes.utils.accesses import together
from tilec.passes.utils.rings import meeting, waited_by_all
from tilec.target import Target

Span = tuple[object, int, int]  # memory (shared, or a tensor), first byte, past the last

_PROXY = ("tma", "wgmma")  # engines of the asynchronous proxy
Stored = tuple[Value, object]  # a tensor that is only written, and what does it (`_Placer.stored`)


def insert_sync(func: Func, target: Target) -> Func:
    return func.with_body(_Placer(func, target).block(func.body, _State()))


Group = tuple[int, int]  # first warp and warps of a group of threads; all are (0, 0)
ALL: Group = (0, 0)


@dataclass
class _Known:
    """What a group of threads did since it last met."""

    reads: set[Span] = field(default_factory=set)
    writes: set[Span] = field(default_factory=set)
    private: set[Span] = field(default_factory=set)  # used by each warp for itself
    unfenced: set[Span] = field(default_factory=set)  # written since the last proxy fence
    touched: set[Value] = field(default_factory=set)  # what TMA refills, by threads, since then
    stored: set[Stored] = field(default_factory=set)
    flying: set[Span] = field(default_factory=set)  # written by the author's cp.async
    ended: set[Span] = field(default_factory=set)  # reads that each of the group has waited for

    def merge(self, other: _Known) -> bool:
        """Either may be so; returns whether that is more than this was."""
        grown = False
        for mine, more in zip(_sets(self), _sets(other)):
            if more:
                grown = grown or not more <= mine
                mine |= more
        return grown

    def meet(self, only: Container[Span] | None = None) -> None:
        """All have met, or some, whose accesses `only` to this memory are in order by that."""
        for spans in (self.reads, self.writes, self.private, self.ended):
            spans -= {s for s in spans if only is None or s in only}
        if only is None:
            self.stored.clear()

    def land(self, pending: int) -> None:
        """Each of the threads has waited for its own cp.async copies, for all that the others may
        read behind a barrier only."""
        self.writes |= self.flying
        self.unfenced |= self.flying
        if pending == 0:
            self.flying.clear()

    def fence(self) -> None:
        """Each of the threads has executed a proxy fence."""
        self.unfenced.clear()
        self.touched.clear()

    def copy(self) -> _Known:
        return _Known(*map(set, _sets(self)))


_sets = operator.attrgetter(*(f.name for f in fields(_Known)))


@dataclass
class _State:
    """What happened since the last barrier, by each group of threads."""

    groups: dict[Group, _Known] = field(default_factory=dict)

    def merge(self, other: _State) -> bool:
        """Either may be so; returns whether that is more than this was."""
        grown = [self.groups.setdefault(g, _Known()).merge(k) for g, k in other.groups.items()]
        return any(grown)

    def add(self, group: Group, known: _Known) -> None:
        self.groups.setdefault(group, _Known()).merge(known)

    def near(self, group: Group) -> _Known:
        """What threads of `group` may have done, together with whoever: to be read only."""
        if [*self.groups] == [group]:
            return self.groups[group]
        found = _Known()
        for g, known in self.groups.items():
            if _meet(g, group):
                found.merge(known)
                if g != group:  # who has not waited with them
                    found.reads |= known.ended
        return found

    def meet(self, group: Group = ALL, only: Container[Span] | None = None) -> None:
        """All threads of `group` have been at a barrier; `only` as of `_Known.meet`."""
        for g, known in self.groups.items():
            if _within(g, group):
                known.meet(only)

    def fence(self, group: Group = ALL) -> None:
        """Each thread of `group` has executed a proxy fence."""
        for g, known in self.groups.items():
            if _within(g, group):
                known.fence()

    def become(self, other: _State) -> None:
        self.groups = other.groups

    def copy(self) -> _State:
        return _State({g: known.copy() for g, known in self.groups.items()})


def _within(inner: Group, outer: Group) -> bool:
    if outer == ALL or inner == outer:
        return True
    return inner != ALL and outer[0] <= inner[0] and sum(inner) <= sum(outer)


def _meet(a: Group, b: Group) -> bool:
    return ALL in (a, b) or (a[0] < sum(b) and b[0] < sum(a))


@dataclass
class _Effects(_Known):
    """What one op does."""

    engine_reads: set[Span] = field(default_factory=set)
    refills: set[Value] = field(default_factory=set)  # by TMA, as the author says
    waited: bool = False  # for its reads, by all threads, each itself


def _syncs(blocks: Sequence[Block]) -> int:
    """Barriers and proxy fences in the blocks."""
    return sum(
        isinstance(o, (ops.Barrier, ops.ProxyFence)) for block in blocks for o in walk(block)
    )


def _overlap(xs: set[Span], ys: set[Span]) -> bool:
    return any(a[0] is b[0] and a[1] < b[2] and b[1] < a[2] for a in xs for b in ys)


class _Placer:
    def __init__(self, func: Func, target: Target) -> None:
        self.barrier, self.in_role = meeting(func), False
        self.threads = int(func.attrs["threads"] or 0)
        self.size = target.warp_size
        self.by_hand = bool(func.attrs.get("by_hand"))
        self.group = ALL  # whose code is walked
        self.numbers_of, self.numbered = _barrier_numbers(func), _numbered(func)
        self.uniformity, self.facts = uniformity_of(func), facts_of(func)
        self.spans: dict[Value, Span] = {}
        self.own_rings: set[Value] = set()
        self.root: dict[Value, Value] = {}
        self.refilled: set[Value] = set()  # rings that TMA writes to
        self.sent: set[Value] = set()  # buffers that other blocks fill by asynchronous copies
        self.numbers = ops.constants(func.body)
        self.done: dict[tuple[Op, Group, frozenset[Value]], tuple[_Effects, _Known]] = {}
        read = set(buffers_read(e for _, e in effects_in(func.body)))
        for o in walk(func.body):
            if isinstance(o, ops.Alloc) and o.type.space == "shared":
                size = stage_bytes(o.type) * o.type.stages
                placed = o.address >= 0
                memory, start = ("shared", o.address) if placed else (o.result, 0)
                self.spans[o.result] = (memory, start, start + size)
            if isinstance(o, ops.RingStage):
                self.root[o.result] = o.root
                if o.root in self.spans:
                    where, start, end = self.spans[o.root]
                    if o.stage in self.numbers:  # otherwise it may be any
                        size = stage_bytes(o.root.buffer)
                        start += int(self.numbers[o.stage]) * size
                        end = start + size
                    self.spans[o.result] = where, start, end
            if isinstance(o, ops.TmaLoad):
                self.refilled.add(self.root.get(o.dest, o.dest))
            if isinstance(o, ops.TmaCopy):
                self.refilled.add(o.dest.buffer)
            if isinstance(o, ops.ClusterCopy) and o.engine == "tma":
                self.refilled.add(o.dest.buffer)
                self.sent.add(o.dest.buffer)
        for v in written_tensors(func.body) & read:
            self.spans[v] = (v, 0, 1)
        by_engine = (e for _, e in effects_in(func.body) if e.reads and e.engine in _PROXY)
        used = {e.region.buffer for e in by_engine if e.region}
        self.engine_reads = {self.spans[v] for v in used if v in self.spans}
        self.by_threads = self._by_threads(func) if self.numbered else set()

    def _by_threads(self, func: Func) -> set[Span]:
        """The memory that no tile op touches: the author's threads have it in order among those
        that name one barrier."""
        tiles: set[Value] = set()
        for o in walk(func.body):
            if needs_all(o):
                inside = effects_in(o)
                tiles |= {e.region.buffer for _, e in inside if e.region and e.kind != "allocate"}
        return {span for v, span in self.spans.items() if v not in tiles}

    def span(self, v: Value) -> set[Span]:
        own = self.root.get(v, v) in self.own_rings
        return {self.spans[v]} if v in self.spans and not own else set()

    def effects(self, o: Op) -> _Effects:
        e = _Effects()
        for x, done in effects_in(o):
            if done.region is None or not allowed(type(x), "TILE"):
                continue  # ops of single threads are in order by who made them
            v = done.region.buffer
            span = self.span(v)
            if isinstance(x, ops.TmaCopy) and done.writes:
                e.refills.add(v)
            if isinstance(x, ops.ClusterCopy) and done.writes:
                continue  # that is in another block, which knows of it by other ways
            if done.private:
                e.private |= span
                continue
            if done.reads:
                e.reads |= span
                if done.engine in _PROXY:
                    e.engine_reads |= span
            if done.writes:
                e.writes |= span
                e.stored |= self.stored(v, x)
        e.unfenced = {s for s in e.writes if s[0] == "shared"}
        e.touched = self.touched(o)
        own = (
            self.by_hand and isinstance(o, ops.Gemm) and o.asynchronous
        )  # waited for by its author
        e.waited = not own and waited_by_all(o, self.group[1] * self.size or self.threads)
        return e

    def touched(self, o: Op) -> set[Value]:
        """The rings that TMA fills in whose stages threads read or write in `o`."""
        done = (e for e in o.effects() if e.reads or e.writes)
        used = {e.region.buffer for e in done if e.region and e.engine == "threads"}
        return {self.root.get(v, v) for v in used} & self.refilled

    def emptied(self, loop: ops.For, rings: set[Value]) -> set[Value]:
        """The rings of which every stage is full for all threads, and read, when the loop ends."""
        read_otherwise: set[Value] = set()
        for o, e in effects_in(loop.body):
            if e.region and (e.reads or e.engine == "tma") and not waited_by_all(o, self.threads):
                read_otherwise.add(self.root.get(e.region.buffer, e.region.buffer))
        return rings - read_otherwise

    def stored(self, v: Value, o: Op) -> set[Stored]:
        """Two statements that write one tensor may write an element each by another thread, unless
        each thread has elements of its own. Copies of one statement (`version_loops`) are of those
        that run one or the other."""
        if v.buffer.space != "global" or v in self.spans:
            return set()
        return {(v, (isinstance(o, ops.Store) and self.own_elements(o.indices)) or o.loc)}

    def own_elements(self, indices: Sequence[Value]) -> tuple[int, ...]:
        """Which elements of a tensor a thread writes, whatever else the indices depend on, where no
        other one writes them by such indices: those of one dimension that are as far from a
        multiple of all threads' as its own number says. () where that is not known."""
        found: tuple[int, ...] = ()
        for d, form in enumerate(map(self.facts.form, indices)):
            own = [v for v in form.terms if isinstance(self.facts.made_by(v), ops.ThreadIndex)]
            rest = form.terms.keys() - {*own}
            if any(self.uniformity.level(v) != Level.BLOCK for v in rest):
                return ()
            if own:
                most = self.facts.range(own[0])[1]
                if found or len(own) > 1 or most is None:
                    return ()
                step, others = form.terms[own[0]], form.without(own[0])
                all_ = abs(step) * (most + 1)
                if Affine(0, others.terms).divisor(self.facts.divisor) % all_:
                    return ()
                found = d, step, form.const % all_
        return found

    def block(self, block: Block, state: _State) -> Block:
        statements: list[Op] = []
        for o in block.ops:
            match o:
                case Op(pure=True):  # most are, and all else is asked in turn
                    statements.append(o)
                case ops.Scope() if o.name in ("consumer", "producer"):
                    self.in_role = True  # a barrier by hand is one of its threads
                    statements.append(replace(o, body=self.block(o.body, _State())))
                    self.in_role = False
                case ops.Scope():
                    self._enter(o, state, statements)
                    outer, self.group = self.group, (o.first_warp, o.warps)
                    statements.append(replace(o, body=self.block(o.body, state)))
                    self.group = outer
                case ops.For() | ops.While() | ops.If() if not together(o, self.uniformity):
                    self._before(o, state, statements)
                    statements.append(o)
                case ops.For():
                    statements.append(self._loop(o, state, statements))
                case ops.While():
                    cond, body = self._repeated((o.cond, o.body), state, statements)
                    self.block(o.cond, state)
                    statements.append(replace(o, cond=cond, body=body))
                case ops.If():
                    other = state.copy()
                    then = self.block(o.then, state)
                    orelse = self.block(o.orelse, other)
                    state.merge(other)
                    statements.append(replace(o, then=then, orelse=orelse))
                case ops.Barrier(number=Value(), threads=n) if n:
                    state.meet(self.group, self.by_threads)
                    statements.append(o)
                case ops.Barrier(id=0, threads=0, number=None) if self.group != ALL or self.in_role:
                    state.meet(self.group)
                    statements.append(self.meeting(o.loc))
                case ops.Barrier():
                    state.meet(self.group)
                    statements.append(o)
                case ops.GridSync():
                    state.meet()
                    statements.append(o)
                case ops.WarpSync() | ops.MbarrierArrive() | ops.ClusterBarrier() if (
                    self._must_fence(o, state)
                ):
                    # Each lane for itself, before one of them frees the stage for all.
                    statements += [ops.ProxyFence(loc=o.loc), o]
                    state.fence(self.group)
                    if isinstance(o, ops.ClusterBarrier) and not o.part:
                        state.meet()
                case ops.CpAsyncWait() if self.by_hand:
                    for g, known in state.groups.items():
                        if _within(g, self.group):
                            known.land(o.pending)
                    statements.append(o)
                case ops.ClusterBarrier(part="") if self.by_hand:
                    state.meet()
                    statements.append(o)
                case ops.ProxyFence():
                    state.fence(self.group)
                    statements.append(o)
                case _:
                    self._before(o, state, statements)
                    statements.append(o)
        return block if tuple(statements) == block.ops else Block(block.args, tuple(statements))

    def meeting(self, loc: Loc) -> ops.Barrier:
        """The barrier of the threads whose code is walked."""
        if self.group == ALL:
            return ops.Barrier(*self.barrier, loc=loc)
        number = self.numbers_of.get(self.group)
        if number is None and self.numbered is not None:
            raise CompileError(
                "a group of threads meets here, at a barrier that T.sync_threads may name: the "
                f"number in line {self.numbered.loc.line} is known at run time",
                loc,
                "write a compile-time number there, such as T.sync_threads(1, …)",
            )
        if number is None:
            raise CompileError(
                f"the threads part into more groups than the {NAMED_BARRIERS} barriers of a block",
                loc,
                "use fewer groups, or move tile ops out of some of them",
            )
        return ops.Barrier(number, self.group[1] * self.size, loc=loc)

    def _must_fence(self, o: Op, state: _State) -> bool:
        """Whether what these threads did must be before what asynchronous engines do for those who
        learn of it by `o`."""
        known = state.near(self.group)
        if isinstance(o, ops.ClusterBarrier):  # others learn that their copies may come
            return o.part != "wait" and not known.touched.isdisjoint(self.sent)
        by_hand = isinstance(o, ops.MbarrierArrive) and o.guard is None
        return bool(known.touched) or (by_hand and _overlap(known.unfenced, self.engine_reads))

    def _enter(self, o: ops.Scope, state: _State, statements: list[Op]) -> None:
        """Let all threads meet in front of a group's code, where it touches what others than the
        group, be they more or fewer of its threads, have left."""
        group = o.first_warp, o.warps
        e, others = self.effects(o), _Known()
        for g, known in state.groups.items():
            if g != group and _meet(g, group):
                others.merge(known)
                others.reads |= known.ended
        if _overlap(e.engine_reads, others.unfenced) or e.refills & others.touched:
            statements.append(ops.ProxyFence(loc=o.loc))
            state.fence(self.group)
        if _conflict(e, others):
            statements.append(self.meeting(o.loc))
            state.meet(self.group)

    def _loop(self, o: ops.For, state: _State, statements: list[Op]) -> ops.For:
        rings = set()
        if o.kind == "pipelined":
            rings = {x.root for x in o.body.every(ops.RingStage)} - self.own_rings
        kept = rings - self.emptied(o, rings)
        ring_spans = set().union(*(self.span(v) for v in kept)) if kept else set()
        filled = kept - self.refilled  # what TMA fills its readers wait for by themselves
        written = set().union(*(self.span(v) for v in filled)) if filled else set()
        self.own_rings |= rings
        (body,) = self._repeated((o.body,), state, statements)
        if runs(o, self.numbers):
            self.block(o.body, state)
        self.own_rings -= rings
        state.add(self.group, _Known(reads=set(ring_spans), writes=written))
        return replace(o, body=body)

    def _repeated(
        self, regions: tuple[Block, ...], state: _State, statements: list[Op]
    ) -> Sequence[Block]:
        """The regions of a loop, one behind the other. `state` becomes what may be so whenever they
        begin. What no iteration needs but the first stands in front of the loop, in `ops`."""
        done, after = self._fixed(regions, state)
        loc = regions[-1].ops[-1].loc
        meeting = self.meeting(loc)
        front: tuple[Op, ...] = ()
        for before in ((meeting,), (ops.ProxyFence(loc=loc), meeting)):
            if _syncs(done) == _syncs(regions):
                break
            first = state.copy()
            first.meet(self.group)
            if len(before) > 1:
                first.fence(self.group)
            tried, then = self._fixed(regions, first)
            if _syncs(tried) < _syncs(done):
                done, after, front = tried, then, before
        statements += front
        state.become(after)
        return done

    def _fixed(self, regions: Sequence[Block], state: _State) -> tuple[list[Block], _State]:
        """The regions, where each may follow what is so at the loop's beginning, or the last one;
        and what may be so whenever they begin."""
        state = state.copy()
        while True:
            after = state.copy()
            done = [self.block(region, after) for region in regions]
            if not state.merge(after):
                return done, state

    def _before(self, o: Op, state: _State, statements: list[Op]) -> None:
        """Put what `o` needs before it, and note what it does."""
        key = o, self.group, frozenset(self.own_rings)
        if key not in self.done:  # loops are walked until nothing is new
            e = self.effects(o)
            self.done[key] = e, self._left(o, e)
        e, left = self.done[key]
        known = state.near(self.group)
        if _overlap(e.engine_reads, known.unfenced) or e.refills & known.touched:
            statements.append(ops.ProxyFence(loc=o.loc))
            state.fence(self.group)
        if _conflict(e, known):
            statements.append(self.meeting(o.loc))
            state.meet(self.group)
        state.add(self.group, left)

    def _left(self, o: Op, e: _Effects) -> _Known:
        """What of the effects of `o` others must know of behind it."""
        left = e.copy()
        if e.waited:
            left.ended |= left.reads
            left.reads.clear()
        flying = self.by_hand and any(x.engine == "cp_async" for x in o.effects())
        if flying:
            left.flying |= left.writes
        if flying or e.refills:
            # Who has waited for them may read them; no barrier lets them arrive.
            left.writes.clear()
            left.unfenced.clear()
        return left


def _conflict(e: _Effects, known: _Known) -> bool:
    """Whether the threads that did what is `known` must have met before `e`."""
    busy = known.writes | known.reads
    return (
        _overlap(e.reads, known.writes | known.private)
        or _overlap(e.writes, busy | known.private)
        or _overlap(e.private, busy | (known.private - e.private))
        or any(v is w and at != there for v, at in e.stored for w, there in known.stored)
    )


def _numbered(func: Func) -> ops.Barrier | None:
    """A barrier whose number is known at run time, if there is one."""
    found = (o for o in func.body.every(ops.Barrier) if o.number is not None)
    return next(found, None)


def _barrier_numbers(func: Func) -> dict[Group, int]:
    """A named barrier for each group of threads, of those that the author does not use."""
    scopes = [o for o in func.body.every(ops.Scope)]
    groups = dict.fromkeys((o.first_warp, o.warps) for o in scopes)
    taken = {o.id for o in walk(func.body) if isinstance(o, (ops.Barrier, ops.BarrierArrive))}
    if _numbered(func) is not None:  # it may be any of them
        return {}
    free = (n for n in range(NAMED_BARRIERS - 1, 0, -1) if n not in taken)
    return dict(zip(groups, free))
