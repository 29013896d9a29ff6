"""version_loops: a test inside of an element loop is made once for the whole tile.

Before: TILE; a `parallel` whose iterations act under a condition on their indices, as in `if row +
i < end: C[row + i, j] = tile[i, j]`. After: an `if` outside of the loop asks for the corner of the
tile where the condition is hardest to meet. Where it holds there, it holds everywhere, and the loop
has no condition (so that it may be a copy, and leave as one); otherwise the loop is as before. So
it is with what fills a fragment in a pipelined loop by a choice of numbers, or puts a number in the
place of some of its elements, as a causal mask does: most iterations lie wholly on one side of it,
and of those that keep all elements there is nothing to do. Only conditions that are linear in the
indices, and made of what all threads know before the loop, are split. A test that says the same in
all iterations may have two sides; one whose sides do the same is left out. Where the condition is
that elements lie inside of their tensors, the loops say whether theirs do: nobody asks again."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, upstream, walk
from tilec.ir.effects import is_clonable, only_act
from tilec.ir.ops import Compare, ElementAccess, If, Load, Parallel, Select, Store, Yield, constants
from tilec.ir.types import ScalarType
from tilec.ir.uniformity import Level, uniformity_of
from tilec.passes.utils.accesses import only_store
from tilec.passes.utils.memory_access import (
    MemoryFacts,
    asks_inside,
    conjuncts,
    in_memory,
    masked_loads,
    sides_asked,
)
from tilec.passes.utils.plans import pipelined
from tilec.target import Target

_RISING = ("lt", "le")  # hardest to meet where the left side is largest
_FALLING = ("gt", "ge")


def version_loops(func: Func, target: Target) -> Func:
    known = _Known(func)
    repeated = {x for o in pipelined(func.body) for x in walk(o.body)}

    return func.rewrite(Parallel, lambda o: _Guarded(o, known, o in repeated).split())


class _Known:
    """What is asked about the function as a whole."""

    def __init__(self, func: Func) -> None:
        self.uniformity = uniformity_of(func)
        self.memory = MemoryFacts(func)
        self.written = self.memory.written
        self.facts = self.memory.facts
        self.numbers = constants(func.body)

    def same(self, v: Value) -> bool:
        """Whether `v`, from before a loop, is no scalar or the same for all threads."""
        return not isinstance(v.type, ScalarType) or self.uniformity.level(v) == Level.BLOCK


class _Guarded:
    """One `parallel`; `repeated`: it stands in a pipelined loop."""

    def __init__(self, o: Parallel, known: _Known, repeated: bool) -> None:
        self.o = o
        self.known = known
        self.repeated = repeated
        self.made = o.body.makers
        self.before: set[Value] = set()
        self.b = Builder(o.loc)

    def split(self) -> list[Op] | None:
        test = self.test()
        if test is not None and self.same_on_both_sides(test):
            self.b.ops += self.without(test).statements
            return self.b.ops
        guard = self.guard(test) or self.mask()
        if guard is None:
            return None
        conds = [*conjuncts(guard.cond, self.made)]
        corners = [self.at_corner(c) for c in conds]
        met = [c for c in corners if c is not None]
        if len(met) != len(conds):
            return None
        cond = self.b.all_of(*met)
        self.b.loc = guard.loc
        orelse = self.unchanged()
        if isinstance(guard, Select):
            orelse = self.by_side(guard, conds, met, self.by_one_bound(guard, conds))
        elif guard.orelse.statements:
            orelse = self.without(replace(guard, then=guard.orelse), of=guard)
        elif all(self.asks_inside(c, guard) for c in conds):
            orelse = Block((), (replace(self.o, outside=True), Yield(loc=self.o.loc)))
        inside = isinstance(guard, If) and self.lies_inside(conds)
        self.b.emit(If, cond, self.without(guard, inside=inside), orelse)
        return self.b.ops

    def asks_inside(self, cond: Value, guard: If) -> bool:
        """Whether a condition is that an element which the loop touches lies in its tensor."""
        accesses = guard.then.every(ElementAccess)
        return any(asks_inside(self.made.get(cond), x, self.known.memory) for x in accesses)

    def lies_inside(self, conds: list[Value]) -> bool:
        """Whether all that the loop touches lies in its tensors where all conditions hold."""
        made, memory = self.made, self.known.memory
        for x in self.o.body.every(ElementAccess):
            if not in_memory(x):
                continue
            asked = {side for c in conds for side in sides_asked(made.get(c), x, memory)}
            for d, low, high in memory.checks(x, x.buffer.buffer):
                if (low and (d, True) not in asked) or (high and (d, False) not in asked):
                    return False
        return True

    def by_one_bound(self, guard: Select, conds: list[Value]) -> Block:
        """The loop as it is, but where two conditions bound the same number from above, one of them
        for a row or for all elements, it is compared with the lesser bound: of a causal mask and
        the end of the keys 156 instructions for a thread's 64 elements in place of 256."""
        facts = self.known.facts
        for x in conds:
            for y in conds:
                a, b = self.made.get(x), self.made.get(y)
                if not (isinstance(a, Compare) and isinstance(b, Compare) and a.lhs is b.lhs):
                    continue
                if a.kind != "lt" or b.kind != "le" or a.rhs in self.made:
                    continue
                if not facts.non_negative(a.rhs) or self.across(b.rhs) & self.across(b.lhs):
                    continue
                n = Builder(a.loc)
                last = n.binary("sub", a.rhs, 1)
                bound = n.binary("min", last, b.rhs)
                both = n.compare("le", a.lhs, bound)
                cond = n.all_of(both, *(z for z in conds if z is not x and z is not y))
                at = self.o.body.ops.index(guard)
                ops = self.o.body.ops
                ops = (*ops[:at], *n.ops, replace(guard, cond=cond), *ops[at + 1 :])
                loop = replace(self.o, body=replace(self.o.body, ops=ops))
                return Block((), (loop, Yield(loc=self.o.loc)))
        return self.unchanged()

    def across(self, v: Value) -> set[Value]:
        """The loop's indices that `v` is made of."""
        return {a for a in self.o.body.args if a in self.known.facts.origins.of(v)}

    def by_side(self, guard: Select, conds: list[Value], met: list[Value], found: Block) -> Block:
        """For tiles that a mask cuts on one side of several, as a window does: where all conditions
        but that side's hold for the whole tile, the loop asks for it alone; else for all. Sides
        are what both a row and a column decide. A bound of the columns is asked for once a column:
        a loop without it was no faster, in code that is longer 1 % slower."""
        origins = [self.known.facts.origins.of(c) for c in conds]
        sides = [n for n, o in enumerate(origins) if sum(a in o for a in self.o.body.args) > 1]
        for n in sides if len(sides) > 1 else ():
            b = Builder(guard.loc)
            b.emit(If, b.all_of(*met[:n], *met[n + 1 :]), self.without(guard, conds[n]), found)
            found = Block((), (*b.ops, Yield(loc=self.o.loc)))
        return found

    def act(self) -> Op | None:
        """All that the body does but loads and numbers, where that is one op; not of a loop that is
        laid out."""
        return only_act(self.o.body) if self.o.layout is None else None

    def test(self) -> If | None:
        """The `if` that all of the body's acts stand in."""
        o = self.act()
        if not isinstance(o, If) or o.results or any(x.regions for b in o.regions for x in b.ops):
            return None
        return o

    def guard(self, o: If | None) -> If | None:
        """The `if`, where it has one side, or goes one way in the whole loop."""
        if o is None or not o.orelse.statements:
            return o
        return o if not self.across(o.cond) and self.known_before(o.cond) else None

    def same_on_both_sides(self, o: If) -> bool:
        """Whether both sides put the same element of a tensor in the same place: one of them asks
        first whether it lies inside, and puts 0 there where it does not, which is what the other
        loads there."""
        found = []
        for side in o.regions:
            ops = (*(x for x in self.o.body.ops if x is not o), *side.ops)
            if (store := only_store(side)) is None:
                return False
            value = {r: x for x in ops for r in x.results}.get(store.value)
            if isinstance(value, Select):
                mask = masked_loads(ops, self.known.memory).get(value)
                value = mask.load if mask is not None and not mask.conds else None
            if not isinstance(value, Load) or value.source is store.dest:
                return False
            found.append((store.dest, store.indices, value.source, value.indices))
        return found[0] == found[1]

    def mask(self) -> Select | None:
        """The choice of a number, or of the element itself or what is made of it alone, that is all
        that the body stores, in a fragment."""
        o = self.act()
        if not self.repeated or not isinstance(o, Store) or o.dest.space != "fragment":
            return None
        made = self.made.get(o.value)
        if not isinstance(made, Select):
            return None
        if self.kept(o) or made.on_true in self.known.numbers:
            return made
        loads = [x for x in self.o.body.ops if isinstance(x, Load)]
        own = all(x.source is o.dest and x.indices == o.indices for x in loads)
        return made if loads and own and made.on_false in self.known.numbers else None

    def kept(self, o: Store) -> bool:
        """Whether where the condition holds the element stays as it is."""
        made = self.made.get(o.value)
        read = self.made.get(made.on_true) if isinstance(made, Select) else None
        if not isinstance(read, Load) or read.source is not o.dest:
            return False
        others = (x for x in self.o.body.ops if isinstance(x, Load) and x is not read)
        outside = all(x.source.space == "global" for x in others)  # of the condition's
        return outside and read.indices == o.indices

    def at_corner(self, cond: Value) -> Value | None:
        """The condition where it is hardest to meet; None if no corner is known to be that."""
        if not self.known_before(cond):
            return None
        o = self.made.get(cond)
        corner: Substitution = {}
        for arg, extent in zip(self.o.body.args, self.o.extents):
            slope = self.difference(o, arg) if isinstance(o, Compare) else None
            if slope is None and arg in self.known.facts.origins.of(cond):
                return None
            last = slope is not None and slope > 0
            corner[arg] = self.b.const(extent - 1 if last else 0, arg.dtype)
        return self.again(cond, corner)

    def known_before(self, v: Value) -> bool:
        """Whether all threads can compute `v` before the loop, but for the loop's indices."""
        needed = [*upstream((v,), self.made, self.before)]
        if not all(is_clonable(o, self.known.written) for o in needed):
            return False
        outside = {x for o in needed for x in o.uses} - self.made.keys()
        if not all(x in self.o.body.args or self.known.same(x) for x in outside):
            return False
        self.before.update(r for o in needed for r in o.results)
        return v in self.made or v in self.o.body.args or self.known.same(v)

    def again(self, v: Value, subst: Substitution) -> Value:
        """`v` computed before the loop."""
        self.b.ops += [o.clone(subst) for o in [*upstream((v,), self.made, subst)]]
        return subst.get(v, v)

    def difference(self, o: Compare, arg: Value) -> int | None:
        """How fast the condition gets harder to meet with `arg`; None if that varies."""
        lhs, rhs = (self.known.facts.slope(v, arg) for v in (o.lhs, o.rhs))
        if lhs is None or rhs is None or o.kind not in (*_RISING, *_FALLING):
            return None
        return lhs - rhs if o.kind in _RISING else rhs - lhs

    # --- the two loops ----------------------------------------------------------------------------

    def without(
        self,
        guard: If | Select,
        left: Value | None = None,
        of: If | None = None,
        inside: bool = False,
    ) -> Block:
        """The loop for tiles where the condition always holds; or all of it that is not `left`.
        `guard` may be one that stands for the loop's own (`of`). `inside`: see Parallel."""
        if left is None and any(isinstance(x, Store) and self.kept(x) for x in self.o.body.ops):
            return Block((), (Yield(loc=self.o.loc),))
        subst: Substitution = {}
        args = tuple(self.fresh(a, subst) for a in self.o.body.args)
        ops: list[Op] = []
        for x in self.o.body.statements:
            if x is of:
                x = guard
            if x is guard and isinstance(guard, Select):
                if left is None:
                    subst[guard.result] = subst.get(guard.on_true, guard.on_true)
                    continue
                x = replace(guard, cond=left)
            kept = guard.then.statements if x is guard and isinstance(guard, If) else (x,)
            ops += [y.clone(subst) for y in kept]
        ops.append(Yield(loc=self.o.loc))
        loop = Parallel(
            self.o.extents,
            Block(args, tuple(ops)),
            coalesced_width=self.o.coalesced_width,
            inside=inside,
            wanted=self.o.wanted,
            loc=self.o.loc,
        )
        return Block((), (loop, Yield(loc=self.o.loc)))

    def fresh(self, arg: Value, subst: Substitution) -> Value:
        subst[arg] = Value(ScalarType(arg.dtype), arg.name)
        return subst[arg]

    def unchanged(self) -> Block:
        return Block((), (self.o, Yield(loc=self.o.loc)))
