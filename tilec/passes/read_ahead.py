"""read_ahead: scales of what an iteration decodes are on their way two iterations before.

Before and after: TILE. In a pipelined loop, threads make an operand of a product and read with it,
for each row, say, an element of a tensor at a place that changes from iteration to iteration:

    parallel (64, 128) { f[n, j] = (w[n, j] - Z[n0 + n, k]) * S[n0 + n, k] }

The tile `w` is there ahead, and so had these better be, for which each iteration would wait as long
as memory takes: they are too few, and too far apart, for a copy. Two fragments hold those of this
iteration and of the next one, and behind the loop over elements the second becomes the first and is
loaded for the iteration after that.

Only of tensors that the kernel writes nowhere, where no two tensors may overlap; of elements that
many of the tile have in common (`SHARED`), as a thread holds two registers for each; and of `MOST`
tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Substitution, Value, upstream
from tilec.ir.effects import buffers_written, changing_tensors, effects_in
from tilec.ir.types import BufferType
from tilec.passes.utils.addressing import clone_expression
from tilec.target import Target

MOST = 4
SHARED = 16  # elements of a tile, at least


def read_ahead(func: Func, target: Target) -> Func:
    if func.attrs.get("may_alias") or ops.is_by_hand(func.body):
        return func
    written = changing_tensors(func)

    def visit(o: ops.For) -> None | list[Op]:
        return _rewritten(o, written) if o.kind == "pipelined" and not o.inits else None

    return func.rewrite(ops.For, visit)


@dataclass(frozen=True)
class _Read:
    """An element of a tensor that a loop over elements reads: `dims` are the dimensions of the loop
    that its place depends on. `now` and `then` hold those of this iteration and of the next."""

    load: ops.Load
    loop: ops.Parallel
    dims: tuple[int, ...]
    now: Value
    then: Value

    def at(self, b: Builder, inner: dict[Value, Op], subst: Substitution) -> Value:
        """The element for what `subst` has in place of the loops' indices."""
        found = (clone_expression(b, v, inner, subst) for v in self.load.indices)
        return b.value(ops.Load, self.load.source, tuple(v for v in found if v is not None))


def _rewritten(o: ops.For, written: set[Value]) -> None | list[Op]:
    made = {b for x in o.body.every(ops.Gemm) for b in (x.a.buffer, x.b.buffer)}
    found = [
        r
        for p in o.body.ops
        if isinstance(p, ops.Parallel)
        if not made.isdisjoint(buffers_written(e for _, e in effects_in(p)))
        for r in _reads(p, o, written)
    ]
    if not found or len(found) > MOST:
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


def _reads(p: ops.Parallel, o: ops.For, written: set[Value]) -> list[_Read]:
    """What the loop `p` in `o` reads of tensors for several of its elements."""
    inner = {**o.body.defs, **p.body.defs}
    found = []
    for x in p.body.ops:
        if not isinstance(x, ops.Load) or x.source.space != "global" or x.source in written:
            continue
        needed = [*upstream(x.indices, inner)]
        used = {v for y in needed for v in y.operands} | {*x.indices}
        dims = tuple(d for d, a in enumerate(p.body.args) if a in used)
        each = tuple(p.extents[d] for d in dims)
        if o.body.args[0] not in used or not dims or not all(y.pure for y in needed):
            continue
        if prod(each) * SHARED <= prod(p.extents):
            now, then = (
                Value(BufferType(each, x.source.dtype, "fragment"), x.source.name + end)
                for end in ("_now", "_then")
            )
            found.append(_Read(x, p, dims, now, then))
    return found


def _fill(b: Builder, r: _Read, o: ops.For, iterations: tuple[Value, ...], move: bool) -> None:
    """Load what `iterations` read, the last of them into `then`; `move` brings to `now` first what
    was there."""
    inner = {**o.body.defs, **r.loop.body.defs}
    extents = tuple(r.loop.extents[d] for d in r.dims)
    with b.each_element(extents) as (each, at):
        if move:
            each.emit(ops.Store, r.now, at, each.value(ops.Load, r.then, at))
        for k, place in zip(reversed(iterations), (r.then, r.now)):
            own = {r.loop.body.args[d]: i for d, i in zip(r.dims, at)}
            each.emit(ops.Store, place, at, r.at(each, inner, {o.body.args[0]: k, **own}))
        each.emit(ops.Yield)


def _from_registers(p: ops.Parallel, reads: list[_Read]) -> ops.Parallel:
    held = {r.load: r for r in reads}

    def visit(x: ops.Load) -> Op | None:
        r = held.get(x)
        if r is None:
            return None
        at = tuple(p.body.args[d] for d in r.dims)
        return replace(x, source=r.now, indices=at)

    return replace(p, body=p.body.rewrite(ops.Load, visit))
