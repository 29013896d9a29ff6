"""Orders of a loop's statements: which are legal, what registers they take, which is best.

`arrange` makes a graph of a loop's statements, says what each keeps busy and what the user has
fixed, and takes what is found here: a pure function of the graph, the registers and the number of
warpgroups, by enumeration. `Arrangement` (`ir/schedule.py`) has the words."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tilec.ir.schedule import Arrangement
from tilec.passes.utils.dependence import Edge, ModRef, disturbs, live_at_once

MOST_NODES = 12  # more keep their author's order
START = 60  # clocks from a product's start, or its end, to what waits for it
DEPENDENT = 20  # clocks until a statement's first result is there


@dataclass(frozen=True)
class Node:
    """Statements that are done one behind the other. `clocks` by unit, for one warpgroup's part;
    `uses`: what they do to the buffers, which are numbered; `held`: of a product, the fragments
    that are in flight with it. `stage` and `place`: the user's, -1 where he leaves them open."""

    statements: tuple[int, ...]
    product: bool
    clocks: tuple[tuple[str, float], ...]
    uses: tuple[tuple[int, ModRef], ...]
    held: tuple[int, ...] = ()
    stage: int = -1
    place: int = -1

    @functools.cached_property
    def time(self) -> float:
        """Clocks of one warpgroup alone."""
        return max((n for _, n in self.clocks), default=0.0)


@dataclass(frozen=True)
class Graph:
    """The nodes of a loop, the edges between them, the registers of each buffer in a thread, and
    sets of nodes of one stage (they read what one wait covers). `loads`: of each buffer that is
    filled ahead its readers, its versions and the clocks from asking for a tile to having it."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    registers: tuple[int, ...]
    together: tuple[tuple[int, ...], ...]
    loads: tuple[tuple[tuple[int, ...], int, int], ...] = ()

    @functools.cached_property
    def behind(self) -> tuple[tuple[int, int], ...]:
        """Nodes that the user's order puts one behind the other."""
        placed = sorted((n.place, i) for i, n in enumerate(self.nodes) if n.place >= 0)
        return tuple((u, v) for (_, u), (_, v) in zip(placed, placed[1:]))

    @property
    def is_asked(self) -> bool:
        """Whether the user has said anything of how the nodes overlap."""
        return len({n.stage for n in self.nodes if n.stage >= 0}) > 1

    def disturbs(self, n: int, product: int) -> bool:
        """Whether a node may not be done while a product is in flight."""
        a, b = self.nodes[n], self.nodes[product]
        return disturbs(dict(a.uses), dict(b.uses), a.product)


@functools.lru_cache(maxsize=256)
def best(graph: Graph, limit: int, groups: int) -> Arrangement | int:
    """The best legal arrangement of the nodes for so many warpgroups, whose threads have `limit`
    registers for fragments; if none fits, how many take more."""
    written = tuple(range(len(graph.nodes)))
    in_order = _stream(graph, written, (), at_once=True)
    units = _units(graph, groups)
    found: list[Arrangement] = []
    too_large = 0
    for stage in _stages(graph):
        for order in _orders(graph, stage):
            waits = _waits(graph, order)
            registers = _most_live(graph, order, waits)
            if registers > limit:
                too_large += 1
                continue
            at = [n for n, i in enumerate(order) if graph.nodes[i].product]
            turns = groups > 1 and max(stage) > 0 and at[-1] - at[0] == len(at) - 1
            stream = _stream(graph, order, waits)
            found.append(
                Arrangement(order, stage, waits, turns, registers, units, stream, in_order)
            )
    if not found:
        return too_large
    least = min(a.clocks for a in found)

    def key(a: Arrangement) -> tuple[float, ...]:
        near = a.clocks <= 1.01 * least
        return (not near, 0 if near else a.clocks, not a.turns, a.stream, a.registers)

    chosen, *rest = sorted(found, key=key)
    return replace(
        chosen,
        cycle=_cycle(graph),
        ring=_ring(graph, chosen),
        second=rest[0] if rest else None,
        others=(len(rest), too_large),
    )


def in_versions(
    graph: Graph, groups: int, registers: tuple[int, int], versions: Collection[int]
) -> Arrangement:
    """The nodes as they are written, where the products of an iteration go on in the next one: the
    buffers `versions` that they read and others fill have two. `second` has one; `registers` of
    both."""
    written = tuple(range(len(graph.nodes)))
    products = [i for i in written if graph.nodes[i].product]
    held = {v for i in products for v in graph.nodes[i].held} | {*versions}
    fills = [i for i in written if i not in products and held & {*dict(graph.nodes[i].uses)}]
    waits = ((fills[0], len(products)),)
    stream = _stream(graph, written, waits, carried=True)
    in_order = _stream(graph, written, (), at_once=True)
    later = (
        replace(e, distance=2) if e.source in products and e.sink in fills and e.distance else e
        for e in graph.edges
    )
    two = replace(graph, edges=tuple(later))
    kept = (written, (0,) * len(written))
    units = _units(graph, groups)
    one = Arrangement(*kept, (), False, registers[1], units, in_order, in_order)
    made = Arrangement(*kept, waits, False, registers[0], units, stream, in_order)
    ring = _ring(two, made, carried=True)
    return replace(made, cycle=_cycle(two), ring=ring, second=one, others=(1, 0))


def _stages(graph: Graph) -> Iterator[tuple[int, ...]]:
    """The stages of all nodes that violate no edge."""
    count = len(graph.nodes)
    asked = [n.stage for n in graph.nodes]
    if count > MOST_NODES and min(asked) < 0:
        yield (0,) * count
        return

    def fits(s: Sequence[int]) -> bool:
        n = len(s)
        if len({at - a for at, a in zip(s, asked) if a >= 0}) > 1:
            return False
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
    for u, v in graph.behind:
        before[v].add(u)
    if len(nodes) > MOST_NODES and len(graph.behind) < len(nodes) - 1:
        written = tuple(range(len(nodes)))
        if all(before[i].issubset(written[:i]) for i in written):
            yield written
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


def _units(graph: Graph, groups: int) -> tuple[tuple[str, int], ...]:
    """Clocks that an iteration of all warpgroups keeps each unit busy."""
    units: dict[str, float] = {}
    for node in graph.nodes:
        for unit, n in node.clocks:
            units[unit] = units.get(unit, 0.0) + n
    return tuple((unit, round(n * groups)) for unit, n in units.items())


def _stream(
    graph: Graph, order: Sequence[int], waits: Waits, at_once: bool = False, carried: bool = False
) -> int:
    """Clocks from one iteration to the next of a warpgroup that has the machine for itself;
    `at_once`: each product is waited for as soon as it is started; `carried`: those in flight at an
    iteration's end go on in the next one."""
    ends = [now for now, _ in _play(graph, order, waits, at_once, carried)]
    count = 2 if carried else 1  # those in flight may take turns
    return round((ends[-1] - ends[-1 - count]) / count)


def _play(
    graph: Graph, order: Sequence[int], waits: Waits, at_once: bool = False, carried: bool = False
) -> Iterator[tuple[float, dict[int, tuple[float, float]]]]:
    """Iterations of such a warpgroup until they are alike: when each ends, and when each of its
    nodes begins and is known to have ended."""
    depth = dict(waits)
    now = pipe = 0.0
    flying: list[tuple[int, float]] = []
    times: dict[int, tuple[float, float]] = {}
    for _ in range(6 if carried else 3):
        for i in order if carried else (*order, None):
            ended = len(flying) - depth.get(i, len(flying)) if i is not None else len(flying)
            now = max([now, *(t + START for _, t in flying[:ended])])
            times.update((u, (times[u][0], now)) for u, _ in flying[:ended])
            flying = flying[ended:]
            if i is None:
                continue
            node, begun = graph.nodes[i], now
            if node.product:
                pipe = max(pipe, now + START) + node.time
                flying.append((i, pipe))
                now = pipe + START if at_once else now
            else:
                now += node.time + DEPENDENT
            times[i] = begun, now
        yield now, dict(times)


def _cycle(graph: Graph) -> int:
    """The most clocks for each iteration of a cycle of edges: what is computed on its way goes from
    iteration to iteration, however the others are arranged."""

    def after(e: Edge) -> float:
        u, v = graph.nodes[e.source], graph.nodes[e.sink]
        if u.product and v.product and set(u.held) & set(v.held):
            return u.time  # the tensor cores keep them in order
        return u.time + (2 * START if u.product else DEPENDENT)

    links = [(e.source, e.sink, after(e), e.distance) for e in graph.edges]
    least, most = 0.0, sum(n.time + 2 * START for n in graph.nodes)
    while most - least > 1:
        clocks = (least + most) / 2
        if _grows(len(graph.nodes), [(u, v, t - clocks * d) for u, v, t, d in links]):
            least = clocks
        else:
            most = clocks
    return round(least)


def _grows(count: int, links: Sequence[tuple[int, int, float]]) -> bool:
    """Whether a cycle of these links has a sum above 0 (Bellman and Ford)."""
    far = [0.0] * count
    for _ in range(count):
        changed = False
        for u, v, length in links:
            if far[u] + length > far[v] + 1e-9:
                far[v], changed = far[u] + length, True
        if not changed:
            return False
    return True


def _ring(graph: Graph, a: Arrangement, carried: bool = False) -> int:
    """The most clocks for each iteration that a buffer's loads take: from asking for a tile until
    it is read no more, divided by its versions."""
    *_, (_, ends) = _play(graph, a.order, a.waits, carried=carried)
    found = (
        (load + max(ends[n][1] for n in readers) - min(ends[n][0] for n in readers)) / versions
        for readers, versions, load in graph.loads
        if readers
    )
    return round(max(found, default=0.0))
