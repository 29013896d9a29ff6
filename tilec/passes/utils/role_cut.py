"""Where products of a loop are cut into roles (`split_roles`): what belongs to either side, what
crosses between them, whether both can do their part alone, and what each has of registers and
shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from tilec.ir.builder import Builder
from tilec.ir.copy_engines import CopyEngines
from tilec.ir.core import Func, Op, Region, Value
from tilec.ir.effects import acting, changing_tensors, is_clonable
from tilec.ir.errors import ResourceError
from tilec.ir.ops import Alloc, Copy, Gemm, constants
from tilec.ir.types import INT32, INT64, BufferType
from tilec.passes.utils.building import columns
from tilec.passes.utils.dependence import modref
from tilec.passes.utils.plans import pipelined
from tilec.passes.utils.registers import RESERVED, at_launch
from tilec.passes.utils.slicing import NotClonable, Slice
from tilec.target import Target

GROUP_WARPS = 4  # of a group
LAST_GROUPS = 2  # of the columns, each with a group of its own
KEPT = 4  # registers that ptxas wants free, beside `RESERVED`
MOST_REGISTERS = 240
LEAST_STAGES = 3  # with two, the next tile is asked for when the first group waits for it
BARRIERS, ONCE = 4, 2  # of a stage; beside these


class Cut:
    """The two sides of the cut. `loop`: what is cut; `sums`: the accumulators behind the cut."""

    def __init__(self, func: Func, target: Target) -> None:
        self.func, self.target = func, target
        self.written = changing_tensors(func)
        loops = pipelined(func.body)
        if len(loops) != 1 or loops[0] not in func.body.ops or func.attrs.get("by_hand"):
            raise self.refuse("it is not one T.Pipelined that stands at the top of the kernel")
        (self.loop,) = loops
        if constants(func.body).get(self.loop.step) != 1 or self.loop.lo.dtype != INT32:
            raise self.refuse("its loop does not count by ones")
        self.statements = acting(self.loop.body)
        self.uses = {o: modref(o) for o in self.statements}
        self.engines = CopyEngines(func, target)

        def by_tma(o: Op) -> TypeGuard[Copy]:
            return (
                isinstance(o, Copy)
                and o.source.buffer not in self.written
                and o.dest.type.space == "shared"
                and o.dest.is_whole
                and self.engines.tma_may_load(o, o.dest.dtype)
            )

        self.copies = [o for o in self.statements if by_tma(o)]
        self.tiles = [o.dest.buffer for o in self.copies]
        self.sums = self._sums()
        self.late = [o for o in self.statements if self.is_late(o)]
        self.early = [o for o in self.statements if o not in self.late and o not in self.copies]
        ops = [o for o in func.body.statements if o is not self.loop]
        at = func.body.ops.index(self.loop)
        mine = {o for o in acting(func.body) if o is not self.loop}
        self.scalars = [o for o in ops if o not in mine and not isinstance(o, Alloc)]
        self.before = [o for o in func.body.ops[:at] if o in mine]
        self.after = [o for o in func.body.ops[at:] if o in mine]
        self.once = [o for o in self.before if by_tma(o)]  # what TMA may bring before the loop
        self.crossing = self._crossing()
        self._check()

    def refuse(
        self, why: str, at: Op | None = None, hint: str = "leave roles out"
    ) -> ResourceError:
        loc = at.loc if at is not None else self.func.loc
        return ResourceError(f"{self.func.name} cannot be split into roles: {why}", loc, hint)

    def refuse_at(self, o: Op, why: str) -> ResourceError:
        return self.refuse(f"of what stands on line {o.loc.line}, {why}", o)

    # --- what belongs where ---

    def _sums(self) -> list[Value]:
        made = {
            v
            for o in self.statements
            if o not in self.copies
            for v, x in self.uses[o].items()
            if x.writes and v.space == "shared"
        }
        products = [o for o in self.loop.body.ops if isinstance(o, Gemm)]
        found = dict.fromkeys(o.c for o in products if o.a.buffer in made and not o.clear)
        if not found or len({o.c for o in products}) == len(found):
            raise self.refuse(
                "no product of its loop takes from shared memory what threads made of another's "
                "result"
            )
        return list(found)

    def is_late(self, o: Op) -> bool:
        uses = self.uses[o] if o in self.uses else modref(o)
        return any(v in uses for v in self.sums)

    def _crossing(self) -> list[Value]:
        """What the first group makes and the others take, tiles of the loop first."""
        made = {v for o in self.early for v, x in self.uses[o].items() if x.writes}
        made |= {v for o in self.early_outside() for v, x in modref(o).items() if x.writes}
        taken = [v for o in self.late for v in self.uses[o]]
        taken += [v for o in self.after if self.is_late(o) for v in modref(o)]
        found = [v for v in dict.fromkeys(taken) if v in made and v.space != "global"]
        return sorted(found, key=lambda v: v.space != "shared")

    def early_outside(self) -> list[Op]:
        return [o for o in (*self.before, *self.after) if not self.is_late(o)]

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
                raise self.refuse_at(o, "no group can do it alone")
        if self.loop.inits or len(set(self.tiles)) < len(self.tiles):
            raise self.refuse("an iteration hands a value on, or brings a tile twice")
        for group in (self.statements, [*self.before, *self.after]):
            order = {o: n for n, o in enumerate(group)}
            for v in self.crossing:
                makers = [o for o in group if not self.is_late(o) and writes(o, v)]
                takers = [o for o in group if self.is_late(o) and v in modref(o)]
                if v in self.tiles and takers:
                    raise self.refuse_at(takers[0], f"the other group changes {v.name}")
                if any(order[m] > order[t] for m in makers for t in takers):
                    raise self.refuse_at(takers[0], f"{v.name} is made again behind it")
                fills = any(modref(o)[v].whole for o in makers)
                if group is self.statements and takers and not fills:
                    raise self.refuse_at(takers[0], f"{v.name} is not made anew in each iteration")
        own = {*self.sums}
        for o in (*self.late, *self.before, *self.after):
            if not self.is_late(o):
                continue
            for v, x in modref(o).items():
                known = v in own or v in self.crossing or v in self.tiles
                if v.space not in ("global", "local") and not known:
                    raise self.refuse_at(o, f"{v.name} is the other group's")
                if x.writes and v not in own and v.space != "global":
                    raise self.refuse_at(o, f"it writes {v.name}, too")
        outside = {v for o in (*self.before, *self.after) for v in modref(o)}
        tiles = {v for v in self.crossing if v.space == "shared"} | {*self.tiles}
        for v in outside & tiles:
            raise self.refuse(f"{v.name} is used outside of the loop, too")
        read = {v for o in self.statements for v, x in self.uses[o].items() if x.reads}
        for v in (v for v in read & self.written if v.space == "global"):
            raise self.refuse(f"the kernel writes {v.name}, which it reads in the loop")

    # --- what it takes ---

    def choose(self) -> None:
        """Registers of the groups, what is promoted to them, buffers and stages."""
        size = GROUP_WARPS * self.target.warp_size
        for v in self.sums:
            if v.buffer.static_shape[-1] % (8 * LAST_GROUPS):
                raise self.refuse(f"the columns of {v.name} cannot be shared out")
        behind = sum(v.buffer.shared_out(size) for v in self.sums) // LAST_GROUPS
        last = -(-(RESERVED + behind + KEPT) // 8) * 8
        launched = at_launch((1 + LAST_GROUPS) * size, self.target)
        first = min((launched * (1 + LAST_GROUPS) - LAST_GROUPS * last) // 8 * 8, MOST_REGISTERS)
        fragments = {v for o in self.early for v in self.uses[o] if v.space == "fragment"}
        held = sum(n for v in fragments if (n := v.buffer.shared_out(size)) > KEPT)
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
            *rows, width = v.buffer.static_shape
            shape = (*rows, width // LAST_GROUPS)
            self.parts[v] = [like(v, shape, f"{v.name}_{n}") for n in range(LAST_GROUPS)]
        invariant = [*self.before, *self.early]
        self.promoted: dict[Value, Promoted] = promote(invariant, self.early, left, size)
        self._place()

    def _place(self) -> None:
        """Where tiles and what crosses lie, in how many stages."""
        used = {v for o in (*self.early, *self.early_outside()) for v in modref(o)}
        allocs = {o.result for o in self.func.body.every(Alloc)}
        self.kept = {
            v
            for v in allocs
            if v in used and v not in (*self.tiles, *self.promoted)
            if not (v in self.crossing and v.space == "shared")
        }
        shared = [v for v in self.kept if v.space == "shared"]
        shared += [p.rest for p in self.promoted.values() if p.rest is not None]
        self.slot_of: dict[Value, Value] = {}  # what crosses: the tile in whose place it is
        free = [v for v in self.tiles if v not in self.parts]
        made: list[Value] = []
        for v in self.crossing:
            alike = [x for x in free if kind_of(x) == kind_of(v)]
            if v.space == "shared" and alike:
                self.slot_of[v] = alike[0]
                free.remove(alike[0])
            else:
                made.append(v)
        ringed = [v for v in self.tiles if v not in self.parts]
        ringed += [x for parts in self.parts.values() for x in parts] + made
        each, fixed = (sum(v.buffer.bytes for v in of) for of in (ringed, shared))
        word = INT64.bits // 8
        room = (self.target.shared_bytes - fixed - ONCE * word) // (each + BARRIERS * word)
        self.stages = min(room, max(self.loop.num_stages, LEAST_STAGES))
        if self.stages < LEAST_STAGES:
            raise self.refuse(
                f"its groups work on tiles of {LEAST_STAGES} iterations at once, and shared memory "
                f"has room for {max(room, 0)}",
                hint="leave roles out, or take smaller tiles",
            )
        self.ring = {
            v: like(v, (self.stages, *v.buffer.static_shape), v.name, "shared") for v in ringed
        }
        self.ring |= {v: self.ring[x] for v, x in self.slot_of.items()}
        self.staged = {v: x for v, x in self.ring.items() if v.space == "shared"}
        self._place_once()
        threads = GROUP_WARPS * self.target.warp_size
        self.barriers = {
            name: (Value(BufferType((slots,), INT64, "barrier"), name), size)
            for name, slots, size in (
                ("full", self.stages, LAST_GROUPS * threads),
                ("free", self.stages, LAST_GROUPS * threads),
                ("ready", self.stages, threads),
                ("scored", self.stages, threads),
                ("came", bool(self.once), threads),
                ("taken", bool(self.lent), threads),
            )
            if slots
        }
        self.own = [x for p in self.promoted.values() for x in p.buffers]
        self.new = list(dict.fromkeys(self.ring.values()))

    def _place_once(self) -> None:
        """Where TMA brings what is the same in all iterations: what goes on to registers into the
        last stage of a tile alike, before that has one of its own; else not by TMA."""
        self.lent: dict[Value, list[Value]] = {}  # a promoted tile: what holds its columns
        free, used, found = list(self.tiles), set[Value](), list[Copy]()
        for o in self.before:
            touched = {v for v in modref(o) if v.space == "shared"}
            if o in self.once and not touched & used:
                v = o.dest.buffer
                alike = [x for x in free if kind_of(x) == kind_of(v)]
                held = self.parts.get(alike[0], alike[:1]) if alike else []
                width = v.buffer.static_shape[-1] // max(len(held), 1)
                if v not in self.promoted:
                    found.append(o)
                elif held and set(range(0, v.buffer.static_shape[-1], width)) <= {
                    *self.promoted[v].cuts
                }:
                    found.append(o)
                    self.lent[v] = held
                    free.remove(alike[0])
            used |= touched
        self.once = found


def like(v: Value, shape: Iterable[int], name: str, space: str = "") -> Value:
    t = v.buffer
    return Value(BufferType(tuple(shape), t.dtype, space or t.space), name)


def kind_of(v: Value) -> tuple[object, ...]:
    return v.buffer.static_shape, v.buffer.dtype


def writes(o: Op, v: Value) -> bool:
    found = modref(o).get(v)
    return found is not None and found.writes


# --- tiles that registers hold --------------------------------------------------------------------


STEP_BYTES = 32  # of a row that one instruction takes
PIECES = 4  # a fragment holds one of so many of the columns at most: products read them whole


@dataclass(frozen=True)
class Promoted:
    """A tile's columns: those of `cuts[i]` to `cuts[i + 1]` in `buffers[i]`, fragments but for the
    last one (`rest`), which is in shared memory, where not all of them are in registers."""

    cuts: tuple[int, ...]
    buffers: tuple[Value, ...]
    rest: Value | None

    def parts(self) -> Iterator[tuple[Value, int, int]]:
        """What holds columns of the tile, from which one and up to which."""
        return zip(self.buffers, self.cuts, self.cuts[1:])

    def piece(self, b: Builder, lo: int, hi: int) -> Region:
        """Columns from one of the cuts to another at most."""
        n = next(i for i, at in enumerate(self.cuts) if lo < at) - 1
        return columns(b, b.whole(self.buffers[n]), lo - self.cuts[n], hi - lo)

    def filled(self, o: Copy) -> list[Op]:
        """The copies that fill the parts, instead of the one that filled the tile."""
        b = Builder(o.loc)
        for v, lo, hi in self.parts():
            b.emit(Copy, columns(b, o.source, lo, hi - lo), b.whole(v))
        return b.ops


def promote(
    statements: Sequence[Op], products: Sequence[Op], registers: int, threads: int
) -> dict[Value, Promoted]:
    """For A operands that are the same in all iterations, tiles that one copy of `statements` fills
    and only products read: columns of them in registers, as far as these go, what fits into so
    many `registers` of each of `threads` threads."""
    found: dict[Value, Promoted] = {}
    for o in statements:
        if not isinstance(o, Copy) or o.source.type.space != "global":
            continue
        v = o.dest.buffer
        uses = [x for x in statements if v in modref(x)]
        readers = [x for x in uses if x is not o]
        if v.space != "shared" or not o.dest.is_whole or not readers or o in products:
            continue
        if not all(x in products and _takes_whole(x, v) for x in readers):
            continue
        rows, width = v.buffer.static_shape
        step = STEP_BYTES * 8 // v.dtype.bits
        each = rows * STEP_BYTES // 4 // threads
        most = width // PIECES
        if not each or most % step or registers < each:
            continue
        held = min(width, registers // each * step)
        registers -= held // step * each
        cuts = [*range(0, held, most), held]
        parts = [
            Value(BufferType((rows, hi - lo), v.dtype, "fragment"), f"{v.name}_{n}")
            for n, (lo, hi) in enumerate(zip(cuts, cuts[1:]))
        ]
        rest = None
        if held < width:
            cuts.append(width)
            rest = Value(BufferType((rows, width - held), v.dtype, "shared"), f"{v.name}_rest")
            parts.append(rest)
        found[v] = Promoted(tuple(cuts), tuple(parts), rest)
    return found


def _takes_whole(o: Op, v: Value) -> bool:
    return (
        isinstance(o, Gemm)
        and o.a.buffer is v
        and o.a.is_whole
        and not o.transpose_a
        and o.b.buffer is not v
    )
