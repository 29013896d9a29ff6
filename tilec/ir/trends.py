"""How what is computed from a block's or a loop's index goes with it: which way a number goes, and
whether a condition that holds at two indices holds between them."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.analysis import Facts
from tilec.ir.core import Op, Value


def trend(facts: Facts, value: Value, index: Value) -> int | None:
    """Whether `value` grows with a block's or a loop's `index` (1), falls (-1) or has nothing
    to do with it (0); None where that is not known."""
    found: dict[Value, int | None] = {index: 1}
    origins = facts.origins.of(index)
    left = [value]
    while left:
        v = left[-1]
        o = facts.made_by(v)
        if v in found or o is None or not origins & facts.origins.of(v):
            found.setdefault(v, 0 if not origins & facts.origins.of(v) else None)
            left.pop()
            continue
        o = facts.rounding_up(o) or o
        if todo := [x for x in o.operands if x not in found]:
            left += todo
        else:
            found[v] = _trend(facts, o, [found[x] for x in o.operands])
            left.pop()
    return found[value]


def _trend(facts: Facts, o: Op, parts: list[int | None]) -> int | None:
    """Of what `o` makes of operands with these trends."""
    match o:
        case ops.Cast(operand=x) if o.result.dtype.is_int and o.result.dtype.bits >= x.dtype.bits:
            return parts[0]
        case ops.Binary(kind="add" | "min" | "max"):
            found = set(parts) - {0}
        case ops.Binary(kind="sub"):
            found = {parts[0], None if parts[1] is None else -parts[1]} - {0}
        case ops.Binary(kind="mul" | "floordiv" | "truncdiv", rhs=by) if parts[1] == 0:
            found = {parts[0] if facts.non_negative(by) else None} - {0}
        case _:
            return None
    return found.pop() if len(found) == 1 else None if found else 0


def holds_between(facts: Facts, cond: Value, index: Value) -> bool:
    """Whether a condition that holds for two values of a loop's `index` is known to hold for
    all between them: it is made of comparisons of what grows evenly with the index."""
    if index not in facts.origins.of(cond):
        return True
    match facts.made_by(cond):
        case ops.Binary(kind="and", lhs=a, rhs=b):
            return holds_between(facts, a, index) and holds_between(facts, b, index)
        case ops.Compare(kind=kind, lhs=a, rhs=b) if kind != "ne" and a.is_integer:
            return None not in (facts.slope(a, index), facts.slope(b, index))
    return False
