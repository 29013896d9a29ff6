"""check_schedule: what runs ahead of its readers is executed, in small, before any code is made.

Before and after: SCHEDULED; nothing is changed. The pass knows nothing of the passes that made the
schedule. One thread for each scope (each group of it) runs through the function with numbers for
its sizes, so that loops have no, one and several iterations more than stages (of many the first and
the last ones), two tiles of a persistent loop among them. The producers go as far ahead as stages
let them, and asynchronous products end as late as they may. Raises InternalError, for a pass is at
fault, where

- a stage is read that is not filled, or is filled again, or whose copy nobody has waited for;
- a stage is filled while a product reads it, or threads do whom no barrier has stopped since;
- a fragment is touched while a product is in flight that uses it, or is left so at the end;
- a scope waits for what no other will do any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tilec.ir import ops
from tilec.ir.clusters import cluster_of
from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.effects import effects_in
from tilec.ir.errors import InternalError
from tilec.ir.fold import fold
from tilec.passes.utils.rings import waited_by_all
from tilec.passes.utils.schedule_program import Program, box_bytes
from tilec.target import Target

SIZES = (0, 1, 4096)  # what every run-time size is, one after the other
STEPS = 3000  # ops that a thread executes at most with each
AGAIN = 3  # iterations that a `while` has
Stage = tuple[Value, int]  # of a ring, or of a barrier


def check_schedule(func: Func, target: Target) -> Func:
    asynchronous = (ops.TmaLoad, ops.CpAsyncCommit, ops.WgmmaWait)
    if func.attrs.get("by_hand"):
        return func  # the author's schedule: the simulator executes it
    if func.body.has(*asynchronous):
        program = Program(func)
        for size in SIZES:
            _Machine(program, size).run()
    return func


@dataclass
class _Phases:
    """A stage of a barrier: phases that have ended, bytes still to come in this one, and the stages
    of rings that they fill."""

    ended: int = 0
    bytes: int = 0
    filling: list[Stage] = field(default_factory=list)


class _Machine:
    """What the scopes share."""

    def __init__(self, program: Program, size: int) -> None:
        self.program = program
        self.size = size
        self.steps = 0  # of all threads
        self.barriers: dict[Stage, _Phases] = {}
        self.fills: Counter[Stage] = Counter()
        self.landed: Counter[Stage] = Counter()  # of these, when the last has come
        self.awaited: Counter[Stage] = Counter()  # and when somebody has waited for it
        self.turns: Counter[int] = Counter()
        self.threads: list[_Thread] = []
        self.told: dict[Stage, int] = {}  # by a producer
        self.counters: Counter[Value] = Counter()

    def run(self) -> None:
        func = self.program.func
        first = _Thread(self, 0)
        for p in func.params:
            first.env[p.value] = min(self.size, 3) if p.role == "grid" else self.size
        for _ in first.block(func.body):
            pass

    def together(self, scopes: list[ops.Scope], outer: _Thread) -> None:
        """The scopes at the same time: the producers whenever they can."""
        order = sorted(scopes, key=lambda o: o.name != "producer")
        self.threads = [
            _Thread(self, group, outer) for o in order for group in range(o.consumer_groups)
        ]
        runs = [
            (thread, thread.block(o.body))
            for thread, o in zip(self.threads, (o for o in order for _ in range(o.consumer_groups)))
        ]
        waiting: list[ops.MbarrierWait | ops.OrderedWait | None] = [None] * len(runs)
        stopped = False
        while runs:
            before = self.steps
            for n, (thread, run) in enumerate(runs):
                try:
                    waiting[n] = next(run)
                except StopIteration:
                    thread.end()
                    del runs[n], waiting[n]
                    break
                if thread.steps > STEPS:
                    stopped = True
                    del runs[n], waiting[n]
                    break
                if waiting[n] is None:
                    break
            else:
                if self.steps > before:
                    continue
                if stopped:
                    return
                o = next(o for o in waiting if o is not None)
                raise _fault(o, "waits for what no other scope does any more")

    def stage(self, barrier: Value, number: int) -> _Phases:
        return self.barriers.setdefault((barrier, number), _Phases())


class _Thread:
    """One thread of a scope: the first of its group, in the first block."""

    def __init__(self, machine: _Machine, group: int, outer: _Thread | None = None) -> None:
        self.machine, self.program, self.group = machine, machine.program, group
        self.env: dict[Value, Any] = dict(outer.env) if outer else {}
        self.memory: dict[Value, Any] = {}  # of variables
        self.place: dict[Value, Stage] = dict(outer.place) if outer else {}
        self.seen: Counter[Stage] = Counter()  # fills that it has waited for
        self.products: list[ops.Gemm] = []  # in flight, oldest first
        self.reading: list[set[Stage]] = []  # by each of them
        self.telling: list[Stage] = []  # stages written that nobody has been told of
        self.started: set[Stage] = set()  # by cp.async, not committed
        self.groups: list[set[Stage]] = []  # committed, oldest first
        self.hidden: set[Stage] = set()  # come, or written, but no barrier since
        self.read: set[Stage] = set()  # since the last barrier
        self.steps = 0

    # --- control ---

    def block(self, block: Block) -> Iterator[ops.MbarrierWait | ops.OrderedWait | None]:
        statements, env = self.program.ops(block), self.env
        scopes = [o for o in statements if isinstance(o, ops.Scope)]
        for o in statements:
            self.machine.steps += 1
            self.steps += 1
            if self.steps > STEPS:
                yield None
            match o:
                case ops.For():
                    yield from self._for(o)
                case ops.While():
                    yield from self._while(o)
                case ops.If():
                    chosen = o.then if self.env.get(o.cond, True) else o.orelse
                    yield from self.block(chosen)
                    self.env.update(zip(o.results, self._known(ops.yielded(chosen))))
                case ops.Scope():
                    if o is scopes[0]:
                        self.machine.together(scopes, self)
                case ops.MbarrierWait():
                    phases, parity = self.machine.stage(o.barrier, env[o.stage]), env[o.parity]
                    while o.barrier in self.program.barriers and phases.ended % 2 == parity:
                        yield o
                    for stage in phases.filling:
                        self.seen[stage] = self.machine.landed[stage]
                        self.machine.awaited[stage] = self.machine.landed[stage]
                case ops.OrderedWait() | ops.OrderedArrive() if o.warpgroups:
                    pass  # the scope's one thread here is of the first warpgroup, whose turn comes
                case ops.OrderedWait():
                    while not self.machine.turns[self.group]:
                        yield o
                    self.machine.turns[self.group] -= 1
                case ops.OrderedArrive():
                    self.machine.turns[(self.group + 1) % self.program.consumer_groups] += 1
                case ops.MbarrierArrive():
                    if o.guard is None or self.env.get(o.guard, True):
                        self.arrive(self.machine.stage(o.barrier, self.env[o.stage]))
                        yield None
                case _:
                    self.op(o)

    def _for(self, o: ops.For) -> Iterator[ops.MbarrierWait | ops.OrderedWait | None]:
        lo, hi, step = (self.env.get(v, 1) for v in (o.lo, o.hi, o.step))
        step = max(int(step), 1)
        early = max(o.stage, default=0)  # iterations whose beginnings stand in front of the loop
        indices = range(lo - early * step, hi, step)
        first = self.program.stages + 2 if o.kind == "pipelined" else 2
        last = max(2, self.program.stages)  # what the iterations before these started has ended
        if o.versions > 1:  # as many iterations of the author's as who does them one by one
            first, last = (first + last) // 2 - last // 2, last // 2
        else:
            first += (len(indices) - first - last) % 2
        if self.program.consumer_groups == 1 and len(indices) > first + last:
            indices = (*indices[:first], *indices[-last:])  # type: ignore[assignment]
        indices = indices[early:]
        values = self._known(o.inits)
        for i in indices:
            self.env[o.body.args[0]] = i
            self.env.update(zip(o.body.args[1:], values))
            yield from self.block(o.body)
            values = self._known(ops.yielded(o.body))
        self.env.update(zip(o.results, values))

    def _while(self, o: ops.While) -> Iterator[ops.MbarrierWait | ops.OrderedWait | None]:
        values = self._known(o.inits)
        for _ in range(AGAIN):
            self.env.update(zip(o.cond.args, values))
            yield from self.block(o.cond)
            if not self.env.get(ops.yielded(o.cond)[0], True):
                break
            self.env.update(zip(o.body.args, values))
            yield from self.block(o.body)
            values = self._known(ops.yielded(o.body))
        self.env.update(zip(o.results, values))

    def _known(self, values: tuple[Value, ...]) -> list[Any]:
        return [self.env.get(v, 0) for v in values]

    # --- ops ---

    def op(self, o: Op) -> None:
        env = self.env
        match o:
            case ops.Const() | ops.Binary() | ops.Compare() | ops.Cast():
                env[o.result] = fold(o, lambda v: env.get(v, 0)) or 0
            case ops.Select():
                env[o.result] = env.get(o.on_true if env.get(o.cond, True) else o.on_false, 0)
            case ops.ConsumerGroup():
                env[o.result] = self.group
            case ops.GridSize():  # one block, or cluster
                env[o.result] = cluster_of(self.program.func)[o.dim]
            case ops.Load() if o.source.space == "local":
                if o.source not in self.memory:
                    raise _fault(o, f"reads {o.source.name}, which nothing has set")
                env[o.result] = self.memory[o.source]
            case ops.Load() if o.result in self.program.wanted:
                at = self.place.get(o.source)
                env[o.result] = self.machine.told.get(at) if at else None
                if env[o.result] is None:
                    env[o.result] = self._somewhere(o)
                self.touch(o)
            case ops.Store() if self.program.root.get(o.dest) in self.program.told:
                stage = self.place[o.dest]
                self.fill(o, stage)
                self.machine.told[stage] = env.get(o.value, 0)
                self.telling.append(stage)
            case ops.Atomic():
                env[o.result] = self.machine.counters[o.dest]
                self.machine.counters[o.dest] += o.kind == "add"
                self.touch(o)
            case ops.Store() if o.dest.space == "local":
                self.memory[o.dest] = env.get(o.value, 0)
            case ops.RingStage():
                if o.root in self.place:
                    raise _fault(o, f"takes a stage of {o.root.name}, which is one itself")
                self.place[o.result] = (o.root, env[o.stage])
            case ops.MbarrierExpect():
                self.machine.stage(o.barrier, env[o.stage]).bytes += o.bytes
                self.machine.stage(o.barrier, env[o.stage]).filling = []
            case ops.TmaLoad():
                self.load(o)
            case ops.CpAsyncCommit():
                self.groups.append(self.started)
                self.started = set()
            case ops.CpAsyncWait():
                while len(self.groups) > o.pending:
                    self.hidden |= self.groups.pop(0)
            case ops.WgmmaWait():
                ended = max(len(self.products) - o.pending, 0)
                del self.products[:ended], self.reading[:ended]
            case ops.Barrier():
                self.hidden.clear()
                self.read.clear()
            case _ if o.pure:
                env.update((r, 0) for r in o.results)
            case _:
                self.touch(o)

    def _somewhere(self, o: ops.Load) -> int:
        """What an element of a tensor is: the same number for all who ask, small, and not always
        the same."""
        return int(sum(self.env.get(v, 0) for v in o.indices) + self.machine.size) % 3

    def fill(self, o: Op, stage: Stage) -> None:
        for thread in self.machine.threads:
            if any(stage in held for held in thread.reading):
                raise _fault(o, f"fills stage {stage[1]} while a product reads it")
        if self.machine.awaited[stage] < self.machine.fills[stage]:
            raise _fault(o, f"fills stage {stage[1]} again that nobody has waited for")
        self.machine.fills[stage] += 1

    def arrive(self, phases: _Phases) -> None:
        """End a phase of a barrier, and tell who waits for it what has been written before."""
        phases.ended += 1
        if self.telling:
            phases.filling = self.telling
            for stage in self.telling:
                self.machine.landed[stage] = self.machine.fills[stage]
            self.telling = []

    def load(self, o: ops.TmaLoad) -> None:
        stage = self.place.get(o.dest)
        phases = self.machine.stage(o.barrier, self.env[o.stage])
        if stage is not None:
            if stage not in phases.filling:
                self.fill(o, stage)
                phases.filling.append(stage)
        phases.bytes -= box_bytes(o) * self.program.parts.get(o.dest, 1)
        if phases.bytes < 0:
            raise _fault(o, "brings more than its barrier waits for")
        if phases.bytes == 0:
            phases.ended += 1
            for filled in phases.filling:
                self.machine.landed[filled] = self.machine.fills[filled]

    def touch(self, o: Op) -> None:
        """What an op does to rings and to fragments."""
        by_copy = isinstance(o, ops.Copy) and o.engine == "cp_async"
        held: set[Stage] = set()
        # What threads read and write in one op, each its own elements, is for those behind it.
        read: set[Stage] = set()
        written: set[Stage] = set()
        chained = o.c if isinstance(o, ops.Gemm) and o.is_asynchronous else None
        for x, e in effects_in(o):
            if e.region is None or e.private:
                continue
            v = e.region.buffer
            if v is not chained and self._is_in_flight(v, e.writes):
                raise _fault(x, f"touches {v.name} while a product in flight uses it")
            stage = self.place.get(v, (v, 0))  # a ring itself is its first stage
            if stage[0] not in self.program.rings:
                continue
            if e.reads:
                self._read(x, stage)
                held.add(stage)
                if not waited_by_all(x, self.program.threads):
                    read.add(stage)
            if e.writes:
                self._write(x, stage)
                written.add(stage)
        self.read |= read
        (self.started if by_copy else self.hidden).update(written)
        if chained is not None:
            assert isinstance(o, ops.Gemm)
            self.products = [*self.products, o] if o.asynchronous else []
            self.reading = [*self.reading, held] if o.asynchronous else []

    def _is_in_flight(self, v: Value, written: bool) -> bool:
        """Whether a product in flight makes `v`, or reads it in registers, where it is written."""
        return any(v is o.c or (written and v is o.a.buffer) for o in self.products)

    def _read(self, o: Op, stage: Stage) -> None:
        name, number = stage[0].name, stage[1]
        if self.machine.fills[stage] != self.seen[stage]:
            filled = self.machine.fills[stage] > self.seen[stage] > 0
            why = "is filled again" if filled else "nobody has waited for"
            raise _fault(o, f"reads stage {number} of {name}, which {why}")
        if stage in self.started or any(stage in group for group in self.groups):
            raise _fault(o, f"reads stage {number} of {name}, whose copy may be under way")
        if stage in self.hidden:
            raise _fault(o, f"reads stage {number} of {name} before other threads' parts are there")

    def _write(self, o: Op, stage: Stage) -> None:
        name, number = stage[0].name, stage[1]
        if stage in self.read:
            raise _fault(o, f"fills stage {number} of {name}, which threads may still read")
        if any(stage in held for held in self.reading):
            raise _fault(o, f"fills stage {number} of {name} while a product reads it")

    def end(self) -> None:
        """The scope's last op has been done."""
        if self.products:
            raise _fault(self.products[0], "is in flight when its scope ends")


def _fault(o: Op, what: str) -> InternalError:
    return InternalError(f"the schedule is wrong: {o.opname} {what}", o.loc)
