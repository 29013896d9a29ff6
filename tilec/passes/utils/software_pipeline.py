"""Software pipelines: a loop whose statements are `arrange`d, as the consumers of a scope do it.

Of a loop with stages 0 and 1 the first iteration's stage 0 stands before the loop (the prologue),
the last one's stage 1 behind it (the epilogue); between, an iteration does stage 0 of its own and
stage 1 of the one before (the steady state). Products are started and left in flight. Who touches
what one of them uses waits for it first, and the stages of rings that it was the last to read are
freed right behind that wait: a stage is free when nobody reads it any more, not when the product
that does was started.

With `turns` the warpgroups of the scope start the products of an iteration one after the other, so
that one computes while the other's products run, however they began. As each is behind the first
one in its turn, only the first waits for what TMA brings to these products."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Op, Substitution, Value, walk
from tilec.ir.effects import acting
from tilec.passes.utils.consumer_groups import FIRST_ORDERED
from tilec.passes.utils.dependence import disturbs, modref
from tilec.passes.utils.rings import Position, Ring, is_brought
from tilec.passes.utils.slicing import Slice

ORDERED = FIRST_ORDERED + 1  # the first of the warpgroups' named barriers


def give_first_turn(b: Builder, warpgroups: int) -> None:
    """What a scope with turns begins with: its last warpgroup gives the turn to the first."""
    with b.when(b.compare("ge", b.value(ops.Warp), b.const(4 * (warpgroups - 1)))) as arrive:
        arrive.emit(ops.OrderedArrive, ORDERED, warpgroups)


def held_in_flight(products: list[ops.Gemm]) -> tuple[Value, ...]:
    """The fragments that products use while they are in flight."""
    inputs = dict.fromkeys(r.buffer for o in products for r in (o.a, o.b))
    return (*(o.c for o in products), *(v for v in inputs if v.space == "fragment"))


def free_running(
    loop: ops.For, ringed: Iterable[Value], versions: Collection[Value] = ()
) -> list[ops.Gemm]:
    """The wgmma products of the loop, if nothing else in the loop touches their fragments, or the
    shared memory that they read beside the buffers of its rings; [] otherwise. `versions`: the
    fragments that each iteration has for itself."""
    products = [o for o in loop.body.ops if isinstance(o, ops.Gemm) and o.is_asynchronous]
    accumulators = {o.c for o in products}
    if len(accumulators) != len(products) or any(o.clear for o in products):
        return []
    inputs = held_in_flight(products)[len(products) :]
    if accumulators & set(inputs):
        return []
    besides = {r.buffer for o in products for r in o.inputs}.difference(ringed, versions)
    for o in walk(loop.body):
        if o not in products and (accumulators | besides) & set(o.operands):
            return []
    return products


def filled(loop: ops.For) -> list[Value]:
    """The fragments, and shared tiles that threads make, that each iteration of a loop fills whole
    before its products read them, and nothing touches behind."""
    products = [o for o in loop.body.ops if isinstance(o, ops.Gemm) and o.is_asynchronous]
    own = {o.result for o in loop.body.every(ops.Alloc)}
    found = []
    for v in dict.fromkeys(r.buffer for o in products for r in o.inputs):
        uses = [(o, at[v]) for o in loop.body.ops if v in (at := modref(o))]
        if v.space == "shared" and not isinstance(uses[0][0], ops.Parallel):
            continue
        first = next(n for n, (o, _) in enumerate(uses) if o in products)
        alone = all(o in products for o, _ in uses[first:])
        if first and uses[0][1].whole and alone and v not in own:
            found.append(v)
    return found


@dataclass
class _Iteration:
    """What is done of the iterations at one place: `subst` for each stage, the products in flight
    with the rings that each frees, and the stages of rings that are held."""

    b: Builder
    subst: dict[int, Substitution]
    flying: list[tuple[ops.Gemm, list[Ring]]] = field(default_factory=list)
    held: dict[Ring, tuple[Value, Value]] = field(default_factory=dict)
    first: Value | None = None  # whether this is the first warpgroup, which waits for all


class SoftwarePipeline:
    """A loop with `order` and `stage`, whose statements read rings at these positions, in a scope
    of so many `warpgroups`."""

    def __init__(self, loop: ops.For, positions: Mapping[Ring, Position], warpgroups: int) -> None:
        self.loop = loop
        self.positions = positions
        self.warpgroups = warpgroups
        every = acting(loop.body)
        rings = {v: r for r in positions for v in r.buffers}
        self.stage: dict[Op, int] = {}
        self.reads: dict[Op, list[Ring]] = {}
        for n in loop.order:
            o = every[n]
            if not is_brought(o):
                used = (v for v in o.uses if v in rings)
                self.stage[o] = loop.stage[n]
                self.reads[o] = list(dict.fromkeys(rings[v] for v in used))
        products = [o for o in self.stage if isinstance(o, ops.Gemm)]
        self.turn = (products[0], products[-1]) if loop.turns else None
        self.uses = {o: modref(o) for o in self.stage}
        self.last = {r: o for o, read in self.reads.items() for r in read}
        self.parts = {
            s: Slice(loop.body, [o for o in self.stage if self.stage[o] == s])
            for s in set(self.stage.values())
        }

    def reads_late(self, ring: Ring) -> bool:
        """Whether the epilogue reads a ring, too."""
        late = (o for o, s in self.stage.items() if s == max(self.parts))
        used = {v for o in late for v in o.uses}
        return not used.isdisjoint(ring.buffers)

    def expanded(self, between: Sequence[Op] = ()) -> list[Op]:
        """What the loop becomes; `between` is what is done when no iteration has anything of the
        first stage left to do: before the epilogue, if there is one."""
        loop, b = self.loop, Builder(self.loop.loc)
        b.ops += [o for o in loop.body.ops if isinstance(o, ops.Alloc) and o.type.space != "shared"]
        index = loop.body.args[0]
        if len(self.parts) == 1:
            body = Builder(loop.loc)
            self._iteration(body, {s: index for s in self.parts}, self.turn)
            body.emit(ops.Yield)
            return [*b.ops, replace(loop, body=body.block(loop.body.args)), *between]
        first, steady, last = (Builder(loop.loc) for _ in range(3))
        self._iteration(first, {0: loop.lo})
        second = first.fold("add", loop.lo, loop.step)
        before = steady.fold("sub", index, loop.step)
        self._iteration(steady, {0: index, 1: before}, self.turn)
        steady.emit(ops.Yield)
        trips = last.fold(
            "floordiv", last.fold("sub", last.fold("sub", loop.hi, loop.lo), 1), loop.step
        )
        self._iteration(last, {1: last.fold("add", loop.lo, last.fold("mul", trips, loop.step))})
        rest = replace(loop, lo=second, body=steady.block(loop.body.args))
        runs = b.compare("gt", loop.hi, loop.lo)
        none = Block((), tuple(between)).clone({}).ops
        b.branch(runs, (*first.ops, rest, *between, *last.ops), none)
        return b.ops

    def _iteration(
        self,
        b: Builder,
        indices: Mapping[int, Value],
        turn: tuple[ops.Gemm, ops.Gemm] | None = None,
    ) -> None:
        """At `b` the statements of these stages, of the iterations with these indices; the products
        from one to another in `turn`."""
        at = _Iteration(b, {s: self._scalars(b, s, index) for s, index in indices.items()})
        if turn is not None:
            one = b.fold("floordiv", b.value(ops.Warp), 4)
            at.first = b.compare("eq", one, b.const(0))
        for o, s in self.stage.items():
            if s in indices:
                b.loc = o.loc
                self._statement(at, o, at.subst[s], turn)
        self._wait(at, len(at.flying))

    def _scalars(self, b: Builder, stage: int, index: Value) -> Substitution:
        """What the statements of a stage need of iteration `index`, computed at `b`."""
        subst = {self.loop.body.args[0]: index}
        b.ops += self.parts[stage].scalars(self.stage, subst)
        return subst

    def _statement(
        self, at: _Iteration, o: Op, subst: Substitution, turn: tuple[ops.Gemm, ops.Gemm] | None
    ) -> None:
        b = at.b
        chained = isinstance(o, ops.Gemm)
        for i in reversed(range(len(at.flying))):
            if disturbs(self.uses[o], self.uses[at.flying[i][0]], chained):
                self._wait(at, i + 1)
                break
        for r in self.reads[o]:
            if r not in at.held:
                position = self.positions[r]
                phase = position.get_phase(b)
                # (What threads read, in front of their turn perhaps, all of them wait for.)
                only = at.first if isinstance(o, ops.Gemm) else None
                stage = r.wait_full(b, position, only)
                at.held[r] = stage, phase
                subst.update((v, b.value(ops.RingStage, v, stage, name=v.name)) for v in r.buffers)
        freed = [r for r in self.reads[o] if self.last[r] is o]
        if isinstance(o, ops.Gemm):
            if turn is not None and o is turn[0]:
                b.emit(ops.OrderedWait, ORDERED, self.warpgroups)
            b.ops.append(replace(o, asynchronous=True).clone(subst))
            if turn is not None and o is turn[1]:
                b.emit(ops.OrderedArrive, ORDERED, self.warpgroups)
                at.first = None
            at.flying.append((o, freed))
        else:
            b.ops.append(o.clone(subst))
            self._free(at, freed)

    def _wait(self, at: _Iteration, count: int) -> None:
        """Wait for the oldest products, and free what they were the last to read."""
        if not count:
            return
        ended, at.flying = at.flying[:count], at.flying[count:]
        at.b.emit(ops.WgmmaWait, len(at.flying), held_in_flight([o for o, _ in ended]))
        for _, freed in ended:
            self._free(at, freed)

    def _free(self, at: _Iteration, rings: list[Ring]) -> None:
        for r in rings:
            r.free(at.b, self.positions[r], *at.held.pop(r))
