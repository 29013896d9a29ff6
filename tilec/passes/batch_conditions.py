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

from tilec.ir.core import Builder, Func, Op, Substitution, Value, clone, rewrite, upstream, walk
from tilec.ir.effects import is_clonable, written_tensors
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
        lo, hi = self.numbers.get(o.lo), self.numbers.get(o.hi)
        if lo is not None and hi is not None and hi - lo < FEWEST:
            return None
        *head, branch = o.body.ops[:-1]
        if not isinstance(branch, If) or branch.results or len(branch.orelse.ops) > 1:
            return None
        if not all(is_clonable(x, self.written) for x in head):
            return None
        defs = {r: x for x in head for r in x.results}
        used = [v for x in walk(branch.then) for v in x.operands]
        made = [*upstream((branch.cond,), defs)]
        if not self.pays(o.body.args[0], branch, made, used):
            return None
        return _jumping(o, branch, made, [*upstream(used, defs)])

    def pays(self, n: Value, branch: If, made: list[Op], used: list[Value]) -> bool:
        """Whether the condition, which is computed by `made`, asks for elements of tensors in each
        iteration, which the body does not use, too, and is the same for all threads of the
        block."""
        loads = {x.result for x in made if isinstance(x, Load)}
        if not loads or not loads.isdisjoint(used) or not any(n in x.operands for x in made):
            return False
        self.uniformity = self.uniformity or uniformity_of(self.func)
        return self.uniformity.level(branch.cond) is Level.BLOCK


def _jumping(loop: For, branch: If, made: list[Op], before: list[Op]) -> list[Op]:
    """The loop over the iterations whose condition, computed by `made`, holds; `before` is computed
    for the body."""
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
        if number:
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
    inner.ops += [clone(x, own) for x in (*before, *branch.then.ops[:-1])]
    fewer = inner.value(Binary, "sub", left, inner.value(Const, 1, UINT32))
    inner.emit(Yield, (inner.value(Binary, "and", left, fewer),))
    outer.emit(While, (word,), test.block((asked,)), inner.block((left,)))
    outer.emit(Yield)

    b = Builder(loop.loc)
    step = b.value(Const, BITS, dtype)
    b.emit(For, "serial", loop.lo, loop.hi, step, (), outer.block((start,)))
    return b.ops
