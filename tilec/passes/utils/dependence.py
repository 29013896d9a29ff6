"""Who reads what whom has written: the live ranges of buffers, what is read from before, and what
the statements of a loop's iterations owe one another.

A *live range* begins with an op that fills a buffer whole and ends with the last op that reads what
it left there. Where all that is read of a buffer lies in such ranges, each within one straight list
of ops, what fills it may run ahead of its readers, into another copy of the buffer: a ring is that.
The ranges are drawn from the ops' effects alone (`Op.effects`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from tilec.ir.core import Block, Effect, Op, Value, walk
from tilec.ir.effects import buffers_written, effects_in
from tilec.ir.ops import For, If, Parallel, Scope, While
from tilec.passes.utils.accesses import covered

_V = TypeVar("_V")
Path = tuple[tuple[Block, int], ...]  # the blocks around an op, from outside, and where it is there


@dataclass(frozen=True, eq=False, slots=True)
class LiveRange:
    """What `fill` leaves in a buffer. `path` leads to it; `readers` are the places, in the same
    block, of the ops behind it that read it, or change it, or hold an op that does; `changed`:
    whether one does."""

    fill: Op
    path: Path
    readers: tuple[int, ...]
    changed: bool = False

    @property
    def block(self) -> Block:
        return self.path[-1][0]

    @property
    def start(self) -> int:
        """Where `fill` stands in its block."""
        return self.path[-1][1]

    @property
    def span(self) -> tuple[int, int] | None:
        """Where the first and the last reader stand; None without any."""
        return (self.readers[0], self.readers[-1]) if self.readers else None

    @property
    def around(self) -> list[Op]:
        """The ops that `fill` stands in, outer ones first."""
        return [block.ops[i] for block, i in self.path[:-1]]

    def is_behind(self, others: Container[Op | None]) -> bool:
        """Whether `fill` stands behind one of these ops."""
        return any(x in others for block, i in self.path for o in block.ops[:i] for x in walk(o))


@dataclass(frozen=True, eq=False, slots=True)
class Unclear:
    """Why a buffer has no live ranges: what `op` does to it."""

    op: Op
    why: str


def live_ranges(
    body: Block, buffers: Container[Value], begins: Callable[[Op], bool] | None = None
) -> dict[Value, list[LiveRange] | Unclear]:
    """The live ranges of each of the `buffers` that `body` accesses, in the order of the program;
    or the first op that keeps it from having such. Where only some ops begin ranges, what threads
    write besides changes what is in them."""
    accesses: dict[Value, _Accesses] = {}
    for path, o, e in _accesses(body, buffers):
        assert e.buffer is not None
        changes = begins is not None and not begins(o) and e.engine == "threads"
        accesses.setdefault(e.buffer, _Accesses()).add(path, o, e, changes)
    return {v: found.ranges() for v, found in accesses.items()}


def exposed(
    body: Block, buffers: Container[Value], numbers: Mapping[Value, object]
) -> Effect | None:
    """The first read of what was in one of the `buffers` before `body`, or may have been: not all
    of it has certainly been overwritten. `numbers`: values that are known."""
    fills = functools.cache(functools.partial(filled_by, numbers=numbers))
    for path, _, e in _accesses(body, buffers):
        before = (o for block, i in path for o in block.ops[:i])
        if e.reads and not any(e.buffer in fills(o) for o in before):
            return e
    return None


def filled_by(o: Op, numbers: Mapping[Value, object] = MappingProxyType({})) -> Collection[Value]:
    """The buffers all of which `o` certainly writes. `numbers`: values that are known."""
    inside = [{v for x in region.ops for v in filled_by(x, numbers)} for region in o.regions]
    match o:
        case For():
            return inside[0] if runs(o, numbers) else ()
        case While() | If():
            return inside[0] & inside[1] if isinstance(o, If) else inside[0]
        case Parallel():
            return covered(o)
    return buffers_written(o.effects(), whole=True)


def runs(o: For, numbers: Mapping[Value, object]) -> bool:
    """Whether the loop has at least one iteration, whatever the arguments."""
    return bool(o.indices(numbers.get))


def paths(block: Block, around: Path = ()) -> Iterator[tuple[Path, Op]]:
    """As `walk`, each op with the way that leads to it."""
    for i, o in enumerate(block.ops):
        path = (*around, (block, i))
        yield path, o
        for region in o.regions:
            yield from paths(region, path)


def _accesses(body: Block, buffers: Container[Value]) -> Iterator[tuple[Path, Op, Effect]]:
    """Every read and write of one of the `buffers`."""
    for path, o in paths(body):
        for e in () if o.pure or o.region_fields else o.effects():
            if e.buffer in buffers and (e.reads or e.writes):
                yield path, o, e


def once(block: Block) -> Iterator[Op]:
    """The ops that one pass through `block` does at most once: its own, and those of the branches
    in it, but not of its loops."""
    for o in block.ops:
        yield o
        if not isinstance(o, (For, While, Parallel, Scope)):
            for region in o.regions:
                yield from once(region)


@dataclass
class _Accesses:
    """What a function does to one buffer."""

    fills: list[tuple[Path, Op]] = field(default_factory=list)
    reads: list[tuple[Path, Op]] = field(default_factory=list)
    partial: Op | None = None  # writes it, or some of it, and may leave the rest
    changes: set[Op] = field(default_factory=set)

    def add(self, path: Path, o: Op, e: Effect, changes: bool) -> None:
        assert e.region is not None
        if e.reads or (e.writes and changes):
            self.reads.append((path, o))
        if e.writes and changes:
            self.changes.add(o)
        elif e.kind == "write" and e.region.is_whole:
            self.fills.append((path, o))
        elif e.writes and self.partial is None:
            self.partial = o

    def ranges(self) -> list[LiveRange] | Unclear:
        if self.partial is not None:
            return Unclear(self.partial, "writes a part of it, or adds to it")
        starts: dict[Block, list[int]] = {}
        holding: dict[Block, list[int]] = {}  # ops with a fill inside
        for path, _ in self.fills:
            for block, i in path[:-1]:
                holding.setdefault(block, []).append(i)
            starts.setdefault(path[-1][0], []).append(path[-1][1])
        readers: dict[tuple[Block, int], list[int]] = {}
        changed = set[tuple[Block, int]]()
        for path, o in self.reads:
            found = _source(path, starts, holding)
            if found is None:
                return Unclear(o, "may read what another iteration or branch has left there")
            readers.setdefault(found, []).append(dict(path)[found[0]])
            if o in self.changes:
                changed.add(found)
        made = []
        for path, o in self.fills:
            places = sorted(set(readers.get(path[-1], ())))
            made.append(LiveRange(o, path, tuple(places), path[-1] in changed))
        return made


def _source(
    path: Path, starts: dict[Block, list[int]], holding: dict[Block, list[int]]
) -> tuple[Block, int] | None:
    """The fill that certainly was the last one before the op at `path`."""
    for block, i in reversed(path):
        direct = max((s for s in starts.get(block, ()) if s < i), default=-1)
        inner = max((s for s in holding.get(block, ()) if s <= i), default=-1)
        if inner > direct:
            return None
        if direct >= 0:
            return block, direct
    return None


# --- the statements of a loop ---


@dataclass(frozen=True, slots=True)
class ModRef:
    """What a statement does to a buffer (LLVM's word for it): `whole`, it overwrites all of it and
    reads nothing."""

    reads: bool
    writes: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class Edge:
    """Statement `sink` of an iteration comes behind statement `source` of the iteration `distance`
    before it: it reads what that wrote ("flow"), writes what that read ("anti"), or writes what it
    wrote ("output"). Edges that follow from others are left out."""

    source: int
    sink: int
    distance: int
    kind: str


def modref(o: Op) -> dict[Value, ModRef]:
    """What a statement does to each buffer."""
    found: dict[Value, ModRef] = {}
    filled = filled_by(o)
    for _, e in effects_in(o):
        if e.buffer is not None and (e.reads or e.writes):
            old = found.get(e.buffer, ModRef(False, False, False))
            reads, writes = e.reads or old.reads, e.writes or old.writes
            found[e.buffer] = ModRef(reads, writes, e.buffer in filled and not reads)
    return found


def disturbs(a: Mapping[_V, ModRef], b: Mapping[_V, ModRef], chained: bool) -> bool:
    """Whether what does `a` may not be done while what does `b` goes on: it touches what that
    writes, or writes what that reads. `chained`: both are products, which add to one result one
    behind the other."""
    both = ((x, b[v]) for v, x in a.items() if v in b)
    return any((x.writes or y.writes) and not (chained and x == y) for x, y in both)


def live_at_once(
    reads: Sequence[Collection[_V]],
    kills: Sequence[Collection[_V]],
    always: Collection[_V],
    size: Callable[[_V], int],
) -> frozenset[_V]:
    """The values that are live at the place of a loop's body where they take the most, by what its
    statements read of them and overwrite whole, in their order; `always`: live everywhere."""
    live, most = set(always), frozenset(always)
    for _ in range(2):  # the second time round what the next iteration reads is known
        for used, killed in zip(reversed(reads), reversed(kills)):
            for now in (live, live := ({*live} - {*killed}) | {*used, *always}):
                if sum(map(size, now)) > sum(map(size, most)):
                    most = frozenset(now)
    return most


def edges(statements: Sequence[Mapping[Value, ModRef]]) -> tuple[Edge, ...]:
    """What orders the statements of a loop's body, each given by its `modref`: those of each
    buffer are walked twice round the loop."""
    found: dict[Edge, None] = {}
    for v in dict.fromkeys(v for s in statements for v in s):
        writer: tuple[int, int] | None = None  # the last one, and its iteration
        readers: list[tuple[int, int]] = []  # since then
        for turn in (0, 1):
            for n, s in enumerate(statements):
                if v not in s:
                    continue
                before = []
                if writer is not None:
                    before.append((writer, "flow" if s[v].reads else "output"))
                if s[v].writes:
                    before += [(r, "anti") for r in readers]
                for (source, at), kind in before if turn else ():
                    if (source, at) != (n, turn):
                        found.setdefault(Edge(source, n, turn - at, kind))
                if s[v].writes:
                    writer, readers = (n, turn), []
                else:
                    readers.append((n, turn))
    return tuple(found)
