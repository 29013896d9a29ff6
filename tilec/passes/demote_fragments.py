"""demote_fragments: what registers cannot hold lives in shared memory.

Before: fragments are indexed in any way. After: those that are indexed in a way registers cannot be
(outside of a parallel loop, or not by the loop's own indices) are in shared memory, where any
thread reaches any element; products are chosen for what their operands are then. An accumulator
stays in registers: loops over a part of it run over all of it, of which each thread does what it
holds (`over_all`), and `convert_operands` gives other such ops a copy. What a reduction reads or
leaves goes through registers of its own (`stage_reductions`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilec.ir.affine import Affine
from tilec.ir.analysis import facts_of
from tilec.ir.core import Builder, Func, Op, Value, rewrite, walk
from tilec.ir.element_loops import ELEMENTWISE, boxes, is_part_of_fragment
from tilec.ir.ops import Gemm, Load, Parallel, Reduce, Store
from tilec.passes.stage_reductions import stage_reductions
from tilec.passes.utils.accesses import fragment_accesses
from tilec.passes.utils.building import with_types
from tilec.passes.utils.held_parts import over_all
from tilec.target import Target


def demote_fragments(func: Func, target: Target) -> Func:
    """See the module's opening."""
    func = over_all(_with_runs(func), _accumulators(func))
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


def _with_runs(func: Func) -> Func:
    """`func` where an index of a fragment that is the row-major number of several of a loop's, as
    behind a view, is spelled so in the loop (`Access.runs`)."""
    facts = facts_of(func)

    def visit(p: Op) -> Op | None:
        if not isinstance(p, Parallel):
            return None
        extents = dict(zip(p.body.args, p.extents))
        own = {a.op for a in fragment_accesses(p)}

        def spelled(o: Op) -> None | list[Op]:
            if o in own or not isinstance(o, Load | Store) or o.buffer.buffer.space != "fragment":
                return None
            b = Builder(o.loc)
            indices = tuple(_number(b, facts.form(v), extents) or v for v in o.indices)
            return [*b.ops, replace(o, indices=indices)] if b.ops else None

        body = rewrite(p.body, spelled)
        return None if body is p.body else replace(p, body=body)

    return func.with_body(rewrite(func.body, visit))


def _number(b: Builder, form: Affine, extents: Mapping[Value, int]) -> Value | None:
    """`form` spelled as a row-major number of indices with these `extents`; None if it is none."""
    args = sorted(form.terms, key=lambda v: -form.terms[v])
    if form.const or len(args) < 2 or not all(v in extents for v in args):
        return None
    size = 1
    for v in reversed(args):
        if form.terms[v] != size:
            return None
        size *= extents[v]
    total = args[0]
    for v in args[1:]:
        wide = b.binary("mul", total, extents[v])
        total = b.binary("add", wide, v)
    return total


def _accumulators(func: Func) -> set[Value]:
    return {o.c for o in walk(func.body) if isinstance(o, Gemm)}
