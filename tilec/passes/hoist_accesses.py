"""hoist_accesses: what an element loop over a fragment reads from global memory and writes there
becomes copies of its own.

Before: LAID_OUT; a `parallel` in the layout of a matrix instruction's result may load a residual or
a bias and store what it computes, element by element as that layout has it. After: such a loop
works on registers alone. A tile it reads is copied into a fragment before it, one element for each
row or column into a fragment that holds it once per thread; what it stores goes to a fragment, and
from there by a copy, which may take any lowering path that a copy of the user's may
(`select_copies`, `widen_copies`): 16 bytes at a time, or through TMA. The loop itself needs no
guards any more.

    for i, j: C[y + i, x + j] = f(acc[i, j], bias[x + j], D[y + i, x + j])

    row = bias[x …];  tile = D[y …, x …]
    for i, j: out[i, j] = f(acc[i, j], row[j], tile[i, j])
    C[y …, x …] = out

Where a thread has no room for all that, the loop is cut along one dimension into slices that follow
one another, each on its part of the fragments' registers (copies with the engine "registers"). A
loop whose own accesses are wide is left alone, as is one that touches the same tensor in other
ways."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Region, Substitution, Value, fresh, upstream, walk
from tilec.ir.errors import LayoutError
from tilec.ir.layout import Layout, leading_run
from tilec.ir.ops import Alloc, Atomic, Cast, Copy, ElementAccess, Load, Parallel, Store
from tilec.ir.types import BufferType, DType
from tilec.passes.utils.accesses import fragment_accesses
from tilec.passes.utils.building import part
from tilec.passes.utils.memory_access import MAX_VECTOR_BYTES
from tilec.passes.utils.regions import LoopRegions, Walked
from tilec.passes.utils.registers import budget
from tilec.target import Target

WORKING = 48  # registers of a thread for addresses and for what is being computed
SLICES = (2, 4)  # more would be narrower than memory likes


def hoist_accesses(func: Func, target: Target) -> Func:
    overlapping = bool(func.attrs.get("may_alias"))
    threads, specialised = int(func.attrs["threads"]), bool(func.attrs.get("specialise"))
    room = budget(threads, specialised, target) - WORKING
    facts = facts_of(func)

    def visit(o: Parallel) -> None | list[Op]:
        if o.layout is None or o.engine or not _is_open(o, o.layout, overlapping, facts):
            return None
        return _Hoist(o, o.layout, room, facts).ops()

    return func.rewrite(Parallel, visit)


class _Hoist(LoopRegions):
    """One loop that is taken apart."""

    def __init__(self, o: Parallel, layout: Layout, room: int, facts: Facts) -> None:
        super().__init__(o, facts)
        self.layout = layout
        self.room = room
        self.own = {a.op: a for a in fragment_accesses(o)}
        self.boxes = {
            x: r
            for x in o.body.ops
            if isinstance(x, ElementAccess) and (r := self.box_of(x)) is not None
        }

    def box_of(self, o: ElementAccess) -> Walked | None:
        """What a copy can bring or take in the place of `o`."""
        if o.buffer.space != "global" or isinstance(o, Atomic):
            return None
        found = self.walked(o.buffer, o.indices)
        if found is None or not found.order:
            return None
        all_of_it = len(found.order) == sum(e > 1 for e in self.o.extents)
        return found if all_of_it or isinstance(o, Load) else None

    def ops(self) -> list[Op] | None:
        dim, count = self.slices()
        if not count:  # no room: what is loaded is loaded where it is used
            self.boxes = {o: r for o, r in self.boxes.items() if not isinstance(o, Load)}
            count = 1
        if not self.boxes:
            return None
        made = [*self.before.ops]
        for number in range(count):
            made += _Slice(self, dim, count, number).ops()
        return made

    def slices(self) -> tuple[int, int]:
        """(dimension, number) of the slices in which the loop's fragments and what it loads have
        room, or nearly so; 0 if it cannot be cut."""
        held = {a.buffer for a in self.own.values()}
        fixed = sum(v.buffer.registers for v in held)
        loads = {(o.source, o.indices): o for o in self.boxes if isinstance(o, Load)}
        hoisted = sum(
            self.projected(self.layout, self.boxes[o].order).words(o.source.dtype.bits)
            for o in loads.values()
        )
        hoisted += self.stored()
        if fixed + hoisted <= self.room:
            return 0, 1
        if any(o.regions for o in self.o.body.ops):
            return 0, 0
        best = 0, 0
        for count in SLICES:
            for dim in reversed(range(self.layout.rank)):
                if self.divides(dim, count):
                    best = dim, count
                    break
            if fixed + hoisted // count <= self.room:
                break
        return best

    def stored(self) -> int:
        """Registers of what is stored beside the loop's own fragments: one store takes their place,
        others do not; single bytes are not packed before they are in order."""
        stores = [o for o in self.boxes if isinstance(o, Store)]
        count = self.layout.size("reg")
        return sum(self.layout.words(self.result_dtype(o).bits) for o in stores[1:]) + sum(
            count // 2 for o in stores if o.dest.dtype.bits == 8
        )

    def result_dtype(self, o: Store) -> DType:
        """Of the fragment a store goes to: a copy converts, two values at a time."""
        made = self.made.get(o.value)
        return made.operand.dtype if isinstance(made, Cast) else o.value.dtype

    def divides(self, dim: int, count: int) -> bool:
        """Whether every thread has its share of each slice."""
        arg = self.o.body.args[dim]
        layouts = [(self.layout, dim)]
        for a in self.own.values():
            if a.buffer.buffer.layout is None or len(a.dims) != a.buffer.buffer.rank:
                return False
            if dim in a.dims:
                layouts.append((a.buffer.buffer.layout, a.dims.index(dim)))
        whole = all(r.order.count(arg) <= 1 for r in self.boxes.values())
        return whole and all(sliced(layout, d, count) is not None for layout, d in layouts)

    def projected(self, layout: Layout, order: tuple[Value, ...]) -> Layout:
        """The loop's layout for the dimensions that `order` runs along, each element once in a
        thread."""
        dims = [self.o.body.args.index(a) for a in order]
        for d in reversed(range(layout.rank)):
            if d not in dims:
                layout = layout.drop(d)
        kept = sorted(dims)
        return layout.permute(kept.index(d) for d in dims).once("reg")


class _Slice:
    """One slice of a loop (or all of it)."""

    def __init__(self, loop: _Hoist, dim: int, count: int, number: int) -> None:
        self.loop, self.dim, self.count = loop, dim, count
        o = loop.o
        self.before, self.body, self.after = Builder(o.loc), Builder(o.loc), Builder(o.loc)
        self.extents = tuple(e // count if d == dim else e for d, e in enumerate(o.extents))
        self.start = number * self.extents[dim]
        layout = sliced(loop.layout, dim, count)
        assert layout is not None
        self.layout = layout
        self.tiles: dict[tuple[Value, ...], Value] = {}
        self.parts: dict[Value, Value] = {}

    def ops(self) -> list[Op]:
        o = self.loop.o
        index: Substitution = {}
        args = fresh(o.body.args, index)
        full = dict(index)
        if self.start:
            first = self.body.const(self.start)
            along = o.body.args[self.dim]
            full[along] = self.body.binary("add", index[along], first)
        # What the loop's own indices are computed into is another number for a fragment's part.
        inside = [i for a in self.loop.own.values() for i in a.indices] if self.start else []
        own = {*upstream(inside, self.loop.made)}
        for x in o.body.ops:
            self.body.loc = self.before.loc = self.after.loc = x.loc
            if isinstance(x, ElementAccess) and (x in self.loop.boxes or x in self.loop.own):
                self.access(x, index, full)
                continue
            if x in own:
                self.body.ops.append(x.clone(index))
            self.body.ops.append(x.clone(full))
        loop = replace(o, extents=self.extents, layout=self.layout, body=self.body.block(args))
        return [*self.before.ops, loop, *self.after.ops]

    def access(self, o: ElementAccess, index: Substitution, full: Substitution) -> None:
        """A load or store of a fragment."""
        assert isinstance(o, Load | Store)  # no atomic is hoisted
        if o in self.loop.own:
            v, indices = self.part(o.buffer, self.loop.own[o].dims), o.indices
        else:
            indices = self.loop.boxes[o].order
            v = self.tile(o) if isinstance(o, Load) else self.result(o)
        at = tuple(index.get(i, full.get(i, i)) for i in indices)
        if not isinstance(o, Store):
            full[o.result] = self.body.value(Load, v, at, name=o.result.name)
            return
        value = o.value
        made = self.loop.made.get(value)
        if o in self.loop.boxes and isinstance(made, Cast):
            value = made.operand
        self.body.emit(Store, v, at, full.get(value, value))

    def tile(self, o: Load) -> Value:
        """What a load finds, brought by a copy."""
        key = (o.source, *o.indices)
        if key not in self.tiles:
            hoisted = self.loop.boxes[o]
            self.tiles[key] = tile = self.fragment(hoisted, o.source.dtype)
            self.before.emit(Copy, self.box(hoisted), self.before.whole(tile))
        return self.tiles[key]

    def result(self, o: Store) -> Value:
        """Where a store puts its elements, taken away by a copy."""
        hoisted = self.loop.boxes[o]
        tile = self.fragment(hoisted, self.loop.result_dtype(o))
        dest = self.box(hoisted)
        self.after.emit(Copy, self.before.whole(tile), dest)
        return tile

    def fragment(self, hoisted: Walked, dtype: DType) -> Value:
        layout = self.loop.projected(self.layout, hoisted.order)
        t = BufferType(layout.shape, dtype, "fragment", layout=layout)
        return self.before.value(Alloc, t, name=f"{hoisted.region.buffer.name}_tile")

    def part(self, v: Value, dims: tuple[int, ...]) -> Value:
        """The slice's part of a fragment of the loop."""
        if self.count == 1 or self.dim not in dims:
            return v
        along = dims.index(self.dim)
        if v not in self.parts:
            layout = v.buffer.layout
            own = sliced(layout, along, self.count) if layout is not None else None
            assert own is not None
            t = BufferType(own.shape, v.dtype, "fragment", layout=own)
            self.parts[v] = self.before.value(Alloc, t, name=f"{v.name}_part")
            self.rename(self.before, v, self.parts[v], along, True)
            if any(a.buffer is v and a.write for a in self.loop.own.values()):
                self.rename(self.after, v, self.parts[v], along, False)
        return self.parts[v]

    def rename(self, b: Builder, v: Value, own_part: Value, along: int, out: bool) -> None:
        """A copy between registers `along` whose dimension the slice lies, and the slice's own."""
        own, all_of_it = self.before.whole(own_part), self.before.whole(v)
        held = part(self.before, all_of_it, along, self.start, own.extents[along])
        sides = (held, own) if out else (own, held)
        b.emit(Copy, *sides, engine="registers", vector=1)

    def box(self, hoisted: Walked) -> Region:
        """The slice's part of a region."""
        r, along = hoisted.region, self.loop.o.body.args[self.dim]
        if self.count == 1 or along not in hoisted.order:
            return r
        wide = [d for d, e in enumerate(r.extents) if e != 1]
        d = wide[hoisted.order.index(along)]
        return part(self.before, r, d, self.start, r.extents[d] // self.count)


def sliced(layout: Layout, dim: int, count: int) -> Layout | None:
    """The layout of one of `count` parts along `dim`; None unless every thread holds as much of
    each part."""
    if count == 1:
        return layout
    if layout.shape[dim] % count:
        return None
    extents = [e // count if d == dim else e for d, e in enumerate(layout.shape)]
    try:
        part = layout.restrict(extents).once("reg")
    except LayoutError:
        return None
    same = all(part.replicas(o) == layout.replicas(o) for o in ("lane", "warp"))
    return part if same and part.size("reg") * count == layout.size("reg") else None


def _is_open(p: Parallel, layout: Layout, overlapping: bool, facts: Facts) -> bool:
    """Whether the loop is one over a whole fragment, some of its accesses are narrower than they
    might be, and taking its loads before all of its stores changes nothing."""
    if layout.shape != p.extents or layout.replicas("lane") * layout.replicas("warp") > 1:
        return False
    if not any(len(a.dims) == len(p.extents) for a in fragment_accesses(p)):
        return False
    accesses = [
        o for o in walk(p.body) if isinstance(o, ElementAccess) and o.buffer.space == "global"
    ]
    dim, run = leading_run(layout)
    last = p.body.args[-1]
    wide = all(
        dim == layout.rank - 1
        and o.buffer.dtype.bits * run >= 8 * MAX_VECTOR_BYTES
        and facts.slope(o.indices[-1], last) == 1
        for o in accesses
    )
    if wide:
        return False
    written: dict[Value, tuple[Value, ...]] = {}
    for o in accesses:
        if o.buffer in written:
            return False
        if isinstance(o, Load):
            if written and overlapping:
                return False
        elif o not in p.body.ops:
            return False
        else:
            written[o.buffer] = o.indices
    return all(written.get(o.buffer, o.indices) == o.indices for o in accesses)
