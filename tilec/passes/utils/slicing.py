"""Copying the part of a program that some of its ops need: the way scalars reach another scope or
an earlier iteration without being sent there."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace

from tilec.ir.core import Block, Op, Substitution, Value, fresh, made_in, upstream, walk
from tilec.ir.effects import is_clonable, written_tensors
from tilec.ir.ops import Alloc, For, If, While, Yield, decides, handed_on, yielded
from tilec.ir.types import BufferType
from tilec.passes.utils.dce import keep_results
from tilec.passes.utils.dependence import paths


class NotClonable(Exception):
    """A value is made by something that must not be done twice."""


class Slice:
    """Everything in `block` that the ops of `keep` need: themselves, the loops and branches around
    them, and the clonable ops that make their operands. Raises NotClonable if an operand cannot be
    made again."""

    def __init__(self, block: Block, keep: Iterable[Op]) -> None:
        self.block, self.keep = block, set(keep)
        self.written = written_tensors(block)
        self.needed: set[Value] = set()
        self.defs: dict[Value, Op] = {}
        self.flow: dict[Value, tuple[Op, int]] = {}  # of what control flow hands on
        self.kept_blocks: set[Block] = set()
        for o in walk(block):
            self.defs.update(dict.fromkeys(o.results, o))
            for i, (_, holders) in enumerate(handed_on(o)):
                self.flow.update(dict.fromkeys(holders, (o, i)))
        for path, o in paths(block):
            if o in self.keep:
                self.kept_blocks.update(inner for inner, _ in path)
                around = (inner.ops[i] for inner, i in path[:-1])
                for v in (*(v for x in around for v in decides(x)), *_used(o)):
                    self.need(v)

    def need(self, v: Value) -> None:
        """Everything that `v` is computed from is needed."""
        left = [v]
        while left:
            v = left.pop()
            if v not in self.needed:
                self.needed.add(v)
                left += reversed([*self._behind(v)])

    def _behind(self, v: Value) -> Iterator[Value]:
        """What `v` is computed from."""
        if v in self.flow:
            o, i = self.flow[v]
            sources, holders = handed_on(o)[i]
            yield from (*sources, *decides(o))
            self.needed.update(holders)
            self.kept_blocks.update(o.regions)
        elif v in self.defs:
            o = self.defs[v]
            if is_clonable(o, self.written):
                yield from o.operands
            elif not isinstance(v.type, BufferType):
                raise NotClonable(o)

    def scalars(self, statements: Container[Op], subst: Substitution) -> list[Op]:
        """The needed ops of a loop's body besides its `statements`, with fresh values: buffers stay
        as they are."""
        return [
            o.clone(subst)
            for o in self.block.ops
            if o not in statements and not isinstance(o, Alloc)
            if any(r in self.needed for r in o.results)
        ]

    def copy(self, block: Block, subst: Substitution) -> list[Op]:
        """The needed part of `block` with fresh values; kept ops are cloned like the others."""
        out: list[Op] = []
        for o in block.ops:
            if o in self.keep:
                out.append(o.clone(subst))
            elif any(r in self.kept_blocks for r in o.regions) or (
                o.regions and any(r in self.needed for r in o.results)
            ):
                out.append(self._copy_control(o, subst))
            elif any(r in self.needed for r in o.results) and is_clonable(o, self.written):
                out.append(o.clone(subst))
        return out

    def _copy_control(self, o: Op, subst: Substitution) -> Op:
        if not isinstance(o, (For, While, If)):
            raise NotClonable(o)
        slots = enumerate(handed_on(o))
        kept = [i for i, (_, holders) in slots if not self.needed.isdisjoint(holders)]

        def copied(region: Block) -> Block:
            args, ops = fresh(region.args, subst), self.copy(region, subst)
            values = tuple(subst.get(v, v) for v in yielded(region))
            return Block(args, (*ops, Yield(values, loc=o.loc)))

        done = keep_results(o, kept).with_operands(subst).with_regions(copied)
        return replace(done, results=fresh(done.results, subst))


def _used(o: Op) -> list[Value]:
    """The values that `o`, or what is inside it, uses of what is made outside."""
    if not o.region_fields:
        return [*o.operands]
    own = made_in(o)
    return [v for v in o.uses if v not in own]


def is_separable(block: Block, keep: Iterable[Op]) -> bool:
    """Whether a scope of its own can do the ops of `keep`."""
    try:
        Slice(block, keep)
    except NotClonable:
        return False
    return True


def can_run_ahead(loop: For, copy: Op) -> bool:
    """Whether the copy's operands can be computed for a later iteration: no carried value is
    needed."""
    if copy in loop.body.ops:
        defs = loop.body.makers
        if all(o.pure for o in upstream(copy.operands, defs)) and len(loop.body.args) == 1:
            return True  # what most loops are
    try:
        needed = Slice(loop.body, [copy])
    except NotClonable:
        return False
    carried = set(loop.body.args[1:])
    return not carried & needed.needed
