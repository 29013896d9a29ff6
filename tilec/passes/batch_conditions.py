"""batch_conditions: the conditions of a loop's next iterations are asked of memory together.

Before: SCHEDULED, a loop whose iterations do something where an element of a tensor says so, as in

    for n in range(lo, hi):
        if Blocks[i, n] != 0: …

Every iteration waits for its element, also one that has nothing else to do. After: in one of 32
iterations the conditions of all of them are loaded, one behind the other, and kept in the bits of a
word; the others look at their bit. Whoever runs the loop, as a producer or as a consumer of what it
brings, has a word of its own."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Block, Builder, Func, Op, Substitution, Value, clone, rewrite, walk
from tilec.ir.effects import is_clonable, written_tensors
from tilec.ir.fold import Number
from tilec.ir.ops import (
    Alloc,
    Binary,
    Cast,
    Compare,
    Const,
    For,
    If,
    Load,
    Store,
    Yield,
    constants,
)
from tilec.ir.types import INT32, UINT32, BufferType
from tilec.ir.uniformity import Level, Uniformity, uniformity_of
from tilec.target import Target

BITS = 32  # of a word: conditions that are asked for together
FEWEST = 4  # iterations for which a word pays


def batch_conditions(func: Func, target: Target) -> Func:
    """See the module's opening."""
    if func.attrs.get("may_alias"):
        return func
    found = _Loops(func)
    return func.with_body(rewrite(func.body, found.visit))


class _Loops:
    def __init__(self, func: Func) -> None:
        self.written = written_tensors(func.body)
        self.numbers = constants(func.body)
        self.uniformity: Uniformity | None = None
        self.func = func

    def visit(self, o: Op) -> None | list[Op]:
        if not isinstance(o, For) or o.kind not in ("serial", "pipelined"):
            return None
        if self.numbers.get(o.step) != 1 or o.lo.dtype.kind != "int":
            return None
        known = self.numbers.get(o.lo), self.numbers.get(o.hi)
        if None not in known and _trips(*known) < FEWEST:
            return None
        asked = {x: s for x in o.body.ops if isinstance(x, If) and (s := self.slice(o, x))}
        if not asked:
            return None
        b, inner = Builder(o.loc), Builder(o.loc)
        for x in o.body.ops:
            if x in asked:
                assert isinstance(x, If)
                x = replace(x, cond=_bit(b, inner, o, x.cond, asked[x]))
            inner.ops.append(x)
        b.ops.append(replace(o, body=inner.block(o.body.args)))
        return b.ops

    def slice(self, loop: For, o: If) -> list[Op]:
        """What the condition is computed by in an iteration; empty if it may not be asked for
        earlier, or is no element of a tensor, or not the same for all threads of the block."""
        made = {r: x for x in loop.body.ops for r in x.results}
        needed: set[Op] = set()
        left = [o.cond]
        while left:
            v = left.pop()
            if v in loop.body.args[1:]:
                return []
            x = made.get(v)
            if x is not None and x not in needed:
                if x.regions or not is_clonable(x, self.written):
                    return []
                needed.add(x)
                left += x.operands
        loads = [x for x in needed if isinstance(x, Load)]
        inside = {v for x in walk(Block((), (o,))) if x is not o for v in x.operands}
        if not loads or any(x.result in inside for x in loads):
            return []
        if not any(loop.body.args[0] in x.operands for x in needed):
            return []
        self.uniformity = self.uniformity or uniformity_of(self.func)
        if self.uniformity.level(o.cond) is not Level.BLOCK:
            return []
        return [x for x in loop.body.ops if x in needed]


def _trips(lo: Number | None, hi: Number | None) -> int:
    return int(hi or 0) - int(lo or 0)


def _bit(b: Builder, inner: Builder, loop: For, cond: Value, made: list[Op]) -> Value:
    """The condition, out of a word that `b` makes room for and `inner`, the loop's body, fills."""
    word = b.value(Alloc, BufferType((1,), UINT32, "local"), name="conditions")
    n, dtype = loop.body.args[0], loop.lo.dtype
    zero = inner.value(Const, 0, INT32)
    behind = inner.value(Binary, "sub", n, loop.lo)
    place = inner.value(Binary, "and", behind, inner.value(Const, BITS - 1, dtype))
    place = place if dtype == INT32 else inner.value(Cast, place, INT32)
    place = inner.value(Cast, place, UINT32)
    first = inner.value(Compare, "eq", place, inner.value(Const, 0, UINT32))
    fill, nothing = Builder(loop.loc), Builder(loop.loc)
    last = fill.value(Binary, "sub", loop.hi, fill.value(Const, 1, dtype))
    bits = fill.value(Const, 0, UINT32)
    for number in range(BITS):
        at = n
        if number:
            at = fill.value(Binary, "add", n, fill.value(Const, number, dtype))
            at = fill.value(Binary, "min", at, last)
        own: Substitution = {n: at}
        fill.ops += [clone(x, own) for x in made]
        one = fill.value(Cast, own.get(cond, cond), UINT32)
        shifted = fill.value(Binary, "shl", one, fill.value(Const, number, UINT32))
        bits = fill.value(Binary, "or", bits, shifted)
    fill.emit(Store, word, (fill.value(Const, 0, INT32),), bits)
    fill.emit(Yield)
    nothing.emit(Yield)
    inner.emit(If, first, fill.block(), nothing.block())
    held = inner.value(Load, word, (zero,))
    bit = inner.value(
        Binary, "and", inner.value(Binary, "shr", held, place), inner.value(Const, 1, UINT32)
    )
    return inner.value(Compare, "ne", bit, inner.value(Const, 0, UINT32))
