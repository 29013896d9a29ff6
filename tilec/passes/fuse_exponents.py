"""fuse_exponents: in the argument of an exponential, `x * s - m * s` is rounded once; exponentials
whose last bits nobody sees are the hardware's.

Before and after: TILE. `T.exp2(x[i, j] * s - m[i] * s)` with a constant `s`, the inner line of
every softmax, is one multiply-add and one exponential for each element, not three instructions
(`fuse_multiply_adds` leaves products with a factor in common apart). All targets get the same form.

As it stands, a fused difference does not vanish where `x` is `m`: what is left is the rounding of
`m * s`, 2^-24 of it. Among numbers that scores have it is below one part in a million; but where a
row's maximum is still what it began with (-1e30) it is 1e22, and the exponential infinite, not 1.
So rows whose `m * s` is above `HUGE` take the power of two below `s` for `s`: products with that
are exact, and what is equal vanishes. Whatever else such rows have differs from `m` by more than
an exponential can show, or than the two roundings of the source would have kept.

An accurate `T.exp` is 2**(x log2 e) and five instructions that bring back what is lost by rounding
the exponent, up to 2 + |x| ulp. Where results are rounded to half precision, or are terms of long
sums (`utils/rough.py`), that is not seen, and `T.exp` is `T.__exp`: 817 instructions in place of
1,137 for an iteration of attention (128 x 64 scores, heads of 64)."""

from __future__ import annotations

import math
from collections import Counter

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.ops import Binary, Fma, Load, Parallel, Unary, constants
from tilec.ir.types import FLOAT32
from tilec.passes.utils.rough import Rough
from tilec.target import Target

EXPONENTIALS = ("exp", "exp2")
HUGE = 2.0**27  # of m * s: neighbouring float32 numbers are 16 apart there


def fuse_exponents(func: Func, target: Target) -> Func:
    exponentials = [o for o in func.body.every(Unary) if o.kind in EXPONENTIALS]
    if not exponentials:
        return func
    defs = func.body.defs
    uses = Counter(v for o in walk(func.body) for v in o.operands)
    numbers = constants(func.body)
    indices = {v for o in func.body.every(Parallel) for v in o.body.args}

    def product(v: Value) -> tuple[Value, Value] | None:
        """What is multiplied by a constant, and the constant's value."""
        o = defs.get(v)
        if not isinstance(o, Binary) or o.kind != "mul":
            return None
        pairs = ((o.lhs, o.rhs), (o.rhs, o.lhs))
        return next(((x, s) for x, s in pairs if s in numbers), None)

    def along(v: Value) -> set[Value]:
        """The loop's indices that an element read from a buffer depends on."""
        o = defs.get(v)
        return {*o.indices} & indices if isinstance(o, Load) else set()

    asked = Rough(func)
    rough = {e for e in exponentials if e.kind == "exp" and asked.is_rough(e.result)}
    rough = {e for e in rough if e.operand.dtype == FLOAT32}
    fused: dict[Value, tuple[Value, Value, Value]] = {}  # x, m and s
    for e in exponentials:
        o = defs.get(e.operand)
        if not isinstance(o, Binary) or o.kind != "sub" or e.operand.dtype != FLOAT32:
            continue
        first, second = product(o.lhs), product(o.rhs)
        if first is None or second is None or uses[e.operand] != 1 or uses[o.lhs] != 1:
            continue
        (x, s), (m, other) = first, second
        if numbers[s] == numbers[other] != 0 and along(m) < along(x):
            fused[e.operand] = x, m, s

    def visit(o: Op) -> None | list[Op]:
        if isinstance(o, Unary) and o in rough:
            b = Builder(o.loc)
            exponent = b.binary("mul", o.operand, math.log2(math.e))
            return [*b.ops, Unary("exp2", exponent, results=o.results, loc=o.loc)]
        if not isinstance(o, Binary) or o.result not in fused:
            return None
        x, m, s = fused[o.result]
        b = Builder(o.loc)
        scale = float(numbers[s])
        size = b.value(Unary, "abs", b.binary("mul", m, s))
        is_huge = b.compare("ge", size, HUGE)
        power = math.copysign(2.0 ** (math.frexp(scale)[1] - 1), scale)
        factor = b.select(is_huge, b.const(power, FLOAT32), s)
        less = b.value(Unary, "neg", b.binary("mul", m, factor))
        return [*b.ops, Fma(x, factor, less, results=o.results, loc=o.loc)]

    return func.rewrite(Op, visit) if fused or rough else func
