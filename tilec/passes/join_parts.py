"""join_parts: copies that fill a shared tile part by part are a loop over its elements.

Before: TILE; a tile of several pages of a cache, or rows that are named one by one:

    for c in T.unroll(4):
        T.copy(K[Table[b, t * 4 + c], 0:16, :], k[c * 16 : c * 16 + 16, :])

After: TILE, and such a loop in a loop with stages is, for each of its copies,

    for i, j in T.Parallel(64, D):
        k[i, j] = K[Table[b, t * 4 + i // 16], i % 16, j]

and so are the copies where they are written out (`K[page if i < 32 else other, i % 32, j]`), of
which `recognise_gathers` makes a copy that fills the tile whole, and so may run ahead of its
readers: parts never do (`plan_pipeline`). Only what that would take is joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilec.ir.affine import Affine
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.copy_engines import CP_ASYNC, CopyEngines, same_order
from tilec.ir.core import Block, Func, Op, Value, upstream
from tilec.ir.effects import effects_in, is_clonable
from tilec.ir.element_loops import shifted
from tilec.ir.ops import Assume, Copy, For, Load, Store
from tilec.ir.types import BOOL, INT32
from tilec.passes.plan_pipeline import has_stages
from tilec.passes.utils.rings import fills_tile
from tilec.target import Target

Places = Callable[[Builder, Value], list[Value]]


MOST_WRITTEN_OUT = 8
"""Parts that are told apart by comparisons."""


def join_parts(func: Func, target: Target) -> Func:
    loops = [o for o in func.body.every(For) if has_stages(o)]
    if target.kind == "cpu" or func.attrs.get("may_alias") or not loops:
        return func
    joiner, found = _Joiner(func, target), dict[Op, list[Op]]()
    for loop in loops:
        listed = loop.order or loop.stage  # for each statement
        for o in loop.body.ops:
            made = joiner.of_loop(o) if isinstance(o, For) else None
            if made and not (listed and len(made) > 1):
                found[o] = made
        if not listed:
            found |= joiner.written_out(loop.body)
    return func.rewrite(Op, found.get) if found else func


class _Joiner:
    def __init__(self, func: Func, target: Target) -> None:
        self.facts = facts_of(func)
        self.engines = CopyEngines(func, target, self.facts)

    def of_loop(self, loop: For) -> list[Op] | None:
        """The loops over elements that do what a short loop of copies does."""
        indices, index = loop.indices(self.facts.constant), loop.body.args[0]
        if indices is None or (indices.start, indices.step) != (0, 1) or index.dtype != INT32:
            return None
        if loop.kind not in ("serial", "unroll") or loop.inits or not len(indices):
            return None
        acting = [o for o in loop.body.statements if not isinstance(o, Assume)]
        acting = [o for o in acting if not is_clonable(o, self.engines.written)]
        copies = [o for o in acting if fills_tile(o)]
        if not copies or copies != acting or len({o.dest.buffer for o in copies}) < len(copies):
            return None
        made: list[Op] = []
        for o in copies:
            part = self._part(o)
            if part is None:
                return None
            dim, place = part
            extent, rest = o.dest.extents[dim], place.without(index)
            if rest.constant != 0 or place.terms.get(index) != extent:
                return None
            if extent * len(indices) != o.dest.type.shape[dim]:
                return None
            made += _loop(o, dim, self._of_index(o, loop))
        return made

    def _of_index(self, o: Copy, loop: For) -> Places:
        """Where a part comes from, by its number."""

        def places(b: Builder, part: Value) -> list[Value]:
            subst = {loop.body.args[0]: part}
            b.ops += [x.clone(subst) for x in upstream(o.source.offsets, loop.body.makers)]
            return [subst.get(v, v) for v in o.source.offsets]

        return places

    def written_out(self, body: Block) -> dict[Op, list[Op]]:
        """For copies of a loop's body that fill a tile together: the loop over elements in the
        place of the last one, nothing in those of the others."""
        groups: dict[Value, list[Copy]] = {}
        for o in body.ops:
            if fills_tile(o) and not o.dest.is_whole:
                groups.setdefault(o.dest.buffer, []).append(o)
        found: dict[Op, list[Op]] = {}
        for v, copies in groups.items():
            *others, last = copies
            first = body.ops.index(copies[0])
            between = [o for o in body.ops[first : body.ops.index(last)] if o not in copies]
            if any(e.buffer is v for o in between for _, e in effects_in(o)):
                continue
            made = self._joined(copies) if 1 < len(copies) <= MOST_WRITTEN_OUT else None
            if made is not None:
                for o in others:
                    found[o] = []
                found[last] = made
        return found

    def _joined(self, copies: Sequence[Copy]) -> list[Op] | None:
        parts = [self._part(o) for o in copies]
        at = {}
        for o, part in zip(copies, parts):
            if part is None or part[1].constant is None or part[0] != (parts[0] or part)[0]:
                return None
            at[part[1].constant] = o
        (dim, _), first = parts[0] or (0, None), copies[0]
        extent = first.dest.extents[dim]
        if [*sorted(at)] != [*range(0, int(first.dest.type.static_shape[dim]), extent)]:
            return None
        ordered = [at[n] for n in sorted(at)]
        alike = {(o.source.buffer, o.source.extents, o.dest.extents) for o in copies}
        dtypes = {tuple(v.dtype for v in o.source.offsets) for o in copies}
        if len(alike) > 1 or len(dtypes) > 1 or len(at) < len(copies):
            return None

        def places(b: Builder, part: Value) -> list[Value]:
            found = [*ordered[0].source.offsets]
            for n, o in enumerate(ordered[1:], 1):
                for d, v in enumerate(o.source.offsets):
                    if v is not found[d]:
                        found[d] = b.select(b.compare("ge", part, n), v, found[d])
            return found

        return _loop(ordered[-1], dim, places)

    def _part(self, o: Copy) -> tuple[int, Affine] | None:
        """The dimension along which a copy fills a part of its tile, and where; None where it does
        not, or where it is nothing for cp.async."""
        t, tile = o.source.type, o.dest.type
        width = self.engines.vector(o) * t.dtype.bits // 8
        if t.dtype != tile.dtype or t.dtype == BOOL or width not in CP_ASYNC:
            return None
        if o.source.buffer in self.engines.written or self.engines.safe.get(o.source.buffer):
            return None
        if not same_order(o) or o.coalesced_width or o.eviction_policy:
            return None
        parts = [d for d, (e, s) in enumerate(zip(o.dest.extents, tile.shape)) if e != s]
        places = [self.facts.form(v) for v in o.dest.offsets]
        if len(parts) != 1 or any(p.constant != 0 for d, p in enumerate(places) if d != parts[0]):
            return None
        return parts[0], places[parts[0]]


def _loop(o: Copy, dim: int, places: Places) -> list[Op]:
    """The loop over elements for all parts that are copied as `o` is; `places`: where each comes
    from."""
    b, extent = Builder(o.loc), o.dest.extents[dim]
    with b.each_element(o.dest.type.static_shape) as (inner, args):
        part, own = args[dim], [*args]
        if extent > 1:
            part = inner.binary("floordiv", args[dim], extent)
            own[dim] = inner.binary("mod", args[dim], extent)
        offsets = places(inner, part)
        left = iter([v for v, e in zip(own, o.dest.extents) if e != 1])
        at = tuple(
            v if e == 1 else shifted(inner, v, next(left))
            for v, e in zip(offsets, o.source.extents)
        )
        inner.emit(Store, o.dest.buffer, args, inner.value(Load, o.source.buffer, at))
    return b.ops
