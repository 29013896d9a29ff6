"""share_sums: the blocks of a cluster share the iterations of one sum.

Before: TILE, with the number of launched blocks for each block of the user's grid as the attribute
`split`. After: the function is launched with so many times the blocks along dimension 0, in
clusters of `split`. A pipelined loop at the top of the body that does nothing but add products to
fragments of zeros is cut into contiguous parts, one for each block; `cluster_sum` then adds up the
fragments in the first block, which alone does what comes after. The order of the additions is
fixed, so that the result is the same from run to run. Raises ResourceError, with the reason, where
the program has no such loop.

A product with few blocks and a long sum (few rows times a large weight matrix) uses the machine
better this way."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.clusters import SINGLE, cluster_of, split_of
from tilec.ir.core import Block, Builder, Func, Op, Substitution, Value, rewrite, walk
from tilec.ir.errors import ResourceError
from tilec.ir.instr.cluster import MAX_BLOCKS
from tilec.ir.ops import (
    Alloc,
    AnnotateLayout,
    Binary,
    BlockIndex,
    Cast,
    ClusterIndex,
    ClusterSum,
    Compare,
    Const,
    Copy,
    Fill,
    For,
    Gemm,
    GridSize,
    If,
    Load,
    Yield,
    yielded,
)
from tilec.ir.types import INT32
from tilec.passes.slicing import acts, written_tensors
from tilec.target import Target


def share_sums(func: Func, target: Target) -> Func:
    """See the module's opening."""
    count = split_of(func)
    if count == 1:
        return func
    sharer = _Sharer(func, count)
    if not target.has("cluster"):
        raise sharer.refuse(f"{target} has no clusters")
    if count > MAX_BLOCKS or cluster_of(func) != SINGLE:
        raise sharer.refuse(f"a cluster has at most {MAX_BLOCKS} blocks, and is not shared")
    return sharer.share()


class _Sharer:
    def __init__(self, func: Func, count: int) -> None:
        self.func = func
        self.count = count
        self.zeros = {o.result for o in walk(func.body) if isinstance(o, Const) and o.value == 0}
        self.written = written_tensors(func.body)

    def refuse(self, why: str) -> ResourceError:
        return ResourceError(
            f"{self.func.name} has no sum that {self.count} blocks can share: {why}",
            self.func.loc,
            "leave the schedule open",
        )

    def share(self) -> Func:
        loop = self.loop()
        ops = self.func.body.ops
        at = ops.index(loop)
        b = Builder(loop.loc)
        b.ops += ops[:at]
        number = b.value(ClusterIndex, 0)
        b.ops.append(self.part(b, loop, number))
        b.emit(ClusterSum, tuple(self.sums(loop)))
        rest = tuple(o for o in ops[at + 1 :] if not isinstance(o, Yield))
        b.loc = rest[0].loc if rest else loop.loc
        first = b.value(Compare, "eq", number, b.value(Const, 0, number.dtype))
        last = Yield(loc=b.loc)
        b.emit(If, first, Block((), (*rest, last)), Block((), (last,)))
        b.ops += [o for o in ops[at + 1 :] if isinstance(o, Yield)]
        return self.relaunched(b.block())

    # --- the loop ---

    def loop(self) -> For:
        """The first loop that can be shared."""
        if self.func.attrs.get("persistent"):
            raise self.refuse("its blocks walk over the grid")
        loops = [o for o in self.func.body.ops if isinstance(o, For) and o.kind == "pipelined"]
        first = ""
        for loop in loops:
            why = self.obstacle(loop)
            if not why:
                return loop
            first = first or why
        raise self.refuse(first or "no T.Pipelined stands at the top of its body")

    def obstacle(self, loop: For) -> str:
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
            if any(acts(x) for x in (o, *(y for r in o.regions for y in walk(r)))):
                return f"line {o.loc.line} writes global memory before the sum"
        return ""

    def sums(self, loop: For) -> list[Value]:
        return list(dict.fromkeys(o.c for o in walk(loop.body) if isinstance(o, Gemm)))

    def starts_at_zero(self, v: Value, loop: For) -> bool:
        """Whether the last op before the loop that touches `v` sets all of it to zero."""
        before = self.func.body.ops[: self.func.body.ops.index(loop)]
        users = [o for o in before if _touches(o, v)]
        last = users[-1] if users else None
        return (
            isinstance(last, Fill)
            and last.extents == v.buffer.static_shape
            and last.value in self.zeros
        )

    def does_more(self, o: Op, sums: list[Value], loop: For) -> str:
        """What `o`, in the loop, does besides adding products; "" for nothing."""
        match o:
            case Gemm():
                if o.clear:
                    return f"overwrites {o.c.name}"
                if {o.a, o.b} & set(sums):
                    return f"reads {', '.join(v.name for v in sums)} inside the loop"
            case Copy():
                if o.dest.buffer.space == "global":
                    return "writes global memory inside the loop"
                if o.source in sums or o.dest in sums:
                    return "touches the sum inside the loop"
                if not self.own_to_iteration(o, loop):
                    return f"leaves {o.dest.name} to later iterations, or to what follows the loop"
            case Load():
                if o.source.buffer.space != "global" or o.source in self.written:
                    return f"reads {o.source.name}, which the kernel changes"
            case For() | If():
                if o.results:
                    return "carries a value"
            case Alloc() | Yield():
                return ""
            case _:
                return "" if o.pure else f"does more than add products ({o.opname})"
        return ""

    def own_to_iteration(self, o: Copy, loop: For) -> bool:
        """Whether the copy fills a buffer that only this loop uses, whole and before any other
        use."""
        inside = [x for x in loop.body.ops if _touches(x, o.dest)]
        outside = [x for x in self.func.body.ops if x is not loop and _touches(x, o.dest)]
        whole = o.dest_extents == o.dest.buffer.static_shape
        return not outside and whole and bool(inside) and inside[0] is o

    # --- what it becomes ---

    def part(self, b: Builder, loop: For, number: Value) -> For:
        """The loop over this block's iterations: equal contiguous parts, the last ones shorter."""
        dtype = loop.lo.dtype

        def const(n: int) -> Value:
            return b.value(Const, n, dtype)

        def op(kind: str, x: Value, y: Value) -> Value:
            return b.value(Binary, kind, x, y)

        mine = number if number.dtype == dtype else b.value(Cast, number, dtype)
        span = op("max", op("sub", loop.hi, loop.lo), const(0))
        trips = op("floordiv", op("sub", op("add", span, loop.step), const(1)), loop.step)
        each = op("floordiv", op("add", trips, const(self.count - 1)), const(self.count))
        length = op("mul", each, loop.step)
        lo = op("add", loop.lo, op("mul", mine, length))
        hi = op("min", loop.hi, op("add", lo, length))
        return replace(loop, lo=lo, hi=hi)

    def relaunched(self, body: Block) -> Func:
        """The function with `body`, launched with `count` blocks for each of the user's."""
        subst: Substitution = {}
        top = Builder(self.func.loc)
        parts = top.value(Const, self.count, INT32)
        index = top.value(Binary, "floordiv", top.value(BlockIndex, 0), parts)
        blocks = top.value(Binary, "floordiv", top.value(GridSize, 0), parts)

        def visit(o: Op) -> None | list[Op]:
            if isinstance(o, (BlockIndex, GridSize)) and o.dim == 0:
                subst[o.result] = index if isinstance(o, BlockIndex) else blocks
                return []
            return None

        body = rewrite(body, visit, subst)
        body = Block((), (*top.ops, *body.ops))
        return replace(self.func, grid=self.grid(), body=body)

    def grid(self) -> Block:
        grid = self.func.grid
        if not yielded(grid):
            return grid
        b = Builder(self.func.loc)
        b.ops += [o for o in grid.ops if not isinstance(o, Yield)]
        x, *others = yielded(grid)
        wide = b.value(Binary, "mul", x, b.value(Const, self.count, x.dtype))
        b.emit(Yield, (wide, *others))
        return b.block()


def _touches(o: Op, v: Value) -> bool:
    """Whether `o`, or an op inside of it, reads or writes `v`."""
    if isinstance(o, AnnotateLayout):
        return False
    return v in o.operands or any(v in x.operands for r in o.regions for x in walk(r))
