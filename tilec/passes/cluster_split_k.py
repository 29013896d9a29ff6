"""cluster_split_k: several blocks share the iterations of one sum.

Before: TILE, with launched blocks for each block of the user's grid as the attributes `split` (of a
cluster) and `parts` (clusters, or single blocks). After: the function is launched with `split`
times the blocks along dimension 0, in clusters of so many, and `parts` times along dimension 2. A
pipelined loop at the top of the body that does nothing but add products to fragments of zeros, or
what threads make of products of one iteration (`acc[i, j] += part[i, j] * scale[k]`), is cut into
contiguous parts, one for each block; `cluster_sum` then adds up the fragments in the first
block of a cluster, `combine_parts` those of all such first blocks in the one that comes last. It
alone does what comes after. The order of the additions is fixed, so that the result is the same
from run to run. Raises ResourceError, with the reason, where the program has no such loop.

A product with few blocks and a long sum (few rows times a large weight matrix) uses the machine
better this way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.clusters import SINGLE, cluster_of, parts_of, split_of
from tilec.ir.core import Block, Effect, Func, Op, Substitution, Value, walk
from tilec.ir.effects import buffers_written, changing_tensors, effects_in, is_seen
from tilec.ir.errors import ResourceError
from tilec.ir.instr.cluster import MAX_BLOCKS
from tilec.passes.utils.dependence import modref
from tilec.passes.utils.plans import pipelined
from tilec.target import Target


def cluster_split_k(func: Func, target: Target) -> Func:
    if split_of(func) * parts_of(func) == 1:
        return func
    return _sharer(func, target).share()


def check_shared(func: Func, target: Target) -> None:
    """Raise ResourceError where blocks cannot share a sum of `func` as its attributes say."""
    _sharer(func, target).loop()


def _sharer(func: Func, target: Target) -> _Sharer:
    split, parts = split_of(func), parts_of(func)
    sharer = _Sharer(func, split, parts)
    if split > 1 and not target.has("cluster"):
        raise sharer.refuse(f"{target} has no clusters")
    if split > MAX_BLOCKS or (split > 1 and cluster_of(func) != SINGLE):
        raise sharer.refuse(f"a cluster has at most {MAX_BLOCKS} blocks, and is not shared")
    return sharer


class _Sharer:
    def __init__(self, func: Func, split: int, parts: int) -> None:
        self.func = func
        self.split, self.parts = split, parts
        self.zeros = {v for v, n in ops.constants(func.body).items() if n == 0}
        self.written = changing_tensors(func)

    def refuse(self, why: str) -> ResourceError:
        return ResourceError(
            f"{self.func.name} has no sum that {self.split * self.parts} blocks can share: {why}",
            self.func.loc,
            "leave the schedule open",
        )

    def share(self) -> Func:
        loop = self.loop()
        statements = self.func.body.ops
        at = statements.index(loop)
        sums = tuple(self.sums(loop))
        top, b = Builder(self.func.loc), Builder(loop.loc, statements[:at])
        rest = self.func.body.statements[at + 1 :]
        after = rest[0].loc if rest else loop.loc
        if self.split > 1:
            number = share = b.value(ops.ClusterIndex, 0)
        if self.parts > 1:
            share = part = top.binary("mod", top.value(ops.BlockIndex, 2), self.parts)
            if self.split > 1:
                before = b.binary("mul", part, self.split)
                share = b.binary("add", before, number)
            place = self.place(top)
        b.ops.append(self.part(b, loop, share))
        if self.split > 1:
            b.emit(ops.ClusterSum, sums)
        if self.parts > 1:
            inner = Builder(loop.loc)
            last = inner.value(ops.CombineParts, sums, place, part, self.parts)
            inner.loc = after
            inner.branch(last, rest)
            rest = tuple(inner.ops)
        b.loc = after
        if self.split > 1:
            first = b.compare("eq", number, 0)
            b.branch(first, rest)
        else:
            b.ops += rest
        b.ops += statements[len(self.func.body.statements) :]
        return self.relaunched(top, b.block())

    # --- the loop ---

    def loop(self) -> ops.For:
        """The first loop that can be shared."""
        if self.func.attrs.get("persistent"):
            raise self.refuse("its blocks walk over the grid")
        loops = [o for o in self.func.body.ops if isinstance(o, ops.For) and o.kind == "pipelined"]
        first = ""
        for loop in loops:
            why = self.obstacle(loop)
            if why:
                first = first or why
                continue
            after = self.func.body.ops[self.func.body.ops.index(loop) + 1 :]
            if self.parts > 1 and pipelined(Block((), after)):
                raise self.refuse("another T.Pipelined follows it")
            return loop
        raise self.refuse(first or "no T.Pipelined stands at the top of its body")

    def obstacle(self, loop: ops.For) -> str:
        """Why the loop cannot be shared; "" if it can."""
        if loop.inits:
            return f"the loop in line {loop.loc.line} carries a value from iteration to iteration"
        sums = self.sums(loop)
        if not sums:
            return f"the loop in line {loop.loc.line} adds no product to a fragment"
        for v in sums:
            if not self.starts_at_zero(v, loop):
                return f"{v.name} is not just set to zero before the loop in line {loop.loc.line}"
        for o in walk(loop.body):
            why = self.does_more(o, sums, loop)
            if why:
                return f"line {o.loc.line} {why}"
        for o in self.func.body.ops[: self.func.body.ops.index(loop)]:
            if is_seen(o):
                return f"line {o.loc.line} writes global memory before the sum"
        return ""

    def sums(self, loop: ops.For) -> list[Value]:
        products = dict.fromkeys(o.c for o in loop.body.every(ops.Gemm))
        own = {v for v in products if self.own_to_iteration(v, loop)}
        shapes = {v.buffer.static_shape for v in own}
        added = (v for v in _added(loop) if v.buffer.static_shape in shapes)
        return [*(v for v in products if v not in own), *added]

    def starts_at_zero(self, v: Value, loop: ops.For) -> bool:
        """Whether the last op before the loop that touches `v` sets all of it to zero."""
        before = self.func.body.ops[: self.func.body.ops.index(loop)]
        users = [o for o in before if _touches(o, v)]
        last = users[-1] if users else None
        return isinstance(last, ops.Fill) and last.dest.is_whole and last.value in self.zeros

    def does_more(self, o: Op, sums: list[Value], loop: ops.For) -> str:
        """What `o`, in the loop, does besides adding products of what its iteration has for itself;
        "" for nothing."""
        match o:
            case ops.Load() | ops.Store() if o.buffer in sums:
                if o in _added(loop).get(o.buffer, ()):
                    return ""
            case ops.Gemm():
                if o.clear and o.c in sums:
                    return f"overwrites {o.c.name}"
                if {o.a.buffer, o.b.buffer} & set(sums):
                    return f"reads {', '.join(v.name for v in sums)} inside the loop"
                return ""
            case ops.For() | ops.If() | ops.Parallel():
                return "carries a value" if o.results else ""
        if o.region_fields or any(e.region is None and e.kind != "describe" for e in o.effects()):
            return f"does more than add products ({o.opname})"
        return next(filter(None, (self.touches(e, sums, loop) for e in o.effects())), "")

    def touches(self, e: Effect, sums: list[Value], loop: ops.For) -> str:
        """What an access in the loop has to do with other iterations, or what follows; "" for
        nothing."""
        v = e.buffer
        if v is None or e.kind == "allocate":
            return ""
        if v in sums:
            return f"does more than add products to {v.name}"
        if v.space == "global":
            if e.writes:
                return "writes global memory inside the loop"
            return f"reads {v.name}, which the kernel changes" if v in self.written else ""
        changed = v in buffers_written(x for _, x in effects_in(loop))
        if changed and not self.own_to_iteration(v, loop):
            return f"leaves {v.name} to later iterations, or to what follows the loop"
        return ""

    def own_to_iteration(self, v: Value, loop: ops.For) -> bool:
        """Whether each iteration of the loop fills a buffer whole before any other use, and nothing
        else uses it, or makes it."""
        if any(o.result is v for o in loop.body.every(ops.Alloc)):
            return True
        inside = [o for o in loop.body.ops if _touches(o, v)]
        outside = [o for o in self.func.body.ops if o is not loop and _touches(o, v)]
        first = modref(inside[0]).get(v) if inside and not outside else None
        return first is not None and first.whole

    # --- what it becomes ---

    def part(self, b: Builder, loop: ops.For, number: Value) -> ops.For:
        """The loop over this block's iterations: equal contiguous parts, the last ones shorter."""
        mine = b.cast(number, loop.lo.dtype)
        span = b.fold("max", b.fold("sub", loop.hi, loop.lo), 0)
        last = b.fold("sub", b.fold("add", span, loop.step), 1)
        trips = b.fold("floordiv", last, loop.step)
        count = self.split * self.parts
        each = b.fold("floordiv", b.fold("add", trips, count - 1), count)
        length = b.fold("mul", each, loop.step)
        lo = b.fold("add", loop.lo, b.fold("mul", mine, length))
        hi = b.fold("min", loop.hi, b.fold("add", lo, length))
        return replace(loop, lo=lo, hi=hi)

    def place(self, b: Builder) -> Value:
        """The number of this block's sum among those of the launch."""
        x, wide = self.shared(b, ops.BlockIndex, 0), self.shared(b, ops.GridSize, 0)
        z, tall = self.shared(b, ops.BlockIndex, 2), self.shared(b, ops.GridSize, 1)
        y = self.shared(b, ops.BlockIndex, 1)
        before = b.fold("add", b.fold("mul", z, tall), y)
        return b.fold("add", b.fold("mul", before, wide), x)

    def shared(self, b: Builder, cls: type[ops.BlockIndex | ops.GridSize], dim: int) -> Value:
        """The launch's index or size along a dimension, as if blocks did not share sums."""
        by = {0: self.split, 2: self.parts}.get(dim, 1)
        return b.fold("floordiv", b.value(cls, dim), by)

    def relaunched(self, top: Builder, body: Block) -> Func:
        """The function with `body`, launched with more blocks for each of the user's. `top` is what
        it does first."""
        subst: Substitution = {}
        changed = [d for d, n in ((0, self.split), (2, self.parts)) if n > 1]
        made = {
            (cls, d): self.shared(top, cls, d)
            for d in changed
            for cls in (ops.BlockIndex, ops.GridSize)
        }

        def visit(o: Op) -> None | list[Op]:
            if isinstance(o, (ops.BlockIndex, ops.GridSize)) and o.dim in changed:
                subst[o.result] = made[type(o), o.dim]
                return []
            return None

        body = body.rewrite(Op, visit, subst)
        body = Block((), (*top.ops, *body.ops))
        return replace(self.func, grid=self.grid(), body=body)

    def grid(self) -> Block:
        grid = self.func.grid
        if not ops.yielded(grid):
            return grid
        b = Builder(self.func.loc, grid.statements)
        extents = list(ops.yielded(grid))
        if self.parts > 1:
            extents += [b.const(1) for _ in range(3 - len(extents))]
        for d, n in ((0, self.split), (2, self.parts)):
            if n > 1:
                extent = extents[d]
                extents[d] = b.binary("mul", extent, n)
        b.emit(ops.Yield, tuple(extents))
        return b.block()


def _added(loop: ops.For) -> dict[Value, set[Op]]:
    """The fragments whose elements threads add to in a loop, with the loads and stores that do."""
    found: dict[Value, set[Op]] = {}
    for p in loop.body.every(ops.Parallel):
        defs, uses = p.body.defs, Counter(v for o in walk(p.body) for v in o.operands)
        for store in p.body.every(ops.Store):
            match defs.get(store.value):
                case ops.Binary(kind="add", lhs=a, rhs=b):
                    terms = [a, b]
                case ops.Fma(c=c):
                    terms = [c]
                case _:
                    continue
            for load in (defs.get(v) for v in terms if uses[v] == 1):
                if isinstance(load, ops.Load) and load.source is store.dest:
                    if load.indices == store.indices and load.source.space == "fragment":
                        found.setdefault(load.source, set()).update((load, store))
    return found


def _touches(o: Op, v: Value) -> bool:
    """Whether `o`, or an op inside of it, reads or writes `v`."""
    return v in o.uses and not isinstance(o, ops.AnnotateLayout)
