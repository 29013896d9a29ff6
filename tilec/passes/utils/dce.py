"""Removes what nobody needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilec.ir.core import Block, Func, Op, Value, altered, walk
from tilec.ir.effects import buffers_read
from tilec.ir.errors import InternalError
from tilec.ir.ops import Alloc, For, If, Parallel, While, Yield, handed_on


def sweep(func: Func) -> Func:
    """Before: valid IR of any contract. After: the same without ops that have no effect and whose
    results are unused, values carried for nobody, and on-chip buffers that are only written."""
    dead = _write_only(func.body)
    while True:
        grid, body = _Sweep(dead).block(func.grid), _Sweep(dead).block(func.body)
        if grid is func.grid and body is func.body:
            return func
        func, before = replace(func, grid=grid, body=body), dead
        dead = _write_only(body)
        if dead <= before:  # no buffer has lost its last reader
            return func


def _write_only(body: Block) -> set[Value]:
    """On-chip buffers that are written, but not read."""
    found = {o.results[0] for o in body.every(Alloc)}
    for o in walk(body):
        if found.isdisjoint(o.operands):
            continue
        effects = () if o.region_fields else o.effects()
        only = {e.buffer for e in effects if e.kind in _SINKS}.difference(buffers_read(effects))
        found.difference_update(v for v in o.operands if v not in only)
    return found


_SINKS = ("write", "describe")  # effects that are for those who read the buffer later


class _Sweep:
    """One walk against the textual order; `live` are the values that what was kept asks for."""

    def __init__(self, dead: set[Value]) -> None:
        self.dead = dead
        self.live: set[Value] = set()

    def block(self, block: Block) -> Block:
        kept: list[Op] = []
        for o in reversed(block.ops):
            if self.idle(o) and self.live.isdisjoint(o.results):
                continue
            if o.region_fields:
                o = self.control(o)
            self.live.update(o.operands)
            kept.append(o)
        kept.reverse()
        return block.with_ops(kept)

    def idle(self, o: Op) -> bool:
        """Whether `o` does nothing but give its results."""
        if o.pure:
            return True
        if isinstance(o, Yield):
            return False
        if o.region_fields:
            ends = isinstance(o, For | If | Parallel)
            return ends and all(self.idle(x) for r in o.regions for x in r.statements)
        return all(
            e.kind in ("read", "allocate") or (e.kind in _SINKS and e.buffer in self.dead)
            for e in o.effects()
        )

    def control(self, o: Op) -> Op:
        """`o` with its regions swept. What it yields is live only if its results are, and what it
        carries also if the regions ask for it: a value that only feeds itself goes."""
        if not isinstance(o, If | For | While):
            return o.with_regions(self.block, backwards=True)
        wanted = {n for n, r in enumerate(o.results) if r in self.live}
        while True:
            done = keep_results(o, sorted(wanted)).with_regions(self.block, backwards=True)
            slots = enumerate(handed_on(o))
            asked = {n for n, (_, (*args, _)) in slots if not self.live.isdisjoint(args)}
            if asked <= wanted:
                return done
            wanted |= asked


def keep_results(o: Op, keep: Sequence[int]) -> Op:
    """An `If`, `For` or `While` that yields, and carries, only the values at the positions
    `keep`.
    """
    if len(keep) == len(o.results):
        return o

    def pick(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[n] for n in keep)

    def cut(block: Block) -> Block:
        own = len(block.args) - len(o.results)  # a loop's index
        args = (*block.args[:own], *pick(block.args[own:])) if block.args else ()
        last = block.ops[-1]
        assert isinstance(last, Yield)
        if not (isinstance(o, While) and block is o.cond):
            last = replace(last, values=pick(last.values))
        return Block(args, (*block.ops[:-1], last))

    if not isinstance(o, If | For | While):
        raise InternalError(f"{o.opname} carries no values", o.loc)
    carried = "types" if isinstance(o, If) else "inits"
    changed: dict[str, Any] = {carried: pick(getattr(o, carried))}
    return altered(o.with_regions(cut), results=pick(o.results), **changed)
