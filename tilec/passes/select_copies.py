"""select_copies: who moves the data of each copy, and how much at a time.

Before: copies name regions. After: each copy has an `engine` and a `vector`:
- "tma": one thread starts box copies into shared memory (run-ahead copies of specialised kernels,
  where nothing that decides about them must not be done twice);
- "cp_async": threads start copies past their registers (run-ahead copies);
- "tma_store": a fragment is staged in shared memory and leaves through TMA, warp by warp; a shared
tile leaves as it lies;
- "threads": loads and stores of `vector` consecutive elements. A tensor whose base or strides do
  not allow an engine takes the next one down. The facts come from the tensor's type, never from
  values. A tile of atomics that TMA shall do (`use_tma`) is such a "tma_store" with a `reduction`,
  or is done by threads."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.analysis import facts_of
from tilec.ir.copy_engines import CopyEngines, same_order
from tilec.ir.core import Func, Op, Region, Value, walk, within
from tilec.ir.errors import LayoutError
from tilec.ir.instr.memory import tma_reduces
from tilec.ir.layout import Layout, has_runs, tma_box
from tilec.passes.stage_stores import staged_form
from tilec.passes.utils.distribution import is_narrow
from tilec.passes.utils.peer_copies import MAX_BOX, arrive, box_of, part_of, pieces
from tilec.passes.utils.rings import settle
from tilec.passes.utils.slicing import is_separable
from tilec.target import Target


def select_copies(func: Func, target: Target) -> Func:
    chooser = _Chooser(func, target)

    def visit(o: Op) -> Op | None | list[Op]:
        if isinstance(o, ops.ClusterCopy) and not o.engine:
            return chooser.to_peer(o)
        if isinstance(o, ops.AtomicTile) and o.engine == "tma_store":
            return chooser.reduction(o)
        if not isinstance(o, ops.Copy) or (o.engine and o.vector):
            return None
        return chooser.asked(o) if o.engine else chooser.choose(o)

    done = settle(func.rewrite(Op, visit))
    reasons = tuple(chooser.not_reduced)
    return done.with_attrs(not_reduced=reasons) if reasons else done


class _Chooser:
    def __init__(self, func: Func, target: Target) -> None:
        self.target = target
        self.func = func
        self.engines = CopyEngines(func, target)
        unseen = _Unseen(func)
        self.unseen, self.users = unseen.copies, unseen.users
        self.fences = func.body.has(ops.DeviceFence)
        groups = [o for o in func.body.every(ops.Scope)]
        self.grouped = {o for scope in groups for o in walk(scope.body)}
        self.not_reduced: list[tuple[int, str]] = []  # line of atomics, why TMA does not do them
        self.not_by_tma: set[Value] = set()  # tiles of which it cannot bring some copy
        specialise = bool(func.attrs.get("specialise"))
        ahead = [o for o in func.body.every(ops.Copy) if o.ahead]
        for o in ahead:
            s = o.dest.type
            boxes = s.layout is not None and box_fits(s.layout, s.dtype.bits)
            if self.engines.of(o, specialise and boxes) != "tma":
                self.not_by_tma.add(o.dest.buffer)
        by_tma = [o for o in ahead if o.dest.buffer not in self.not_by_tma]
        if by_tma and not is_separable(func.body, by_tma):
            self.not_by_tma.update(o.dest.buffer for o in by_tma)

    def choose(self, o: ops.Copy) -> Op:
        vector = self.engines.vector(o)
        if o.ahead:
            engine = self.engines.of(o, o.dest.buffer not in self.not_by_tma)
            if engine == "tma" or (engine == "cp_async" and _has_runs(o, vector)):
                return replace(o, engine=engine, vector=vector)
        if self.func.attrs.get("staged_store") and self._tma_store(o):
            return replace(o, engine="tma_store", vector=vector)
        return replace(o, engine="threads", vector=vector)

    def asked(self, o: ops.Copy) -> Op:
        """A copy by the engine that its author asks for, or by threads if that cannot do it."""
        vector = self.engines.vector(o)
        if o.engine == "cp_async":
            part = o.dest.extents[-1] != o.dest.type.static_shape[-1]
            start = self.engines.facts.divisor(o.dest.offsets[-1]) if part else 0
            able = self.engines.of(o, False) == "cp_async" and start % vector == 0
            able = able and _has_runs(o, vector)
        else:
            able = self.engines.tma_may_store(o) and self._box_store(o)
        return replace(o, engine=o.engine if able else "threads", vector=vector)

    def to_peer(self, o: ops.ClusterCopy) -> list[Op]:
        """Bulk copies, where the other block waits for them; else stores of threads, of which one
        tells the other block when all have made theirs."""
        if o.barrier is not None and pieces(o, self.engines.facts) is not None:
            return [replace(o, engine="tma")]
        stored: list[Op] = [replace(o, engine="threads", barrier=None, stage=None)]
        if o.barrier is not None:
            stored += [ops.Barrier(loc=o.loc), *arrive(o)]
        return stored

    def reduction(self, o: ops.AtomicTile) -> Op:
        """Atomics on a tile that TMA shall do, or threads if it cannot."""
        if not self.target.has("tma"):
            return replace(o, engine="threads")
        copy = ops.Copy(o.source, o.dest, engine="tma_store", reduction=o.kind, loc=o.loc)
        why = self._no_reduction(copy, o in self.grouped)
        if why:
            self.not_reduced.append((o.loc.line, why))
            return replace(o, engine="threads")
        return replace(copy, vector=self.engines.vector(copy))

    def _no_reduction(self, o: ops.Copy, grouped: bool) -> str:
        """Why TMA cannot do what `o`, of a group of the author's, says; "" if it can."""
        source, tensor = o.source.buffer, o.dest.buffer
        if tensor.space != "global":
            return f"{tensor.name} is in shared memory"
        if tma_reduces(o.reduction, tensor.dtype) is None:
            return f"it has no {o.reduction} of {tensor.dtype.name}"
        if not self.engines.tma_may_store(o):
            return (
                f"it writes tensors of 2 to 5 dimensions, whose rows begin and end at multiples of "
                f"16 bytes, from such a multiple on; of {tensor.name} that is not known"
            )
        if not all(self._only_combines(u, tensor) for u in self.users[tensor]):
            return f"the kernel reads or writes {tensor.name} otherwise, too"
        if self.func.attrs.get("may_alias"):
            return "tensors of this call may overlap"
        if self.fences:
            return "memory_order puts in order what threads do"
        if source.space == "fragment":
            held = "its registers cannot be staged: copy it to shared memory first"
            return "" if self._staged(o) and not grouped else held
        fits = f"it cannot read {source.name} as it lies in shared memory, whole and as "
        return "" if self._box_store(o) else f"{fits}{tensor.dtype.name}"

    def _only_combines(self, o: Op, tensor: Value) -> bool:
        """Whether it does not matter to an op when a tensor is reduced, which TMA does at any time
        until the kernel has ended."""
        if not any(e.buffer is tensor and (e.reads or e.writes) for e in o.effects()):
            return True
        unused = isinstance(o, ops.Atomic) and o.result not in self.users
        return unused or isinstance(o, ops.AtomicTile)

    def _tma_store(self, o: ops.Copy) -> bool:
        f, t = o.source.type, o.dest.type
        if not self.engines.tma_may_store(o) or o not in self.unseen:
            return False
        if f.space == "shared":
            return self._box_store(o)
        # Threads with more than that store well themselves.
        if f.space != "fragment" or o in self.grouped:  # groups store as they hold it
            return False
        return self._staged(o) and is_narrow(f.laid_out, t.dtype.bits)

    def _staged(self, o: ops.Copy) -> bool:
        """Whether a fragment can be staged on its way, warp by warp."""
        f = o.source.type
        return (
            len(f.shape) == 2
            and staged_form(o, self.target)[1] is not None
            and o.dest.extents[-2:] == f.static_shape
        )

    def _box_store(self, o: ops.Copy) -> bool:
        """Whether TMA can take a shared tile as it lies. All threads meet there, so it must stand
        where the whole block goes."""
        s, t = o.source.type, o.dest.type
        if s.dtype != t.dtype or s.layout is None or not same_order(o):
            return False
        if o.source.is_whole:
            return box_fits(s.layout, s.dtype.bits)
        if o.reduction or not self.func.attrs.get("by_hand"):
            return False
        part = part_of(o.source, self.engines.facts)
        return part is not None and box_of(o.source, part) is not None


class _Unseen:
    """The copies to global memory whose elements the kernel neither reads nor writes again, so that
    it does not matter when they arrive: what else touches the tensor touches other elements, or
    writes the same ones in the other branch of an `if`, and they lie at places that change with
    every loop around them."""

    def __init__(self, func: Func) -> None:
        self.facts = facts_of(func)
        self.users = func.body.users
        every = within(func.body)
        self.copies = {o for o, x in every if isinstance(o, ops.Copy) and self._is_unseen(o, x)}

    def _is_unseen(self, o: ops.Copy, around: Sequence[Op]) -> bool:
        """Whether a copy that stands in these ops is one of them."""
        loops = [
            x.body.args[0] if isinstance(x, ops.For) else None
            for x in around
            if isinstance(x, ops.While) or (isinstance(x, ops.For) and x.kind != "persistent")
        ]
        sides = (region for x in around if isinstance(x, ops.If) for region in x.regions)
        others = {x for region in sides if o not in region.inside for x in region.inside}
        return self.facts.origins.of_all(o.dest.offsets).issuperset(loops) and all(
            self._apart(u, o.dest, loops) or (u in others and self._within(u, o.dest))
            for u in self.users[o.dest.buffer]
            if u is not o
        )

    def _apart(self, o: Op, box: Region, loops: Collection[Value | None]) -> bool:
        """Whether `o` touches no element of the box, be it in other iterations of `loops`."""

        def miss(x: Value, first: int, y: Value, second: int) -> bool:
            a, b = self.facts.form(x), self.facts.form(y)
            lo, hi = self.facts.reach(a - b)
            steps = [
                c if v in loops else 1
                for v, c in (*a.terms.items(), *b.terms.items())
                if not self.facts.origins.of(v).isdisjoint(loops)
            ]
            if not steps:
                return (lo is not None and lo >= second) or (hi is not None and hi + first <= 0)
            if lo is None or hi is None:
                return False
            period = math.gcd(*steps)  # by whose multiples iterations move them
            return lo % period >= second and lo % period + hi - lo + first <= period

        found = [e.region for e in o.effects() if e.region and e.buffer is box.buffer]
        return all(any(map(miss, r.offsets, r.extents, box.offsets, box.extents)) for r in found)

    def _within(self, o: Op, box: Region) -> bool:
        """Whether `o` is a store, of elements of the box."""
        if not isinstance(o, ops.Store):
            return False
        facts = self.facts
        away = [facts.reach(facts.form(x) - facts.form(y)) for x, y in zip(o.indices, box.offsets)]
        return all(
            lo is not None and hi is not None and 0 <= lo and hi < extent
            for (lo, hi), extent in zip(away, box.extents)
        )


def _has_runs(o: ops.Copy, vector: int) -> bool:
    """Whether what one cp.async brings lies together in shared memory, too, in a layout that the
    user may have given."""
    memory, shape = o.dest.type.laid_out, o.dest.shape or (1,)
    if o.dest.extents != memory.shape:
        try:
            memory = memory.restrict(o.dest.extents)
        except LayoutError:
            return False
    return has_runs(memory if memory.shape == shape else memory.reshape(shape), vector)


def box_fits(layout: Layout, bits: int) -> bool:
    """Whether TMA boxes can write this shared layout."""
    found = tma_box(layout, bits)
    return found is not None and all(e <= MAX_BOX for e in found[0])
