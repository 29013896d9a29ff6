"""The plans (`tilec.ir.schedule`) worth trying for a kernel.

The passes read a plan from the function's attributes; plans are tried in order (`fit`), and the
first is kept whose shared memory and registers the passes find to fit. What the user wrote is never
changed by a plan: `T.annotate_schedule` fixes fields of every plan that is tried."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tilec.ir.clusters import threads_of
from tilec.ir.core import Func, Op
from tilec.ir.effects import effects_in
from tilec.ir.errors import ResourceError
from tilec.ir.instr.cluster import MAX_BLOCKS
from tilec.ir.ops import For, Gemm, Load, Parallel, ThreadIndex, is_by_hand, yielded
from tilec.ir.schedule import Plan, name_of
from tilec.passes.block_order import meets_others
from tilec.passes.split_roles import refusal
from tilec.passes.utils.plans import Wanted, is_mixed, pipelined, waits_for_products
from tilec.target import Target
from tilec.tune.footprint import Footprint, footprint

RESIDENTS = (2, 3)  # blocks of a multiprocessor, of a group and its producers each
OF_FEW_THREADS = (2, 3, 4, 6, 8)  # of less than a group: it takes several to keep the units busy
MOST_OF_PRODUCTS = 4  # of these that have nothing but products: more leave two stages or three
ALONE = (4, 3, 2)  # of a group that brings its own tiles
GROUP_THREADS = 128  # a group of a ping-pong schedule is one warpgroup
ROLE_THREADS = 384  # of the roles that products have: three warpgroups
MORE_GROUPS, GROUP_ROWS = (3, 4), 64  # of products that overlap, and what each has of a tile
MOST_THREADS_FROM = 128 * 128  # accumulators of a block whose tiles threads bring
MOST_COLUMNS = 128  # of a tile that groups which take turns share
SPLITS = (2, 4, 8)  # blocks of a cluster that share one sum
CLUSTERS = ((1, 2, 1), (2, 1, 1))  # whose blocks load for one another
# How many such clusters, or blocks, may share it through global memory: few numbers, since each
# takes code of its own.
PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
MOST_PARTS = 1024


def plans(
    func: Func, target: Target, wanted: Wanted | None = None, space: Footprint | None = None
) -> tuple[Plan, ...]:
    """The plans worth trying for `func`, with this footprint, on `target`, the safest first; every
    one of them has the `wanted` fields, but for the CPU, which has no schedules to choose from.
    Raises ResourceError if the target can run none such."""
    if wanted is None or target.kind == "cpu":
        wanted = Wanted()
    made: dict[Plan, None] = {}
    first: ResourceError | None = None
    space = space or footprint(func, target)
    for plan in _wished(_schedules(func, target, space), func, target, wanted):
        error = problem(plan, func, target, wanted)
        if error is None:
            if "stages" not in wanted.fields:
                plan = _with_stages(plan, space.stages_that_fit(plan, target))
            made.setdefault(plan)
        first = first or error
    if not made:
        assert first is not None
        raise first
    return tuple(made)


def _wished(found: Sequence[Plan], func: Func, target: Target, wanted: Wanted) -> Iterator[Plan]:
    """The plans with the fields that the user fixed, and in every way in which as many blocks as he
    wants can share a sum: first as one cluster, or, if they are too many, without clusters."""
    if not wanted.fields:
        yield from found
        return
    if wanted.fields.get("roles"):  # of these there is one
        found = [_plan(roles=True, threads=func.attrs.get("threads") or ROLE_THREADS)]
    fields, ways = dict(wanted.fields), [dict[str, Any]()]
    if "split" in fields and "parts" not in fields:
        blocks, sizes = fields.pop("split"), [1]
        if target.has("cluster") and fields.get("cluster", (1, 1, 1)) == (1, 1, 1):
            sizes = [n for n in (1, *SPLITS) if n < blocks and blocks % n == 0]
            sizes = [blocks, *sizes] if 1 < blocks <= MAX_BLOCKS else sizes or [1]
        ways = [{"split": n, "parts": blocks // n} for n in sizes]
    for way in ways:
        for plan in found:
            plan = replace(plan, **fields, **way)
            if plan.consumer_groups > 1 and func.attrs.get("threads") is None:
                plan = replace(plan, threads=GROUP_THREADS)
            if plan.split * plan.parts > 1 and "persistent" not in fields:
                plan = replace(plan, persistent=False)
            shares = plan.consumer_groups * blocks_of(plan) > 1
            if plan.residents > 1 and (shares or not plan.specialise):
                plan = replace(plan, residents=1)
            yield replace(plan, name=name_of(plan))


def problem(plan: Plan, func: Func, target: Target, wanted: Wanted) -> ResourceError | None:
    """Why `target` cannot run `plan` at all, in the words of the schedule that the user wrote;
    None if it may."""
    threads = plan.threads or threads_of(func)

    def refuse(message: str, hint: str) -> ResourceError:
        return ResourceError(message, wanted.loc, hint)

    if _is_by_hand(func) and (
        plan.specialise or plan.persistent or plan.consumer_groups * blocks_of(plan) > 1
    ):
        return refuse(
            "this kernel has barriers or groups of threads of its own: tilec adds no warps to them "
            "and shares no tiles out",
            "leave specialise, persistent, consumers, cluster and split out",
        )
    for wish, word in ((plan.specialise, "specialise=True"), (plan.staged_store, 'store="tma"')):
        if wish and not target.has("tma"):
            return refuse(f"{word}: {target} has no TMA", "leave it out for this target")
    blocks = plan.split * plan.parts
    if blocks > 1:
        clash = "persistent=True" if plan.persistent else 'consumers="pingpong"'
        if plan.persistent or plan.consumer_groups > 1:
            return refuse(f"split={blocks} shares one tile, {clash} walks over many", "drop one")
        if plan.split > 1 and plan.cluster != (1, 1, 1):
            return refuse(f"split={blocks} makes a cluster of its own", "leave cluster out")
        if plan.split > MAX_BLOCKS:
            return refuse(
                f"split=({plan.split}, {plan.parts}): a cluster has at most {MAX_BLOCKS} blocks",
                f"write split={blocks}",
            )
        if plan.parts > MOST_PARTS:
            return refuse(
                f"split={blocks} leaves {plan.parts} parts of each sum in global memory, the most "
                f"is {MOST_PARTS}",
                f"write split={MOST_PARTS} or less",
            )
    if plan.consumer_groups > 1:
        if not target.has("setmaxnreg"):
            return refuse(f'consumers="pingpong": {target} has no warpgroups', "leave it out")
        if threads != GROUP_THREADS:
            return refuse(
                f'consumers="pingpong": each group is one warpgroup of {GROUP_THREADS} threads, '
                f"and threads={threads}",
                f"write threads={GROUP_THREADS}, or leave it out; the block has two such groups",
            )
        if not plan.specialise or not plan.persistent:
            return refuse(
                'consumers="pingpong" takes turns over tiles that producer warps bring: it needs '
                "specialise=True and persistent=True",
                "leave those two out",
            )
        if not has_pipelined_product(func):
            return refuse(
                'consumers="pingpong": no T.Pipelined of this kernel holds a T.gemm',
                "leave it out, or pipeline the loop around the product",
            )
    if plan.overlap and not may_overlap(func):
        return refuse(
            "overlap=True: no T.Pipelined of this kernel holds several T.gemm",
            "leave it out: one product has nothing to overlap with but the next iteration's",
        )
    if plan.overlap and (plan.consumer_groups > 1 or not plan.specialise):
        return refuse(
            "overlap=True lets products run beside what threads compute, on tiles that producer "
            'warps bring: it needs specialise=True and consumers="cooperative"',
            "leave those two out",
        )
    if plan.roles and (found := _problem_of_roles(plan, func, target, threads)) is not None:
        return refuse(*found)
    if not target.has("cluster"):
        if plan.split > 1:
            sizes = f"split=({plan.split}, {plan.parts})"
            return refuse(f"{sizes}: {target} has no clusters", f"write split={blocks}")
        if plan.cluster != (1, 1, 1):
            return refuse(f"cluster={plan.cluster}: {target} has no clusters", "leave it out")
    return None


def _problem_of_roles(
    plan: Plan, func: Func, target: Target, threads: int
) -> tuple[str, str] | None:
    """Why products cannot have roles, and what to do; None if they can."""
    if (error := refusal(func, target)) is not None:
        return f"roles=True: {error.message}", error.hint or "leave it out"
    if plan.specialise or plan.persistent or plan.overlap or blocks_of(plan) > 1:
        return (
            "roles=True: the groups behind the cut bring the tiles, of one block of the grid",
            "leave specialise, persistent, consumers, overlap, cluster and split out",
        )
    if threads != ROLE_THREADS:
        return (
            f"roles=True: the roles are {ROLE_THREADS} threads, and threads={threads}",
            f"leave threads out, or write threads={ROLE_THREADS}",
        )
    return None


def blocks_of(plan: Plan) -> int:
    """Blocks that work together on a tile."""
    return plan.split * plan.parts * math.prod(plan.cluster)


@functools.lru_cache(maxsize=8)
def _is_by_hand(func: Func) -> bool:
    return is_by_hand(func.body)


@functools.lru_cache(maxsize=8)
def has_pipelined_product(func: Func) -> bool:
    """Whether some tile product stands in a pipelined loop."""
    return any(o.body.has(Gemm) for o in pipelined(func.body))


@functools.lru_cache(maxsize=8)
def _shares_well(func: Func) -> bool:
    """Whether groups that take turns gain by what the blocks of a cluster load for one another: a
    third of all, of tiles twice as long as wide (a fourth is too little: 64x64 370 us, 380 then),
    with at most 128 columns (of 256 each row brings more products: 64x256 192 us, 214 then), and
    threads do nothing in loops with tile products but to start these: all blocks wait for what
    else they do for each tile (uint8 less a zero point: 456 us, 621 then)."""
    loops = [o for o in pipelined(func.body) if o.body.has(Gemm)]
    sides = [o.shape[:2] for o in func.body.every(Gemm)]
    acts = [x for o in loops for x in o.body.statements if not x.pure]
    long = all(max(m, n) >= 2 * min(m, n) and n <= MOST_COLUMNS for m, n in sides)
    return bool(loops) and long and all(isinstance(x, Gemm) or _brings(x) for x in acts)


def _brings(o: Op) -> bool:
    """Whether it fills shared memory from tensors, and does no more."""
    return all(
        e.region.type.space == ("shared" if e.writes else "global")
        for _, e in effects_in(o)
        if e.region is not None and (e.reads or e.writes)
    )


@functools.lru_cache(maxsize=8)
def may_overlap(func: Func) -> bool:
    """Whether a pipelined loop holds several tile products, and threads compute there with what one
    of them gives."""
    return any(is_mixed(o) for o in func.body.every(For))


@functools.lru_cache(maxsize=8)
def _waits_for_products(func: Func) -> bool:
    """Whether threads wait for tile products of a loop with nothing to do."""
    return any(waits_for_products(o) for o in func.body.every(For))


def thread_choices(func: Func) -> tuple[int | None, ...]:
    """Numbers of threads worth trying: None is what the user wrote, or the default where the
    kernel counts its threads by itself."""
    if func.attrs.get("threads") is not None:
        more = func.attrs.get("more_threads")
        return (None, more) if more else (None,)
    if func.body.has(ThreadIndex):
        return (None,)
    largest = _largest_product(func)
    if not largest:
        return (None,)
    return (256, 128) if largest > 128 * 128 else (128, 256)


def _more_groups(func: Func, choices: tuple[int | None, ...]) -> list[int]:
    """Threads of three and four warpgroups, where rows of every product divide over them."""
    rows = [o.shape[0] for o in func.body.every(Gemm)]
    if None in choices:
        return []  # the author's number
    work = (p for o in pipelined(func.body) for p in o.body.every(Parallel))
    loads = (x for p in work for x in p.body.every(Load))
    if any(x.source.space == "global" for x in loads):
        return []  # what threads bring themselves (a bias) takes more registers than these have
    groups = (n for n in MORE_GROUPS if all(r % (n * GROUP_ROWS) == 0 for r in rows))
    return [n * GROUP_THREADS for n in groups]


@functools.lru_cache(maxsize=8)
def _largest_product(func: Func) -> int:
    """Accumulators of a block, 0 without products."""
    shapes = (o.shape for o in func.body.every(Gemm))
    return max((m * n for m, n, _ in shapes), default=0)


def _schedules(func: Func, target: Target, space: Footprint) -> list[Plan]:
    if _is_by_hand(func):
        return [_plan()]  # the author's own warps, in the author's own order
    choices = thread_choices(func)
    if not target.has("cp_async"):
        kinds = (Plan("plain"), Plan("plain, one buffer", single_buffer=True))
        made = [replace(plan, threads=t) for t in choices for plan in kinds]
        return made + _sharing(func, target, choices, space)
    if not target.has("tma"):
        return [_plan(threads=t) for t in choices] + _sharing(func, target, choices, space)
    kinds = (
        _plan(specialise=True, persistent=True, staged_store=True),
        _plan(specialise=True, persistent=True),
    )
    made = [replace(plan, threads=t) for t in choices for plan in kinds]
    if has_pipelined_product(func):
        if func.attrs.get("threads") in (None, GROUP_THREADS) and not _waits_for_products(func):
            t = GROUP_THREADS if func.attrs.get("threads") is None else None
            made += [
                _plan(
                    specialise=True, persistent=True, staged_store=s, consumer_groups=2, threads=t
                )
                for s in (True, False)
            ]
        made += [
            _plan(specialise=True, staged_store=s, threads=t)
            for t in choices
            for s in (True, False)
        ]
    overlaps, waits = may_overlap(func), _waits_for_products(func)
    t = GROUP_THREADS if func.attrs.get("threads") is None else None
    few = _few_threads(func, t)
    if has_pipelined_product(func) and _may_share(func, t) and (overlaps or waits or few):
        # Persistent, staged, overlapped. Where all products are waited for, conditions and tiles of
        # the next tile are there as this one ends: up to 14 % faster, and no slower.
        ways = [(False, False, True)] if overlaps else []  # first of those as fast
        alone = [(False, True, False), (waits and not overlaps, False, False)]
        ways += alone if waits or few else [(True, False, True)]
        made += [
            _plan(specialise=True, persistent=p, residents=n, threads=t, staged_store=s, overlap=o)
            for n in _residents(func, t)
            if overlaps or waits or n <= MOST_OF_PRODUCTS
            for p, s, o in ways
        ]
        if not space.brings:
            made += [_plan(residents=n, threads=t) for n in ALONE]
    if overlaps:
        made += [
            _plan(specialise=True, persistent=p, staged_store=s, overlap=True, threads=t)
            for t in (*choices, *_more_groups(func, choices))
            for p in (True, False)
            for s in (True, False)
        ]
        if func.attrs.get("threads") in (None, ROLE_THREADS) and not refusal(func, target):
            made.append(_plan(roles=True, threads=ROLE_THREADS))
    made += [_plan(threads=t) for t in choices]
    if MOST_THREADS_FROM <= _largest_product(func) and None not in choices:
        if any(r.others for r in space.rings):
            made.append(_plan(threads=512))  # more of them hide how long their loads take
    if not space.brings:
        made.sort(key=lambda plan: plan.specialise)
    return made + _sharing(func, target, choices, space)


def _sharing(
    func: Func, target: Target, choices: tuple[int | None, ...], space: Footprint
) -> list[Plan]:
    """Plans that only the score asks for: neighbours that load for one another, blocks that share
    a sum (the sizes of a launch say how many `parts` there are)."""
    if not has_pipelined_product(func) or func.attrs.get("cluster_dims") is not None:
        return []
    if meets_others(func):
        return []
    if not target.has("cluster"):
        return [_plan(parts=PARTS[0], threads=t) for t in choices]
    helped = not space.rings or any(r.boxes for r in space.rings)
    shares = [(n, 1) for n in SPLITS] + [(1, PARTS[0])]
    made = [
        _plan(specialise=helped, split=n, parts=parts, threads=t)
        for t in choices
        for n, parts in shares
    ]
    if len(yielded(func.grid)) > 1:
        made += [
            _plan(specialise=True, persistent=True, cluster=c, threads=t, **ways)
            for t in choices
            for c in CLUSTERS
            for ways in _cluster_ways(func, t)
        ]
    return made


def _cluster_ways(func: Func, threads: int | None) -> list[dict[str, Any]]:
    """How the blocks of a cluster do the rest of their work."""
    ways: list[dict[str, Any]] = [{"staged_store": True}]
    if func.attrs.get("threads") == GROUP_THREADS and threads is None and _shares_well(func):
        # Of tiles that the author has chosen (128x64: 363 to 286 us). tilec takes larger ones.
        ways += [{"consumer_groups": 2, "staged_store": s} for s in (True, False)]
    if may_overlap(func):
        blocks = (1, *_residents(func, threads)) if _may_share(func, threads) else (1,)
        ways += [{"overlap": True, "residents": n} for n in blocks]
    return ways


def _may_share(func: Func, threads: int | None) -> bool:
    """Whether several blocks of so many threads (None: the author's) may share a multiprocessor:
    they have one group each, or less, and he has not said how many there are."""
    own = func.attrs.get("threads") if threads is None else threads
    return own is not None and own <= GROUP_THREADS and not func.attrs.get("min_blocks")


def _few_threads(func: Func, threads: int | None) -> bool:
    return threads is None and threads_of(func) < GROUP_THREADS


def _residents(func: Func, threads: int | None) -> tuple[int, ...]:
    return OF_FEW_THREADS if _few_threads(func, threads) else RESIDENTS


@functools.lru_cache(maxsize=1024)
def _with_stages(plan: Plan, stages: int) -> Plan:
    return replace(plan, stages=stages)


@functools.cache
def _plan(**fields: Any) -> Plan:
    made = Plan("", **fields)
    return replace(made, name=name_of(made))
