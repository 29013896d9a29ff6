"""demote_fragments: what registers cannot hold lives in shared memory.

Before: fragments are indexed in any way. After: those that are indexed in a way registers cannot be
(outside of a parallel loop, or not by the loop's own indices) are in shared memory, where any
thread reaches any element; products are chosen for what their operands are then. An accumulator
stays in registers: loops over a part of it run over all of it, of which each thread does what it
holds (`over_all`), and `convert_operands` gives other such ops a copy. What a reduction reads or
leaves goes through registers of its own (`stage_reductions`)."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Func, Op, Value, walk
from tilec.ir.element_loops import ELEMENTWISE, boxes, is_part_of_fragment
from tilec.ir.ops import Gemm, Parallel, Reduce
from tilec.passes.stage_reductions import stage_reductions
from tilec.passes.utils.accesses import fragment_accesses
from tilec.passes.utils.building import with_types
from tilec.passes.utils.held_parts import over_all
from tilec.target import Target


def demote_fragments(func: Func, target: Target) -> Func:
    """See the module's opening."""
    func = over_all(func, _accumulators(func))
    bad = demoted(func)
    shared = {v: replace(v.buffer, space="shared") for v in bad}
    func = func.with_body(with_types(func.body, shared))
    return stage_reductions(func, target) if bad else func


def demoted(func: Func) -> dict[Value, Op]:
    """The fragments that registers cannot hold, each with the first op that says so."""
    bad: dict[Value, Op] = {}
    good = {a.op for p in walk(func.body) if isinstance(p, Parallel) for a in fragment_accesses(p)}
    for o in walk(func.body):
        if o in good or o.pure or o.region_fields or isinstance(o, Gemm | Reduce):
            continue
        for r in boxes(o):
            part = type(o) not in ELEMENTWISE or is_part_of_fragment(r)
            if part and r.buffer.buffer.space == "fragment":
                bad.setdefault(r.buffer, o)
    kept = _accumulators(func)
    return {v: o for v, o in bad.items() if v not in kept}


def _accumulators(func: Func) -> set[Value]:
    return {o.c for o in walk(func.body) if isinstance(o, Gemm)}
