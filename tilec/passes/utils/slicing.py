"""Copying the part of a program that some of its ops need: the way scalars reach another scope or
an earlier iteration without being sent there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilec.ir.core import Block, Op, Substitution, Value, clone, upstream, walk
from tilec.ir.effects import is_clonable, written_tensors
from tilec.ir.ops import For, If, Parallel, While, Yield, yielded
from tilec.ir.types import BufferType


class NotClonable(Exception):
    """A value is made by something that must not be done twice."""

    def __init__(self, op: Op | None) -> None:
        super().__init__(op)
        self.op = op


class Slice:
    """Everything in `block` that the ops of `keep` need: themselves, the loops and branches around
    them, and the clonable ops that make their operands. Raises NotClonable if an operand cannot be
    made again."""

    def __init__(self, block: Block, keep: Iterable[Op]) -> None:
        self.keep = set(keep)
        self.written = written_tensors(block)
        self.needed: set[Value] = set()
        self.defs: dict[Value, Op] = {}
        self.arg_of: dict[Value, tuple[Op, int]] = {}
        self.kept_blocks: set[Block] = set()
        for o in walk(block):
            for r in o.results:
                self.defs[r] = o
            for region in o.regions:
                for i, a in enumerate(region.args):
                    self.arg_of[a] = (o, i)
        self._mark_around(block)

    def _mark_around(self, block: Block) -> bool:
        """Mark the control flow that leads to kept ops, and need what it depends on."""
        any_kept = False
        for o in block.ops:
            inside = [self._mark_around(region) for region in o.regions]
            if o in self.keep:
                any_kept = True
                for v in o.operands:
                    self.need(v)
            elif any(inside):
                any_kept = True
                match o:
                    case For():
                        for v in (o.lo, o.hi, o.step):
                            self.need(v)
                    case If():
                        self.need(o.cond)
                    case While():
                        for v in yielded(o.cond):
                            self.need(v)
                    case Parallel():
                        pass
        if any_kept:
            self.kept_blocks.add(block)
        return any_kept

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
        if v in self.defs:
            o = self.defs[v]
            match o:
                case For() | While():
                    yield from self._carried(o, o.results.index(v))
                case If():
                    i = o.results.index(v)
                    yield o.cond
                    for region in o.regions:
                        self.kept_blocks.add(region)
                        yield yielded(region)[i]
                case _ if is_clonable(o, self.written):
                    yield from o.operands
                case _ if isinstance(v.type, BufferType):
                    pass
                case _:
                    raise NotClonable(o)
        elif v in self.arg_of:
            o, i = self.arg_of[v]
            if isinstance(o, For) and i > 0:
                yield from self._carried(o, i - 1)
            elif isinstance(o, While):
                yield from self._carried(o, i)

    def _carried(self, o: For | While, i: int) -> Iterator[Value]:
        """What the carried value number `i` is computed from."""
        yield o.inits[i]
        yield yielded(o.body)[i]
        self.needed.add(o.results[i])
        self.needed.add(o.body.args[i + 1] if isinstance(o, For) else o.body.args[i])
        yield from (o.lo, o.hi, o.step) if isinstance(o, For) else yielded(o.cond)
        self.kept_blocks.add(o.body)

    def copy(self, block: Block, subst: Substitution) -> list[Op]:
        """The needed part of `block` with fresh values; kept ops are cloned like the others."""
        out: list[Op] = []
        for o in block.ops:
            if o in self.keep:
                out.append(clone(o, subst))
            elif any(r in self.kept_blocks for r in o.regions) or (
                o.regions and any(r in self.needed for r in o.results)
            ):
                out.append(self._copy_control(o, subst))
            elif any(r in self.needed for r in o.results) and is_clonable(o, self.written):
                out.append(clone(o, subst))
        return out

    def _copy_control(self, o: Op, subst: Substitution) -> Op:
        def get(v: Value) -> Value:
            return subst.get(v, v)

        def fresh(v: Value) -> Value:
            subst[v] = Value(v.type, v.name)
            return subst[v]

        match o:
            case For():
                kept = [i for i, r in enumerate(o.results) if self._carried_needed(o, i)]
                inits = tuple(get(o.inits[i]) for i in kept)
                args = (fresh(o.body.args[0]), *(fresh(o.body.args[i + 1]) for i in kept))
                ops = self.copy(o.body, subst)
                ops.append(Yield(tuple(get(yielded(o.body)[i]) for i in kept), loc=o.loc))
                results = tuple(fresh(o.results[i]) for i in kept)
                return replace(
                    o,
                    lo=get(o.lo),
                    hi=get(o.hi),
                    step=get(o.step),
                    inits=inits,
                    body=Block(args, tuple(ops)),
                    results=results,
                )
            case If():
                kept = [i for i, r in enumerate(o.results) if r in self.needed]
                blocks = []
                for region in (o.then, o.orelse):
                    ops = self.copy(region, subst)
                    ops.append(Yield(tuple(get(yielded(region)[i]) for i in kept), loc=o.loc))
                    blocks.append(Block((), tuple(ops)))
                results = tuple(fresh(o.results[i]) for i in kept)
                types = tuple(o.types[i] for i in kept)
                return replace(
                    o,
                    cond=get(o.cond),
                    then=blocks[0],
                    orelse=blocks[1],
                    types=types,
                    results=results,
                )
            case While():
                kept = [i for i, r in enumerate(o.results) if r in self.needed]
                inits = tuple(get(o.inits[i]) for i in kept)
                regions = []
                for region, values in (
                    (o.cond, yielded(o.cond)),
                    (o.body, tuple(yielded(o.body)[i] for i in kept)),
                ):
                    args = tuple(fresh(region.args[i]) for i in kept)
                    ops = self.copy(region, subst)
                    ops.append(Yield(tuple(map(get, values)), loc=o.loc))
                    regions.append(Block(args, tuple(ops)))
                results = tuple(fresh(o.results[i]) for i in kept)
                return replace(o, inits=inits, cond=regions[0], body=regions[1], results=results)
        raise NotClonable(o)

    def _carried_needed(self, o: For, i: int) -> bool:
        return o.results[i] in self.needed or o.body.args[i + 1] in self.needed


def can_run_ahead(loop: For, copy: Op) -> bool:
    """Whether the copy's operands can be computed for a later iteration: no carried value is
    needed."""
    if copy in loop.body.ops:
        defs = {r: o for o in loop.body.ops for r in o.results}
        if all(o.pure for o in upstream(copy.operands, defs)) and len(loop.body.args) == 1:
            return True  # what most loops are
    try:
        needed = Slice(loop.body, [copy])
    except NotClonable:
        return False
    carried = set(loop.body.args[1:])
    return not carried & needed.needed
