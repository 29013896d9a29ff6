"""Who reads what whom has written: the live ranges of buffers.

A *live range* begins with an op that fills a buffer whole and ends with the last op that reads what
it left there. Where all that is read of a buffer lies in such ranges, each within one straight list
of ops, what fills it may run ahead of its readers, into another copy of the buffer: a ring is that.
The ranges are drawn from the ops' effects alone (`Op.effects`)."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from tilec.ir.core import Block, Effect, Op, Value
from tilec.ir.ops import For, Parallel, Scope, While

Path = tuple[tuple[Block, int], ...]  # the blocks around an op, from outside, and where it is there


@dataclass(frozen=True, eq=False, slots=True)
class LiveRange:
    """What `fill` leaves in a buffer. `path` leads to it; `readers` are the places, in the same
    block, of the ops behind it that read it or hold an op that does."""

    fill: Op
    path: Path
    readers: tuple[int, ...]

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


@dataclass(frozen=True, eq=False, slots=True)
class Unclear:
    """Why a buffer has no live ranges: what `op` does to it."""

    op: Op
    why: str


def live_ranges(body: Block, buffers: Container[Value]) -> dict[Value, list[LiveRange] | Unclear]:
    """The live ranges of each of the `buffers` that `body` accesses, in the order of the program;
    or the first op that keeps it from having such."""
    accesses: dict[Value, _Accesses] = {}

    def visit(block: Block, around: Path) -> None:
        for i, o in enumerate(block.ops):
            for name in o.region_fields:
                visit(getattr(o, name), (*around, (block, i)))
            for e in () if o.pure or o.region_fields else o.effects():
                if e.region is not None and e.region.buffer in buffers and (e.reads or e.writes):
                    path = (*around, (block, i))
                    accesses.setdefault(e.region.buffer, _Accesses()).add(path, o, e)

    visit(body, ())
    return {v: found.ranges() for v, found in accesses.items()}


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

    def add(self, path: Path, o: Op, e: Effect) -> None:
        assert e.region is not None
        if e.reads:
            self.reads.append((path, o))
        if e.kind == "write" and e.region.is_whole:
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
        for path, o in self.reads:
            found = _source(path, starts, holding)
            if found is None:
                return Unclear(o, "may read what another iteration or branch has left there")
            readers.setdefault(found, []).append(dict(path)[found[0]])
        made = []
        for path, o in self.fills:
            places = sorted(set(readers.get(path[-1], ())))
            made.append(LiveRange(o, path, tuple(places)))
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
