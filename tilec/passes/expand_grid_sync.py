"""expand_grid_sync: blocks that wait for one another do so at a counter in global memory.

Before: `grid_sync` ops, in order with everything around them (`insert_sync` has seen to it that the
block's own threads are). After: none. The function takes two words of its launch's own, zero
between launches, and is launched cooperatively: all of its blocks run at once.

    thread 0 of each block:  fence; before = add(word 0, step)
                             while the top bits of before and of word 0 are equal: pause
                             fence
    all threads of the block meet in front of it and behind it

The steps of all blocks add up to 2^31: the first block adds what is missing, the others 1, so that
whoever comes last turns the top bit around. What lies below it is zero again then. The top bit may
be left either way, so a block that ends counts itself in word 1, and the last one clears both: no
block waits any more by then."""

from __future__ import annotations

import functools
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Param, Value
from tilec.ir.errors import CompileError
from tilec.ir.types import INT32, BufferType
from tilec.passes.utils.building import wait_for_blocks
from tilec.passes.utils.rings import elected
from tilec.target import Target


def expand_grid_sync(func: Func, target: Target) -> Func:
    """Raises CompileError where a part of the block only comes."""
    if not func.body.has(ops.GridSync):
        return func
    _check(func)
    return _Meeting(func, target).expanded()


def _check(func: Func) -> None:
    for o in func.body.every(ops.Scope):
        for inside in o.body.every(ops.GridSync):
            raise CompileError(
                "T.sync_grid stands under a condition that holds for a part of the block's "
                "threads: blocks meet as a whole",
                inside.loc,
                "let all threads of the block come to it",
            )


class _Meeting:
    def __init__(self, func: Func, target: Target) -> None:
        self.func, self.alone = func, target.kind == "cpu"  # a block is one thread
        self.each = not self.alone and not target.has("global_barrier")
        name = func.unused("blocks_met")
        self.words = Value(BufferType((2,), INT32, "global", align=4), name)

    def expanded(self) -> Func:
        top = Builder(self.func.loc)
        sizes = [top.value(ops.GridSize, d) for d in range(3)]
        self.blocks = functools.reduce(functools.partial(top.binary, "mul"), sizes)
        inside = [top.value(ops.BlockIndex, d) for d in range(3)]
        sum_of = top.binary("or", inside[0], top.binary("or", inside[1], inside[2]))
        first = top.compare("eq", sum_of, 0)
        others = top.binary("sub", self.blocks, 2)
        rest = top.binary("sub", top.const((1 << 31) - 1), others)
        self.step = top.select(first, rest, top.const(1))
        body = self.func.body.rewrite(ops.GridSync, self.met)
        params = (*self.func.params, Param(self.words, "counters", self.words.name, 8))
        func = replace(self.func, params=params, body=body.ending(self.last(), top.ops))
        return func.with_attrs(cooperative=True)

    def met(self, o: Op) -> list[Op]:
        b, one = Builder(o.loc), Builder(o.loc)
        wait_for_blocks(one, lambda x, kind, v: self.atomic(x, 0, kind, v), self.step)
        one.emit(ops.DeviceFence)
        if self.alone:
            return one.ops
        if self.each:  # a barrier orders shared memory only
            b.emit(ops.DeviceFence)
        b.emit(ops.Barrier)
        b.branch(elected(b), one.ops)
        b.emit(ops.Barrier)
        if self.each:
            b.emit(ops.DeviceFence)
        return b.ops

    def last(self) -> list[Op]:
        """Clear the words, in the block that ends last."""
        b, one = Builder(self.func.loc), Builder(self.func.loc)
        came = self.atomic(one, 1, "add", one.const(1))
        end = one.binary("sub", self.blocks, 1)
        with one.when(one.compare("eq", came, end)) as clear:
            for word in (0, 1):
                self.atomic(clear, word, "exchange", clear.const(0))
        if self.alone:
            return one.ops
        b.branch(elected(b), one.ops)
        return b.ops

    def atomic(self, b: Builder, word: int, kind: str, value: Value) -> Value:
        return b.value(ops.Atomic, self.words, (b.const(word),), value, kind)
