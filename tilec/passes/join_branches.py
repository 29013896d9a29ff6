"""join_branches: what both branches of an `if` put in one place is put there once, as it says.

Before: TILE. After: an `if` that all threads decide alike, whose branches copy boxes of the same
buffers and do nothing else, is those copies, with offsets that the condition selects:

    if diagonal: T.copy(K[own, 0], K_s)
    else:        T.copy(K[n * BN, 0], K_s)

fills K_s in each iteration of a pipelined loop, and so may run ahead, which neither copy could.
So is, in T.Parallel, an `if` whose branches compute an element of the same place (`join_stores`):

    if (m < M) and (k < K): S[i, j] = A[m // W, k % W]
    else:                   S[i, j] = 0

stores what the condition selects. Tensors that the kernel does not write are read in any case,
where they have such an element, several before the first is stored. What both branches load is
loaded before them, and where little is left the condition selects its outcome, as it does where
it asks whether the elements are there of which something is computed.
`as_taken` is what a prediction looks at: also without branches that are never taken."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping
from dataclasses import replace

from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Substitution, Value
from tilec.ir.effects import changing_tensors, is_clonable
from tilec.ir.ops import Copy, For, If, Load, Parallel, Select, Store, constants, yielded
from tilec.ir.uniformity import Level, uniformity_of
from tilec.ir.values import Region
from tilec.passes.utils.if_conversion import is_bound, may_trap
from tilec.passes.utils.memory_access import MemoryFacts, asks_inside, conjuncts
from tilec.target import Target

MOST_OPS = 64  # of a branch that is done in any case
MOST_LEFT = 8  # of both, beside what both of them load
MOST_TAPS = 32  # loads of a loop that are asked for without branches: all of them wait in registers


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


def join_stores(func: Func, target: Target) -> Func:
    """Behind `recognise_idioms`, to which a loop with two sides may be a copy and a fill."""
    if not any(
        x.results or x.orelse.statements
        for p in func.body.every(Parallel)
        for x in p.body.every(If)
    ):
        return func
    numbers = constants(func.body)
    made, written = func.body.defs, changing_tensors(func)
    known = MemoryFacts(func)

    def joined(p: Parallel) -> Op | None:
        few = sum(1 for _ in p.body.every(Load)) <= MOST_TAPS

        def visit(o: If) -> list[Op] | None:
            stored = _stored_once(o, numbers, written) if is_bound(o.cond, made) else None
            found = stored or _loaded_once(o, numbers, written)
            return found or (_inside_only(o, numbers, known, made) if few else None)

        body = p.body.rewrite(If, visit)
        return None if body is p.body else replace(p, body=body)

    return func.rewrite(Parallel, joined)


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

    return join_branches(func.rewrite(If, visit, subst), target)


def _joined(o: If, numbers: Mapping[Value, bool | int | float]) -> list[Op] | None:
    sides = o.then.statements, o.orelse.statements
    made = [[x for x in side if not x.pure] for side in sides]
    scalars = [x for side in sides for x in side if x.pure]
    if len(made[0]) != len(made[1]) or not made[0]:
        return None
    if any(may_trap(x, numbers) for x in scalars):
        return None
    b = Builder(o.loc, scalars)
    for first, second in zip(*made):
        if not isinstance(first, Copy) or not isinstance(second, Copy):
            return None
        source = _selected(b, o.cond, first.source, second.source)
        dest = _selected(b, o.cond, first.dest, second.dest)
        same = first.attributes == second.attributes and first.staging is second.staging
        if source is None or dest is None or not same:
            return None
        b.ops.append(replace(first, source=source, dest=dest))
    return b.ops


def _stored_once(
    o: If, numbers: Mapping[Value, bool | int | float], written: Container[Value]
) -> list[Op] | None:
    """One store of an element in the place of both branches' own."""
    b = Builder(o.loc)
    stores: list[Store] = []
    sides = o.then.statements, o.orelse.statements
    if o.results or not all(sides):
        return None
    for *others, last in sides:
        if not isinstance(last, Store) or len(others) > MOST_OPS:
            return None
        if not all(is_clonable(x, written) and not may_trap(x, numbers) for x in others):
            return None
        b.ops += others
        stores.append(last)
    first, second = stores
    if (first.dest, first.indices) != (second.dest, second.indices):
        return None
    if first.attributes != second.attributes:
        return None
    b.ops.append(replace(first, value=b.select(o.cond, first.value, second.value)))
    return b.ops


def _loaded_once(
    o: If, numbers: Mapping[Value, bool | int | float], written: Container[Value]
) -> list[Op] | None:
    """What both branches load, and what says from where, before them; the choice between what they
    make of it without a branch, where that is little."""

    def key(x: Op) -> Hashable:
        return type(x), x.operands, repr(x.attributes)

    alike = {key(x): x for x in o.then.statements if is_clonable(x, written)}
    first: list[Op] = []
    same: Substitution = {}
    for y in o.orelse.statements:
        x = alike.pop(key(y.with_operands(same)), None)
        if x is not None:
            first.append(x)
            same.update(zip(y.results, x.results))
    if not any(isinstance(x, Load) for x in first):
        return None
    then = [x for x in o.then.ops if x not in first]
    orelse = [y.with_operands(same) for y in o.orelse.ops if same.keys().isdisjoint(y.results)]
    left = [*then[:-1], *orelse[:-1]]
    if len(left) > MOST_LEFT or not all(x.pure and not may_trap(x, numbers) for x in left):
        other = o.orelse.with_ops(orelse).substituted(same)
        return [*first, replace(o, then=o.then.with_ops(then), orelse=other)]
    pairs = zip(o.results, yielded(o.then), yielded(o.orelse))
    chosen = (Select(o.cond, x, same.get(y, y), results=(r,), loc=o.loc) for r, x, y in pairs)
    return [*first, *left, *chosen]


def _inside_only(
    o: If, numbers: Mapping[Value, bool | int | float], known: MemoryFacts, made: Mapping[Value, Op]
) -> list[Op] | None:
    """What is computed of elements where these lie inside of their tensors, as of the taps of a
    stencil, in any case, and the condition selects: no element is loaded that is not there."""
    then, orelse = o.then.statements, o.orelse.statements
    loads = [x for x in then if isinstance(x, Load)]
    if orelse or not loads or len(then) > MOST_OPS:
        return None
    if not all(is_clonable(x, known.written) and not may_trap(x, numbers) for x in then):
        return None
    asked = [made.get(c) for c in conjuncts(o.cond, made)]
    if not all(any(asks_inside(c, x, known) for x in loads) for c in asked):
        return None
    pairs = zip(o.results, yielded(o.then), yielded(o.orelse))
    return [*then, *(Select(o.cond, x, y, results=(r,), loc=o.loc) for r, x, y in pairs)]


def _selected(b: Builder, cond: Value, first: Region, second: Region) -> Region | None:
    """The box of the buffer of both that the condition says; None if they are of no one shape."""
    if first.buffer is not second.buffer or first.extents != second.extents:
        return None
    pairs = zip(first.offsets, second.offsets)
    return replace(first, offsets=tuple(x if x is y else b.select(cond, x, y) for x, y in pairs))
