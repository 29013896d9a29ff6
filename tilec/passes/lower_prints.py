"""lower_prints: printing a whole buffer becomes printing its elements, and what all threads would
print is printed once.

Before: `print` ops may name a buffer. After: none does, and those are marked `once` which all
threads of a block come to with the same values. An on-chip buffer is printed by a parallel loop,
each element with its indices; a tensor by one thread, in order, because its size may be known at
run time only (on a target of one thread without asking which one it is)."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack

from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Value
from tilec.ir.ops import Load, Print, ThreadIndex
from tilec.ir.types import INT32
from tilec.ir.uniformity import Level, uniformity_of
from tilec.passes.utils.addressing import Tensors
from tilec.target import Target


def lower_prints(func: Func, target: Target) -> Func:
    if not func.body.has(Print):
        return func
    tensors, uniformity = Tensors(func), uniformity_of(func)

    def visit(o: Print) -> None | list[Op]:
        if o.buffer is None:
            levels = (uniformity.around(o), *map(uniformity.level, o.values))
            return [dataclasses.replace(o, once=True)] if max(levels) == Level.BLOCK else None
        if o.buffer.space == "global":
            return _tensor(o, o.buffer, tensors, target)
        b = Builder(o.loc)
        with b.each_element(o.buffer.buffer.static_shape) as (inner, at):
            _element(inner, o, o.buffer, at)
        return b.ops

    return func.rewrite(Print, visit)


def _element(b: Builder, o: Print, buffer: Value, indices: tuple[Value, ...]) -> None:
    holes = ", ".join("{}" for _ in indices)
    b.emit(Print, f"{o.format}[{holes}] = {{}}", (*indices, b.value(Load, buffer, indices)))


def _tensor(o: Print, buffer: Value, tensors: Tensors, target: Target) -> list[Op]:
    outer, body = Builder(o.loc), Builder(o.loc)
    with ExitStack() as loops:
        inner, args = body, list[Value]()
        for d, extent in enumerate(buffer.buffer.shape):
            count = tensors.number(inner, extent, INT32)
            index, inner = loops.enter_context(inner.counted(count, f"i{d}", "serial"))
            args.append(index)
        _element(inner, o, buffer, tuple(args))
    if target.max_threads == 1:
        return body.ops
    first = outer.compare("eq", outer.value(ThreadIndex), 0)
    outer.branch(first, body.ops)
    return outer.ops
