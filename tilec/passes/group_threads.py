"""group_threads: conditions on the thread index around tile ops become scopes of warps.

Before: TILE, as the user wrote it. After: no tile op stands under a condition that differs between
threads, where that condition is the same for all threads of each warp and holds for warps that
follow one another: it is a `scope` of these warps, and its else branch one of the others. What such
branches hand on lies in variables. Loops whose copies or barriers are ordered by hand are "serial":
nothing runs ahead there but what the author starts, in the stages that he asks for
(`stages_by_hand`)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilec.ir import ops
from tilec.ir.builder import Builder
from tilec.ir.copy_engines import CopyEngines
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.effects import changing_tensors
from tilec.ir.errors import CompileError
from tilec.ir.instr import MfmaInstruction, find_instruction
from tilec.ir.types import FLOAT32, INT32, BufferType, ScalarType
from tilec.ir.uniformity import LANES, Level, Uniformity, uniformity_of, varying
from tilec.ir.verify import meets, needs_all, needs_others, spelled
from tilec.passes.utils.building import or_zero, under
from tilec.passes.utils.stages_by_hand import with_stages_by_hand
from tilec.passes.utils.thread_masks import ThreadMasks
from tilec.passes.utils.warp_matrices import by_elements
from tilec.target import TARGETS, Target

_BARRIERS = (ops.MbarrierArrive, ops.MbarrierExpect, ops.MbarrierExpectTx, ops.MbarrierWait)


def group_threads(func: Func, target: Target) -> Func:
    """Raises CompileError for a group that is no run of whole warps."""
    func = with_stages_by_hand(whole_warps(func, target), target)
    asks = func.body.has(ops.ThreadIndex, ops.WarpMma, ops.LoadMatrices, ops.ProxyFence)
    if not asks and not ops.is_by_hand(func.body):
        return func
    for o in walk(func.body):
        if isinstance(o, ops.MbarrierInit) and not target.has("mbarrier"):
            raise CompileError(
                f"{target} has no mbarriers",
                o.loc,
                "write T.copy and T.gemm in T.Pipelined, which every target orders in its own way",
            )
        if isinstance(o, ops.ClusterBarrier | ops.ClusterCopy) and not target.has("cluster"):
            meet = isinstance(o, ops.ClusterBarrier)
            raise CompileError(
                f"{target} has no clusters whose blocks could "
                f"{'meet' if meet else 'copy to one another'}",
                o.loc,
                "end the kernel there and launch another one"
                + (", or write T.sync_grid()" if meet else "; leave the tile in a tensor for it"),
            )
    func = func.with_body(_Groups(func, target).block(func.body, None, False))
    engines = CopyEngines(func, target)

    def visit(o: Op) -> None | Op | list[Op]:
        """What TMA cannot bring the threads do; they meet, so that each may arrive for all. What
        the target does not do asynchronously has been done when the next op begins."""
        match o:
            case ops.TmaCopy():
                copy = ops.Copy(o.source, o.dest, loc=o.loc)
                if engines.tma_may_load(copy, o.dest.dtype):
                    return None
                return [copy, ops.Barrier(loc=o.loc)]
            case ops.Copy(engine="cp_async") if not target.has("cp_async"):
                return replace(o, engine="")
            case ops.Store(engine="cp_async") if not target.has("cp_async"):
                return replace(o, engine="threads")
            case ops.Copy(engine="tma_store") if not target.has("tma"):
                return replace(o, engine="")
            case ops.Gemm(asynchronous=True) if not target.has("wgmma"):
                return replace(o, asynchronous=False)
            case ops.WarpMma() if not target.has((row := find_instruction(o.instr)).feature):
                if isinstance(row, MfmaInstruction):
                    raise _no_mfma(row, o, target)
                return by_shuffles(o, target)
            case ops.LoadMatrices() if not target.has("ldmatrix"):
                return by_elements(o)
            case ops.CpAsyncCommit() | ops.CpAsyncWait() if not target.has("cp_async"):
                return []
            case ops.TmaStoreWait() | ops.ProxyFence() if not target.has("tma"):
                return []
            case ops.WgmmaWait() if not target.has("wgmma"):
                return []
            case ops.SetRegisters() if not target.has("setmaxnreg"):
                return []
        return None

    func = func.rewrite(Op, visit)
    return func.with_attrs(by_hand=True) if ops.is_by_hand(func.body) else func


def _no_mfma(row: MfmaInstruction, o: ops.WarpMma, target: Target) -> CompileError:
    has = target.has("mfma")
    others = " or ".join(name for name, other in TARGETS.items() if other.has(row.feature))
    instead = "use tilec.intrinsics.TensorCoreIntrinEmitter, which every target has"
    return CompileError(
        f"{target} has no v_mfma_{row.word}" + ("" if has else ", which is of waves of 64 lanes"),
        o.loc,
        f"compile for {others}, or {'take an instruction of half the depth' if has else instead}",
    )


class _Groups:
    def __init__(self, func: Func, target: Target) -> None:
        self.size, self.numbered = target.warp_size, target.has("mma")  # barriers have numbers
        self.masks = ThreadMasks(func)

    def block(self, block: Block, group: Any, inside: bool) -> Block:
        """`block`, which the threads of `group` (a mask; None: all) run; `inside`: a scope."""
        statements: list[Op] = []
        for o in block.ops:
            if isinstance(o, ops.If):
                statements += self.branch(o, group, inside)
                continue
            o = o.with_regions(lambda region: self.block(region, group, inside))
            match o:
                case ops.Barrier(number=Value()) if not (self.numbered or inside):
                    o = replace(o, threads=0, number=None)  # all meet who come, be it for several
                case ops.For(kind="pipelined") if (
                    inside or ops.is_by_hand(o.body) or o.body.has(*_BARRIERS)
                ):
                    o = o.in_order()
            statements.append(o)
        return block.with_ops(statements)

    def branch(self, o: ops.If, group: Any, inside: bool) -> list[Op]:
        mask = self.masks.mask(o.cond)
        whole = np.ones(self.masks.threads, bool) if group is None else group
        if mask is None or not (meets(o.then) or meets(o.orelse)):
            return [o.with_regions(lambda region: self.block(region, group, inside))]
        mask = np.broadcast_to(mask, whole.shape)
        b = Builder(o.loc)
        kept = [
            b.value(ops.Alloc, BufferType((1,), r.dtype, "local"), name=r.name) for r in o.results
        ]
        for region, who in ((o.then, mask & whole), (o.orelse, ~mask & whole)):
            if not who.any():
                continue
            if not region.statements and not kept:
                continue
            body = self.block(region, who, True)
            inner = Builder(o.loc, body.statements)
            zero = inner.const(0) if kept else None
            for place, v in zip(kept, ops.yielded(body)):
                inner.emit(ops.Store, place, (zero,), v)
            # Threads that wait at barriers of the author's are a group of their own.
            if meets(region) or (region.has(ops.MbarrierWait) and self.is_run(who)):
                first, warps = self.warps(o, who)
                name = f"threads_{first * self.size}"
                b.emit(ops.Scope, name, first, warps, inner.block())
            else:
                sides = (inner.ops, ()) if region is o.then else ((), inner.ops)
                b.branch(o.cond, *sides)
        for place, r in zip(kept, o.results):
            zero = b.const(0)
            b.ops.append(ops.Load(place, (zero,), results=(r,), loc=o.loc))
        return b.ops

    def is_run(self, who: Any) -> bool:
        """Whether the threads `who` are whole warps that follow one another."""
        found = np.flatnonzero(who)
        first, last = int(found[0]), int(found[-1]) + 1
        return not (len(found) != last - first or first % self.size or last % self.size)

    def warps(self, o: ops.If, who: Any) -> tuple[int, int]:
        """First warp and number of warps of the threads `who`."""
        found = np.flatnonzero(who)
        first, last = int(found[0]), int(found[-1]) + 1
        if not self.is_run(who):
            inside = next(x for r in (o.then, o.orelse) for x in walk(r) if needs_all(x))
            what = spelled(inside)
            runs = "threads that do not follow one another"
            if len(found) == last - first:
                runs = f"threads {first} to {last - 1}"
            raise CompileError(
                f"{what} stands under a condition that holds for {runs}: a group that works on "
                f"tiles, or meets, is whole warps of {self.size} threads",
                o.loc,
                f"write a condition such as tx < {max(last // self.size, 1) * self.size}, or move "
                f"{what} (line {inside.loc.line}) out of it",
            )
        return first // self.size, (last - first) // self.size


# --- whole warps ----------------------------------------------------------------------------------


_MEMORY = ("shared", "global")


def whole_warps(func: Func, target: Target) -> Func:
    """A block of any number of threads, as 1, 48 or 1000, as one of whole warps of the target. Tile
    ops are done by all of them; what each thread does by itself, to memory or for others, only by
    those that were asked for:

        threads=48                      threads=64
        S[t] = f(t)              ->     if t < 48 { S[t] = f(t) }
        copy A, B                       copy A, B

    A block of one thread that does nothing but what each thread does by itself is one condition
    around all of it: no other thread has to see what it writes. So is, in other blocks, a loop that
    is each thread's own: with an index that nobody was asked for it might never end.
    Other reading costs nothing and stays, but for what is written here, too, at a thread's own
    index: it would lie behind the end of shared memory, or be another block's; of tensors it is
    guarded, whatever the author says of his threads."""
    asked, size = int(func.attrs.get("threads") or 0), target.warp_size
    if target.max_threads == 1:  # threads are iterations; only shuffles know of warps
        size = LANES if func.body.has(ops.Shuffle, ops.ShuffleXor, ops.WarpMma) else 1
    threads = -(-asked // size) * size
    if threads == asked:
        return func
    if asked == 1 and not any(map(_is_for_several, walk(func.body))):
        return _alone(func).with_attrs(threads=threads)
    facts = uniformity_of(func)
    loops = (o for o in func.body.every(ops.Parallel))
    whole = {o for o in walk(func.body) if _is_own_loop(o, facts)}
    inside = {x for o in (*loops, *whole) for r in o.regions for x in walk(r)}
    written = changing_tensors(func)

    own = (o.result for o in walk(func.body) if _is_threads_own(o, facts))
    threads_own = varying(func.body, own, allocs=False)

    def visit(o: Op) -> Sequence[Op] | None:
        if isinstance(o, ops.Assume):  # what the author says of his threads
            return [] if o.lhs in threads_own or o.rhs in threads_own else None
        own = o not in inside and (o in whole or _is_own(o, facts, written))
        return _guarded(o, asked) if own else None

    return func.rewrite(Op, visit).with_attrs(threads=threads)


def _is_for_several(o: Op) -> bool:
    return needs_others(o) or (isinstance(o, ops.For) and o.kind in ("pipelined", "persistent"))


def _is_own_loop(o: Op, facts: Uniformity) -> bool:
    """Whether each thread does a loop by itself, as often as its own values say."""
    if not isinstance(o, ops.For | ops.While) or any(map(_is_for_several, walk(o))):
        return False
    return max(map(facts.level, ops.decides(o))) > Level.BLOCK


def _alone(func: Func) -> Func:
    """The body, done by the first thread; what it allocates, and computes for that and from sizes,
    stands outside of that condition."""
    outside, inside, made = list[Op](), list[Op](), set[Value]()
    for o in func.body.statements:
        free = o.pure or isinstance(o, ops.Alloc | ops.Assume)
        if free and not o.region_fields and made.isdisjoint(o.operands):
            outside.append(o)
        else:
            inside.append(o)
            made.update(o.results)
    if not inside:
        return func
    b = Builder(inside[0].loc)
    first = b.compare("eq", b.value(ops.ThreadIndex), b.const(0))
    statements = (*outside, *b.ops, under(first, inside))
    return func.with_body(func.body.with_ops((*statements, func.body.ops[-1])))


def _is_threads_own(o: Op, facts: Uniformity) -> bool:
    """Whether `o` gives the thread's index, or what may have come of it in a variable."""
    if isinstance(o, ops.Load) and o.source.space == "local":
        return facts.level(o.source) > Level.BLOCK
    return isinstance(o, ops.ThreadIndex)


def _is_own(o: Op, facts: Uniformity, written: Container[Value]) -> bool:
    """Whether each thread does `o` by itself, so that one too many would be noticed."""
    if o.pure or o.region_fields or meets(Block((), (o,))):
        return False
    if isinstance(o, ops.MbarrierArrive | ops.MbarrierExpect | ops.MbarrierExpectTx):
        return True
    memory = [e for e in o.effects() if e.region and e.region.type.space in _MEMORY]
    if any(e.kind == "update" for e in memory):
        return True
    levels = [facts.level(v) for v in o.operands if isinstance(v.type, ScalarType)]
    shows = isinstance(o, ops.Print | ops.DeviceAssert)
    if shows:
        levels.append(facts.around(o))
    if max(levels, default=Level.BLOCK) == Level.BLOCK:
        return False  # all do the same
    reads = [o.buffer] if isinstance(o, ops.Load) else []
    changing = any(b.space == "shared" or b in written for b in reads)
    return changing or shows or any(e.writes for e in memory)


def _guarded(o: Op, asked: int) -> list[Op]:
    b = Builder(o.loc)
    inside = b.compare("lt", b.value(ops.ThreadIndex), asked)
    return [*b.ops, or_zero(inside, o)]


# --- products of a warp, by shuffles --------------------------------------------------------------


def by_shuffles(o: ops.WarpMma, target: Target) -> list[Op]:
    """What `o` computes, for targets that lack it, each product and sum in float32, float64 or
    int32. Which lane holds which element, in which of its registers, is what the instruction's own
    layouts say (PTX ISA, "Matrix Fragments for mma.m16n8k16"). Lane l has of C the rows l / 4 and
    (of 16) l / 4 + 8 in the columns 2 (l % 4) and the next; for each step along k it is sent the
    elements of A and B that these need."""
    b, instr = Builder(o.loc), find_instruction(o.instr)
    dtype = o.c[0].dtype
    wide = dtype if dtype.bits == 64 else FLOAT32 if dtype.is_float else INT32
    halves = instr.m // 8

    thread = b.value(ops.ThreadIndex)
    lane = b.binary("mod", thread, LANES)
    warp = LANES if target.max_threads == 1 else target.warp_size
    first = b.binary("sub", b.binary("mod", thread, warp), lane)
    row = b.binary("floordiv", lane, 4)
    column = b.binary("mul", b.binary("mod", lane, 4), 2)
    per = max(1, 32 // o.a[0].dtype.bits)  # elements of a register
    reach = 4 * per  # of the registers of four lanes along k

    def sent(value: Value, place: Value) -> Value:
        """`value` as a lane of this thread's 32 has it."""
        return b.cast(b.value(ops.Shuffle, value, b.binary("add", first, place)), wide)

    sums = [b.cast(v, wide) for v in o.c]
    for k in range(instr.k):
        part, at = k // reach, k % reach // per
        of_row = b.binary("add", b.binary("mul", row, 4), at)
        a = [sent(o.a[(part * halves + h) * per + k % per], of_row) for h in range(halves)]
        right = []
        for c in range(2):
            place = b.binary("add", b.binary("mul", b.binary("add", column, c), 4), at)
            right.append(sent(o.b[part * per + k % per], place))
        for i in range(2 * halves):
            product = b.binary("mul", a[i // 2], right[i % 2])
            sums[i] = b.binary("add", sums[i], product)
    named = {}
    for result, total in zip(o.results, sums):
        if result.dtype is wide:
            named[total] = result
        else:
            b.ops.append(ops.Cast(total, result.dtype, results=(result,), loc=o.loc))
    return [
        replace(x, results=(named[x.result],)) if x.results and x.results[0] in named else x
        for x in b.ops
    ]
