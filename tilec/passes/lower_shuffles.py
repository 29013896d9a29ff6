"""lower_shuffles: on a target without lanes, what they tell one another goes through memory.

Before: TILE, `shuffle` and `shuffle_xor` ops as their author wrote them. After: none. Each thread
puts its value in a place of its own of an array, its warp meets, and it reads the place of the lane
it wants; the warp meets again before the array is used anew."""

from __future__ import annotations

from tilec.ir.builder import Builder
from tilec.ir.clusters import threads_of
from tilec.ir.core import Func, Op, Substitution, Value
from tilec.ir.ops import Alloc, Load, Shuffle, ShuffleXor, Store, ThreadIndex, WarpSync
from tilec.ir.types import INT32, BufferType
from tilec.ir.uniformity import LANES
from tilec.target import Target


def lower_shuffles(func: Func, target: Target) -> Func:
    if not func.body.has(Shuffle, ShuffleXor):
        return func
    threads = threads_of(func)
    subst: Substitution = {}

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, Shuffle | ShuffleXor):
            return None
        b = Builder(o.loc)
        value = subst.get(o.value, o.value)
        array = b.value(Alloc, BufferType((threads,), value.dtype, "shared"), name="lanes")
        me = b.value(ThreadIndex)
        b.emit(Store, array, (me,), value)
        b.emit(WarpSync)
        found = b.value(Load, array, (_other(b, o, me, subst),))
        b.emit(WarpSync)
        subst[o.result] = found
        return b.ops

    return func.rewrite(Op, visit, subst)


def _other(b: Builder, o: Shuffle | ShuffleXor, me: Value, subst: Substitution) -> Value:
    """The thread whose value is wanted."""
    if isinstance(o, ShuffleXor):
        return b.binary("xor", me, o.mask)
    lane = subst.get(o.lane, o.lane)
    if lane.dtype != INT32:
        lane = b.cast(lane, INT32)
    lanes = b.const(LANES)
    first = b.binary("sub", me, b.binary("mod", me, lanes))
    return b.binary("add", first, b.binary("mod", lane, lanes))
