"""insert_sync: barriers and proxy fences where threads exchange data through shared or global
memory.

Before: pipelined rings are in order among themselves; nothing else is synchronised. After: between
two accesses of the same bytes by different threads, one of them a write, every path has a barrier
of the scope; between a thread's write and an asynchronous engine's read, and between what a thread
does in a ring's stage and TMA's next write there, is also a proxy fence.

The pass walks each scope, keeping what has been read and written since the last barrier; a loop's
body is walked until its end brings nothing new to its beginning, and behind the loop counts also
what was so before it, unless it is known to run. A barrier that only its first iteration needs
stands in front of the loop. Where threads part (a condition that is not the same for all of them)
no barrier may stand: what is inside counts as one access, and what its threads exchange among
themselves there is the user's to order. Two shared buffers conflict where their bytes overlap
(`plan_shared` comes first; on the CPU, whose thread-level code is cut at these barriers, each has
bytes of its own). A group of threads that the author parted off (a scope) has barriers of its own
for what it exchanges inside of itself. What one branch has left for the threads of another all meet
for, in front of that, unless the author has barriers between groups: then it is his to order, but
for the proxy fence before he lets others know of it (`mbarrier_arrive`). Accesses inside a
pipelined loop to its own rings are skipped, but where threads change what TMA has brought:
`expand_pipeline` ordered them; the loop as a whole reads and writes them. Where the whole scope is
the one group of threads that executes an asynchronous product, its wait tells each that all have
read the operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.effects import buffers_read, changing_tensors, effects_in
from tilec.ir.loc import Loc
from tilec.ir.uniformity import uniformity_of
from tilec.ir.verify import allowed, meets, needs_all
from tilec.passes.utils.accesses import together
from tilec.passes.utils.branch_parts import always_at, in_parts
from tilec.passes.utils.dependence import runs
from tilec.passes.utils.groups import GroupBarriers
from tilec.passes.utils.own_elements import is_unordered, own_elements, own_places, phases
from tilec.passes.utils.rings import changed_rings, waited_by_all
from tilec.passes.utils.sync_state import (
    ALL,
    Effects,
    Group,
    Known,
    Span,
    State,
    Stored,
    conflict,
    meet_one_another,
    overlap,
)
from tilec.target import Target

_PROXY = ("tma", "wgmma")  # engines of the asynchronous proxy


def insert_sync(func: Func, target: Target) -> Func:
    if func.attrs.get("tilelang") and not func.attrs.get("by_hand"):
        placer = _Placer(func, target)
        func = func.with_body(placer.cut(func.body))
    return func.with_body(_Placer(func, target).block(func.body, State()))


def _is_authors(o: Op) -> bool:
    """Whether groups of threads let one another know by `o` of what they have done."""
    if isinstance(o, ops.Barrier):
        return bool(o.id or o.threads or o.number is not None)
    return isinstance(o, ops.BarrierArrive | ops.MbarrierArrive | ops.MbarrierWait)


def _sides(statements: Sequence[Op], first: int) -> list[ops.Scope]:
    """The groups' code that stands side by side in one branch of the author's."""
    found: list[ops.Scope] = []
    for o in statements[first:]:
        if isinstance(o, ops.Scope) and o.loc is statements[first].loc:
            found.append(o)
        elif not o.pure:
            break
    return found


def _syncs(blocks: Sequence[Block]) -> int:
    """Barriers and proxy fences in the blocks."""
    return sum(
        isinstance(o, (ops.Barrier, ops.ProxyFence)) for block in blocks for o in walk(block)
    )


class _Placer:
    def __init__(self, func: Func, target: Target) -> None:
        self.in_role = False
        self.threads = int(func.attrs["threads"] or 0)
        self.size = target.warp_size
        self.by_hand = bool(func.attrs.get("by_hand"))
        self.ordered = any(map(_is_authors, walk(func.body)))
        self.group = ALL  # whose code is walked
        self.barriers = GroupBarriers(func, target.warp_size)
        self.uniformity, self.facts = uniformity_of(func), facts_of(func)
        self.spans: dict[Value, Span] = {}
        self.own_rings: set[Value] = set()
        self.root: dict[Value, Value] = {}
        self.refilled: set[Value] = set()  # rings that TMA writes to
        self.numbers = ops.constants(func.body)
        self.done: dict[tuple[Op, Group, frozenset[Value]], tuple[Effects, Known]] = {}
        read = set(buffers_read(e for _, e in effects_in(func.body)))
        for o in walk(func.body):
            if isinstance(o, ops.Alloc) and o.type.space == "shared":
                size = o.type.stage_bytes * o.type.stages
                placed = o.address >= 0
                memory, start = ("shared", o.address) if placed else (o.result, 0)
                self.spans[o.result] = (memory, start, start + size)
            if isinstance(o, ops.RingStage):
                self.root[o.result] = o.root
                if o.root in self.spans:
                    where, start, end = self.spans[o.root]
                    if o.stage in self.numbers:  # otherwise it may be any
                        size = o.root.buffer.stage_bytes
                        start += int(self.numbers[o.stage]) * size
                        end = start + size
                    self.spans[o.result] = where, start, end
            if isinstance(o, ops.TmaLoad):
                self.refilled.add(self.root.get(o.dest, o.dest))
            if isinstance(o, ops.TmaCopy):
                self.refilled.add(o.dest.buffer)
        self.sent = {o.dest.buffer for o in func.body.every(ops.ClusterCopy) if o.engine == "tma"}
        self.refilled |= self.sent
        self.changed = changed_rings(func.body)
        tensors, overlapping = changing_tensors(func), bool(func.attrs.get("passed_twice"))
        if not overlapping:
            tensors &= read
        self.spans |= {v: ("tensors" if overlapping else v, 0, 1) for v in tensors}
        self.conditions = [*func.body.every(ops.Compare)] if func.attrs.get("tilelang") else []
        self.in_loops = {o for p in func.body.every(ops.Parallel) for o in walk(p.body)}
        alike = Counter(self.spans[v] for v in self.spans if v not in self.root)
        own = own_elements(func, self.root, tensors, self.uniformity, self.size)
        single = {v for v in own if v in self.spans and alike[self.spans[v]] == 1}
        self.owned = {v: own[v] for v in single}
        self.phases = phases(func, self.root, self.uniformity, self.size)
        by_engine = (e for _, e in effects_in(func.body) if e.reads and e.engine in _PROXY)
        used = {e.region.buffer for e in by_engine if e.region}
        self.engine_reads = {self.spans[v] for v in used if v in self.spans}
        self.told_by_copies = {o.barrier for o in func.body.every(ops.MbarrierArrive) if o.copies}
        copies = (e.buffer for _, e in effects_in(func.body) if e.engine == "cp_async" and e.writes)
        self.copied = {self.spans[v] for v in copies if v in self.spans}
        self.by_threads = self._by_threads(func) if self.barriers.numbered else set()

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

    def effects(self, o: Op) -> Effects:
        e = Effects()
        for x, done in effects_in(o):
            if done.region is None or not allowed(type(x), "TILE"):
                continue  # ops of single threads are in order by who made them
            v = done.region.buffer
            span = self.span(v)
            if isinstance(x, ops.TmaCopy) and done.writes:
                e.refills.add(v)
            if isinstance(x, ops.ClusterCopy) and done.writes:
                continue  # that is in another block, which knows of it by other ways
            by_thread = isinstance(x, ops.ElementAccess) and x not in self.in_loops
            own = by_thread and done.engine == "threads" and self.root.get(v, v) in self.owned
            if own:
                e.private |= span
                if self.owned[self.root.get(v, v)] > 1:
                    e.lanes_read |= span if done.reads else set()
                    e.lanes_wrote |= span if done.writes else set()
                if done.writes:
                    e.unfenced |= {s for s in span if s[0] == "shared"}
                    e.there |= span
                continue
            if done.private:
                e.private |= span
                continue
            if x in self.phases or is_unordered(x, self.facts):
                e.owned |= {(s, self.phases.get(x, x)) for s in span}
                e.unfenced |= {s for s in span if done.writes and s[0] == "shared"}
                e.there |= span
                e.stored |= self.stored(v, x)
                continue
            if done.reads:
                e.reads |= span
                if done.engine in _PROXY:
                    e.engine_reads |= span
            if done.writes:
                e.writes |= span
                if self.by_hand and done.engine == "cp_async":
                    e.flying |= span
                elif not isinstance(x, ops.TmaCopy):
                    e.there |= span
                e.stored |= self.stored(v, x)
        e.unfenced |= {s for s in e.writes if s[0] == "shared"}
        e.touched = self.touched(o)
        own = self.by_hand and isinstance(o, ops.Gemm) and o.asynchronous  # its author waits
        alone = waited_by_all(o, self.group[1] * self.size or self.threads)
        e.waited = alone and not own
        if isinstance(o, ops.Gemm) and o.asynchronous and not alone:
            e.running |= {(o.c, s) for s in e.reads if s[0] == "shared"}
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
        each thread has elements of its own, or they are of other boxes. Copies of one statement
        (`version_loops`) are of those that run one or the other."""
        if v.space != "global" or v in self.spans:
            return set()
        if not isinstance(o, ops.Store):
            return {Stored(v, o.loc)}
        box = tuple(map(self.facts.range, o.indices))
        return {Stored(v, own_places(o, self.facts, self.uniformity) or o.loc, box)}

    def block(self, block: Block, state: State) -> Block:
        statements: list[Op] = []
        entered: Loc | None = None  # the branch that the last group's code is a side of
        for n, o in enumerate(block.ops):
            if isinstance(o, ops.Scope):
                sides = _sides(block.ops, n) if o.loc is not entered else []
                for side in sides if not self.ordered else []:
                    self._enter(side, state, statements, True)
                entered = o.loc
            elif not o.pure:
                entered = None
            match o:
                case Op(pure=True):  # most are, and all else is asked in turn
                    statements.append(o)
                case ops.Scope() if o.name in ("consumer", "producer"):
                    self.in_role = True  # a barrier by hand is one of its threads
                    statements.append(replace(o, body=self.block(o.body, State())))
                    self.in_role = False
                case ops.Scope():
                    self._enter(o, state, statements)
                    outer, self.group = self.group, (o.first_warp, o.warps)
                    statements.append(replace(o, body=self.block(o.body, state)))
                    self.group = outer
                case ops.For() | ops.While() | ops.If() if not together(o, self.uniformity):
                    arrivals = (x for x in walk(o) if isinstance(x, ops.MbarrierArrive))
                    if any(self._must_fence(x, state) for x in arrivals):
                        # One lets others know what all have done: each fences, and all meet.
                        statements += [ops.ProxyFence(loc=o.loc), self.meeting(o.loc)]
                        state.each(self.group, Known.fence)
                        state.each(self.group, Known.meet)
                    self._before(o, state, statements)
                    statements.append(o)
                case ops.For() if o.kind != "vectorized" or meets(o.body):
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
                case ops.Barrier():
                    statements.append(self._barrier(o, state))
                case ops.WarpSync() | ops.MbarrierArrive() | ops.ClusterBarrier() if (
                    self._must_fence(o, state)
                ):
                    statements += self._fenced(o, state)
                case ops.OrderedWait() if o.warpgroups:
                    self._before_turn(block.ops[n:], state, statements)
                    statements.append(o)
                case _:
                    if not self._orders(o, state):
                        self._before(o, state, statements)
                    statements.append(o)
        return block.with_ops(statements)

    def _orders(self, o: Op, state: State) -> bool:
        """Whether a statement only orders others, noted in `state`: it needs nothing before it."""
        match o:
            case ops.GridSync():
                state.each(ALL, Known.meet)
            case ops.ClusterBarrier(part="") if self.by_hand:
                state.each(ALL, Known.meet)
            case ops.WarpSync():
                state.each(self.group, Known.meet_lanes)
            case ops.MbarrierWait() if o.barrier in self.told_by_copies:
                # Who started the copies could not fence them.
                state.add(self.group, Known(unfenced=self.copied & self.engine_reads))
            case ops.WgmmaWait():
                state.each(self.group, Known.drain, o.pending, o.fragments)
            case ops.CpAsyncWait() if self.by_hand:
                state.each(self.group, Known.land, o.pending)
            case ops.ProxyFence():
                state.each(self.group, Known.fence)
            case _:
                return False
        return True

    def _barrier(self, o: ops.Barrier, state: State) -> ops.Barrier:
        """One of the author's, for the threads that are meant."""
        match o:
            case ops.Barrier(number=Value(), threads=n) if n:
                state.each(self.group, Known.meet, self.by_threads)
                return o
            case ops.Barrier(id=0, threads=0, number=None) if self.group != ALL or self.in_role:
                o = self.meeting(o.loc)
            case ops.Barrier(threads=0) if (o.id or o.number) and self.barriers.whole[1]:
                # Of all threads of the program, beside which there are producer warps.
                o = replace(o, threads=self.barriers.whole[1])
        state.each(self.group, Known.meet)
        return o

    def _fenced(self, o: Op, state: State) -> list[Op]:
        """A fence of each lane for itself, before one of them frees the stage for all."""
        state.each(self.group, Known.fence)
        if isinstance(o, ops.ClusterBarrier) and not o.part:
            state.each(ALL, Known.meet)
        if isinstance(o, ops.WarpSync):
            state.each(self.group, Known.meet_lanes)
        return [ops.ProxyFence(loc=o.loc), o]

    def cut(self, block: Block) -> Block:
        """`block` with each branch that some threads take, and in which they exchange data, in
        parts between which all meet: TileLang has such threads in order."""
        found: list[Op] = []
        for o in block.ops:
            if isinstance(o, ops.For | ops.While | ops.If) and together(o, self.uniformity):
                found.append(o.with_regions(self.cut))
            elif isinstance(o, ops.If) and (at := self._exchanges(o)):
                found += in_parts(o, at, self.meeting)
            else:
                found.append(o)
        return block.with_ops(found)

    def _exchanges(self, o: ops.If) -> list[int]:
        """The ops in a branch that need what threads that take it have done in front of them, where
        its author has not put them in order."""
        by_hand = any(isinstance(x, ops.WarpSync) or needs_all(x) for x in walk(o))
        cond = next((x for x in self.conditions if x.result is o.cond), None)
        other = any(not x.pure and not isinstance(x, ops.Yield) for x in walk(o.orelse))
        if by_hand or other or (cond is not None and cond.kind == "eq"):
            return []
        kept, self.own_rings = self.own_rings, always_at(o.then, self.facts)
        state, at = State(), list[int]()
        for n, x in enumerate(o.then.ops):
            put: list[Op] = []
            if not x.pure and not isinstance(x, ops.Yield):
                self._before(x, state, put)
            if any(isinstance(p, ops.Barrier) for p in put):
                at.append(n)
        self.own_rings = kept
        return at

    def meeting(self, loc: Loc) -> ops.Barrier:
        """The barrier of the threads whose code is walked."""
        return self.barriers.of(self.group, loc)

    def _must_fence(self, o: Op, state: State) -> bool:
        """Whether what these threads did must be before what asynchronous engines do for those who
        learn of it by `o`."""
        known = state.near(self.group)
        if isinstance(o, ops.ClusterBarrier):  # others learn that their copies may come
            return o.part != "wait" and not known.touched.isdisjoint(self.sent)
        by_hand = isinstance(o, ops.MbarrierArrive) and o.guard is None
        return bool(known.touched) or (by_hand and overlap(known.unfenced, self.engine_reads))

    def _enter(self, o: ops.Scope, state: State, statements: list[Op], every: bool = False) -> None:
        """Let all threads meet in front of a group's code, where it touches what others than the
        group, be they more or fewer of its threads, have left; with `every`, threads of which none
        is one of its own, but for what each writes of a tensor that nobody reads."""
        group = o.first_warp, o.warps
        e, others = self.effects(o), Known()
        for g, known in state.groups.items():
            near = meet_one_another(g, group)
            if g != group and (every or near):
                others.merge(known if near else replace(known, stored=set()))
                others.reads |= known.ended
        self._order(e, others, o.loc, state, statements)

    def _loop(self, o: ops.For, state: State, statements: list[Op]) -> ops.For:
        rings = set()
        if o.kind == "pipelined":
            rings = {x.root for x in o.body.every(ops.RingStage)} - self.own_rings - self.changed
        kept = rings - self.emptied(o, rings)
        ring_spans = set().union(*(self.span(v) for v in kept)) if kept else set()
        filled = kept - self.refilled  # what TMA fills its readers wait for by themselves
        written = set().union(*(self.span(v) for v in filled)) if filled else set()
        self.own_rings |= rings
        (body,) = self._repeated((o.body,), state, statements)
        if runs(o, self.numbers):
            self.block(o.body, state)
        self.own_rings -= rings
        state.add(self.group, Known(reads=set(ring_spans), writes=written))
        return replace(o, body=body)

    def _repeated(
        self, regions: tuple[Block, ...], state: State, statements: list[Op]
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
            first.each(self.group, Known.meet)
            if len(before) > 1:
                first.each(self.group, Known.fence)
            tried, then = self._fixed(regions, first)
            if _syncs(tried) < _syncs(done):
                done, after, front = tried, then, before
        statements += front
        state.groups = after.groups
        return done

    def _fixed(self, regions: Sequence[Block], state: State) -> tuple[list[Block], State]:
        """The regions, where each may follow what is so at the loop's beginning, or the last one;
        and what may be so whenever they begin."""
        state = state.copy()
        while True:
            after = state.copy()
            done = [self.block(region, after) for region in regions]
            if not state.merge(after):
                return done, state

    def _before(self, o: Op, state: State, statements: list[Op]) -> None:
        """Put what `o` needs before it, and note what it does."""
        e, left = self._known(o)
        self._order(e, state.near(self.group), o.loc, state, statements)
        known = state.near(self.group)
        if overlap(e.lanes_wrote, known.lanes_read | known.lanes_wrote) or overlap(
            e.lanes_read, known.lanes_wrote
        ):
            statements.append(ops.WarpSync(loc=o.loc))
            state.each(self.group, Known.meet_lanes)
        if self.by_hand and o.has(ops.CpAsyncWait):
            state.each(self.group, Known.land)
        state.add(self.group, left)

    def _before_turn(self, left: Sequence[Op], state: State, put: list[Op]) -> None:
        # Who has the turn meets nobody: the others, who wait for it, meet for its products before.
        for o in takewhile(lambda o: not o.has(ops.OrderedArrive), left):
            if isinstance(o, ops.Gemm):
                self._order(self._known(o)[0], state.near(self.group), o.loc, state, put)

    def _known(self, o: Op) -> tuple[Effects, Known]:
        """What `o` does, and what of it others must know of behind it."""
        key = o, self.group, frozenset(self.own_rings)
        if key not in self.done:  # loops are walked until nothing is new
            e = self.effects(o)
            self.done[key] = e, self._left(o, e)
        return self.done[key]

    def _order(self, e: Effects, known: Known, loc: Loc, state: State, put: list[Op]) -> None:
        """Put the fence and the barrier here that these effects need behind what is known."""
        if overlap(e.engine_reads, known.unfenced) or e.refills & known.touched:
            put.append(ops.ProxyFence(loc=loc))
            state.each(self.group, Known.fence)
        if conflict(e, known):
            put.append(self.meeting(loc))
            state.each(self.group, Known.meet)

    def _left(self, o: Op, e: Effects) -> Known:
        """What of the effects of `o` others must know of behind it."""
        left = e.copy()
        if e.waited:
            left.ended |= left.reads
            left.reads.clear()
        if not o.has(ops.CpAsyncWait):
            # Who has waited for the others may read them; no barrier lets them arrive.
            left.writes &= e.there
            left.unfenced &= e.there
        return left
