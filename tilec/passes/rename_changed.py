"""rename_changed: a tile that a loop changes where it lies goes on under another name.

Before: TILE. A loop with stages copies a tile from memory and changes it in place, which keeps the
next iteration's copy from running ahead. After: what it is changed to is a tile of its own, which
the rest of the iteration uses.

    copy A[y, k], a                              copy A[y, k], a
    parallel (128, 64) { a[i, j] = f(a[i, j]) }  parallel (128, 64) { a_changed[i, j] = f(a[i, j]) }
    gemm a, b, acc                         ->    gemm a_changed, b, acc

Only where the loop over elements writes all of the tile, each iteration no element but its own, and
nothing outside of the pipelined loop touches the tile."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Block, Func, Op, Substitution, Value, walk
from tilec.ir.dependence import modref
from tilec.ir.ops import Alloc, Copy, For, Parallel, Store, is_by_hand
from tilec.passes.plan_pipeline import has_stages
from tilec.passes.utils.accesses import covered, parallel_accesses
from tilec.target import Target


def rename_changed(func: Func, target: Target) -> Func:
    if target.kind == "cpu" or is_by_hand(func.body):
        return func
    users = func.body.users
    shared = (o.type for o in func.body.every(Alloc) if o.type.space == "shared")
    room = target.shared_bytes - sum(t.stage_bytes for t in shared)
    names: dict[Value, Value] = {}

    def of_loop(o: For) -> None | Op:
        nonlocal room
        if not has_stages(o) or o.order or o.stage:
            return None
        inside, ops = {*walk(o.body)}, list(o.body.ops)
        for v, at in _changed(o):
            if inside.issuperset(users[v]) and v.buffer.stage_bytes <= room:
                room -= v.buffer.stage_bytes
                names[v] = made = Value(v.type, f"{v.name}_changed")
                ops[at] = _onto(ops[at], v, made)
                behind: Substitution = {v: made}
                ops[at + 1 :] = Block((), tuple(ops[at + 1 :])).substituted(behind).ops
        return None if ops == [*o.body.ops] else replace(o, body=replace(o.body, ops=tuple(ops)))

    def made(o: Alloc) -> None | list[Op]:
        if o.result not in names:
            return None
        return [o, Alloc(o.type, results=(names[o.result],), loc=o.loc)]

    body = func.body.rewrite(For, of_loop)
    return func.with_body(body.rewrite(Alloc, made)) if names else func


def _changed(loop: For) -> list[tuple[Value, int]]:
    """The shared tiles that a copy of the loop fills from memory and the next op that touches them
    changes in place; and where in the body that one stands."""
    at = [modref(o, covered) for o in loop.body.ops]
    found = []
    for o in loop.body.ops:
        if not isinstance(o, Copy) or o.source.type.space != "global":
            continue
        v = o.dest.buffer
        uses = [n for n, effects in enumerate(at) if v in effects]
        if v.space != "shared" or not o.dest.is_whole or len(uses) < 3:
            continue
        first, second, *_ = uses
        p = loop.body.ops[second]
        if loop.body.ops[first] is o and isinstance(p, Parallel) and _in_place(p, v):
            found.append((v, second))
    return found


def _in_place(p: Parallel, v: Value) -> bool:
    """Whether each iteration of the loop reads its own element of `v` at most, and writes it at
    last."""
    own = [a for a in parallel_accesses(p) if a.buffer is v]
    dims = tuple((n,) for n in range(len(p.extents)))
    stores = [n for n, o in enumerate(p.body.ops) if isinstance(o, Store) and o.dest is v]
    behind = walk(Block((), p.body.ops[stores[0] + 1 :])) if stores else ()
    return (
        p.extents == v.buffer.static_shape
        and v in covered(p)
        and all(a.runs == dims for a in own)
        and sum(a.write for a in own) == len(stores) == 1
        and not any(v in o.operands for o in behind)
    )


def _onto(p: Op, v: Value, made: Value) -> Op:
    """The loop, which writes another tile than it reads."""
    assert isinstance(p, Parallel)
    body = p.body.rewrite(Store, lambda o: replace(o, dest=made) if o.dest is v else None)
    return replace(p, body=body)
