"""split_operands: products of float32 numbers by narrow ones are sums of three of TF32.

Before and after: TILE, as traced, so that plans are chosen for what the products are. A product of
float32 is multiply-adds in every thread, but where the numbers of one operand are of float16 or
bfloat16, though its tile is of float32,

    gemm a, b, acc             b: what a cast has made of float16

TF32 holds these, and three numbers of TF32, of eleven bits each, are one of float32:

    upper = the upper eleven bits of a;     rest = a - upper;     gemm upper, b, acc (TF32)
    upper = the upper eleven bits of rest;  rest = rest - upper;  gemm upper, b, acc (TF32)
    upper = rest;                                                 gemm upper, b, acc (TF32)

All products are exact, and their sum is float32's as before, but tensor cores compute it. Of what
is infinite nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.clusters import threads_of
from tilec.ir.core import Func, Op, Region
from tilec.ir.types import FLOAT32, UINT32
from tilec.passes.narrow_operands import held_narrow
from tilec.passes.utils.building import beside
from tilec.target import Target

UPPER = 0xFFFFE000  # sign, exponent and the ten bits of a TF32
MOST_REGISTERS = 128  # of a thread, which warps that share rows hold twice
MAGNITUDE, INFINITE = 0x7FFFFFFF, 0x7F800000


def split_operands(func: Func, target: Target) -> Func:
    """Where tiles fit an instruction, and pieces a block."""
    products = [o for o in func.body.every(ops.Gemm) if _is_wide(o)]
    narrow = held_narrow(func) if products else set()
    split = [o for o in products if (o.a.buffer in narrow) != (o.b.buffer in narrow)]
    pieces = [o.b if o.a.buffer in narrow else o.a for o in split]
    if not split or not _fit(func, pieces, target):
        return func
    return func.with_body(
        func.body.rewrite(
            ops.Gemm, lambda o: _split(o, o.b.buffer in narrow) if o in split else None
        )
    )


def _is_wide(o: ops.Gemm) -> bool:
    plain = not (o.clear or o.accumulate or o.metadata or o.asynchronous or o.allow_tf32)
    m, n, k = o.shape
    plain = plain and m % 16 == n % 16 == k % 8 == 0
    return plain and {o.a.dtype, o.b.dtype, o.c.dtype} == {FLOAT32}


def _fit(func: Func, pieces: Sequence[Region], target: Target) -> bool:
    """Whether two more tiles of these, one after the other, fit beside all that there is."""
    stages = max([2, *(o.num_stages for o in func.body.every(ops.For))])
    shared = [o.type for o in func.body.every(ops.Alloc) if o.type.space == "shared"]
    own = [(r.buffer.buffer.space, prod(r.extents)) for r in pieces]
    room = (
        target.shared_bytes - stages * sum(prod(t.static_shape) * t.dtype.bits for t in shared) // 8
    )
    words = max((size for space, size in own if space == "fragment"), default=0)
    fits = 8 * sum(size for space, size in own if space == "shared") <= room
    return fits and 4 * words <= MOST_REGISTERS * threads_of(func)


def _split(o: ops.Gemm, left: bool) -> list[Op]:
    """The products, of one tile for all pieces of A, or B; `left`: of A."""
    b = Builder(o.loc)
    wide = o.a if left else o.b
    upper, rest = (beside(b, wide, wide.buffer.buffer.space, name) for name in ("upper", "rest"))
    for source in (wide, rest, None):
        _take(b, source or rest, upper, None if source is None else rest, source is wide)
        piece = replace(o, a=upper) if left else replace(o, b=upper)
        b.ops.append(replace(piece, allow_tf32=True))
    return b.ops


def _take(b: Builder, source: Region, upper: Region, rest: Region | None, first: bool) -> None:
    """The upper bits of elements, and what is left of these; all of them where there is no `rest`.
    `first`: they may be infinite."""
    with b.each_element(source.extents) as (inner, indices):
        at = tuple(inner.fold("add", x, i) for x, i in zip(source.offsets, indices))
        x = kept = inner.value(ops.Load, source.buffer, at)
        if rest is not None:
            bits = inner.value(ops.Bitcast, x, UINT32)
            kept = inner.binary("and", bits, inner.const(UPPER, UINT32))
            kept = inner.value(ops.Bitcast, kept, FLOAT32)
            left = inner.binary("sub", x, kept)
            if first:
                magnitude = inner.binary("and", bits, inner.const(MAGNITUDE, UINT32))
                infinite = inner.compare("eq", magnitude, inner.const(INFINITE, UINT32))
                left = inner.select(infinite, inner.const(0.0, FLOAT32), left)
            inner.emit(ops.Store, rest.buffer, indices, left)
        inner.emit(ops.Store, upper.buffer, indices, kept)
