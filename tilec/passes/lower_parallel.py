"""lower_parallel: loops over a tile become loops over one thread's registers.

Before: every `parallel` has a layout; copies and fills have become parallel loops
(`lower_copies`). After: no `parallel`, and no element access outside of `local` buffers: only
`reg_read`/`reg_write` of fragments and `mem_load`/`mem_store`/`cp_async` with offset, width and
guard.

A loop runs over groups of `v` registers whose elements are neighbours, so that the memory accesses
among them become vector accesses where alignment is known. It is written out, but for one that is
long and selects no registers. An index that may leave its tensor is guarded. The test is made once
for the whole tile: inside, the fast form has no guards but for indices of which a tile's corners do
not tell, as those that are loaded; only a tile that crosses an edge takes the guarded form, which
is a loop where it is long and selects no registers, element by element where a vector is long too:
few tiles run it, and each of its instructions is compiled.

Where products have roles (`split_roles`), threads skip a loop that multiplies a fragment by another
one whose elements they hold are all 1: multiplications take registers' bandwidth from the products
of the other group, and sums are scaled in few iterations."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Substitution, Value, walk
from tilec.ir.effects import buffers_read, buffers_written, effects_in
from tilec.ir.instr.memory import CP_ASYNC_BYTES
from tilec.ir.layout import Layout, leading_run, rows_behind
from tilec.passes.check_registers import is_roomy
from tilec.passes.utils.accesses import changes_memory, fragment_accesses, only_store
from tilec.passes.utils.addressing import Place, coordinates, unique_register, unique_replica
from tilec.passes.utils.copies_past_registers import as_loops
from tilec.passes.utils.loop_body import LoopBody
from tilec.passes.utils.memory_access import MemoryFacts, in_memory, masked_loads
from tilec.passes.utils.warp_matrices import by_elements, by_ldmatrix
from tilec.target import Target

MOST_WRITTEN = 128
"""Iterations of a thread that are written out where no register has to be selected by a number."""
MOST_OPS = 1024
"""Operations up to which such a loop is written out: a longer body hides its own loads."""
MOST_EDGE_OPS = 512
"""The same for the form that only tiles at an edge take, and for what it does at once."""

MOST_NEIGHBOURS = 16
"""Iterations of a thread's own loop over neighbours that make vectors."""

MOST_TOGETHER = 8
"""Vectors that a thread has from memory before it stores the first of them."""

BYTES_TOGETHER = 128
"""What these take at the most where they come from tensors."""

MOST_INSIDE = 256
"""Operations of a loop inside that is written out."""

MOST_JAMMED = 4
"""Groups of elements that run a loop inside together."""


def lower_parallel(func: Func, target: Target) -> Func:
    func = func.with_body(as_loops(func))
    lowering = Lowering(func, target)

    def loops(o: Op) -> None | list[Op]:
        match o:
            case ops.Parallel():
                return lowering.parallel(lowering.written_out(o))
            case ops.For(kind="vectorized", inits=()):
                return lowering.vectorized(o)
        return None

    subst: Substitution = {}

    def others(o: Op) -> None | list[Op]:
        if isinstance(o, ops.AnnotateSafeValue):
            return []
        if isinstance(o, ops.LoadMatrices):
            return lowering.matrices(o, subst)
        if isinstance(o, ops.Load) and o.source.space == "fragment":
            b = Builder(o.loc)  # its one element, which all threads hold
            subst[o.result] = b.value(ops.RegRead, o.source, b.const(0))
            return b.ops
        return lowering.scalar(o, subst) if in_memory(o) else None

    return func.with_body(func.body.rewrite(Op, loops).rewrite(Op, others, subst))


class Lowering:
    """The lowering of one function's loops."""

    def __init__(self, func: Func, target: Target) -> None:
        self.known = MemoryFacts(func, target)
        self.roomy = is_roomy(func)
        self.held_once = held_once(func)
        self.may_alias = bool(func.attrs.get("may_alias"))
        self.roles = bool(func.attrs.get("roles"))
        self.products = func.body.has(ops.Mma, ops.Wgmma)

    # --- code outside of parallel loops ---

    def scalar(self, o: Op, subst: Substitution) -> list[Op]:
        """An element access that every thread makes for itself."""
        b = Builder(o.loc)
        LoopBody(self.known, b, None, 1, True, None).op(o, [subst])
        return b.ops

    def vectorized(self, o: ops.For) -> None | list[Op]:
        """A loop of a thread over neighbours, with accesses as wide as they may be, also under
        conditions; None where no access is wider than an element, or an iteration may see what
        another does."""
        indices = o.indices(self.known.facts.constant)
        if not indices or indices.step != 1 or len(indices) > MOST_NEIGHBOURS:
            return None
        if any(isinstance(x, ops.Store) and x.engine == "cp_async" for x in o.body.ops):
            return self.past_registers(o, indices)
        count = len(indices)
        if count == 1:
            return None
        (arg,), every = o.body.args, [*walk(o.body)]
        plain = [x for x in every if isinstance(x, ops.Load | ops.Store)]
        known = (
            x.pure
            or isinstance(x, ops.Assume | ops.Load | ops.Store | ops.Yield)
            or (isinstance(x, ops.If) and self.known.one_branch(x, arg))
            for x in every
        )
        if not all(known):
            return None
        read = {x.source for x in plain if isinstance(x, ops.Load)}
        stored = [x.dest for x in plain if isinstance(x, ops.Store)]
        if self.may_alias and all(any(v.space == "global" for v in s) for s in (read, stored)):
            return None
        several = {v for v in stored if v in read or stored.count(v) > 1}
        if not all(self._by_iteration(v, plain, arg, count) for v in several):
            return None
        found = [self.known.memory(x, arg, count) for x in plain if in_memory(x)]
        if max((m.width for m in found), default=1) == 1:
            return None
        b = Builder(o.loc)
        envs: list[Substitution] = [{arg: b.const(n, o.lo.dtype)} for n in indices]
        body = LoopBody(self.known, b, None, count, True, None, arg)
        for x in o.body.ops:
            body.op(x, envs)
        return b.ops

    def _by_iteration(
        self, buffer: Value, accesses: list[ops.Load | ops.Store], arg: Value, count: int
    ) -> bool:
        """Whether each iteration accesses an element of a buffer that no other one does."""
        indices = {x.indices for x in accesses if x.buffer is buffer}
        near = self.known.neighbours(arg, count)
        return len(indices) == 1 and all(
            near.counts_up(last) and all(map(near.same, outer)) for *outer, last in indices
        )

    def past_registers(self, o: ops.For, indices: range) -> None | list[Op]:
        """A thread's own copy of neighbours that goes past its registers; None where their places
        are not known to suit that: it is made by loads and stores then, and done at once."""
        (arg,), count = o.body.args, len(indices)
        moved = [x for x in o.body.ops if isinstance(x, ops.Load | ops.Store)]
        if len(moved) != 2 or not isinstance(moved[1], ops.Store):
            return None
        (source, value), masked = (moved[0], moved[1].value), masked_loads(o.body.ops, self.known)
        if source.buffer.space != "global" or source.buffer in self.known.tensors.safe:
            return None
        if value not in source.results and value not in {x.result for x in masked}:
            return None
        width = min(self.known.memory(x, arg, count).width for x in moved)
        if width * value.dtype.bits // 8 not in CP_ASYNC_BYTES or count % width:
            return None
        b = Builder(o.loc)
        body = LoopBody(self.known, b, None, width, True, None, arg, past=o.body)
        for start in range(0, count, width):
            envs: list[Substitution] = [
                {arg: b.const(n, o.lo.dtype)} for n in indices[start : start + width]
            ]
            for x in o.body.ops:
                body.op(x, envs)
        return b.ops

    def matrices(self, o: ops.LoadMatrices, subst: Substitution) -> list[Op]:
        """Matrices for the lanes of a warp."""
        whole = by_ldmatrix(o, self.known)
        if whole is not None:
            return whole
        each = [self.scalar(x, subst) if in_memory(x) else [x] for x in by_elements(o)]
        return [x for statements in each for x in statements]

    # --- parallel loops ---

    def written_out(self, p: ops.Parallel) -> ops.Parallel:
        """The loop with short ones inside unrolled, so that their loads are under way together."""

        def visit(o: ops.For) -> Op | None:
            made = replace(o, kind="unroll") if o.kind == "serial" else None
            return made if made and 0 < self._written(made) <= MOST_INSIDE else None

        body = p.body.rewrite(ops.For, visit)
        return p if body is p.body else replace(p, body=body)

    def _written(self, o: Op) -> int:
        """The operations that come of an op where loops are written out; none of those that never
        run or whose ends are open."""
        inside = sum(self._written(x) for region in o.regions for x in region.ops)
        if not isinstance(o, ops.For) or o.kind != "unroll":
            return 1 + inside
        return len(o.indices(self.known.facts.constant) or ()) * inside

    def parallel(self, p: ops.Parallel) -> list[Op]:
        layout = p.laid_out
        b = Builder(p.loc)
        place = Place(b)
        place.make(layout)
        replica = unique_replica(b, layout, place)
        # What is asked for together (`_batch`) is waited for by whole warps.
        together = _leaves(p, "shared") or not _registers_left(p) <= self.held_once
        if replica is None or together:
            self._tested(b, p, layout, place, replica)
        else:
            with b.when(replica) as inner:
                self._tested(inner, p, layout, place, None)
        factor = _factor(p) if self.roles else None
        return _unless_one(factor, b.ops) if factor is not None else b.ops

    def _tested(
        self, b: Builder, p: ops.Parallel, layout: Layout, place: Place, replica: Value | None
    ) -> None:
        """The loop, in a fast and a guarded form where it may leave its tensors. `replica`: true
        in the threads that store for others that run the same iterations."""
        dim, run = leading_run(layout)
        arg = p.body.args[dim] if dim >= 0 else None
        accesses = [o for o in p.body.every(ops.ElementAccess) if in_memory(o)]
        regions = [o for o in p.body.ops if o.regions]
        flat = all(self.known.one_branch(o, arg) for o in regions)
        limit = run
        while limit > 1 and not flat:  # as many neighbours as go the same way everywhere
            if all(self.known.together(o, arg, limit) for o in regions):
                break
            limit //= 2
        width = max((self.known.memory(o, arg, limit).width for o in accesses), default=1)
        width = max(width, *(self.known.apart(o, arg, limit) for o in accesses), 1)
        width = max(width, *(self.known.of_byte(o, arg, limit) for o in accesses), 1)
        parts = (self.known.packed(o, arg, limit) for o in accesses)
        width = max(width, *(found.width * found.per for found in parts if found), 1)
        if not self.known.needs(p):
            self._emit(b, p, place, replica, width, dim, guarded=False)
            return
        conds, left = None, set[tuple[Op, int]]()
        one_group = sum(1 for _ in walk(p.body)) * width
        apart = _is_long(p, MOST_EDGE_OPS) and one_group > MOST_EDGE_OPS
        if flat and not (p.outside or p.engine == "cp_async" or (apart and _overlap(accesses))):
            # Beside a product a gather of 32 rows took 59 us guarded, in two forms 71.
            some = None if self.products else left
            conds = self.known.inside_at_corners(b, p, p.body.defs, {}, some)
        if conds is None and not p.outside:
            self._emit(b, p, place, replica, width, dim, guarded=True)
            return
        slow = Builder(p.loc)
        edge = 1 if apart else width
        self._emit(slow, p, place, replica, edge, dim, guarded=True, most=MOST_EDGE_OPS)
        if conds is None:
            b.ops += slow.ops
            return
        fast = Builder(p.loc)
        self._emit(fast, p, place, replica, width, dim, guarded=left)
        b.branch(b.conjunction(conds), fast.ops, slow.ops)

    def _nearest(self, p: ops.Parallel) -> bool:
        """Whether threads that have none of the elements load the nearest ones, and store nothing:
        loads that are under no condition can be asked for together."""
        if not _partial(p) or fragment_accesses(p):
            return False
        apart = self.roomy and not self.may_alias
        return _leaves(p, "shared") or (apart and _leaves(p, "global", "shared"))

    def _batch(self, p: ops.Parallel, groups: int, most: int, width: int) -> int:
        """How many groups are taken together: in a loop that is not written out, at an edge, and
        where there are fewer elements than the layout covers, what comes from shared memory, or
        there from tensors, unguarded, is asked for before it is stored."""
        if self._nearest(p):
            return math.gcd(groups, MOST_TOGETHER, _group_of(p, width))
        if _partial(p):
            return 1
        if (rows := self._rows_alike(p)) and groups % rows == 0:
            return rows
        late = most != MOST_OPS or _is_long(p, most)
        if late and _leaves(p, "shared"):
            return math.gcd(groups, MOST_TOGETHER)
        return math.gcd(groups, MOST_JAMMED) if _sums(p) else 1

    def _rows_alike(self, p: ops.Parallel) -> int:
        """How many rows that a thread has one after the other read the same somewhere, and are
        lowered together; 0 if none do."""
        dim, count = rows_behind(p.laid_out)
        if count == 1 or _partial(p):  # (what lies outside is brought to the nearest)
            return 0
        arg = p.body.args[dim]
        near = self.known.neighbours(arg, count)
        loads = [o for o in p.body.every(ops.Load) if in_memory(o)]
        moved = [
            o for o in loads if not self.known.facts.origins.of_all(o.indices).isdisjoint([arg])
        ]
        return count if any(all(map(near.same, o.indices)) for o in moved) else 0

    def _emit(
        self,
        b: Builder,
        p: ops.Parallel,
        place: Place,
        replica: Value | None,
        width: int,
        dim: int,
        guarded: bool | Collection[tuple[Op, int]],
        most: int = MOST_OPS,
    ) -> None:
        """The loop over groups of `width` registers, `batch` of them at a time. A loop of more than
        `most` operations is not written out."""
        registers = p.laid_out.size("reg")
        batch = self._batch(p, registers // width, most, width)
        group = Value(b.const(0).type, "r")
        inner = Builder(p.loc)
        first = inner.binary("mul", group, width * batch)
        nearest = self._nearest(p)
        work = inner if nearest else Builder(p.loc)
        body = LoopBody(self.known, work, p, width, guarded, replica)
        body.first, body.rows = first, 1 if _partial(p) else body.rows
        envs: list[Substitution] = []
        alike = batch > 1 and batch == self._rows_alike(p)
        for at in range(batch):
            if at and alike:
                arg = p.body.args[body.row]
                row = inner.binary("add", envs[0][arg], at)
                envs += ({**env, arg: row} for env in envs[:width])
                continue
            start = first
            if at:
                start = inner.binary("add", first, at * width)
            coords = coordinates(inner, p.laid_out, place, start)
            inside = [inner.compare("lt", coords[d], p.extents[d]) for d in _partial(p)]
            own: Substitution = {}
            if nearest:
                own[body.inside] = inner.all_of(*inside)
                _move_inside(inner, p, coords, width, dim)
            envs += (own | env for env in _neighbours(inner, p, coords, width, dim))
        if changes_memory(p) and not _registers_left(p):
            first_of_all = unique_register(inner, p.laid_out, first)
            inside += [] if first_of_all is None else [first_of_all]
        for o in p.body.ops:
            if batch > 1 and in_memory(o) and not isinstance(o, ops.Load):
                work.emit(ops.WarpSync)  # LLVM would move each load into the branch of its store
            body.op(o, envs)
        if not nearest:
            inner.branch(inner.conjunction(inside), work.ops)
        inner.emit(ops.Yield)
        groups, block = registers // (width * batch), inner.block([group])
        selects = block.has(ops.RegRead, ops.RegWrite, ops.Lookup)
        short = groups <= MOST_WRITTEN and not _is_long(p, most)
        kind = "unroll" if selects or short else "serial"
        zero, count, one = (b.const(n) for n in (0, groups, 1))
        b.emit(ops.For, kind, zero, count, one, (), block)


def _overlap(accesses: Sequence[ops.ElementAccess]) -> bool:
    """Whether several elements of a tensor are loaded for one, as a stencil does: of its tiles many
    reach beyond an edge."""
    loads = {(o.source, o.indices) for o in accesses if isinstance(o, ops.Load)}
    return len({v for v, _ in loads}) < len(loads)


def _factor(p: ops.Parallel) -> Value | None:
    """The fragment, if all that a loop does is to multiply another's elements by one of its."""
    made = p.body.makers
    store = only_store(p.body)
    product = made.get(store.value) if store is not None else None
    if store is None or not isinstance(product, ops.Binary) or product.kind != "mul":
        return None
    if store.dest.dtype.kind != "float":
        return None
    for x, y in ((product.lhs, product.rhs), (product.rhs, product.lhs)):
        old, factor = made.get(x), made.get(y)
        if isinstance(old, ops.Load) and isinstance(factor, ops.Load) and old.source is store.dest:
            fragments = {v.space for v in (old.source, factor.source)} == {"fragment"}
            if fragments and old.indices == store.indices and factor.source is not old.source:
                return factor.source
    return None


def _unless_one(factor: Value, statements: list[Op]) -> list[Op]:
    """A loop that multiplies by a fragment's elements, for threads that have one other than 1."""
    layout = factor.buffer.laid_out
    b = Builder(statements[0].loc)
    one = b.const(1.0, factor.dtype)
    held = (b.const(r) for r in range(layout.size("reg")))
    tests = [b.compare("ne", b.value(ops.RegRead, factor, r), one) for r in held]
    b.branch(b.any_of(*tests), statements)
    return b.ops


def _partial(p: ops.Parallel) -> list[int]:
    """The dimensions along which the layout covers more than there is."""
    return [d for d, (own, all) in enumerate(zip(p.extents, p.laid_out.shape)) if all > own]


def _move_inside(b: Builder, p: ops.Parallel, coords: list[Value], width: int, dim: int) -> None:
    """Bring `coords`, of the first of `width` neighbours along `dim`, to the nearest that are
    elements of the loop."""
    for d in _partial(p):
        last = b.const(p.extents[d] - (width if d == dim else 1))
        coords[d] = b.binary("min", coords[d], last)


def _neighbours(
    b: Builder, p: ops.Parallel, coords: list[Value], width: int, dim: int
) -> list[Substitution]:
    """The loop's arguments at each of the `width` elements from `coords` on along `dim`."""
    envs: list[Substitution] = [dict(zip(p.body.args, coords))]
    for e in range(1, width):
        here = b.binary("add", coords[dim], e)
        envs.append({**envs[0], p.body.args[dim]: here})
    return envs


def _sums(p: ops.Parallel) -> bool:
    """Whether a loop inside does all of the work, and leaves it in registers: elements that run it
    together load once what they share."""
    loops = [o for o in p.body.ops if o.regions]
    reads = any(in_memory(o) for o in walk(p.body))
    registers = not any(in_memory(o) and not isinstance(o, ops.Load) for o in walk(p.body))
    return reads and registers and len(loops) == 1 and isinstance(loops[0], ops.For)


def _leaves(p: ops.Parallel, *spaces: str) -> bool:
    """Whether all that the loop does is to read what is in memory of these kinds, and to store what
    it makes of it elsewhere."""
    sources = {o.source.space for o in p.body.ops if isinstance(o, ops.Load)}
    plain = all(
        isinstance(o, (ops.ElementAccess, ops.Yield)) or (o.pure and not o.regions)
        for o in p.body.ops
    )
    return plain and bool(sources) and sources.issubset(spaces) and not changes_memory(p)


def _group_of(p: ops.Parallel, width: int) -> int:
    """How many groups of `width` elements of all tensors that a loop loads a thread has room for, a
    power of two."""
    loads = (o.source for o in p.body.ops if isinstance(o, ops.Load))
    bits = sum(v.dtype.bits for v in loads if v.space == "global")
    most = BYTES_TOGETHER * 8 // max(width * bits, 1) if bits else MOST_TOGETHER
    return 1 << max(most, 1).bit_length() - 1


def _is_long(p: ops.Parallel, most: int) -> bool:
    """Whether what a thread does in the loop is more than `most` operations, and none of them
    selects a register."""
    count = sum(1 for _ in walk(p.body))
    # What cp.async brings is computed once for a vector.
    together = leading_run(p.layout)[1] if p.engine == "cp_async" else 1
    return count * p.laid_out.size("reg") > most * together and not fragment_accesses(p)


def _registers_left(p: ops.Parallel) -> set[Value]:
    """The registers that outlive the loop and that it writes."""
    own = {o.result for o in p.body.every(ops.Alloc)}
    written = buffers_written(e for _, e in effects_in(p.body))
    return {v for v in written if v not in own and v.space in ("fragment", "local")}


# --- what one thread needs ------------------------------------------------------------------------


def held_once(func: Func) -> set[Value]:
    """The fragments that only loops of their own layout touch, which put what they read in memory
    or in other such fragments: where several threads hold an element, one has to have its value,
    the one that stores for the others.

    A sum of rows of shared memory is taken by a warp, then, where all would read the same."""
    loops = [o for o in func.body.every(ops.Parallel)]
    read = {p: _registers(buffers_read(p.effects())) for p in loops}
    written = {p: _registers(buffers_written(p.effects())) for p in loops}
    inside = {o for p in loops for o in walk(p.body)}
    once = {
        o.result
        for o in func.body.every(ops.Alloc)
        if o not in inside and o.type.space == "fragment"
    }
    once -= {v for o in walk(func.body) if o not in inside for v in o.operands}
    for p in loops:
        once -= {v for v in read[p] | written[p] if v.buffer.layout != p.layout}
    while more := {v for p in loops if not written[p] <= once for v in read[p] & once}:
        once -= more
    return once


def _registers(buffers: Iterable[Value]) -> set[Value]:
    return {v for v in buffers if v.space in ("fragment", "local")}
