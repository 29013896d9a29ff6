"""batch_conditions: the conditions of a loop's next iterations are asked of memory together.

Before: SCHEDULED, a loop whose iterations do something where an element of a tensor says so, and
nothing else, as in

    for n in range(lo, hi):
        if Blocks[i, n] != 0: body(n)

Every iteration waits for its element, also one that has nothing to do. After: the conditions of 32
iterations are loaded one behind the other, as the bits of a word, and the loop goes from one bit
that is set to the next.

    for c in range(lo, hi, 32):
        word = bits of the conditions of c, c + 1, …
        while word != 0:
            body(c + ctz(word))
            word &= word - 1

Whoever runs the loop, as a producer or as a consumer of what it brings, has a word of its own."""

from __future__ import annotations

from tilec.ir.core import Builder, Func, Op, Substitution, Value, clone, rewrite, walk
from tilec.ir.effects import is_clonable, written_tensors
from tilec.ir.fold import Number
from tilec.ir.ops import (
    Binary,
    Cast,
    Compare,
    Const,
    For,
    If,
    Load,
    Unary,
    While,
    Yield,
    constants,
)
from tilec.ir.types import UINT32
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
        if not isinstance(o, For) or o.kind not in ("serial", "pipelined") or o.inits:
            return None
        if self.numbers.get(o.step) != 1 or o.lo.dtype.kind != "int":
            return None
        known = self.numbers.get(o.lo), self.numbers.get(o.hi)
        if None not in known and _trips(*known) < FEWEST:
            return None
        *head, branch, _ = o.body.ops if len(o.body.ops) > 2 else (None, None)
        if not isinstance(branch, If) or branch.results or len(branch.orelse.ops) > 1:
            return None
        if not all(x is not None and is_clonable(x, self.written) for x in head):
            return None
        made = self.slice(o, branch)
        return _jumping(o, branch, made) if made else None

    def slice(self, loop: For, o: If) -> list[Op]:
        """What the condition is computed by; empty if no element of a tensor is asked in each
        iteration, or one that the body uses, too, or not the same by all threads of the block."""
        made = {r: x for x in loop.body.ops for r in x.results}
        needed: set[Op] = set()
        left = [o.cond]
        while left:
            x = made.get(left.pop())
            if x is not None and x not in needed:
                needed.add(x)
                left += x.operands
        loads = {x.result for x in needed if isinstance(x, Load)}
        inside = {v for x in walk(o.then) for v in x.operands}
        n = loop.body.args[0]
        if not loads or loads & inside or not any(n in x.operands for x in needed):
            return []
        self.uniformity = self.uniformity or uniformity_of(self.func)
        if self.uniformity.level(o.cond) is not Level.BLOCK:
            return []
        return [x for x in loop.body.ops if x in needed]


def _trips(lo: Number | None, hi: Number | None) -> int:
    return int(hi or 0) - int(lo or 0)


def _jumping(loop: For, branch: If, made: list[Op]) -> list[Op]:
    """The loop over the iterations whose condition, computed by `made`, holds."""
    n, dtype = loop.body.args[0], loop.lo.dtype
    outer, test, inner = (Builder(loop.loc) for _ in range(3))
    start = Value(n.type, n.name)
    last = outer.value(Binary, "sub", loop.hi, outer.value(Const, 1, dtype))
    word = outer.value(Const, 0, UINT32)
    for number in range(BITS):
        at = start
        if number:
            at = outer.value(Binary, "add", start, outer.value(Const, number, dtype))
            at = outer.value(Binary, "min", at, last)
        own: Substitution = {n: at}
        outer.ops += [clone(x, own) for x in made]
        bit = outer.value(Cast, own[branch.cond], UINT32)
        if number >= 1:
            bit = outer.value(Binary, "shl", bit, outer.value(Const, number, UINT32))
        word = outer.value(Binary, "or", word, bit)
    # Of what is behind the last iteration, which has its condition, nothing is done.
    count = outer.value(Binary, "sub", loop.hi, start)
    count = outer.value(Binary, "min", count, outer.value(Const, BITS, dtype))
    beyond = outer.value(Binary, "sub", outer.value(Const, BITS, dtype), count)
    every = outer.value(Const, (1 << BITS) - 1, UINT32)
    mask = outer.value(Binary, "shr", every, outer.value(Cast, beyond, UINT32))
    word = outer.value(Binary, "and", word, mask)

    asked, left = Value(word.type, "left"), Value(word.type, "left")
    test.emit(Yield, (test.value(Compare, "ne", asked, test.value(Const, 0, UINT32)),))
    place = inner.value(Cast, inner.value(Unary, "ctz", left), dtype)
    # (Not behind the last one: what is known of an index stays known.)
    at = inner.value(Binary, "min", inner.value(Binary, "add", start, place), last)
    own = {n: at}
    inner.ops += [clone(x, own) for x in (*_used(loop, branch), *branch.then.ops[:-1])]
    fewer = inner.value(Binary, "sub", left, inner.value(Const, 1, UINT32))
    inner.emit(Yield, (inner.value(Binary, "and", left, fewer),))
    outer.emit(While, (word,), test.block((asked,)), inner.block((left,)))
    outer.emit(Yield)

    b = Builder(loop.loc)
    step = b.value(Const, BITS, dtype)
    b.emit(For, "serial", loop.lo, loop.hi, step, (), outer.block((start,)))
    return b.ops


def _used(loop: For, branch: If) -> list[Op]:
    """What stands in front of the branch and is used there."""
    used = {v for x in walk(branch.then) for v in x.operands}
    found = []
    for x in reversed(loop.body.ops[:-2]):
        if not used.isdisjoint(x.results):
            used.update(x.operands)
            found.append(x)
    return found[::-1]
