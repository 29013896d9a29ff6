"""batch_conditions: the conditions of a loop's next iterations are asked of memory together.

Before: SCHEDULED, a loop whose iterations do something where an element of a tensor says so, and
nothing else, as in

    for n in range(lo, hi):
        if Blocks[i, n] != 0: body(n)

Every iteration waits for its element, also one that has nothing to do. After: the conditions of 32
iterations are loaded one behind the other, as the bits of a word, and the loop goes from one bit
that is set to the next.

    for c in range(lo, hi, 32):
        word = bits of the conditions of c, c + 1, …
        while word != 0:
            body(c + ctz(word))
            word &= word - 1

Whoever runs the loop, as a producer or as a consumer of what it brings, has a word of its own.
Where whole warps run it, each lane asks for one of the 32, and for that of the word behind it
before the body is done for this one: nobody waits for another word than the first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, makers, upstream, walk
from tilec.ir.effects import changing_tensors, is_clonable
from tilec.ir.types import UINT32
from tilec.ir.uniformity import Level, Uniformity, uniformity_of
from tilec.passes.utils.building import or_zero, or_zeros, under
from tilec.target import Target

BITS = 32  # of a word: conditions that are asked for together
FEWEST = 4  # iterations for which a word pays
_PASSED = (
    ops.Alloc, ops.Fill, ops.If, ops.Load, ops.MbarrierArrive, ops.MbarrierExpect,
    ops.MbarrierWait, ops.Parallel, ops.Store, ops.TmaLoad, ops.Yield,
)  # fmt: skip


def batch_conditions(func: Func, target: Target) -> Func:
    if func.attrs.get("may_alias"):
        return func
    found = _Loops(func)
    lead = LeadThread(found.defs, found.written, found.branch)
    led = func.body.rewrite(ops.If, lead.by_warp)
    if led is not func.body:
        func = func.with_body(led)
        found = _Loops(func)
    body = func.body.rewrite(Op, found.visit)
    return func.with_body(found.asked_early(body) if found.first else body)


class _Loops:
    def __init__(self, func: Func) -> None:
        self.written = changing_tensors(func)
        self.numbers = ops.constants(func.body)
        self.uniformity: Uniformity | None = None
        self.func = func
        self.first: set[Op] = set()  # who asks for a loop's first word

    @functools.cached_property
    def defs(self) -> dict[Value, Op]:
        return self.func.body.defs

    def visit(self, o: Op) -> None | list[Op]:
        jumps = self.asks(o) if isinstance(o, ops.For) else None
        if jumps is None:
            return None
        if not self.in_lanes(jumps):
            return jumps.of_a_thread()
        made = jumps.of_lanes()
        self.first.add(next(x for x in made if isinstance(x, ops.If)))
        return made

    def asked_early(self, block: Block) -> Block:
        """`block`, and those inside, with the first words asked for in front of waits for tiles."""
        statements: list[Op] = []
        for o in block.ops:
            statements.append(o if o in self.first else o.with_regions(self.asked_early))
        for asked in [o for o in statements if o in self.first]:
            at = end = statements.index(asked)
            while at and _passes(statements[at - 1]):
                at -= 1
            defs = makers(statements[at:end])
            needs = [*upstream(asked.uses, defs), asked]
            if all(o is asked or is_clonable(o, self.written) for o in needs):
                rest = [o for o in statements[at : end + 1] if o not in needs]
                statements[at : end + 1] = [*needs, *rest]
        return replace(block, ops=tuple(statements))

    def branch(self, o: ops.For) -> ops.If | None:
        """The condition of such a loop, which one thread runs: all lanes of its warp may."""
        jumps = self.asks(o, by_one=True)
        return jumps.branch if jumps else None

    def asks(self, o: ops.For, by_one: bool = False) -> _Jumps | None:
        """What becomes of the loop, where it is one of those."""
        if o.kind not in ("serial", "pipelined") or o.inits:
            return None
        if self.numbers.get(o.step) != 1 or o.lo.dtype.kind != "int":
            return None
        indices = o.indices(self.numbers.get)
        if indices is not None and len(indices) < FEWEST:
            return None
        *head, branch = o.body.ops[:-1]
        if not isinstance(branch, ops.If) or branch.results or len(branch.orelse.ops) > 1:
            return None
        if not all(is_clonable(x, self.written) for x in head):
            return None
        defs = makers(head)
        used = [v for x in walk(branch.then) for v in x.operands]
        made = [*upstream((branch.cond,), defs)]
        if not self.pays(o.body.args[0], made, used):
            return None
        self.uniformity = self.uniformity or uniformity_of(self.func)
        if not by_one and self.uniformity.level(branch.cond) is Level.THREAD:
            return None
        return _Jumps(o, branch, made, [*upstream(used, defs)])

    def pays(self, n: Value, made: list[Op], used: list[Value]) -> bool:
        """Whether the condition, which is computed by `made`, asks for elements of tensors in each
        iteration, which the body does not use, too."""
        loads = {x.result for x in made if isinstance(x, ops.Load)}
        return bool(loads) and loads.isdisjoint(used) and any(n in x.operands for x in made)

    def in_lanes(self, jumps: _Jumps) -> bool:
        """Whether the lanes of a warp can ask for one condition each: all of them run the loop, and
        no barrier in it needs to know that it is the same word for all warps."""
        if jumps.branch.then.has(ops.Barrier):
            return False
        numbers = ("int", "uint", "float")
        if any(x.result.dtype.kind not in numbers for x in jumps.made if isinstance(x, ops.Load)):
            return False
        return uniformity_of(self.func).around(jumps.loop) < Level.THREAD


def _passes(o: Op) -> bool:
    """Whether what nobody writes is the same in front of `o`, which brings tiles or waits."""
    return o.pure or isinstance(o, _PASSED) and all(_passes(x) for r in o.regions for x in r.ops)


class _Jumps:
    """The loop over the iterations whose condition, computed by `made`, holds; `before` is computed
    for the body."""

    def __init__(self, loop: ops.For, branch: ops.If, made: list[Op], before: list[Op]) -> None:
        self.loop, self.branch, self.made, self.before = loop, branch, made, before
        self.n, self.dtype = loop.body.args[0], loop.lo.dtype
        self.start = Value(self.n.type, self.n.name)
        self.outer = Builder(loop.loc)

    def of_a_thread(self) -> list[Op]:
        """One thread asks for all conditions of a word."""
        outer, start, dtype = self.outer, self.start, self.dtype
        last = outer.binary("sub", self.loop.hi, 1)
        word = outer.const(0, UINT32)
        for number in range(BITS):
            at = start
            if number:
                at = outer.binary("add", start, number)
                at = outer.binary("min", at, last)
            own: Substitution = {self.n: at}
            outer.ops += [x.clone(own) for x in self.made]
            bit = outer.cast(own[self.branch.cond], UINT32)
            if number:
                bit = outer.binary("shl", bit, number)
            word = outer.binary("or", word, bit)
        # Of what is behind the last iteration, which has its condition, nothing is done.
        count = outer.binary("sub", self.loop.hi, start)
        count = outer.binary("min", count, BITS)
        beyond = outer.binary("sub", outer.const(BITS, dtype), count)
        every = outer.const((1 << BITS) - 1, UINT32)
        mask = outer.binary("shr", every, outer.cast(beyond, UINT32))
        word = outer.binary("and", word, mask)
        self.do(word, last)
        outer.emit(ops.Yield)
        b = Builder(self.loop.loc)
        return self.over_words(b, (), ())

    def of_lanes(self) -> list[Op]:
        """Each lane of a warp asks for one. What its tensors say of the next word is carried into
        the next iteration as it was loaded, for whoever computes with it waits for it."""
        b, outer = Builder(self.loop.loc), self.outer
        lane = b.binary("and", b.value(ops.Lane), BITS - 1)
        mine = b.cast(lane, self.dtype)
        last = b.binary("sub", self.loop.hi, 1)
        defs = {x.result: x for x in self.made}
        loads = [x.result for x in self.made if isinstance(x, ops.Load)]

        def ask(b: Builder, at: Value) -> list[Value]:
            own: Substitution = {self.n: b.binary("min", at, last)}
            b.ops += [x.clone(own) for x in upstream(loads, defs)]
            return [own[v] for v in loads]

        some, some_at_all = Builder(self.loop.loc), b.compare("lt", self.loop.lo, self.loop.hi)
        values = ask(some, some.binary("add", self.loop.lo, mine))
        asked = or_zeros(b, some_at_all, some, values)

        at = outer.binary("add", self.start, mine)
        held = {v: Value(v.type, v.name) for v in loads}
        own: Substitution = {**held, self.n: outer.binary("min", at, last)}
        outer.ops += [x.clone(own) for x in upstream((self.branch.cond,), defs, held)]
        inside = outer.compare("le", at, last)
        holds = outer.binary("and", own[self.branch.cond], inside)
        word = outer.cast(holds, UINT32)
        word = outer.binary("shl", word, outer.cast(lane, UINT32))
        for bit in range(5):
            word = outer.binary("or", word, outer.value(ops.ShuffleXor, word, 1 << bit))
        behind = outer.binary("add", at, BITS)
        following = ask(outer, behind)
        self.do(word, last)
        outer.emit(ops.Yield, tuple(following))
        return self.over_words(b, asked, held.values())

    def do(self, word: Value, last: Value) -> None:
        """The body for each bit of the word."""
        test, inner, dtype = Builder(self.loop.loc), Builder(self.loop.loc), self.dtype
        asked, left = Value(word.type, "left"), Value(word.type, "left")
        test.emit(ops.Yield, (test.compare("ne", asked, 0),))
        place = inner.cast(inner.value(ops.Unary, "ctz", left), dtype)
        # (Not behind the last one: what is known of an index stays known.)
        at = inner.binary("min", inner.binary("add", self.start, place), last)
        own: Substitution = {self.n: at}
        inner.ops += [x.clone(own) for x in (*self.before, *self.branch.then.ops[:-1])]
        fewer = inner.binary("sub", left, 1)
        inner.emit(ops.Yield, (inner.binary("and", left, fewer),))
        self.outer.emit(ops.While, (word,), test.block((asked,)), inner.block((left,)))

    def over_words(self, b: Builder, inits: Sequence[Value], held: Iterable[Value]) -> list[Op]:
        step = b.const(BITS, self.dtype)
        body = self.outer.block((self.start, *held))
        b.emit(ops.For, "serial", self.loop.lo, self.loop.hi, step, tuple(inits), body)
        return b.ops


# --- one thread of a warp -------------------------------------------------------------------------


Wanted = Callable[[ops.For], ops.If | None]


class LeadThread:
    """What one thread of a group does, written so that all lanes of its warp run the loops.
    `by_warp` takes the branch of the first thread of a warp, as in

        if lane == 0 and warp == 0: before; for n in range(lo, hi): if c(n): body; behind

    with a loop that is `wanted` (whose branch `wanted` gives), and makes of it

        before, behind: only the first lane does what others see
        if warp == 0: for n in range(lo, hi): if c(n): if lane == 0 …: body

    Where such a loop stands in another one over what the first lane takes from a counter (a
    persistent block's tiles), the others are told what it has got.

    Each lane has registers and `local` buffers of its own: those of the others hold what is not
    looked at, for all that the loop itself depends on is computed without them."""

    def __init__(self, defs: Mapping[Value, Op], written: set[Value], wanted: Wanted) -> None:
        self.defs, self.written, self.wanted = defs, written, wanted

    def by_warp(self, branch: ops.If) -> list[Op] | None:
        """None where `branch` is no such one."""
        warp = self._warp(branch)
        if warp is None or branch.results or len(branch.orelse.ops) > 1:
            return None
        places = (x for o in branch.then.ops for x in (o, *self._repeated(o)))
        if not any(isinstance(o, ops.For) and self.wanted(o) for o in places):
            return None
        made = self._spread(branch.then.ops, branch.cond)
        return made and [
            replace(branch, cond=warp, then=Block((), (*made, ops.Yield(loc=branch.loc))))
        ]

    def _warp(self, branch: ops.If) -> Value | None:
        """The condition on the warp of `lane == 0 and warp == n`."""
        both = self.defs.get(branch.cond)
        if not isinstance(both, ops.Binary) or both.kind != "and":
            return None
        for lane, warp in ((both.lhs, both.rhs), (both.rhs, both.lhs)):
            if self._is_index(lane, ops.Lane) and self._is_index(warp, ops.Warp):
                return warp
        return None

    def _is_index(self, cond: Value, kind: type[Op]) -> bool:
        """Whether `cond` is "this lane (or warp) is the one with that number"."""
        o = self.defs.get(cond)
        return (
            isinstance(o, ops.Compare)
            and o.kind == "eq"
            and isinstance(self.defs.get(o.lhs), kind)
            and isinstance(self.defs.get(o.rhs), ops.Const)
        )

    def _spread(self, statements: Iterable[Op], lead: Value) -> list[Op] | None:
        """The ops for all lanes; what is seen from outside is done where `lead` holds."""
        made: list[Op] = []
        held: list[Op] = []

        def flush() -> None:
            if held:
                made.append(under(lead, held))
                held.clear()

        for o in statements:
            if isinstance(o, ops.Yield):
                continue
            branch = self.wanted(o) if isinstance(o, ops.For) else None
            if branch is not None and isinstance(o, ops.For):
                if not self._agreed(o, branch):
                    return None
                flush()
                *inside, end = branch.then.ops
                led = replace(branch, then=Block((), (under(lead, inside), end)))
                body = tuple(led if x is branch else x for x in o.body.ops)
                made.append(replace(o, body=replace(o.body, ops=body)))
            elif isinstance(o, ops.While) and self._repeated(o):
                flush()
                told = self._told(o, lead)
                if told is None:
                    return None
                made.append(replace(o, body=told))
            elif isinstance(o, ops.Atomic):
                flush()
                made.append(or_zero(lead, o))
            elif o.pure or isinstance(o, ops.Alloc):
                made.append(o)  # nothing that is held back gives it a value
            elif self._is_own(o):
                flush()
                made.append(o)
            elif o.results:
                return None
            else:
                held.append(o)
        flush()
        return made

    def _repeated(self, o: Op) -> tuple[Op, ...]:
        """What a `while` does again and again, for whose end nothing has to be done."""
        return (
            o.body.ops if isinstance(o, ops.While) and all(x.pure for x in o.cond.ops[:-1]) else ()
        )

    def _told(self, loop: ops.While, lead: Value) -> Block | None:
        """The body of a `while`, whose next values the first lane tells the others."""
        made = self._spread(loop.body.ops, lead)
        if made is None:
            return None
        b = Builder(loop.loc, made)
        first = b.const(0)
        b.emit(ops.Yield, tuple(b.value(ops.Shuffle, v, first) for v in ops.yielded(loop.body)))
        return b.block(loop.body.args)

    def _agreed(self, loop: ops.For, branch: ops.If) -> bool:
        """Whether all lanes compute the same bounds and conditions."""
        given = loop.lo, loop.hi, branch.cond
        return all(is_clonable(x, self.written) for x in upstream(given, self.defs))

    def _is_own(self, o: Op) -> bool:
        """Whether `o` is about registers and buffers of its own thread, or reads what nobody
        writes."""
        return not o.region_fields and all(
            e.region is not None
            and (e.region.type.space == "local" or is_clonable(o, self.written))
            for e in o.effects()
        )
