"""Quotients whose last bits nobody sees."""

from __future__ import annotations

from collections import defaultdict

from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.ops import Binary, Cast, Extract, Pack, Select, Unary
from tilec.ir.types import FLOAT32

_FACTORS = ("mul", "div", "min", "max")


def rounded_quotients(func: Func) -> frozenset[Value]:
    """The float32 quotients that reach nothing but conversions to floats of 16 bits or less, by way
    of products, quotients, signs, selections and nothing that could cancel their leading bits: an
    error of 2 ulp is 2**-12 of the narrower type's, so the result differs from the exactly divided
    one in about one of 2000 roundings, by the rounding that was nearly a tie."""
    ops = list(walk(func.body))
    if not any(_divides(o) for o in ops):
        return frozenset()
    users: dict[Value, list[Op]] = defaultdict(list)
    for o in ops:
        for v in o.operands:
            users[v].append(o)
    rounded: set[Value] = set()
    for o in reversed(ops):
        for r in o.results:
            if users[r] and all(_narrows(user, r, rounded) for user in users[r]):
                rounded.add(r)
    return frozenset(o.results[0] for o in ops if _divides(o) and o.results[0] in rounded)


def _divides(o: Op) -> bool:
    return isinstance(o, Binary) and o.kind == "div" and o.lhs.dtype == FLOAT32


def _narrows(o: Op, v: Value, rounded: set[Value]) -> bool:
    """Whether what `o` makes of `v` ends in a narrower float."""
    match o:
        case Cast():
            return o.dtype.is_float and o.dtype.bits <= 16
        case Binary(kind=kind) if kind in _FACTORS:
            return o.results[0] in rounded
        case Unary(kind="neg" | "abs") | Pack() | Extract():
            return o.results[0] in rounded
        case Select():
            return o.cond is not v and o.results[0] in rounded
    return False
