"""split_at_grid_sync: of a kernel that meets as a grid, the launch that is meant.

Before: `grid_sync` ops at the top level of the body, attribute `segment`. After: none; the ops
between two of them are what the launch does. What stands before is done again as far as it only
computes: arithmetic, elements of tensors that the kernel does not write, variables of these.

    i = block 0; fill B; grid_sync; copy B, C      segment 1:  i = block 0; copy B, C

A grid whose blocks wait for one another needs them all on the machine at once, a launch that only
some GPUs know, and is no faster. Raises CompileError where a launch uses what an earlier one has
made on chip, or has computed of what the kernel writes."""

from __future__ import annotations

from collections.abc import Container

from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.dependence import exposed
from tilec.ir.effects import buffers_read, buffers_written, is_clonable, written_tensors
from tilec.ir.errors import CompileError
from tilec.ir.ops import GridSync, constants
from tilec.ir.types import BufferType
from tilec.passes.utils.accesses import covered


def split_at_grid_sync(func: Func) -> Func:
    """See the module's opening."""
    *ops, end = func.body.ops
    marks = [i for i, o in enumerate(ops) if isinstance(o, GridSync)]
    if not marks:
        return func
    segment = int(func.attrs["segment"])
    bounds = [-1, *marks, len(ops)]
    own = ops[bounds[segment] + 1 : bounds[segment + 1]]
    written = written_tensors(func.body)
    again: list[Op] = []
    lost: set[Value] = set()  # results of what is left out, and what it has written
    for o in ops[: bounds[segment] + 1]:
        if isinstance(o, GridSync):
            continue
        if _only_computes(o, written, lost):
            again.append(o)
        else:
            inside = walk(Block((), (o,)))
            lost.update(r for x in inside for r in x.results)
            lost.update(v for v in buffers_written(o.effects()) if v.buffer.space != "global")
    body = Block(func.body.args, (*again, *own, end))
    _check(body, lost, func, ops[bounds[segment]])
    return func.with_body(body)


def _only_computes(o: Op, written: Container[Value], lost: Container[Value]) -> bool:
    """Whether `o` gives the same again, in a launch of its own, and does nothing else."""
    if is_clonable(o, written):
        return True
    effects = [e for e in o.effects() if e.kind != "allocate"]
    if any(e.region is None for e in effects):
        return False
    own = all(v.buffer.space == "local" for v in buffers_written(effects))
    return own and all(
        v not in lost and (v.buffer.space == "local" or v not in written)
        for v in buffers_read(effects)
    )


def _check(body: Block, lost: set[Value], func: Func, mark: Op) -> None:
    line = mark.loc.line
    for o in walk(body):
        for v in o.operands:
            if v in lost and not isinstance(v.type, BufferType):
                raise CompileError(
                    f"this uses what was computed before T.sync_grid (line {line}) of tensors that "
                    "the kernel writes",
                    o.loc,
                    "compute it behind T.sync_grid: a kernel is split there into launches",
                )
    buffers = {v for v in lost if isinstance(v.type, BufferType)}
    found = exposed(body, buffers, constants(func.body), covered)
    if found is not None and found.buffer is not None:
        inside = (o for o in walk(body) if not o.pure and not o.region_fields)
        reads = (o for o in inside if found.buffer in buffers_read(o.effects()))
        raise CompileError(
            f"this uses what {found.buffer.name} held before T.sync_grid (line {line}): a kernel "
            "is split there into launches, and what is on chip is gone",
            next((o.loc for o in reads), mark.loc),
            "keep it in a tensor, T.alloc_global((m, n), dtype), or compute it again",
        )
