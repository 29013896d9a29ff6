"""Pieces of IR that many passes make: all of a buffer, buffers of another type, counted loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from tilec.ir.builder import Builder
from tilec.ir.core import AnyOp, Block, Op, Region, Substitution, Value, altered, fresh
from tilec.ir.ops import (
    Alloc,
    Copy,
    DeviceFence,
    Extract,
    For,
    If,
    MemLoad,
    Pack,
    Pause,
    RegRead,
    RegWrite,
    While,
    Yield,
    yielded,
)
from tilec.ir.types import BufferType, DType


def is_shared(o: Op) -> TypeGuard[Alloc]:
    """Whether an op allocates a shared buffer."""
    return isinstance(o, Alloc) and o.type.space == "shared"


def beside(b: Builder, r: Region, space: str, name: str, dtype: DType | None = None) -> Region:
    """All of a new buffer with the extents of a region, named after its buffer."""
    made = BufferType(r.extents, dtype or r.dtype, space)
    return b.whole(b.value(Alloc, made, name=f"{r.buffer.name}_{name}"))


def part(b: Builder, r: Region, dim: int, start: Value | int, size: int) -> Region:
    """`size` elements of a region along one dimension, from `start` on."""
    if r.extents[dim] == size:
        return r
    start = start if isinstance(start, int) else b.cast(start, r.offsets[dim].dtype)
    return r.cut(dim, b.fold("add", r.offsets[dim], start), size)


def columns(b: Builder, r: Region, start: Value | int, size: int) -> Region:
    """`size` columns of a region, from `start` on."""
    return part(b, r, -1, start, size)


def copy_whole(b: Builder, source: Value, dest: Value, **how: Any) -> None:
    """A copy of one whole buffer onto another of the same shape; `how`: attributes of the copy."""
    b.emit(Copy, b.whole(source), b.whole(dest), **how)


def under(cond: Value, statements: Sequence[Op]) -> Op:
    """The ops where a condition holds."""
    b = Builder(statements[0].loc)
    b.branch(cond, statements)
    return b.ops[0]


def or_zeros(b: Builder, cond: Value, then: Builder, values: Sequence[Value]) -> tuple[Value, ...]:
    """What `then` makes where `cond` holds, `values`; elsewhere 0 for each."""
    then.emit(Yield, tuple(values))
    other = Builder(then.loc)
    other.emit(Yield, tuple(other.zero(v.dtype) for v in values))
    types = tuple(v.type for v in values)
    return b.emit(If, cond, then.block(), other.block(), types, loc=then.loc).results


def or_zero(cond: Value, o: Op) -> Op:
    """`o` where `cond` holds; elsewhere its results are 0."""
    results, b = fresh(o.results), Builder(o.loc)
    or_zeros(b, cond, Builder(o.loc, [replace(o, results=results)]), results)
    return replace(b.ops[0], results=o.results)


def iteration(o: For, index: Value, carried: Sequence[Value]) -> tuple[list[Op], tuple[Value, ...]]:
    """The ops of the loop's iteration at `index`, with fresh values, and what it hands on of what
    is `carried` in."""
    own: Substitution = dict(zip(o.body.args, (index, *carried)))
    ops = [x.clone(own) for x in o.body.statements]
    return ops, tuple(own.get(v, v) for v in yielded(o.body))


MOST_WRITTEN_OUT = 8
"""Iterations of a loop along what registers hold, each of which has code of its own."""


def may_be_written_out(o: For, known: Callable[[Value], Any]) -> bool:
    """Whether a loop's iterations may be written out, each of which then names its registers."""
    indices = o.indices(known) if o.kind in ("serial", "unroll") else None
    return indices is not None and len(indices) <= MOST_WRITTEN_OUT


def updated(o: AnyOp, **fields: Any) -> AnyOp:
    """`o` with these fields; `o` itself where they are what it has."""
    same = all(getattr(o, name) is value for name, value in fields.items())
    return o if same else altered(o, **fields)


def with_types(block: Block, types: Mapping[Value, BufferType]) -> Block:
    """`block` where buffers that it allocates have other types."""
    subst: Substitution = {v: Value(t, v.name) for v, t in types.items()}

    def visit(o: Alloc) -> None | Op:
        made = subst.get(o.result)
        return None if made is None else replace(o, type=made.buffer, results=(made,))

    return block.rewrite(Alloc, visit, subst) if types else block


def with_more(block: Block, more: Mapping[Value, Sequence[Value]]) -> Block:
    """`block` with more buffers, each behind the allocation of the one that it belongs to."""

    def visit(o: Alloc) -> list[Op]:
        own = more.get(o.result, ())
        return [o, *(replace(o, type=v.buffer, results=(v,)) for v in own)]

    return block.rewrite(Alloc, visit) if more else block


def read_packed(b: Builder, fragment: Value, registers: Iterable[Value], dtype: DType) -> Value:
    """Registers of a fragment, side by side in a vector if they are several, as `dtype`."""
    parts = tuple(b.value(RegRead, fragment, r) for r in registers)
    value = b.value(Pack, parts) if len(parts) > 1 else parts[0]
    return b.cast(value, dtype)


def load_registers(
    b: Builder, buffer: Value, offset: Value, width: int, fragment: Value, first: Value
) -> None:
    """Neighbours in shared memory to registers of a fragment, from number `first` on, converted."""
    loaded = b.value(MemLoad, buffer, offset, width, width * buffer.dtype.bits // 8)
    for q in range(width):
        value = b.cast(loaded if width == 1 else b.value(Extract, loaded, q), fragment.dtype)
        b.emit(RegWrite, fragment, b.fold("add", first, q), value)


def wait_for_blocks(
    b: Builder, atomic: Callable[[Builder, str, Value], Value], step: Value
) -> None:
    """Let one thread wait until all blocks have come: the steps that they add to a word make 2^31,
    so that its sign changes. `atomic`: an operation on that word. What is read of theirs stands
    behind a fence."""
    b.emit(DeviceFence)
    before = atomic(b, "add", step)
    zero, again, pause = b.const(0), Builder(b.loc), Builder(b.loc)
    changed = again.binary("xor", atomic(again, "or", zero), before)
    again.emit(Yield, (again.compare("ge", changed, zero),))
    pause.emit(Pause)
    pause.emit(Yield)
    b.emit(While, (), again.block(), pause.block())
