"""forward_copies: what is as well read where it was copied from is not copied.

Before: TILE; a condition around a copy of a loop with stages, or the place that it brings its tile
from, depends on an element of a shared buffer or a fragment that a copy has filled: a row of a
block mask, a page table, the indices of a gather. Or a kernel without products copies what all its
blocks read, the weights of a norm, to shared memory, and one loop reads each element there once.
After: such elements are loaded from the tensor itself: the copy of a loop with stages may run ahead
(`plan_pipeline`), by whichever warps; and the weights come from the first level of the cache, where
other blocks have left them, without a barrier. Only of tensors that the kernel writes nowhere,
where no two tensors may overlap; a buffer that nobody reads any longer is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeGuard

from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Region, Value, defining_ops, upstream, walk
from tilec.ir.dependence import LiveRange, live_ranges
from tilec.ir.effects import written_tensors
from tilec.ir.element_loops import element_indices
from tilec.ir.ops import (
    BlockIndex,
    Cast,
    Copy,
    For,
    Gemm,
    Load,
    Parallel,
    Store,
    WarpMma,
    decides,
)
from tilec.passes.plan_pipeline import has_stages
from tilec.passes.utils.dce import sweep
from tilec.passes.utils.rings import fills_tile
from tilec.target import Target


def forward_copies(func: Func, target: Target) -> Func:
    if func.attrs.get("may_alias"):
        return func
    made = defining_ops(func.body)
    behind = upstream(_asked(func.body), made)
    loads = {o for o in behind if isinstance(o, Load) and not _is_global(o.source)}
    once = {*_once(func.body)} - loads
    if not loads and not once:
        return func
    written = written_tensors(func.body)
    sources: dict[Load, Region] = {}
    for ranges in live_ranges(func.body, {o.source for o in loads | once}).values():
        for r in ranges if isinstance(ranges, list) else ():
            if _is_forwardable(r.fill, written):
                readers = {x for i in r.readers for x in walk(r.block.ops[i])}
                wanted = loads | once if _is_of_all_blocks(r, made) else loads
                of_this = {o for o in wanted & readers if o.source is r.fill.dest.buffer}
                sources |= dict.fromkeys(of_this, r.fill.source)
    if not sources:
        return func

    def visit(o: Load) -> None | list[Op]:
        if o not in sources:
            return None
        b = Builder(o.loc)
        shape = o.source.buffer.static_shape
        at = [v for v, n in zip(o.indices, shape) if n != 1] or o.indices[-1:]
        source = sources[o]
        element = b.value(Load, source.buffer, element_indices(b, source, at))
        if element.dtype != o.result.dtype:
            b.emit(Cast, element, o.result.dtype)
        *others, last = b.ops
        return [*others, replace(last, results=o.results)]

    return sweep(func.rewrite(Load, visit))


def _asked(
    block: Block, conditions: tuple[Value, ...] = (), staged: bool = False
) -> Iterator[Value]:
    """What must be known ahead of time: of the copies of loops with stages, and of loops over
    elements that gather a tile, where they read, and all conditions around, of which `conditions`
    are those around the block."""
    for o in block.ops:
        if staged and fills_tile(o):
            yield from (*o.source.offsets, *conditions)
        elif staged and isinstance(o, Parallel):
            inside = [*walk(o.body)]
            stores = [x for x in inside if isinstance(x, Store)]
            if stores and all(x.dest.buffer.space == "shared" for x in stores):
                places = (x.indices for x in inside if isinstance(x, Load) and _is_global(x.source))
                yield from (v for place in places for v in place)
                yield from conditions
        else:
            within = staged or (isinstance(o, For) and has_stages(o))
            for region in o.regions:
                yield from _asked(region, (*conditions, *decides(o)), within)


def _once(body: Block) -> Iterator[Load]:
    """Where a loop over the elements of a shared buffer reads each of them, and nothing else does;
    of a kernel without products, whose loops go over memory as it lies."""
    inside = [*walk(body)]
    if any(isinstance(o, Gemm | WarpMma) for o in inside):
        return
    readers = Counter(
        e.buffer for o in inside if not o.region_fields for e in o.effects() if e.reads
    )
    for loop in body.every(Parallel):
        args = [v for v, n in zip(loop.body.args, loop.extents) if n != 1]
        extents = [n for n in loop.extents if n != 1]
        for o in loop.body.ops:
            if isinstance(o, Load) and o.source.buffer.space == "shared" and readers[o.source] == 1:
                shape = o.source.buffer.static_shape
                at = [v for v, n in zip(o.indices, shape) if n != 1]
                if at == args and [n for n in shape if n != 1] == extents:
                    yield o


def _is_of_all_blocks(r: LiveRange, made: Mapping[Value, Op]) -> bool:
    """Whether a copy brings the same to all blocks, for loops over elements alone, and no loop with
    stages does it ahead."""
    if not isinstance(r.fill, Copy) or not all(
        isinstance(r.block.ops[i], Parallel) for i in r.readers
    ):
        return False
    around = [block.ops[i] for block, i in r.path[:-1]]
    if any(isinstance(o, For) and has_stages(o) for o in around):
        return False
    return all(
        o.pure and not isinstance(o, BlockIndex) for o in upstream(r.fill.source.offsets, made)
    )


def _is_forwardable(fill: Op, written: set[Value]) -> TypeGuard[Copy]:
    """Whether what an op leaves in a buffer is as well read where it took it from."""
    if not isinstance(fill, Copy) or not _is_global(fill.source.buffer):
        return False
    kinds = {fill.source.dtype, fill.dest.dtype}
    return fill.source.buffer not in written and (len(kinds) == 1 or all(d.is_int for d in kinds))


def _is_global(v: Value) -> bool:
    return v.buffer.space == "global"
