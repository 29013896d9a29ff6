"""join_parts: a short loop of copies that fill a shared tile part by part is a loop over elements.

Before: TILE; a tile of several pages of a cache, or rows that are named one by one:

    for c in T.unroll(4):
        T.copy(K[Table[b, t * 4 + c], 0:16, :], k[c * 16 : c * 16 + 16, :])

After: TILE, and such a loop in a loop with stages is, for each of its copies,

    for i, j in T.Parallel(64, D):
        k[i, j] = K[Table[b, t * 4 + i // 16], i % 16, j]

of which `recognise_gathers` makes a copy that fills the tile whole, and so may run ahead of its
readers: parts never do (`plan_pipeline`). Only what that would take is joined."""

from __future__ import annotations

from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.copy_engines import CP_ASYNC, CopyEngines, same_order
from tilec.ir.core import Func, Op, Value, clone, upstream
from tilec.ir.effects import is_clonable
from tilec.ir.element_loops import shifted
from tilec.ir.ops import Assume, Copy, For, Load, Parallel, Store
from tilec.ir.types import BOOL, INT32, ScalarType
from tilec.passes.plan_pipeline import has_stages
from tilec.passes.utils.rings import fills_tile
from tilec.target import Target


def join_parts(func: Func, target: Target) -> Func:
    loops = [o for o in func.body.every(For) if has_stages(o)]
    inside = [(o, x) for o in loops for x in o.body.ops if _is_plain(x)]
    if target.kind == "cpu" or func.attrs.get("may_alias") or not inside:
        return func
    joiner = _Joiner(func, target)
    found: dict[Op, list[Op]] = {}
    for around, o in inside:
        made = joiner.joined(o)
        listed = around.order or around.stage  # for each statement
        if made and not (listed and len(made) > 1):
            found[o] = made
    return func.rewrite(For, lambda o: found.get(o)) if found else func


def _is_plain(o: Op) -> bool:
    return isinstance(o, For) and o.kind in ("serial", "unroll") and not o.inits


class _Joiner:
    def __init__(self, func: Func, target: Target) -> None:
        self.facts = facts_of(func)
        self.engines = CopyEngines(func, target, self.facts)

    def joined(self, loop: Op) -> list[Op] | None:
        """The loops over elements that do what `loop` does."""
        assert isinstance(loop, For)
        indices, index = loop.indices(self.facts.constant), loop.body.args[0]
        if indices is None or (indices.start, indices.step) != (0, 1) or index.dtype != INT32:
            return None
        acting = [o for o in loop.body.statements if not isinstance(o, Assume)]
        acting = [o for o in acting if not is_clonable(o, self.engines.written)]
        copies = [o for o in acting if fills_tile(o)]
        filled = {o.dest.buffer for o in copies}
        if not len(indices) or not copies or copies != acting or len(filled) < len(copies):
            return None
        dims = [d for o in copies if (d := self._dim(o, index, len(indices))) is not None]
        if len(dims) < len(copies):
            return None
        return [_loop(o, d, loop) for o, d in zip(copies, dims)]

    def _dim(self, o: Copy, index: Value, count: int) -> int | None:
        """The dimension along which `count` parts, one for each `index`, make up the tile that `o`
        fills; None where they do not, or where it is nothing for cp.async."""
        t, tile = o.source.type, o.dest.type
        width = self.engines.vector(o) * t.dtype.bits // 8
        if t.dtype != tile.dtype or t.dtype == BOOL or width not in CP_ASYNC:
            return None
        if o.source.buffer in self.engines.written or not self.engines.safe.zero(o.source.buffer):
            return None
        if not same_order(o) or o.coalesced_width or o.eviction_policy:
            return None
        parts = [d for d, (e, s) in enumerate(zip(o.dest.extents, tile.shape)) if e != s]
        places = [self.facts.form(v) for v in o.dest.offsets]
        if len(parts) != 1 or any(p.constant != 0 for d, p in enumerate(places) if d != parts[0]):
            return None
        (d,) = parts
        extent, place = o.dest.extents[d], places[d]
        whole = extent * count == tile.shape[d] and place.without(index).constant == 0
        return d if whole and place.terms.get(index) == extent else None


def _loop(o: Copy, dim: int, loop: For) -> Parallel:
    """The loop over elements for what all iterations of `loop` copy by `o`."""
    tile = o.dest.type.static_shape
    args = tuple(Value(ScalarType(INT32), f"i{d}") for d in range(len(tile)))
    b, extent, own = Builder(o.loc), o.dest.extents[dim], [*args]
    part = args[dim]
    if extent > 1:
        part = b.binary("floordiv", args[dim], extent)
        own[dim] = b.binary("mod", args[dim], extent)
    subst = {loop.body.args[0]: part}
    b.ops += [clone(x, subst) for x in upstream(o.source.offsets, loop.body.makers)]
    left = iter([v for v, e in zip(own, o.dest.extents) if e != 1])
    at = tuple(
        subst.get(v, v) if e == 1 else shifted(b, subst.get(v, v), next(left))
        for v, e in zip(o.source.offsets, o.source.extents)
    )
    b.emit(Store, o.dest.buffer, args, b.value(Load, o.source.buffer, at))
    return Parallel(tile, b.block(args), loc=o.loc)
