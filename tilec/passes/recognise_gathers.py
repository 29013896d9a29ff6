"""recognise_gathers: loops over elements that bring a tile from computed places become copies.

Before: TILE. After: TILE, and a `parallel` of a loop with stages that fills a shared tile with
elements of a tensor, each where its indices say or 0 where a condition does not hold, is a copy of
a `gather` in front of the loop: a convolution's pixels, rows that an index tensor names, pages. So
it may run ahead of its readers (`plan_pipeline`). Only what cp.async could bring, 4 bytes at least
at once, is worth that."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.copy_engines import CP_ASYNC
from tilec.ir.core import Block, Func, Op, Region, Substitution, Value, fresh, upstream
from tilec.ir.effects import is_clonable
from tilec.ir.types import BOOL, INT32, MOST_NARROW, BufferType, scalar_type
from tilec.passes.plan_pipeline import has_stages
from tilec.passes.utils.accesses import only_store
from tilec.passes.utils.addressing import clone_expression
from tilec.passes.utils.memory_access import MAX_VECTOR_BYTES, Mask, MemoryFacts, masked_loads
from tilec.passes.utils.raster_groups import reciprocal
from tilec.passes.utils.several_stores import with_parts
from tilec.target import Target


def recognise_gathers(func: Func, target: Target) -> Func:
    if target.kind == "cpu" or func.attrs.get("may_alias"):
        return func
    known = MemoryFacts(func)

    def visit(o: ops.For) -> list[Op] | None:
        if not has_stages(o):
            return None
        o = replace(o, body=_one_by_one(o, known))
        loops = [x for x in o.body.ops if isinstance(x, ops.Parallel)]
        found = {x: _Tile(_without_branch(x, known), o, known) for x in loops}
        copies = {x: tile.ops() for x, tile in found.items() if tile.width()}
        if not copies:
            return None
        before = [o for x, (made, _) in copies.items() for o in made]
        statements: list[Op] = []
        for x in o.body.ops:
            statements += copies[x][1] if isinstance(x, ops.Parallel) and x in copies else [x]
        body = Block(o.body.args, tuple(statements))
        return [*before, replace(o, body=body)]

    return func.rewrite(ops.For, visit)


def _one_by_one(loop: ops.For, known: MemoryFacts) -> Block:
    """The loop's body, where those that fill several tiles that copies may bring are several."""

    def brought(p: ops.Parallel) -> list[Op] | None:
        return [p] if _Tile(_without_branch(p, known), loop, known).width() else None

    statements: list[Op] = []
    for x in loop.body.ops:
        parts = with_parts(x, brought) if isinstance(x, ops.Parallel) else None
        statements += parts or [x]
    return loop.body.with_ops(statements)


class _Tile:
    """One `parallel` of a loop with stages, and the tile that it may fill."""

    def __init__(self, p: ops.Parallel, loop: ops.For, known: MemoryFacts) -> None:
        self.p = p
        self.loop = loop
        self.known = known
        self.made = p.body.makers
        self.store = only_store(p.body)
        self.around = loop.body.makers

    def width(self) -> int:
        """Elements that lie side by side, for the access that brings them; 0 if it is no tile that
        a copy may bring."""
        store, p = self.store, self.p
        if store is None or p.layout is not None or p.wanted is not None or p.coalesced_width:
            return 0
        dest = store.dest.buffer
        if dest.space != "shared" or store.indices != p.body.args or dest.shape != p.extents:
            return 0
        load, mask = self.element(store)
        if load is None or load.source.dtype != dest.dtype or dest.dtype in (BOOL,):
            return 0
        if load.source in self.known.tensors.safe or not self.can_be_made_before():
            return 0
        bits, arg = dest.dtype.bits, p.body.args[-1]
        width = self.known.memory(load, arg, MAX_VECTOR_BYTES * 8 // bits).width
        while width > 1 and not (
            p.extents[-1] % width == 0
            and (mask is None or all(map(self.known.neighbours(arg, width).same, mask.conds)))
        ):
            width //= 2
        return width if width * bits // 8 in CP_ASYNC else 0

    def element(self, store: ops.Store) -> tuple[ops.Load | None, Mask | None]:
        """The load of a tensor's element that is stored, and what else may be there."""
        value = self.made.get(store.value)
        mask = None
        if isinstance(value, ops.Select):
            mask = masked_loads(self.p.body.ops, self.known).get(value)
            value = None if mask is None else mask.load
        if not isinstance(value, ops.Load) or value.source.space != "global":
            return None, None
        uses = [o for o in self.p.body.ops if {value.result, store.value} & {*o.operands}]
        alone = len(uses) == (1 if mask is None else 2)
        return (value, mask) if alone else (None, None)

    def needed(self) -> list[Op]:
        """What the places are computed by: in the loop with stages, and in the tile's own."""
        inside = [o for o in self.p.body.statements if o is not self.store]
        own = {r for o in inside for r in o.results} | {*self.p.body.args}
        used = [v for o in inside for v in o.uses if v not in own]
        return [*upstream(used, self.around), *inside]

    def can_be_made_before(self) -> bool:
        """Whether the places can be computed in another iteration, of the loop's index alone."""
        return not any(
            o.regions or not (is_clonable(o, self.known.written) or isinstance(o, ops.Assume))
            for o in self.needed()
        ) and not {*self.loop.body.args[1:]} & {v for o in self.needed() for v in o.uses}

    def ops(self) -> tuple[list[Op], list[Op]]:
        """The gather, with what it needs, and the copy in the place of the loop over elements."""
        assert self.store is not None
        load, _ = self.element(self.store)
        assert load is not None
        index, b = self.loop.body.args[0], Builder(self.p.loc)
        needed = self.by_products(b)
        own = {r for o in needed for r in o.results} | {index, *self.p.body.args}
        captured = tuple(dict.fromkeys(v for o in needed for v in o.uses if v not in own))
        subst: Substitution = {}
        args = fresh((*captured, index, *self.p.body.args), subst)
        body = [o.clone(subst) for o in needed]
        value = subst[self.store.value]
        places = ops.Places(Block(args, (*body, ops.Yield((value,), loc=self.store.loc))))
        bytes = self.width() * load.source.dtype.bits // 8
        shape = (MOST_NARROW, *self.p.extents)
        t = BufferType(shape, load.source.dtype, "global", align=bytes)
        made = b.value(ops.Gather, load.source, captured, places, t, name=load.source.name)
        return b.ops, self.copy(made, index)

    def by_products(self, before: Builder) -> list[Op]:
        """What is needed, where what is divided by numbers that are known `before` the loop is
        multiplied by their reciprocals: every vector of every tile is brought from such a place."""
        needed, facts = self.needed(), self.known.facts
        made = {r: o for o in needed for r in o.results}
        moving = {self.loop.body.args[0], *self.p.body.args}
        for o in needed:
            if moving & {*o.uses}:
                moving |= {*o.results}
        divisors: dict[Value, tuple[Value, Value, Value]] = {}
        again: Substitution = {}
        found: list[Op] = []
        for o in needed:
            if (
                not isinstance(o, ops.Binary)
                or o.kind not in ("floordiv", "mod")
                or o.lhs.type != scalar_type(INT32)
                or o.rhs in moving
                or facts.constant(o.rhs) is not None
                or not (facts.non_negative(o.lhs) and facts.non_negative(o.rhs))
            ):
                found.append(o)
                continue
            if o.rhs not in divisors:
                d = clone_expression(before, o.rhs, made, again)
                assert d is not None
                most = before.fold("max", d, 1)
                divisors[o.rhs] = most, reciprocal(before, most), before.compare("gt", d, 0)
            by, inverse, some = divisors[o.rhs]
            b = Builder(o.loc)
            q = b.binary(o.kind, o.lhs, by, nonzero=True, reciprocal=inverse)
            if o.kind == "floordiv":
                q = b.select(some, q, b.const(0))
            *first, last = b.ops
            found += [*first, replace(last, results=o.results)]
        return found

    def copy(self, tensor: Value, index: Value) -> list[Op]:
        assert self.store is not None
        b = Builder(self.p.loc)
        zeros = tuple(b.const(0) for _ in self.p.extents)
        source = Region(tensor, (index, *zeros), (1, *self.p.extents))
        b.emit(ops.Copy, source, Region(self.store.dest, zeros, self.p.extents))
        return b.ops


def _without_branch(p: ops.Parallel, known: MemoryFacts) -> ops.Parallel:
    """`p`, where an element that a branch chooses is computed in any case, if that does no harm."""
    found = [o for o in p.body.ops if isinstance(o, ops.If) and len(o.results) == 1]
    if len(found) != 1:
        return p
    subst: Substitution = {}

    def visit(o: ops.If) -> list[Op] | None:
        inside = [*o.then.statements, *o.orelse.statements]
        if o is not found[0] or any(x.regions or not is_clonable(x, known.written) for x in inside):
            return None
        b = Builder(o.loc, inside)
        a, c = (ops.yielded(block)[0] for block in o.regions)
        subst[o.result] = b.select(o.cond, a, c)
        return b.ops

    body = p.body.rewrite(ops.If, visit, subst)
    return replace(p, body=body) if subst else p


def with_places(body: Block) -> Block:
    """`body` where elements of gathers are loaded from where they are."""
    gathers = {o.result: o for o in body.every(ops.Gather)}
    subst: dict[Value, Value] = {}

    def visit(o: Op) -> list[Op] | None:
        if isinstance(o, ops.Gather):
            return []
        if not isinstance(o, ops.Load) or o.source not in gathers:
            return None
        gather = gathers[o.source]
        own = dict(zip(gather.places.body.args, (*gather.captured, *o.indices)))
        *made, last = [x.clone(own) for x in gather.places.body.ops]
        assert isinstance(last, ops.Yield)
        subst[o.result] = last.values[0]
        return made

    return body.rewrite(Op, visit, subst) if gathers else body
