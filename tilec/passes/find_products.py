"""find_products: loops over elements that add up products of two tiles are a product of tiles.

Before: TILE, views resolved. A loop over k around one over the elements of a fragment, or inside of
it, adds what two shared tiles have at k:

    for kk in 0..32 { parallel (64, 64) { acc[i, j] += f32(a[i, kk]) * f32(b[kk, j]) } }

After: `gemm a, b, acc`, of which passes know more: matrix instructions do it where dtypes let them,
else threads, who read each operand once for all that they multiply it with, in the same order. The
products are exact in the sum's dtype, or they are the same that threads compute.

Only where all threads of the block come, nothing is ordered by hand, and all else that touches the
fragment is what a product's result allows."""

from __future__ import annotations

from typing import NamedTuple

from tilec.ir import ops
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Region, Value, walk, within
from tilec.ir.types import FLOAT32, FLOAT64, INT32, DType
from tilec.passes.utils.accesses import fragment_accesses, only_store
from tilec.target import Target

_EXACT = {  # dtypes of operands whose products are, or are rounded, the sum's
    FLOAT32: {"float16", "bfloat16", "float32"},
    FLOAT64: {"float64"},
    INT32: {"int8", "uint8"},
}
LEAST = 8  # rows and columns


class _Factor(NamedTuple):
    """An operand of a product: the tile, and its element's indices."""

    tile: Value
    indices: tuple[Value, ...]


def find_products(func: Func, target: Target) -> Func:
    loops = [o for o in func.body.every(ops.For) if o.kind in ("serial", "unroll")]
    if target.kind == "cpu" or not loops or not func.body.has(ops.Parallel):
        return func
    if ops.is_by_hand(func.body):
        return func
    facts, users = facts_of(func), func.body.users
    # What all threads of a block come to.
    everywhere = {o for o, x in within(func.body) if all(isinstance(y, ops.For) for y in x)}
    whole = {a.op for p in func.body.every(ops.Parallel) for a in fragment_accesses(p)}
    fused = func.attrs.get("fp_fusion", True)

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, ops.For | ops.Parallel) or o not in everywhere:
            return None
        found = _sum_of_products(o, facts)
        if found is None or not isinstance(product := found[-1], ops.Gemm):
            return None
        others = {*users[product.c]} - {*walk(o)} - whole
        plain = all(_takes_boxes(x, product.c) for x in others)
        exact = fused or product.a.dtype is not product.c.dtype
        return found if plain and exact else None

    return func.rewrite(Op, visit)


def _takes_boxes(o: Op, v: Value) -> bool:
    """Whether an op accesses boxes of `v`, as tile ops do, and says nothing of its layout."""
    own = [e.reads or e.writes for e in o.effects() if e.buffer is v]
    return bool(own) and all(own) and not isinstance(o, ops.ElementAccess)


def _sum_of_products(o: ops.For | ops.Parallel, facts: Facts) -> list[Op] | None:
    """The product that two loops are, behind what its offsets are computed from."""
    inner = [x for x in o.body.statements if x.regions]
    if len(inner) != 1 or not all(x.pure for x in o.body.statements if not x.regions):
        return None
    loops = (o, inner[0])
    loop = next((x for x in loops if isinstance(x, ops.For)), None)
    p = next((x for x in loops if isinstance(x, ops.Parallel)), None)
    if loop is None or p is None or loop.inits or len(p.extents) != 2:
        return None
    k, step, first = (facts.constant(v) for v in (loop.hi, loop.step, loop.lo))
    if k is None or k < 1 or (step, first) != (1, 0) or p.engine:
        return None
    if p.layout is not None or p.wanted is not None:
        return None
    body = inner[0].regions[0]
    store = only_store(body)
    return None if store is None else _product(store, body, p, loop.body.args[0], k)


def _product(
    store: ops.Store, body: Block, p: ops.Parallel, index: Value, k: int
) -> list[Op] | None:
    made, c, at = body.makers, store.dest, store.indices
    sizes = dict(zip(p.body.args, p.extents))
    shape = tuple(sizes.get(v, 0) for v in at)
    if c.space != "fragment" or {*at} != {*sizes} or shape != c.buffer.static_shape:
        return None
    total = made.get(store.value)
    parts = [made.get(v) for v in total.operands] if isinstance(total, ops.Binary) else []
    old = [x for x in parts if isinstance(x, ops.Load) and x.source is c and x.indices == at]
    products = [x for x in parts if isinstance(x, ops.Binary) and x.kind == "mul"]
    sums = isinstance(total, ops.Binary) and total.kind == "add"
    if not sums or len(old) != 1 or len(products) != 1 or min(shape) < LEAST:
        return None
    factors = [_factor(v, made, c.dtype) for v in products[0].operands]
    loads = [x for x in body.statements if isinstance(x, ops.Load)]
    if None in factors or len(loads) != 3:
        return None
    for a, b in (factors, factors[::-1]):
        assert a is not None and b is not None
        if a.tile.dtype != b.tile.dtype or c in (a.tile, b.tile):
            return None
        if {*a.indices[-2:]} == {at[0], index} and {*b.indices[-2:]} == {index, at[1]}:
            b_ = Builder(store.loc)
            left = _region(b_, a, {at[0]: shape[0], index: k}, body, p)
            right = _region(b_, b, {at[1]: shape[1], index: k}, body, p)
            if left is None or right is None:
                return None
            turned = a.indices[-2:] == (index, at[0]), b.indices[-2:] == (at[1], index)
            b_.emit(ops.Gemm, left, right, c, None, None, *turned)
            return b_.ops
    return None


def _factor(v: Value, made: dict[Value, Op], dtype: DType) -> _Factor | None:
    """What a factor is an element of, cast to the dtype of the sum."""
    o = made.get(v)
    if v.dtype is not dtype:
        return None
    if isinstance(o, ops.Cast):
        o = made.get(o.operand)
    known = isinstance(o, ops.Load) and o.source.dtype.name in _EXACT.get(dtype, ())
    if not isinstance(o, ops.Load) or not known or o.source.space != "shared":
        return None
    return _Factor(o.source, o.indices)


def _region(
    b: Builder, x: _Factor, extents: dict[Value, int], body: Block, p: ops.Parallel
) -> Region | None:
    """The part of a tile that the loops go over, where its place is the same in all iterations."""
    *outer, _, _ = x.indices
    inside = {*extents, *p.body.args, *body.makers, *body.args, *p.body.makers}
    own = tuple(extents[v] for v in x.indices[-2:])
    shape = x.tile.buffer.static_shape[-2:]
    if not inside.isdisjoint(outer) or any(n > e for n, e in zip(own, shape)):
        return None
    zeros = tuple(b.const(0, v.dtype) for v in x.indices[-2:])
    return Region(x.tile, (*outer, *zeros), (*(1 for _ in outer), *own))
