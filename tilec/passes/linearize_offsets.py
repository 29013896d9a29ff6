"""linearize_offsets: where an index has been taken apart and put together, it is the index.

Before: LOWERED. A thread that has the element `at` of a tensor of shape (n, c, w) often says which
by quotients and remainders,

    X[at // w // c, at // w % c, at % w]

and so the offset is computed from those. (Where a lane's elements of a tile lie is said by layouts,
and left as it is.) After: what is loaded and stored lies at `at`, if no quotient is left. A
remainder is the number less the multiple that the quotient says, x % a = x - a * (x // a), and
quotients are of the number that was divided first:

    x // a // b = x // (a * b)        x % a // b = x // b - a / b * (x // a), where b divides a

(floor division by positive numbers; Graham, Knuth, Patashnik, "Concrete Mathematics", section 3.2).
Partly undone, as of a permutation of a tensor's dimensions, it takes as many operations."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

from tilec.ir.affine import Affine
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Value, upstream
from tilec.ir.ops import Binary, Cast, Const, MemLoad, MemStore, ThreadIndex, constants
from tilec.ir.types import INT64
from tilec.ir.uniformity import varying
from tilec.passes.utils.dce import sweep
from tilec.target import Target

Sum = Counter[tuple[Value, int] | None]
"""Of quotients, of a value by a number; by 1 it is the value, None is 1."""

MOST_PARTS = 32
MOST_OPS = 256  # behind an offset
LARGEST = 1 << 31  # number that quotients of quotients are taken by


def linearize_offsets(func: Func, target: Target) -> Func:
    offsets = _Offsets(func)

    def visit(o: Op) -> list[Op] | None:
        if not isinstance(o, MemLoad | MemStore):
            return None
        place = o.source if isinstance(o, MemLoad) else o.dest
        b = Builder(o.loc)
        at = offsets.whole(b, o.offset) if place.space == "global" else None
        return None if at is None else [*b.ops, replace(o, offset=at)]

    if not offsets.divided:
        return func
    body = func.body.rewrite(Op, visit)
    return func if body is func.body else sweep(func.with_body(body))


class _Offsets:
    def __init__(self, func: Func) -> None:
        self.facts, self.defs = facts_of(func), func.body.defs
        self.numbers = constants(func.body)
        threads = {o.result for o in self.defs.values() if isinstance(o, ThreadIndex)}
        own = varying(func.body, threads, allocs=False) if threads else set()
        divisions = [o for o in self.defs.values() if isinstance(o, Binary) and self.divisor(o)]
        self.divided = {o.lhs for o in divisions if o.lhs in own}
        self.sums: dict[Value, Sum] = {}

    def divisor(self, o: Op | None) -> int:
        """The number by which it divides an integer, rounding down; else 0."""
        if not isinstance(o, Binary) or o.kind not in ("floordiv", "mod"):
            return 0
        by = self.numbers.get(o.rhs, 0) if o.result.is_integer else 0
        return int(by) if by > 0 else 0

    def is_part(self, o: Op | None) -> bool:
        """Whether it is a quotient or a remainder of what the author's thread has."""
        return isinstance(o, Binary) and o.lhs in self.divided and bool(self.divisor(o))

    def whole(self, b: Builder, offset: Value) -> Value | None:
        """An offset made without the quotients that it is made of; None if it cannot be."""
        behind = [*itertools.islice(upstream([offset], self.defs, self.sums), MOST_OPS)]
        for o in behind if len(behind) < MOST_OPS else ():
            found = self._of(o)
            self.sums[o.results[0]] = found if len(found) <= MOST_PARTS else _alone(o.results[0])
        total = self.sums.get(offset)
        if total is None:
            return None
        parts = [v for v in self.facts.form(offset).terms if self.is_part(self.defs.get(v))]
        if not parts or any(q is not None and q[1] > 1 for q in total):
            return None
        made = b.const(total[None], INT64)
        for part, factor in total.items():
            if part is not None:
                term = b.binary("mul", b.cast(part[0], INT64), factor)
                made = b.binary("add", made, term)
        return made

    def _of(self, o: Op) -> Sum:
        result, by = o.results[0], self.divisor(o)
        match o:
            case Const() if result.is_integer:
                return Counter({None: int(o.value)})
            case Binary(kind="floordiv", lhs=x) if by:
                return self.quotient(x, by)
            case Binary(kind="mod", lhs=x) if by:
                return _sum(self.of(x), self.quotient(x, by), -by)
        if result in self.divided or self.facts.form(result) == Affine.of(result):
            return _alone(result)  # what is divided is looked at no further, nor what may wrap
        match o:
            case Cast(operand=x) if x.is_integer:
                return self.of(x)
            case Binary(kind="add" | "sub" as kind, lhs=x, rhs=y):
                return _sum(self.of(x), self.of(y), 1 if kind == "add" else -1)
            case Binary(kind="mul", lhs=x, rhs=y) if x in self.numbers or y in self.numbers:
                x, y = (y, x) if x in self.numbers else (x, y)
                return _sum(Counter(), self.of(x), int(self.numbers[y]))
        return _alone(result)

    def of(self, v: Value) -> Sum:
        return self.sums.get(v) or _alone(v)

    def quotient(self, x: Value, by: int) -> Sum:
        """`x // by`."""
        o = self.defs.get(x)
        inner = self.divisor(o) if by < LARGEST else 0
        match o:
            case Binary(kind="floordiv", lhs=y) if inner:
                return self.quotient(y, inner * by)
            case Binary(kind="mod", lhs=y) if inner and inner % by == 0:
                return _sum(self.quotient(y, by), self.quotient(y, inner), -(inner // by))
        return _alone(x, by)


def _alone(v: Value, by: int = 1) -> Sum:
    return Counter({(v, by): 1})


def _sum(a: Sum, b: Sum, factor: int) -> Sum:
    """`a + b * factor`."""
    total = Counter(a)
    for part, count in b.items():
        total[part] += count * factor
    return Counter({part: count for part, count in total.items() if count})
