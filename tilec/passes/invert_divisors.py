"""invert_divisors: what each iteration of a loop divides again is multiplied by a reciprocal.

Before: LOWERED, a loop that says of whole numbers that are not negative, and are the same in all of
its iterations, which row and column they are, as that which gathers the pixels of a convolution:

    for step: for r: x = (first + r) % width; y = (first + r) // width % height; …

After: 0xffffffff // width and 0xffffffff // height are computed before the loop, and a quotient is
a product and one correction (`codegen.divisions`). As none of these is undefined for any operand,
as a division by 0 is, LLVM takes them out of the loop. What goes with the loop's index is left: of
its multiples ptxas may take upper halves for linear (`codegen.ptxas_faults`)."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Substitution, Value, made_in, upstream, within
from tilec.ir.types import INT32, scalar_type
from tilec.passes.utils.raster_groups import reciprocal
from tilec.target import Target

Inverse = tuple[Value, Value, Value]
"""A divisor, 1 where it is 0; its reciprocal; whether it is more than 0."""


def invert_divisors(func: Func, target: Target) -> Func:
    numbers = ops.constants(func.body)
    if not any(_is_division(o) and o.rhs not in numbers for o in func.body.every(ops.Binary)):
        return func
    facts = facts_of(func)
    inverses: dict[tuple[Value, ...], dict[Value, Inverse]] = {}  # by the arguments of the loop
    before: dict[tuple[Value, ...], Builder] = {}
    found: dict[Value, Inverse] = {}
    for o, outer in within(func.body):
        if not isinstance(o, ops.Binary) or not _is_division(o):
            continue
        d = o.rhs
        if facts.constant(d) is not None:
            continue
        loop = _around(outer, o)
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


def _is_division(o: ops.Binary) -> bool:
    """Whether it is one of indices that has no reciprocal yet."""
    plain = o.kind in ("floordiv", "mod") and o.reciprocal is None
    return plain and o.lhs.type == scalar_type(INT32)


def _around(outer: Sequence[Op], division: ops.Binary) -> ops.For | None:
    """The outermost loop around a division, but for those that are written out, in all of whose
    iterations it gives the same and that has the divisor from before it."""
    moving = {
        v for x in outer if isinstance(x, ops.For) and x.kind != "unroll" for v in x.body.args
    }
    for x in outer:
        if isinstance(x, ops.For) and x.kind != "unroll":
            needed = [*upstream((division.lhs,), x.body.defs)]
            read = {division.lhs, *(v for o in needed for v in o.uses)}
            if division.rhs not in made_in(x) and all(o.pure for o in needed):
                if moving.isdisjoint(read):
                    return x
            moving -= {*x.body.args}
    return None
