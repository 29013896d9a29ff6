"""join_branches: copies that both branches of an `if` make are made once, from where it says.

Before: TILE. After: an `if` that all threads decide alike, whose branches copy boxes of the same
buffers and do nothing else, is those copies, with offsets that the condition selects:

    if diagonal: T.copy(K[own, 0], K_s)
    else:        T.copy(K[n * BN, 0], K_s)

fills K_s in each iteration of a pipelined loop, and so may run ahead, which neither copy could.
`as_taken` is what a prediction looks at: also without branches that are never taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Substitution, Value, rewrite
from tilec.ir.ops import DIVISIONS, Binary, Copy, For, If, constants, yielded
from tilec.ir.uniformity import Level, uniformity_of
from tilec.ir.values import Region
from tilec.target import Target


def join_branches(func: Func, target: Target) -> Func:
    if not any(o.orelse.statements for o in func.body.every(If)):
        return func
    if any(o.order or o.stage for o in func.body.every(For)):
        return func  # they count the author's statements
    uniformity, numbers = uniformity_of(func), constants(func.body)

    def visit(o: If) -> list[Op] | None:
        alike = uniformity.level(o.cond) == Level.BLOCK
        return _joined(o, numbers) if alike and not o.results else None

    return func.rewrite(If, visit)


def as_taken(func: Func, target: Target) -> Func:
    """`func` as this pass and `simplify` will have its branches."""
    if not func.body.has(If):
        return func
    facts = facts_of(func)
    subst: Substitution = {}

    def visit(o: If) -> list[Op] | None:
        cond = facts.constant(o.cond)
        if cond is None:
            return None
        taken = o.then if cond else o.orelse
        subst.update(zip(o.results, yielded(taken)))
        return [*taken.statements]

    return join_branches(func.with_body(rewrite(func.body, visit, subst, If)), target)


def _joined(o: If, numbers: Mapping[Value, bool | int | float]) -> list[Op] | None:
    sides = o.then.statements, o.orelse.statements
    made = [[x for x in side if not x.pure] for side in sides]
    scalars = [x for side in sides for x in side if x.pure]
    if len(made[0]) != len(made[1]) or not made[0]:
        return None
    if any(_may_trap(x, numbers) for x in scalars):
        return None
    b = Builder(o.loc)
    b.ops += scalars
    for first, second in zip(*made):
        if not isinstance(first, Copy) or not isinstance(second, Copy):
            return None
        source = _selected(b, o.cond, first.source, second.source)
        dest = _selected(b, o.cond, first.dest, second.dest)
        same = all(getattr(first, f) == getattr(second, f) for f in Copy.attribute_fields)
        if source is None or dest is None or not same or first.staging is not second.staging:
            return None
        b.ops.append(replace(first, source=source, dest=dest))
    return b.ops


def _selected(b: Builder, cond: Value, first: Region, second: Region) -> Region | None:
    """The box of the buffer of both that the condition says; None if they are of no one shape."""
    if first.buffer is not second.buffer or first.extents != second.extents:
        return None
    pairs = zip(first.offsets, second.offsets)
    return replace(first, offsets=tuple(x if x is y else b.select(cond, x, y) for x, y in pairs))


def _may_trap(o: Op, numbers: Mapping[Value, bool | int | float]) -> bool:
    """Whether an op must not be done where its branch is not taken: a division, maybe by 0."""
    return isinstance(o, Binary) and o.kind in DIVISIONS and not numbers.get(o.rhs)
