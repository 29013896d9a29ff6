"""Which stores put back what they have read: `h[bin[t]] += 1`, by each thread for itself.

That several threads store one value to one element is harmless in itself, and common. Here it is
not: each has computed it from what was there before, so that all but one of the results are lost.
"""

from __future__ import annotations

from tilec.ir.analysis import Level, uniformity_of
from tilec.ir.core import Func, Op, Value, defining_ops, walk
from tilec.ir.llvm import Inst
from tilec.ir.loc import Loc
from tilec.ir.ops import MemLoad, MemStore

Updates = frozenset[tuple[Loc, str]]
"""Statements, and the buffers that they store to."""


def updates(func: Func) -> Updates:
    """The updates of a LOWERED function in which the element depends on the thread. (Where it does
    not, all threads act as one.)"""
    made = defining_ops(func.body)
    uniformity = uniformity_of(func)
    return frozenset(
        (o.loc, o.dest.name)
        for o in walk(func.body)
        if isinstance(o, MemStore)
        and uniformity.level(o.offset) > Level.BLOCK
        and _reads(o.value, (o.dest, o.offset), made)
    )


def is_update(inst: Inst | None, known: Updates) -> bool:
    """Whether a record is of one of the updates."""
    return inst is not None and (inst.loc, inst.buffer) in known


def _reads(value: Value, place: tuple[Value, Value], made: dict[Value, Op]) -> bool:
    """Whether `value` is computed from what is loaded from `place`: a buffer and an offset."""
    seen: set[Value] = set()
    todo = [value]
    while todo:
        v = todo.pop()
        o = made.get(v)
        if v in seen or o is None:
            continue
        seen.add(v)
        if isinstance(o, MemLoad):
            if (o.source, o.offset) == place:
                return True
        todo += o.operands
    return False
