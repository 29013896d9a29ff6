"""stage_stores: the shared memory that a fragment goes through on its way out by TMA.

Before: copies with the agent "tma_store" have no staging. After: each has a shared buffer with one
chunk of 16 rows for every warp, swizzled as its TMA box reads it; `plan_shared` places it like any
other."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Builder, Func, Op, rewrite
from tilec.ir.layout import swizzled
from tilec.ir.ops import Alloc, Copy
from tilec.ir.types import BufferType
from tilec.passes.select_copies import store_atoms
from tilec.target import Target

ROWS = 16  # of a chunk: what one warp's stmatrix writes


def stage_stores(func: Func, target: Target) -> Func:
    """Give every "tma_store" copy its staging buffer: one chunk for each warp."""
    warps = int(func.attrs["threads"]) // target.warp_size

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, Copy) or o.agent != "tma_store":
            return None
        b = Builder(o.loc)
        columns = chunk_columns(o)
        shape = (warps * ROWS, columns)
        bits = o.dest.dtype.bits
        layout = swizzled(shape, bits, columns * bits // 8)
        t = BufferType(shape, o.dest.dtype, "shared", layout=layout)
        staging = b.value(Alloc, t, name=f"{o.dest.name}_staging")
        return [*b.ops, replace(o, staging=staging)]

    return func.with_body(rewrite(func.body, visit))


def chunk_columns(o: Copy) -> int:
    """Columns of a chunk: as many as one swizzled row of 128, 64 or 32 bytes holds and the warp's
    share divides into."""
    assert o.source.buffer.layout is not None
    found = store_atoms(o.source.buffer.layout)
    assert found is not None
    columns = 8 * found[1]
    width = 128 * 8 // o.dest.dtype.bits
    while columns % width:
        width //= 2
    return width
