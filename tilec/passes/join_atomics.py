"""join_atomics: sums of neighbours in global memory are added by one instruction.

Before: LOWERED. After: two or four `mem_atomic` of float32, with nothing between them that sees
them, of which nobody asks what was there, at places of which the first is a multiple of as many and
the others are behind it, under one guard, are one `mem_red`, as `lower_parallel` makes of tiles:

    for i, j in T.Parallel(M, N // 4): T.atomic_addx4(C[i, 4 * j], own[i, 4 * j])

The L2 cache adds a vector in the time of a number."""

from __future__ import annotations

from tilec.ir.affine import Affine
from tilec.ir.analysis import facts_of
from tilec.ir.builder import Builder
from tilec.ir.copy_engines import alignment
from tilec.ir.core import Block, Func, Op, Value, walk
from tilec.ir.ops import MemAtomic, MemLoad, MemRed, Pack
from tilec.ir.types import FLOAT32, BufferType
from tilec.target import Target

WIDTHS = (4, 2)  # of a vector


def join_atomics(func: Func, target: Target) -> Func:
    if not target.has("red_vector"):
        return func
    used = {v for o in walk(func.body) for v in o.operands}
    plain = {o for o in func.body.every(MemAtomic) if _is_sum(o, used)}
    return func.with_body(_Joined(func, plain).block(func.body)) if len(plain) > 1 else func


def _is_sum(o: MemAtomic, used: set[Value]) -> bool:
    t = o.dest.buffer
    plain = o.kind == "add" and o.compare is None and o.result not in used
    return plain and (t.space, t.dtype) == ("global", FLOAT32)


class _Joined:
    def __init__(self, func: Func, plain: set[MemAtomic]) -> None:
        self.facts, self.plain = facts_of(func), plain
        self.may_alias = bool(func.attrs.get("may_alias"))

    def block(self, block: Block) -> Block:
        found: list[Op] = []
        run: list[MemAtomic] = []  # with nothing between them that sees them
        for o in block.ops:
            if o.region_fields:
                o = o.with_regions(self.block)
            if isinstance(o, MemAtomic) and o in self.plain:
                run.append(o)
                continue
            if run and not self._may_precede(o, run):
                found += self._vectors(run)
                run = []
            found.append(o)
        found += self._vectors(run)
        return block.with_ops(found)

    def _may_precede(self, o: Op, run: list[MemAtomic]) -> bool:
        """Whether sums that stand before `o` may as well be behind it."""
        apart = isinstance(o, MemLoad) and all(o.source is not x.dest for x in run)
        return o.pure or (apart and not self.may_alias)

    def _vectors(self, run: list[MemAtomic]) -> list[Op]:
        """These sums, neighbours together: nobody sees in which order they are added."""
        places = {o: self.facts.form(o.offset) for o in run}
        rows: dict[object, list[MemAtomic]] = {}
        for o in sorted(run, key=lambda o: places[o].const):
            terms = frozenset(places[o].terms.items())
            rows.setdefault((o.dest, o.guard, terms), []).append(o)
        found: list[Op] = []
        for row in rows.values():
            while row:
                width = self._width([places[o] for o in row], row[0].dest.buffer)
                group, row = row[:width], row[width:]
                if width == 1:
                    found += group
                    continue
                b = Builder(group[0].loc)
                values = b.value(Pack, tuple(o.value for o in group))
                b.emit(MemRed, group[0].dest, group[0].offset, values, group[0].guard)
                found += b.ops
        return found if any(isinstance(o, MemRed) for o in found) else [*run]

    def _width(self, places: list[Affine], t: BufferType) -> int:
        """How many of the first of these places are one vector."""
        first, most = places[0], alignment(t) * 8 // t.dtype.bits
        begins = first.divisor(self.facts.divisor)
        near = [p.const == first.const + n for n, p in enumerate(places[: WIDTHS[0]])]
        return next((w for w in WIDTHS if w <= min(most, begins, len(near)) and all(near[:w])), 1)
