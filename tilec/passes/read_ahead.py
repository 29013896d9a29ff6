"""read_ahead: scales of what an iteration decodes, or of what it has multiplied, are on their way
two iterations before.

Before and after: TILE. In a pipelined loop, threads make an operand of a product, or add its result
to a sum of their own, and read with it, for each row, say, an element of a tensor at a place that
changes from iteration to iteration:

    parallel (64, 128) { f[n, j] = (w[n, j] - Z[n0 + n, k]) * S[n0 + n, k] }

The tile `w` is there ahead, and so had these better be, for which each iteration would wait as long
as memory takes: they are too few, and too far apart, for a copy. Two fragments hold those of this
iteration and of the next one, and behind the loop over elements the second becomes the first and is
loaded for the iteration after that. Where `S` has an element for each 32 columns, the loop over
elements has one dimension more, so that the fragments have indices of their own:

    parallel (64, 4, 32) { j = g * 32 + i; f[n, j] = w[n, j] * S_now[n, g] }

Only of tensors that the kernel writes nowhere, where no two tensors may overlap; of elements that
many of the tile have in common (`SHARED`), as a thread holds two registers for each; and of `MOST`
tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilec.ir import ops
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, upstream
from tilec.ir.effects import buffers_read, buffers_written, changing_tensors, effects_in
from tilec.ir.types import BufferType
from tilec.passes.utils.addressing import clone_expression
from tilec.passes.utils.regions import LoopRegions
from tilec.target import Target

MOST = 4
SHARED = 16  # elements of a tile, at least


def read_ahead(func: Func, target: Target) -> Func:
    if func.attrs.get("may_alias") or ops.is_by_hand(func.body):
        return func
    written, facts = changing_tensors(func), facts_of(func)

    def visit(o: ops.For) -> None | list[Op]:
        return _rewritten(o, written, facts) if o.kind == "pipelined" and not o.inits else None

    return func.rewrite(ops.For, visit)


@dataclass(frozen=True)
class _Read:
    """An element of a tensor that a loop over elements reads: `dims` are the dimensions of the loop
    that its place depends on, and `per` says of each how many neighbours read the same. `now` and
    `then` hold those of this iteration and of the next."""

    load: ops.Load
    loop: ops.Parallel
    dims: tuple[int, ...]
    per: tuple[int, ...]
    now: Value
    then: Value

    def at(self, b: Builder, inner: dict[Value, Op], subst: Substitution) -> Value:
        """The element for what `subst` has in place of the loops' indices."""
        found = (clone_expression(b, v, inner, subst) for v in self.load.indices)
        return b.value(ops.Load, self.load.source, tuple(v for v in found if v is not None))


def _rewritten(o: ops.For, written: set[Value], facts: Facts) -> None | list[Op]:
    products = [*o.body.every(ops.Gemm)]
    operands = {b for x in products for b in (x.a.buffer, x.b.buffer)}
    sums = {x.c for x in products if x in o.body.ops and len(products) == 1}

    def beside(p: ops.Parallel) -> bool:
        effects = [e for _, e in effects_in(p)]
        read, made = buffers_read(effects), buffers_written(effects)
        return not operands.isdisjoint(made) or (
            not sums.isdisjoint(read) and sums.isdisjoint(made)
        )

    loops = (p for p in o.body.ops if isinstance(p, ops.Parallel) and beside(p))
    found = [r for p in loops for r in _reads(p, o, written, facts)][:MOST]
    if not found:
        return None
    front, inside = Builder(o.loc), list[Op]()
    for r in found:
        front.ops += [ops.Alloc(v.buffer, results=(v,), loc=r.load.loc) for v in (r.now, r.then)]
    following = front.binary("add", o.lo, o.step)
    for r in found:
        _fill(front, r, o, (o.lo, following), move=False)
    for x in o.body.ops:
        own = [r for r in found if r.loop is x]
        inside.append(_from_registers(x, own) if isinstance(x, ops.Parallel) and own else x)
        behind = Builder(x.loc)
        for r in own:
            step = behind.binary("mul", o.step, 2)
            _fill(behind, r, o, (behind.binary("add", o.body.args[0], step),), move=True)
        inside += behind.ops
    return [*front.ops, replace(o, body=replace(o.body, ops=tuple(inside)))]


def _reads(p: ops.Parallel, o: ops.For, written: set[Value], facts: Facts) -> list[_Read]:
    """What the loop `p` in `o` reads of tensors for several of its elements."""
    inner, regions = {**o.body.defs, **p.body.defs}, LoopRegions(p, facts)
    found: list[_Read] = []
    for x in p.body.ops:
        if not isinstance(x, ops.Load) or x.source.space != "global" or x.source in written:
            continue
        behind = facts.origins.of_all(x.indices)
        dims = tuple(d for d, a in enumerate(p.body.args) if a in behind)
        if o.body.args[0] not in behind or not all(y.pure for y in upstream(x.indices, inner)):
            continue
        runs = [regions.run(v) for v in x.indices]
        several = {r.along: r.per for r in runs if r is not None and r.along is not None}
        known = None not in runs and len(several) == len(dims) and p.layout is None is p.wanted
        others = {d: n for r in found for d, n in zip(r.dims, r.per) if n > 1}
        per = tuple(several[p.body.args[d]] if known else 1 for d in dims)
        # An index is cut in one way, and is the number of its parts.
        fits = (n & (n - 1) == 0 and others.get(d, n) == n for d, n in zip(dims, per))
        per = tuple(n if fit else 1 for n, fit in zip(per, fits))
        each = tuple(p.extents[d] // n for d, n in zip(dims, per)) or (1,)
        if prod(each) * SHARED <= prod(p.extents):
            now, then = (
                Value(BufferType(each, x.source.dtype, "fragment"), x.source.name + end)
                for end in ("_now", "_then")
            )
            found.append(_Read(x, p, dims, per, now, then))
    return found


def _fill(b: Builder, r: _Read, o: ops.For, iterations: tuple[Value, ...], move: bool) -> None:
    """Load what `iterations` read, the last of them into `then`; `move` brings to `now` first what
    was there."""
    inner = {**o.body.defs, **r.loop.body.defs}
    with b.each_element(r.now.buffer.static_shape) as (each, at):
        if move:
            each.emit(ops.Store, r.now, at, each.value(ops.Load, r.then, at))
        firsts = [i if n == 1 else each.binary("mul", i, n) for i, n in zip(at, r.per)]
        for k, place in zip(reversed(iterations), (r.then, r.now)):
            own = {r.loop.body.args[d]: i for d, i in zip(r.dims, firsts)}
            each.emit(ops.Store, place, at, r.at(each, inner, {o.body.args[0]: k, **own}))
        each.emit(ops.Yield)


def _from_registers(p: ops.Parallel, reads: list[_Read]) -> ops.Parallel:
    """The loop, which reads what the fragments hold; an index of which only some have an element
    each becomes two."""
    held = {r.load: r for r in reads}
    cut = {d: n for r in reads for d, n in zip(r.dims, r.per) if n > 1}
    b = Builder(p.loc)
    zero = b.const(0)
    extents, args = list[int](), list[Value]()
    subst: Substitution = {}
    groups: dict[int, Value] = {}
    for d, (arg, extent) in enumerate(zip(p.body.args, p.extents)):
        if (n := cut.get(d)) is None:
            extents, args = [*extents, extent], [*args, arg]
            continue
        groups[d], low = Value(arg.type, f"{arg.name}_group"), Value(arg.type, arg.name)
        extents, args = [*extents, extent // n, n], [*args, groups[d], low]
        subst[arg] = b.binary("add", b.binary("mul", groups[d], n), low)

    def visit(x: ops.Load) -> Op | None:
        r = held.get(x)
        if r is None:
            return None
        at = [groups[d] if n > 1 else p.body.args[d] for d, n in zip(r.dims, r.per)]
        return replace(x, source=r.now, indices=tuple(at) or (zero,))

    body = p.body.rewrite(ops.Load, visit).substituted(subst)
    return replace(p, extents=tuple(extents), body=Block(tuple(args), (*b.ops, *body.ops)))
