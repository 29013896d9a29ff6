"""rename_changed: a tile that a loop changes where it lies goes on under another name, and so does
what lies where a loop with stages has had its tiles.

Before: TILE. A loop with stages copies a tile from memory and changes it in place, which keeps the
next iteration's copy from running ahead. After: what it is changed to is a tile of its own, which
the rest of the iteration uses.

    copy A[y, k], a                              copy A[y, k], a
    parallel (128, 64) { a[i, j] = f(a[i, j]) }  parallel (128, 64) { a_changed[i, j] = f(a[i, j]) }
    gemm a, b, acc                         ->    gemm a_changed, b, acc

Only where the loop over elements writes all of the tile, each iteration no element but its own, and
nothing outside of the pipelined loop touches the tile.

Nor does a loop's copy run ahead that fills what another copy fills in the same iteration, or behind
the loop. Where each fills the tile whole and all that reads it lies behind one of them, the other
has a tile of its own; behind a loop that is the memory that the loop's tiles were in.

    for y … stages=2 { copy B[y], b; gemm a, b, s }     for y … { copy B[y], b; gemm a, b, s }
    copy B[z], b                                   ->   copy B[z], b_again
    gemm s, b, acc                                      gemm s, b_again, acc
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from tilec.ir.core import Block, Func, Op, Substitution, Value, walk
from tilec.ir.ops import Alloc, Copy, For, Parallel, Store, is_by_hand
from tilec.passes.plan_pipeline import has_stages, innermost
from tilec.passes.utils.accesses import covered, parallel_accesses
from tilec.passes.utils.building import with_more
from tilec.passes.utils.dependence import LiveRange, live_ranges, modref
from tilec.passes.utils.rings import fills_tile
from tilec.target import Target


def rename_changed(func: Func, target: Target) -> Func:
    if target.kind == "cpu" or is_by_hand(func.body):
        return func
    func = _with_own_tiles(func, target)
    users = func.body.users
    shared = (o.type for o in func.body.every(Alloc) if o.type.space == "shared")
    room = target.shared_bytes - sum(t.stage_bytes for t in shared)
    names: dict[Value, tuple[Value]] = {}

    def of_loop(o: For) -> None | Op:
        nonlocal room
        if not has_stages(o) or o.order or o.stage:
            return None
        inside, ops = {*walk(o.body)}, list(o.body.ops)
        for v, at in _changed(o):
            if inside.issuperset(users[v]) and v.buffer.stage_bytes <= room:
                room -= v.buffer.stage_bytes
                (made,) = names[v] = (Value(v.type, f"{v.name}_changed"),)
                ops[at] = _onto(ops[at], v, made)
                behind: Substitution = {v: made}
                ops[at + 1 :] = Block((), tuple(ops[at + 1 :])).substituted(behind).ops
        return None if ops == [*o.body.ops] else replace(o, body=replace(o.body, ops=tuple(ops)))

    return func.with_body(with_more(func.body.rewrite(For, of_loop), names))


# --- tiles that are filled again ---


def _with_own_tiles(func: Func, target: Target) -> Func:
    """Each copy of a loop with stages, and what is behind it, with a tile of its own."""
    fills = Counter(o.dest.buffer for o in walk(func.body) if fills_tile(o) and o.dest.is_whole)
    several = {v for v, n in fills.items() if n > 1}
    if not several:
        return func
    allocs = {o.result: o for o in func.body.every(Alloc) if o.type.space == "shared"}
    room = target.shared_bytes  # of two stages, without which nothing runs ahead
    room -= sum(o.type.stage_bytes * (2 if v in fills else 1) for v, o in allocs.items())
    users = func.body.users
    again: dict[Value, list[Value]] = {}
    moved: dict[Op, Substitution] = {}
    for v, ranges in live_ranges(func.body, several).items():
        if not isinstance(ranges, list) or v not in allocs or not _is_plain(users[v], v):
            continue
        for r, n in zip(ranges, _numbers(ranges)):
            made, size = again.setdefault(v, []), v.buffer.stage_bytes
            size *= 2 if innermost(r) else 1
            if n > len(made) and size <= room:
                room -= size
                made.append(Value(v.type, f"{v.name}_again"))
            if 0 < n <= len(made):
                own = (o for at in (r.start, *r.readers) for o in walk(r.block.ops[at]))
                for o in (o for o in own if v in o.operands):
                    moved.setdefault(o, {})[v] = made[n - 1]
    if not moved:
        return func

    def rename(o: Op) -> None | Op:
        return o.with_operands(moved[o]) if o in moved else None

    return func.with_body(with_more(func.body.rewrite(Op, rename), again))


def _is_plain(users: Collection[Op], v: Value) -> bool:
    """Whether a tile has no layout from its author, and only copies fill it."""
    effects = [(o, [e for e in o.effects() if e.buffer is v]) for o in users]
    return all(
        found and (fills_tile(o) or not any(e.writes for e in found)) for o, found in effects
    )


def _numbers(ranges: list[LiveRange]) -> list[int]:
    """Which tile each range has, 0 for the one that there is: those of one loop with stages have
    several, all that stands behind such loops has one more."""
    loops = [innermost(r) for r in ranges]
    own = Counter[For]()
    found = list[int]()
    for loop in loops:
        found.append(0 if loop is None else own[loop])
        own.update([loop] if loop else [])
    last = max(own.values(), default=0)
    behind = (r.is_behind(own) for r in ranges)
    return [last if loop is None and b else n for loop, b, n in zip(loops, behind, found)]


# --- tiles that are changed in place ---


def _changed(loop: For) -> list[tuple[Value, int]]:
    """The shared tiles that a copy of the loop fills from memory and the next op that touches them
    changes in place; and where in the body that one stands."""
    at = [modref(o) for o in loop.body.ops]
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
