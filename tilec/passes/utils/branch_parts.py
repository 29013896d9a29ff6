"""A branch that some threads take, in parts: all can meet between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilec.ir import ops
from tilec.ir.analysis import Facts
from tilec.ir.builder import Builder
from tilec.ir.core import Block, Op, Substitution, Value, rewritten, upstream, walk
from tilec.ir.loc import Loc
from tilec.ir.types import ScalarType
from tilec.passes.utils.building import or_zeros


def in_parts(o: ops.If, at: Sequence[int], meeting: Callable[[Loc], Op]) -> list[Op]:
    """`o`, whose other side does nothing, cut in front of the ops at these places: its parts, and
    between two of them where all threads meet. What a part loads for later ones is a result of it,
    which they compute with themselves. `o` itself where that is no number."""
    done: list[Op] = []
    subst: Substitution = {}
    left = o.then.ops
    pieces = [left[a:b] for a, b in zip([0, *at], [*at, len(left)])]
    cheap: dict[Value, Op] = {}  # of earlier pieces: computed again rather than handed on
    for n, piece in enumerate(pieces[:-1]):
        cheap |= {r: x for x in piece if x.pure and not x.region_fields for r in x.results}
        behind = (y for p in pieces[n + 1 :] for x in p for y in (x, *_inside(x)))
        later = {v for y in behind for v in y.operands}
        again = [*upstream([v for v in cheap if v in later], cheap)]
        needed = later.union(*(x.operands for x in again))
        handed = [r for x in piece for r in x.results if r in needed and r not in cheap]
        if not all(isinstance(v.type, ScalarType) for v in handed):
            return [o]
        b, then = Builder(o.loc), Builder(o.loc, rewritten(piece, lambda _: None, subst))
        results = or_zeros(b, o.cond, then, handed)
        done += [*b.ops, meeting(pieces[n + 1][0].loc or o.loc)]
        subst |= dict(zip(handed, results))
        pieces[n + 1] = tuple(x.clone(subst) for x in again) + pieces[n + 1]
    last = rewritten(pieces[-1], lambda _: None, subst)
    return [*done, replace(o, then=Block((), last))]


def _inside(o: Op) -> list[Op]:
    return [x for region in o.regions for x in walk(region)]


def always_at(block: Block, facts: Facts) -> set[Value]:
    """The buffers of which all that stands in `block` reads and writes one and the same element."""
    places: dict[Value, set[object]] = {}
    for x in walk(block):
        if isinstance(x, ops.ElementAccess):
            forms = map(facts.form, x.indices)
            at = tuple((f.const, frozenset(f.terms.items())) for f in forms)
            places.setdefault(x.buffer, set()).add(at)
    return {v for v, found in places.items() if len(found) == 1}
