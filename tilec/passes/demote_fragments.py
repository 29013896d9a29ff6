"""demote_fragments: what registers cannot hold lives in shared memory.

Before: fragments are indexed in any way. After: those that are indexed in a way registers cannot be
(outside of a parallel loop, or not by the loop's own indices), and those of which one of several
iterations writes an element that they share, are in shared memory, where any thread reaches any
element; products are chosen for what their operands are then. An accumulator stays in registers:
loops over a part of it run over all of it, of which each thread does what it holds (`over_all`),
and `convert_operands` gives other such ops a copy. What a reduction reads or leaves goes through
registers of its own (`stage_reductions`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilec.ir.affine import Affine
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Func, Op, Substitution, Value, upstream, walk
from tilec.ir.element_loops import ELEMENTWISE, boxes, is_part_of_fragment, loop_of
from tilec.ir.ops import For, Gemm, If, Load, Parallel, Reduce, Store, Yield
from tilec.ir.types import INT32, ScalarType
from tilec.ir.uniformity import uniformity_of
from tilec.passes.stage_reductions import stage_reductions
from tilec.passes.utils.accesses import (
    Access,
    fragment_accesses,
    is_by_each_thread,
    parallel_accesses,
)
from tilec.passes.utils.building import may_be_written_out, with_types
from tilec.passes.utils.regions import LoopRegions
from tilec.target import Target


def demote_fragments(func: Func, target: Target) -> Func:
    func = over_all(_with_runs(func), _accumulators(func))
    bad = demoted(func)
    shared = {v: replace(v.buffer, space="shared") for v in bad}
    func = func.with_body(with_types(func.body, shared))
    return stage_reductions(func, target) if bad else func


def demoted(func: Func) -> dict[Value, Op]:
    """The fragments that registers cannot hold, each with the first op that says so."""
    bad: dict[Value, Op] = {}
    good = {a.op for p in func.body.every(Parallel) for a in fragment_accesses(p)}
    for o in walk(func.body):
        if o in good or o.pure or o.region_fields or isinstance(o, Gemm | Reduce):
            continue
        if isinstance(o, Load) and o.source.space == "fragment" and o.source.buffer.size == 1:
            continue  # all threads hold it
        for r in boxes(o):
            part = type(o) not in ELEMENTWISE or is_part_of_fragment(r)
            if part and r.type.space == "fragment":
                bad.setdefault(r.buffer, o)
    for p in func.body.every(Parallel):
        for o in _by_some(p, func):
            bad.setdefault(o.dest, o)
    kept = _accumulators(func)
    return {v: o for v, o in bad.items() if v not in kept}


def _by_some(p: Parallel, func: Func) -> list[Store]:
    """What one of several iterations that share an element leaves in it, as `if j == n: x[i] = …`:
    threads hold the element for each of them, of which one alone would have it."""
    inside = {r for o in walk(p.body) for r in o.results}
    found: list[Store] = []
    for o in p.body.every(If):
        for x in (*o.then.every(Store), *o.orelse.every(Store)):
            if x.dest.space != "fragment" or x.dest in inside:
                continue
            origins = facts_of(func).origins
            shared = {a for a, e in zip(p.body.args, p.extents) if e > 1}
            if not (shared - origins.of_all(x.indices)).isdisjoint(origins.of(o.cond)):
                found.append(x)
    return found


def _with_runs(func: Func) -> Func:
    """`func` where an index of a fragment that is the row-major number of several of a loop's, as
    behind a view, is spelled so in the loop (`Access.runs`)."""
    facts = facts_of(func)

    def visit(p: Parallel) -> Op | None:
        extents = dict(zip(p.body.args, p.extents))
        own = {a.op for a in fragment_accesses(p)}

        def spelled(o: Op) -> None | list[Op]:
            if o in own or not isinstance(o, Load | Store) or o.buffer.space != "fragment":
                return None
            b = Builder(o.loc)
            indices = tuple(_number(b, facts.form(v), extents) or v for v in o.indices)
            return [*b.ops, replace(o, indices=indices)] if b.ops else None

        body = p.body.rewrite(Op, spelled)
        return None if body is p.body else replace(p, body=body)

    return func.rewrite(Parallel, visit)


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
    return {o.c for o in func.body.every(Gemm)}


# --- parts of what stays in registers -------------------------------------------------------------


def over_all(func: Func, held: Collection[Value]) -> Func:
    """`func` (TILE) where loops over parts of the fragments `held` run over all of these, if they
    write no other fragment, and read others by indices of the part alone: each thread does what it
    holds of the part, and nothing passes through shared memory.

        parallel (16, N) body(i, j) { S[i, j] = acc[r + i, j] * f[r + i] }     ->
        parallel (64, N) body(x, j) { if r <= x and x < r + 16 { S[x - r, j] = acc[x, j] * f[x] } }

    `r` is anything that all threads know; without a loop along it, as in `acc[r, j]`, it is one
    row. A short loop along it is written out (`unroll`), so that a thread knows what it holds."""

    def as_loop(o: Op) -> Op | None:
        if type(o) not in ELEMENTWISE:
            return None
        found = [r for r in boxes(o) if r.type.space == "fragment"]
        if len(found) != 1 or found[0].buffer not in held or not is_part_of_fragment(found[0]):
            return None
        return loop_of(o, width=getattr(o, "coalesced_width", 0))

    func = func.rewrite(Op, as_loop)
    uniformity, facts = uniformity_of(func), facts_of(func)
    along: set[Value] = set()

    def visit(o: Parallel) -> None | list[Op]:
        if o.layout is not None or o.wanted is not None:
            return None
        found = [a for a in parallel_accesses(o) if a.buffer.space == "fragment"]
        plain = all(isinstance(a.op, Load | Store if a.buffer in held else Load) for a in found)
        found.sort(key=lambda a: a.buffer not in held)
        own = {a.op for a in fragment_accesses(o)}
        partly = any(a.buffer in held for a in found) and not own.issuperset(a.op for a in found)
        if not plain or not partly or is_by_each_thread(o, uniformity):
            return None
        made = _Part(o, found, facts).over_all()
        if made is not None:
            along.update(x for a in found for v in a.indices for x in facts.form(v).terms)
        return made

    def unrolled(o: For) -> Op | None:
        short = o.body.args[0] in along and may_be_written_out(o, facts.constant)
        return replace(o, kind="unroll") if short else None

    func = func.rewrite(Parallel, visit)
    return func.rewrite(For, unrolled) if along else func


class _Part(LoopRegions):
    """A loop whose accesses to fragments are `found`: to a part, and to others by its indices."""

    def __init__(self, o: Parallel, found: Sequence[Access], facts: Facts) -> None:
        super().__init__(o, facts)
        self.made = o.body.defs
        self.found = found

    def over_all(self) -> list[Op] | None:
        first = self.found[0]
        shape = first.buffer.buffer.static_shape
        forms = [self.facts.form(v) for v in first.indices]
        inside = {a for x in walk(self.o.body) for r in x.regions for a in r.args}
        dims: dict[Value, list[int]] = {}
        for a in self.found:
            by = [self.facts.form(v) for v in a.indices]
            if any(form not in forms for form in by):
                return None
            own = [*range(len(forms))] if by == forms else [forms.index(form) for form in by]
            alike = tuple(shape[d] for d in own) == a.buffer.buffer.static_shape
            if not alike or dims.setdefault(a.buffer, own) != own:
                return None
            behind = upstream(a.indices, self.made)
            if not inside.isdisjoint([*a.indices, *(v for x in behind for v in x.operands)]):
                return None  # by the index of a loop inside
        found = self.walked(first.buffer, first.indices)
        if found is None or {*found.order} != {a for a, e in self.extents.items() if e > 1}:
            return None  # several iterations share an element
        box = found.region
        b = Builder(self.o.loc)
        subst: Substitution = {}
        args: list[Value] = []
        places: list[Value] = []
        conds: list[Value] = []
        left = iter(found.order)
        for form, offset, extent, size in zip(forms, box.offsets, box.extents, shape):
            if size == 1:
                places.append(offset)
                continue
            x = Value(ScalarType(INT32), f"x{len(args)}")
            args.append(x)
            places.append(x)
            inner = b.binary("sub", b.cast(x, offset.dtype), offset)
            known = None
            if extent > 1:
                arg = next(left)
                subst[arg] = b.cast(inner, arg.dtype)
                known = form.without(arg).constant
            if known != 0:
                conds.append(b.compare("ge", inner, 0))
            if known is None or known + extent < size:
                conds.append(b.compare("lt", inner, extent))
        zero = b.const(0)
        subst |= {a: zero for a in self.o.body.args if a not in subst}

        def visit(o: Op) -> Op | None:
            if isinstance(o, Load | Store) and o.buffer in dims:
                return replace(o, indices=tuple(places[d] for d in dims[o.buffer]))
            return None

        body = self.o.body.rewrite(Op, visit, subst)
        b.branch(b.conjunction(conds), body.statements)
        b.emit(Yield)
        extents, known = tuple(e for e in shape if e != 1), self.o.inside and not conds
        made = replace(self.o, extents=extents, body=b.block(args), inside=known)
        return [*self.before.ops, made]
