"""Which values differ between the lanes, or threads, that run a block side by side."""

from __future__ import annotations

from collections.abc import Iterable

from tilec.ir.core import Block, Value, walk
from tilec.ir.ops import Alloc, For, If, While, yielded


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


def _spread(block: Block, found: set[Value]) -> None:
    for o in block.ops:
        for region in o.regions:
            _spread(region, found)
        match o:
            case If():
                for region in o.regions:
                    _flow(yielded(region), o.results, found, o.cond in found)
            case For():
                uneven = any(v in found for v in (o.lo, o.hi, o.step))
                if uneven:
                    found.add(o.body.args[0])
                _carry(o, o.body.args[1:], uneven, found)
            case While():
                uneven = any(v in found for v in yielded(o.cond))
                for _ in range(2):
                    _carry(o, o.body.args, uneven, found)
                    _flow(o.body.args, o.cond.args, found)
            case _:
                if any(v in found for v in o.operands):
                    found.update(o.results)


def _carry(o: For | While, args: tuple[Value, ...], uneven: bool, found: set[Value]) -> None:
    _flow(o.inits, args, found, uneven)
    _flow(yielded(o.body), args, found)
    _flow(args, o.results, found)


def _flow(
    before: tuple[Value, ...], after: tuple[Value, ...], found: set[Value], always: bool = False
) -> None:
    found.update(b for a, b in zip(before, after) if always or a in found)
