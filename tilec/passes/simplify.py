"""Does at compile time what needs no run time. Numbers stay the same, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from tilec.ir import ops
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.core import Block, Func, Op, Substitution, Value, upstream
from tilec.ir.fold import Number, fold
from tilec.ir.intervals import dtype_range
from tilec.ir.loc import UNKNOWN
from tilec.ir.types import BOOL, INT32, DType, ScalarType
from tilec.passes.utils.building import updated
from tilec.passes.utils.dce import keep_results, sweep
from tilec.passes.utils.identities import COMMUTATIVE, Env, reduce
from tilec.target import Target

_ROUNDS = 8  # each round feeds the next; in practice two suffice
_fields: dict[type[Op], Callable[[Op], Any]] = {}  # of an op's class: all that tells two apart
_PER_SCOPE = frozenset({"thread_index", "lane", "warp"})  # another number in another scope


def simplify(func: Func, target: Target) -> Func:
    """Before: valid IR of any contract. After: the same, and no scalar op has only constant
    operands, an algebraic identity that applies, an equal in a dominating place, or no use; no
    condition and no trip count of 0 or 1 is known, and no dimension of a loop over elements that
    is one of several has one; no buffer is only written.

    Floating-point results do not change: nothing is regrouped, and a constant is folded only where
    every machine agrees on the result (see `tilec.ir.fold`).
    """
    for n in range(_ROUNDS):
        before, facts = func, facts_of(func)
        grid = _Forward(facts).whole(func.grid)
        body = _Forward(facts).whole(func.body)
        if grid is not func.grid or body is not func.body:
            func = replace(func, grid=grid, body=body)
        elif n:
            return func  # swept as it is
        func = sweep(func)
        if func is before:
            return func
    return func


class _Forward:
    """One walk in textual order: each op sees operands that are simple already, and either goes out
    as it is, as a simpler op, or not at all (`subst` says what stands for its results)."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.subst: Substitution = {}
        self.numbers: dict[Value, Number] = {}
        self.makers: dict[Value, Op] = {}
        self.table: dict[Hashable, Value] = {}  # what has been computed, in dominating places
        self.trail: list[Hashable] = []
        self.scopes: list[Op] = []
        self.indices: set[Value] = set()  # of parallel loops
        self.out: list[Op] = []
        self.loc = UNKNOWN

    def whole(self, block: Block) -> Block:
        self.env = Env(self.numbers.get, self.makers.get, self.constant)
        try:
            return self.region(block)
        finally:
            del self.env  # which holds this

    def region(self, block: Block) -> Block:
        outer, depth = self.out, len(self.trail)
        self.out = []
        self.visit(block.ops)
        done, self.out = self.out, outer
        for key in self.trail[depth:]:
            del self.table[key]
        del self.trail[depth:]
        return block.with_ops(done)

    def visit(self, statements: Sequence[Op]) -> None:
        for o in statements:
            self.loc = o.loc
            new = o.with_operands(self.subst) if self.subst else o
            if new.region_fields:
                self.control(new)
            elif new.pure and len(new.results) == 1:
                self.scalar(new)
            else:
                self.out.append(new)

    def inline(self, block: Block) -> tuple[Value, ...]:
        """Put a region's ops in the place of its op; the values it yields."""
        self.visit(block.statements)
        return tuple(self.subst.get(v, v) for v in ops.yielded(block))

    # --- scalars ----------------------------------------------------------------------------------

    def scalar(self, o: Op) -> None:
        result = o.results[0]
        while not isinstance(o, ops.Const):
            got = reduce(o, self.env) or self.decided(o) or self.divided(o)
            if isinstance(got, Value):
                self.subst[result] = got
                return
            if got is None:
                break
            o = got
        key = self.key(o)
        found = self.table.get(key)
        if found is not None:
            self.subst[result] = found
            return
        self.remember(key, o)

    def remember(self, key: Hashable, o: Op) -> None:
        self.table[key] = o.results[0]
        self.trail.append(key)
        self.makers[o.results[0]] = o
        number = fold(o, self.numbers.get) if isinstance(o, ops.Const) and not o.unset else None
        if number is not None:
            self.numbers[o.results[0]] = number
        self.out.append(o)

    def constant(self, value: Number, dtype: DType) -> Value:
        """The constant `value` (normal, see `tilec.ir.fold`), made here if it is not at hand."""
        made = ops.Const(bool(value) if dtype == BOOL else value, dtype, loc=self.loc)
        key = self.key(made)
        found = self.table.get(key)
        if found is None:
            found = Value(ScalarType(dtype))
            self.remember(key, replace(made, results=(found,)))
        return found

    def key(self, o: Op) -> Hashable:
        """Two ops with one key have one value."""
        if isinstance(o, ops.Const):
            number = fold(o, self.numbers.get)
            return ops.Const, o.dtype, repr(o.value if number is None else number), o.unset
        get = _fields.get(type(o))
        if get is None:
            get = attrgetter("opname", *o.operand_fields, *o.attribute_fields)
            _fields[type(o)] = get
        fields = get(o)
        if isinstance(o, ops.Binary) and o.kind in COMMUTATIVE and id(o.lhs) > id(o.rhs):
            if not (o.lhs.dtype.is_float and o.kind in ("min", "max")):
                name, lhs, rhs, *rest = fields
                fields = name, rhs, lhs, *rest
        scope = self.scopes[-1] if self.scopes and o.opname in _PER_SCOPE else None
        return fields, scope

    def decided(self, o: Op) -> Value | None:
        """What the ranges of its operands say the result of an integer op is."""
        t = o.results[0].type
        if not isinstance(t, ScalarType) or t.dtype.is_float:
            return None
        facts = self.facts
        constant = facts.constant(o.results[0])
        if constant is not None:
            # Passes tell what a loop touches by its indices, by those of one iteration too.
            widened = isinstance(o, ops.Cast) and o.operand in self.indices
            return None if widened else self.constant(constant, t.dtype)
        if not isinstance(o, ops.Binary):
            return None
        (lo, hi), (lo2, hi2) = facts.range(o.lhs), facts.range(o.rhs)
        match o.kind:
            case "mod" | "truncmod" if lo is not None and hi is not None and lo2 is not None:
                return o.lhs if 0 <= lo and hi < lo2 else None
            case "min" | "max":
                lower = o.kind == "min"
                if hi is not None and lo2 is not None and hi <= lo2:
                    return o.lhs if lower else o.rhs
                if hi2 is not None and lo is not None and hi2 <= lo:
                    return o.rhs if lower else o.lhs
        return None

    def divided(self, o: Op) -> ops.Binary | None:
        """`(x + y) // n`, where n divides x, as `x // n + y // n`, and `(x + y) % n` as `y % n`: of
        the place of an element in a row, what all elements of a tile share is apart from what tells
        which of them have the same quotient. `x // n`, where y is less than what divides both;
        and `x % n + y`, where x is the same for a whole tile."""
        if (
            not isinstance(o, ops.Binary)
            or o.kind not in ("floordiv", "mod")
            or o.lhs.dtype.is_float
        ):
            return None
        n, total, facts = self.numbers.get(o.rhs), self.makers.get(o.lhs), self.facts
        if not n or n < 0 or not isinstance(total, ops.Binary) or total.kind != "add":
            return None  # by a negative number the rest would be taken from the other side
        if not self.indices:
            return None  # it is for tiles: addresses are sums of what a lane and a register say
        if facts.range(o.lhs) == dtype_range(o.lhs.dtype):
            return None  # it may wrap
        for x, y in ((total.lhs, total.rhs), (total.rhs, total.lhs)):
            lo, hi = facts.range(y)
            step = math.gcd(facts.divisor(x), int(n))
            if lo is None or lo < 0 or hi is None:
                continue
            if hi < step and o.kind == "floordiv":
                return replace(o, lhs=x)
            behind = (v for made in upstream([x], self.makers) for v in made.operands)
            if hi < step < n and self.indices.isdisjoint({x, *behind}):
                first = self.rest(o, x, int(n), step)
                return ops.Binary("add", first, y, results=o.results, loc=o.loc)
            if step != n:
                continue
            if o.kind == "mod":
                return replace(o, lhs=y)
            parts = [Value(o.result.type) for _ in range(2)]
            for v, part in zip((x, y), parts):
                self.scalar(replace(o, lhs=v, results=(part,)))
            lhs, rhs = (self.subst.get(v, v) for v in parts)
            return ops.Binary("add", lhs, rhs, results=o.results, loc=o.loc)
        return None

    def rest(self, o: ops.Binary, x: Value, n: int, step: int) -> Value:
        """`x % n` as `x // step % (n // step) * step`, where `step` divides both: from its operands
        alone it is known that `step` numbers from it on are below n, too."""
        for kind, by in (("floordiv", step), ("mod", n // step), ("mul", step)):
            made, number = Value(x.type), self.constant(by, x.dtype)
            self.scalar(ops.Binary(kind, x, number, results=(made,), loc=o.loc))
            x = self.subst.get(made, made)
        return x

    # --- control flow -----------------------------------------------------------------------------

    def control(self, o: Op) -> None:
        match o:
            case ops.If():
                self.branch(o)
            case ops.For():
                self.loop(o)
            case ops.While():
                self.while_(o)
            case ops.Parallel():
                o = self.parallel(o)
                self.indices.update(o.body.args)
                self.out.append(o.with_regions(self.region))
            case ops.Scope():
                self.scopes.append(o)
                self.out.append(o.with_regions(self.region))
                self.scopes.pop()
            case _:
                self.out.append(o.with_regions(self.region))

    def branch(self, o: ops.If) -> None:
        cond = self.numbers.get(o.cond)
        if cond is not None:
            self.subst.update(zip(o.results, self.inline(o.then if cond else o.orelse)))
            return
        o = self.joined(o)
        self.numbers[o.cond] = 1
        then = self.region(o.then)
        self.numbers[o.cond] = 0
        orelse = self.region(o.orelse)
        del self.numbers[o.cond]
        scalars = all(isinstance(r.type, ScalarType) for r in o.results)
        if scalars and _is_bare(then) and _is_bare(orelse):
            for r, a, b in zip(o.results, self.inline(then), self.inline(orelse)):
                self.scalar(ops.Select(o.cond, a, b, results=(r,), loc=o.loc))
            return
        pairs = list(zip(o.results, ops.yielded(then), ops.yielded(orelse)))
        for r, a, b in pairs:
            if a is b:
                self.subst[r] = a
        keep = [n for n, (_, a, b) in enumerate(pairs) if a is not b]
        self.out.append(keep_results(updated(o, then=then, orelse=orelse), keep))

    def joined(self, o: ops.If) -> ops.If:
        """`o` with the branches of the `if` on the same condition right before it: loads in both
        are under way together. Where threads exchange something between them they stay two, with
        room for a barrier."""
        for n in reversed(range(len(self.out))):
            last = self.out[n]
            if isinstance(last, ops.If) and last.cond is o.cond and not last.results:
                if _exchange(last, o):
                    break
                del self.out[n]
                return replace(
                    o, then=_after(last.then, o.then), orelse=_after(last.orelse, o.orelse)
                )
            if last.region_fields or not last.pure:
                break
        return o

    def loop(self, o: ops.For) -> None:
        index, *args = o.body.args
        indices = o.indices(self.numbers.get)
        if indices is not None and len(indices) <= 1:
            left = o.inits
            if indices:
                self.subst.update(zip(o.body.args, (o.lo, *o.inits)))
                left = self.inline(o.body)
            self.subst.update(zip(o.results, left))
            return
        keep = self.varying(o.inits, ops.yielded(o.body), tuple(args), o.results)
        self.out.append(keep_results(o.with_regions(self.region), keep))

    def parallel(self, o: ops.Parallel) -> ops.Parallel:
        """The loop without dimensions of one iteration, which say nothing of where it runs."""
        kept = [d for d, e in enumerate(o.extents) if e != 1] or [len(o.extents) - 1]
        if len(kept) == len(o.extents) or o.layout is not None or o.wanted is not None:
            return o
        args = tuple(o.body.args[d] for d in kept)
        gone = [a for a in o.body.args if a not in args]
        self.subst.update(dict.fromkeys(gone, self.constant(0, INT32)))
        extents = tuple(o.extents[d] for d in kept)
        return replace(o, extents=extents, body=replace(o.body, args=args))

    def while_(self, o: ops.While) -> None:
        keep = self.varying(o.inits, ops.yielded(o.body), o.body.args, o.results, o.cond.args)
        done = o.with_regions(self.region)
        never = [self.numbers.get(v) for v in ops.yielded(done.cond)] == [0]
        if never and all(x.pure or isinstance(x, ops.Yield) for x in done.cond.ops):
            self.subst.update(zip(o.results, o.inits))
            return
        self.out.append(keep_results(done, keep))

    def varying(
        self, inits: Sequence[Value], nexts: Sequence[Value], *same: Sequence[Value]
    ) -> list[int]:
        """Positions of carried values that change; the others are replaced by their first value."""
        keep = []
        for n, (init, after) in enumerate(zip(inits, nexts)):
            if after in {values[n] for values in same} or self.subst.get(after, after) is init:
                for values in same:
                    self.subst[values[n]] = init
            else:
                keep.append(n)
        return keep


def _exchange(first: ops.If, second: ops.If) -> bool:
    """Whether a thread's own statements in one of them write memory of all threads that those in
    the other touch."""

    own = [
        [x for x in _in_order(o) if isinstance(x, ops.ElementAccess) and x.buffer.space != "local"]
        for o in (first, second)
    ]
    wrote = [{x.buffer for x in side if not isinstance(x, ops.Load)} for side in own]
    used = [
        {x.buffer for x in side if isinstance(x, ops.Load) or x.buffer.space == "shared"}
        for side in own
    ]
    return not wrote[0].isdisjoint(used[1]) or not wrote[1].isdisjoint(used[0])


def _in_order(o: Op) -> Iterator[Op]:
    """What stands in an op and a thread does one after the other."""
    for x in (x for region in o.regions for x in region.ops):
        yield x
        if not isinstance(x, ops.Parallel):
            yield from _in_order(x)


def _after(first: Block, second: Block) -> Block:
    """The ops of two regions, of which the first yields nothing."""
    return Block((), (*first.statements, *second.ops))


def _is_bare(block: Block) -> bool:
    """Whether the region computes nothing (constants aside)."""
    return all(isinstance(o, ops.Yield | ops.Const) for o in block.ops)
