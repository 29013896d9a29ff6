"""split_sums: products whose instruction sums coarsely are added up in float32.

Before: `gemm` ops, some of which the user wrote with `fast_accum=False`. After: where the target
has an instruction for one of these whose running sum keeps fewer bits than C's dtype, its K is cut
into blocks of at most 128; each block's product goes into a fragment of its own, which an ordinary
loop adds to C. Any other product is left as it is.

Method: DeepSeek-V3 technical report (arXiv 2412.19437), section 3.3.2, "Increasing accumulation
precision"; 128 is the length from which the coarse sum is seen in the result."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Builder, Func, Op, Value, rewrite
from tilec.ir.instr import rows_of
from tilec.ir.ops import Alloc, Binary, Const, Gemm, Load, Parallel, Store
from tilec.ir.types import INT32, BufferType, ScalarType
from tilec.target import Target

BLOCK = 128  # elements of K in one coarse sum


def split_sums(func: Func, target: Target) -> Func:
    """See the module's opening."""

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, Gemm) or o.fast_accum:
            return None
        rows = rows_of(o.a.dtype, o.b.dtype, o.c.dtype)
        if not any(row.coarse_sum and target.has(row.feature) for row in rows):
            return None
        b = Builder(o.loc)
        k = o.shape[2]
        for start in range(0, k, BLOCK):
            part = _block(b, o, start, min(BLOCK, k - start))
            if o.clear and start == 0:
                b.ops.append(part)
            else:
                _add(b, part)
        return b.ops

    return func.with_body(rewrite(func.body, visit))


def _block(b: Builder, o: Gemm, start: int, size: int) -> Gemm:
    """The product over `size` steps of K from `start` on."""
    a_dim, b_dim = (-2 if o.transpose_a else -1), (-1 if o.transpose_b else -2)
    return replace(
        o,
        a_offsets=_moved(b, o.a_offsets, a_dim, start),
        a_extents=_cut(o.a_extents, a_dim, size),
        b_offsets=_moved(b, o.b_offsets, b_dim, start),
        b_extents=_cut(o.b_extents, b_dim, size),
        fast_accum=True,
    )


def _moved(b: Builder, offsets: tuple[Value, ...], dim: int, by: int) -> tuple[Value, ...]:
    if by == 0:
        return offsets
    at = len(offsets) + dim
    moved = b.value(Binary, "add", offsets[at], b.value(Const, by, offsets[at].dtype))
    return (*offsets[:at], moved, *offsets[at + 1 :])


def _cut(extents: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    at = len(extents) + dim
    return (*extents[:at], size, *extents[at + 1 :])


def _add(b: Builder, o: Gemm) -> None:
    """C += the product, by way of a fragment of its own."""
    shape = o.c.buffer.static_shape
    t = BufferType(shape, o.c.dtype, "fragment")
    part = b.value(Alloc, t, name=f"{o.c.name}_part")
    b.ops.append(replace(o, c=part, clear=True))
    at = tuple(Value(ScalarType(INT32), f"i{d}") for d in range(len(shape)))
    inner = Builder(o.loc)
    total = inner.value(Binary, "add", inner.value(Load, o.c, at), inner.value(Load, part, at))
    inner.emit(Store, o.c, at, total)
    b.emit(Parallel, shape, inner.block(at))
