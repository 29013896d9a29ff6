"""floats_by_bits: small integers become floats by their bits, not by a conversion.

Before and after: LOWERED. The fraction of a float16 between 1024 and 2048 counts ones: its bits are
those of 1024.0, plus n, for 1024 + n. So an integer that lies between `low` and less than 2^p above
it (p: bits of the fraction) is

    (bits of 2^p) - low + n, taken for a float, less 2^p - low

which is exact. Of two parts of one integer, as the nibbles of a byte, both float16 are the halves
of one word, under one mask:

    (x >> 4 * i | x >> 4 * i << 12) & 0x000f000f | 0x64006400

Exact as well is a whole number that is subtracted from it next (a zero point), which then is
part of what is subtracted anyway. bfloat16 comes by way of float32, which has more of them.

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
from tilec.ir.types import BFLOAT16, FLOAT16, FLOAT32, INT32, UINT16, UINT32, ScalarType
from tilec.passes.utils.dce import sweep
from tilec.target import Target

MOST_BITS = 8  # of the integers
HALF = 16  # bits of a word
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
    found = _Found(func)
    return sweep(func.rewrite(Op, found.visit))


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


class _Found:
    """`biased`: what the numbers are made of, a float, and by how much they are less; `ranges`:
    where they lie. `beside`: the cast of the part above, by that of the one below; `made`: what the
    former has for its result."""

    def __init__(self, func: Func) -> None:
        self.facts = facts_of(func)
        self.numbers = ops.constants(func.body)
        self.biased: dict[Value, tuple[Value, int]] = {}
        self.ranges: dict[Value, tuple[int, int]] = {}
        self.beside: dict[Op, tuple[ops.Cast, _Part, int]] = {}
        self.made: dict[Op, tuple[Value, int]] = {}
        for block in (func.body, *(r for o in walk(func.body) for r in o.regions)):
            self._pairs(block)

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
            return self._word(o) + self._less(o, *self.made[o], (low, high))
        if o in self.made:
            return self._less(o, *self.made[o], (low, high))
        below = min(low, 0)
        if high - below >= 1 << fraction:
            return None
        b = Builder(o.loc)
        counted = b.binary("add", b.cast(o.operand, bits), power - below)
        above = b.value(ops.Bitcast, counted, form)
        return b.ops + self._less(o, above, (1 << fraction) - below, (low, high))

    # --- two parts of an integer ---

    def _pairs(self, block: Block) -> None:
        below: dict[object, tuple[ops.Cast, _Part]] = {}
        for o in block.ops:
            if not isinstance(o, ops.Cast) or o.dtype != FLOAT16 or not self._is_small(o):
                continue
            part = self._part(o.operand)
            if part is None:
                continue
            alike = replace(part, by=part.whole)
            if alike in below:
                first, other = below.pop(alike)
                up = (self.facts.form(part.by) - self.facts.form(other.by)).constant or 0
                up = up if 0 < up <= HALF else 0
                if part.mask < 1 << min(HALF - up or HALF, up):
                    self.beside[first] = o, other, up
            else:
                below[alike] = o, part

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
        other, part, up = self.beside[o]
        b = Builder(o.loc)
        moved = b.cast(b.binary("shr", part.whole, part.by), UINT32)
        if up < HALF:
            moved = b.binary("or", moved, b.binary("shl", moved, HALF - up))
        twice = 1 | 1 << HALF
        word = b.value(ops.AndOr, moved, part.mask * twice, 0x6400 * twice)
        if part.flipped:
            word = b.binary("xor", word, part.flipped * twice)
        halves = b.value(ops.Bitcast, word, FLOAT16)
        for e, x in enumerate((o, other)):
            self.made[x] = b.value(ops.Extract, halves, e), 1024 + part.less
        return b.ops

    # --- differences ---

    def _shifted(self, o: ops.Binary) -> None | list[Op]:
        """What is subtracted from a number, with what that is less already."""
        number = self.numbers[o.rhs] if o.kind == "sub" else -self.numbers[o.rhs]
        above, bias = self.biased[o.lhs]
        if number != number // 1:
            return None
        low, high = (end - int(number) for end in self.ranges[o.lhs])
        bias += int(number)
        exact = max(-low, high) <= _WHOLE[o.result.dtype] and 0 <= bias <= _WHOLE[above.dtype]
        return self._less(o, above, bias, (low, high)) if exact else None

    def _less(self, o: Op, above: Value, bias: int, ends: tuple[int, int]) -> list[Op]:
        """`o` as the difference of a float and a number."""
        self.biased[o.result], self.ranges[o.result] = (above, bias), ends
        b = Builder(o.loc)
        less = b.const(float(bias), above.dtype)
        if o.result.dtype == above.dtype:
            return [*b.ops, ops.Binary("sub", above, less, results=o.results, loc=o.loc)]
        made = b.binary("sub", above, less)
        return [*b.ops, ops.Cast(made, o.result.dtype, results=o.results, loc=o.loc)]
