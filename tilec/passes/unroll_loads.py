"""unroll_loads: what a thread loads in several iterations of a loop is asked for together.

Before: LOWERED, a serial loop in which a thread loads elements of tensors into its `local` arrays
and computes with them, as in

    for k in T.serial(n):
        for v in T.vectorized(8): a[v] = A[k * 256 + tx * 8 + v]
        …

or one that stores, or does something on a condition, in each iteration, by what it has from those
before, as in

    for i in T.serial(n):
        s = 0.9 * s + X[i, j]
        Y[i, j] = s

or one that adds to registers, by what it loads on conditions or by long arithmetic, or one that is
written out, over what a thread has of a tile, or one that starts copies by cp.async
from places that it loads, or whose loads ask first whether they are there, as the taps of a stencil
do, or one of few iterations in which warps load matrices from shared memory
(`ldmatrix`) and multiply them, or one of few that load neighbours, as the bytes of a word.

After: such iterations stand one behind the other, as many as a thread has registers for, so that
the assembler has their loads before the first is used; what is left of them runs as it did. Their
order, and each number, is what it was. Loads do not go over stores by themselves: those of tensors
that the kernel does not write, or of elements that their iteration alone writes, at places that no
iteration tells the next, stand first. Branches that load and compute, and no more, are loads on
conditions then (`if_conversion`). (What
`batch_loads` does is for loops over tiles, LLVM's for bodies that are short: `codegen.gpu`.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.ir import ops
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, fresh, upstream, walk
from tilec.ir.fold import Number
from tilec.ir.short_loops import is_short
from tilec.ir.types import BOOL, VectorType
from tilec.passes.check_registers import is_roomy
from tilec.passes.utils.building import iteration, updated
from tilec.passes.utils.if_conversion import if_converted
from tilec.target import Target

MOST_TOGETHER = 8  # iterations
BYTES_TOGETHER = 192  # of a thread, on their way at once
MOST_OPS = 2048
MOST_OPS_BRANCHES = 512  # of an iteration
MOST_OPS_TOGETHER = 128  # of a loop that is written out, whose loads ask first
MOST_WITHIN = 16  # iterations of a loop inside
MOST_AHEAD = 32  # iterations, of such as follow from one another
BYTES_AHEAD = 128  # of a thread
BYTES_WHOLE = 256  # of a loop that is done for good then
LEAST_AHEAD = 4
BYTES_WRITTEN_OUT = 64  # of a thread, in a loop over its elements
MOST_GUARDED = 8  # of such as ask first whether there is something to load
MOST_BRANCHES = 4  # iterations of a loop that is written out for what their branches share
MOST_STEPS = 4  # iterations of a loop of products: the assembler loads matrices as it has registers


def unroll_loads(func: Func, target: Target) -> Func:
    numbers = ops.constants(func.body)
    written = {getattr(o, "dest", None) for o in walk(func.body)}
    overlapping = bool(func.attrs.get("may_alias"))
    roomy = is_roomy(func)
    subst: Substitution = {}

    def visit(o: ops.For) -> None | list[Op]:
        if o.kind not in ("serial", "unroll") or numbers.get(o.step) != 1:
            return None
        if o.lo.dtype.kind != "int":
            return None
        trips = _Trips.of(o, numbers, func)
        count = 1
        if o.kind == "serial":
            count = _side_by_side(o, trips, func) or _together(o, trips, numbers, written)
        if count > 1:
            return _unrolled(o, count, trips, subst)
        if overlapping:
            return None
        flat = if_converted(o, numbers, facts_of(func, anywhere=True))
        ahead = _Ahead(flat, written, roomy, facts_of(func), converted=flat is not o)
        count = ahead.count(trips, numbers)
        if count > 1:
            return _unrolled(flat, count, trips, subst, ahead)
        count = _branches(o, trips)
        return _unrolled(o, count, trips, subst) if count > 1 else None

    made = func.rewrite(ops.For, visit, subst)
    return func if made is func else _aligned(made)


def _aligned(func: Func) -> Func:
    """With what is known of the places of single elements, now that iterations are apart: LLVM
    joins neighbours that begin at a whole vector."""
    facts = facts_of(func)

    def visit(o: ops.MemLoad) -> ops.MemLoad | None:
        t = o.source.buffer
        if o.lanes > 1 or o.guard is not None or t.space != "global":
            return None
        elements = facts.form(o.offset).divisor(facts.divisor)
        known = min(t.align, elements * t.dtype.bits // 8)
        return replace(o, align=known) if known > o.align else None

    return func.rewrite(ops.MemLoad, visit)


@dataclass(frozen=True)
class _Trips:
    """How many iterations a loop has: `most` at most, and just as many where that is `exact`; None
    where nobody knows."""

    most: int | None
    exact: bool

    @classmethod
    def of(cls, o: ops.For, numbers: Mapping[Value, Number], func: Func) -> _Trips:
        """Of a loop in steps of one."""
        indices = o.indices(numbers.get)
        if indices is not None:
            return cls(len(indices), True)
        facts = facts_of(func)
        made = facts.made_by(o.hi)
        bounds = made.operands if isinstance(made, ops.Binary) and made.kind == "min" else (o.hi,)
        found = ((facts.form(v) - facts.form(o.lo)).constant for v in bounds)
        known = [max(n, 0) for n in found if n is not None]
        return cls(min(known, default=None), bool(known) and len(bounds) == 1)


def _together(
    o: ops.For, trips: _Trips, numbers: Mapping[Value, Number], written: set[object]
) -> int:
    """How many iterations are worth asking for at once."""
    found = _Work(numbers, written)
    if not found.block(o.body, 1) or not (found.bytes or found.matrices) or not found.local:
        return 1
    if found.matrices and not found.bytes:
        return trips.most if trips.exact and trips.most and trips.most <= MOST_STEPS else 1
    most = min(MOST_TOGETHER, BYTES_TOGETHER // found.bytes, MOST_OPS // found.ops)
    if trips.most is not None:
        most = min(most, trips.most)
    return 1 << max(most, 1).bit_length() - 1


def _branches(o: ops.For, trips: _Trips) -> int:
    """How many iterations a short loop has that only change registers, on conditions; else 0."""
    if o.kind != "serial" or not trips.exact or not 1 < (trips.most or 0) <= MOST_BRANCHES:
        return 0
    inside = [*walk(o.body)]
    plain = all(x.pure or isinstance(x, ops.MemLoad | ops.If | ops.For | ops.Yield) for x in inside)
    asks = any(isinstance(x, ops.If) for x in o.body.ops) and o.body.has(ops.MemLoad)
    return (trips.most or 0) if plain and asks and len(inside) <= MOST_OPS_BRANCHES else 0


def _side_by_side(o: ops.For, trips: _Trips, func: Func) -> int:
    """How many iterations a loop has that only change registers, if what they load lies side by
    side: LLVM makes one wide load of it. Else 0."""
    count, body = trips.most or 0, o.body.statements
    if not trips.exact or not 1 < count <= MOST_WITHIN or count * len(body) > MOST_OPS:
        return 0
    loads = [x for x in body if isinstance(x, ops.MemLoad)]
    plain = all(
        x.pure and not x.regions or isinstance(x, ops.MemLoad | ops.RegRead | ops.RegWrite)
        for x in body
    )
    if not plain or not loads or any(x.guard is not None for x in loads):
        return 0
    facts, index = facts_of(func), o.body.args[0]
    return count if any(facts.slope(x.offset, index) == x.lanes for x in loads) else 0


class _Work:
    """What an iteration does: the bytes of tensors that a thread loads, its operations, and whether
    it uses local arrays and loads matrices."""

    def __init__(self, numbers: Mapping[Value, Number], written: set[object]) -> None:
        self.numbers = numbers
        self.written = written
        self.bytes = self.ops = 0
        self.local = self.matrices = False

    def block(self, block: Block, times: int) -> bool:
        """Whether it loads and computes, and no more."""
        return all(self.op(o, times) for o in block.ops)

    def op(self, o: Op, times: int) -> bool:
        self.ops += 0 if isinstance(o, ops.Const | ops.Yield) else times
        match o:
            case ops.For():
                trips = len(o.indices(self.numbers.get) or ())
                return 0 < trips <= MOST_WITHIN and self.block(o.body, times * trips)
            case ops.MemLoad():
                if o.guard is not None or o.source in self.written:
                    return False
                if o.source.space == "global":
                    self.bytes += times * max(o.lanes * o.source.dtype.bits // 8, 1)
                return True
            case ops.LdmatrixValues():
                self.matrices = True
                return True
            case ops.Load() | ops.Store():
                self.local = True
                return o.buffer.space == "local"
        return isinstance(o, ops.Const | ops.CheckIndex | ops.WarpMma | ops.Yield) or (
            o.pure and not o.region_fields
        )


class _Ahead:
    """The loads of an iteration that can stand before those of earlier ones, with what computes
    their places (`first`); `inside`: conditions that say no more than that it is one. `roomy`:
    whether threads have registers for those that a tile's edge may leave out, too. `converted`:
    whether branches have become conditions of loads."""

    def __init__(
        self, o: ops.For, written: set[object], roomy: bool, facts: Facts, converted: bool
    ) -> None:
        self.loop, self.roomy, self.converted = o, roomy, converted
        written = written - self.own(facts)
        goes_on = "lt", o.body.args[0], o.hi
        compared = (x for x in o.body.ops if isinstance(x, ops.Compare))
        self.inside = {x.result for x in compared if (x.kind, x.lhs, x.rhs) == goes_on}
        self.copies = o.body.has(ops.CpAsync)
        made = o.body.makers
        carried = {*o.body.args[1:]}
        self.first: dict[Op, int] = {}  # and how many loads stand behind each, one after the other
        self.loads: list[ops.MemLoad] = []
        self.fixed: set[Op] = set()  # of these, what is the same in every iteration
        for x in o.body.ops:
            if not isinstance(x, ops.MemLoad) or not self.is_ready(x, written):
                continue
            behind = [*upstream([x.result], made)]
            if not all(y.pure and not y.regions or y in self.first or y is x for y in behind):
                continue
            waits = x.guard is not None and not {*behind}.isdisjoint(self.loads)
            if waits and o.kind != "unroll":
                continue  # whether it may be made waits for another
            if carried.isdisjoint(v for y in behind for v in y.operands):
                self.loads.append(x)
                for y in (z for z in behind if z not in self.first):
                    before = (made[v] for v in y.operands if v in made)
                    known = (self.first[z] + (z in self.loads) for z in before)
                    self.first[y] = max(known, default=0)
                if all(o.body.args[0] not in y.operands for y in behind):
                    self.fixed.add(x)

    def own(self, facts: Facts) -> set[object]:
        """The tensors of which an iteration reads what no other writes: elements of its own, each
        before it stores it."""
        index = self.loop.body.args[0]
        places: dict[Value, list[tuple[Value, int]]] = {}
        stored: set[Value] = set()
        late: set[Value] = set()
        for x in walk(self.loop.body):
            match x:
                case ops.MemLoad(source=tensor, lanes=lanes):
                    late |= {tensor} & stored
                case ops.MemStore(dest=tensor, value=Value(type=type)):
                    lanes = type.lanes if isinstance(type, VectorType) else 1
                    stored.add(tensor)
                case _:
                    continue
            places.setdefault(tensor, []).append((x.offset, lanes))

        def is_own(at: Value, width: int, others: list[tuple[Value, int]]) -> bool:
            same = all((facts.form(v), n) == (facts.form(at), width) for v, n in others)
            return same and abs(facts.slope(at, index) or 0) >= width

        return {v for v in stored - late if is_own(*places[v][0], places[v])}

    def is_ready(self, o: ops.MemLoad, written: set[object]) -> bool:
        sure = o.guard is None or o.guard in self.inside or self.copies or self.roomy
        return sure and o.source.space == "global" and o.source not in written

    def count(self, trips: _Trips, numbers: Mapping[Value, Number]) -> int:
        """How many iterations are worth it."""
        body = self.loop.body
        inside = [*walk(body)]
        written_out = self.loop.kind == "unroll"
        starts = (ops.CpAsync, ops.For, ops.Load, ops.Store, ops.WarpSync) if self.copies else ()
        others = starts if written_out else (*starts, ops.Alloc, ops.RegRead, ops.RegWrite)
        if not self.loads or not all(
            _is_plain(x, numbers) or isinstance(x, others) for x in inside
        ):
            return 1
        acts = self.copies or any(isinstance(x, ops.MemStore | ops.If) for x in inside)
        guarded = any(x.guard is not None for x in self.loads)
        if not acts and (is_short(body) and not guarded or not self.roomy):
            return 1  # the former LLVM does
        places = {(x.source, x.offset): x for x in self.loads if x not in self.fixed}.values()
        if not places:
            return 1
        least = 1 if written_out else 4  # bytes: LLVM makes vectors of neighbours
        size = sum(max(x.lanes * x.source.dtype.bits // 8, least) for x in places)
        if not acts and not guarded and trips.exact and trips.most is not None:
            if trips.most * size <= BYTES_WHOLE and trips.most <= MOST_OPS // len(inside):
                return trips.most  # what is the same around it stays in registers
        most = BYTES_WRITTEN_OUT if written_out else BYTES_AHEAD
        most = min(MOST_AHEAD, most // size, MOST_OPS // len(inside))
        if guarded and (written_out or self.converted and most < (trips.most or MOST_AHEAD)):
            most = min(most, MOST_GUARDED)
        if trips.most is not None:
            most = min(most, trips.most)
            if not acts and trips.exact and most == trips.most:
                return most
        least = 2 if written_out else LEAST_AHEAD
        return 1 << most.bit_length() - 1 if most >= least else 1

    def stays_a_loop(self, count: int) -> bool:
        """Whether a loop that was to be written out had better stay one: the assembler would ask
        for the loads of all its parts at once, and hold their places."""
        asks = any(x.guard is not None for x in self.loads)
        names = self.loop.body.has(ops.RegRead, ops.RegWrite, ops.Lookup)
        return asks and not names and count * len(self.loop.body.ops) > MOST_OPS_TOGETHER

    def iterations(
        self, b: Builder, indices: Sequence[Value], values: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """Those at `indices`, and what they hand on."""
        yes = b.const(True, BOOL)
        own = [dict.fromkeys(self.inside, yes) | {self.loop.body.args[0]: at} for at in indices]
        acts = [x for x in self.loop.body.ops if self.inside.isdisjoint(x.results)]
        for depth in sorted({*self.first.values()}):  # what many wait for is asked for at once
            for subst in own:
                b.ops += [self.sure(x).clone(subst) for x in acts if self.first.get(x) == depth]
        for subst in own:
            subst.update(zip(self.loop.body.args[1:], values))
            late = (x for x in acts if x not in self.first and not isinstance(x, ops.Yield))
            b.ops += [self.sure(x).clone(subst) for x in late]
            values = tuple(subst.get(v, v) for v in ops.yielded(self.loop.body))
        return values

    def sure(self, x: Op) -> Op:
        if isinstance(x, ops.MemLoad | ops.MemStore) and x.guard in self.inside:
            return updated(x, guard=None)
        return x


def _is_plain(o: Op, numbers: Mapping[Value, Number]) -> bool:
    """Whether it is one thread's alone, and no loop but a short one."""
    match o:
        case ops.MemLoad() | ops.MemStore() | ops.If() | ops.Yield() | ops.CheckIndex():
            return True
        case ops.Load() | ops.Store():
            return o.buffer.space == "local"
        case ops.For():
            return 0 < len(o.indices(numbers.get) or ()) <= MOST_WITHIN
    return o.pure and not o.region_fields


def _unrolled(
    o: ops.For, count: int, trips: _Trips, subst: Substitution, ahead: _Ahead | None = None
) -> list[Op]:
    """`count` iterations at a time, then what is left of them one by one."""
    b, inner = Builder(o.loc), Builder(o.loc)
    known = trips.most % count if trips.exact and trips.most is not None else None
    if known is None:
        rest = b.binary("mod", b.binary("max", b.binary("sub", o.hi, o.lo), 0), count)
        end = b.binary("sub", b.binary("max", o.hi, o.lo), rest)
    else:
        end = b.binary("sub", o.hi, known) if known else o.hi
    first, *carried = fresh(o.body.args)
    values = tuple(carried)
    inside = o.kind == "serial" or ahead is not None and ahead.converted
    all_of_them = inside and trips == _Trips(count, True)
    if all_of_them:
        first, values = o.lo, o.inits
    if ahead is None:
        for number in range(count):
            at = inner.binary("add", first, number) if number else first
            made, values = iteration(o, at, values)
            inner.ops += made
    else:
        places = [inner.binary("add", first, n) if n else first for n in range(count)]
        values = ahead.iterations(inner, places, values)
    if all_of_them:
        subst.update(zip(o.results, values))
        return inner.ops
    inner.emit(ops.Yield, values)
    body = inner.block((first, *carried))
    kind = o.kind
    if ahead is not None and ahead.stays_a_loop(count):
        kind = "serial"
    done = b.emit(ops.For, kind, o.lo, end, b.const(count, o.lo.dtype), o.inits, body)
    if known != 0:
        left = ops.For(
            o.kind, end, o.hi, o.step, done.results, o.body, results=o.results, loc=o.loc
        )
        done = left.clone({})
        b.ops.append(done)
    subst.update(zip(o.results, done.results))
    return b.ops
