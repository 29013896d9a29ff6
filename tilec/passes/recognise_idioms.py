"""recognise_idioms: loops over elements that only move a tile become the tile ops that later passes
know how to move.
"""

from __future__ import annotations

from tilec.ir.copy_engines import same_order
from tilec.ir.core import Func, Op, Region
from tilec.ir.ops import Cast, Copy, Fill, Load, Parallel, Select, Store
from tilec.passes.utils.accesses import only_store
from tilec.passes.utils.memory_access import MemoryFacts, masked_loads
from tilec.passes.utils.regions import LoopRegions, Walked
from tilec.passes.utils.rings import fills_tile
from tilec.passes.utils.several_stores import with_parts
from tilec.target import Target


def recognise_idioms(func: Func, target: Target) -> Func:
    """Before: TILE. After: TILE, and each `parallel` whose iterations each copy one element of a
    region to the same place of another (converting at most) is a `copy`, each that writes one
    value all over a region is a `fill`.

    The regions must be boxes with unit strides, walked in the same order on both sides: `dst[i +
    a, j + b] = src[c, i + d, j]`. An access out of a global tensor's bounds means the same in both
    forms, also where the loop asks for them itself. A loop that brings several tiles to shared
    memory is a copy of each. Every other loop is left alone.
    """
    known = MemoryFacts(func)

    def visit(o: Parallel) -> list[Op] | None:
        if o.layout is not None or 0 in o.extents:
            return None
        made = _Loop(o, known).idiom()
        return made if made or func.attrs.get("may_alias") else with_parts(o, brought)

    def brought(o: Parallel) -> list[Op] | None:
        made = _Loop(o, known).idiom() or []
        return made if any(fills_tile(x) and same_order(x) for x in made) else None

    return func.rewrite(Parallel, visit)


class _Loop(LoopRegions):
    """One `parallel`, and the copy or fill that it is."""

    def __init__(self, o: Parallel, known: MemoryFacts) -> None:
        super().__init__(o, known.facts)
        self.known = known

    def idiom(self) -> list[Op] | None:
        store = only_store(self.o.body)
        if store is None or store.dest.space not in ("global", "shared", "fragment"):
            return None
        dest = self.walked(store.dest, store.indices)
        if dest is None or len(dest.order) != sum(e > 1 for e in self.o.extents):
            return None  # or an index selects no element: iterations write the same place
        made = self.copy(store, dest) or self.fill(store, dest.region)
        return None if made is None else [*self.before.ops, made]

    def copy(self, store: Store, dest: Walked) -> Op | None:
        value = self.made.get(store.value)
        if isinstance(value, Cast):
            value = self.made.get(value.operand)
        if isinstance(value, Select):
            mask = masked_loads(self.o.body.ops, self.known).get(value)
            value = mask.load if mask is not None and not mask.conds else None
        if not isinstance(value, Load) or value.source is store.dest:
            return None
        if value.source.space not in ("global", "shared", "fragment"):
            return None
        source = self.walked(value.source, value.indices)
        if source is None or source.order != dest.order:
            return None
        width = self.o.coalesced_width
        return Copy(source.region, dest.region, coalesced_width=width, loc=store.loc)

    def fill(self, store: Store, dest: Region) -> Op | None:
        whole = dest.is_whole and self.before.known.keys() >= {*dest.offsets}
        if store.dest.space != "global" and not whole:
            return None
        value = self.invariant(store.value)
        if value is None:
            return None
        return Fill(dest, value, loc=store.loc)
