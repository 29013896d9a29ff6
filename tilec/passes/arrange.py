"""arrange: in which order, and how many iterations apart, a loop does its statements.

Before and after: LAID_OUT. In a pipelined loop with several asynchronous products, one of which
waits for what threads compute from another (attention: S = Q K^T, softmax, O += P V), the tensor
cores stand idle during that computation. Such loops are software-pipelined: `order`, `stage` and
`turns` of the `For` say how, and `expand_scopes` does it. Nothing is matched: what orders the
statements are the edges of `ir/dependence.py`, and what is chosen is

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

Rau, "Iterative Modulo Scheduling", MICRO 1994, has the frame; Shah et al., "FlashAttention-3",
2024, the overlap of a softmax with products and the turns of warpgroups."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.ir.analysis import acting
from tilec.ir.core import Block, Func, Op, Value, rewrite, walk
from tilec.ir.dependence import Edge, ModRef, disturbs, edges, live_at_once, modref
from tilec.ir.effects import effects_in
from tilec.ir.errors import ResourceError
from tilec.ir.instr import MATRIX_INSTRUCTIONS
from tilec.ir.ops import Binary, For, Gemm, If, Parallel, Reduce, Unary
from tilec.ir.schedule import Arrangement
from tilec.passes.utils.accesses import covered
from tilec.passes.utils.registers import budget
from tilec.passes.utils.rings import is_brought
from tilec.passes.utils.slicing import is_separable
from tilec.target import Target

KEPT = 4  # registers of a thread beside those of `RESERVED` that ptxas wants free
MOST_NODES = 12  # more keep their author's order
START = 60  # clocks from a product's start, or its end, to what waits for it
DEPENDENT = 20  # clocks until a statement's first result is there
QUAD = 58  # clocks of an exchange among the lanes that hold a row
GAIN = 0.97  # of the clocks of a warpgroup's stream: more is not worth it
SMALL = 4  # registers of a fragment that `RESERVED` covers
HALF_RATE = ("max", "min")
SPECIAL = ("exp", "exp2", "log", "log2", "log10", "tanh", "rsqrt", "sqrt", "sin", "cos")


def arrange(func: Func, target: Target) -> Func:
    """See the module's opening. `attrs["arranged"]` lists for each loop (line, arrangement, its
    statements: (line, what it is)). Raises ResourceError where the plan wants iterations to overlap
    and no loop has a legal form, or none gains by it."""
    if not func.attrs.get("overlap"):
        return func.with_body(rewrite(func.body, _in_order))
    warps = int(func.attrs["threads"]) // target.warp_size
    blocks = int(func.attrs.get("min_blocks", 1))
    limit = budget(int(func.attrs["threads"]), True, target, blocks) - KEPT
    why = "no T.Pipelined holds several products that run beside the threads"
    found: dict[Op, Arrangement] = {}
    for o in walk(func.body):
        if isinstance(o, For) and o.kind == "pipelined":
            body = _Body(o)
            if body.refusal is None:
                chosen = best(body.graph(warps // 4, target), limit, warps // 4)
                if chosen is not None and chosen[1].stream < GAIN * chosen[1].in_order:
                    found[o] = body.of_statements(chosen)
                elif chosen is not None:
                    why = "no product has to be waited for that could run beside threads"
                else:
                    why = f"its fragments take more than {limit} registers while products overlap"
            else:
                why = body.refusal or why
    if not found:
        raise ResourceError(
            f"iterations of {func.name} cannot overlap: {why}", func.loc, "leave overlap out"
        )

    def visit(o: Op) -> None | Op:
        if not isinstance(o, For) or o not in found:
            return _in_order(o)
        return replace(o, order=found[o].order, stage=found[o].stage, turns=found[o].turns)

    shown = tuple(
        (o.loc.line, a, tuple(map(shown_statement, acting(o.regions[0])))) for o, a in found.items()
    )
    return func.with_body(rewrite(func.body, visit)).with_attrs(arranged=shown)


def shown_statement(o: Op) -> tuple[int, str]:
    """A statement's line, and what it does to which buffers."""
    written = dict.fromkeys(e.region.buffer.name for e in o.effects() if e.region and e.writes)
    what = "copy ahead" if is_brought(o) else o.opname
    return o.loc.line, f"{what} -> {', '.join(written)}"


def _in_order(o: Op) -> None | Op:
    """A loop whose author's stages have been heeded (`plan_pipeline`), as any other."""
    if isinstance(o, For) and (o.order or o.stage):
        return replace(o, order=(), stage=())
    return None


@dataclass(frozen=True)
class Node:
    """Statements that are done one behind the other. `clocks` by unit, for one warpgroup's part;
    `uses`: what they do to the buffers, which are numbered; `held`: of a product, the fragments
    that are in flight with it."""

    statements: tuple[int, ...]
    product: bool
    clocks: tuple[tuple[str, float], ...]
    uses: tuple[tuple[int, ModRef], ...]
    held: tuple[int, ...] = ()

    @functools.cached_property
    def time(self) -> float:
        """Clocks of one warpgroup alone."""
        return max((n for _, n in self.clocks), default=0.0)


@dataclass(frozen=True)
class Graph:
    """The nodes of a loop, the edges between them, the registers of each buffer in a thread, and
    sets of nodes of one stage (they read what one wait covers)."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    registers: tuple[int, ...]
    together: tuple[tuple[int, ...], ...]

    def disturbs(self, n: int, product: int) -> bool:
        """Whether a node may not be done while a product is in flight."""
        a, b = self.nodes[n], self.nodes[product]
        return disturbs(dict(a.uses), dict(b.uses), a.product)


class _Body:
    """The statements of a loop that may be arranged: all but the copies that producers bring.
    `refusal`: why they may not ("": the loop has no products of the kind)."""

    def __init__(self, loop: For) -> None:
        self.loop = loop
        self.every = acting(loop.body)
        self.statements = [o for o in self.every if not is_brought(o)]
        self.numbers = [self.every.index(o) for o in self.statements]
        self.uses = [modref(o, covered) for o in self.statements]
        self.refusal = self._refusal()

    def _refusal(self) -> str | None:
        inside = [x for o in self.statements for x in walk(Block((), (o,)))]
        products = [o for o in inside if isinstance(o, Gemm)]
        if sum(o.is_asynchronous for o in products) < 2 or self.statements == self.every:
            return ""
        if not all(o.is_asynchronous and o in self.statements for o in products):
            return "not all of its products stand at the top of the loop and run beside threads"
        if self.loop.inits or any(o.results for o in self.statements):
            return "a statement, or an iteration, hands a value on to the next"
        done = (e for o in self.statements for _, e in effects_in(Block((), (o,))))
        if any(e.region is None for e in done) or any(isinstance(x, For) for x in inside):
            return "one of its statements orders threads, or is a loop"
        if not is_separable(self.loop.body, self.statements):
            return "what a statement needs cannot be computed for another iteration"
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
                held = tuple(buffers.index(v) for v in mine if v.buffer.space == "fragment")
            nodes.append(
                Node(tuple(group), bool(held), tuple(clocks.items()), tuple(uses.items()), held)
            )
        ends = ((of[e.source], of[e.sink], e) for e in found)
        between = {Edge(u, v, e.distance, e.kind): None for u, v, e in ends if u != v}
        readers = (
            tuple(sorted({of[n] for n, s in enumerate(self.uses) if v in s}))
            for v in buffers
            if v.buffer.space == "shared"
        )
        registers = tuple(map(_registers, buffers))
        return Graph(tuple(nodes), tuple(between), registers, tuple(readers))

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
            if alike and (not mine or not of[-1] or mine == of[-1]):
                groups[-1].append(n)
                of[-1] |= mine
            else:
                groups.append([n])
                of.append(set(mine))
        return groups

    def of_statements(self, found: tuple[Graph, Arrangement]) -> Arrangement:
        """An arrangement of nodes as one of all the loop's statements, the copies first."""
        graph, a = found
        stage = [0] * len(self.every)
        for node, at in zip(graph.nodes, a.stage):
            for n in node.statements:
                stage[self.numbers[n]] = at
        copies = [n for n in range(len(stage)) if n not in self.numbers]
        order = [self.numbers[n] for i in a.order for n in graph.nodes[i].statements]
        waits = tuple((self.numbers[graph.nodes[i].statements[0]], k) for i, k in a.waits)
        return replace(a, order=(*copies, *order), stage=tuple(stage), waits=waits)


def _then(a: ModRef, b: ModRef) -> ModRef:
    """What two statements do, one behind the other."""
    reads = a.reads or (b.reads and not a.whole)
    return ModRef(reads, a.writes or b.writes, not reads and (a.whole or b.whole))


def _registers(v: Value) -> int:
    """Of a thread, 0 where `RESERVED` covers them."""
    t = v.buffer
    if t.space != "fragment" or t.layout is None:
        return 0
    count = -(-t.layout.size("reg") * t.dtype.bits // 32)
    return count if count > SMALL else 0


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
            rows = 0 if o.swap_operands().a.buffer.buffer.space == "fragment" else instr.m
            operands = (rows * instr.a_k + instr.n * instr.k) * instr.a_dtype.bits / 8
            tensor, port = 2 * instr.m * instr.n * instr.k / rate, operands / s.shared
            return {"tensor": steps * tensor, "shared": steps * port}
        case Parallel():
            return {unit: n / groups for unit, n in _elementwise(o, s.vector, s.special).items()}
        case Reduce():
            count = math.prod(o.source.extents) / groups
            each = 2 if o.kind in ("max", "min", "absmax") else 1
            return {"vector": count * each / s.vector + QUAD}
        case If():  # most iterations go the shorter way
            ways = [
                _sum(statement_clocks(x, groups, target) for x in region.ops)
                for region in o.regions
            ]
            return min(ways, key=lambda found: max(found.values(), default=0.0))
    clocks = {"vector": 0.0, "shared": 0.0}
    read = [e.region.dtype for e in o.effects() if e.region and e.reads]
    for e in o.effects():  # a copy, a fill
        if e.region and e.writes:
            count = math.prod(e.region.extents) / groups
            clocks["vector"] += 0.0 if e.region.dtype in read else count / s.vector
            if e.region.buffer.buffer.space == "shared":
                clocks["shared"] += count * e.region.dtype.bits / 8 / s.shared
    return clocks


def _sum(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for clocks in found:
        for unit, n in clocks.items():
            total[unit] = total.get(unit, 0.0) + n
    return total


def _elementwise(o: Parallel, vector: float, special: float) -> dict[str, float]:
    """Of all iterations. What depends on some of the loop's indices only is done once for each of
    these; a product that a sum takes up is a part of it (fma)."""
    along: dict[Value, frozenset[int]] = {v: frozenset((i,)) for i, v in enumerate(o.body.args)}
    fused = {
        v
        for x in walk(o.body)
        if isinstance(x, Binary) and x.kind in ("add", "sub")
        for v in x.operands
    }
    clocks = {"vector": 0.0, "special": 0.0}
    for x in walk(o.body):
        dims = frozenset[int]().union(*(along.get(v, frozenset()) for v in x.operands))
        along.update(dict.fromkeys(x.results, dims))
        count = math.prod(o.extents[d] for d in dims)
        if isinstance(x, Binary) and x.result.dtype.is_float:
            if x.kind == "div" and dims & along.get(x.rhs, frozenset()):
                clocks["special"] += count / special
            each = 2 if x.kind in HALF_RATE else 1
            if not (x.kind == "mul" and x.result in fused):
                clocks["vector"] += each * count / vector
        elif isinstance(x, Unary) and x.kind in SPECIAL:
            clocks["special"] += count / special
    return clocks


# --- the search -----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def best(graph: Graph, limit: int, groups: int) -> tuple[Graph, Arrangement] | None:
    """The best legal arrangement of the nodes for so many warpgroups, whose threads have `limit`
    registers for fragments; None if none is legal."""
    written = tuple(range(len(graph.nodes)))
    in_order = _stream(graph, written, (), at_once=True)
    bounds = _bounds(graph, groups)
    found: list[Arrangement] = []
    for stage in _stages(graph):
        for order in _orders(graph, stage):
            waits = _waits(graph, order)
            registers = _most_live(graph, order, waits)
            if registers <= limit:
                at = [n for n, i in enumerate(order) if graph.nodes[i].product]
                turns = groups > 1 and max(stage) > 0 and at[-1] - at[0] == len(at) - 1
                stream = _stream(graph, order, waits)
                found.append(
                    Arrangement(order, stage, waits, turns, registers, bounds, stream, in_order)
                )
    if not found:
        return None
    least = min(a.clocks for a in found)
    close = [a for a in found if a.clocks <= 1.01 * least]
    chosen = min(close, key=lambda a: (not a.turns, a.stream, a.registers))
    return graph, chosen


def _stages(graph: Graph) -> Iterator[tuple[int, ...]]:
    """The stages of all nodes that violate no edge."""
    count = len(graph.nodes)
    if count > MOST_NODES:
        yield (0,) * count
        return

    def fits(s: Sequence[int]) -> bool:
        n = len(s)
        for e in graph.edges:
            if max(e.source, e.sink) < n and e.distance + s[e.sink] - s[e.source] < 0:
                return False
        return all(len({s[i] for i in t if i < n}) <= 1 for t in graph.together)

    def extend(s: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(s) == count:
            if min(s) == 0:
                yield s
            return
        for at in (0, 1):
            if fits((*s, at)):
                yield from extend((*s, at))

    yield from extend(())


def _orders(graph: Graph, stage: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The orders of an iteration of the steady state: it begins with a product, or with what one
    needs; products are done there, behind one another, or right behind what they need."""
    nodes = graph.nodes
    before: list[set[int]] = [set() for _ in nodes]
    for e in graph.edges:
        if e.distance + stage[e.sink] == stage[e.source]:
            before[e.sink].add(e.source)
    threads = [i for i, node in enumerate(nodes) if not node.product]
    threads.sort(key=lambda i: (-stage[i], i))
    if len(nodes) > MOST_NODES:
        yield tuple(range(len(nodes)))
        return

    feeds = {u for i, node in enumerate(nodes) if node.product for u in before[i]}

    def extend(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(done) == len(nodes):
            yield done
            return
        for i, node in enumerate(nodes):
            near = not done or nodes[done[-1]].product or done[-1] in before[i]
            if node.product and i not in done and near and before[i].issubset(done):
                yield from extend((*done, i))
        begun = any(nodes[i].product for i in done)
        left = (i for i in threads if i not in done and (begun or i in feeds))
        ready = next((i for i in left if before[i].issubset(done)), None)
        if ready is not None:
            yield from extend((*done, ready))

    yield from extend(())


Waits = tuple[tuple[int, int], ...]


def _waits(graph: Graph, order: Sequence[int]) -> Waits:
    """(node, n): before the node at most n products are in flight."""
    flying: list[int] = []
    waits: list[tuple[int, int]] = []
    for i in order:
        node = graph.nodes[i]
        hit = [k for k, u in enumerate(flying) if graph.disturbs(i, u)]
        if hit:
            flying = flying[hit[-1] + 1 :]
            waits.append((i, len(flying)))
        if node.product:
            flying.append(i)
    return tuple(waits)


def _most_live(graph: Graph, order: Sequence[int], waits: Waits) -> int:
    """The most registers that fragments take at any place of the steady state."""
    reads: list[set[int]] = []
    kills: list[set[int]] = []
    flying: list[int] = []
    depth = dict(waits)
    for i in order:
        node = graph.nodes[i]
        uses = {v for v, a in node.uses if a.reads or not a.whole}
        if i in depth:
            ended = len(flying) - depth[i]
            uses.update(v for u in flying[:ended] for v in graph.nodes[u].held)
            flying = flying[ended:]
        if node.product:
            flying.append(i)
        reads.append(uses)
        kills.append({v for v, a in node.uses if a.whole})
    still = {v for u in flying for v in graph.nodes[u].held}
    reads[-1] |= still  # they are waited for at the iteration's end
    found = live_at_once(reads, kills, (), graph.registers.__getitem__)
    return sum(graph.registers[v] for v in found)


def _bounds(graph: Graph, groups: int) -> tuple[tuple[str, int], ...]:
    """Clocks that an iteration of all warpgroups keeps each unit busy."""
    units = _sum(dict(node.clocks) for node in graph.nodes)
    return tuple((unit, round(n * groups)) for unit, n in units.items())


def _stream(graph: Graph, order: Sequence[int], waits: Waits, at_once: bool = False) -> int:
    """Clocks from one iteration to the next of a warpgroup that has the machine for itself;
    `at_once`: each product is waited for as soon as it is started."""
    depth = dict(waits)
    now = pipe = 0.0
    ends: list[float] = []
    for _ in range(3):
        ends.append(now)
        flying: list[float] = []
        for i in order:
            node = graph.nodes[i]
            if i in depth:
                ended = len(flying) - depth[i]
                now = max([now, *(t + START for t in flying[:ended])])
                flying = flying[ended:]
            if node.product:
                pipe = max(pipe, now + START) + node.time
                flying.append(pipe)
                now = pipe + START if at_once else now
            else:
                now += node.time + DEPENDENT
        now = max([now, *(t + START for t in flying)])
    return round(now - ends[-1])
