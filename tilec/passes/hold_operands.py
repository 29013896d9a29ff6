"""hold_operands: what threads compute for a product stays in their registers.

Before: TILE. A loop with stages fills a shared tile by its threads and multiplies by it: weights
that are decoded, activations that are scaled, the probabilities of attention. After: where the
target's widest instruction takes its first operand from registers, the tile is a fragment, and
nobody has to wait for the stores of others, or for the product before the next tile is made
(`arrange`: two versions of such a fragment).

    parallel (128, 64) { t[i, j] = f(a[i, j]) }    t: shared    ->    t: fragment
    gemm t, b, acc

Only a tile of one warpgroup that each iteration fills whole before products read it, all of them as
A or all as B (then operands are swapped), that nothing else touches, and that fits twice beside the
other fragments; in a loop whose tiles producers may bring, for only then do products stay in
flight. Others stay where they are: one of several groups computes while another's product runs
anyway, what a loop before left in registers (means of rows) and the sum of another product
(attention's scores) lie as those want them, and an element from memory for each one of the tile
comes ahead as it is (`recognise_gathers`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.clusters import threads_of
from tilec.ir.copy_engines import CopyEngines
from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.instr import instructions_of
from tilec.ir.loc import Loc
from tilec.ir.ops import Alloc, Copy, For, Gemm, Load, Parallel, Reduce, is_by_hand
from tilec.ir.types import BufferType
from tilec.passes.demote_fragments import demoted
from tilec.passes.plan_pipeline import has_stages
from tilec.passes.utils.building import with_types
from tilec.passes.utils.dependence import modref
from tilec.passes.utils.rings import fills_tile
from tilec.target import Target

MOST = 32  # registers of a thread for one such tile
ALL = 192  # for all fragments, these tiles in two versions


def hold_operands(func: Func, target: Target) -> Func:
    if not target.has("wgmma") or is_by_hand(func.body):
        return func
    found = _Found(func, target)
    if not found.made:
        return func
    changed = _changed(func, found.made)
    engines = CopyEngines(changed, target)

    return changed.rewrite(For, lambda o: _staged(o, engines) if o.loc in found.loops else None)


class _Found:
    """`made`: the tiles of `func` that become fragments, with their types; `loops`: where the loops
    stand that fill them."""

    def __init__(self, func: Func, target: Target) -> None:
        self.target = target
        self.threads = threads_of(func)
        self.facts = facts_of(func)
        engines = CopyEngines(func, target, self.facts)
        self.users = func.body.users
        self.sums = {o.c for o in func.body.every(Gemm)}
        self.made: dict[Value, BufferType] = {}
        self.loops: set[Loc] = set()
        buffers = [o.type for o in func.body.every(Alloc)]
        taken = sum(t.shared_out(self.threads) for t in buffers if t.space == "fragment")
        for loop in func.body.every(For):
            if not has_stages(loop) or not _is_brought(loop, engines):
                continue
            inside = {*walk(loop.body)}
            for v, read in _computed(loop, self.facts):
                each = v.buffer.shared_out(self.threads)
                own = [v, *(x for x in read if x.space == "fragment")]
                if (
                    each <= MOST
                    and taken + 2 * each <= ALL
                    and all(inside.issuperset(self.users[x]) for x in own)
                    and self.sums.isdisjoint(read)
                    and all(self._may_hold(o, v) for o in self.users[v])
                ):
                    self.made[v] = replace(v.buffer, space="fragment")
                    self.loops.add(loop.loc)
                    taken += 2 * each

    def _may_hold(self, o: Op, v: Value) -> bool:
        """Whether the widest instruction takes `v` from registers where `o` is a product of one
        group of warps. As its second operand only where no other product adds to the sum, which
        lies as that of swapped operands does, and none of its rows, which are spread over all warps
        then, is reduced."""
        if not isinstance(o, Gemm):
            return True
        held, other = (o.a, o.b) if o.a.buffer is v else (o.b, o.a)
        if other.buffer is v or not held.is_whole or held.shape != v.buffer.static_shape:
            return False
        stays = other.type.space == "shared" and other.buffer not in self.made
        if not stays or o.metadata is not None or o.policy == "full_col":
            return False
        of_sum = self.users[o.c]
        by_rows = any(isinstance(x, Reduce) and x.dim for x in of_sum)
        if held is o.b and (by_rows or sum(isinstance(x, Gemm) and x.c is o.c for x in of_sum) > 1):
            return False
        m, n, k = o.shape
        rows, columns = (m, n) if held is o.a else (n, m)
        # (Whether K is contiguous in the other operand.)
        by_k = o.transpose_b if held is o.a else not o.transpose_a
        return any(
            row.warps > 1
            and self.target.has(row.feature)
            and "fragment" in row.a_places
            and self.threads == row.warps * self.target.warp_size
            and rows % row.m == 0
            and (columns, k % row.k) == (row.n, 0)
            and (by_k or "mn" in row.majors)
            for row in instructions_of(held.dtype, other.dtype, o.c.dtype)
        )


def _is_brought(loop: For, engines: CopyEngines) -> bool:
    """Whether producers may bring all tiles that the loop copies to shared memory: else no product
    stays in flight."""
    return all(engines.tma_may_load(o, o.dest.dtype) for o in loop.body.ops if fills_tile(o))


def _staged(loop: For, engines: CopyEngines) -> list[Op]:
    """The loop, whose fragments that come from memory do so by way of shared tiles, which producers
    bring ahead."""
    b, body = Builder(loop.loc), Builder(loop.loc)
    for o in loop.body.ops:
        if isinstance(o, Copy) and o.source.type.space == "global" and o.dest.is_whole:
            f = o.dest.buffer
            if f.space == "fragment" and len(f.buffer.shape) == 2:
                t = BufferType(f.buffer.static_shape, o.source.dtype, "shared")
                tile = Value(t, f"{f.name}_brought")
                body.loc = o.loc
                brought = replace(o, dest=body.whole(tile))
                if engines.tma_may_load(brought, t.dtype):
                    b.ops.append(Alloc(t, results=(tile,), loc=o.loc))
                    body.ops += [brought, replace(o, source=brought.dest)]
                    continue
        body.ops.append(o)
    return [*b.ops, replace(loop, body=body.block(loop.body.args))]


def _changed(func: Func, made: dict[Value, BufferType]) -> Func:
    """`func` with these buffers, but for those that registers cannot hold."""
    if not made:
        return func
    changed = func.with_body(with_types(func.body, made))
    bad = {v.name for v in {*demoted(changed)} - {*demoted(func)}}
    left = {v: t for v, t in made.items() if v.name not in bad}
    if not bad:
        return changed
    return _changed(func, left) if len(left) < len(made) else func


def _computed(loop: For, facts: Facts) -> Iterator[tuple[Value, set[Value]]]:
    """The shared tiles that threads fill whole in each iteration, before its products read them;
    and what they are made of."""
    at = [(o, modref(o)) for o in loop.body.ops]
    products = [o for o in loop.body.ops if isinstance(o, Gemm)]
    for v in dict.fromkeys(r.buffer for o in products for r in (o.a, o.b)):
        uses = [(o, found[v]) for o, found in at if v in found]
        first = next(n for n, (o, _) in enumerate(uses) if isinstance(o, Gemm))
        if v.space != "shared" or len(v.buffer.shape) != 2 or not first:
            continue
        behind = all(isinstance(o, Gemm) for o, _ in uses[first:])
        if uses[0][1].whole and behind and all(_computes(o, facts) for o, _ in uses[:first]):
            fills = {o for o, _ in uses[:first]}
            yield v, {x for o, found in at if o in fills for x in found if found[x].reads}


def _computes(o: Op, facts: Facts) -> bool:
    """Whether `o` makes a tile of what is on the chip already: tiles that come from memory are
    brought ahead, or by as many bytes at a time as lie together there."""
    if isinstance(o, Copy):
        return o.source.type.space != "global"
    if not isinstance(o, Parallel):
        return False
    last = o.body.args[-1]
    loads = (x for x in o.body.every(Load) if x.indices)
    for x in (x for x in loads if x.source.space == "global"):
        each = facts.origins.of_all(x.indices) >= {*o.body.args}
        if each or facts.form(x.indices[-1]).terms.get(last) == 1:
            return False  # an element for each of the tile, or neighbours
    return True
