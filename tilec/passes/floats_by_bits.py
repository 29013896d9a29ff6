"""floats_by_bits: small integers become floats by their bits, not by a conversion.

Before and after: LOWERED. The fraction of a float16 between 1024 and 2048 counts ones: its bits are
those of 1024.0, plus n, for 1024 + n. So an integer that lies between `low` and less than 2^p above
it (p: bits of the fraction) is

    (bits of 2^p) - low + n, taken for a float, less 2^p - low

which is exact. Two fields of words, as nibbles are, both float16, are the halves of one word, to
which their bytes are brought and where they are under one mask:

    permute_bytes(x, y, bytes) & 0x00f0000f | 0x64006400

A field that begins at bit t of its byte counts 2^t ones there: 1024 is subtracted from its product
with 2^-t, which is exact, too, and spares a shift. (Shifts and masks go at half the rate of fused
products.) Neighbours of a row are paired before parts of one word, whoever packed them.

Exact as well is a whole number that is subtracted from it next (a zero point), which then is
part of what is subtracted anyway; and the difference of two fields, as one of floats. bfloat16
comes by way of float32, which has more of them.

A machine with "slow_conversions" makes them where it makes special functions, and decodes weights
of four and eight bits so: integers of so many bits, and wider ones that a mask or a shift has made
as small, the fields of a word. Others are indices or sums, of which there are few."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.intervals import dtype_range
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT32, UINT16, UINT32, ScalarType, VectorType
from tilec.passes.utils.dce import sweep
from tilec.target import Target

MOST_BITS = 8  # of the integers
HALF, WORD = 16, 32  # bits
_FORMS = {
    FLOAT16: (FLOAT16, UINT16, 10, 0x6400),
    BFLOAT16: (FLOAT32, UINT32, 23, 0x4B000000),
    FLOAT32: (FLOAT32, UINT32, 23, 0x4B000000),
}
"""The float in whose bits integers lie, integers of its size, the bits p of its fraction, and those
of 2^p."""
_WHOLE = {FLOAT16: 1 << 11, BFLOAT16: 1 << 8, FLOAT32: 1 << 24}
"""Up to where each float has all integers."""


def floats_by_bits(func: Func, target: Target) -> Func:
    if not target.has("slow_conversions") or not any(map(_makes_float, func.body.every(ops.Cast))):
        return func
    func = func.rewrite(ops.Cast, _Found(func).apart)
    return sweep(func.rewrite(Op, _Found(func, pairs=True).visit))


def _makes_float(o: ops.Cast) -> bool:
    t = o.operand.type
    return isinstance(t, ScalarType) and t.dtype.kind in ("int", "uint") and o.dtype in _FORMS


@dataclass(frozen=True)
class _Part:
    """`(whole >> by & mask ^ flipped) - less`, whatever dtypes it comes through."""

    whole: Value
    by: Value
    mask: int
    flipped: int = 0
    less: int = 0


@dataclass(frozen=True)
class _Field:
    """Where a part begins: at bit `at` of a word, which is `lane` of the vector `words` of bytes,
    or that value itself (-1), `>> by`."""

    words: Value
    lane: int
    at: int
    mask: int
    by: Value | None = None

    @property
    def shift(self) -> int:
        """The bit of its first byte."""
        return self.at % 8

    @property
    def fits(self) -> bool:
        """Whether a float16 has room for it behind its shift, and the word for all of it."""
        bits = self.mask.bit_length()
        return self.shift + bits <= _FORMS[FLOAT16][2] and self.at + bits <= WORD

    @property
    def bytes(self) -> tuple[int, int]:
        """Those of its word that hold it."""
        first = self.at // 8
        return first, first + (self.shift + self.mask.bit_length() > 8)

    def word(self, b: Builder) -> Value:
        if self.lane < 0:
            return b.cast(
                self.words if self.by is None else b.binary("shr", self.words, self.by), UINT32
            )
        found = b.value(ops.Bitcast, self.words, UINT32)
        return (
            found if isinstance(found.type, ScalarType) else b.value(ops.Extract, found, self.lane)
        )


@dataclass(frozen=True)
class _Biased:
    """`above * scale - bias`; where the other half of its word has another scale, of `halves`, of
    which it is number `lane`, both at once."""

    above: Value
    scale: float
    bias: float
    halves: Value | None = None
    lane: int = 0
    other: float = 1.0

    def number(self, b: Builder) -> Value:
        """The difference, made behind what `b` has."""
        if self.halves is not None:
            more = 1024 * (self.other - self.scale)
            sides = (self.scale, -self.bias), (self.other, -self.bias - more)
            pairs = zip(*(sides if self.lane == 0 else sides[::-1]))
            scales, less = (b.value(ops.Pack, tuple(b.const(x, FLOAT16) for x in p)) for p in pairs)
            return b.value(ops.Extract, b.value(ops.Fma, self.halves, scales, less), self.lane)
        scale, bias = (b.const(x, self.above.dtype) for x in (self.scale, self.bias))
        if self.scale == 1:
            return b.binary("sub", self.above, bias)
        return b.value(ops.Fma, self.above, scale, b.const(-self.bias, self.above.dtype))


class _Found:
    """`biased`: what the numbers are made of; `ranges`: where they lie. `beside`: the fields of a
    cast and of the one above it in a word, by the cast; `made`: what both come of."""

    def __init__(self, func: Func, pairs: bool = False) -> None:
        self.facts = facts_of(func)
        self.numbers = ops.constants(func.body)
        self.biased: dict[Value, _Biased] = {}
        self.ranges: dict[Value, tuple[int, int]] = {}
        self.beside: dict[Op, tuple[ops.Cast, _Part, _Field, _Field]] = {}
        self.made: dict[Op, _Biased] = {}
        for block in (func.body, *(r for o in walk(func.body) for r in o.regions)):
            if pairs:
                self._pairs(block)

    def apart(self, o: ops.Cast) -> None | list[Op]:
        """A difference of two fields as one of floats."""
        made = self.facts.made_by(o.operand)
        if o.dtype != FLOAT16 or not isinstance(made, ops.Binary) or made.kind != "sub":
            return None
        sides = made.lhs, made.rhs
        if not all(v not in self.numbers and self._part(v) is not None for v in sides):
            return None
        if any(self.facts.range(v)[1] not in range(1 << MOST_BITS) for v in sides):
            return None
        b = Builder(o.loc)
        left, right = (b.value(ops.Cast, v, o.dtype) for v in sides)
        return [*b.ops, ops.Binary("sub", left, right, results=o.results, loc=o.loc)]

    def visit(self, o: Op) -> None | list[Op]:
        match o:
            case ops.Cast() if self._is_small(o):
                return self._by_bits(o)
            case ops.Binary(kind="add" | "sub") if o.lhs in self.biased and o.rhs in self.numbers:
                return self._shifted(o)
        return None

    def _is_small(self, o: ops.Cast) -> bool:
        if not _makes_float(o) or o.operand.dtype.bits <= MOST_BITS:
            return _makes_float(o)
        low, high = self.facts.range(o.operand)
        if low is None or high is None or high - min(low, 0) >= 1 << MOST_BITS:
            return False
        made = [self.facts.made_by(v) for v in self.facts.form(o.operand).terms]
        return all(isinstance(x, ops.Binary) and x.kind in ("and", "shr") for x in made)

    def _by_bits(self, o: ops.Cast) -> None | list[Op]:
        form, bits, fraction, power = _FORMS[o.dtype]
        low, high = self.facts.range(o.operand)
        assert low is not None and high is not None, "such integers have the ends of their dtype"
        if o in self.beside:
            return self._word(o) + self._less(o, self.made[o], (low, high))
        if o in self.made:
            return self._less(o, self.made[o], (low, high))
        below = min(low, 0)
        if high - below >= 1 << fraction:
            return None
        b = Builder(o.loc)
        counted = b.binary("add", b.cast(o.operand, bits), power - below)
        above = b.value(ops.Bitcast, counted, form)
        number = _Biased(above, 1.0, float((1 << fraction) - below))
        return b.ops + self._less(o, number, (low, high))

    # --- two fields of words ---

    def _pairs(self, block: Block) -> None:
        """Casts of one kind that follow one another are halves of a word: neighbours, mostly."""
        there = {v: n for n, o in enumerate(block.ops) for v in o.results}
        below: dict[object, tuple[ops.Cast, _Part]] = {}
        for o in block.ops:
            if not isinstance(o, ops.Cast) or o.dtype != FLOAT16 or not self._is_small(o):
                continue
            part = self._part(o.operand)
            if part is None:
                continue
            kind = part.mask, part.flipped, part.less, self._source(part.whole)
            if kind not in below:
                below[kind] = o, part
                continue
            first, other = below[kind]
            fields = self._fields(other, part)
            if fields is None or there.get(fields[1].words, -1) > there[first.result]:
                below[kind] = o, part
                continue
            del below[kind]
            self.beside[first] = o, part, *fields

    def _source(self, v: Value) -> Value | None:
        """The memory that a word comes from."""
        o = self.facts.made_by(v)
        while isinstance(o, ops.Cast | ops.Extract):
            o = self.facts.made_by(o.operands[0])
        return o.source if isinstance(o, ops.MemLoad) else None

    def _fields(self, low: _Part, high: _Part) -> tuple[_Field, _Field] | None:
        """Both as fields that one word has room for."""
        first, second = (self.facts.form(p.by).constant for p in (low, high))
        if first is not None and second is not None:
            found = self._field(low, first), self._field(high, second)
        else:
            up = (self.facts.form(high.by) - self.facts.form(low.by)).constant
            if low.whole is not high.whole or up is None or up < 0:
                return None
            lower = _Field(low.whole, -1, 0, low.mask, low.by)
            found = lower, replace(lower, at=up)
        return found if all(x.fits for x in found) else None

    def _field(self, part: _Part, at: int) -> _Field:
        """A part that begins at this bit, by words where its byte has come with others."""
        o = self.facts.made_by(part.whole)
        byte = self.facts.made_by(o.operand) if isinstance(o, ops.Cast) else None
        if isinstance(byte, ops.Extract) and byte.vector.dtype.bits == 8:
            t = byte.vector.type
            if isinstance(t, VectorType) and t.lanes % 4 == 0 and at + part.mask.bit_length() <= 8:
                lane, n = divmod(byte.index, 4)
                return _Field(byte.vector, lane, 8 * n + at, part.mask)
        return _Field(part.whole, -1, at, part.mask)

    def _part(self, v: Value) -> _Part | None:
        o = self.facts.made_by(v)
        match o:
            case ops.Cast(operand=x) if x.is_integer and self._fits(x, v):
                return self._part(x)
            case ops.Binary(kind="and", lhs=x, rhs=mask) if mask in self.numbers:
                shift = self.facts.made_by(x)
                if isinstance(shift, ops.Binary) and shift.kind == "shr" and x.dtype == INT32:
                    return _Part(shift.lhs, shift.rhs, int(self.numbers[mask]))
            case ops.Binary(kind="xor" | "sub", lhs=x, rhs=number) if number in self.numbers:
                part, by = self._part(x), int(self.numbers[number])
                if part is None or part.less or not 0 <= by <= part.mask + (o.kind == "sub"):
                    return None
                if o.kind == "sub":
                    return replace(part, less=by)
                return replace(part, flipped=part.flipped ^ by)
        return None

    def _fits(self, x: Value, v: Value) -> bool:
        """Whether `x` is the same number in the dtype of `v`."""
        (low, high), (least, most) = self.facts.range(x), dtype_range(v.dtype)
        if low is None or high is None or least is None or most is None:
            return False
        return least <= low and high <= most

    def _word(self, o: ops.Cast) -> list[Op]:
        other, part, *fields = self.beside[o]
        b = Builder(o.loc)
        low, high = (x.word(b) for x in fields)
        taken = (*fields[0].bytes, *(4 * (high is not low) + n for n in fields[1].bytes))
        word = low if taken == (0, 1, 2, 3) else b.value(ops.PermuteBytes, low, high, taken)
        twice = [1 << x.shift + HALF * e for e, x in enumerate(fields)]
        word = b.value(ops.AndOr, word, part.mask * sum(twice), 0x64006400)
        if part.flipped:
            word = b.binary("xor", word, part.flipped * sum(twice))
        halves = b.value(ops.Bitcast, word, FLOAT16)
        scales = [0.5**field.shift for field in fields]
        mixed = halves if scales[0] != scales[1] else None
        for e, x in enumerate((o, other)):
            above, bias = b.value(ops.Extract, halves, e), 1024 * scales[e] + part.less
            self.made[x] = _Biased(above, scales[e], bias, mixed, e, scales[1 - e])
        return b.ops

    # --- differences ---

    def _shifted(self, o: ops.Binary) -> None | list[Op]:
        """What is subtracted from a number, with what that is less already."""
        number = self.numbers[o.rhs] if o.kind == "sub" else -self.numbers[o.rhs]
        found = self.biased[o.lhs]
        if number != number // 1:
            return None
        low, high = (end - int(number) for end in self.ranges[o.lhs])
        found = replace(found, bias=found.bias + int(number))
        exact = max(-low, high) <= _WHOLE[o.result.dtype]
        exact = exact and 0 <= found.bias <= _WHOLE[found.above.dtype]
        return self._less(o, found, (low, high)) if exact else None

    def _less(self, o: Op, found: _Biased, ends: tuple[int, int]) -> list[Op]:
        """`o` as such a difference."""
        self.biased[o.results[0]], self.ranges[o.results[0]] = found, ends
        b = Builder(o.loc)
        number, (result,) = found.number(b), o.results
        if result.dtype != number.dtype:
            b.value(ops.Cast, number, result.dtype)
        return [*b.ops[:-1], replace(b.ops[-1], results=o.results)]
