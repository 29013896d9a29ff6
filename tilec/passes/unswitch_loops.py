"""unswitch_loops: a loop whose iterations all take the same branch is in the branch.

Before and after: TILE, as traced, so that plans are chosen for what runs ahead. Where blocks differ
in the tensor from which a tile comes,

    for k in T.Pipelined(n):                     if bx < last:
        if bx < last:                                for k in T.Pipelined(n):
            copy Q[bx, k], w                             copy Q[bx, k], w; gemm …
        else:                              ->    else:
            copy V[0, k], w                          for k in T.Pipelined(n):
        gemm …                                           copy V[0, k], w; gemm …

each loop fills the tile whole in each iteration, so that it may run ahead. Only conditions that are
the same for a block's threads and follow from what is known in front of the loop, and only where
both branches fill a tile."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, upstream
from tilec.ir.uniformity import Level, uniformity_of
from tilec.passes.plan_pipeline import has_stages
from tilec.passes.utils.rings import fills_tile


def unswitch_loops(func: Func) -> Func:
    if not any(has_stages(o) and o.body.has(ops.If) for o in func.body.every(ops.For)):
        return func
    uniformity, defs = uniformity_of(func), func.body.defs

    def asked(loop: ops.For, o: ops.If) -> list[Op] | None:
        """What is to be computed in front of the loop for a branch; None if it cannot be."""
        inside = {*loop.body.ops}
        made = [x for x in upstream([o.cond], defs) if x in inside]
        known = all(x.pure for x in made) and not any(
            v in loop.body.args for x in (*made, o) for v in x.operands
        )
        return made if known and uniformity.level(o.cond) == Level.BLOCK else None

    def visit(loop: ops.For) -> None | list[Op]:
        if not has_stages(loop) or loop.inits or loop.order or loop.stage:
            return None
        for o in loop.body.ops:
            if not isinstance(o, ops.If) or o.types or not _filled(o.then) & _filled(o.orelse):
                continue
            if (made := asked(loop, o)) is None:
                continue
            b, subst = Builder(loop.loc), Substitution()
            b.ops += [x.clone(subst) for x in made]
            sides = [_with(loop, o, side) for side in (o.then, o.orelse)]
            b.branch(subst.get(o.cond, o.cond), sides[:1], [sides[1].clone({})])
            return b.ops
        return None

    return func.rewrite(ops.For, visit)


def _filled(block: Block) -> set[Value]:
    return {o.dest.buffer for o in block.ops if fills_tile(o)}


def _with(loop: ops.For, o: ops.If, side: Block) -> ops.For:
    """The loop with one side in the place of a branch."""
    acts = (x for x in side.ops if not isinstance(x, ops.Yield))
    at = loop.body.ops.index(o)
    inside = (*loop.body.ops[:at], *acts, *loop.body.ops[at + 1 :])
    return replace(loop, body=replace(loop.body, ops=inside))
