"""turn_tensors: a transposed view of an array is taken as the array lies.

Before: TILE, views resolved; the elements of a tensor's rows are apart in memory, but those along
another dimension are neighbours, as in `w.T`. After: the tensor has that dimension last, and so
have the tiles that it is copied to; who reads these has their indices exchanged, and a product the
other `transpose`:

    W: N x K, strides=[1, s]                       W: K x N, strides=[s, 1]
    copy W[n, k] (64, 32), w (64x32)         ->    copy W[k, n] (32, 64), w (32x64)
    gemm x, w, acc, transpose_b=true               gemm x, w, acc

To all passes behind it the program is one for the array itself: TMA and vectors bring its tiles.
`turned` says which dimensions of the argument the tensor's are. A copy between what is turned and
what is not is a loop over elements. A tile that cannot be turned, for a layout that was asked for,
say, or of bytes, which instructions read along K alone, keeps its tensors as they are: threads
bring it element by element, or the launch turns them (`jit/packing.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.core import Func, Op, Region, Value, with_boxes
from tilec.ir.element_loops import ELEMENTWISE, boxes, in_turn, is_private, loop_of
from tilec.ir.types import BufferType, rows_along
from tilec.ir.uniformity import uniformity_of
from tilec.passes.utils.building import with_types
from tilec.target import Target

Order = tuple[int, ...]  # of what a buffer's dimensions were before, which of them is where now
Orders = Mapping[Value, Order]


def turn_tensors(func: Func, target: Target) -> Func:
    if target.kind == "cpu":
        return func
    tensors = {p.value: order for p in func.params if (order := _along_rows(p.value.type))}
    orders = _agreed(func, tensors) if tensors else {}
    if not orders:
        return func
    made = {v: Value(_turned(v.buffer, orders[v]), v.name) for v in tensors if v in orders}
    tiles = {v: _turned(v.buffer, order) for v, order in orders.items() if v not in made}
    found = {made.get(v, v): order for v, order in orders.items()}
    uniformity = uniformity_of(func)

    def in_loops(o: Op) -> None | list[Op]:
        if type(o) not in ELEMENTWISE or len({_sense(r, orders) for r in boxes(o)}) == 1:
            return None
        return in_turn(loop_of(o)) if is_private(o, uniformity) else [loop_of(o)]

    body = func.body.rewrite(Op, in_loops)
    body = with_types(body.rewrite(Op, lambda o: _exchanged(o, found), {**made}), tiles)
    params = tuple(replace(p, value=made.get(p.value, p.value)) for p in func.params)
    turned = tuple((p.arg, tensors[p.value]) for p in func.params if p.value in orders)
    return replace(func, params=params, body=body).with_attrs(turned=turned)


def _along_rows(t: object) -> Order | None:
    """The order of a tensor's dimensions in which the last one has neighbours; None where it has
    them already, or none has."""
    if not isinstance(t, BufferType) or t.strides is None:
        return None
    d = rows_along(t.strides)
    return None if d == t.rank - 1 else (*(e for e in range(t.rank) if e != d), d)


def _turned(t: BufferType, order: Order) -> BufferType:
    strides = None if t.strides is None else tuple(t.strides[d] for d in order)
    return replace(t, shape=tuple(t.shape[d] for d in order), strides=strides)


def _sense(r: Region, orders: Orders) -> Order:
    """In which order the dimensions of a box that are not 1 come to lie, by their numbers."""
    order = orders.get(r.buffer, range(len(r.extents)))
    wide = [d for d in order if r.extents[d] != 1]
    return tuple(sorted(wide).index(d) for d in wide)


def _agreed(func: Func, tensors: Orders) -> dict[Value, Order]:
    """Those of `tensors` that can be turned, and the tiles that are turned with them."""
    users = func.body.users
    allocs = {o.result for o in func.body.every(ops.Alloc)}
    copies = [o for o in func.body.every(ops.Copy) if o.source.type.space == "global"]
    kept = {v: e for v, e in tensors.items() if all(_may_turn(o, v, e) for o in users.get(v, ()))}
    while kept:
        wanted: dict[Value, set[Order]] = {}
        for o in copies:
            if o.dest.type.space != "global":
                wanted.setdefault(o.dest.buffer, set()).add(_wanted(o, kept))
        tiles = {v: e.pop() for v, e in wanted.items() if len(e) == 1}
        tiles = {v: e for v, e in tiles.items() if v in allocs or e == tuple(range(len(e)))}
        tiles = {v: e for v, e in tiles.items() if all(_may_turn(o, v, e) for o in users[v])}
        left = {o.source.buffer for o in copies if o.dest.buffer in wanted.keys() - tiles.keys()}
        if left.isdisjoint(kept):
            found = {v: e for v, e in tiles.items() if e != tuple(range(len(e)))}
            return {**kept, **found}
        kept = {v: e for v, e in kept.items() if v not in left}
    return {}


def _wanted(o: ops.Copy, orders: Orders) -> Order:
    """The order of the dimensions of a copy's tile in which it takes what comes as it lies."""
    wide = [d for d, e in enumerate(o.dest.extents) if e != 1]
    found = [*range(len(o.dest.extents))]
    for d, place in zip(wide, _sense(o.source, orders)):
        found[d] = wide[place]
    return tuple(found)


def _may_turn(o: Op, v: Value, order: Order) -> bool:
    """Whether an op that uses a buffer can use it with its dimensions in another order."""
    if order == tuple(range(len(order))):
        return True
    match o:
        case ops.Load() | ops.Store() | ops.Atomic() | ops.AnnotateSafeValue():
            return True
        case ops.Gemm():
            last = len(order) - 2
            swapped = order == (*range(last), last + 1, last) and v.dtype.bits > 8
            return swapped and v.space == "shared" and o.metadata is None
        case ops.Reduce():
            others = [d for d in order if d != o.dim]
            return o.dest.buffer is not v and others == sorted(others)
    return type(o) in ELEMENTWISE


def _exchanged(o: Op, orders: Orders) -> Op | None:
    """`o` with indices and boxes in the new orders."""

    def turned(r: Region) -> Region:
        order = orders.get(r.buffer)
        if order is None or not r.extents:
            return r
        offsets = tuple(r.offsets[d] for d in order)
        return Region(r.buffer, offsets, tuple(r.extents[d] for d in order))

    if isinstance(o, ops.ElementAccess):
        order = orders.get(o.buffer, ())
        return o.at(o.buffer, tuple(o.indices[d] for d in order)) if order else None
    if isinstance(o, ops.Gemm):
        a, b = (r.buffer in orders for r in (o.a, o.b))
        o = replace(o, transpose_a=o.transpose_a != a, transpose_b=o.transpose_b != b)
    elif isinstance(o, ops.Reduce) and o.source.buffer in orders:
        o = replace(o, dim=orders[o.source.buffer].index(o.dim))
    return with_boxes(o, turned)
