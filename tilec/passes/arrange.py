"""arrange: in which order, and how many iterations apart, a loop does its statements.

Before and after: LAID_OUT. In a pipelined loop with several asynchronous products, one of which
waits for what threads compute from another (attention: S = Q K^T, softmax, O += P V), the tensor
cores stand idle during that computation. Such loops are software-pipelined: `order`, `stage` and
`turns` of the `For` say how, and `expand_scopes` does it. Nothing is matched: what orders the
statements are the edges of `passes/utils/dependence.py`, and what is chosen is

1. for each statement its stage, 0 or 1, so that no edge is violated;
2. the order of one iteration of the steady state: products as soon as their edges allow (their
   cyclic order is what keeps the tensor cores busy), the rest as its author wrote it;
3. where to wait for products: before the first statement that touches what one in flight uses, for
   as many as were started up to that one; and for all before the iteration ends (ptxas serialises
   what is in flight over a back edge).

A candidate must fit into the registers: the fragments that are live at each place (a product's
result from its start, an operand in registers until the wait that covers its product), `RESERVED`
for all else and `KEPT` that ptxas wants free. The best one has the least clocks on what it keeps
busy longest, a unit of the multiprocessor or the stream of one warpgroup; of those within 1 % the
ones in which warpgroups can take turns, then with the shortest stream.

What the user has said by T.Pipelined(order=, stage=) of these statements holds: two with stages of
their own are so far apart, two with places follow one another so. Where that cannot be,
`attrs["not_held"]` says why: (line of the loop, reason).

Where producers bring the tiles and threads fill a fragment that a product reads (decoded weights),
or a shared tile, the product runs on while the next iteration fills another: `versions` 2. Their
registers have to fit, and the stream of a warpgroup has to be shorter; of several warpgroups with
fragments one decodes while another's product runs anyway, unless that product is a long one
(`LONG`). A shared tile all of them wait for.

Rau, "Iterative Modulo Scheduling", MICRO 1994, has the frame; Shah et al., "FlashAttention-3",
2024, the overlap of a softmax with products and the turns of warpgroups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilec.ir.clusters import all_threads_of, groups_of, residents_of, threads_of
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.effects import acting, effects_in
from tilec.ir.errors import ResourceError
from tilec.ir.instr import MATRIX_INSTRUCTIONS
from tilec.ir.ops import Alloc, Binary, Copy, Fma, For, Gemm, If, Parallel, Reduce, Unary
from tilec.ir.schedule import Arrangement
from tilec.ir.types import BufferType
from tilec.passes.plan_pipeline import room_for_rings
from tilec.passes.utils.dependence import Edge, ModRef, edges, modref
from tilec.passes.utils.orders import Graph, Node, best, in_versions
from tilec.passes.utils.registers import budget
from tilec.passes.utils.rings import is_brought
from tilec.passes.utils.slicing import is_separable
from tilec.passes.utils.software_pipeline import filled, free_running
from tilec.target import Target

KEPT = 4  # registers of a thread beside those of `RESERVED` that ptxas wants free
QUAD = 58  # clocks of an exchange among the lanes that hold a row
GAIN = 0.97  # of the clocks of a warpgroup's stream: more is not worth it
LONG = 512  # clocks of an iteration's products, of one warpgroup of several
OTHER = "the schedule has no products beside what threads compute"
SMALL = 4  # registers of a fragment that `RESERVED` covers
HALF_RATE = ("max", "min")
SPECIAL = ("exp", "exp2", "log", "log2", "log10", "tanh", "rsqrt", "sqrt", "sin", "cos")


def arrange(func: Func, target: Target) -> Func:
    """`attrs["arranged"]` lists for each loop (line, arrangement, its statements: (line, what it
    is)). Raises ResourceError where the plan wants iterations to overlap and no loop has a legal
    form, or none gains by it."""
    if not func.attrs.get("overlap") and not target.has("wgmma"):
        return func.rewrite(For, _in_order)
    groups, blocks = threads_of(func) // target.warp_size // 4, residents_of(func)
    limit = budget(threads_of(func), True, target, blocks) - KEPT
    if not func.attrs.get("overlap"):
        asked = [o for o in func.body.every(For) if asks_to_overlap(o)]
        bodies = {o.loc.line: _Body(o) for o in asked}
        left = tuple(
            (line, why if isinstance(why := b.best(groups, limit, target), str) and why else OTHER)
            for line, b in bodies.items()
            if b.products > 1
        )
        func = func.with_attrs(not_held=left) if left else func
        return _in_versions(func.rewrite(For, _in_order), groups, target)
    why = "no T.Pipelined holds several products that run beside the threads"
    found: dict[For, Arrangement] = {}
    not_held: list[tuple[int, str]] = []
    for o in func.body.every(For):
        if o.kind == "pipelined":
            body = _Body(o)
            chosen = body.best(groups, limit, target)
            if isinstance(chosen, Arrangement):
                found[o] = chosen
                continue
            why = chosen or why
            if asks_to_overlap(o) and body.products > 1:
                not_held.append((o.loc.line, why))
    if not found:
        raise ResourceError(
            f"iterations of {func.name} cannot overlap: {why}", func.loc, "leave overlap out"
        )

    def visit(o: For) -> None | Op:
        if o not in found:
            return _in_order(o)
        return replace(o, order=found[o].order, stage=found[o].stage, turns=found[o].turns)

    shown = tuple(
        (o.loc.line, a, tuple(map(shown_statement, acting(o.body)))) for o, a in found.items()
    )
    func = func.with_attrs(not_held=tuple(not_held)) if not_held else func
    return func.rewrite(For, visit).with_attrs(arranged=shown)


def _in_versions(func: Func, groups: int, target: Target) -> Func:
    """`func`, whose loops have two versions of the tiles that they fill for their products,
    where that pays."""
    if not func.attrs.get("specialise"):
        return func
    limit = budget(all_threads_of(func), True, target, residents_of(func)) - KEPT
    branches = (o for o in func.body.every(If))
    conditional = {o.c for b in branches for o in Block((), (b,)).every(Gemm)}
    shown = []

    def visit(o: For) -> None | Op:
        if o.kind != "pipelined" or o.order or o.inits:
            return None
        versions = filled(o)
        if not versions or any(x.c in conditional for x in free_running(o, _ringed(o), versions)):
            return None
        shared = sum(v.buffer.stage_bytes for v in versions if v.space == "shared")
        if shared and (groups_of(func) > 1 or shared > _room(func, target)):
            return None
        found = _Body(o).in_versions(versions, groups, limit, target)
        if found is None:
            return None
        shown.append((o.loc.line, found, tuple(map(shown_statement, acting(o.body)))))
        return replace(o, versions=2)

    func = func.rewrite(For, visit)
    return func.with_attrs(arranged=tuple(shown)) if shown else func


def _room(func: Func, target: Target) -> int:
    """Bytes of shared memory that are left."""
    shared = (t for o in func.body.every(Alloc) if (t := o.type).space == "shared")
    taken = sum(t.stage_bytes * t.stages for t in shared)
    return room_for_rings(target, taken, residents_of(func))


def _ringed(loop: For) -> list[Value]:
    """The buffers of a loop that producers fill for its products alone; none, where not all copies
    ahead are theirs."""
    ahead = [o for o in loop.body.every(Copy) if o.ahead]
    if not all(is_brought(o) and o in loop.body.ops for o in ahead):
        return []
    others = (o for o in walk(loop.body) if o not in ahead and not isinstance(o, Gemm))
    touched = {v for o in others for v in o.operands}
    filled = (o.dest.buffer for o in ahead)
    return [v for v in filled if v.buffer.stages > 1 and v not in touched]


def asks_to_overlap(loop: For) -> bool:
    """Whether the user has put what a loop's threads do into several stages."""
    every = acting(loop.body)
    if loop.kind != "pipelined" or len(loop.stage) != len(every):
        return False
    brought = (isinstance(o, Copy) and o.source.type.space == "global" for o in every)
    return len({s for s, copy in zip(loop.stage, brought) if s >= 0 and not copy}) > 1


def shown_statement(o: Op) -> tuple[int, str]:
    """A statement's line, and what it does to which buffers."""
    written = dict.fromkeys(e.region.buffer.name for e in o.effects() if e.region and e.writes)
    what = "copy ahead" if is_brought(o) else o.opname
    return o.loc.line, f"{what} -> {', '.join(written)}"


def _in_order(o: For) -> None | Op:
    """A loop whose author's stages have been heeded (`plan_pipeline`), as any other."""
    return replace(o, order=(), stage=()) if o.order or o.stage else None


class _Body:
    """The statements of a loop that may be arranged: all but the copies that producers bring.
    `refusal`: why they may not ("": the loop has no products of the kind)."""

    def __init__(self, loop: For) -> None:
        self.loop = loop
        self.every = acting(loop.body)
        self.statements = [o for o in self.every if not is_brought(o)]
        self.numbers = [self.every.index(o) for o in self.statements]
        self.uses = [modref(o) for o in self.statements]
        inside = (x for o in self.statements for x in walk(o))
        self.products = sum(isinstance(o, Gemm) and o.is_asynchronous for o in inside)
        self.asked = self._asked()
        self.refusal = self._refusal()

    def _asked(self) -> list[tuple[int, int]]:
        """The user's stage and place of each statement, counted from the first ones; -1 where he
        leaves it open."""
        every = range(len(self.every))
        given = (self.loop.stage, self.loop.order)
        lists = [x if len(x) == len(self.every) else [-1 for _ in every] for x in given]
        stage, place = ([x[n] for n in self.numbers] for x in lists)
        first = min((s for s in stage if s >= 0), default=0)
        ranks = {p: i for i, p in enumerate(sorted(p for p in place if p >= 0))}
        return [(s - first if s >= 0 else -1, ranks.get(p, -1)) for s, p in zip(stage, place)]

    def best(self, groups: int, limit: int, target: Target) -> Arrangement | str:
        """The loop's best arrangement, or why it has none ("": it holds no products of the
        kind)."""
        if self.refusal is not None:
            return self.refusal
        graph = self.graph(groups, target)
        chosen = best(graph, limit, groups)
        if isinstance(chosen, Arrangement):
            if graph.is_asked or chosen.stream < GAIN * chosen.in_order:
                return self.of_statements(graph, chosen)
            return "no product has to be waited for that could run beside threads"
        if chosen or not graph.is_asked:
            return f"its fragments take more than {limit} registers while products overlap"
        return "what its statements owe one another leaves no such order and stage"

    def in_versions(
        self, versions: Sequence[Value], groups: int, limit: int, target: Target
    ) -> Arrangement | None:
        """The loop with two of each of these fragments; None where that may not be, or does not
        pay."""
        if not free_running(self.loop, _ringed(self.loop), versions):
            return None
        held = dict.fromkeys(v for o in walk(self.loop.body) for v in o.operands)
        fragments = [v for v in held if isinstance(v.type, BufferType)]
        one, more = (sum(map(_registers, x)) for x in (fragments, versions))
        if one + more > limit:
            return None
        graph = self.graph(groups, target)
        products = sum(n.time for n in graph.nodes if n.product)
        buffers = list(dict.fromkeys(v for s in self.uses for v in s))
        which = [buffers.index(v) for v in versions]
        found = in_versions(graph, groups, (one + more, one), which)
        alone = groups > 1 and all(v.space == "fragment" for v in versions)
        if found.stream >= GAIN * found.in_order or (alone and round(products) < LONG):
            return None
        made = self.of_statements(graph, found)
        assert made.second is not None
        two, single = ((*made.versions, *((v.name, count) for v in versions)) for count in (2, 1))
        return replace(made, versions=two, second=replace(made.second, versions=single))

    def _refusal(self) -> str | None:
        inside = [x for o in self.statements for x in walk(o)]
        products = [o for o in inside if isinstance(o, Gemm)]
        if self.products < 2 or self.statements == self.every:
            return ""
        if not all(o.is_asynchronous and o in self.statements for o in products):
            return "not all of its products stand at the top of the loop and run beside threads"
        if self.loop.inits or any(o.results for o in self.statements):
            return "a statement, or an iteration, hands a value on to the next"
        done = (e for o in self.statements for _, e in effects_in(o))
        if any(e.region is None for e in done) or any(isinstance(x, For) for x in inside):
            return "one of its statements orders threads, or is a loop"
        if not is_separable(self.loop.body, self.statements):
            return "what a statement needs cannot be computed for another iteration"
        for name, given in (("stage", self.loop.stage), ("order", self.loop.order)):
            if given and len(given) != len(self.every):
                return f"tilec has added statements to its body, and {name} counts the author's"
        if max(s for s, _ in self.asked) > 1:
            return "its stages are further apart than neighbouring iterations"
        return None

    def graph(self, groups: int, target: Target) -> Graph:
        """The statements in nodes."""
        buffers = list(dict.fromkeys(v for s in self.uses for v in s))
        found = edges(self.uses)
        nodes: list[Node] = []
        of: dict[int, int] = {}
        for group in self._merged(found):
            uses: dict[int, ModRef] = {}
            clocks: dict[str, float] = {}
            for n in group:
                of[n] = len(nodes)
                for v, a in self.uses[n].items():
                    i = buffers.index(v)
                    uses[i] = _then(uses[i], a) if i in uses else a
                clocks = _sum((clocks, statement_clocks(self.statements[n], groups, target)))
            held: tuple[int, ...] = ()
            first = self.statements[group[0]]
            if isinstance(first, Gemm):
                mine = (first.c, first.a.buffer, first.b.buffer)
                held = tuple(buffers.index(v) for v in mine if v.space == "fragment")
            asked = self.asked[group[0]]
            done = tuple(clocks.items()), tuple(uses.items())
            nodes.append(Node(tuple(group), bool(held), *done, held, *asked))
        ends = ((of[e.source], of[e.sink], e) for e in found)
        between = {Edge(u, v, e.distance, e.kind): None for u, v, e in ends if u != v}
        readers = (
            tuple(sorted({of[n] for n, s in enumerate(self.uses) if v in s}))
            for v in buffers
            if v.space == "shared"
        )
        registers = tuple(map(_registers, buffers))
        loads = tuple(
            (
                tuple(of[n] for n, s in enumerate(self.uses) if v in s),
                t.stages,
                _load_clocks(t, target),
            )
            for v, t in self._brought()
        )
        return Graph(tuple(nodes), tuple(between), registers, tuple(readers), loads)

    def _brought(self) -> list[tuple[Value, BufferType]]:
        """The buffers that are filled ahead."""
        found = (o for n, o in enumerate(self.every) if n not in self.numbers)
        copies = (x for o in found for x in o.every(Copy))
        return [(v, v.buffer) for v in dict.fromkeys(o.dest.buffer for o in copies)]

    def _merged(self, found: Sequence[Edge]) -> list[list[int]]:
        """Neighbouring statements of threads that are behind and in front of the same products, or
        of none."""
        products = [isinstance(o, Gemm) for o in self.statements]
        near: list[set[int]] = [set() for _ in self.statements]
        for e in found:
            if products[e.source]:
                near[e.sink].add(e.source)
            if products[e.sink]:
                near[e.source].add(e.sink)
        groups: list[list[int]] = []
        of: list[set[int]] = []
        for n, mine in enumerate(near):
            alike = groups and not products[n] and not products[groups[-1][0]]
            alike = alike and self._adjoin(n - 1, n)
            if alike and (not mine or not of[-1] or mine == of[-1]):
                groups[-1].append(n)
                of[-1] |= mine
            else:
                groups.append([n])
                of.append(set(mine))
        return groups

    def _adjoin(self, u: int, v: int) -> bool:
        """Whether the user lets one statement follow right behind another."""
        (stage, place), (other, behind) = self.asked[u], self.asked[v]
        return stage == other and (behind == place + 1 if place >= 0 else behind < 0)

    def of_statements(self, graph: Graph, a: Arrangement) -> Arrangement:
        """An arrangement of nodes as one of all the loop's statements, the copies first."""
        stage = [0] * len(self.every)
        for node, at in zip(graph.nodes, a.stage):
            for n in node.statements:
                stage[self.numbers[n]] = at
        copies = [n for n in range(len(stage)) if n not in self.numbers]
        order = [self.numbers[n] for i in a.order for n in graph.nodes[i].statements]
        waits = tuple((self.numbers[graph.nodes[i].statements[0]], k) for i, k in a.waits)
        second = a.second and self.of_statements(graph, a.second)
        versions = tuple((v.name, t.stages) for v, t in self._brought())
        made = replace(a, order=(*copies, *order), stage=tuple(stage), waits=waits)
        return replace(made, second=second, versions=versions)


def _then(a: ModRef, b: ModRef) -> ModRef:
    """What two statements do, one behind the other."""
    reads = a.reads or (b.reads and not a.whole)
    return ModRef(reads, a.writes or b.writes, not reads and (a.whole or b.whole))


def _registers(v: Value) -> int:
    """Of a thread, 0 where `RESERVED` covers them."""
    t = v.buffer
    if t.space != "fragment" or t.layout is None:
        return 0
    return t.registers if t.registers > SMALL else 0


def _load_clocks(t: BufferType, target: Target) -> int:
    """From asking for a tile to having it."""
    return round(target.speeds.latency * target.speeds.clock + t.stage_bytes / target.speeds.l2)


# --- clocks ---------------------------------------------------------------------------------------


def statement_clocks(o: Op, groups: int, target: Target) -> dict[str, float]:
    """Clocks that one of `groups` warpgroups keeps each unit busy with its part of a statement."""
    s = target.speeds
    match o:
        case Gemm():
            instr = MATRIX_INSTRUCTIONS[o.instr]
            m, n, k = o.shape
            rate = s.product_rate(instr.feature, instr.a_dtype.bits)
            steps = m * n * k / groups / (instr.m * instr.n * instr.k)
            rows = 0 if o.swap_operands().a.type.space == "fragment" else instr.m
            operands = (rows * instr.a_k + instr.n * instr.k) * instr.a_dtype.bits / 8
            tensor, port = 2 * instr.m * instr.n * instr.k / rate, operands / s.shared
            return {"tensor": steps * tensor, "shared": steps * port}
        case Parallel():
            issued, special = thread_work(o)
            return {"vector": issued / s.vector / groups, "special": special / s.special / groups}
        case Reduce():
            return {"vector": thread_work(o)[0] / groups / s.vector + QUAD}
        case If():  # most iterations go the shorter way
            ways = [
                _sum(statement_clocks(x, groups, target) for x in region.ops)
                for region in o.regions
            ]
            return min(ways, key=lambda found: max(found.values(), default=0.0))
    shared = sum(
        math.prod(e.region.extents) / groups * e.region.dtype.bits / 8 / s.shared
        for e in o.effects()  # a copy, a fill
        if e.region and e.writes and e.region.type.space == "shared"
    )
    return {"vector": thread_work(o)[0] / groups / s.vector, "shared": shared}


def thread_work(o: Op) -> tuple[float, float]:
    """Instructions of threads, and special functions, for all elements of a statement that is no
    product."""
    match o:
        case Parallel():
            return _elementwise(o)
        case Reduce():
            each = 2 if o.kind in ("max", "min", "absmax") else 1
            return math.prod(o.source.extents) * each, 0.0
    read = [e.region.dtype for e in o.effects() if e.region and e.reads]
    written = (e.region for e in o.effects() if e.region and e.writes)
    return sum(float(math.prod(r.extents)) for r in written if r.dtype not in read), 0.0


def _sum(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for clocks in found:
        for unit, n in clocks.items():
            total[unit] = total.get(unit, 0.0) + n
    return total


def _elementwise(o: Parallel) -> tuple[float, float]:
    """Of all iterations. What depends on some of the loop's indices only is done once for each of
    these."""
    along: dict[Value, frozenset[int]] = {v: frozenset((i,)) for i, v in enumerate(o.body.args)}
    issued = special = 0.0
    for x in walk(o.body):
        dims = frozenset[int]().union(*(along.get(v, frozenset()) for v in x.operands))
        along.update(dict.fromkeys(x.results, dims))
        count = math.prod(o.extents[d] for d in dims)
        if isinstance(x, Binary) and x.result.dtype.is_float:
            if x.kind == "div" and dims & along.get(x.rhs, frozenset()):
                special += count
            issued += (2 if x.kind in HALF_RATE else 1) * count
        elif isinstance(x, Fma):
            issued += count
        elif isinstance(x, Unary) and x.kind in SPECIAL:
            special += count
    return issued, special
