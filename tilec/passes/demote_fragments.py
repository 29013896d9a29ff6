"""demote_fragments: what registers cannot hold lives in shared memory.

Before: fragments are indexed in any way. After: those that are indexed in a way registers cannot be
(outside of a parallel loop, or not by the loop's own indices) are in shared memory, where any
thread reaches any element; products are chosen for what their operands are then. An accumulator
stays in registers; `convert_operands` gives such ops a copy."""

from __future__ import annotations

from dataclasses import replace

from tilec.ir.core import Func, Op, Substitution, Value, rewrite, walk
from tilec.ir.element_loops import ELEMENTWISE, boxes, is_part_of_fragment
from tilec.ir.ops import Alloc, Gemm, Parallel
from tilec.passes.utils.accesses import fragment_accesses
from tilec.target import Target


def demote_fragments(func: Func, target: Target) -> Func:
    """See the module's opening."""
    bad: set[Value] = set()
    good = {a.op for p in walk(func.body) if isinstance(p, Parallel) for a in fragment_accesses(p)}
    for o in walk(func.body):
        if o in good or o.pure or o.region_fields or isinstance(o, Gemm):
            continue
        for r in boxes(o):
            part = type(o) not in ELEMENTWISE or is_part_of_fragment(r)
            if part and r.buffer.buffer.space == "fragment":
                bad.add(r.buffer)
    bad -= {o.c for o in walk(func.body) if isinstance(o, Gemm)}
    if not bad:
        return func
    subst: Substitution = {}

    def visit(o: Op) -> None | Op:
        if isinstance(o, Alloc) and o.result in bad:
            typed = replace(o.type, space="shared")
            fresh = Value(typed, o.result.name)
            subst[o.result] = fresh
            return replace(o, type=typed, results=(fresh,))
        return None

    return func.with_body(rewrite(func.body, visit, subst))
