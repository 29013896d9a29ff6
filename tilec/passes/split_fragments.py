"""split_fragments: a fragment that is indexed by numbers along a dimension becomes several.

Before: TILE. After: TILE, and fragments that registers could not be indexed as, but for short loops
along some of their dimensions, are a fragment for each index of these; those loops are written out:

    x = fragment (4, N)                     x0, x1, x2, x3 = fragments (N)
    copy s, x                        ->     copy s[0], x0; ...; copy s[3], x3
    for k in 0..4:
      parallel (N) body(i) {                parallel (N) body(i) { y[i] += a[0] * x0[i] }
        y[i] += a[k] * x[k, i] }            ...

A loop over elements that runs along such a dimension is written out along it, too, and what else
it indexes there is split likewise. Where that cannot be done, all stays for `demote_fragments`.
Source of the method: scalar replacement of aggregates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Func, Op, Substitution, Value, altered, fresh, within
from tilec.ir.element_loops import ELEMENTWISE, boxes, loop_of
from tilec.ir.ops import Alloc, ElementAccess, For, Load, Parallel, Store, Yield
from tilec.ir.uniformity import uniformity_of
from tilec.passes.demote_fragments import demoted
from tilec.passes.mem2reg import mem2reg
from tilec.passes.utils.accesses import is_by_each_thread
from tilec.passes.utils.building import MOST_WRITTEN_OUT, iteration, may_be_written_out
from tilec.target import Target

MOST_COPIES = 32
"""Times that a statement is written out."""


def split_fragments(func: Func, target: Target) -> Func:
    wanted = {*demoted(func)} if target.kind != "cpu" else set()
    while wanted:
        looped = _as_loops(func, wanted)
        split = _Split(looped)
        for v in wanted:
            split.add(v)
        if split.dims.keys() == wanted:
            written = _written_out(looped, split.along)
            return func if written is None else mem2reg(_renamed(written, split.dims), target)
        # First all that must be with them, then without those that stay.
        wanted = {*split.dims} if split.dims.keys() <= wanted else wanted | split.dims.keys()
    return func


def _as_loops(func: Func, fragments: Collection[Value]) -> Func:
    """Copies and fills of the fragments as loops over elements."""

    def visit(o: Op) -> Op | None:
        if type(o) not in ELEMENTWISE or not any(r.buffer in fragments for r in boxes(o)):
            return None
        return loop_of(o, width=getattr(o, "coalesced_width", 0))

    return func.rewrite(Op, visit)


class _Split:
    """Which fragments are split, along which of their `dims`, and the indices of the loops that are
    written out for that (`along`)."""

    def __init__(self, func: Func) -> None:
        self.dims: dict[Value, frozenset[int]] = {}
        self.along: set[Value] = set()
        self.facts, self.uniformity = facts_of(func), uniformity_of(func)
        self.uses: dict[Value, list[ElementAccess]] = defaultdict(list)
        self.indexed: dict[Value, set[Value]] = defaultdict(set)  # fragments by an index
        self.others: set[Value] = set()  # that other ops use
        self.short: set[Value] = set()  # indices of loops that may be written out
        self.own: set[Value] = set()  # those of loops over elements
        self.shapes: dict[Value, tuple[int, ...]] = {}
        self.around: dict[Value, set[Value]] = {}  # indices of the loops that it stands in
        for o, outer in within(func.body):
            match o:
                case Alloc() if o.type.space == "fragment" and o.type.layout is None:
                    self.shapes[o.result] = o.type.static_shape
                    self.around[o.result] = {a for x in outer for r in x.regions for a in r.args}
                case ElementAccess():
                    self.uses[o.buffer].append(o)
                    for index in o.indices:
                        for v in self.facts.form(index).terms:
                            self.indexed[v].add(o.buffer)
                case For() if may_be_written_out(o, self.facts.constant):
                    self.short.add(o.body.args[0])
                case Parallel(layout=None, wanted=None) if not is_by_each_thread(
                    o, self.uniformity
                ):
                    self.own.update(o.body.args)
                    pairs = zip(o.body.args, o.extents)
                    self.short.update(a for a, e in pairs if e <= MOST_WRITTEN_OUT)
            if not isinstance(o, Alloc | ElementAccess):
                self.others.update(o.operands)

    def add(self, fragment: Value) -> None:
        """Split `fragment` and what has to be with it, if all of that can be."""
        dims, along = dict(self.dims), {*self.along}
        left = [fragment]
        while left:
            v = left.pop()
            found = self._dims(v, along)
            if found is None:
                return
            if found == dims.get(v, frozenset()):
                continue
            dims[v] = found
            forms = (self.facts.form(o.indices[d]) for o in self.uses[v] for d in found)
            more = {x for form in forms for x in form.terms} - along
            along |= more
            for x in more:
                left += (w for w in self.indexed[x] if w.space == "fragment")
        if all(along.isdisjoint(self.around[v]) for v in dims):
            self.dims, self.along = dims, along

    def _dims(self, v: Value, along: set[Value]) -> frozenset[int] | None:
        """The dimensions along which it is indexed otherwise than by a loop over its elements, or
        by one that is written out; None if it cannot be split there."""
        if v in self.others or v not in self.shapes:
            return None
        found: set[int] = set()
        for d, extent in enumerate(self.shapes[v]):
            forms = [self.facts.form(o.indices[d]) for o in self.uses[v]]
            plain = (
                len(f.terms) == 1 and not f.const and self.own.issuperset(f.terms) for f in forms
            )
            if extent == 1 or (all(plain) and all(along.isdisjoint(f.terms) for f in forms)):
                continue
            if extent > MOST_WRITTEN_OUT or not all(self.short.issuperset(f.terms) for f in forms):
                return None
            found.add(d)
        return frozenset(found)


def _written_out(func: Func, along: Collection[Value]) -> Func | None:
    """`func` without the loops whose indices are `along`; None if that is too much code."""
    facts = facts_of(func)
    if _copies(func.body, along, facts.constant) > MOST_COPIES:
        return None
    subst: Substitution = {}

    def visit(o: Op) -> list[Op] | None:
        b = Builder(o.loc)
        if isinstance(o, For) and o.body.args[0] in along:
            indices, values = o.indices(facts.constant), o.inits
            assert indices is not None
            for n in indices:
                ops, values = iteration(o, b.const(n, o.lo.dtype), values)
                b.ops += ops
            subst.update(zip(o.results, values))
            return b.ops
        if isinstance(o, Parallel) and any(a in along for a in o.body.args):
            for ops in _bodies(o, along, b):
                b.ops += ops
            return b.ops
        return None

    return func.rewrite(Op, visit, subst)


def _bodies(o: Parallel, along: Collection[Value], b: Builder) -> Iterator[list[Op]]:
    """The iterations of a loop over elements along some of its indices."""
    extents = dict(zip(o.body.args, o.extents))
    left = {a: e for a, e in extents.items() if a not in along}
    for at in product(*(range(e) for a, e in extents.items() if a in along)):
        numbers = iter(at)
        subst: Substitution = {a: b.const(next(numbers)) for a in extents if a not in left}
        args = fresh(left, subst) or (Value(o.body.args[0].type, "i"),)
        ops = tuple(x.clone(subst) for x in o.body.ops)
        if left or not all(map(_is_for_all, ops)):
            yield [replace(o, extents=(*left.values(),) or (1,), body=Block(args, ops))]
        else:
            yield [x for x in ops if not isinstance(x, Yield)]


def _is_for_all(o: Op) -> bool:
    """Whether all threads may do what an iteration does, each for itself."""
    if isinstance(o, Store):
        return o.dest.space == "fragment"
    return o.pure or isinstance(o, Load | Yield)


def _copies(block: Block, along: Collection[Value], known: Callable[[Value], Any]) -> int:
    """How often the statement is written out that is so most often."""

    def times(o: Op) -> int:
        if isinstance(o, For) and o.body.args[0] in along:
            return len(o.indices(known) or ())
        sizes = zip(o.body.args, o.extents) if isinstance(o, Parallel) else ()
        return prod(e for a, e in sizes if a in along)

    return max((prod(map(times, around)) for _, around in within(block)), default=1)


def _renamed(func: Func, dims: Mapping[Value, frozenset[int]]) -> Func:
    """`func` where each index along `dims` has a fragment of its own."""
    facts = facts_of(func)
    pieces: dict[tuple[Value, tuple[int, ...]], Value] = {}

    def visit(o: Op) -> list[Op] | None:
        b = Builder(o.loc)
        if isinstance(o, Alloc) and o.result in dims:
            v, shape = o.result, o.type.static_shape
            rest = tuple(e for d, e in enumerate(shape) if d not in dims[v]) or (1,)
            for key in product(*(range(shape[d]) for d in sorted(dims[v]))):
                name = "_".join([v.name, *map(str, key)])
                pieces[v, key] = b.value(Alloc, replace(o.type, shape=rest), name=name)
            return b.ops
        if isinstance(o, ElementAccess) and o.buffer in dims:
            v, shape = o.buffer, o.buffer.buffer.static_shape
            at = (facts.form(o.indices[d]).const for d in sorted(dims[v]))
            # An index beyond the extent stands where nobody comes.
            key = tuple(min(max(n, 0), shape[d] - 1) for n, d in zip(at, sorted(dims[v])))
            left = tuple(x for d, x in enumerate(o.indices) if d not in dims[v])
            left = left or (b.const(0),)
            return [*b.ops, altered(o.with_operands({v: pieces[v, key]}), indices=left)]
        return None

    return func.rewrite(Op, visit)
