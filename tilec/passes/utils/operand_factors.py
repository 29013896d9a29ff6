"""Factors of a product's operand that are the same along K: scales of rows, or of blocks.

    parallel (n, k) {                          parallel (n, k) { b[n, k] = cast(w[n, k]) }
      b[n, k] = cast(w[n, k]) * s[n] }   ->    parallel (n) { f[n] = s[n] }
    gemm a, b, acc                             gemm a, b, part, clear
                                               parallel (m, n) { acc[m, n] += part[m, n] * f[n] }

A sum of scaled terms is the scaled sum of the terms, which is rounded less often; and what is left
of the operand may be as narrow as what it was made of (`narrow_operands`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilec.ir import ops
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Region, Value, upstream, within
from tilec.ir.effects import changing_tensors
from tilec.ir.intervals import low_bit
from tilec.ir.loc import Loc
from tilec.ir.neighbours import Neighbours
from tilec.ir.types import FLOAT32, BufferType


@dataclass(frozen=True, eq=False)
class Factor:
    """`values`, whose product each element of an operand that `loop` fills is multiplied by, are
    the same for all of a row, which is the elements with one index of dimension `row`. `held`:
    where they are kept for the product."""

    loop: ops.Parallel
    row: int
    values: tuple[Value, ...]
    held: Value

    def kept(self, loc: Loc) -> list[Op]:
        """The factor of each row, behind the loop."""
        b = Builder(loc)
        with b.each_element(self.held.buffer.static_shape) as (inner, at):
            args = self.loop.body.args
            subst = {x: at[0] if d == self.row else inner.const(0) for d, x in enumerate(args)}
            made = (*upstream(self.values, self.loop.body.makers),)
            inner.ops += Block((), made).clone(subst).ops
            product, *others = (subst.get(v, v) for v in self.values)
            for x in others:
                product = inner.binary("mul", product, x)
            inner.emit(ops.Store, self.held, at, product)
        return b.ops


class Factors:
    """Those of operands that could do without, `of` each operand, and what is `left` of products by
    a factor."""

    def __init__(self, func: Func, wide: set[Value]) -> None:
        self.of: dict[Value, Factor] = {}
        self.left: dict[Value, Value] = {}
        self.facts: Facts | None = None
        self.func = func
        around = {o: (outer[-1:], o) for o, outer in within(func.body)}
        filled = {
            store.dest: loop
            for loop in func.body.every(ops.Parallel)
            for store in loop.body.ops
            if isinstance(store, ops.Store) and store.dest in wide
        }
        for o in func.body.every(ops.Gemm) if filled else ():
            if o.accumulate is not None or o.metadata is not None or o.c.dtype != FLOAT32:
                continue
            for x, dim in zip((o.a, o.b), o.summed):
                loop = filled.get(x.buffer)
                if loop is not None and around[loop][0] == around[o][0]:
                    self._add(o, x, dim % 2, loop)

    def _add(self, o: ops.Gemm, x: Region, summed: int, loop: ops.Parallel) -> None:
        """The factor of an operand that one loop fills whole, for this product alone."""
        v, args = x.buffer, loop.body.args
        writers = [u for u in self.func.body.users[v] if u is not o]
        if len(writers) != 1 or not x.is_whole or v.buffer.rank != 2 or loop.layout is not None:
            return
        (store,) = writers
        if not isinstance(store, ops.Store) or store not in loop.body.ops:
            return
        if store.indices != args or loop.extents != v.buffer.static_shape:
            return
        left: dict[Value, Value] = {}
        values = (*self._factors(store.value, loop, summed, left),)
        if values:
            shape = (v.buffer.static_shape[1 - summed],)
            held = Value(BufferType(shape, FLOAT32, "shared"), f"{v.name}_factors")
            self.of[v] = Factor(loop, 1 - summed, values, held)
            self.left |= left

    def _factors(
        self, v: Value, loop: ops.Parallel, summed: int, left: dict[Value, Value]
    ) -> Iterator[Value]:
        """The factors of a value, also where it is chosen, or else 0. `left` grows."""
        made = loop.body.makers
        while True:
            match made.get(v):
                case ops.Select(on_true=x, on_false=y) if _is_zero(self.func.body.defs.get(y)):
                    v = x
                case ops.Binary(kind="mul", lhs=x, rhs=y) as product:
                    sides = ((x, y), (y, x))
                    found = next(((e, s) for e, s in sides if self._same(s, loop, summed)), None)
                    if found is None:
                        return
                    v, factor = found
                    left[product.result] = v
                    yield factor
                case _:
                    return

    def _same(self, v: Value, loop: ops.Parallel, summed: int) -> bool:
        """Whether a value is the same for all iterations along `summed`, and may be computed again
        behind the loop."""
        made, arg, extent = loop.body.makers, loop.body.args[summed], loop.extents[summed]
        if any(not (x.pure or isinstance(x, ops.Load)) or x.regions for x in upstream([v], made)):
            return False
        self.facts = self.facts or facts_of(self.func)
        width = extent if low_bit(extent) == extent else 1 << extent.bit_length()
        return Neighbours(self.facts, changing_tensors(self.func), arg, width).same(v)


def _is_zero(o: Op | None) -> bool:
    return isinstance(o, ops.Const) and o.value == 0


def scaled_sum(o: ops.Gemm, factors: Sequence[Factor | None] = ()) -> list[Op]:
    """The product in a fragment of its own, which is added to its result, times the factors that
    its operands have lost."""
    b, shape = Builder(o.loc), o.c.buffer.static_shape
    part = b.value(ops.Alloc, BufferType(shape, o.c.dtype, "fragment"), name=f"{o.c.name}_part")
    b.ops.append(replace(o, c=part, clear=True))
    with b.each_element(shape) as (inner, at):
        value = inner.value(ops.Load, part, at)
        for factor, index in zip(factors, at):
            if factor is not None:
                own = inner.value(ops.Load, factor.held, (index,))
                value = inner.binary("mul", value, own)
        if not o.clear:
            value = inner.binary("add", inner.value(ops.Load, o.c, at), value)
        inner.emit(ops.Store, o.c, at, value)
    return b.ops
