"""Integers as sums: a number, plus some unknown values, each times a number of its own.

`i + 4 - i` is 4, `k * 32 + j` with j < 32 stays below a bound, and `(y * 64 + i) * 8` grows by 8
with i. `Affine` is such a sum; `Forms` finds the sums that the values of a function are, each once,
from the ops that make them. An op that makes no sum gives an unknown of its own: its result.

A sum is of the integers themselves. Signed ones of 32 bits and more are taken not to overflow where
a bound is unknown (see `tilec.ir.analysis`); others are looked through only where ranges show that
nothing wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilec.ir import ops
from tilec.ir.core import Func, Op, Value, upstream, walk
from tilec.ir.intervals import RANGES, Range, low_bit, negate
from tilec.ir.types import MOST_NARROW, DType, ScalarType

LINEAR = (ops.Binary, ops.Cast, ops.Const, ops.Unary)  # ops that may make a sum
_MOST_TERMS = 64  # a longer sum is an unknown of its own: chains of ops take linear time


@dataclass(slots=True)
class Affine:
    """`const` plus each value of `terms` times its coefficient (never 0). Nobody changes one: it is
    not frozen because a tracer makes thousands."""

    const: int = 0
    terms: Mapping[Value, int] = field(default_factory=dict)

    @staticmethod
    def of(value: Value) -> Affine:
        """One unknown value."""
        return Affine(0, {value: 1})

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for v, c in other.terms.items():
            total = terms.pop(v, 0) + c
            if total:
                terms[v] = total
        return Affine(self.const + other.const, terms)

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        return Affine(self.const * factor, {v: c * factor for v, c in self.terms.items()})

    def without(self, value: Value) -> Affine:
        """The sum where `value` is 0."""
        return Affine(self.const, {v: c for v, c in self.terms.items() if v is not value})

    @property
    def constant(self) -> int | None:
        """The number that it is, if no unknown is left."""
        return None if self.terms else self.const

    def quotient(self, by: int) -> Affine | None:
        """The sum divided by a number that divides all of its parts; None if it does not."""
        if self.const % by or any(c % by for c in self.terms.values()):
            return None
        return Affine(self.const // by, {v: c // by for v, c in self.terms.items()})

    def divisor(self, of: Callable[[Value], int]) -> int:
        """A power of two known to divide it, where `of` gives such of the unknowns."""
        return min([low_bit(self.const), *(low_bit(c) * of(v) for v, c in self.terms.items())])

    def at(self, values: Mapping[Value, Any]) -> Any:
        """The sum where the unknowns have these values (ints, or arrays of them)."""
        total: Any = self.const
        for v, c in self.terms.items():
            total = total + c * values[v]
        return total


class Forms:
    """The sums that values are, memoised by value; `range` says how far an unknown reaches."""

    def __init__(self) -> None:
        self._forms: dict[Value, Affine] = {}

    def range(self, value: Value) -> Range:
        """(lo, hi) of an unknown, both included; None where there is no bound."""
        raise NotImplementedError

    def form(self, value: Value) -> Affine:
        """The sum that an integer is."""
        return self._forms.get(value) or Affine.of(value)

    def unknown(self, o: Op, parts: Sequence[Affine], found: Range) -> Affine:
        """What `o` makes, if that is no sum of its operands `parts`; it lies in `found`."""
        return Affine.of(o.results[0])

    def reach(self, a: Affine) -> Range:
        """Bounds of a sum; exact where its unknowns are independent of one another."""
        lo: int | None = a.const
        hi: int | None = a.const
        for v, c in a.terms.items():
            bounds = _bounds(self.range(v), v.dtype)
            first, last = bounds if c > 0 else bounds[::-1]
            lo = None if lo is None or first is None else lo + c * first
            hi = None if hi is None or last is None else hi + c * last
        return lo, hi

    def note(self, o: Op) -> None:
        """Find the sum that an op of `LINEAR` makes; its operands have been noted."""
        if isinstance(o, ops.Const) and o.dtype.kind in ("int", "uint"):
            self._forms[o.result] = Affine(int(o.value))
            return
        # A reciprocal says nothing more of a quotient.
        values = (o.lhs, o.rhs) if isinstance(o, ops.Binary) else o.operands
        parts = [self.form(v) for v in values]
        found = self.result_range(o, parts)
        made = None if found is None else self._sum(o, parts)
        if made is None or len(made.terms) > _MOST_TERMS:
            made = self.unknown(o, parts, found or (None, None))
        self._forms[o.results[0]] = made

    def result_range(self, o: Op, parts: Sequence[Affine]) -> Range | None:
        """Bounds of what `o` makes of its operands; None if it may wrap, or is no integer."""
        t = o.results[0].type
        if not isinstance(t, ScalarType) or t.dtype.kind not in ("int", "uint"):
            return None
        found: Range = (None, None)
        unsure = not _is_index(t.dtype)
        match o:
            case ops.Const(value=int() as n):
                found = n, n
            case ops.Cast(operand=x) if x.is_integer:
                found = self.reach(parts[0])
                unsure = unsure or x.dtype.kind == "uint" and x.dtype.bits >= t.dtype.bits
                unsure = unsure or t.dtype.bits < x.dtype.bits and self._anything(parts[0])
            case ops.Binary(kind=kind) if kind in RANGES:
                ends = (_bounds(self.reach(x), v.dtype) for x, v in zip(parts, o.operands))
                found = RANGES[kind](*ends)
            case ops.Unary(kind="neg"):
                found = negate(self.reach(parts[0]))
        if unsure and None in found:
            return None
        (lo, hi), (least, most) = found, t.dtype.limits
        inside = (lo is None or lo >= least) and (hi is None or hi <= most)
        return found if inside else None

    def _anything(self, a: Affine) -> bool:
        """Whether an unknown of a sum may be any number of its dtype: one that was read, no index,
        and so one of which a cast may take the low bits."""
        return any(self.range(v) == v.dtype.limits for v in a.terms)

    def _sum(self, o: Op, parts: Sequence[Affine]) -> Affine | None:
        match o:
            case ops.Const():
                return Affine(int(o.value))
            case ops.Cast(operand=x) if x.is_integer:
                return parts[0]
            case ops.Unary(kind="neg"):
                return parts[0].scaled(-1)
            case ops.Binary():
                return self._arithmetic(o.kind, *parts)
        return None

    def _arithmetic(self, kind: str, a: Affine, b: Affine) -> Affine | None:
        n = b.constant
        match kind:
            case "add":
                return a + b
            case "sub":
                return a - b
            case "mul":
                by = a.constant if n is None else n
                return None if by is None else (b if n is None else a).scaled(by)
            case "shl" if n is not None and 0 <= n < 32:
                return a.scaled(1 << n)
            case "min" | "max":
                lo, hi = self.reach(a - b)
                if (hi is not None and hi <= 0) or (lo is not None and lo >= 0):
                    return a if (kind == "min") == (hi is not None and hi <= 0) else b
            case "floordiv" | "mod" | "truncdiv" | "truncmod" if n is not None and n > 0:
                return self._divided(kind, a, n)
        return None

    def _divided(self, kind: str, a: Affine, by: int) -> Affine | None:
        """Quotient or remainder by a number, where it is exact or the same for all values of what
        is no multiple: `(8 * x + i) // 8` is x for any i from 0 to 7."""
        lo, hi = self.reach(a)
        exact = a.quotient(by)
        if exact is None:
            if kind.startswith("trunc") and (lo is None or lo < 0):
                return None
            multiple = Affine()
            if lo is None or hi is None or lo // by != hi // by:
                multiple = Affine(0, {v: c for v, c in a.terms.items() if c % by == 0})
                lo, hi = self.reach(a - multiple)
            if lo is None or hi is None or lo // by != hi // by:
                return None
            exact = Affine(lo // by, {v: c // by for v, c in multiple.terms.items()})
        return exact if kind.endswith("div") else a - exact.scaled(by)


def _is_index(dtype: DType) -> bool:
    return dtype.kind == "int" and dtype.bits >= 32


def _bounds(found: Range, dtype: DType) -> Range:
    """`found`, without the bounds that an index only has because its dtype ends there; beyond
    `MOST_NARROW` no extent reaches."""
    if found == (None, None) or not _is_index(dtype):
        return found
    least, most = dtype.limits
    slack, (lo, hi) = (1 << 31) - MOST_NARROW, found
    return (
        None if lo is None or lo < least + slack else lo,
        None if hi is None or hi > most - slack else hi,
    )


class Origins:
    """From which indices of blocks and loops the values of a function are computed, memoised by
    value. What a loop carries comes from all that flows into it."""

    def __init__(self, func: Func) -> None:
        self._defined = {**func.grid.defs, **func.body.defs}
        self._known: dict[Value, frozenset[Value]] = {}
        self._loops: set[Value] = set()
        self._blocks: dict[Value, int] = {}
        self._carried: dict[Value, tuple[Value, ...]] = {}
        for o in (*walk(func.grid), *walk(func.body)):
            match o:
                case ops.BlockIndex(dim=dim):
                    self._known[o.result] = frozenset({o.result})
                    self._blocks[o.result] = dim
                case ops.Parallel(body=body):
                    self._known |= {v: frozenset({v}) for v in body.args}
                case ops.For(body=body):
                    self._loops.add(body.args[0])
                    self._carried[body.args[0]] = (o.lo, o.hi, o.step)
            for sources, (*args, _) in ops.handed_on(o):
                self._carried |= dict.fromkeys(args, sources)

    def of(self, value: Value) -> frozenset[Value]:
        """The results of `BlockIndex` and the arguments of `Parallel` and `For` behind `value`."""
        if value in self._known:
            return self._known[value]
        for o in upstream((value,), self._defined, self._known):
            parts = {self._part(v) for v in o.uses}
            found = parts.pop() if len(parts) == 1 else frozenset[Value]().union(*parts)
            self._known.update(dict.fromkeys(o.results, found))
        return self._part(value)

    def of_all(self, values: Iterable[Value]) -> frozenset[Value]:
        """Those behind any of `values`."""
        return frozenset[Value]().union(*map(self.of, values))

    def grid_dims(self, values: Iterable[Value]) -> frozenset[int]:
        """Along which dimensions of the grid some of `values` change."""
        return frozenset(self._blocks[v] for v in self.of_all(values) if v in self._blocks)

    def _part(self, value: Value) -> frozenset[Value]:
        if value in self._carried and value not in self._known:
            self._known[value] = self._behind(value)
        return self._known.get(value, frozenset())

    def _behind(self, arg: Value) -> frozenset[Value]:
        """Of an argument of a loop: values that are computed from it may flow into it."""
        found: set[Value] = set()
        seen: set[Value] = set()
        left = [arg]
        while left:
            v = left.pop()
            if v in seen:
                continue
            seen.add(v)
            if v in self._known:
                found |= self._known[v]
                continue
            if v in self._loops:
                found.add(v)
            o = self._defined.get(v)
            left += o.uses if o is not None else self._carried.get(v, ())
        return frozenset(found)
