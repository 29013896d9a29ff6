"""Choices between a loaded element and 0, which are made by not loading it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tilec.ir.core import Op, Value, inputs
from tilec.ir.ops import Binary, Compare, Const, Load, Select
from tilec.passes.utils.memory_access import MemoryFacts


class Mask(NamedTuple):
    """A loaded element that counts as 0 but where all of `conds` hold."""

    load: Load
    conds: tuple[Value, ...]


def masked_loads(ops: Sequence[Op], known: MemoryFacts) -> dict[Select, Mask]:
    """The choices between an element of a tensor, which nothing else uses, and what is there out of
    its bounds (0), on conditions that are known before the element is loaded. What its bounds ask
    for is none of them."""
    made: dict[Value, Op] = {}
    places: dict[Value, int] = {}
    uses: dict[Value, int] = {}
    for n, o in enumerate(ops):
        made |= dict.fromkeys(o.results, o)
        places |= dict.fromkeys(o.results, n)
        for v in inputs(o):
            uses[v] = uses.get(v, 0) + 1
    found: dict[Select, Mask] = {}
    for o in ops:
        load = made.get(o.on_true) if isinstance(o, Select) else None
        if not isinstance(o, Select) or not isinstance(load, Load):
            continue
        other = made.get(o.on_false) or known.tensors.constants.get(o.on_false)
        zero = isinstance(other, Const) and other.value == 0 and str(other.value)[0] != "-"
        if not zero or load.source.buffer.space != "global" or uses[load.result] > 1:
            continue
        asked_before = places.get(o.cond, -1) < places[load.result]
        if asked_before and load.source not in known.tensors.safe:
            conds = (c for c in conjuncts(o.cond, made) if not _is_bound(made.get(c), load, known))
            found[o] = Mask(load, tuple(conds))
    return found


def conjuncts(cond: Value, made: Mapping[Value, Op]) -> Iterator[Value]:
    """The conditions that are met together where `cond` is, by the ops that made them."""
    left = [cond]
    while left:
        v = left.pop()
        o = made.get(v)
        if isinstance(o, Binary) and o.kind == "and":
            left += [o.rhs, o.lhs]
        else:
            yield v


def _is_bound(o: Op | None, load: Load, known: MemoryFacts) -> bool:
    """Whether a condition says that an index of a load lies inside of its tensor, on one side."""
    match o:
        case Compare(kind="lt", lhs=index, rhs=bound) | Compare(kind="gt", lhs=bound, rhs=index):
            above = False
        case Compare(kind="ge", lhs=index, rhs=bound) | Compare(kind="le", lhs=bound, rhs=index):
            above = True
        case _:
            return False
    if not index.dtype.is_int:
        return False
    form, number = known.facts.form(index), known.facts.constant(bound)
    for own, extent in zip(load.indices, load.source.buffer.shape):
        if own is index or known.facts.form(own) == form:
            if above and number == 0:
                return True
            size = number if isinstance(extent, int) else known.tensors.named[extent]
            if not above and (bound is size or number == extent):
                return True
    return False
