"""Fragments that several threads hold the same elements of, and only one of them needs."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.ir.core import Func, Value, walk
from tilec.ir.effects import buffers_read, buffers_written
from tilec.ir.ops import Alloc, Parallel


def held_once(func: Func) -> set[Value]:
    """The fragments that only loops of their own layout touch, which put what they read in memory
    or in other such fragments: where several threads hold an element, one has to have its value,
    the one that stores for the others.

    A sum of rows of shared memory is taken by a warp, then, where all would read the same."""
    loops = [o for o in walk(func.body) if isinstance(o, Parallel)]
    read = {p: _registers(buffers_read(p.effects())) for p in loops}
    written = {p: _registers(buffers_written(p.effects())) for p in loops}
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


def _registers(buffers: Iterable[Value]) -> set[Value]:
    return {v for v in buffers if v.buffer.space in ("fragment", "local")}
