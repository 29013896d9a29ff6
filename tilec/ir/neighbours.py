"""How values go with the index of a block or a loop: which way a number goes, whether a condition
that holds at two indices holds between them; and what is known of neighbours, values of an element
loop within a group of iterations that a thread takes together, from a multiple of their number on.

`slope` of `tilec.ir.analysis` is the same for all iterations. Of `q // 128` and `q % 128`, for `q`
from a multiple of 8 on, that cannot be said; but within eight neighbours the one stays and the
other counts up, and so eight of `x[q // 128, q % 128]` lie side by side."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.affine import Affine
from tilec.ir.analysis import Facts
from tilec.ir.core import Op, Value
from tilec.ir.effects import is_clonable
from tilec.ir.intervals import low_bit
from tilec.ir.ops import DIVISIONS, Binary, Cast, Compare, Load, Select


class Step(NamedTuple):
    """How much a value grows from one neighbour to the next, and a power of two that divides it in
    the first of them."""

    by: int
    divisor: int


class Neighbours:
    """The steps of values within `width` (a power of two) neighbours along a loop's index `arg`.
    `written`: the tensors that the kernel writes."""

    def __init__(self, facts: Facts, written: set[Value], arg: Value, width: int) -> None:
        self.facts = facts
        self.written = written
        self.arg = arg
        self.width = width
        self.known: dict[Value, Step | None] = {arg: Step(1, width)}

    def step(self, value: Value) -> Step | None:
        """The step of `value`; None where it is not the same for all neighbours."""
        left = [value]
        while left:
            v = left[-1]
            if v in self.known:
                left.pop()
                continue
            o = self.facts.made_by(v)
            if self.arg not in self.facts.origins.of(v):
                self.known[v] = Step(0, self.facts.divisor(v))
            elif o is None or o.regions or not is_clonable(o, self.written):
                self.known[v] = None
            elif todo := [x for x in self._parts(o) if x not in self.known]:
                left += todo
            else:
                self.known[v] = self._of(o, [self.known[x] for x in self._parts(o)])
        return self.known[value]

    def same(self, value: Value) -> bool:
        """Whether it is the same for all neighbours."""
        found = self.step(value)
        return found is not None and found.by == 0

    def counts_up(self, value: Value) -> bool:
        """Whether it counts up by one, from a multiple of `width` on."""
        found = self.step(value)
        return found is not None and found.by == 1 and found.divisor % self.width == 0

    def _parts(self, o: Op) -> tuple[Value, ...]:
        if isinstance(o, Binary):
            return o.lhs, o.rhs  # a reciprocal says nothing more
        return o.indices if isinstance(o, Load) else o.operands

    def _of(self, o: Op, parts: list[Step | None]) -> Step | None:
        known = [p for p in parts if p is not None]
        if len(known) < len(parts):
            return None
        match o, known:
            case Binary(kind="add" | "sub" as kind), [a, b]:
                by = a.by + b.by if kind == "add" else a.by - b.by
                return Step(by, min(a.divisor, b.divisor))
            case Binary(kind="mul"), [a, b]:
                return self._product(o, a, b)
            case Binary(kind=kind), [a, b] if kind in DIVISIONS:
                whole = self._stays_inside(o, a, b)
                if whole and kind.endswith("div"):
                    return Step(0, 1)
                if whole or (a.by == b.by == 0 and kind.endswith("mod")):
                    return Step(a.by, min(a.divisor, b.divisor))
            case Cast(), [a] if o.operand.dtype.is_int and o.dtype.is_int:
                if a.by == 0 or o.dtype.bits >= o.operand.dtype.bits:
                    return a
            case Compare(kind="lt" | "ge"), [a, b] if self._is_edge(a, b):
                return Step(0, 1)
            case Compare(kind="gt" | "le"), [a, b] if self._is_edge(b, a):
                return Step(0, 1)
            case Select(), [cond, a, b] if cond.by == 0 and a.by == b.by:
                return Step(a.by, min(a.divisor, b.divisor))
        return Step(0, 1) if all(p.by == 0 for p in known) else None

    def _product(self, o: Binary, a: Step, b: Step) -> Step | None:
        for x, moving, factor in ((o.rhs, a, b), (o.lhs, b, a)):
            by = self.facts.constant(x)
            if moving.by == 0 or by is not None:
                if moving.by == factor.by == 0:
                    return Step(0, a.divisor * b.divisor)
                if by is not None:
                    return Step(moving.by * by, moving.divisor * low_bit(by))
        return None

    def _stays_inside(self, o: Binary, a: Step, b: Step) -> bool:
        """Whether all neighbours lie between the same two multiples of the number that divides."""
        signed = o.kind.startswith("trunc") and not self.facts.non_negative(o.lhs)
        return self._is_edge(a, b) and self.facts.non_negative(o.rhs) and not signed

    def _is_edge(self, a: Step, b: Step) -> bool:
        """Whether what counts up does not pass by what stays."""
        both = a.divisor % self.width == 0 and b.divisor % self.width == 0
        return a.by == 1 and b.by == 0 and both


class Run(NamedTuple):
    """How a value goes with the indices of a loop: it is `start`, which the iterations have in
    common, plus that of them which it runs along (None: none), divided by `per`."""

    along: Value | None
    per: int
    start: Affine


def run_of(facts: Facts, value: Value, indices: Collection[Value]) -> Run | None:
    """How `value` goes with `indices`; None if it goes with several, or otherwise."""
    form = facts.form(value)
    own = [v for v in form.terms if not facts.origins.of(v).isdisjoint(indices)]
    if not own:
        return Run(None, 1, form)
    v, start = own[0], form.without(own[0])
    if len(own) > 1 or form.terms[v] != 1:
        return None
    if v in indices:
        return Run(v, 1, start)
    match facts.made_by(v):
        case Binary(kind="floordiv", lhs=whole, rhs=divisor):
            by, inner = facts.constant(divisor), run_of(facts, whole, indices)
            if by is not None and by > 0 and inner is not None:
                first = inner.start.quotient(by)
                return None if first is None else Run(inner.along, inner.per * by, start + first)
    return None


# --- which way a number goes with an index ---


def trend(facts: Facts, value: Value, index: Value) -> int | None:
    """Whether `value` grows with a block's or a loop's `index` (1), falls (-1) or has nothing
    to do with it (0); None where that is not known."""
    found: dict[Value, int | None] = {index: 1}
    origins = facts.origins.of(index)
    left = [value]
    while left:
        v = left[-1]
        o = facts.made_by(v)
        if v in found or o is None or not origins & facts.origins.of(v):
            found.setdefault(v, 0 if not origins & facts.origins.of(v) else None)
            left.pop()
            continue
        o = facts.rounding_up(o) or o
        if todo := [x for x in o.operands if x not in found]:
            left += todo
        else:
            found[v] = _trend(facts, o, [found[x] for x in o.operands])
            left.pop()
    return found[value]


def _trend(facts: Facts, o: Op, parts: list[int | None]) -> int | None:
    """Of what `o` makes of operands with these trends."""
    match o:
        case ops.Cast(operand=x) if o.result.dtype.is_int and o.result.dtype.bits >= x.dtype.bits:
            return parts[0]
        case ops.Binary(kind="add" | "min" | "max"):
            found = set(parts) - {0}
        case ops.Binary(kind="sub"):
            found = {parts[0], None if parts[1] is None else -parts[1]} - {0}
        case ops.Binary(kind="mul" | "floordiv" | "truncdiv", rhs=by) if parts[1] == 0:
            found = {parts[0] if facts.non_negative(by) else None} - {0}
        case _:
            return None
    return found.pop() if len(found) == 1 else None if found else 0


def holds_between(facts: Facts, cond: Value, index: Value) -> bool:
    """Whether a condition that holds for two values of a loop's `index` is known to hold for
    all between them: it is made of comparisons of what grows evenly with the index."""
    if index not in facts.origins.of(cond):
        return True
    match facts.made_by(cond):
        case ops.Binary(kind="and", lhs=a, rhs=b):
            return holds_between(facts, a, index) and holds_between(facts, b, index)
        case ops.Compare(kind=kind, lhs=a, rhs=b) if kind != "ne" and a.is_integer:
            return None not in (facts.slope(a, index), facts.slope(b, index))
    return False
