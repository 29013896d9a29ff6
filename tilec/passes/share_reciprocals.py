"""share_reciprocals: a tile that is divided by a few numbers is multiplied by their reciprocals,
and every quotient is what a division gives.

Before: LOWERED, a loop over a thread's registers divides each of them by one of a few others, or by
a number that is there before it, as in

    for i, j in T.Parallel(M, N): o[i, j] /= total[i]

After: for each divisor d its reciprocal r, rounded, and what is lacking to it, l, are computed
once, and x / d is four operations without a branch (Markstein, "Computation of elementary functions
on the IBM RISC System/6000 processor", 1990; Muller et al., "Handbook of Floating-Point
Arithmetic", 4.7):

    q = x r + x l;  e = x - q d;  x / d = q + e r

with e exact, which holds where neither d nor the tile has numbers that are too large or too small.
That is asked first, in two operations for each: a thread that finds such a number, or a 0 (whose
sign would be lost), divides. What a loop reads from memory is read first, by a loop of its own; 0,
which is what lies beyond a tensor, is no such number there: it is its own quotient.

GPUs divide in about twelve instructions and a branch each, which keeps one division from beginning
before the one in front of it has ended: 64 of them took 4,000 clocks on an H200
(docs/decisions.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Substitution, Value, upstream
from tilec.ir.effects import buffers_written, effects_in
from tilec.ir.fold import Number
from tilec.ir.types import FLOAT32, BufferType, DType, ScalarType
from tilec.target import Target

LEAST_DIVISIONS = 8
LEAST_SHARED = 4  # divisions by the same number
SMALL, LARGE = 2.0**-24, 2.0**24  # of divisors, which are positive
SMALLEST, LARGEST = 2.0**-100, 2.0**64  # of what is divided
FLOAT32_NUMBER = ScalarType(FLOAT32)
APART = 4  # comparisons that do not wait for one another
MOST_READ = 64  # numbers from memory, that a thread has before it divides them
_SIMPLE = (ops.RegRead, ops.Load, ops.Lookup, ops.Const, ops.Cast)
_READS = (ops.RegRead, ops.MemLoad)
_OF_MEMORY = (ops.MemLoad, ops.Extract, ops.Compare)


def share_reciprocals(func: Func, target: Target) -> Func:
    numbers = ops.constants(func.body)
    around = _in_flight(func)

    def visit(o: ops.For) -> None | list[Op]:
        if o in around:
            return None
        found = _divisions(o, numbers)
        if found is not None:
            return found.shared()
        before, loop = _with_reads_first(o, numbers)
        found = _divisions(loop, numbers) if before else None
        return None if found is None else [*before, *replace(found, zeros=True).shared()]

    return func.rewrite(ops.For, visit)


def _in_flight(func: Func) -> set[Op]:
    """Loops in loops with asynchronous products: a branch there would end what is in flight."""
    return {
        inner
        for o in func.body.every(ops.For)
        if o.kind != "persistent"
        if o.body.has(ops.Wgmma)
        for inner in o.body.every(ops.For)
    }


@dataclass(frozen=True)
class _Divisions:
    """`loop` divides by the registers `used` of the fragment `by`, or by the number `by` (which
    counts as register 0): `divisions` are its own. `zeros`: what is divided may be 0."""

    loop: ops.For
    trips: int
    divisions: tuple[ops.Binary, ...]
    by: Value
    used: tuple[int, ...]
    zeros: bool = False

    def shared(self) -> list[Op]:
        b = Builder(self.loop.loc)
        size = max(self.used) + 1
        near, lacking = (_array(b, size, FLOAT32) for _ in range(2))
        fits: list[Value] = []
        one = b.const(1.0, FLOAT32)
        for k in self.used:
            at = b.const(k)
            d = b.value(ops.RegRead, self.by, at) if self.by.type != FLOAT32_NUMBER else self.by
            r = b.binary("div", one, d)
            rest = b.value(ops.Fma, b.value(ops.Unary, "neg", r), d, one)
            b.emit(ops.Store, near, (at,), r)
            b.emit(ops.Store, lacking, (at,), b.binary("mul", rest, r))
            fits.append(b.compare("ge", d, SMALL))
            fits.append(b.compare("le", d, LARGE))
        fits += self._dividends(b)
        good = b.conjunction(fits)
        b.branch(good, [self._multiplied(near, lacking)], [self.loop.clone({})])
        return b.ops

    def _dividends(self, b: Builder) -> Iterator[Value]:
        """Whether none is 0, too small, too large (the sum of squares is not) or nan."""
        squares, least = _array(b, APART, FLOAT32), _array(b, APART, FLOAT32)
        every = tuple(b.const(k) for k in range(APART))
        first = b.const(0.0, FLOAT32), b.const(LARGEST, FLOAT32)
        for at in every:
            b.emit(ops.Store, squares, (at,), first[0])
            b.emit(ops.Store, least, (at,), first[1])
        with b.counted(self.trips, "r") as (index, inner):
            subst: Substitution = {self.loop.body.args[0]: index}
            defs = self.loop.body.makers
            for o in upstream((d.lhs for d in self.divisions), defs):
                inner.ops.append(o.clone(subst))
            at = inner.value(ops.Lookup, tuple(r % APART for r in range(self.trips)), index)
            for d in self.divisions:
                x = subst.get(d.lhs, d.lhs)
                more = inner.value(ops.Fma, x, x, inner.value(ops.Load, squares, (at,)))
                inner.emit(ops.Store, squares, (at,), more)
                size, before = inner.value(ops.Unary, "abs", x), inner.value(ops.Load, least, (at,))
                if self.zeros:
                    size = inner.select(inner.compare("eq", x, 0.0), first[1], size)
                inner.emit(ops.Store, least, (at,), inner.binary("min", before, size))
        for at in every:
            sum, small = (b.value(ops.Load, v, (at,)) for v in (squares, least))
            yield b.compare("lt", sum, math.inf)
            yield b.compare("ge", small, SMALLEST)

    def _multiplied(self, near: Value, lacking: Value) -> Op:
        """The loop with products for its quotients."""
        made = self.loop.body.makers
        subst: Substitution = {}

        def visit(o: Op) -> None | list[Op]:
            if o not in self.divisions:
                return None
            assert isinstance(o, ops.Binary)
            b, (x, d), divisor = Builder(o.loc), (o.lhs, o.rhs), made.get(o.rhs)
            at = divisor.index if isinstance(divisor, ops.RegRead) else b.const(0)
            r, less = (b.value(ops.Load, v, (at,)) for v in (near, lacking))
            q = b.value(ops.Fma, x, r, b.binary("mul", x, less))
            e = b.value(ops.Fma, b.value(ops.Unary, "neg", q), d, x)
            found = b.value(ops.Fma, e, r, q)
            if self.zeros:
                found = b.select(b.compare("eq", x, 0.0), x, found)
            subst[o.result] = found
            return b.ops

        return replace(self.loop, body=self.loop.body.rewrite(Op, visit, subst)).clone({})


def _array(b: Builder, size: int, dtype: DType) -> Value:
    return b.value(ops.Alloc, BufferType((size,), dtype, "local"))


def _with_reads_first(o: ops.For, numbers: Mapping[Value, Number]) -> tuple[list[Op], ops.For]:
    """A loop that takes the float32 numbers that it divides from arrays, and the ops before it that
    bring these from memory; none where nothing comes from there, or it does more than compute."""
    indices, makers = o.indices(numbers.get), o.body.makers
    found = (p for p in o.body.every(ops.Binary) if p.kind == "div" and p.result.dtype == FLOAT32)
    values = dict.fromkeys(p.lhs for p in found if p.lhs in makers)
    needed = [*upstream(values, makers)]
    if indices is None or not 0 < len(indices) * len(values) <= MOST_READ:
        return [], o
    if not all(p.pure or isinstance(p, (*_READS, ops.RegWrite, ops.Yield)) for p in o.body.ops):
        return [], o
    if not any(isinstance(p, ops.MemLoad) for p in needed):
        return [], o
    if not all(_is_simple(p) or isinstance(p, _OF_MEMORY) for p in needed):
        return [], o
    b, subst = Builder(o.loc), dict[Value, Value]()
    arrays = {v: _array(b, len(indices), FLOAT32) for v in values}
    with b.counted(len(indices), "r") as (index, inner):
        own: Substitution = {o.body.args[0]: index}
        for p in needed:
            inner.ops.append(p.clone(own))
        for v, array in arrays.items():
            inner.emit(ops.Store, array, (index,), own.get(v, v))

    def visit(p: Op) -> None | list[Op]:
        made = next((v for v in p.results if v in arrays), None)
        if made is None:
            return None
        read = Builder(p.loc)
        subst[made] = read.value(ops.Load, arrays[made], (o.body.args[0],))
        return read.ops

    kept, used = list[Op](), set[Value]()
    for p in reversed(o.body.rewrite(Op, visit, subst).ops):
        if used.isdisjoint(p.results) and (p.pure or isinstance(p, _READS)):
            continue
        used |= {*p.uses}
        kept.append(p)
    return b.ops, replace(o, body=o.body.with_ops(kept[::-1])).clone({})


def _is_simple(o: Op) -> bool:
    """Whether an op only reads a register, or says which."""
    return isinstance(o, _SIMPLE) or (isinstance(o, ops.Binary) and o.lhs.is_integer)


def _divisions(o: ops.For, numbers: Mapping[Value, Number]) -> _Divisions | None:
    """The divisions of float32 numbers in an unrolled loop that share their divisors."""
    indices = o.indices(numbers.get)
    if o.kind != "unroll" or indices is None or indices != range(len(indices)) or o.results:
        return None
    trips = len(indices)
    defs = o.body.makers
    written = {*buffers_written(e for _, e in effects_in(o.body))}
    divisions: list[ops.Binary] = []
    used: set[int] = set()
    by: set[Value] = set()
    for p in o.body.ops:
        if p.region_fields:
            return None
        if not isinstance(p, ops.Binary) or p.kind != "div" or p.result.dtype != FLOAT32:
            continue
        divisor = defs.get(p.rhs)
        if p.rhs not in defs and p.rhs not in numbers:
            used.add(0)
            by.add(p.rhs)
        elif not isinstance(divisor, ops.RegRead) or divisor.fragment in written:
            return None
        else:
            by.add(divisor.fragment)
            at = defs.get(divisor.index)
            if isinstance(at, ops.Lookup) and at.index is o.body.args[0]:
                used |= set(at.table[:trips])
            elif divisor.index in numbers:
                used.add(int(numbers[divisor.index]))
            else:
                return None
        behind = [*upstream((p.lhs,), defs)]
        if not all(map(_is_simple, behind)):
            return None
        if any(isinstance(x, ops.Load) and x.source in written for x in behind):
            return None
        divisions.append(p)
    count = trips * len(divisions)
    if len(by) != 1 or count < max(LEAST_DIVISIONS, LEAST_SHARED * len(used)):
        return None
    return _Divisions(o, trips, tuple(divisions), by.pop(), tuple(sorted(used)))
