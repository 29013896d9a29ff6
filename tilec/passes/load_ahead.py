"""load_ahead: what threads load beside a loop's product they ask for an iteration before.

Before: LAID_OUT, copies have their widths; behind a product by a warpgroup's instruction threads of
a pipelined loop copy parts of tensors that the kernel does not write into fragments, at places that
the loop's index moves, as scales of a step, or a bias, are:

    for k in T.Pipelined(n):
        part = A[k] B[k]
        s = scales[y, k]
        acc += part * s

After: an iteration asks for the next one's part as soon as it has read its own, the first is asked
for in front of the loop:

    s = scales[y, 0]
    for k in T.Pipelined(n):
        part = A[k] B[k]
        acc += part * s
        s = scales[y, k + 1]

so that nobody who has just waited for a product waits for memory, too. What lies beyond the loop is
asked for as anything: outside of the tensor nothing is loaded. A number that is the same for the
block comes through an array of a thread's own. Only where all fragments have room at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.clusters import all_threads_of, residents_of
from tilec.ir.core import Func, Op, Substitution, Value, upstream
from tilec.ir.effects import buffers_written, effects_in, written_tensors
from tilec.ir.types import BufferType
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

    def visit(o: ops.For) -> list[Op] | None:
        return _Loop(o, written).turned() if o.kind == "pipelined" else None

    return func.rewrite(ops.For, visit)


class _Loop:
    def __init__(self, o: ops.For, written: set[Value]) -> None:
        self.o, self.written = o, written
        self.index = o.body.args[0]
        self.made = o.body.makers

    def turned(self) -> list[Op] | None:
        """What stands in front of the loop, and the loop; None if nothing is asked for early."""
        statements = self.o.body.ops
        product = next((n for n, x in enumerate(statements) if _is_product(x)), len(statements))
        early = [x for x in statements[product:] if isinstance(x, _LOADS) and self.is_early(x)]
        if not early:
            return None
        before = Builder(self.o.loc)
        instead: dict[Op, list[Op]] = {}
        behind: dict[Op, list[Op]] = {}
        for x in early:
            held = x.result if isinstance(x, ops.Load) else x.dest.buffer
            last = [y for y in statements if y is not x and held in y.uses][-1]
            after = Builder(x.loc)
            if isinstance(x, ops.Load):
                held = before.value(ops.Alloc, BufferType((1,), x.result.dtype, "local"))
                own = Builder(x.loc)
                own.emit(ops.Load, held, (own.const(0),))
                instead[x] = [*own.ops[:-1], replace(own.ops[-1], results=x.results)]
            else:
                alloc = self.made[held]
                before.ops.append(alloc)
                instead |= {alloc: [], x: []}
            self.ask(before, x, held, self.o.lo)
            self.ask(after, x, held, after.binary("add", self.index, self.o.step))
            behind[last] = [*behind.get(last, ()), *after.ops]
        body = [y for x in statements for y in (*instead.get(x, (x,)), *behind.get(x, ()))]
        return [*before.ops, replace(self.o, body=self.o.body.with_ops(body))]

    def is_early(self, x: ops.Copy | ops.Load) -> bool:
        """Whether only the loop's index moves what `x` loads, and nothing else fills what with."""
        source = x.source.buffer if isinstance(x, ops.Copy) else x.source
        if source.buffer.space != "global" or source in self.written:
            return False
        place = [*self.place(x)]
        if not all(y.pure and not y.region_fields for y in place):
            return False
        used = {v for y in (x, *place) for v in y.operands}
        if self.index not in used or used & {*self.o.body.args[1:]}:
            return False
        if isinstance(x, ops.Load):
            return any(x.result in y.uses for y in self.o.body.ops)
        held = x.dest.buffer
        fills = buffers_written(e for _, e in effects_in(self.o.body)).count(held)
        mine = isinstance(self.made.get(held), ops.Alloc) and held.buffer.space == "fragment"
        read = any(held in y.uses for y in self.o.body.ops if y is not x)
        return x.engine == "threads" and x.dest.is_whole and mine and read and fills == 1

    def place(self, x: ops.Copy | ops.Load) -> Iterator[Op]:
        """What makes the place of a load, in an iteration."""
        held = {x.dest.buffer} if isinstance(x, ops.Copy) else set()
        return upstream([v for v in x.operands if v not in held], self.made)

    def ask(self, b: Builder, x: ops.Copy | ops.Load, held: Value, at: Value) -> None:
        """Loads at `b` what iteration `at` needs."""
        subst: Substitution = {self.index: at}
        b.ops += [y.clone(subst) for y in (*self.place(x), x)]
        if isinstance(x, ops.Load):
            b.emit(ops.Store, held, (b.const(0),), subst[x.result])


_LOADS = (ops.Copy, ops.Load)


def _is_product(o: Op) -> bool:
    return isinstance(o, ops.Gemm) and o.is_asynchronous
