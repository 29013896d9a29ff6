"""Which values differ between the lanes, or threads, that run a block side by side."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.ir.core import Block, Value, walk
from tilec.ir.ops import Alloc, Atomic, For, If, Parallel, While, decides, handed_on


def varying(block: Block, sources: Iterable[Value], allocs: bool = True) -> set[Value]:
    """The values inside `block` that may differ between lanes, given that `sources` do. With
    `allocs`, buffers allocated inside are each lane's own: what is read from them differs.
    """
    found = set(sources)
    for o in walk(block):
        if allocs and isinstance(o, Alloc):
            found.update(o.results)
    size = -1
    while size != len(found):
        size = len(found)
        _spread(block, found)
    return found


def _spread(block: Block, found: set[Value], alone: bool = True) -> None:
    """`alone`: each lane does for itself what stands here, and does not share iterations."""
    for o in block.ops:
        for region in o.regions:
            _spread(region, found, alone and not isinstance(o, Parallel))
        uneven = not found.isdisjoint(decides(o))
        for sources, holders in handed_on(o):
            if uneven or not found.isdisjoint(sources):
                found.update(holders)
        if isinstance(o, For) and uneven:
            found.add(o.body.args[0])
        if alone and isinstance(o, Atomic):  # each finds what the one before has left
            found.update(o.results)
        if not isinstance(o, (For, While, If)) and not found.isdisjoint(o.operands):
            found.update(o.results)
