"""Short vectors while a kernel is traced: several numbers, computed lane by lane.

There are no vectors in the IR: LLVM puts neighbouring accesses and arithmetic together where the
target has an instruction for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

from tilec.builtins.lanes import MOST_LANES
from tilec.frontend.memory import Memory, SliceIndex
from tilec.frontend.values import Buffer, Lanes, Number, Region, Scalar, describe


def numbers_of(t: Memory, lanes: Lanes) -> list[Number]:
    """The lanes as numbers: elements and variables are read."""
    return [t.number(x, "a lane") for x in lanes.items]


def lanewise(t: Memory, compute: Callable[..., Number], *values: object) -> Lanes:
    """`compute` of each lane; a number counts for every lane. Raises CompileError where the lanes
    are not as many."""
    vectors = [v for v in values if isinstance(v, Lanes)]
    count = len(vectors[0].items)
    if any(len(v.items) != count for v in vectors):
        shown = " and ".join(describe(v) for v in vectors)
        hint = "give them as many lanes, or broadcast a number: T.Broadcast(x, lanes)"
        raise t.error(f"{shown} have no lanes in common", hint)
    columns = [
        numbers_of(t, v) if isinstance(v, Lanes) else [t.number(v, "this operand")] * count
        for v in values
    ]
    return Lanes(tuple(compute(*row) for row in zip(*columns)))


def lanes_at(t: Memory, buffer: Buffer, items: Sequence[Number | SliceIndex | Lanes]) -> Lanes:
    """The elements that an index with vectors among the indices names, one a lane."""
    vectors = [x for x in items if isinstance(x, Lanes)]
    count = len(vectors[0].items)
    if any(isinstance(x, SliceIndex) for x in items) or any(len(v.items) != count for v in vectors):
        message = f"the indices into {describe(buffer)} are vectors beside slices or other vectors"
        raise t.error(message, "write numbers beside one T.Ramp, or vectors of as many lanes")
    found = []
    for n in range(count):
        at = [_from_the_end(t, buffer, d, t.index_number(t.number(x.items[n], "an index")))
              if isinstance(x, Lanes) else x for d, x in enumerate(items)]  # fmt: skip
        found.append(t.subscript(buffer, list(at)))
    return Lanes(tuple(found))


def _from_the_end(t: Memory, buffer: Buffer, dim: int, index: int | Scalar) -> Number:
    """The index of a lane, to which the extent is added where it may be and is below 0: of lanes
    some may be negative at compile time, and all count alike."""
    lowest = t.reach_of(index).lo
    if not isinstance(index, Scalar) or (lowest is not None and lowest >= 0):
        return index
    below = t.run_time(t.compare("lt", index, 0))
    return t.select(below, t.binary("add", index, buffer.shape[dim]), index)


def elements_of(t: Memory, tile: Region, count: int) -> list[Region]:
    """The elements of a slice, row by row, as many as a vector has lanes."""
    extents = [1 if e is None else e for e in tile.extents]
    size = prod(extents)
    if size != count:
        hint = "name as many elements: A[i:i + n]"
        raise t.error(f"{describe(tile)} has {size} elements, the vector {count} lanes", hint)
    if size > MOST_LANES:
        raise t.error(f"{describe(tile)} is no short vector", "copy a tile with T.copy(src, dst)")
    found = []
    for steps in product(*map(range, extents)):
        apart = [s * tile.steps.get(d, 1) for d, s in enumerate(steps)]
        offsets = [t.index_number(t.binary("add", o, s)) for o, s in zip(tile.offsets, apart)]
        found.append(t.element(tile.buffer, offsets, tile.loc))
    return found
