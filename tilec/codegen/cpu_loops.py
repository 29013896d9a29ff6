"""Control flow of the CPU target, and how a `parallel` loop becomes vector code.

A parallel loop is a nest of counted loops around the one index that runs along the lanes:

    if every guard holds over the whole loop:        (one comparison per dimension of each tensor)
        for i …: for j in steps of `lanes`: body     unguarded
                 body for the lanes left over        masked by a constant
    else:
        for i …: for j in steps of `lanes`: body     each access masked by its own guard

Inside vector code a branch whose condition differs between lanes runs both sides under masks, and a
loop runs until no lane is left in it; where all lanes agree, branches and loops are real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.codegen.cpu_access import Ramp
from tilec.codegen.cpu_emitter import Emitter
from tilec.codegen.cpu_parallel import Check, LoopFacts
from tilec.codegen.lanes import counted, iota, mangled, splat
from tilec.ir import ops
from tilec.ir.affine import Affine
from tilec.ir.core import Block, Op, Value, walk
from tilec.ir.errors import CompileError
from tilec.ir.llvm import Val, constant, int_val, shaped
from tilec.ir.ops import Atomic, Const, ElementAccess, Gemm, Load, Parallel, Store, Yield, yielded
from tilec.ir.types import BOOL
from tilec.ir.uniformity import varying

Proofs = dict[int, tuple[bool, ...]]
"""`Emitter.proved` of the accesses of a loop."""


class LoopEmitter(Emitter):
    """The emitter with loops and branches."""

    # --- branches and sequential loops ---

    def emit_if(self, o: ops.If) -> None:
        if self.is_uniform(o.cond):
            super().emit_if(o)
            return
        cond, values = self.vector(o.cond), []  # both sides, each for its own lanes
        inverse = self.f.binary("xor", cond, 1)
        for lanes, region in ((cond, o.then), (inverse, o.orelse)):
            with self.running(self.access.both(self.mask, lanes)):
                self.block(region)
                values.append([self.vector(v) for v in yielded(region)])
        for r, a, b in zip(o.results, *values):
            self.env[r] = self.f.select(cond, a, b)

    def emit_for(self, o: ops.For) -> None:
        """Where its bounds differ between lanes, a while loop over the index."""
        if all(self.is_uniform(v) for v in (o.lo, o.hi, o.step)):
            super().emit_for(o)
            return
        (index, *_), dtype = o.body.args, o.lo.dtype
        hi, step = self.vector(o.hi), self.vector(o.step)

        def test() -> Val:
            return self.continues(self.vector(index), hi, step, dtype)

        def body() -> list[Val]:
            self.block(o.body)
            following = self.f.add(self.vector(index), step)
            return [following, *(self.vector(v) for v in yielded(o.body))]

        results = (Value(index.type, "index"), *o.results)
        self._run_lanes((o.lo, *o.inits), o.body.args, o.body.args, results, test, body)

    def emit_while(self, o: ops.While) -> None:
        uneven = self.lanes > 1 and not self.varying.isdisjoint(o.results)
        if not uneven and self.varying.isdisjoint((*o.cond.args, *yielded(o.cond))):
            super().emit_while(o)
            return

        def test() -> Val:
            self.block(o.cond)
            return self.vector(yielded(o.cond)[0])

        def body() -> list[Val]:
            self.block(o.body)
            return [self.vector(v) for v in yielded(o.body)]

        self._run_lanes(o.inits, o.cond.args, o.body.args, o.results, test, body)

    def _run_lanes(
        self,
        inits: Sequence[Value],
        head_args: Sequence[Value],
        body_args: Sequence[Value],
        results: Sequence[Value],
        test: Callable[[], Val],
        body: Callable[[], Sequence[Val]],
    ) -> None:
        """Repeat `body` for the lanes for which `test` has held so far; a lane keeps its values
        when it leaves.
        """
        f, mask_type = self.f, shaped("i1", self.lanes)
        alive = self.mask if self.mask is not None else constant(mask_type, 1)
        inner, done = f.label("do"), f.label("endlanes")
        running, *carried = f.loop_header("lanes", [alive, *map(self.vector, inits)])
        head = f.block.label
        values = [p.result for p in carried]
        self.env.update(zip(head_args, values))
        with self.running(running.result):
            now = f.binary("and", running.result, test())
            some = f.intrinsic("i1", f"llvm.vector.reduce.or.{mangled(mask_type)}", [now])
            f.cbr(some, inner, done, done)
            f.start(inner)
            self.env.update(zip(body_args, values))
            with self.running(now):
                got = body()
        after = [f.select(now, new, old) for new, old in zip(got, values)]
        f.close_loop([running, *carried], [now, *after], head)
        f.start(done)
        self.env.update(zip(results, values))

    # --- parallel loops ---

    def emit_parallel(self, o: Parallel) -> None:
        if any(extent == 0 for extent in o.extents):
            return
        for inner in o.body.every(Gemm):
            raise CompileError(
                "a tile product inside of a parallel loop", inner.loc, "move it out of the loop"
            )
        if self.lanes > 1:
            self._nest(o, len(o.extents), 1, False)
            return
        loop = LoopFacts(o, self.facts)
        dimension = loop.vector_dimension()
        lanes = 1 if loop.is_handed_on(dimension) else self._lanes(o, dimension)
        fast, slow, checks, units = _guards(loop)
        condition = self._holds(checks, units)
        if condition is None or condition.literal == 1:
            self._variant(o, dimension, lanes, fast, True)
            return
        slow_lanes = lanes if _element_bytes(o)[0] >= (self.machine.masked_bytes or 99) else 1
        if condition.literal == 0:
            self._variant(o, dimension, slow_lanes, slow, False)
            return
        f = self.f
        inside, edge, done = f.label("inside"), f.label("edge"), f.label("endparallel")
        f.cbr(condition, inside, edge, done)
        f.start(inside)
        self._variant(o, dimension, lanes, fast, True)
        f.br(done)
        f.start(edge)
        self._variant(o, dimension, slow_lanes, slow, False)
        f.br(done)
        f.start(done)

    def _lanes(self, o: Parallel, dimension: int) -> int:
        """How many iterations one vector holds: a power of two."""
        if any(e.kind == "output" for e in o.effects()):
            return 1
        _, most, computed = _element_bytes(o)
        fitting = self.machine.vector_bytes // max(most, computed)
        extent = o.extents[dimension]
        return max(1, min(fitting, 1 << (extent - 1).bit_length()))

    def _holds(self, checks: Sequence[Check], units: Sequence[str]) -> Val | None:
        """Whether all checks hold; None if there is nothing to check."""
        f, zero, one = self.f, int_val(0, "i64"), int_val(1, "i64")
        conds = []
        for c in checks:
            if c.low is not None:
                conds.append(f.icmp("sge", self._sum(c.low), zero))
            if c.high is not None:
                conds.append(f.icmp("slt", self._sum(c.high), self.extent(c.extent)))
        conds += [f.icmp("eq", self.extent(name), one) for name in units]
        made: Val | None = None
        for cond in conds:
            made = self.access.both(made, cond)
        return made

    def _sum(self, sum: Affine) -> Val:
        total = int_val(sum.const, "i64")
        for value, factor in sum.terms.items():
            (wide,) = self.indices([value])
            assert isinstance(wide, Val)
            total = self.f.add(total, self.f.mul(wide, factor))
        return total

    def _variant(
        self, o: Parallel, dimension: int, lanes: int, proofs: Proofs, inside: bool
    ) -> None:
        """One form of the loop. `inside`: all checks hold."""
        kept = self.lanes, self.proved, self.unit_strides, self.varying
        self.lanes, self.proved, self.unit_strides = lanes, {**self.proved, **proofs}, inside
        self.varying = varying(o.body, [o.body.args[dimension]]) if lanes > 1 else set()
        self._nest(o, dimension, lanes, inside)
        self.lanes, self.proved, self.unit_strides, self.varying = kept

    def _nest(self, o: Parallel, dimension: int, lanes: int, inside: bool) -> None:
        """Loops over all indices, that of `dimension` innermost and by vectors."""
        order = [d for d in range(len(o.extents)) if d != dimension]

        def level(n: int) -> None:
            if n < len(order):
                d = order[n]

                def body(index: Val) -> None:
                    self.env[o.body.args[d]] = index
                    level(n + 1)

                counted(self.f, o.extents[d], 1, body)
            elif dimension < len(o.extents):
                self._vectors(o.body, o.body.args[dimension], o.extents[dimension], lanes, inside)
            else:
                self.block(o.body)

        level(0)

    def _vectors(self, block: Block, arg: Value, extent: int, lanes: int, inside: bool) -> None:
        """The innermost loop: whole vectors, then the lanes left over; where accesses are masked
        anyway, one loop for both.
        """
        rest = extent % lanes

        def some(count: Val) -> None:
            """The body for the first `count` lanes."""
            with self.running(self.f.icmp("slt", iota(lanes), splat(self.f, count, lanes))):
                self.block(block)

        def body(index: Val) -> None:
            self.env[arg] = Ramp(index, 1) if lanes > 1 else index
            if inside or not rest:
                self.block(block)
            else:
                some(self.f.binary("sub", int_val(extent), index))

        if not inside:
            counted(self.f, extent, lanes, body)
            return
        counted(self.f, extent - rest, lanes, body)
        if rest and self.machine.masked_bytes:
            self.env[arg] = Ramp(int_val(extent - rest), 1)
            some(int_val(rest))
        elif rest:
            self._one_by_one(block, arg, extent - rest, extent)

    def _one_by_one(self, block: Block, arg: Value, first: int, end: int) -> None:
        """Iterations `first` to `end` without vectors."""
        kept = self.lanes, self.varying
        self.lanes, self.varying = 1, set()

        def body(index: Val) -> None:
            self.env[arg] = self.f.add(index, first)
            self.block(block)

        counted(self.f, end - first, 1, body)
        self.lanes, self.varying = kept


def _element_bytes(o: Parallel) -> tuple[int, int, int]:
    """(least, most, computed) bytes of the elements that the body moves; `computed`, of those that
    it computes with, of which narrow floats take 4 (0: elements are only moved)."""
    moved: list[int] = []
    data: list[Value] = []
    defined: dict[Value, Op] = {}
    for i in walk(o.body):
        defined.update((r, i) for r in i.results)
        if isinstance(i, ElementAccess):
            moved.append(i.buffer.dtype.bytes)
        if isinstance(i, Store | Atomic):
            data.append(i.value)
        elif i.region_fields or isinstance(i, Yield):
            data.extend(i.operands)
    computed, seen = 0, set(data)
    while data:
        v = data.pop()
        made = defined.get(v)
        if isinstance(made, (Load, Const)):
            continue
        if v.dtype != BOOL:
            computed = max(computed, v.dtype.bytes, 4 if v.dtype.is_float else 1)
        for x in made.operands if made is not None else ():
            if x not in seen:
                seen.add(x)
                data.append(x)
    return min(moved, default=4), max(moved, default=4), computed


def _guards(loop: LoopFacts) -> tuple[Proofs, Proofs, list[Check], list[str]]:
    """What each access may take for granted if all checks hold, and if not; the checks, without
    repetition; and the stride parameters that must be 1 for the fast form.
    """
    fast: Proofs = {}
    slow: Proofs = {}
    checks: list[Check] = []
    units: dict[str, None] = {}
    for o in loop.loop.body.every(ElementAccess):
        if o.buffer.space != "global":
            continue
        buffer = o.buffer.buffer
        found = [loop.check(i, extent) for i, extent in zip(o.indices, buffer.shape)]
        fast[id(o)] = tuple(c is not None for c in found)
        slow[id(o)] = tuple(c is True for c in found)
        checks += [c for c in found if isinstance(c, Check) and c not in checks]
        last = (buffer.strides or (1,))[-1]
        if isinstance(last, str):
            units[last] = None
    return fast, slow, checks, list(units)
