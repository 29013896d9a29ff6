"""Values whose last bits nobody sees: all that becomes of them is rounded to half precision or
less, or is a term of a long sum.

A sum of n numbers is known to n roundings at most, so what is off by fewer in each of its terms is
not seen in it. Where a value is stored in a fragment, whoever reads the fragment until it is filled
again is asked: in program order, around loops."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir import ops
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.effects import buffers_read, effects_in
from tilec.ir.types import DType
from tilec.passes.utils.dependence import filled_by, paths

LONG_SUM = 64  # terms
_KEPT = ("mul", "div")  # a result is as exact, relatively, as both operands


class Rough:
    """Asks it of values that loops over elements compute."""

    def __init__(self, func: Func) -> None:
        self.users = func.body.users
        self.places = {o: path for path, o in paths(func.body)}
        self.around = {x: p for p in func.body.every(ops.Parallel) for x in walk(p.body)}
        self.asked: set[Value | tuple[Op, Value]] = set()

    def is_rough(self, v: Value) -> bool:
        """Whether nobody sees the last bits of `v`."""
        self.asked.clear()
        return self._of(v)

    def _of(self, v: Value) -> bool:
        if v in self.asked:
            return True
        self.asked.add(v)
        return all(self._in(o, v) for o in self.users.get(v, ()))

    def _in(self, o: Op, v: Value) -> bool:
        """Whether what `o` makes of `v` leaves them unseen."""
        match o:
            case ops.Cast():
                return _narrow(o.dtype)
            case ops.Binary() if o.kind in _KEPT:
                return self._of(o.result)
            case ops.Unary() if o.kind in ("neg", "abs"):
                return self._of(o.result)
            case ops.Select() if v is not o.cond:
                return self._of(o.result)
            case ops.Store() if v is o.value and o in self.around:
                return o.buffer.space == "fragment" and self._left(self.around[o], o.buffer)
        return False

    def _left(self, writer: Op, buffer: Value) -> bool:
        """The same of what `writer` leaves in a fragment."""
        if (writer, buffer) in self.asked:
            return True
        self.asked.add((writer, buffer))
        return all(self._read(o, buffer) for o in self.readers(writer, buffer))

    def _read(self, o: Op, buffer: Value) -> bool:
        match o:
            case ops.Reduce() if o.dest.buffer is not buffer:
                terms = o.source.extents[o.dim]
                return o.combine == "add" and o.dest.dtype.is_float and terms >= LONG_SUM
            case ops.Copy():
                if _narrow(o.dest.dtype):
                    return True
                return o.dest.buffer.space == "fragment" and self._left(o, o.dest.buffer)
            case ops.Load():
                return self._of(o.result)
        return False

    def readers(self, writer: Op, buffer: Value) -> Iterator[Op]:
        """Who may read what `writer` leaves in the buffer, up to whoever fills all of it."""
        path, seen = self.places[writer], set[tuple[Block, int]]()
        for depth in reversed(range(len(path))):
            block, at = path[depth]
            ahead = [*range(at + 1, len(block.ops))]
            if depth and isinstance(
                path[depth - 1][0].ops[path[depth - 1][1]], ops.For | ops.While
            ):
                ahead += range(at + 1)  # the next iteration's
            for i in ahead:
                if (block, i) in seen:
                    continue
                seen.add((block, i))
                o = block.ops[i]
                for x, e in effects_in(o):
                    if buffer in buffers_read([e]):
                        yield x
                if buffer in filled_by(o):
                    if i > at:
                        return
                    break


def _narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits <= 16
