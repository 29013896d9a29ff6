"""invert_divisors: what a loop divides by a number that is there before it is multiplied by that
number's reciprocal.

Before: LOWERED, a loop that says of whole numbers that are not negative, in each iteration, which
row, column and tap they are, as that which gathers the pixels of a convolution:

    for step: for r: x = (first + r) % width; y = (first + r) // width % height; …

After: 0xffffffff // width and 0xffffffff // height are computed before the loop, and a quotient is
a product and one correction (`codegen.divisions`). That takes a quarter of the operations; and as
none of them is undefined for any operand, as a division by 0 is, LLVM takes out of the loop what is
the same in all iterations."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Substitution, Value, made_in, within
from tilec.ir.types import INT32, scalar_type
from tilec.passes.utils.raster_groups import reciprocal
from tilec.target import Target

Inverse = tuple[Value, Value, Value]
"""A divisor, 1 where it is 0; its reciprocal; whether it is more than 0."""


def invert_divisors(func: Func, target: Target) -> Func:
    facts = facts_of(func)
    inverses: dict[tuple[Value, ...], dict[Value, Inverse]] = {}  # by the arguments of the loop
    before: dict[tuple[Value, ...], Builder] = {}
    found: dict[Value, Inverse] = {}
    for o, outer in within(func.body):
        if not isinstance(o, ops.Binary) or o.kind not in ("floordiv", "mod"):
            continue
        d = o.rhs
        if o.reciprocal is not None or o.lhs.type != scalar_type(INT32):
            continue
        if facts.constant(d) is not None:
            continue
        loop = _around(outer, d)
        if loop is None or not (facts.non_negative(o.lhs) and facts.non_negative(d)):
            continue
        known = inverses.setdefault(loop.body.args, {})
        if d not in known:
            b = before.setdefault(loop.body.args, Builder(loop.loc))
            most = b.fold("max", d, 1)
            known[d] = most, reciprocal(b, most), b.compare("gt", d, 0)
        found[o.result] = known[d]
    if not found:
        return func
    subst: Substitution = {}

    def visit(o: Op) -> list[Op] | None:
        if isinstance(o, ops.For) and o.body.args in before:
            return [*before[o.body.args].ops, o]
        if not isinstance(o, ops.Binary) or o.result not in found:
            return None
        by, inverse, some = found[o.result]
        b = Builder(o.loc)
        q = b.binary(o.kind, o.lhs, by, nonzero=True, reciprocal=inverse)
        subst[o.result] = q if o.kind == "mod" else b.select(some, q, b.const(0))
        return b.ops

    return func.with_body(func.body.rewrite(Op, visit, subst))


def _around(outer: Sequence[Op], divisor: Value) -> ops.For | None:
    """The outermost loop around an op, which is not written out, that has the divisor from before
    it."""
    for o in outer:
        if isinstance(o, ops.For) and o.kind != "unroll" and divisor not in made_in(o):
            return o
    return None
