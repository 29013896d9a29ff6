"""What no plan of a kernel is predicted to take less than: known from its work alone, before plans
are listed for it, so that of tiles that cannot win none are."""

from __future__ import annotations

import functools
import itertools
import math

from tilec.ir.instr import instructions_of, sparse_instructions_of
from tilec.ir.schedule import Plan
from tilec.passes.arrange import QUAD
from tilec.passes.select_gemm import Dtypes, dtypes_of
from tilec.target import Target
from tilec.tune import cost
from tilec.tune.plans import CLUSTERS, GROUP_THREADS, MORE_GROUPS, OF_FEW_THREADS, PARTS, SPLITS
from tilec.tune.work import Numbers

_ALONE = Plan("")
_SPLIT = tuple(Plan("", split=n) for n in SPLITS)
_PARTED = {n: Plan("", parts=n) for n in PARTS}


def least(n: Numbers, threads: int, target: Target) -> float:
    """Seconds that no plan of tilec's own is predicted to take less than, for a kernel of so many
    `threads`: its products by the fastest rows for their dtypes, in waves of blocks that share sums
    in whatever way takes the least; its bytes from the memory bus; those from the L2 cache and to
    it, loaded once for two blocks; nothing else, and nothing twice."""
    s, most = target.speeds, target.multiprocessors
    flops, loaded = cost.flops_of(n), min(n.loaded_in(c)[0] for c in CLUSTERS)
    ops = [(p.op, p.flops * times, times) for p, times in n.products]
    rows = [_fastest(tuple(dtypes_of(o)), o.metadata is not None, target) for o, _, _ in ops]
    per_kiloflop = 1000 * loaded / flops if flops else 0.0
    power = 1 - cost.ENERGY * (min(per_kiloflop, 60.0) - cost.USUAL_BYTES)
    compute = sum(flops / rate for (rate, _), (_, flops, _) in zip(rows, ops))
    compute = compute / (cost.PING_PONG * cost.MAINLOOP * power) + cost.WAIT * n.iterations
    steps = sum(
        times * min((fixed + step * o.shape[2] for fixed, step in least), default=0.0)
        for (_, least), (o, _, times) in zip(rows, ops)
    )
    alone = min((flops for _, flops, _ in ops), default=0.0) / (2 * s.vector)
    compute = max(compute, min(steps, alone))  # one that threads do has no steps
    if n.mixed.waited and compute:
        own = max(n.mixed.issued / s.vector, n.mixed.special / s.special)
        few = threads < GROUP_THREADS
        streams = max(OF_FEW_THREADS if few else (*MORE_GROUPS, threads // GROUP_THREADS))
        compute = cost.in_turns(compute, own, QUAD * n.mixed.folds, streams)
    begin = s.latency + cost.SETUP

    def seconds(plan: Plan) -> float:
        """Of the plan without what else blocks do that share a sum in this way."""
        most, shared = cost.multiprocessors_for(plan, target), plan.split * plan.parts
        waves = n.blocks * shared / most
        clock = min(1 + cost.IDLE * (1 - waves), cost.HIGHEST) if waves <= 1 else 1.0
        turns = (waves if n.growing else math.ceil(waves)) / (shared * clock)
        turns *= cost.TOGETHER if plan.split > 1 else 1.0
        stages = cost.STAGE_START * n.iterations * n.blocks * plan.split
        memory = begin + (n.dram + stages) / s.dram + cost.STORE_LATENCY
        longer = cost.PARTED if plan.parts > 1 else 1.0
        total = begin + turns * compute / s.clock
        return cost.ends_of(n, plan, s) + longer * math.sqrt(math.hypot(total**2, memory**2))

    parts = itertools.takewhile(min(2 * most / n.blocks, n.iterations).__ge__, PARTS[1:])
    split = _SPLIT if target.has("cluster") else ()
    ways = [_ALONE, *split, *(_PARTED[p] for p in (PARTS[0], *parts))]
    cached = begin + n.blocks * (loaded / s.l2 + n.written / s.store) / (most * s.clock)
    return s.launch + max(min(map(seconds, ways)), cached)


@functools.lru_cache(maxsize=256)
def _fastest(
    dtypes: tuple[Dtypes, ...], sparse: bool, target: Target
) -> tuple[float, set[tuple[float, float]]]:
    """Of the rows for some dtypes the highest rate; what their steps take, and each of K."""
    rows_of = sparse_instructions_of if sparse else instructions_of
    rows = [r for d in dtypes for r in rows_of(*d) if r.feature and target.has(r.feature)]
    rates = (target.speeds.product_rate(row.feature, row.a_dtype.bits) for row in rows)
    steps = ((*cost.iteration(row), row.k) for row in rows)
    return max((2 * target.speeds.vector, *rates)), {(fixed, x / k) for fixed, x, k in steps}
