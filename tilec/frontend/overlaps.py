"""Tiles that share elements, through views, too."""

from __future__ import annotations

import functools
import operator
from typing import Any

from tilec.frontend.arithmetic import affine_of
from tilec.frontend.context import Context
from tilec.frontend.values import Tile
from tilec.ir.types import contiguous_strides
from tilec.support.lazy import Lazy

np: Any = Lazy("numpy")


def same_memory(t: Context, a: Tile, b: Tile) -> bool:
    """Whether two tiles are of one buffer, or of views of it."""
    one, other = (t.shown.get(x.buffer.value, x.buffer.value) for x in (a, b))
    return one is other


def check_overlap(t: Context, what: str, source: Tile, dest: Tile) -> None:
    """Raises CompileError if two tiles certainly share elements, and are not the same."""
    if same_memory(t, source, dest) and not source.steps and not dest.steps:
        one_buffer = source.buffer.value is dest.buffer.value
        if (_share if one_buffer else _views_share)(source, dest):
            raise t.error(
                f"{what} onto a part of itself: elements would be read after they are written",
                "copy it to another buffer, and from there",
            )


def _share(a: Tile, b: Tile) -> bool:
    apart = [(affine_of(x) - affine_of(y)).constant for x, y in zip(a.offsets, b.offsets)]
    inside = (n is not None and -m < n < k for n, k, m in zip(apart, b.extents, a.extents))
    return any(apart) and all(inside)


def _views_share(a: Tile, b: Tile) -> bool:
    types = a.buffer.type, b.buffer.type
    if types[0].dtype.bits != types[1].dtype.bits or not all(
        isinstance(e, int) for t in types for e in t.shape
    ):
        return False
    steps = [contiguous_strides(t.static_shape) for t in types]
    firsts = (
        functools.reduce(operator.add, (affine_of(o).scaled(n) for o, n in zip(x.offsets, s)))
        for x, s in zip((a, b), steps)
    )
    apart = functools.reduce(operator.sub, firsts).constant
    if apart is None:
        return False
    one, other = (np.tensordot(s, np.indices(x.extents), 1).ravel() for x, s in zip((a, b), steps))
    one = one + apart
    return not np.array_equal(one, other) and bool(np.isin(one, other).any())
