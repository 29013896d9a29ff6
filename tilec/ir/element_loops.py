"""Tile ops as loops over elements: one lowering for every target.

A class of tile ops that does one thing to each element of its regions says here what that is, by a
function decorated with `elementwise`. Nothing else is needed to compile it: a GPU's passes make the
loop once layouts are decided, in the layout of the fragment that takes part or else coalesced
(`lower_copies`), the CPU's make it at once (`lower_tiles`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilec.ir.builder import Builder
from tilec.ir.core import Block, Op, Region, Value, squeeze
from tilec.ir.errors import InternalError
from tilec.ir.layout import Layout
from tilec.ir.ops import Atomic, AtomicTile, Copy, Fill, For, Load, Parallel, Store, Yield
from tilec.ir.types import INT32, DType, ScalarType
from tilec.ir.uniformity import Level, Uniformity


def shifted(b: Builder, offset: Value, index: Value) -> Value:
    """`offset + index`, in the dtype of the offset."""
    return b.binary("add", offset, b.cast(index, offset.dtype))


class Iteration:
    """One iteration of an op's loop: `b` collects what it does, `args` are the loop's indices, one
    for each dimension of its regions that is not 1 (one of them at least)."""

    def __init__(self, b: Builder, args: Sequence[Value]) -> None:
        self.b = b
        self.args = tuple(args)

    def indices(self, r: Region) -> tuple[Value, ...]:
        """Where this iteration's element of a region is in its buffer."""
        return element_indices(self.b, r, self.args)

    def load(self, r: Region) -> Value:
        """This iteration's element of a region."""
        return self.b.value(Load, r.buffer, self.indices(r))

    def store(self, r: Region, value: Value) -> None:
        """Write this iteration's element of a region, converted to the buffer's dtype."""
        indices = self.indices(r)
        self.b.emit(Store, r.buffer, indices, self.cast(value, r.dtype))

    def cast(self, value: Value, dtype: DType) -> Value:
        return self.b.cast(value, dtype)


Element = Callable[[Iteration, Any], None]
ELEMENTWISE: dict[type[Op], Element] = {}


def elementwise(cls: type[Op]) -> Callable[[Element], Element]:
    """The decorated function emits what an op of class `cls` does to one element. All regions in
    the op's effects are boxes of one shape, that of the first one written."""

    def register(element: Element) -> Element:
        ELEMENTWISE[cls] = element
        return element

    return register


@elementwise(Copy)
def _copy(it: Iteration, o: Copy) -> None:
    source, dest = it.indices(o.source), it.indices(o.dest)
    value = it.cast(it.b.value(Load, o.source.buffer, source), o.dest.dtype)
    it.b.emit(Store, o.dest.buffer, dest, value)


@elementwise(AtomicTile)
def _atomic(it: Iteration, o: AtomicTile) -> None:
    value = it.cast(it.load(o.source), o.dest.dtype)
    it.b.emit(Atomic, o.dest.buffer, it.indices(o.dest), value, o.kind)


@elementwise(Fill)
def _fill(it: Iteration, o: Fill) -> None:
    it.store(o.dest, o.value)


def boxes(o: Op) -> list[Region]:
    """The regions that `o` accesses, those written first."""
    effects = [e for e in o.effects() if e.region is not None and e.region.extents]
    effects.sort(key=lambda e: not e.writes)
    return [e.region for e in effects if e.region is not None]


def loop_of(o: Op, layout: Layout | None = None, engine: str = "", width: int = 0) -> Parallel:
    """The loop that does what an elementwise op does; `width`: its `coalesced_width`."""
    regions = boxes(o)
    extents = regions[0].shape or (1,)
    if any((r.shape or (1,)) != extents for r in regions):
        raise InternalError(f"{o.opname} of regions of other shapes than {extents}", o.loc)
    args = tuple(Value(ScalarType(INT32), f"i{d}") for d in range(len(extents)))
    b = Builder(o.loc)
    ELEMENTWISE[type(o)](Iteration(b, args), o)
    cache = o.eviction_policy if isinstance(o, Copy) else ""
    return Parallel(extents, b.block(args), width, layout, engine, cache=cache, loc=o.loc)


def in_turn(loop: Parallel) -> list[Op]:
    """The iterations of a loop one after the other, as a thread does them for itself."""
    ops = tuple(o for o in loop.body.ops if not isinstance(o, Yield))
    for arg, extent in reversed([*zip(loop.body.args, loop.extents)]):
        b = Builder(loop.loc)
        zero, count, one = (b.const(n) for n in (0, extent, 1))
        b.emit(For, "serial", zero, count, one, (), Block((arg,), (*ops, Yield(loc=loop.loc))))
        ops = b.block().ops
    return [*ops]


def is_private(o: Op, uniformity: Uniformity) -> bool:
    """Whether each thread does it for itself, with variables (`local`) of its own. What must not be
    repeated and is the same for all threads is done once."""
    spaces = {r.type.space for r in boxes(o)}
    if "local" not in spaces or "fragment" in spaces:
        return False
    once = any(e.is_once for e in o.effects())
    return not once or any(uniformity.level(v) > Level.BLOCK for v in o.operands)


def is_part_of_fragment(r: Region) -> bool:
    """Whether it is some, but not all, of a fragment."""
    t = r.type
    return t.space == "fragment" and r.shape != squeeze(t.static_shape)


def element_indices(b: Builder, r: Region, args: Sequence[Value]) -> tuple[Value, ...]:
    """The buffer's indices for the loop's: dimensions of extent 1 keep their offset. Those of a
    whole fragment are the loop's own, zeros where its extent is 1."""
    own = _own(r.extents, args)
    if r.type.space == "fragment" and not is_part_of_fragment(r):
        return tuple(b.const(0) if a is None else a for a in own)
    return tuple(v if arg is None else shifted(b, v, arg) for v, arg in zip(r.offsets, own))


def _own(extents: Sequence[int], args: Sequence[Value]) -> list[Value | None]:
    """For each dimension its index of the loop; None where the extent is 1 and others are not. A
    region of one element has one index, that of its last dimension."""
    if not squeeze(extents):
        return [None] * (len(extents) - 1) + [args[0]]
    left = iter(args)
    return [None if e == 1 else next(left) for e in extents]
