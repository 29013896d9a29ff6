"""unroll_loads: what a thread loads in several iterations of a loop is asked for together.

Before: LOWERED, a serial loop in which a thread loads elements of tensors into its `local` arrays
and computes with them, as in

    for k in T.serial(n):
        for v in T.vectorized(8): a[v] = A[k * 256 + tx * 8 + v]
        …

After: such iterations stand one behind the other, as many as a thread has registers for, so that
the assembler has their loads before the first is used; what is left of them runs as it did. Their
order, and each number, is what it was. (`batch_loads` does it for loops over tiles, LLVM for bodies
that are short: `codegen.gpu`.)"""

from __future__ import annotations

from collections.abc import Mapping

from tilec.ir.core import Block, Builder, Func, Op, Substitution, Value, clone, rewrite, walk
from tilec.ir.fold import Number
from tilec.ir.ops import (
    CheckIndex,
    Const,
    For,
    Load,
    MemLoad,
    Store,
    Yield,
    constants,
)
from tilec.passes.utils.building import iteration
from tilec.target import Target

MOST_TOGETHER = 8  # iterations
BYTES_TOGETHER = 192  # of a thread, on their way at once
MOST_OPS = 2048
MOST_WITHIN = 16  # iterations of a loop inside


def unroll_loads(func: Func, target: Target) -> Func:
    """See the module's opening."""
    numbers = constants(func.body)
    written = {getattr(o, "dest", None) for o in walk(func.body)}
    subst: Substitution = {}

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, For) or o.kind != "serial" or numbers.get(o.step) != 1:
            return None
        if o.lo.dtype.kind != "int":
            return None
        count = _together(o, numbers, written)
        return _unrolled(o, count, numbers, subst) if count > 1 else None

    return func.with_body(rewrite(func.body, visit, subst))


def _together(o: For, numbers: Mapping[Value, Number], written: set[object]) -> int:
    """How many iterations are worth asking for at once."""
    found = _Work(numbers, written)
    if not found.block(o.body, 1) or not found.bytes or not found.local:
        return 1
    most = min(MOST_TOGETHER, BYTES_TOGETHER // found.bytes, MOST_OPS // found.ops)
    indices = o.indices(numbers.get)
    if indices is not None:
        most = min(most, len(indices))
    return 1 << max(most, 1).bit_length() - 1


class _Work:
    """What an iteration does: the bytes of tensors that a thread loads, its operations, and whether
    it uses local arrays."""

    def __init__(self, numbers: Mapping[Value, Number], written: set[object]) -> None:
        self.numbers = numbers
        self.written = written
        self.bytes = self.ops = 0
        self.local = False

    def block(self, block: Block, times: int) -> bool:
        """Whether it loads and computes, and no more."""
        return all(self.op(o, times) for o in block.ops)

    def op(self, o: Op, times: int) -> bool:
        self.ops += 0 if isinstance(o, Const | Yield) else times
        match o:
            case For():
                trips = len(o.indices(self.numbers.get) or ())
                return 0 < trips <= MOST_WITHIN and self.block(o.body, times * trips)
            case MemLoad():
                if o.guard is not None or o.source in self.written:
                    return False
                if o.source.buffer.space == "global":
                    self.bytes += times * max(o.lanes * o.source.dtype.bits // 8, 1)
                return True
            case Load() | Store():
                buffer = o.source if isinstance(o, Load) else o.dest
                self.local = True
                return buffer.buffer.space == "local"
        return isinstance(o, Const | CheckIndex | Yield) or (o.pure and not o.region_fields)


def _unrolled(o: For, count: int, numbers: Mapping[Value, Number], subst: Substitution) -> list[Op]:
    """`count` iterations at a time, then what is left of them one by one."""
    b, inner = Builder(o.loc), Builder(o.loc)
    indices = o.indices(numbers.get)
    known = None if indices is None else len(indices) % count
    if indices is None:
        trips = b.binary("max", b.binary("sub", o.hi, o.lo), 0)
        rest = b.binary("mod", trips, count)
        end = b.binary("add", o.lo, b.binary("sub", trips, rest))
    else:
        end = b.const(indices.stop - known, o.lo.dtype) if known else o.hi
    first, *carried = (Value(a.type, a.name) for a in o.body.args)
    values = tuple(carried)
    for number in range(count):
        at = inner.binary("add", first, number) if number else first
        ops, values = iteration(o, at, values)
        inner.ops += ops
    inner.emit(Yield, values)
    body = inner.block((first, *carried))
    done = b.emit(For, "serial", o.lo, end, b.const(count, o.lo.dtype), o.inits, body)
    if known != 0:
        left = For("serial", end, o.hi, o.step, done.results, o.body, results=o.results, loc=o.loc)
        done = clone(left, {})
        b.ops.append(done)
    subst.update(zip(o.results, done.results))
    return b.ops
