"""What must be known of a `parallel` loop before it is spelled as vector code.

Three questions, each answered by a walk over the loop's body:

- `Linear`: between which numbers does an index lie over the whole loop? The ends are sums of values
  from outside the loop, so that one comparison before the loop can stand for a guard on every
  access (`checks`).
- `coefficient`: how much does an index grow when one loop index grows by one? From this the loop
  index that runs along the lanes of vectors is chosen: the one along which most accesses are
  contiguous (`vector_dimension`).
- `varying`: which values differ between lanes once that index is chosen?
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilec.ir.analysis import Facts
from tilec.ir.core import Block, Op, Value, inputs, upstream, walk
from tilec.ir.ops import (
    Alloc,
    Binary,
    Cast,
    Const,
    For,
    If,
    Load,
    Parallel,
    Store,
    While,
    yielded,
)
from tilec.ir.types import Extent


@dataclass(frozen=True, slots=True)
class Linear:
    """constant + sum of factor * value, the values being defined outside the loop."""

    constant: int = 0
    terms: tuple[tuple[Value, int], ...] = ()

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        terms = dict(self.terms)
        for value, n in other.terms:
            terms[value] = terms.get(value, 0) + factor * n
        kept = tuple((v, n) for v, n in terms.items() if n)
        return Linear(self.constant + factor * other.constant, kept)

    def shifted(self, by: int) -> Linear:
        return Linear(self.constant + by, self.terms)

    def at_least_zero(self, facts: Facts) -> bool:
        """Whether it can be proved, without running anything."""
        return self.constant >= 0 and all(n > 0 and facts.non_negative(v) for v, n in self.terms)


Interval = tuple[Linear, Linear]  # both ends included


@dataclass(frozen=True, slots=True)
class Check:
    """One dimension of an access that needs a guard: low >= 0 and high < extent, over the whole
    loop.
    """

    low: Linear | None
    high: Linear | None
    extent: Extent


@dataclass
class LoopFacts:
    """A parallel loop, and what has been found out about it."""

    loop: Parallel
    facts: Facts
    inside: dict[Value, Op] = field(default_factory=dict)
    ranges: dict[Value, Interval | None] = field(default_factory=dict)
    growth: dict[Value, dict[Value, int | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for arg, extent in zip(self.loop.body.args, self.loop.extents):
            self.ranges[arg] = (Linear(), Linear(extent - 1))
        for o in walk(self.loop.body):
            for r in o.results:
                self.inside[r] = o
            for region in o.regions:
                for arg in region.args:
                    self.ranges.setdefault(arg, None)
            if isinstance(o, Parallel):
                for arg, extent in zip(o.body.args, o.extents):
                    self.ranges[arg] = (Linear(), Linear(extent - 1))
            elif isinstance(o, For):
                self.ranges[o.body.args[0]] = self._index(o)

    def _index(self, o: For) -> Interval | None:
        low, high, step = self.interval(o.lo), self.interval(o.hi), self.interval(o.step)
        rising = step is not None and step[0].constant > 0 and not step[0].terms
        return (low[0], high[1].shifted(-1)) if rising and low and high else None

    def interval(self, v: Value) -> Interval | None:
        """Between what ends `v` lies whenever the body runs; None if that is not known."""
        for o in upstream((v,), self.inside, self.ranges):
            for r in o.results:
                self.ranges[r] = self._interval(r, o)
        if v not in self.ranges:
            same = self._outside(v)
            self.ranges[v] = same, same
        return self.ranges[v]

    def _interval(self, v: Value, o: Op) -> Interval | None:
        match o:
            case Const(value=int() as n):
                return Linear(int(n)), Linear(int(n))
            case Cast(operand=x) if x.dtype.is_int and v.dtype.is_int and v.dtype.bits >= 32:
                return self.interval(x)
            case Binary(kind="add" | "sub" as kind, lhs=lhs, rhs=rhs):
                a, b = self.interval(lhs), self.interval(rhs)
                if not a or not b:
                    return None
                if kind == "add":
                    return a[0].plus(b[0]), a[1].plus(b[1])
                return a[0].plus(b[1], -1), a[1].plus(b[0], -1)
            case Binary(kind="mul", lhs=lhs, rhs=rhs):
                a, b = self.interval(lhs), self.interval(rhs)
                if not a or not b:
                    return None
                return _scaled(a, b) or _scaled(b, a)
            case Binary(kind="mod", rhs=rhs):
                period = self._constant(rhs)
                return (Linear(), Linear(period - 1)) if period and period > 0 else None
            case Binary(kind="floordiv", lhs=lhs, rhs=rhs):
                a, by = self.interval(lhs), self._constant(rhs)
                if not a or a[0].terms or a[1].terms or not by or by < 0:
                    return None
                return Linear(a[0].constant // by), Linear(a[1].constant // by)
            case _:
                return None

    def _outside(self, v: Value) -> Linear:
        known = self.facts.constant(v) if v.dtype.is_int else None
        return Linear(known) if known is not None else Linear(0, ((v, 1),))

    def _constant(self, v: Value) -> int | None:
        got = self.interval(v)
        return got[0].constant if got and got[0] == got[1] and not got[0].terms else None

    # --- guards ---

    def check(self, index: Value, extent: Extent) -> Check | None | bool:
        """What must be tested so that no access by `index` leaves [0, extent): a Check; True if
        nothing; None if no test before the loop can tell.
        """
        got = self.interval(index)
        if got is None:
            return None
        low: Linear | None = got[0]
        high: Linear | None = got[1]
        if got[0].at_least_zero(self.facts):
            low = None
        if isinstance(extent, int):
            if Linear(extent - 1).plus(got[1], -1).at_least_zero(self.facts):
                high = None
            elif not got[1].terms:
                return None  # it does leave the tensor
        if low is not None and not low.terms and low.constant < 0:
            return None
        return True if low is None and high is None else Check(low, high, extent)

    # --- lanes ---

    def coefficient(self, v: Value, arg: Value) -> int | None:
        """By how much `v` grows with `arg`; None if that is no constant."""
        known = self.growth.setdefault(arg, {arg: 1})

        def part(x: Value) -> int | None:
            if x in known or x in self.inside:
                return known.get(x)
            return 0 if self.ranges.get(x, ()) is not None else None

        for o in upstream((v,), self.inside, known):
            found = self._growth(o, [part(x) for x in inputs(o)])
            known.update((r, found) for r in o.results)
        return part(v)

    def _growth(self, o: Op, parts: list[int | None]) -> int | None:
        """`coefficient` of what `o` makes, from those of its inputs."""
        if o.region_fields:
            return None
        if all(p == 0 for p in parts):
            return 0
        match o, parts:
            case Binary(kind="add"), [int() as x, int() as y]:
                return x + y
            case Binary(kind="sub"), [int() as x, int() as y]:
                return x - y
            case Binary(kind="mul", lhs=lhs, rhs=rhs), [int() as x, int() as y]:
                a, b = self._constant(lhs), self._constant(rhs)
                if b is not None:
                    return x * b
                return y * a if a is not None else None
            case Cast(), [part] if o.result.dtype.is_int and o.operand.dtype.is_int:
                return part
        return None

    def vector_dimension(self) -> int:
        """Which loop index should run along the lanes."""
        extents = self.loop.extents
        return max(range(len(extents)), key=lambda d: (self._score(d), d))

    def _score(self, d: int) -> float:
        """Accesses that one vector instruction does, stores twice as dear; a short loop fills few
        lanes.
        """
        if self.loop.extents[d] == 1:
            return -1e9
        arg, score = self.loop.body.args[d], 0.0
        for o in walk(self.loop.body):
            if not isinstance(o, (Load, Store)):
                continue
            buffer = o.source if isinstance(o, Load) else o.dest
            weight = 1.0 if isinstance(o, Load) else 2.0
            parts = [self.coefficient(i, arg) for i in o.indices]
            *outer, last = parts or [0]
            strides = buffer.buffer.strides
            unit = (
                strides is None or not strides or strides[-1] == 1 or isinstance(strides[-1], str)
            )
            if any(p != 0 for p in outer) or last not in (0, 1) or (last == 1 and not unit):
                score -= 2 * weight
            else:
                score += weight
        return score * min(self.loop.extents[d], 16)


def _scaled(a: Interval, b: Interval) -> Interval | None:
    """a * b where b is one number."""
    if b[0] != b[1] or b[0].terms:
        return None
    n = b[0].constant
    ends = tuple(Linear().plus(end, n) for end in a)
    return (ends[0], ends[1]) if n >= 0 else (ends[1], ends[0])


def varying(block: Block, sources: Iterable[Value], allocs: bool = True) -> set[Value]:
    """The values inside `block` that may differ between lanes, given that `sources` do. With
    `allocs`, buffers allocated inside are each lane's own: what is read from them differs.
    """
    found = set(sources)
    for o in walk(block):
        if allocs and isinstance(o, Alloc):
            found.update(o.results)
    size = -1
    while size != len(found):
        size = len(found)
        _spread(block, found)
    return found


def _spread(block: Block, found: set[Value]) -> None:
    for o in block.ops:
        for region in o.regions:
            _spread(region, found)
        match o:
            case If():
                for region in o.regions:
                    _flow(yielded(region), o.results, found, o.cond in found)
            case For():
                uneven = any(v in found for v in (o.lo, o.hi, o.step))
                if uneven:
                    found.add(o.body.args[0])
                _carry(o, o.body.args[1:], uneven, found)
            case While():
                uneven = any(v in found for v in yielded(o.cond))
                for _ in range(2):
                    _carry(o, o.body.args, uneven, found)
                    _flow(o.body.args, o.cond.args, found)
            case _:
                if any(v in found for v in o.operands):
                    found.update(o.results)


def _carry(o: For | While, args: tuple[Value, ...], uneven: bool, found: set[Value]) -> None:
    _flow(o.inits, args, found, uneven)
    _flow(yielded(o.body), args, found)
    _flow(args, o.results, found)


def _flow(
    before: tuple[Value, ...], after: tuple[Value, ...], found: set[Value], always: bool = False
) -> None:
    found.update(b for a, b in zip(before, after) if always or a in found)
