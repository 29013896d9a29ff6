"""What reductions, scans, atomics and shuffles mean, in NumPy: further words of `meaning.Words`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import numpy as np

from tilec.fuzz.buffers import Buffer, Invalid, Place, Region
from tilec.fuzz.numbers import MANTISSA, Array, Number, grain, index, largest, select, unit
from tilec.fuzz.numbers import compare as compared
from tilec.ir import semantics
from tilec.ir.ops.tile import COMBINED
from tilec.ir.types import BOOL, FLOAT32, FLOAT64, DType

WARP = 32


@dataclass(frozen=True)
class Element:
    """`A[i, j]`, as a place that is updated."""

    buffer: Buffer
    index: Any

    @property
    def region(self) -> Region:
        """The tile that starts there."""
        return Region.of(self.buffer, self.index)


class Folds:
    """The words; `_place` and `_threads` are those of the program that runs."""

    _place: Place
    _threads: int

    # --- reductions ---

    def reduce(self, buffer: Any, out: Any, reduce_type: str, *args: Any, **keywords: Any) -> None:
        self._reduce(reduce_type, buffer, out, *args, **keywords)

    def _reduce(
        self,
        kind: str,
        buffer: Any,
        out: Any,
        dim: int = -1,
        clear: bool = True,
        batch: int = 1,
        nan_propagate: bool = False,
    ) -> None:
        x, (to, at) = _read(buffer), _whole(out)
        kept = np.delete(x.value.shape, dim)
        if math.prod(kept) != math.prod(at[1]):
            raise Invalid("a reduction into a tile of another size")
        dtype = _accumulator(kind, x.dtype, to.dtype)
        rows = x.to(dtype)
        if kind.startswith("abs"):
            rows = Number(semantics.unary("abs", rows.value, dtype), dtype, rows.error)
        value, error = (np.moveaxis(a, dim, 0) for a in (rows.value, rows.errors()))
        if not clear:
            old = to[at[0]].to(dtype)
            value = np.concatenate([old.value.reshape(1, *kept), value])
            error = np.concatenate([old.errors().reshape(1, *kept), error])
        name = kind.removeprefix("abs")
        made = _folded(COMBINED.get(name, name), value, error, dtype, nan_propagate)
        to[at[0]] = made.reshape(at[1])

    def _scan(
        self, kind: str, src: Any, dst: Any = None, dim: int = 0, reverse: bool = False
    ) -> None:
        x, (to, at) = _read(src), _whole(src if dst is None else dst)
        dtype = _accumulator("sum" if kind == "add" else kind, x.dtype, to.dtype)
        rows = x.to(dtype)
        value, error = (np.moveaxis(a, dim, 0) for a in (rows.value, rows.errors()))
        step = -1 if reverse else 1
        value, error = value[::step], error[::step]
        parts = [_folded(kind, value[: n + 1], error[: n + 1], dtype) for n in range(len(value))]
        values, errors = (
            np.moveaxis(np.stack(a)[::step], 0, dim)
            for a in ([p.value for p in parts], [p.errors() for p in parts])
        )
        to[at[0]] = Number(values, dtype, errors)

    cumsum = partialmethod(_scan, "add")
    cummax = partialmethod(_scan, "max")

    def any_of(self, buffer: Any) -> Number:
        return self._together(np.any, buffer)

    def all_of(self, buffer: Any) -> Number:
        return self._together(np.all, buffer)

    def _together(self, combine: Callable[..., Any], buffer: Any) -> Number:
        x = _read(buffer).to(BOOL)
        return Number(combine(x.value), BOOL, x.errors().max(initial=0.0))

    # --- atomics ---

    def _atomic(
        self, kind: str, dst: Any, value: Any, memory_order: Any = None, return_prev: Any = None,
        use_tma: bool = False,
    ) -> Number | None:  # fmt: skip
        if isinstance(value, Buffer | Region):
            number = _read(value)
            extents = dst.region.filled(number.value.shape)
            dst.buffer.update(dst.region.at(extents), number.reshape(extents), kind)
            return None
        if kind == "exchange" or return_prev:  # the order of several would be seen
            return _replaced(dst, lambda old: _combined(kind, old, dst.buffer.converted(value)))
        dst.buffer.update(dst.index, value, kind)
        return None

    def atomic_cas(
        self, dst: Element, compare: Any, value: Any, memory_order: Any = None
    ) -> Number:
        asked, given = (dst.buffer.converted(x) for x in (compare, value))
        return _replaced(dst, lambda old: select(compared("eq", old, asked), given, old))

    def atomic_load(self, src: Element, memory_order: str = "seq_cst") -> Number:
        return _replaced(src, lambda old: old)

    def atomic_store(self, dst: Element, src: Any, memory_order: str = "seq_cst") -> None:
        dst.buffer[dst.index] = src

    # --- threads ---

    def sync_threads(self) -> None:
        """All statements are done by all threads at once."""

    def sync_warp(self, mask: Any = None) -> None:
        pass

    def get_lane_idx(self, warp_size: int) -> Number:
        return index(np.arange(self._threads) % warp_size)

    def get_warp_idx(self, warp_size: int) -> Number:
        return index(np.arange(self._threads) // warp_size)

    get_warp_idx_sync = get_warp_idx

    def get_warp_group_idx(self, warp_size: int, warps_per_group: int = 4) -> Number:
        return index(np.arange(self._threads) // (warp_size * warps_per_group))

    def shfl_sync(self, value: Any, srcLane: Any, width: int = WARP, mask: Any = None) -> Number:  # noqa: N803
        return self._from(value, width, lambda lane: np.asarray(index_of(srcLane)) % width)

    def shfl_xor(self, value: Any, delta: Any, width: int = WARP, mask: Any = None) -> Number:
        return self._from(value, width, lambda lane: lane ^ (index_of(delta) % width))

    def shfl_up(self, value: Any, delta: Any, width: int = WARP, mask: Any = None) -> Number:
        return self._from(value, width, lambda lane: lane - index_of(delta))

    def shfl_down(self, value: Any, delta: Any, width: int = WARP, mask: Any = None) -> Number:
        return self._from(value, width, lambda lane: lane + index_of(delta))

    def _from(self, value: Number, width: int, source: Callable[[Array], Array]) -> Number:
        """`value` of another lane of each group of `width`; of its own where there is none."""
        thread = np.arange(self._threads)
        lane = thread % width
        there = np.broadcast_to(source(lane), lane.shape)
        at = np.where((there >= 0) & (there < width), thread - lane + there, thread)
        values, errors = (np.broadcast_to(a, lane.shape)[at] for a in (value.value, value.error))
        return Number(values, value.dtype, errors)

    def _reduced(self, kind: str, value: Number) -> Number:
        """Over warps of 32 lanes."""
        shape = (self._threads // WARP, WARP)
        rows, errors = (
            np.broadcast_to(a, self._threads).reshape(shape).T for a in (value.value, value.error)
        )
        made = _folded(kind, rows, errors, value.dtype)
        if made.dtype.is_float and not made.exact():  # a step is rounded to the dtype
            error = made.errors() + np.abs(rows).sum(0) * unit(made.dtype) * 8
            made = Number(made.value, made.dtype, error)
        return Number(np.repeat(made.value, WARP), value.dtype, np.repeat(made.errors(), WARP))


for _kind in ("sum", "max", "min", "abssum", "absmax", "bitand", "bitor", "bitxor", "prod"):
    setattr(Folds, f"reduce_{_kind}", partialmethod(Folds._reduce, _kind))
for _kind in ("add", "max", "min", "and", "or", "xor", "exchange"):
    setattr(Folds, f"atomic_{_kind}", partialmethod(Folds._atomic, _kind))
for _kind in ("sum", "max", "min", "bitand", "bitor"):
    setattr(
        Folds, f"warp_reduce_{_kind}", partialmethod(Folds._reduced, COMBINED.get(_kind, _kind))
    )


def index_of(x: Any) -> Any:
    """A number of lanes."""
    if not isinstance(x, Number):
        return x
    if not x.exact():
        raise Invalid("a lane hangs on a number that is rounded")
    return x.value.astype(np.int64)


# --- what they are made of ------------------------------------------------------------------------


def region_of(x: Any) -> Region:
    """A region, or all of a buffer."""
    return x if isinstance(x, Region) else Region.of(x)


def _whole(x: Any) -> tuple[Buffer, tuple[Any, tuple[int, ...]]]:
    """A region's buffer, and its coordinates and extents."""
    region = region_of(x)
    extents = region.filled(region.buffer.shape)
    return region.buffer, (region.at(extents), extents)


def _read(x: Any) -> Number:
    buffer, (at, _) = _whole(x)
    return buffer[at]


def _accumulator(kind: str, source: DType, dest: DType) -> DType:
    """What a result is computed in (docs/language.md, Reductions)."""
    adds = kind.endswith("sum")
    wider = dest if dest.is_float == source.is_float and dest.bits > source.bits else source
    if adds and dest.is_float and not source.is_float:
        wider = dest
    if wider.is_float and adds:
        return FLOAT64 if wider is FLOAT64 else FLOAT32
    return wider


def _folded(kind: str, value: Array, error: Array, dtype: DType, nan: bool = False) -> Number:
    """The rows of `value` combined. Sums of floats are exact where every partial sum, in whatever
    order, fits the mantissa; see `meaning.product`."""
    with np.errstate(all="ignore"):
        if kind != "add" or not dtype.is_float:
            made = semantics.reduce(kind, value, 0, FLOAT64 if dtype.is_float else dtype, nan)
            moved = error.max(0, initial=0.0)
            fixed = dtype.is_float or kind in ("max", "min")
            return Number(made, dtype, np.where(moved > 0, moved if fixed else np.inf, 0.0))
        bits = MANTISSA[dtype.short]
        made, size, moved = value.sum(0), np.abs(value).sum(0), error.sum(0)
        exact = (moved == 0) & (size <= grain(value) * 2.0**bits)
        rough = size * 2.0**-bits * math.sqrt(len(value) + 16.0) * 2 + size * unit(dtype)
        bound = np.where(exact, 0.0, moved + rough)
        return Number(made, dtype, np.where(size < largest(dtype) / 4, bound, np.inf))


def _combined(kind: str, old: Number, new: Number) -> Number:
    if kind == "exchange":
        return new
    made = semantics.binary(kind, old.value, new.value, old.dtype)
    inexact = (old.errors() > 0) | (new.error > 0)
    return Number(made, old.dtype, np.where(inexact, np.inf, 0.0))


def _replaced(element: Element, change: Callable[[Number], Any]) -> Number:
    """Change an element that nobody else touches; gives what was there, out of bounds 0."""
    buffer, at = element.buffer, element.index
    old = buffer[at]
    buffer[at] = change(old)
    nothing = Number(np.zeros_like(old.value), old.dtype)
    return select(Number(buffer.inside(at), BOOL), old, nothing)
