"""Shared buffers of which each thread reads and writes elements of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.core import Block, Func, Value
from tilec.ir.uniformity import Level, Uniformity
from tilec.passes.utils.thread_masks import ThreadMasks

MOST_ELEMENTS = 1 << 20
"""Accesses of all threads that are looked at for one statement."""
MOST_DIMENSIONS = 3
"""Of those that say whose an element is: their indices, of 20 bits each, make one number."""

Loops = tuple[ops.For, ...]
Access = tuple[ops.ElementAccess, Loops]


def own_elements(
    func: Func, roots: Mapping[Value, Value], uniformity: Uniformity
) -> frozenset[Value]:
    """The shared buffers of which no element is accessed by the statements of two threads (tile ops
    and loops over tiles aside), whatever they do it for, and in whatever iteration: threads need
    not meet for them. `roots`: the ring that a stage belongs to."""
    found: dict[Value, list[Access]] = {}
    for o, loops in _accesses(func.body, ()):
        found.setdefault(roots.get(o.buffer, o.buffer), []).append((o, loops))
    table = _Table(func, uniformity)
    return frozenset(v for v, accesses in found.items() if table.is_owned(accesses))


def _accesses(block: Block, loops: Loops) -> Iterator[Access]:
    for o in block.ops:
        if isinstance(o, ops.ElementAccess):
            if o.buffer.buffer.space == "shared":
                yield o, loops
        elif not isinstance(o, ops.Parallel):
            around = (*loops, o) if isinstance(o, ops.For) else loops
            for region in o.regions:
                yield from _accesses(region, around)


class _Table:
    def __init__(self, func: Func, uniformity: Uniformity) -> None:
        self.func, self.uniformity = func, uniformity
        self.constant = facts_of(func).constant
        self.threads = [o.result for o in func.body.every(ops.ThreadIndex)]

    def is_owned(self, accesses: Sequence[Access]) -> bool:
        """Whether each element is accessed by one thread. Where all threads have the same index in
        a dimension it says nothing."""
        if not self.threads or any(isinstance(o, ops.Atomic) for o, _ in accesses):
            return False
        rank = len(accesses[0][0].indices)
        told = [
            d for d in range(rank) if not all(self._is_uniform(o.indices[d]) for o, _ in accesses)
        ]
        if not told or len(told) > MOST_DIMENSIONS:
            return False
        places, owners = [], []
        for o, loops in accesses:
            found = self._elements(o, loops, told)
            if found is None:
                return False
            places.append(found[0])
            owners.append(found[1])
        at, who = np.concatenate(places), np.concatenate(owners)
        order = np.argsort(at, kind="stable")
        at, who = at[order], who[order]
        return not ((at[1:] == at[:-1]) & (who[1:] != who[:-1])).any()

    def _is_uniform(self, v: Value) -> bool:
        return self.uniformity.level(v) == Level.BLOCK

    def _elements(
        self, o: ops.ElementAccess, loops: Loops, dims: Sequence[int]
    ) -> tuple[Any, Any] | None:
        """The elements that are accessed, and by which threads; None where that is not known."""
        values = ThreadMasks(self.func)
        counted = [(x.body.args[0], x.indices(self.constant)) for x in loops]
        axes = [(v, each) for v, each in counted if each is not None]
        if values.threads * np.prod([len(each) for _, each in axes], dtype=float) > MOST_ELEMENTS:
            return None
        shape = (values.threads, *(len(each) for _, each in axes))
        thread = np.arange(values.threads, dtype=np.int32).reshape(-1, *[1] * len(axes))
        values.known = dict.fromkeys(self.threads, thread)
        for n, (v, each) in enumerate(axes, 1):
            values.known[v] = np.array(each).reshape(
                [-1 if d == n else 1 for d in range(len(shape))]
            )
        number: Any = np.zeros(shape, np.int64)
        for d in dims:
            at = values.evaluate(o.indices[d])
            if at is None:
                return None
            number = number * (1 << 20) + at
        return number.ravel(), np.broadcast_to(thread, shape).ravel()
