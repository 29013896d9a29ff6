"""What a block does over time, as the schedule has it: a model, in the clocks that predictions
count with, of a few iterations of each pipelined loop.

Who does what is read off the LAID_OUT function behind `arrange`: the statements of the loop, which
of them are brought ahead into a ring and how deep it is, the order and the stages of overlapping
iterations, how many products may be in flight before a statement, whether warpgroups take turns.
How long each takes are the clocks of `passes.arrange`. What the model leaves out: cache misses,
other blocks, and whatever the hardware does to a schedule. It shows what waits for what.

    ring rows     a slot is filled (from asking for a tile to having it), full, then free again
    tensor cores  one unit of the multiprocessor: products of all warpgroups, one after the other
    warpgroups    what the threads do themselves
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.ir.clusters import all_threads_of, groups_of, threads_of
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.effects import acting
from tilec.ir.instr import MATRIX_INSTRUCTIONS
from tilec.ir.ops import Copy, For, Gemm, Scope
from tilec.ir.schedule import Arrangement
from tilec.passes.arrange import shown_statement, statement_clocks
from tilec.passes.utils.dependence import ModRef, modref
from tilec.passes.utils.orders import DEPENDENT, START
from tilec.target import Target

ITERATIONS, ARRANGED = 6, 4  # of a loop that are drawn; of one with several products
MOST_GROUPS = 4  # warpgroups that are drawn
WARPGROUP = 128  # threads


@dataclass(frozen=True)
class Statement:
    """`role`: "ring" (a tile brought ahead), "product" or "threads". `clocks`: of one warpgroup's
    part by unit, of a ring those of its transfer. `stage`: iterations late. `flying`: products that
    may be in flight before it, -1 if it waits for none."""

    line: int
    text: str
    role: str
    buffer: str = ""
    stages: int = 1
    engine: str = ""
    clocks: tuple[tuple[str, float], ...] = ()
    stage: int = 0
    flying: int = -1
    is_asynchronous: bool = False

    @property
    def time(self) -> float:
        """Clocks of the unit that is busy longest."""
        return max((n for _, n in self.clocks), default=0.0)


@dataclass(frozen=True)
class Bar:
    """A thing done in `lane` from `start` to `end` (clocks): by `group`, for `iteration` (-1:
    outside of the loop), the statement's number. `kind`: "fill", "full", "product", "threads" or
    "wait"."""

    lane: str
    start: float
    end: float
    group: int
    iteration: int
    statement: int
    kind: str


@dataclass
class Loop:
    """A pipelined loop: its statements in the order of the source, what an iteration of all
    warpgroups keeps each unit busy (`bounds`), and the bars of its first iterations. `order`: the
    statements as an iteration does them. `readers`: of each ring, the statements that read it."""

    line: int
    text: str
    statements: list[Statement]
    order: list[int]
    readers: dict[int, list[int]]
    bounds: dict[str, float]
    arranged: Arrangement | None = None
    lanes: list[tuple[str, str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    @property
    def workers(self) -> int:
        """Warpgroups that are drawn."""
        return sum(lane.startswith("group") for lane, _ in self.lanes)

    @property
    def span(self) -> float:
        return max((b.end for b in self.bars), default=0.0)


@dataclass(frozen=True)
class Role:
    """Warps of a launched block that do one thing; `registers` of each of their threads where the
    plan moves them (0: as many as all)."""

    name: str
    warps: int
    registers: int


def roles(func: Func, target: Target) -> list[Role]:
    """Who is in a launched block; of the function behind the passes."""
    groups, computing = groups_of(func), all_threads_of(func)
    launched = int(func.attrs.get("launch_threads", computing)) // target.warp_size
    mine = computing // target.warp_size
    brings = launched - mine
    if brings <= 0:
        return [Role("compute and bring tiles", launched, 0)]
    asked = {o.name: o.registers for o in func.body.every(Scope)}
    consumer, producer = asked.get("consumer", 0), asked.get("producer", 0)
    found = [Role("bring tiles", brings, producer)]
    if groups == 1:
        return [Role("compute", mine, consumer), *found]
    return [Role(f"group {g}", mine // groups, consumer) for g in range(groups)] + found


def loops(func: Func, target: Target) -> list[Loop]:
    """The pipelined loops of a LAID_OUT function behind `arrange`."""
    arranged = {line: a for line, a, _ in func.attrs.get("arranged", ())}
    engines = {(line, name): engine for line, name, _, engine in func.attrs.get("ahead", ())}
    sets = groups_of(func)
    groups = max(1, threads_of(func) // WARPGROUP)
    found = []
    for o in walk(func.body):
        if isinstance(o, For) and o.kind == "pipelined":
            loop = _loop(o, arranged.get(o.loc.line), engines, groups, target)
            if loop.statements:
                _Model(loop, min(groups, MOST_GROUPS), sets, target).run()
                found.append(loop)
    return found


def _loop(
    o: For,
    arranged: Arrangement | None,
    engines: dict[tuple[int, str], str],
    groups: int,
    target: Target,
) -> Loop:
    every = acting(o.body)
    statements = [_statement(x, engines, groups, target) for x in every]
    uses = [modref(x) for x in every]
    readers = {
        n: [m for m, use in enumerate(uses) if m != n and _reads(use, uses[n])]
        for n, s in enumerate(statements)
        if s.role == "ring"
    }
    order = list(range(len(statements)))
    if arranged is not None and len(arranged.order) == len(statements):
        waits = dict(arranged.waits)
        order = list(arranged.order)
        for n, s in enumerate(statements):
            statements[n] = replace(s, stage=arranged.stage[n], flying=waits.get(n, -1))
    bounds: dict[str, float] = {}
    for s in statements:
        each = 1 if s.role == "ring" else groups
        for unit, clocks in s.clocks:
            bounds[unit] = bounds.get(unit, 0.0) + clocks * each
    text = o.loc.source_line().strip()
    line = o.loc.chain()[-1].line
    return Loop(line, text, statements, order, readers, bounds, arranged)


def _reads(use: Mapping[Value, ModRef], fill: Mapping[Value, ModRef]) -> bool:
    """Whether a statement reads what another one fills."""
    return any(use[v].reads for v, a in fill.items() if a.writes and v in use)


def outside(func: Func, target: Target) -> list[Statement]:
    """What a block does outside of its pipelined loops, in the order of the source: of another loop
    the statements of an iteration."""
    groups = max(1, threads_of(func) // WARPGROUP)
    found: list[Statement] = []

    def visit(block: Block) -> None:
        for o in acting(block):
            if not isinstance(o, For):
                found.append(_statement(o, {}, groups, target))
            elif o.kind != "pipelined":
                visit(o.body)

    visit(func.body)
    return found


def _statement(
    o: Op, engines: dict[tuple[int, str], str], groups: int, target: Target
) -> Statement:
    line, text = o.loc.chain()[-1].line, shown_statement(o)[1]
    copies = [x for x in walk(o) if isinstance(x, Copy) and x.ahead]
    if copies:
        c = copies[0]
        t = c.dest.buffer.buffer
        name = c.dest.buffer.name
        engine = engines.get((o.loc.line, name), c.engine)
        size = math.prod(c.dest.extents) * t.dtype.bits / 8
        clocks = (("memory", size / target.speeds.l2),)
        return Statement(line, f"copy -> {name}", "ring", name, t.stages, engine, clocks)
    if isinstance(o, Gemm):
        given = tuple(_product_clocks(o, groups, target).items())
        return Statement(line, text, "product", clocks=given, is_asynchronous=o.is_asynchronous)
    return Statement(
        line, text, "threads", clocks=tuple(statement_clocks(o, groups, target).items())
    )


def _product_clocks(o: Gemm, groups: int, target: Target) -> dict[str, float]:
    """Clocks of a warpgroup's part of a product: of one without a matrix instruction those of its
    multiply-adds; of one whose operands threads bring to registers those of that, too."""
    m, n, k = o.shape
    if o.instr not in MATRIX_INSTRUCTIONS:
        return {"vector": m * n * k / groups / target.speeds.vector}
    clocks = statement_clocks(o, groups, target)
    if o.is_asynchronous or len(o.warps) != 2:
        return clocks
    inner = o.swap_operands()
    (m, n, k), (rows, columns) = inner.shape, o.warps
    read = ((inner.a, m * k * columns), (inner.b, k * n * rows))  # each warp what it needs, once
    size = sum(
        count * r.buffer.buffer.dtype.bits / 8 for r, count in read if r.buffer.space == "shared"
    )
    return {**clocks, "shared": size / groups / target.speeds.shared}


class _Model:
    """Runs a loop's first iterations: an in-order clock for each warpgroup, one for the tensor
    cores, one for the memory that fills rings."""

    def __init__(self, loop: Loop, groups: int, sets: int, target: Target) -> None:
        self.loop, self.groups, self.sets, self.target = loop, groups, sets, target
        self.latency = target.speeds.latency * target.speeds.clock
        self.count = ARRANGED if loop.arranged else ITERATIONS
        self.rings = [n for n, s in enumerate(loop.statements) if s.role == "ring"]
        self.full: dict[tuple[int, int], float] = {}  # (statement, iteration): when it is there
        self.freed: dict[tuple[int, int], float] = {}
        self.tensor = self.memory = 0.0

    def run(self) -> None:
        """Fill in the loop's lanes and bars."""
        loop, workers = self.loop, [_Worker(g) for g in range(self.groups * self.sets)]
        steps = self._steps()
        for k in range(self.sets):  # ping-pong: the sets do whole loops, one behind the other
            mine = workers[k * self.groups : (k + 1) * self.groups]
            for w in mine:
                w.until(loop.bars, self.tensor if k else 0.0, k * self.count, loop.order[-1])
            turn = 0.0
            for step in steps:
                for w in mine:
                    turn = self._step(w, [(i + k * self.count, n) for i, n in step], turn)
        for w in workers:
            w.wait(loop.bars, 0, -1, loop.order[-1])
        self._ring_bars()
        loop.lanes = self._lanes(workers)

    def _steps(self) -> list[list[tuple[int, int]]]:
        """(iteration, statement) of each turn of the loop, in order: those of a later stage are of
        the iteration before."""
        loop = self.loop
        deepest = max((s.stage for s in loop.statements), default=0)
        steps = []
        for turn in range(self.count + deepest):
            step = [(turn - loop.statements[n].stage, n) for n in loop.order]
            steps.append([(i, n) for i, n in step if 0 <= i < self.count])
        return steps

    def _step(self, w: _Worker, step: Sequence[tuple[int, int]], turn: float) -> float:
        """One turn of the loop by one warpgroup, which has it from `turn` on where they take turns
        at the tensor cores; when it passes it on."""
        bars, statements = self.loop.bars, self.loop.statements
        waits = self.loop.arranged is not None
        takes_turns = self.loop.arranged is not None and self.loop.arranged.turns
        for i, n in step:
            s = statements[n]
            if s.role == "ring":
                self._fill(n, i)
                continue
            rings = [r for r in self.rings if n in self.loop.readers[r]]
            ready = max((self.full.get((r, i), 0.0) for r in rings), default=0.0)
            if s.flying >= 0:
                w.wait(bars, s.flying, i, n)
            if s.role == "product":
                w.until(bars, max(ready, turn if takes_turns else 0.0), i, n)
                begin = max(self.tensor, w.now + START)
                self.tensor = begin + s.time
                bars.append(Bar("tensor", begin, self.tensor, w.group, i, n, "product"))
                done, turn = self.tensor, w.now
                if s.is_asynchronous:
                    w.flying.append(done)
                else:  # its threads are at it
                    w.until(bars, begin, i, n)
                    bars.append(Bar(w.lane, begin, done, w.group, i, n, "threads"))
                    w.now = done
            else:
                if not waits:  # what threads do with a result comes behind it
                    w.wait(bars, 0, i, n)
                w.until(bars, ready, i, n)
                done = w.now + max(s.time, 1.0)
                bars.append(Bar(w.lane, w.now, done, w.group, i, n, "threads"))
                w.now = done + DEPENDENT
            for r in rings:
                self.freed[r, i] = max(self.freed.get((r, i), 0.0), done)
        if not waits and step:
            w.wait(bars, 1, *step[-1])  # the product before is waited for, and its tiles are free
        return turn

    def _fill(self, ring: int, iteration: int) -> None:
        """Ask for a tile, once a slot is free."""
        if (ring, iteration) in self.full:
            return  # another warpgroup came first
        s = self.loop.statements[ring]
        free = self.freed.get((ring, iteration - s.stages), 0.0)
        begin = max(free, self.memory - self.latency)
        self.memory = max(self.memory, begin + self.latency) + s.time
        self.full[ring, iteration] = self.memory
        lane = f"ring {ring} {iteration % s.stages}"
        self.loop.bars.append(Bar(lane, begin, self.memory, -1, iteration, ring, "fill"))

    def _ring_bars(self) -> None:
        """From having a tile to being free again."""
        for (ring, iteration), start in self.full.items():
            s = self.loop.statements[ring]
            end = self.freed.get((ring, iteration), start)
            lane = f"ring {ring} {iteration % s.stages}"
            self.loop.bars.append(Bar(lane, start, max(end, start), -1, iteration, ring, "full"))

    def _lanes(self, workers: Sequence[_Worker]) -> list[tuple[str, str]]:
        lanes = []
        for r in self.rings:
            s = self.loop.statements[r]
            for slot in range(s.stages):
                name = f"{s.buffer} slot {slot}" if s.stages > 1 else s.buffer
                lanes.append((f"ring {r} {slot}", name))
        if any(s.role == "product" for s in self.loop.statements):
            lanes.append(("tensor", "tensor cores"))
        word, each = "warpgroup", 1
        if not self.target.has("wgmma"):
            word, each = "warps", WARPGROUP // self.target.warp_size
        for w in workers:
            first = w.group * each
            last = f" to {first + each - 1}" if each > 1 else ""
            lanes.append((w.lane, f"{word} {first}{last}" if len(workers) > 1 else "threads"))
        return lanes


@dataclass
class _Worker:
    """A warpgroup: its clock, and when the products that it has in flight end."""

    group: int
    now: float = 0.0
    flying: list[float] = field(default_factory=list)

    @property
    def lane(self) -> str:
        return f"group {self.group}"

    def wait(self, bars: list[Bar], most: int, iteration: int, statement: int) -> None:
        """Until at most so many products are in flight."""
        while len(self.flying) > most:
            self.until(bars, self.flying.pop(0), iteration, statement)

    def until(self, bars: list[Bar], time: float, iteration: int, statement: int) -> None:
        if time > self.now:
            bars.append(Bar(self.lane, self.now, time, self.group, iteration, statement, "wait"))
            self.now = time
