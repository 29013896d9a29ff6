"""Which extent would fit, where a kernel's tiles are as wide as the data they come from (a head
dimension): what an error says when no plan fits."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

from tilec.ir.core import Block, Func, Op, Param, Region, Value
from tilec.ir.ops import Alloc
from tilec.ir.types import BufferType
from tilec.target import Target
from tilec.tune import fit

STEP = 16  # matrix instructions step through no less


def said_to_fit(func: Func, target: Target) -> str:
    """As "or up to 832 in place of 1024, as wide as q, k are", tried in steps of 16; "" where tiles
    and tensors have no extent in common, or nothing less would do. `func`: a TILE function that no
    plan fits."""
    extent = _shared_extent(func)
    if not extent:
        return ""
    low, high = 0, -(-extent // STEP)  # fits, does not: in steps
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(func, extent, middle * STEP, target):
            low = middle
        else:
            high = middle
    if not low:
        return ""
    tiles = [n for o in _tiles(func) if extent in o.type.static_shape and (n := o.result.name)]
    are = "is" if len(tiles) == 1 else "are"
    return f"or up to {low * STEP} in place of {extent}, as wide as {', '.join(tiles)} {are}"


def _tiles(func: Func) -> list[Alloc]:
    return [o for o in func.body.every(Alloc) if o.type.space != "barrier"]


def _shared_extent(func: Func) -> int:
    """The extent of tensors' rows that makes tiles the largest; 0 if there is none."""
    given = {
        n
        for p in func.params
        if isinstance(p.value.type, BufferType)
        for n in p.value.type.shape
        if isinstance(n, int)
    }
    bits: Counter[int] = Counter()
    for o in _tiles(func):
        for n in given.intersection(o.type.static_shape):
            bits[n] += o.type.size * o.type.dtype.bits
    return max((n for n in bits if n > STEP), key=lambda n: (bits[n], n), default=0)


def _fits(func: Func, extent: int, less: int, target: Target) -> bool:
    """Whether the program fits with `less` wherever it says `extent`: as if it had been traced so,
    but for numbers that were computed from the extent."""
    made: dict[Value, Value] = {}

    def changed(x: Any) -> Any:
        match x:
            case bool():
                return x
            case int():
                return less if x == extent else x
            case tuple():
                return tuple(map(changed, x))
            case Value():
                if x not in made:
                    made[x] = Value(changed(x.type), x.name)
                return made[x]
            case Func() | Param() | Block() | Op() | Region() | BufferType():
                return replace(x, **{f.name: changed(getattr(x, f.name)) for f in fields(x)})
        return x

    try:
        fit.resources(changed(func), target, None)
    except Exception:  # nobody wrote this program: whatever it fails of, the error told is another
        return False
    return True
