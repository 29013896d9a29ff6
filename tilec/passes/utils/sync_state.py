"""What threads did since they last met, as `insert_sync` keeps it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, field, fields
from typing import Any

from tilec.ir.core import Value
from tilec.ir.intervals import Range, decide

Span = tuple[object, int, int]  # memory (shared, or a tensor), first byte, past the last

Group = tuple[int, int]  # first warp and warps of a group of threads; all are (0, 0)
ALL: Group = (0, 0)


def overlap(xs: set[Span], ys: set[Span]) -> bool:
    return any(a[0] is b[0] and a[1] < b[2] and b[1] < a[2] for a in xs for b in ys)


def within(inner: Group, outer: Group) -> bool:
    if outer == ALL or inner == outer:
        return True
    return inner != ALL and outer[0] <= inner[0] and sum(inner) <= sum(outer)


def meet_one_another(a: Group, b: Group) -> bool:
    return ALL in (a, b) or (a[0] < sum(b) and b[0] < sum(a))


@dataclass(frozen=True)
class Stored:
    """What writes a tensor that is only written, `by` whom: the same lets no two threads write one
    element. `box`: how far it reaches in each dimension."""

    tensor: Value
    by: object
    box: tuple[Range, ...] = ()

    def may_be_again(self, other: Stored) -> bool:
        """Whether two threads may write an element by one and the other."""
        if self.tensor is not other.tensor or self.by == other.by:
            return False
        return not any(decide("eq", a, b) == (0, 0) for a, b in zip(self.box, other.box))


@dataclass
class Known:
    """What a group of threads did since it last met."""

    reads: set[Span] = field(default_factory=set)
    writes: set[Span] = field(default_factory=set)
    owned: set[tuple[Span, object]] = field(
        default_factory=set
    )  # by what needs no order of its own
    private: set[Span] = field(default_factory=set)  # used by each warp for itself
    unfenced: set[Span] = field(default_factory=set)  # written since the last proxy fence
    touched: set[Value] = field(default_factory=set)  # what TMA refills, by threads, since then
    stored: set[Stored] = field(default_factory=set)
    flying: set[Span] = field(default_factory=set)  # written by the author's cp.async
    running: set[tuple[Value, Span]] = field(default_factory=set)  # sums in flight, what they read
    ended: set[Span] = field(default_factory=set)  # reads that each of the group has waited for
    lanes_read: set[Span] = field(default_factory=set)  # of the private ones, since lanes met
    lanes_wrote: set[Span] = field(default_factory=set)

    @property
    def owned_spans(self) -> set[Span]:
        return {span for span, _ in self.owned}

    def merge(self, other: Known) -> bool:
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
        self.owned = {x for x in self.owned if only is not None and x[0] not in only}
        if only is None:
            self.stored.clear()
            self.meet_lanes()

    def meet_lanes(self) -> None:
        """The lanes of each warp have met."""
        self.lanes_read.clear()
        self.lanes_wrote.clear()

    def land(self, pending: int = 1) -> None:
        """Each of the threads has waited for its own cp.async copies, for all that the others may
        read behind a barrier only."""
        self.writes |= self.flying
        self.unfenced |= self.flying
        if pending == 0:
            self.flying.clear()

    def drain(self, pending: int, sums: Collection[Value]) -> None:
        """Each of the threads has waited for its own warpgroup's products into these `sums`, or
        some (none are named): those of the others have ended behind a barrier only."""
        ended = {x for x in self.running if x[0] in sums or not sums or pending == 0}
        self.reads |= {span for _, span in ended}
        if sums or pending == 0:
            self.running -= ended

    def fence(self) -> None:
        """Each of the threads has executed a proxy fence."""
        self.unfenced.clear()
        self.touched.clear()

    def copy(self) -> Known:
        return Known(*map(set, _sets(self)))


_sets = operator.attrgetter(*(f.name for f in fields(Known)))


@dataclass
class State:
    """What happened since the last barrier, by each group of threads."""

    groups: dict[Group, Known] = field(default_factory=dict)

    def merge(self, other: State) -> bool:
        """Either may be so; returns whether that is more than this was."""
        grown = [self.groups.setdefault(g, Known()).merge(k) for g, k in other.groups.items()]
        return any(grown)

    def add(self, group: Group, known: Known) -> None:
        self.groups.setdefault(group, Known()).merge(known)

    def near(self, group: Group) -> Known:
        """What threads of `group` may have done, together with whoever: to be read only."""
        if [*self.groups] == [group]:
            return self.groups[group]
        found = Known()
        for g, known in self.groups.items():
            if meet_one_another(g, group):
                found.merge(known)
                if g != group:  # who has not waited with them
                    found.reads |= known.ended
        return found

    def each(self, group: Group, did: Callable[..., None], *args: Any) -> None:
        """What the threads within `group` did all alike, by a method of `Known`."""
        for g, known in self.groups.items():
            if within(g, group):
                did(known, *args)

    def copy(self) -> State:
        return State({g: known.copy() for g, known in self.groups.items()})


@dataclass
class Effects(Known):
    """What one op does."""

    engine_reads: set[Span] = field(default_factory=set)
    there: set[Span] = field(default_factory=set)  # written when it is done, if the author waits
    refills: set[Value] = field(default_factory=set)  # by TMA, as the author says
    waited: bool = False  # for its reads, by all threads, each itself


def conflict(e: Effects, known: Known) -> bool:
    """Whether the threads that did what is `known` must have met before `e`."""
    written = known.writes | known.owned_spans
    busy = written | known.reads
    return (
        overlap(e.reads, written | known.private)
        or overlap(e.writes, busy | known.private)
        or overlap(e.owned_spans, known.writes | known.reads | known.private)
        or any(x is not y and overlap({a}, {b}) for a, x in e.owned for b, y in known.owned)
        or overlap(e.private, busy | (known.private - e.private))
        or any(x.may_be_again(y) for x in e.stored for y in known.stored)
    )
