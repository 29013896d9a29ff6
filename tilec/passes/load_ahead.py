"""load_ahead: what threads load beside a loop's product they ask for in front of it.

Before: LAID_OUT, copies have their widths; behind a product by a warpgroup's instruction threads of
a pipelined loop load from tensors that the kernel does not write, as scales of a step, or a bias:

    for k in T.Pipelined(n):
        part = A[k] B[k]
        s = scales[y, k]
        acc += part * s

After: the loads stand in front of the first product, so that nobody who has waited for that waits
for memory, too. Only where all fragments have room at once. (An iteration earlier still they took
registers of their own, which were moved, and so waited for, at the iteration's end: no faster.)"""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.clusters import all_threads_of, residents_of
from tilec.ir.core import Func, Op, Value, upstream
from tilec.ir.effects import buffers_written, effects_in, written_tensors
from tilec.passes.check_registers import fragment_registers
from tilec.passes.utils.registers import RESERVED, budget
from tilec.target import Target


def load_ahead(func: Func, target: Target) -> Func:
    if not target.has("wgmma") or func.attrs.get("may_alias"):
        return func
    specialised = bool(func.attrs.get("specialise"))
    room = budget(all_threads_of(func), specialised, target, residents_of(func)) - RESERVED
    if fragment_registers(func) > room:
        return func
    written = written_tensors(func.body)

    def visit(o: ops.For) -> ops.For | None:
        return _Loop(o, written).reordered() if o.kind == "pipelined" else None

    return func.rewrite(ops.For, visit)


class _Loop:
    def __init__(self, o: ops.For, written: set[Value]) -> None:
        self.o, self.written = o, written
        self.made = o.body.makers

    def reordered(self) -> ops.For | None:
        """The loop with loads in front of its first product; None if there are none behind it."""
        statements = self.o.body.ops
        product = next((n for n, x in enumerate(statements) if _is_product(x)), len(statements))
        early = [x for x in statements[product:] if isinstance(x, _LOADS) and self.is_early(x)]
        needed = {y: None for x in early for y in (*self.needs(x), x)}
        moved = [y for y in needed if y in {*statements[product:]}]
        if not moved:
            return None
        rest = [x for x in statements[product:] if x not in needed]
        body = self.o.body.with_ops([*statements[:product], *moved, *rest])
        return replace(self.o, body=body)

    def needs(self, x: Op) -> list[Op]:
        """What makes the place of a load, and the fragment that it fills."""
        return [*upstream(x.operands, self.made)]

    def is_early(self, x: ops.Copy | ops.Load) -> bool:
        """Whether `x` loads what it may as well load before, into what it alone fills."""
        source = x.source.buffer if isinstance(x, ops.Copy) else x.source
        if source.buffer.space != "global" or source in self.written:
            return False
        held = x.dest.buffer if isinstance(x, ops.Copy) else None
        if not all(y.pure or held in y.results for y in self.needs(x)):
            return False
        if held is None or not isinstance(x, ops.Copy):
            return True
        fills = buffers_written(e for _, e in effects_in(self.o.body)).count(held)
        mine = held in self.made and held.buffer.space == "fragment"
        return x.engine == "threads" and x.dest.is_whole and mine and fills == 1


_LOADS = (ops.Copy, ops.Load)


def _is_product(o: Op) -> bool:
    return isinstance(o, ops.Gemm) and o.is_asynchronous
