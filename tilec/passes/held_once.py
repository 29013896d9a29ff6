"""Fragments that several threads hold the same elements of, and only one of them needs."""

from __future__ import annotations

from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.ops import Alloc, Load, Parallel, Store


def held_once(func: Func) -> set[Value]:
    """The fragments that only loops of their own layout touch, which put what they read in memory
    or in other such fragments: where several threads hold an element, one has to have its value,
    the one that stores for the others.

    A sum of rows of shared memory is taken by a warp, then, where all would read the same."""
    loops = [o for o in walk(func.body) if isinstance(o, Parallel)]
    read = {p: _touched(p, Load) for p in loops}
    written = {p: _touched(p, Store) for p in loops}
    inside = {o for p in loops for o in walk(p.body)}
    once = {
        o.result
        for o in walk(func.body)
        if isinstance(o, Alloc) and o not in inside and o.type.space == "fragment"
    }
    once -= {v for o in walk(func.body) if o not in inside for v in o.operands}
    for p in loops:
        once -= {v for v in read[p] | written[p] if v.buffer.layout != p.layout}
    while more := {v for p in loops if not written[p] <= once for v in read[p] & once}:
        once -= more
    return once


def _touched(p: Parallel, kind: type[Op]) -> set[Value]:
    """The registers that the loop's loads, or its stores, are of."""
    found = {
        getattr(o, "source" if kind is Load else "dest")
        for o in walk(p.body)
        if isinstance(o, kind)
    }
    return {v for v in found if v.buffer.space in ("fragment", "local")}
