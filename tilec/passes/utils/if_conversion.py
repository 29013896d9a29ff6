"""If-conversion: what a branch loads and computes is done on its condition, without the branch.

Method: J. R. Allen, K. Kennedy, C. Porterfield, J. Warren, "Conversion of control dependence to
data dependence", POPL 1983."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilec.ir.analysis import Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Op, Substitution, Value, walk
from tilec.ir.fold import Number
from tilec.ir.ops import DIVISIONS, Binary, Compare, Const, For, If, MemLoad, yielded
from tilec.passes.utils.building import updated

MOST_OPS = 512  # of a branch that is mostly taken
MOST_RARELY = 64  # of another one
LOADS_RARELY = 4


def if_converted(o: For, numbers: Mapping[Value, Number], anywhere: Facts) -> For:
    """The loop without those branches of its body that load and compute, and no more; itself where
    there are none. Bounds are mostly kept; what asks for more than a few loads on another condition
    keeps its branch. A load whose elements are the tensor's `anywhere` is made in any case."""
    if not any(isinstance(x, If) for x in o.body.ops):
        return o
    b, made = Builder(o.loc), o.body.makers
    subst: Substitution = {}
    for x in o.body.ops:
        if isinstance(x, If) and _pays(x, made, numbers):
            _flatten(b, x, None, subst, anywhere)
        else:
            b.ops.append(x)
    return replace(o, body=o.body.with_ops(b.ops).substituted(subst)) if subst else o


def _pays(o: If, made: Mapping[Value, Op], numbers: Mapping[Value, Number]) -> bool:
    inside = [*_within(o)]
    loads = [x for x in inside if isinstance(x, MemLoad)]
    others = [x for x in inside if not isinstance(x, MemLoad)]
    if not loads or not o.types or any(not x.pure or may_trap(x, numbers) for x in others):
        return False
    one, other = ({x.source for x in walk(r) if isinstance(x, MemLoad)} for r in o.regions)
    if one & other:  # a row's part, at once where all of it is there (`batch_conditions`)
        return False
    if is_bound(o.cond, made):
        return len(inside) <= MOST_OPS
    return len(inside) <= MOST_RARELY and len(loads) <= LOADS_RARELY


def _within(o: If) -> Sequence[Op]:
    """The ops of the branches, and of those inside, that do something."""
    found: list[Op] = []
    for x in (*o.then.statements, *o.orelse.statements):
        if isinstance(x, If):
            found += _within(x)
        elif not isinstance(x, Const):
            found.append(x)
    return found


def is_bound(cond: Value, made: Mapping[Value, Op]) -> bool:
    """Whether a condition asks whether something is in bounds."""
    left = [cond]
    while left:
        match made.get(left.pop()):
            case Compare(kind="lt" | "le" | "gt" | "ge"):
                pass
            case Binary(kind="and" | "or") as o:
                left += o.operands
            case _:
                return False
    return True


def may_trap(o: Op, numbers: Mapping[Value, Number]) -> bool:
    """Whether an op must not be done where its branch is not taken: a division, maybe by 0."""
    return isinstance(o, Binary) and o.kind in DIVISIONS and not numbers.get(o.rhs)


def _flatten(b: Builder, o: If, outer: Value | None, subst: Substitution, anywhere: Facts) -> None:
    """The branches' ops, on their conditions and on `outer`; into `subst` what the branch gives."""
    cond = o.cond if outer is None else b.binary("and", outer, o.cond)
    values: list[tuple[Value, ...]] = []
    for block, otherwise in ((o.then, False), (o.orelse, True)):
        asked = cond
        if otherwise and any(isinstance(x, MemLoad | If) for x in block.ops):
            no = b.binary("xor", o.cond, b.const(True, o.cond.dtype))
            asked = no if outer is None else b.binary("and", outer, no)
        for x in block.statements:
            if isinstance(x, If):
                _flatten(b, x, asked, subst, anywhere)
            elif isinstance(x, MemLoad) and (x.speculative or _is_inside(x, anywhere)):
                b.ops.append(updated(x, speculative=True))
            elif isinstance(x, MemLoad):
                guard = asked
                if x.guard is not None and x.guard not in (asked, o.cond):
                    guard = b.binary("and", asked, x.guard)
                b.ops.append(updated(x, guard=guard))
            else:
                b.ops.append(x)
        values.append(tuple(subst.get(v, v) for v in yielded(block)))
    for result, a, c in zip(o.results, *values):
        subst[result] = b.select(o.cond, a, c)


def _is_inside(o: MemLoad, anywhere: Facts) -> bool:
    """Whether an unguarded load's elements are the tensor's, whatever conditions say."""
    t = o.source.buffer
    sizes = [e for e in (*t.shape, *(t.strides or ())) if isinstance(e, int) and e >= 0]
    if o.guard is not None or t.space != "global" or len(sizes) < 2 * t.rank:
        return False
    end = 1 + sum((n - 1) * step for n, step in zip(sizes, sizes[t.rank :]))
    low, high = anywhere.reach(anywhere.form(o.offset))
    inside = low is not None and high is not None and 0 <= low and high + o.lanes <= end
    return inside and 0 not in sizes[: t.rank]
