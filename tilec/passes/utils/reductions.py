"""How the layout of a fragment says who combines what in a reduction.

A digit of the source's layout that steps along the reduced dimension tells where its elements are:
in registers of one thread, in lanes of one warp (which exchange by shuffles), or in several warps
(which meet in shared memory). What is left of the layout without the dimension is the result's:
whoever took part has it, so that loops over both need no exchange."""

from __future__ import annotations

from math import prod

from tilec.ir.builder import Builder
from tilec.ir.core import Op, Value
from tilec.ir.errors import LayoutError
from tilec.ir.layout import Digit, Layout, blocked
from tilec.ir.ops import Alloc, Reduce, Unary, View
from tilec.ir.types import BufferType, DType

MANY = 32
"""Elements that a thread reads of others' parts, for which it is worth to meet once more."""
SHARED = 4
"""How many threads have a result then."""


def result_layout(layout: Layout, o: Reduce) -> Layout | None:
    """Where the threads have the result of combining a fragment of `layout`; None if its digits do
    not tell dimensions apart."""
    if any(d.step[o.dim] and sum(map(bool, d.step)) > 1 for d in layout.digits):
        return None
    try:
        return layout.drop(o.dim).once("reg").reshape(o.dest.type.static_shape)
    except LayoutError:
        return None


def warps_along(layout: Layout, dim: int) -> int:
    """How many warps hold the elements along `dim`."""
    parts = 1
    for d, _ in layout.of("warp"):
        parts *= d.radix if d.step[dim] else 1
    return parts


def part_layout(layout: Layout, dim: int) -> Layout:
    """The layout of what each warp knows: a leading dimension counts the warps along `dim`, the
    others are those that are left."""
    digits, part = [], 1
    for d in layout.digits:
        kept = d.step[:dim] + d.step[dim + 1 :]
        if d.owner == "warp" and d.step[dim]:
            digits.append(Digit("warp", d.radix, (part, *kept)))
            part *= d.radix
        else:
            digits.append(Digit(d.owner, d.radix, (0, *kept)))
    shape = layout.shape[:dim] + layout.shape[dim + 1 :]
    return Layout((part, *shape), tuple(digits)).once("reg")


def combined_layout(result: Layout, parts: int) -> Layout:
    """The layout of all parts, each thread holding those of its own elements of `result`."""
    digits = [Digit(d.owner, d.radix, (0, *d.step)) for d in result.digits]
    every = Digit("reg", parts, (1, *(0 for _ in result.shape)))
    return Layout((parts, *result.shape), (*digits, every))


def few_each(result: Layout, parts: int) -> Layout | None:
    """Where threads that read `parts` of `MANY` results each, or more, which several of them have,
    would have a few each; None where they read few, or have their results for themselves."""
    lanes, warps = result.size("lane"), result.size("warp")
    each = result.size("reg")
    if parts * each < MANY or each * lanes * warps < SHARED * prod(result.shape):
        return None
    return blocked(result.shape, lanes, warps, 1)


def combine(b: Builder, o: Reduce, x: Value, y: Value) -> Value:
    """Two values of `o.accumulator` as one."""
    found = b.binary(o.combine, x, y)
    if o.propagate_nan and x.dtype.is_float:
        for v in (x, y):
            found = b.select(b.compare("ne", v, v), v, found)
    return found


def taken(b: Builder, o: Reduce, x: Value) -> Value:
    """An element as it takes part."""
    x = b.cast(x, o.accumulator)
    return b.value(Unary, "abs", x) if o.kind.startswith("abs") else x


def neutral(b: Builder, o: Reduce, dtype: DType) -> Value:
    """What changes no result of `o`, as an element of `dtype`, once it is cast to the dtype that
    results are combined in."""
    low: float | int = -float("inf") if dtype.is_float else 0
    high: float | int = float("inf") if dtype.is_float else -1
    if dtype.kind == "int":
        low, high = -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    if dtype.kind == "int" and o.accumulator.kind == "uint":
        low, high = 0, -1  # which is the largest there
    value = {"max": low, "min": high, "bitand": -1, "prod": 1}.get(o.kind, 0)
    return b.const(value, dtype)


# --- views that join rows ---
#
# A dimension of a fragment's view may count through several of the fragment's: of (64, 128) as
# (16, 512), whose rows are four of the fragment's. What the fragment's rows combine to comes first
# and is small; the view is one of that.


def in_steps(o: Reduce, root: Value) -> list[Op] | None:
    """A reduction of a view of the fragment `root` as reductions of the fragment, and of a view of
    what they give; None where it is no such reduction."""
    view, t = o.source.buffer.buffer, root.buffer
    last = view.rank - 1
    if t.space != "fragment" or t.dtype is not view.dtype or o.dim != last or o.parts != 1:
        return None
    if not o.source.is_whole:
        return None
    shape, extent = t.static_shape, view.static_shape[last]
    for kept in range(1, t.rank):
        rows, left = divmod(extent, prod(shape[kept:]))
        if rows and not left and shape[kept - 1] % rows == 0:
            break
    else:
        return None
    b = Builder(o.loc)
    source = b.whole(root)
    for dim in reversed(range(kept, t.rank)):
        space = "fragment" if dim > kept else "shared"  # whose rows others read
        rest = BufferType(shape[:dim], o.accumulator, space)
        made = b.value(Alloc, rest, name=f"{root.name}_rows")
        b.emit(Reduce, source, b.whole(made), dim, o.kind, propagate_nan=o.propagate_nan)
        source = b.whole(made)
    few = BufferType((*view.static_shape[:last], rows), o.accumulator, "shared")
    found = b.value(View, source.buffer, few, name=f"{root.name}_rows")
    b.emit(Reduce, b.whole(found), o.dest, last, o.kind, o.clear, o.propagate_nan)
    return b.ops
