"""Loops over elements that fill several buffers at once, as one loop for each of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from tilec.ir.core import Op, upstream, walk
from tilec.ir.ops import Assume, For, Load, Parallel, Store, Yield

Loop = TypeVar("Loop", bound=For | Parallel)


def with_parts(p: Parallel, made_of: Callable[[Parallel], list[Op] | None]) -> list[Op] | None:
    """A loop for each of the stores of which something is made (`made_of` a loop with that one
    alone), as that, and a loop with the others. None where nothing is, where two stores have one
    buffer or one value, or where the loop reads what it stores, or does anything else.

    Method: K. Kennedy, K. McKinley, "Loop distribution with arbitrary control flow", 1990."""
    inside = [x for x in walk(p.body) if not x.pure]
    acts = [x for x in p.body.ops if isinstance(x, Store)]
    dests = {x.dest for x in acts}
    if len(acts) < 2 or len(dests) < len(acts) or len({x.value for x in acts}) < len(acts):
        return None
    others = (x for x in inside if x not in acts and not isinstance(x, Assume | Yield))
    if not all((isinstance(x, Load) and x.source not in dests) or x.regions for x in others):
        return None
    found = {x: made_of(with_stores(p, [x])) for x in acts}
    left = [x for x, made in found.items() if made is None]
    if left == acts:
        return None
    ops = [o for made in found.values() for o in made or ()]
    return [*ops, *([with_stores(p, left)] if left else ())]


def with_stores(loop: Loop, stores: list[Store]) -> Loop:
    """The loop with these stores alone, of the same values: what is known of them stays known."""
    body = loop.body
    kept = {*stores, *(x for x in body.ops if isinstance(x, Assume))}
    kept |= {*upstream((v for x in kept for v in x.uses), body.makers)}
    left = [x for x in body.ops if x in kept or isinstance(x, Yield)]
    return replace(loop, body=body.with_ops(left))
