"""infer_layouts: where every element of every on-chip buffer lives, and which thread runs what.

Before: no fragment, shared buffer or `parallel` has a layout. After: all of them have one,
`annotate_layout` is gone, and every disagreement between two layouts of a fragment is an explicit
copy into a fragment of the other layout. `func.attrs["layout_reasons"]` says why each layout was
chosen.

This is algorithm 1 of the TileLang paper (appendix E) over the graph of tile ops and the buffers
between them: *strict* layouts first (fixed by an instruction or by the user), then *common* ones
(carried through element-wise loops, copies and broadcasts in both directions until nothing
changes), then *free* ones (the widest coalesced access), each free choice carried on like a strict
one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from math import gcd, prod

import numpy as np

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.element_loops import ELEMENTWISE, boxes
from tilec.ir.errors import LayoutError
from tilec.ir.layout import Layout, LayoutRequest, bank_conflicts, in_warps, leading_run, padded
from tilec.ir.layout.queries import BANK_BYTES, BANKS
from tilec.ir.loc import Loc
from tilec.ir.uniformity import uniformity_of
from tilec.passes.utils.accesses import fragment_accesses, is_by_each_thread, parallel_accesses
from tilec.passes.utils.building import with_types
from tilec.passes.utils.coalescing import (
    Coalescing,
    Row,
    fewest_conflicts,
    narrowest,
    neighbours,
    widest_run,
)
from tilec.passes.utils.conversions import convert_operands
from tilec.passes.utils.distribution import (
    covering,
    each_thread,
    fewest_registers,
    folded_rows,
    is_narrow,
    with_rows,
)
from tilec.passes.utils.gemm_layouts import (
    SWIZZLES,
    accumulator_layout,
    operand_fragment_layout,
    operand_shared_layout,
    swizzle_of,
)
from tilec.passes.utils.groups import fragment_warps, warps_of
from tilec.passes.utils.reductions import result_layout
from tilec.target import Target


def infer_layouts(func: Func, target: Target) -> Func:
    """Raises LayoutError where an annotated layout does not fit its buffer."""
    inference = _Inference(func, target)
    inference.strict()
    inference.common()
    inference.free()
    return inference.rewrite()


# --- inference ---


class _Inference:
    def __init__(self, func: Func, target: Target) -> None:
        self.func = func
        self.target = target
        self.warps = warps_of(func, target)
        self.whole = int(func.attrs["threads"]) // target.warp_size
        self.held_by = fragment_warps(func, target)
        self.ops = list(walk(func.body))
        self.layouts: dict[Value, Layout] = {}
        self.loops: dict[ops.Parallel, Layout] = {}
        self.along: dict[ops.Parallel, int] = {}  # which of their dimensions free loops' lanes run
        self.reasons: list[str] = []
        self.parallels = [o for o in self.ops if isinstance(o, ops.Parallel)]
        self.reductions = [o for o in self.ops if isinstance(o, ops.Reduce)]
        self.coalescing = Coalescing(func)
        self.alike = [*_fragments_alike(self.ops)]
        uniformity = uniformity_of(func)
        self.by_each = {
            p
            for p in self.parallels
            if is_by_each_thread(p, uniformity) and not fragment_accesses(p)
        }
        self.accesses = {p: fragment_accesses(p) for p in self.parallels}
        self.origins = facts_of(func).origins

    def set(self, buffer: Value, layout: Layout, reason: str) -> None:
        if buffer not in self.layouts:
            self.layouts[buffer] = layout
            self.reasons.append(f"{buffer.name or 'buffer'}: {reason}")

    def strict(self) -> None:
        """What the user annotated, then what instructions demand."""
        for o in self.ops:
            if isinstance(o, ops.AnnotateLayout) and isinstance(o.layout, Layout):
                if o.layout.shape != o.dest.buffer.static_shape:
                    raise LayoutError(
                        f"a layout of shape {o.layout.shape} for {o.dest.name}: {o.dest.type}",
                        o.loc,
                        "give the layout the buffer's shape",
                    )
                held = o.dest.space == "fragment"
                if o.layout.is_held if held else o.layout.is_memory:
                    layout = o.layout
                    if held:
                        warps = self.held_by.get(o.dest, self.whole)
                        layout = self._of_threads(layout, warps, o.loc, str(o.dest.name))
                    self.set(o.dest, layout, "annotated")
        for p in self.parallels:
            if p.wanted is not None and p.wanted.shape == p.extents and p not in self.by_each:
                self.loops[p] = self._of_threads(p.wanted, self.warps(p), p.loc, "the loop")
        # What wgmma reads, every other instruction can read too, but not the other way round.
        gemms = [o for o in self.ops if isinstance(o, ops.Gemm)]
        gemms.sort(key=lambda o: (not o.by_engine, "simt" in o.instr))
        for o in gemms:
            self.set(
                o.c,
                accumulator_layout(o, self.warps(o), self.target.warp_size),
                f"strict: C of {o.instr}",
            )
        operands = [(o, which, x) for o in gemms for which, x in (("a", o.a), ("b", o.b))]
        swizzles: dict[Value, int] = {}
        for o, which, x in operands:
            most = swizzles.get(x.buffer, SWIZZLES[0])
            swizzles[x.buffer] = min(most, swizzle_of(o, which))
        for o, which, x in operands:
            t, reason = x.type, f"strict: {which.upper()} of {o.instr}"
            if t.space == "shared":
                most = swizzles[x.buffer]
                layout = operand_shared_layout(t.static_shape, t.dtype.bits, o.instr, most)
                self.set(x.buffer, layout, reason)
            elif t.space == "fragment" and x.is_whole and not o.instr.startswith("simt"):
                layout = operand_fragment_layout(o, which, self.warps(o))
                self.set(x.buffer, layout, f"{reason} in registers")
        feeds = {x.buffer: o for o, _, x in operands if x.type.space == "fragment"}
        for o in self.ops:
            if isinstance(o, ops.Copy) and o.dest.buffer in feeds:
                t, row = o.source.type, feeds[o.dest.buffer].instr
                if t.space == "shared":
                    layout = operand_shared_layout(t.static_shape, t.dtype.bits, row)
                    reason = f"strict: registers of {row} are read from it"
                    self.set(o.source.buffer, layout, reason)
        for o in self.ops:
            if isinstance(o, ops.AnnotateLayout) and isinstance(o.layout, LayoutRequest):
                t = o.dest.buffer
                layout = operand_shared_layout(t.static_shape, t.dtype.bits, "mma")
                self.set(o.dest, layout, f"annotated: {o.layout.name}")

    def _of_threads(self, layout: Layout, warps: int, loc: Loc, what: str) -> Layout:
        """A layout of the user's, by threads, as one of lanes and warps."""
        try:
            return in_warps(layout, self.target.warp_size, warps)
        except LayoutError as e:
            hint = "give each warp as much to hold, or leave the layout out"
            raise LayoutError(f"{what}: {e.message}", loc, hint) from None

    def common(self) -> None:
        """Carry layouts through element-wise loops and register copies until nothing changes."""
        changed = True
        while changed:
            before = len(self.layouts) + len(self.loops)
            for p in self.parallels:
                self._through_loop(p)
            for r in self.reductions:
                source = self.layouts.get(r.source.buffer)
                result = None if source is None else result_layout(source, r)
                if result is not None:
                    self.set(r.dest.buffer, result, f"common: reduced from {r.source.buffer.name}")
            for o, x, y in self.alike:
                if x in self.layouts:
                    self.set(y, self.layouts[x], f"common: {o.opname} with {x.name}")
            changed = len(self.layouts) + len(self.loops) != before

    def _through_loop(self, p: ops.Parallel) -> None:
        if p not in self.loops:
            for a in self.accesses[p]:
                if a.buffer in self.layouts and len(a.dims) == len(p.extents):
                    layout = self.layouts[a.buffer]
                    shape = tuple(p.extents[d] for d in a.dims)  # without a row's extent of 1
                    try:
                        layout = layout if layout.shape == shape else layout.reshape(shape)
                    except LayoutError:  # a thread's elements would not be a box of the loop's
                        continue
                    order = tuple(a.dims.index(d) for d in range(len(p.extents)))
                    self.loops[p] = layout.permute(order)
                    break
        if p in self.loops:
            for a in self.accesses[p]:
                if a.buffer not in self.layouts:
                    self.set(a.buffer, a.project(self.loops[p]), "common: element-wise")

    def free(self) -> None:
        """Loops and fragments that nothing ties down: coalesced, as wide as the accesses allow."""
        # What tensors want comes before what any layout does for.
        for p in sorted(
            self.parallels, key=lambda p: (-len(p.extents), not self.coalescing.of_loop(p))
        ):
            if p not in self.loops and p in self.by_each:
                self.loops[p] = each_thread(p.extents)
            elif p not in self.loops:
                self.loops[p] = self._free_loop(p)
                self.common()
        for r in self.reductions:  # what they leave follows
            self._free_fragment(r.source.buffer)
        for o in self.ops:
            if isinstance(o, ops.Alloc) and o.type.space == "fragment":
                self._free_fragment(o.result)
            elif isinstance(o, ops.Alloc) and o.type.space == "shared":
                if o.result not in self.layouts:
                    self.set(o.result, self._shared(o.result), "free: fewest bank conflicts")

    def _free_loop(self, p: ops.Parallel) -> Layout:
        """Lanes run along the dimension along which most of what the loop touches in tensors lies
        side by side: the last, but where it gathers."""
        dim = self.along[p] = self.coalescing.lanes_along(p)
        rows = self.coalescing.of_loop(p, dim)
        widest = widest_run(narrowest(p), rows)
        if p.coalesced_width:
            widest = min(widest, p.coalesced_width)
        vector = neighbours(rows or self.coalescing.on_chip(p, dim), widest)
        held = bool(self.accesses[p])
        folded = [a.buffer for a in self.accesses[p]]
        layout = self._folded(p.extents, folded, rows, self.warps(p))
        if layout is not None:
            return layout
        order = [d for d in range(len(p.extents)) if d != dim] + [dim]
        row, count = self._rows_alike(p, dim)
        shape = [e // count if d == row else e for d, e in enumerate(p.extents)]
        layout = self._blocked(tuple(shape[d] for d in order), vector, held, self.warps(p))
        layout = layout.permute(tuple(map(order.index, range(len(order)))))
        return layout if count == 1 else with_rows(layout, row, count)

    def _rows_alike(self, p: ops.Parallel, dim: int) -> tuple[int, int]:
        """The dimension and number of rows that a thread has one after the other, since they read
        the same, where two neighbours of each are left to every thread."""
        row, count = self.coalescing.rows_alike(p, dim)
        threads = self.warps(p) * self.target.warp_size
        while count > 1 and prod(p.extents) < 2 * count * threads:
            count //= 2
        return (row, count) if count > 1 else (-1, 1)

    def _free_fragment(self, v: Value) -> None:
        if v not in self.layouts:
            rows = self.coalescing.of_fragment(v)
            vector = neighbours(rows, widest_run(v.dtype.bits, rows))
            warps = self.held_by.get(v, self.whole)
            shape = v.buffer.static_shape
            layout = self._folded(shape, [v], rows, warps)
            layout = layout or self._blocked(shape, vector, True, warps)
            self.set(v, layout, "free: coalesced")
            self.common()

    def _folded(
        self, extents: tuple[int, ...], tiles: Sequence[Value], rows: Sequence[Row], warps: int
    ) -> Layout | None:
        """The layout of tiles whose rows are folded and begin anywhere in memory, or of loops that
        use what such rows give: `tiles` are what they touch."""
        folds = [r for r in self.reductions if r.source.shape == extents and r.dim == 1]
        touched = {v for r in folds for v in (r.source.buffer, r.dest.buffer)}
        if touched.isdisjoint(tiles) or not rows or max(r.width for r in rows) > 1:
            return None
        bits = max(r.bits for r in rows)
        return folded_rows(extents, self.target.warp_size, warps, bits, len(folds))

    def _blocked(
        self, extents: tuple[int, ...], vector: int, registers: bool, warps: int
    ) -> Layout:
        """Coalesced, with up to `vector` neighbours of a row in a thread; a loop that touches no
        fragment may cover more than its extents."""
        total = 1
        for e in extents:
            total *= e
        threads = warps * self.target.warp_size
        while vector > 1 and (total < vector * threads or extents[-1] % vector):
            vector //= 2
        spread = fewest_registers if registers else covering
        return spread(extents, self.target.warp_size, warps, vector)

    def _shared(self, buffer: Value) -> Layout:
        """Row-major; swizzled if a matrix instruction's result is copied there, or if loops that
        read what copies bring have fewer bank conflicts then; rows set apart if a loop walks down a
        column of it."""
        shape = buffer.buffer.static_shape
        bits = buffer.dtype.bits
        if len(shape) > 1 and any(
            isinstance(o, ops.Copy)
            and o.dest.buffer is buffer
            and self._is_narrow(o.source.buffer, bits)
            for o in self.ops
        ):
            return operand_shared_layout(shape, bits, "mma")
        for p in self.parallels:
            last = p.body.args[self.along.get(p, -1)]
            for a in parallel_accesses(p):
                if a.buffer is not buffer or len(shape) < 2:
                    continue
                if last not in self.origins.of(a.indices[-1]):
                    return self._apart(buffer, min(self.target.warp_size, prod(shape[:-1])))
        return fewest_conflicts(self.func, buffer, self.loops)

    def _apart(self, buffer: Value, lanes: int) -> Layout:
        """Rows apart, where `lanes` of a warp walk down a column: by one bank, or by 16 bytes
        where wide accesses of whole rows save more than the walk pays."""
        held, moved = [], 0
        for o in self.ops:
            if isinstance(o, ops.Copy) and buffer in (o.source.buffer, o.dest.buffer):
                other = (o.source if o.dest.buffer is buffer else o.dest).buffer
                layout = self.layouts.get(other)
                moved += other.space == "global"
                if other.space == "fragment" and layout is not None:
                    held.append(layout)
        shape, bits = buffer.buffer.static_shape, buffer.dtype.bits
        choices = [padded(shape, shape[-1], max(1, n // bits)) for n in (32, 128)]
        return min(choices, key=lambda c: walk_price(c, bits, lanes, held, moved))

    def _is_narrow(self, source: Value, bits: int) -> bool:
        """Whether a fragment's threads hold less than 16 bytes of a row."""
        layout = self.layouts.get(source)
        if source.space != "fragment" or layout is None or layout.rank < 2:
            return False
        return is_narrow(layout, bits)

    # --- writing it down ---

    def rewrite(self) -> Func:
        func = self.func.with_body(_set_loops(self.func, self.loops))
        typed = {v: v.buffer.with_layout(layout) for v, layout in self.layouts.items()}
        func = func.with_body(with_types(func.body, typed))
        func = func.rewrite(ops.AnnotateLayout, lambda _: [])
        func = func.with_body(convert_operands(func, self.target))
        return func.with_attrs(layout_reasons=tuple(self.reasons))


def _set_loops(func: Func, loops: dict[ops.Parallel, Layout]) -> Block:
    by_args = {p.body.args: layout for p, layout in loops.items()}

    def visit(o: ops.Parallel) -> None | Op:
        layout = by_args.get(o.body.args)
        return None if layout is None else replace(o, layout=layout, wanted=None)

    return func.body.rewrite(ops.Parallel, visit)


def _fragments_alike(statements: Sequence[Op]) -> Iterator[tuple[Op, Value, Value]]:
    """Each op that does one thing to the elements of several fragments, with two of one shape."""
    for o in statements:
        if type(o) in ELEMENTWISE:
            held = [r.buffer for r in boxes(o) if r.type.space == "fragment"]
            for x, y in permutations(held, 2):
                if x.buffer.shape == y.buffer.shape:
                    yield o, x, y


def walk_price(memory: Layout, bits: int, lanes: int, held: Sequence[Layout], moved: int) -> float:
    """Of a padded buffer's accesses, in instructions of a warp and times that they go over the
    banks: `lanes` threads walk down a column at once, fragments of the layouts `held` are copied
    whole, and so is the buffer to or from global memory, `moved` times."""
    total, (every, skip) = prod(memory.shape), memory.pad or (memory.shape[-1], 0)
    row, widest = every + skip, gcd(every, skip, 128 // bits)
    words = np.arange(lanes) * row * bits // (8 * BANK_BYTES)
    walked = int(np.bincount(np.unique(words) % BANKS).max())
    price = total / lanes * (1 + walked)
    for layout in held:
        dim, run = leading_run(layout)
        if layout.shape != memory.shape:
            continue
        width = gcd(widest, run) if dim == layout.rank - 1 else 1
        times = max(1, width * bits // 32) * bank_conflicts(layout, memory, bits, width)
        price += layout.size("reg") * layout.size("warp") / width * (1 + times)
    return price + moved * total / (32 * widest) * (1 + max(1, widest * bits // 32))
