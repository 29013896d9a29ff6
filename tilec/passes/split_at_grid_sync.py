"""split_at_grid_sync: of a kernel that meets as a grid, the launch that is meant.

Before: `grid_sync` ops; attribute `segment` where some stand at the top level of the body, each of
which may begin a launch of its own. After: none, and what the launch does are the ops between two
of them. What stands before is done again as far as it only computes: arithmetic, elements of
tensors that the kernel does not write, variables of these.

    i = block 0; fill B; grid_sync; copy B, C      segment 1:  i = block 0; copy B, C

Launches have grids of any size, and every target has them. Where they cannot do it, because a
`grid_sync` stands in a loop or a condition, or because a block keeps on chip what it has made, or
has computed of what the kernel writes, they stay (`expand_grid_sync`): the first launch is all of
the kernel, and the others have no blocks."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Value, made_in, walk
from tilec.ir.effects import buffers_read, buffers_written, changing_tensors, is_clonable
from tilec.ir.ops import GridSync, Yield, constants
from tilec.ir.types import BufferType
from tilec.passes.utils.dependence import exposed


def split_at_grid_sync(func: Func) -> Func:
    *ops, _ = func.body.ops
    marks = [i for i, o in enumerate(ops) if isinstance(o, GridSync)]
    if "segment" not in func.attrs or not marks:
        return func
    segments = [_segment(func, marks, n) for n in range(len(marks) + 1)]
    segment = int(func.attrs["segment"])
    inner = sum(isinstance(o, GridSync) for o in walk(func.body)) > len(marks)
    if inner or None in segments:
        return _nowhere(func) if segment else func
    found = segments[segment]
    assert found is not None
    return func.with_body(found)


def _nowhere(func: Func) -> Func:
    """A launch without blocks."""
    b = Builder(func.loc)
    b.emit(Yield, (b.const(0),))
    body = Block((), func.body.ops[-1:])
    return replace(func.with_body(body), grid=b.block())


def _segment(func: Func, marks: list[int], segment: int) -> Block | None:
    """The body of one launch; None if it cannot do without what is gone by then."""
    *ops, end = func.body.ops
    bounds = [-1, *marks, len(ops)]
    own = ops[bounds[segment] + 1 : bounds[segment + 1]]
    written = changing_tensors(func)
    again: list[Op] = []
    lost: set[Value] = set()  # results of what is left out, and what it has written
    for o in ops[: bounds[segment] + 1]:
        if isinstance(o, GridSync):
            continue
        if _only_computes(o, written, lost):
            again.append(o)
        else:
            lost |= made_in(o)
            lost.update(v for v in buffers_written(o.effects()) if v.space != "global")
    body = Block(func.body.args, (*again, *own, end))
    return None if _needs(body, lost, func) else body


def _only_computes(o: Op, written: Container[Value], lost: Container[Value]) -> bool:
    """Whether `o` gives the same again, in a launch of its own, and does nothing else."""
    if is_clonable(o, written):
        return True
    effects = [e for e in o.effects() if e.kind != "allocate"]
    if any(e.region is None for e in effects):
        return False
    own = all(v.space == "local" for v in buffers_written(effects))
    return own and all(
        v not in lost and (v.space == "local" or v not in written) for v in buffers_read(effects)
    )


def _needs(body: Block, lost: set[Value], func: Func) -> bool:
    """Whether `body` uses any of what is `lost`."""
    for o in walk(body):
        if any(v in lost and not isinstance(v.type, BufferType) for v in o.operands):
            return True
    buffers = {v for v in lost if isinstance(v.type, BufferType)}
    return exposed(body, buffers, constants(func.body)) is not None
