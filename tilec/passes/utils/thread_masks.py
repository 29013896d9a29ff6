"""Which threads of a block come to an op, as far as it follows from their index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilec.ir.clusters import threads_of
from tilec.ir.core import Block, Func, Op, Value
from tilec.ir.ops import For, If, Parallel, Scope, ThreadIndex, While
from tilec.ir.uniformity import Level, uniformity_of
from tilec.target import Target


class ThreadMasks:
    """What scalars are in each thread of a block."""

    def __init__(self, func: Func) -> None:
        self.threads = threads_of(func)
        self.defs = func.body.defs
        self.known: dict[Value, Any] = {}

    def mask(self, cond: Value) -> Any:
        """For which threads a condition holds; None where it depends on more than the thread index,
        or not on that."""
        found = self.evaluate(cond)
        return None if found is None or np.ndim(found) == 0 else found

    def evaluate(self, v: Value) -> Any:
        """A scalar in each thread (or for all), None if it is not known now."""
        if v in self.known:
            return self.known[v]
        o, found = self.defs.get(v), None
        if isinstance(o, ThreadIndex):
            found = np.arange(self.threads, dtype=np.int32)
        elif o is not None and o.pure and type(o).evaluate is not Op.evaluate:
            operands: Sequence[Any] = [self.evaluate(x) for x in o.operands]
            if all(x is not None for x in operands):
                found = o.evaluate(*operands)
        self.known[v] = found
        return found


@dataclass(frozen=True)
class Visit:
    """An op, and the threads that come to it at most (a mask). `exact`: all of them or none do.
    `repeated`: they may come again, for it stands in a loop."""

    op: Op
    threads: Any
    exact: bool = True
    repeated: bool = False

    @property
    def count(self) -> int:
        return int(np.count_nonzero(self.threads))


def visits(func: Func, target: Target) -> Iterator[Visit]:
    """Every op of a TILE function outside of T.Parallel, in order."""
    masks, facts = ThreadMasks(func), uniformity_of(func)

    def walk(block: Block, who: Any, exact: bool, repeated: bool) -> Iterator[Visit]:
        for o in block.ops:
            yield Visit(o, who, exact, repeated)
            match o:
                case Parallel():
                    pass
                case Scope():
                    inside = np.zeros(masks.threads, bool)
                    first = o.first_warp * target.warp_size
                    inside[first : first + o.warps * target.warp_size] = True
                    yield from walk(o.body, inside & who, exact, repeated)
                case If():
                    found = masks.mask(o.cond)
                    same = found is not None or facts.level(o.cond) == Level.BLOCK
                    then, orelse = (who, who) if found is None else (who & found, who & ~found)
                    yield from walk(o.then, then, exact and same, repeated)
                    yield from walk(o.orelse, orelse, exact and same, repeated)
                case For() | While():
                    for region in o.regions:
                        yield from walk(region, who, exact, True)
                case _:
                    for region in o.regions:
                        yield from walk(region, who, exact, repeated)

    yield from walk(func.body, np.ones(masks.threads, bool), True, False)
