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

Four mbarriers for each stage order the groups: `full`, the tiles have come; `scored`, the first
products have ended; `ready`, what crosses is there; `free`, the last products have ended. The last
products of an iteration begin when the first ones of the *next* have ended (`scored`), not before:
their long instructions would leave the tensor cores to the first group, on which everything waits,
for a part of the time only. What comes of it is a program as an author may write it by hand
(`T.ws`, `T.alloc_barrier`, `T.tma_copy`), and is lowered, ordered and simulated as one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tilec.ir.analysis import acting
from tilec.ir.copy_engines import CopyEngines
from tilec.ir.core import Block, Builder, Func, Op, Region, Substitution, Value, clone, walk
from tilec.ir.dependence import ModRef, modref
from tilec.ir.effects import is_clonable, written_tensors
from tilec.ir.errors import ResourceError
from tilec.ir.ops import (
    Alloc,
    Binary,
    Compare,
    Copy,
    For,
    Gemm,
    If,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    ProxyFence,
    Scope,
    SetRegisters,
    TmaCopy,
    WarpSync,
    WgmmaWait,
    Yield,
    constants,
)
from tilec.ir.types import INT32, INT64, BufferType
from tilec.passes.utils.accesses import covered
from tilec.passes.utils.addressing import Numbers
from tilec.passes.utils.building import copy_whole, whole
from tilec.passes.utils.column_parts import ColumnPart
from tilec.passes.utils.promotion import Promoted, promote
from tilec.passes.utils.registers import RESERVED, at_launch
from tilec.passes.utils.restage import restaged
from tilec.passes.utils.rings import elected
from tilec.passes.utils.slicing import NotClonable, Slice
from tilec.target import Target

GROUP_WARPS = 4  # of a group
LAST_GROUPS = 2  # of the columns, each with a group of its own
KEPT = 4  # registers that ptxas wants free, beside `RESERVED`
MOST_REGISTERS = 240
LEAST_STAGES = 3  # with two, the next tile is asked for when the first group waits for it
BARRIERS = 4  # of a stage


def split_roles(func: Func, target: Target) -> Func:
    """See the module's opening. Raises ResourceError where the plan wants roles and the function
    has no such loop, or one that does not fit."""
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


class _Roles:
    """The two sides of the cut. `loop`: what is cut; `sums`: the accumulators behind the cut."""

    def __init__(self, func: Func, target: Target) -> None:
        self.func, self.target = func, target
        self.written = written_tensors(func.body)
        loops = [o for o in walk(func.body) if isinstance(o, For) and o.kind == "pipelined"]
        if len(loops) != 1 or loops[0] not in func.body.ops or func.attrs.get("by_hand"):
            raise self.refuse("it is not one T.Pipelined that stands at the top of the kernel")
        (self.loop,) = loops
        if constants(func.body).get(self.loop.step) != 1 or self.loop.lo.dtype != INT32:
            raise self.refuse("its loop does not count by ones")
        self.statements = acting(self.loop.body)
        self.uses = {o: modref(o, covered) for o in self.statements}
        engines = CopyEngines(func, target)
        self.copies = [
            o
            for o in self.statements
            if isinstance(o, Copy)
            and o.source.buffer not in self.written
            and o.dest.buffer.buffer.space == "shared"
            and o.dest.is_whole
            and engines.tma_may_load(o, o.dest.dtype)
        ]
        self.tiles = [o.dest.buffer for o in self.copies]
        self.sums = self._sums()
        self.late = [o for o in self.statements if self._is_late(o)]
        self.early = [o for o in self.statements if o not in self.late and o not in self.copies]
        ops = [o for o in func.body.ops if o is not self.loop and not isinstance(o, Yield)]
        at = func.body.ops.index(self.loop)
        mine = {o for o in acting(func.body) if o is not self.loop}
        self.scalars = [o for o in ops if o not in mine and not isinstance(o, Alloc)]
        self.before = [o for o in func.body.ops[:at] if o in mine]
        self.after = [o for o in func.body.ops[at:] if o in mine]
        self.crossing = self._crossing()
        self._check()

    def refuse(
        self, why: str, at: Op | None = None, hint: str = "leave roles out"
    ) -> ResourceError:
        loc = at.loc if at is not None else self.func.loc
        return ResourceError(f"{self.func.name} cannot be split into roles: {why}", loc, hint)

    def _statement(self, o: Op, why: str) -> ResourceError:
        return self.refuse(f"of what stands on line {o.loc.line}, {why}", o)

    # --- what belongs where ---

    def _sums(self) -> list[Value]:
        made = {
            v
            for o in self.statements
            if o not in self.copies
            for v, x in self.uses[o].items()
            if x.writes and v.buffer.space == "shared"
        }
        products = [o for o in self.loop.body.ops if isinstance(o, Gemm)]
        found = dict.fromkeys(o.c for o in products if o.a.buffer in made and not o.clear)
        if not found or len({o.c for o in products}) == len(found):
            raise self.refuse(
                "no product of its loop takes from shared memory what threads made of another's "
                "result"
            )
        return list(found)

    def _is_late(self, o: Op) -> bool:
        uses = self.uses[o] if o in self.uses else modref(o, covered)
        return any(v in uses for v in self.sums)

    def _crossing(self) -> list[Value]:
        """What the first group makes and the others take, tiles of the loop first."""
        made = {v for o in self.early for v, x in self.uses[o].items() if x.writes}
        made |= {
            v for o in self._early_outside() for v, x in modref(o, covered).items() if x.writes
        }
        taken = [v for o in self.late for v in self.uses[o]]
        taken += [v for o in self.after if self._is_late(o) for v in modref(o, covered)]
        found = [v for v in dict.fromkeys(taken) if v in made and v.buffer.space != "global"]
        return sorted(found, key=lambda v: v.buffer.space != "shared")

    def _early_outside(self) -> list[Op]:
        return [o for o in (*self.before, *self.after) if not self._is_late(o)]

    def _check(self) -> None:
        """That each side can do its part without what the other has in registers, and takes what
        crosses as an iteration, or the kernel, leaves it."""
        try:
            for side in (self.early, self.late, self.copies):
                Slice(self.loop.body, side)
        except NotClonable:
            raise self.refuse("what a statement needs cannot be computed twice") from None
        for o in self.scalars:
            if not is_clonable(o, self.written):
                raise self._statement(o, "no group can do it alone")
        if self.loop.inits or len(set(self.tiles)) < len(self.tiles):
            raise self.refuse("an iteration hands a value on, or brings a tile twice")
        for group in (self.statements, [*self.before, *self.after]):
            order = {o: n for n, o in enumerate(group)}
            for v in self.crossing:
                makers = [o for o in group if not self._is_late(o) and _writes(o, v)]
                takers = [o for o in group if self._is_late(o) and v in modref(o, covered)]
                if any(order[m] > order[t] for m in makers for t in takers):
                    raise self._statement(takers[0], f"{v.name} is made again behind it")
                if group is self.statements and takers and not any(_fills(o, v) for o in makers):
                    raise self._statement(takers[0], f"{v.name} is not made anew in each iteration")
        own = {*self.sums}
        for o in (*self.late, *self.before, *self.after):
            if not self._is_late(o):
                continue
            for v, x in modref(o, covered).items():
                known = v in own or v in self.crossing or v in self.tiles
                if v.buffer.space not in ("global", "local") and not known:
                    raise self._statement(o, f"{v.name} is the other group's")
                if x.writes and v not in own and v.buffer.space != "global":
                    raise self._statement(o, f"it writes {v.name}, too")
        outside = {v for o in (*self.before, *self.after) for v in modref(o, covered)}
        tiles = {v for v in self.crossing if v.buffer.space == "shared"} | {*self.tiles}
        for v in outside & tiles:
            raise self.refuse(f"{v.name} is used outside of the loop, too")
        read = {v for o in self.statements for v, x in self.uses[o].items() if x.reads}
        for v in (v for v in read & self.written if v.buffer.space == "global"):
            raise self.refuse(f"the kernel writes {v.name}, which it reads in the loop")

    # --- what comes of it ---

    def split(self) -> Func:
        self.choose()
        top = Builder(self.func.loc)
        for o in self.func.body.ops:
            if o in self.scalars or (isinstance(o, Alloc) and o.result in self.kept):
                top.ops.append(o)
        for v in (*self.own, *self.new):
            top.ops.append(Alloc(v.buffer, results=(v,), loc=top.loc))
        for v, count in self.barriers.values():
            top.ops.append(Alloc(v.buffer, results=(v,), loc=top.loc))
            for slot in range(self.stages):
                top.emit(MbarrierInit, v, count, slot)
        n = Numbers(top)
        trips = n.op("sub", self.loop.hi, self.loop.lo)
        self.trips = top.value(Binary, "max", trips, n.const(0), name="trips")
        top.emit(Scope, "first", 0, GROUP_WARPS, self._first())
        for part in range(LAST_GROUPS):
            top.emit(Scope, f"last_{part}", GROUP_WARPS * (part + 1), GROUP_WARPS, self._last(part))
        top.emit(Yield)
        func = self.func.with_body(top.block())
        threads = (1 + LAST_GROUPS) * GROUP_WARPS * self.target.warp_size
        return func.with_attrs(by_hand=True, threads=threads)

    def choose(self) -> None:
        """Registers of the groups, what is promoted to them, buffers and stages."""
        size = GROUP_WARPS * self.target.warp_size
        for v in self.sums:
            if v.buffer.static_shape[-1] % (8 * LAST_GROUPS):
                raise self.refuse(f"the columns of {v.name} cannot be shared out")
        behind = sum(_registers(v, size) for v in self.sums) // LAST_GROUPS
        last = -(-(RESERVED + behind + KEPT) // 8) * 8
        launched = at_launch((1 + LAST_GROUPS) * size, self.target)
        first = min((launched * (1 + LAST_GROUPS) - LAST_GROUPS * last) // 8 * 8, MOST_REGISTERS)
        fragments = {v for o in self.early for v in self.uses[o] if v.buffer.space == "fragment"}
        held = sum(n for v in fragments if (n := _registers(v, size)) > KEPT)
        left = first - RESERVED - KEPT - held
        if last > MOST_REGISTERS or left < 0:
            in_all = (1 + LAST_GROUPS) * (launched - RESERVED - KEPT)
            raise self.refuse(
                f"its first group needs {held} registers of a thread for fragments, each other one "
                f"{behind}, of {in_all} in all"
            )
        self.registers = (first, last)
        shared = {v for o in self.late for v in self.uses[o] if v in self.tiles}
        self.parts: dict[Value, list[Value]] = {}  # of tiles that are shared out by columns
        for v in (v for v in self.tiles if v in shared):
            *rows, columns = v.buffer.static_shape
            shape = (*rows, columns // LAST_GROUPS)
            self.parts[v] = [_like(v, shape, f"{v.name}_{n}") for n in range(LAST_GROUPS)]
        invariant = [*self.before, *self.early]
        self.promoted: dict[Value, Promoted] = promote(invariant, self.early, left, size)
        self._place()

    def _place(self) -> None:
        """Where tiles and what crosses lie, in how many stages."""
        used = {v for o in (*self.early, *self._early_outside()) for v in modref(o, covered)}
        allocs = {o.result for o in walk(self.func.body) if isinstance(o, Alloc)}
        self.kept = {
            v
            for v in allocs
            if v in used and v not in (*self.tiles, *self.promoted)
            if not (v in self.crossing and v.buffer.space == "shared")
        }
        shared = [v for v in self.kept if v.buffer.space == "shared"]
        shared += [p.rest for p in self.promoted.values() if p.rest is not None]
        self.slot_of: dict[Value, Value] = {}  # what crosses: the tile in whose place it is
        free = [v for v in self.tiles if v not in self.parts]
        made: list[Value] = []
        for v in self.crossing:
            alike = [x for x in free if _kind(x) == _kind(v)]
            if v.buffer.space == "shared" and alike:
                self.slot_of[v] = alike[0]
                free.remove(alike[0])
            else:
                made.append(v)
        ringed = [v for v in self.tiles if v not in self.parts]
        ringed += [x for parts in self.parts.values() for x in parts] + made
        each, fixed = sum(map(_bytes, ringed)), sum(map(_bytes, shared))
        room = (self.target.shared_bytes - fixed) // (each + BARRIERS * INT64.bits // 8)
        self.stages = min(room, max(self.loop.num_stages, LEAST_STAGES))
        if self.stages < LEAST_STAGES:
            raise self.refuse(
                f"its groups work on tiles of {LEAST_STAGES} iterations at once, and shared memory "
                f"has room for {max(room, 0)}",
                hint="leave roles out, or take smaller tiles",
            )
        self.ring = {
            v: _like(v, (self.stages, *v.buffer.static_shape), v.name, "shared") for v in ringed
        }
        self.ring |= {v: self.ring[x] for v, x in self.slot_of.items()}
        self.staged = {v: x for v, x in self.ring.items() if v.buffer.space == "shared"}
        self.barriers = {
            name: (Value(BufferType((self.stages,), INT64, "barrier"), name), size)
            for name, size in (
                ("full", LAST_GROUPS * GROUP_WARPS),
                ("free", LAST_GROUPS * GROUP_WARPS),
                ("ready", GROUP_WARPS),
                ("scored", GROUP_WARPS),
            )
        }
        self.own = [x for p in self.promoted.values() for x in p.buffers]
        self.new = list(dict.fromkeys(self.ring.values()))

    # --- the groups ---

    def _registers_of(self, b: Builder, count: int) -> None:
        launched = at_launch((1 + LAST_GROUPS) * GROUP_WARPS * 32, self.target)
        if count != launched and self.target.has("setmaxnreg"):
            b.emit(SetRegisters, count, count > launched)

    def _at(self, n: Numbers, t: Value) -> tuple[Value, Value]:
        """Stage and parity of an iteration's number."""
        stages, one = n.const(self.stages), n.const(1)
        return n.op("mod", t, stages), n.op("and", n.op("floordiv", t, stages), one)

    def _arrive(self, b: Builder, name: str, stage: Value) -> None:
        """One thread of each warp arrives, for all."""
        b.emit(WarpSync)
        b.emit(MbarrierArrive, self.barriers[name][0], stage, elected(b, 1))

    def _wait(self, b: Builder, name: str, at: tuple[Value, Value]) -> None:
        b.emit(MbarrierWait, self.barriers[name][0], *at)

    def _count(
        self, b: Builder, hi: Value, body: Callable[[Builder, Numbers, Value], None]
    ) -> None:
        """A loop over iterations' numbers."""
        n, inner, t = Numbers(b), Builder(self.loop.loc), Value(hi.type, "t")
        body(inner, Numbers(inner), t)
        inner.emit(Yield)
        b.emit(For, "serial", n.const(0), hi, n.const(1), (), inner.block([t]))

    def _scalars(self, b: Builder, ops: Sequence[Op], t: Value) -> Substitution:
        """What `ops` of the loop need of iteration number `t`, computed at `b`."""
        needed = Slice(self.loop.body, ops).needed
        index = self.loop.body.args[0]
        subst: Substitution = {index: Numbers(b).op("add", self.loop.lo, t)}
        for o in self.loop.body.ops:
            if o not in self.statements and any(r in needed for r in o.results):
                if not isinstance(o, Alloc):
                    b.ops.append(clone(o, subst))
        return subst

    def _first(self) -> Block:
        b = Builder(self.loop.loc)
        self._registers_of(b, self.registers[0])
        for o in self.before:
            if not self._is_late(o):
                b.ops += self._promoted_copy(o) if self._is_promoted(o) else [clone(o, {})]
        vectors = [v for v in self.crossing if v.buffer.space == "fragment"]
        takes = [v for v in vectors if any(v in self.uses[o] for o in self.late)]
        makers = [o for o in self.early if any(_writes(o, v) for v in self.crossing)]
        products = [o for o in self.early if isinstance(o, Gemm)]

        def body(b: Builder, n: Numbers, t: Value) -> None:
            at = self._at(n, t)
            subst = self._scalars(b, self.early, t)
            self._wait(b, "full", at)
            flying = False
            for o in self.early:
                b.loc = o.loc
                if flying and not isinstance(o, Gemm):
                    b.emit(WgmmaWait, 0, ())
                    flying = False
                if isinstance(o, Gemm):
                    b.ops += self._pieces(o, subst, at[0])
                    flying = True
                else:
                    b.ops += restaged(clone(o, subst), self.staged, at[0], self._statement)
                if products and o is products[-1]:
                    b.emit(WgmmaWait, 0, ())
                    flying = False
                    self._arrive(b, "scored", at[0])
                if makers and o is makers[-1]:
                    for v in takes:
                        self._hand_on(b, v, at[0])
                    b.emit(ProxyFence)  # products read what these threads wrote
                    self._arrive(b, "ready", at[0])

        self._count(b, self.trips, body)
        n = Numbers(b)
        stage, parity = self._at(n, self.trips)
        self._arrive(b, "scored", stage)
        for o in self.after:
            if not self._is_late(o):
                b.ops.append(clone(o, {}))
        if vectors:  # what they are in the end, for what stands behind the loop
            self._wait(b, "free", (stage, n.op("xor", parity, n.const(1))))
            for v in vectors:
                self._hand_on(b, v, stage)
            self._arrive(b, "ready", stage)
        return b.block()

    def _hand_on(self, b: Builder, v: Value, stage: Value) -> None:
        b.emit(Copy, whole(b, v), self._slot(b, v, stage))

    def _slot(self, b: Builder, v: Value, stage: Value) -> Region:
        ring = self.ring[v]
        zeros = whole(b, v).offsets
        return Region(ring, (stage, *zeros), (1, *v.buffer.static_shape))

    def _last(self, part: int) -> Block:
        b = Builder(self.loop.loc)
        self._registers_of(b, self.registers[1])
        own = {
            v: _like(
                v, (*v.buffer.static_shape[:-1], v.buffer.static_shape[-1] // LAST_GROUPS), v.name
            )
            for v in self.sums
        }
        vectors = {v: _like(v, v.buffer.static_shape, v.name) for v in self.crossing}
        vectors = {v: x for v, x in vectors.items() if x.buffer.space == "fragment"}
        for x in (*own.values(), *vectors.values()):
            b.ops.append(Alloc(x.buffer, results=(x,), loc=b.loc))
        tiles = {v: parts[part] for v, parts in self.parts.items()}
        columns = ColumnPart(part, LAST_GROUPS, own, tiles, self._statement)
        for o in self.before:
            if self._is_late(o):
                b.ops += columns.statement(o, {})
        n = Numbers(b)
        ahead = n.op("min", self.trips, n.const(self.stages))

        def begin(b: Builder, n: Numbers, t: Value) -> None:
            self._bring(b, part, t, t, self._scalars(b, self._brought_by(part), t))

        def body(b: Builder, n: Numbers, t: Value) -> None:
            at = self._at(n, t)
            subst = self._scalars(b, self.late, t)
            self._wait(b, "ready", at)
            for v in vectors:
                if any(v in self.uses[o] for o in self.late):
                    b.emit(Copy, self._slot(b, v, at[0]), whole(b, vectors[v]))
            gated = False
            for o in self.late:
                b.loc = o.loc
                if isinstance(o, Gemm) and not gated:
                    self._wait(b, "scored", self._at(n, n.op("add", t, n.const(1))))
                    gated = True
                for x in columns.statement(o, {**subst, **vectors}):
                    for y in restaged(x, self.staged, at[0], self._statement):
                        if isinstance(y, Gemm):
                            b.ops.append(replace(y, asynchronous=True, policy="square"))
                            b.emit(WgmmaWait, 0, ())
                        else:
                            b.ops.append(y)
            self._arrive(b, "free", at[0])
            later = n.op("add", t, n.const(self.stages))
            more = Builder(self.loop.loc)
            scalars = self._scalars(more, self._brought_by(part), later)
            self._wait(more, "free", at)
            self._bring(more, part, later, at[0], scalars)
            more.emit(Yield)
            none = Block((), (Yield(loc=self.loop.loc),))
            left = b.value(Compare, "lt", later, self.trips)
            b.emit(If, left, more.block(), none)

        self._count(b, ahead, begin)
        self._count(b, self.trips, body)
        n = Numbers(b)
        at = self._at(n, self.trips)
        if vectors:
            self._wait(b, "ready", at)
            for v, x in vectors.items():
                b.emit(Copy, self._slot(b, v, at[0]), whole(b, x))
        for o in self.after:
            if self._is_late(o):
                b.ops += columns.statement(o, dict(vectors))
        return b.block()

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
            assert isinstance(x, Copy)
            b.loc = x.loc
            source = clone(x, dict(subst)).source  # type: ignore[attr-defined]
            tile = x.dest.buffer
            if tile in self.parts:
                tile = self.parts[tile][part]
                width = tile.buffer.static_shape[-1]
                n = Numbers(b, source.offsets[-1].dtype)
                moved = n.op("add", source.offsets[-1], n.const(part * width))
                source = replace(
                    source,
                    offsets=(*source.offsets[:-1], moved),
                    extents=(*source.extents[:-1], width),
                )
            b.emit(TmaCopy, source, self._slot(b, tile, stage), full, stage, x.eviction_policy)
        self._arrive(b, "full", stage)

    def _is_promoted(self, o: Op) -> bool:
        return isinstance(o, Copy) and o.dest.buffer in self.promoted

    def _promoted_copy(self, o: Op) -> list[Op]:
        assert isinstance(o, Copy)
        return self.promoted[o.dest.buffer].filled(o)

    def _pieces(self, o: Gemm, subst: Substitution, stage: Value) -> list[Op]:
        """A product of the first group, k by k where its operands lie in several buffers."""
        b = Builder(o.loc)
        o = clone(o, subst)  # type: ignore[assignment]
        k = o.shape[2]
        promoted, parts = self.promoted.get(o.a.buffer), self.parts.get(o.b.buffer)
        cuts = {0, k}
        if promoted is not None:
            cuts |= {*promoted.cuts}
        if parts is not None:
            if not o.transpose_b or not o.b.is_whole:
                raise self._statement(o, "B is shared out by columns, which it does not sum over")
            cuts |= {n * k // LAST_GROUPS for n in range(LAST_GROUPS)}
        edges = sorted(cuts)
        for lo, hi in zip(edges, edges[1:]):
            a = promoted.piece(b, lo, hi) if promoted else _columns(b, o.a, lo, hi, o.transpose_a)
            if parts is not None:
                n = lo // (k // LAST_GROUPS)
                tile, shift = parts[n], n * k // LAST_GROUPS
                other = _columns(b, whole(b, tile), lo - shift, hi - shift)
            else:
                other = _columns(b, o.b, lo, hi, not o.transpose_b)
            clear, policy = o.clear and lo == 0, "square"
            piece = replace(o, a=a, b=other, clear=clear, policy=policy, asynchronous=True)
            b.ops += restaged(piece, self.staged, stage, self._statement)
        return b.ops


def _columns(b: Builder, r: Region, lo: int, hi: int, rows: bool = False) -> Region:
    """Columns `lo` to `hi` of a region, or rows."""
    at = -2 if rows else -1
    if r.extents[at] == hi - lo:
        return r
    n = Numbers(b, r.offsets[at].dtype)
    offsets, extents = list(r.offsets), list(r.extents)
    offsets[at], extents[at] = n.op("add", offsets[at], n.const(lo)), hi - lo
    return replace(r, offsets=tuple(offsets), extents=tuple(extents))


def _like(v: Value, shape: Iterable[int], name: str, space: str = "") -> Value:
    t = v.buffer
    return Value(BufferType(tuple(shape), t.dtype, space or t.space), name)


def _kind(v: Value) -> tuple[object, ...]:
    return v.buffer.static_shape, v.buffer.dtype


def _bytes(v: Value) -> int:
    return v.buffer.size * v.buffer.dtype.bits // 8


def _registers(v: Value, threads: int) -> int:
    return -(-v.buffer.size * v.buffer.dtype.bits // 32 // threads)


def _writes(o: Op, v: Value) -> bool:
    found = modref(o, covered).get(v)
    return found is not None and found.writes


def _fills(o: Op, v: Value) -> bool:
    found = modref(o, covered).get(v, ModRef(False, False, False))
    return found.writes and found.whole


__all__ = ["copy_whole", "split_roles"]
