"""fuse_exponents: the argument of an exponential that is a product plus or minus something is
rounded once.

Before and after: TILE. `T.exp2(x * s - m * s)`, the inner line of every softmax, is one
multiply-add and one exponential for each element, in place of three instructions. It is the one
place where tilec contracts: an exponential is not exact anyhow, and an argument with one rounding
less brings it nearer to the true value. All targets get the same form.

A difference of products does not vanish any more where both are equal: what is left of the one that
is rounded is 2^-24 of it, and where both are -1e30, as before the first score of a row, that is not
small. `T.exp2(before[i] * s - high[i] * s)`, where neither product is there for longer than the
other, becomes `T.exp2((before[i] - high[i]) * s)`: as few instructions, and 1 where both are
equal."""

from __future__ import annotations

from collections import Counter

from tilec.ir.core import Func, Op, Value, defining_ops, rewrite, walk
from tilec.ir.ops import Binary, Fma, Load, Unary, constants
from tilec.ir.types import FLOAT32
from tilec.target import Target

EXPONENTIALS = ("exp", "exp2")


def fuse_exponents(func: Func, target: Target) -> Func:
    """See the module's opening."""
    arguments = [
        o.operand for o in walk(func.body) if isinstance(o, Unary) and o.kind in EXPONENTIALS
    ]
    if not arguments:
        return func
    defs = defining_ops(func.body)
    uses = Counter(v for o in walk(func.body) for v in o.operands)
    numbers = constants(func.body)
    fused: dict[Value, tuple[Binary, bool]] = {}  # a sum's product, and whether it stands first
    shared: dict[Value, tuple[Value, Value, Value]] = {}  # x, m and s of x * s - m * s

    def product(v: Value) -> Binary | None:
        o = defs.get(v)
        return o if isinstance(o, Binary) and o.kind == "mul" and uses[v] == 1 else None

    def same(a: Value, b: Value) -> bool:
        return a is b or (a in numbers and numbers[a] == numbers.get(b))

    def at_once(a: Value, b: Value) -> bool:
        """Whether both are elements of the same place."""
        x, y = defs.get(a), defs.get(b)
        if not (isinstance(x, Load) and isinstance(y, Load)):
            return False
        return len(x.indices) == len(y.indices) and all(map(same, x.indices, y.indices))

    for v in arguments:
        o = defs.get(v)
        if isinstance(o, Binary) and o.kind in ("add", "sub") and v.dtype == FLOAT32:
            first, second = product(o.lhs), product(o.rhs)
            if uses[v] == 1 and (found := first or second) is not None:
                fused[v] = found, found is first
            if uses[v] == 1 and o.kind == "sub" and first is not None and second is not None:
                if same(first.rhs, second.rhs) and at_once(first.lhs, second.lhs):
                    shared[v] = first.lhs, second.lhs, first.rhs

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, Binary) or o.result not in fused:
            return None
        ops: list[Op] = []
        if o.result in shared:
            x, m, s = shared[o.result]
            ops.append(Binary("sub", x, m, results=(Value(x.type),), loc=o.loc))
            return [*ops, Binary("mul", ops[0].result, s, results=o.results, loc=o.loc)]
        inner, is_first = fused[o.result]

        def negated(v: Value) -> Value:
            ops.append(Unary("neg", v, results=(Value(v.type),), loc=o.loc))
            return ops[-1].result

        a, b, c = inner.lhs, inner.rhs, o.rhs if is_first else o.lhs
        if o.kind == "sub" and is_first:
            c = negated(c)
        elif o.kind == "sub":
            a = negated(a)
        return [*ops, Fma(a, b, c, results=o.results, loc=o.loc)]

    return func.with_body(rewrite(func.body, visit)) if fused else func
