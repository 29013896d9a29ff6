"""split_roles: the products of a loop in warpgroups of their own, on either side of what threads
compute.

Before and after: TILE. With the plan's `roles`, a pipelined loop whose products form a chain (one
takes as its A what threads made of the result of others: S = Q K^T, P = softmax(S), O += P V) is
cut behind what threads make, into groups of 128 threads that run beside one another:

- the first one does everything up to the cut, with the accumulator of the first products and, as
  far as registers go, those A tiles in registers that are the same in all iterations: they take no
  shared memory any more, and their products read half as much of it;
- the others each hold a part of the columns of the last accumulators, and do what touches those.

So the accumulators of both sides need not fit into one thread, and the tensor cores have the last
products of one iteration while the first group computes with the result of the next. What crosses
the cut lies in shared memory: a tile in the place of one that only the first products read, which
they have done with by then, where there is such a one of its shape. The groups behind the cut bring
the tiles, as they are the last to read them: each the columns that it takes itself.

Both ends of a block go by TMA. The first group begins by asking for what is the same in all
iterations; what goes on to registers comes through the last stage of a tile alike, which is filled
for its iteration when that has been `taken`. The sums leave through the first stage of a tile that
their group alone still reads, where one has their columns and the tensor's dtype.

Four mbarriers for each stage order the groups: `full`, the tiles have come; `scored`, the first
products have ended; `ready`, what crosses is there; `free`, the last products have ended. The last
products of an iteration begin when the first ones of the *next* have ended (`scored`), not before:
their long instructions would leave the tensor cores to the first group, on which everything waits,
for a part of the time only. What comes of it is a program as an author may write it by hand
(`T.ws`, `T.alloc_barrier`, `T.tma_copy`), and is lowered, ordered and simulated as one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Region, Substitution, Value, rewritten, with_boxes
from tilec.ir.errors import CompileError, ResourceError
from tilec.ir.types import INT32, ScalarType
from tilec.passes.utils.building import columns
from tilec.passes.utils.column_parts import ColumnPart
from tilec.passes.utils.dependence import modref
from tilec.passes.utils.late_scalars import load_in_scopes
from tilec.passes.utils.operands import part_of_sum
from tilec.passes.utils.registers import at_launch
from tilec.passes.utils.role_cut import GROUP_WARPS, LAST_GROUPS, Cut, kind_of, like, writes
from tilec.passes.utils.slicing import Slice
from tilec.target import Target

At = tuple[Value, Value]  # a stage of the rings, and the parity of its phases there
INT32_SCALAR = ScalarType(INT32)


def split_roles(func: Func, target: Target) -> Func:
    """Raises ResourceError where the plan wants roles and the function has no such loop, or one
    that does not fit."""
    if not func.attrs.get("roles"):
        return func
    return _Roles(func, target).split()


@functools.lru_cache(maxsize=8)
def refusal(func: Func, target: Target) -> ResourceError | None:
    """Why a normalised function cannot be split on `target`; None if it can be."""
    if not (target.has("wgmma") and target.has("tma") and target.has("setmaxnreg")):
        return ResourceError(f"{target} has no warpgroups", func.loc, "leave roles out")
    try:
        _Roles(func, target).split()
    except ResourceError as error:
        return error
    return None


class _Roles(Cut):
    """The groups on both sides of a cut."""

    def split(self) -> Func:
        self.choose()
        top = Builder(self.func.loc)
        for o in self.func.body.ops:
            if o in self.scalars or (isinstance(o, ops.Alloc) and o.result in self.kept):
                top.ops.append(o)
        for v in (*self.own, *self.new):
            top.ops.append(ops.Alloc(v.buffer, results=(v,), loc=top.loc))
        for v, count in self.barriers.values():
            top.ops.append(ops.Alloc(v.buffer, results=(v,), loc=top.loc))
            for slot in range(v.buffer.size):
                top.emit(ops.MbarrierInit, v, count, slot)
        trips = top.fold("sub", self.loop.hi, self.loop.lo)
        self.trips = top.binary("max", trips, top.const(0), name="trips")
        top.emit(ops.Scope, "first", 0, GROUP_WARPS, self._first())
        for part in range(LAST_GROUPS):
            top.emit(
                ops.Scope, f"last_{part}", GROUP_WARPS * (part + 1), GROUP_WARPS, self._last(part)
            )
        top.emit(ops.Yield)
        func = self.func.with_body(load_in_scopes(top.block(), self.written))
        threads = (1 + LAST_GROUPS) * GROUP_WARPS * self.target.warp_size
        return func.with_attrs(by_hand=True, threads=threads)

    # --- the groups ---

    def _registers_of(self, b: Builder, count: int) -> None:
        launched = at_launch((1 + LAST_GROUPS) * GROUP_WARPS * 32, self.target)
        if count != launched and self.target.has("setmaxnreg"):
            b.emit(ops.SetRegisters, count, count > launched)

    def _arrive(self, b: Builder, name: str, stage: Value) -> None:
        """All threads arrive: one for each warp, behind a meeting of its lanes, takes as long, and
        racecheck reports what the others have written."""
        b.emit(ops.MbarrierArrive, self.barriers[name][0], stage)

    def _wait(self, b: Builder, name: str, at: tuple[Value, Value]) -> None:
        b.emit(ops.MbarrierWait, self.barriers[name][0], *at)

    def _count(self, b: Builder, body: Callable[[Builder, Value, At, At], None]) -> At:
        """A loop over the iterations' numbers: a `body` for one, at its stage and before the next
        one's. Returns the stage behind the last."""
        inner = Builder(self.loop.loc)
        t, *at = (Value(INT32_SCALAR, name) for name in ("t", "slot", "parity"))
        more = inner.fold("add", at[0], 1)
        wraps = inner.compare("eq", more, inner.const(self.stages))
        slot = inner.select(wraps, inner.const(0), more)
        following = slot, inner.fold("xor", at[1], inner.cast(wraps, INT32))
        body(inner, t, (at[0], at[1]), following)
        inner.emit(ops.Yield, following)
        none, block = b.const(0), inner.block([t, *at])
        done = b.emit(ops.For, "serial", none, self.trips, b.const(1), (none, none), block)
        return done.results[0], done.results[1]

    def _scalars(self, b: Builder, statements: Sequence[Op], t: Value) -> Substitution:
        """What `ops` of the loop need of iteration number `t`, computed at `b`."""
        subst: Substitution = {self.loop.body.args[0]: b.fold("add", self.loop.lo, t)}
        b.ops += Slice(self.loop.body, statements).scalars(self.statements, subst)
        return subst

    def _first(self) -> Block:
        b = Builder(self.loop.loc)
        self._registers_of(b, self.registers[0])
        self._bring_once(b)
        vectors = [v for v in self.crossing if v.space == "fragment"]
        takes = [v for v in vectors if any(v in self.uses[o] for o in self.late)]
        makers = [o for o in self.early if any(writes(o, v) for v in self.crossing)]
        products = [o for o in self.early if isinstance(o, ops.Gemm)]

        def body(b: Builder, t: Value, at: At, following: At) -> None:
            subst = self._scalars(b, self.early, t)
            self._wait(b, "full", at)
            flying = False
            for o in self.early:
                b.loc = o.loc
                if flying and not isinstance(o, ops.Gemm):
                    b.emit(ops.WgmmaWait, 0, ())
                    flying = False
                if isinstance(o, ops.Gemm):
                    b.ops += self._pieces(o, subst, at[0])
                    flying = True
                else:
                    b.ops += restaged(o.clone(subst), self.staged, at[0], self.refuse_at)
                if products and o is products[-1]:
                    b.emit(ops.WgmmaWait, 0, ())
                    flying = False
                    self._arrive(b, "scored", at[0])
                if makers and o is makers[-1]:
                    for v in takes:
                        self._hand_on(b, v, at[0])
                    b.emit(ops.ProxyFence)  # products read what these threads wrote
                    self._arrive(b, "ready", at[0])

        stage, parity = self._count(b, body)
        self._arrive(b, "scored", stage)
        for o in self.after:
            if not self.is_late(o):
                b.ops.append(o.clone({}))
        if vectors:  # what they are in the end, for what stands behind the loop
            self._wait(b, "free", (stage, b.fold("xor", parity, 1)))
            for v in vectors:
                self._hand_on(b, v, stage)
            self._arrive(b, "ready", stage)
        return b.block()

    def _hand_on(self, b: Builder, v: Value, stage: Value) -> None:
        b.emit(ops.Copy, b.whole(v), self._slot(b, v, stage))

    def _slot(self, b: Builder, v: Value, stage: Value) -> Region:
        return b.whole(v).within(self.ring[v], stage)

    def _last(self, part: int) -> Block:
        b = Builder(self.loop.loc)
        self._registers_of(b, self.registers[1])
        own = {
            v: like(
                v, (*v.buffer.static_shape[:-1], v.buffer.static_shape[-1] // LAST_GROUPS), v.name
            )
            for v in self.sums
        }
        vectors = {v: like(v, v.buffer.static_shape, v.name) for v in self.crossing}
        vectors = {v: x for v, x in vectors.items() if x.space == "fragment"}
        for x in (*own.values(), *vectors.values()):
            b.ops.append(ops.Alloc(x.buffer, results=(x,), loc=b.loc))
        tiles = {v: parts[part] for v, parts in self.parts.items()}
        columns = ColumnPart(part, LAST_GROUPS, own, tiles, self.refuse_at)
        for o in self.before:
            if self.is_late(o):
                b.ops += columns.statement(o, {})
        ahead = b.fold("min", self.trips, self.stages)

        def begin(b: Builder, t: Value) -> None:
            if self.lent:
                none = b.const(0)
                with b.when(b.compare("eq", t, b.const(self.stages - 1))) as taken:
                    self._wait(taken, "taken", (none, none))
            self._bring(b, part, t, t, self._scalars(b, self._brought_by(part), t))

        def body(b: Builder, t: Value, at: At, following: At) -> None:
            subst = self._scalars(b, self.late, t)
            later = b.fold("add", t, self.stages)
            # Where it comes from is found out while the products run; at the end, of the last one.
            last = b.fold("sub", self.trips, 1)
            scalars = self._scalars(b, self._brought_by(part), b.fold("min", later, last))
            self._wait(b, "ready", at)
            for v in vectors:
                if any(v in self.uses[o] for o in self.late):
                    b.emit(ops.Copy, self._slot(b, v, at[0]), b.whole(vectors[v]))
            gated = False
            for o in self.late:
                b.loc = o.loc
                if isinstance(o, ops.Gemm) and not gated:
                    self._wait(b, "scored", following)
                    gated = True
                for x in columns.statement(o, {**subst, **vectors}):
                    for y in restaged(x, self.staged, at[0], self.refuse_at):
                        if isinstance(y, ops.Gemm):
                            b.ops.append(replace(y, asynchronous=True, policy="square"))
                            b.emit(ops.WgmmaWait, 0, ())
                        else:
                            b.ops.append(y)
            self._arrive(b, "free", at[0])
            with b.when(b.compare("lt", later, self.trips)) as more:
                more.loc = self.loop.loc
                self._wait(more, "free", at)
                self._bring(more, part, later, at[0], scalars)

        with b.counted(ahead, "t", "serial") as (first, inner):
            begin(inner, first)
        at = self._count(b, body)
        if vectors:
            self._wait(b, "ready", at)
            for v, x in vectors.items():
                b.emit(ops.Copy, self._slot(b, v, at[0]), b.whole(x))
        for o in self.after:
            if self.is_late(o):
                by_tma = isinstance(o, ops.Copy) and self.engines.tma_may_store(o)
                for y in columns.statement(o, dict(vectors)):
                    b.ops += self._through_a_tile(y, part) if by_tma else [y]
        return b.block()

    def _through_a_tile(self, o: Op, part: int) -> list[Op]:
        """What a copy of a group's columns to a tensor becomes: through the first stage of a tile
        alike that is the group's, from where TMA takes it. All has been read there by now."""
        if not isinstance(o, ops.Copy):
            return [o]
        kind = o.source.type.static_shape, o.dest.dtype
        own = [x[part] for x in self.parts.values() if kind_of(x[part]) == kind]
        if not own or not o.source.is_whole:
            return [o]
        b = Builder(o.loc)
        tile = self._slot(b, own[0], b.const(0))
        b.emit(ops.Copy, o.source, tile)
        b.emit(ops.Copy, tile, o.dest, engine="tma_store")
        return b.ops

    # --- tiles ---

    def _brought_by(self, part: int) -> list[Op]:
        """The copies by which a group brings tiles: its part of those that are shared out, and the
        first one all others."""
        return [o for o in self.copies if o.dest.buffer in self.parts or part == 0]

    def _bring(
        self, b: Builder, part: int, t: Value, stage: Value, subst: Mapping[Value, Value]
    ) -> None:
        """Start to bring what this group brings of an iteration into a stage."""
        full = self.barriers["full"][0]
        for x in self._brought_by(part):
            assert isinstance(x, ops.Copy)
            b.loc = x.loc
            source = x.clone(dict(subst)).source
            tile = x.dest.buffer
            if tile in self.parts:
                tile = self.parts[tile][part]
                source = _share(b, source, part, LAST_GROUPS)
            b.emit(ops.TmaCopy, source, self._slot(b, tile, stage), full, stage, x.eviction_policy)
        self._arrive(b, "full", stage)

    def _bring_once(self, b: Builder) -> None:
        """What the first group does before the loop. What TMA brings it begins with; what goes on
        to registers from a stage it takes at the end, and tells those who fill that stage."""
        none, last = b.const(0), b.const(self.stages - 1)
        for o in self.once:
            b.loc = o.loc
            sides = [(o.source, o.dest)]
            if held := self.lent.get(o.dest.buffer):
                shares = (_share(b, o.source, i, len(held)) for i in range(len(held)))
                sides = [(x, self._slot(b, v, last)) for x, v in zip(shares, held)]
            for source, dest in sides:
                b.emit(ops.TmaCopy, source, dest, self.barriers["came"][0], none, o.eviction_policy)
        if self.once:
            self._arrive(b, "came", none)
        awaited = {o.dest.buffer for o in self.once}
        for x in self.before:
            if x in self.once or self.is_late(x):
                continue
            if any(v in awaited for v in modref(x)):
                self._wait(b, "came", (none, none))
                awaited = set()
            if isinstance(x, ops.Copy) and x.dest.buffer in self.promoted:
                b.ops += self.promoted[x.dest.buffer].filled(x)
            else:
                b.ops.append(x.clone({}))
        if awaited:
            self._wait(b, "came", (none, none))
        for o in (o for o in self.once if o.dest.buffer in self.lent):
            b.loc = o.loc
            v, held = o.dest.buffer, self.lent[o.dest.buffer]
            width = v.buffer.static_shape[-1] // len(held)
            for part, lo, hi in self.promoted[v].parts():
                slot, at = self._slot(b, held[lo // width], last), lo % width
                b.emit(ops.Copy, columns(b, slot, at, hi - lo), b.whole(part))
        if self.lent:
            self._arrive(b, "taken", none)

    def _pieces(self, o: ops.Gemm, subst: Substitution, stage: Value) -> list[Op]:
        """A product of the first group, k by k where its operands lie in several buffers."""
        b = Builder(o.loc)
        o = o.clone(subst)
        k = o.shape[2]
        promoted, parts = self.promoted.get(o.a.buffer), self.parts.get(o.b.buffer)
        cuts = {0, k}
        if promoted is not None:
            cuts |= {*promoted.cuts}
        if parts is not None:
            if not o.transpose_b or not o.b.is_whole:
                raise self.refuse_at(o, "B is shared out by columns, which it does not sum over")
            cuts |= {n * k // LAST_GROUPS for n in range(LAST_GROUPS)}
        edges = sorted(cuts)
        for lo, hi in zip(edges, edges[1:]):
            piece = part_of_sum(b, o, lo, hi - lo)
            if promoted is not None:
                piece = replace(piece, a=promoted.piece(b, lo, hi))
            if parts is not None:
                n = lo // (k // LAST_GROUPS)
                tile, shift = b.whole(parts[n]), n * k // LAST_GROUPS
                piece = replace(piece, b=columns(b, tile, lo - shift, hi - lo))
            clear = o.clear and lo == 0
            piece = replace(piece, clear=clear, policy="square", asynchronous=True)
            b.ops += restaged(piece, self.staged, stage, self.refuse_at)
        return b.ops


def _share(b: Builder, r: Region, number: int, count: int) -> Region:
    """One of equal parts of a region's columns."""
    width = r.extents[-1] // count
    return columns(b, r, number * width, width)


# --- stages of larger buffers ---
#
# Buffers that have become a stage of larger ones: what ops of a program by hand touch of them.


def restaged(
    o: Op, ring: Mapping[Value, Value], stage: Value, refuse: Callable[[Op, str], CompileError]
) -> list[Op]:
    """`o` where each buffer of `ring` is stage `stage` of another, whose first dimension counts
    them. Raises the error that `refuse` makes for an op that takes such a buffer as a whole."""

    def visit(x: Op) -> None | Op:
        if isinstance(x, ops.Load | ops.Store) and x.buffer in ring:
            return x.at(ring[x.buffer], (stage, *x.indices))
        done = with_boxes(x, lambda r: r.within(ring[r.buffer], stage) if r.buffer in ring else r)
        for v in done.operands:
            if v in ring:
                raise refuse(x, f"{v.name} is more than one tile")
        return done

    return [*rewritten([o], visit)]
