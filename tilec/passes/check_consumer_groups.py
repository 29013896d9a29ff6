"""check_consumer_groups: programs that groups cannot share out are refused before any code is made.

Before and after: TILE; nothing is changed. With a plan of several groups, each of them does some
iterations of the loop over blocks, at the same time as the others do theirs, and all of what stands
around the loop. So nothing around it may act on global memory; no iteration may read what another
one left in an on-chip buffer; and where the user wrote the loop himself, it must not matter in
which order its iterations write global memory. Raises ResourceError with the reason."""

from __future__ import annotations

from tilec.ir.clusters import groups_of
from tilec.ir.core import Func, walk
from tilec.ir.effects import buffers_written, effects_in, is_seen, written_tensors
from tilec.ir.ops import Alloc, For, constants
from tilec.ir.uniformity import varying
from tilec.passes.utils.consumer_groups import loop_over_blocks, refusal
from tilec.passes.utils.dependence import exposed
from tilec.target import Target


def check_consumer_groups(func: Func, target: Target) -> Func:
    if groups_of(func) == 1:
        return func
    loop = loop_over_blocks(func)
    outside = [x for o in func.body.ops if o is not loop for x in walk(o)]
    for x in filter(is_seen, outside):
        raise refusal(func, "this acts outside of its loop over blocks", x.loc)
    lasting = {o.result for o in outside if isinstance(o, Alloc)}
    handed = lasting.intersection(buffers_written(loop.effects()))
    found = exposed(loop.body, handed, constants(func.body))
    if found is not None and found.buffer is not None:
        why = f"{found.buffer.name} hands on what one block leaves in it to the next"
        raise refusal(func, why)
    if not func.attrs.get("persistent"):
        _check_order(func, loop)
    return func


def _check_order(func: Func, loop: For) -> None:
    """Refuse iterations of the user's own loop that read what it writes, or that write in the same
    place each."""
    written = written_tensors(loop.body)
    varies = varying(loop.body, loop.body.args, allocs=False)
    for o, e in effects_in(loop.body):
        if e.region is None or e.region.buffer not in written:
            continue
        if e.reads:
            name = e.region.buffer.name
            raise refusal(func, f"this reads {name}, which its blocks write", o.loc)
        if e.writes and varies.isdisjoint(e.region.offsets):
            raise refusal(func, "this writes the same place for every block", o.loc)
