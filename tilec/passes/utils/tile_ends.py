"""Where tiles end, which of them may have more behind their ends, and the extents, a little larger,
that they may have in place of their own."""

from __future__ import annotations

import functools

from tilec.ir import ops
from tilec.ir.affine import Affine
from tilec.ir.analysis import Facts, facts_of
from tilec.ir.copy_engines import safe_values
from tilec.ir.core import Func, Region, Value
from tilec.ir.effects import changing_tensors, effects_in
from tilec.ir.types import Extent, next_power_of_2

ATOM = 16  # rows and columns of every matrix instruction divide it


class SharedTiles:
    """Those of a kernel that are in shared memory."""

    def __init__(self, func: Func) -> None:
        self.func = func

    @functools.cached_property
    def facts(self) -> Facts:  # most tiles need not grow, and nobody asks
        return facts_of(self.func)

    @functools.cached_property
    def safe(self) -> dict[Value, float]:
        return safe_values(self.func)

    @functools.cached_property
    def written(self) -> set[Value]:
        return changing_tensors(self.func)

    def may_grow(self, x: Region, dim: int) -> bool:
        """Whether a shared operand may have zeros behind its end along `dim`: it is filled by
        threads, or by copies that reach over the end of what they copy."""
        v = x.buffer
        if v.space != "shared" or x.extents[dim] != v.buffer.static_shape[dim]:
            return False
        for o, e in effects_in(self.func.body):
            if e.buffer is not v:
                continue
            if not isinstance(o, ops.Alloc | ops.Copy | ops.Fill | ops.Gemm | ops.Load | ops.Store):
                return False  # laid out by hand, or known by its address
            if isinstance(o, ops.Copy) and o.dest.buffer is v and o.source.type.space == "global":
                tensor = o.source.buffer
                whole = o.dest.is_whole and all(self.facts.constant(i) == 0 for i in o.dest.offsets)
                if not (whole and not self.safe.get(tensor) and tensor not in self.written):
                    return False
                if not ends(o.source, same_dim(o.dest, dim, o.source), self.facts):
                    return False
        return True


def same_dim(x: Region, dim: int, other: Region) -> int | None:
    """The dimension of `other` that a copy takes for dimension `dim` of `x`."""
    if x.extents[dim] == 1:
        return None
    place = sum(e != 1 for e in x.extents[: dim % len(x.extents)])
    return [d for d, e in enumerate(other.extents) if e != 1][place]


def ends(x: Region, dim: int | None, facts: Facts) -> bool:
    """Whether the box ends where its tensor does along `dim`, or behind it."""
    if dim is None:
        return False
    size, first = x.type.shape[dim], facts.constant(x.offsets[dim])
    return isinstance(size, int) and first is not None and first + x.extents[dim] >= size


def reaches(func: Func, facts: Facts, count: Value, step: int, extent: Extent) -> bool:
    """Whether so many tiles of `step` elements are known to reach the end of a dimension."""
    most = facts.form(count)
    if isinstance(extent, int):
        return most.constant is not None and most.constant * step >= extent
    o = facts.made_by(count)
    while isinstance(o, ops.Cast) and facts.form(o.result) == facts.form(o.operand):
        o = facts.made_by(o.operand)
    if isinstance(o, ops.Binary) and o.kind == "floordiv" and facts.constant(o.rhs) == step:
        most = facts.form(o.lhs)
    elif step > 1:
        return False
    over = most - Affine.of(func.param(extent).value)
    return over.constant is not None and over.constant >= step - 1


# --- larger extents ---


def rounded(extent: int) -> int:
    """The next extent that divides well: at most an eighth more of a long one."""
    if extent <= ATOM:
        return next_power_of_2(extent)
    return up(extent, max(ATOM, 1 << (extent // 8).bit_length() - 1))


def up(extent: int, unit: int) -> int:
    """The next multiple."""
    return -(-extent // unit) * unit


def shared_by(m: int, n: int, square: bool, warps: int) -> tuple[int, int]:
    """The smallest product tile of at least that size of which every warp has a part, whole
    atoms."""

    found = []
    for along in (1 << i for i in range(warps.bit_length()) if warps % (1 << i) == 0):
        rows, columns = up(m, ATOM * along), up(n, ATOM * (warps // along))
        if square:
            rows = columns = max(rows, columns)
        found.append((rows * columns, rows, columns))
    return min(found)[1:]
