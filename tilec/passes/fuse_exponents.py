"""fuse_exponents: the argument of an exponential that is a product plus or minus something is
rounded once.

Before and after: TILE. `T.exp2(x * s - m * s)`, the inner line of every softmax, is one
multiply-add and one exponential for each element, in place of three instructions. It is the one
place where tilec contracts: an exponential is not exact anyhow, and an argument with one rounding
less brings it nearer to the true value. All targets get the same form."""

from __future__ import annotations

from collections import Counter

from tilec.ir.core import Func, Op, Value, defining_ops, rewrite, walk
from tilec.ir.ops import Binary, Fma, Unary
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
    fused: dict[Value, tuple[Binary, bool]] = {}  # a sum's product, and whether it stands first

    def product(v: Value) -> Binary | None:
        o = defs.get(v)
        return o if isinstance(o, Binary) and o.kind == "mul" and uses[v] == 1 else None

    for v in arguments:
        o = defs.get(v)
        if isinstance(o, Binary) and o.kind in ("add", "sub") and v.dtype == FLOAT32:
            first, second = product(o.lhs), product(o.rhs)
            if uses[v] == 1 and (found := first or second) is not None:
                fused[v] = found, found is first

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, Binary) or o.result not in fused:
            return None
        inner, is_first = fused[o.result]
        ops: list[Op] = []

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
