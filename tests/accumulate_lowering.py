"""What the ops of `accumulate_op` do to one element: all that their compilation needs."""

from __future__ import annotations

from accumulate_op import Accumulate, CountFrom

from tilec.ir.element_loops import Iteration, elementwise
from tilec.ir.ops import Binary, Const
from tilec.ir.types import INT32


@elementwise(Accumulate)
def accumulate(it: Iteration, o: Accumulate) -> None:
    more = it.cast(it.load(o.source), o.dest.dtype)
    it.store(o.dest, it.b.value(Binary, "add", it.load(o.dest), more))


@elementwise(CountFrom)
def count_from(it: Iteration, o: CountFrom) -> None:
    number = it.b.value(Const, 0, INT32)
    for arg, extent in zip(it.args, o.dest.shape):
        scaled = it.b.value(Binary, "mul", number, it.b.value(Const, extent, INT32))
        number = it.b.value(Binary, "add", scaled, arg)
    it.store(o.dest, it.b.value(Binary, "add", it.cast(number, o.dest.dtype), o.start))
