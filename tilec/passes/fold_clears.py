"""fold_clears: zeroing an accumulator becomes the first product's not adding to it.

Before: a fragment is filled with zeros, and the next thing that touches it is a loop with one
product into it. After: the fill is gone, and the product adds only from the loop's second iteration
on; behind the loop stands a fill for the case that it has no iteration. Or: a product comes next,
and after, it overwrites. Or: one branch of a
condition fills it with zeros, the other (a mask) with something else, and the next thing that
touches it is a product. After: nothing comes of that fill, and the product adds only where the
condition went the other way. Only for instructions that can overwrite their accumulator (wgmma's
scale-d): for them it saves a move for each register of a tile; the others need zeros to start
from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.ops import Fill, For, Gemm, If, Unary, constants
from tilec.target import Target


def fold_clears(func: Func, target: Target) -> Func:
    numbers = constants(func.body)
    made: dict[Op, list[Op]] = {}  # of fills and products
    behind: dict[Value, list[Op]] = {}  # a loop, by its index: it is rewritten itself

    def find(block: Block) -> None:
        cleared: dict[Value, Fill] = {}
        chosen: dict[Fill, tuple[If, bool]] = {}
        for o in block.ops:
            for region in o.regions:
                find(region)
            used = {*o.uses}
            for fill in [cleared.pop(v) for v in [*cleared] if v in used]:
                v = fill.dest.buffer
                if isinstance(o, Gemm) and _adds_to(o, v):
                    made[fill] = [replace(fill, replaced=True)]
                    first: list[Op] = [replace(o, clear=True)]
                    made[o] = _only_where(o, *chosen[fill]) if fill in chosen else first
                elif isinstance(o, For) and numbers.get(o.step, 0) > 0 and fill not in chosen:
                    if (into := _only_product(o, v)) is not None:
                        b = Builder(into.loc)
                        later = b.compare("gt", o.body.args[0], o.lo)
                        made[fill], made[into] = [], [*b.ops, replace(into, accumulate=later)]
                        behind.setdefault(o.body.args[0], []).append(fill)
            if isinstance(o, Fill) and _zeroes(o, numbers):
                cleared[o.dest.buffer] = o
            if isinstance(o, If):
                for fill, adds in _of_a_branch(o, numbers):
                    cleared[fill.dest.buffer], chosen[fill] = fill, (o, adds)

    find(func.body)

    def visit(o: Op) -> None | list[Op]:
        if isinstance(o, For) and o.body.args[0] in behind:
            b = Builder(o.loc)
            b.branch(b.compare("le", o.hi, o.lo), behind[o.body.args[0]])
            return [o, *b.ops]
        return made.get(o)

    return func.rewrite(Op, visit) if made else func


def _only_where(o: Gemm, condition: If, adds: bool) -> list[Op]:
    """The product, which adds where the condition holds (or where it does not)."""
    b = Builder(o.loc)
    where = condition.cond if adds else b.value(Unary, "not", condition.cond)
    return [*b.ops, replace(o, accumulate=where)]


def _zeroes(o: Fill, numbers: Mapping[Value, object]) -> bool:
    """Whether the fill sets a whole fragment to zero."""
    return (
        o.dest.type.space == "fragment"
        and o.dest.is_whole
        and numbers.get(o.value) == 0
        and all(numbers.get(v) == 0 for v in o.dest.offsets)
    )


def _of_a_branch(o: If, numbers: Mapping[Value, object]) -> list[tuple[Fill, bool]]:
    """The fills of whole fragments with zeros that are all that one branch does with them, of what
    the other branch touches too, and whether that one is `then`."""
    found = []
    for zeros, other, adds in ((o.then, o.orelse, False), (o.orelse, o.then, True)):
        elsewhere = {v for p in walk(other) for v in p.operands}
        for fill in zeros.ops:
            if isinstance(fill, Fill) and _zeroes(fill, numbers):
                v = fill.dest.buffer
                if v in elsewhere and [p for p in walk(zeros) if v in p.operands] == [fill]:
                    found.append((fill, adds))
    return found


def _adds_to(o: Gemm, c: Value) -> bool:
    """Whether the product only adds to `c`, and its instruction can overwrite it."""
    reads = (o.a.buffer, o.b.buffer)
    return o.c is c and c not in reads and not o.clear and o.accumulate is None and o.by_engine


def _only_product(loop: For, c: Value) -> Gemm | None:
    """The product into `c` that every iteration does once, if nothing else in the loop touches
    `c` and its instruction can overwrite."""
    users = [o for o in walk(loop.body) if c in o.operands]
    if len(users) != 1 or users[0] not in loop.body.ops:
        return None
    o = users[0]
    return o if isinstance(o, Gemm) and _adds_to(o, c) else None
