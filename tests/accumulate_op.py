"""Two tile ops that tilec does not have, as one would add them: what each is, does and computes,
and its word. How they are lowered is in `accumulate_lowering`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilec.builtins.annotations import only_inside
from tilec.frontend.builtins.table import Call, builtin
from tilec.frontend.expressions import Expressions
from tilec.ir.core import Effect, Effects, Op, Region, Value
from tilec.ir.op_classes import op
from tilec.ir.ops import Const


@op("accumulate", reads="source", updates="dest")
class Accumulate(Op):
    """Add a region to another, element by element, in the destination's dtype."""

    source: Region
    dest: Region

    def evaluate(self, source: np.ndarray, dest: np.ndarray) -> np.ndarray:
        return dest + source.astype(dest.dtype).reshape(dest.shape)


@op("count_from")
class CountFrom(Op):
    """Number the elements of a region, row by row."""

    dest: Region
    start: Value

    def effects(self) -> Effects:
        return (Effect("write", self.dest),)

    def evaluate(self, start: np.ndarray) -> np.ndarray:
        extents = self.dest.extents
        return (int(start) + np.arange(math.prod(extents))).reshape(extents)


def accumulate(src: Any, dst: Any) -> None:
    only_inside("accumulate")


def count_from(dst: Any, start: int) -> None:
    only_inside("count_from")


@builtin(accumulate, of="tiles")
def _accumulate(t: Expressions, c: Call) -> None:
    source, dest = t.tiles(c["src"], c["dst"], (c.place("src"), c.place("dst")))
    t.emit(Accumulate, t.box(source), t.box(dest))


@builtin(count_from, of="tiles")
def _count_from(t: Expressions, c: Call) -> None:
    tile = t.tile(c["dst"], "the destination")
    start = t.emit(Const, c.integer("start", 0), tile.buffer.type.dtype).result
    t.emit(CountFrom, t.box(tile), start)
