"""Builtins that combine the elements of tiles."""

from __future__ import annotations

import functools
import itertools
import math
import types
from typing import Any

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.scalar import index_of_thread
from tilec.frontend.builtins.table import Call, builtin, named
from tilec.frontend.expressions import Expressions
from tilec.frontend.values import (
    AttrHeader,
    Buffer,
    Closure,
    Number,
    Reducer,
    Region,
    Scalar,
    Tile,
    describe,
)
from tilec.ir.builder import Builder
from tilec.ir.core import Value, squeeze
from tilec.ir.element_loops import shifted
from tilec.ir.ops import BlockIndex, CombineParts, Const, For, Load, Reduce, Scan, Yield
from tilec.ir.ops.scan import SCANS
from tilec.ir.ops.tile import REDUCTIONS
from tilec.ir.types import BOOL, INT32, ScalarType

_MOST_LOCAL = 1024  # elements that a thread reduces by itself


@builtin(T.reduce, *named("reduce_{}", REDUCTIONS))
def reduce(t: Expressions, c: Call) -> None:
    kind = c.builtin.removeprefix("reduce_")
    kind = c.choice("reduce_type", REDUCTIONS) if c.builtin == "reduce" else kind
    given = c["buffer"].buffer if isinstance(c["buffer"], Region) else c["buffer"]
    local = isinstance(given, Buffer) and given.type.space == "local"
    if not local:
        c.of("tiles")
    source, dest = _tile(t, c, "buffer", local), _tile(t, c, "out", local)
    if local and dest.buffer.type.space == "fragment":
        raise t.error(
            f"{t.tile_text(source)} is each thread's own, and out is {describe(dest.buffer)}, "
            "which all of them share",
            f"allocate {dest.buffer.name} with T.alloc_local, too",
            c.place("out"),
        )
    dim = dimension(t, c, "dim", source)
    kept = tuple(e for d, e in enumerate(source.extents) if d != dim)
    allowed = (kept or (1,), (*source.extents[:dim], 1, *source.extents[dim + 1 :]))
    if squeeze(dest.extents) != squeeze(kept):
        shapes = " or ".join(map(str, dict.fromkeys(allowed)))
        message = (
            f"T.{c.builtin} of {t.tile_text(source)} along dimension {dim} gives a tile of "
            f"{shapes}, but out is {t.tile_text(dest)}"
        )
        raise t.error(message, f"allocate out with shape {allowed[0]}", c.place("out"))
    for tile in (source, dest):
        if kind.startswith("bit") and tile.buffer.type.dtype.is_float:
            raise t.error(
                f"T.{c.builtin} combines the bits of ints, not those of {describe(tile.buffer)}",
                "use T.reduce_max or T.reduce_sum, or an int tile",
            )
    c.integer("batch", 1)
    nan = "nan_propagate" in c.values and c.flag("nan_propagate")
    clear = c.flag("clear")
    operands = t.box(source), t.box(dest), dim, kind, clear, nan
    if local:
        _of_one_thread(t, Reduce(*operands), source, dest)
    else:
        t.emit(Reduce, *operands)


def _of_one_thread(t: Expressions, o: Reduce, source: Tile, dest: Tile) -> None:
    """A reduction of elements that each thread has for itself, without a loop."""
    size = math.prod(source.extents)
    if size > _MOST_LOCAL:
        message = f"{t.tile_text(source)} has {size} elements, too many for one thread's registers"
        raise t.error(message, "allocate it with T.alloc_fragment, which all threads share")

    add = functools.partial(t.binary, "add")

    def both(a: Scalar, b: Scalar) -> Scalar:
        found = t.binary(o.combine, a, b)
        if o.propagate_nan and o.accumulator.is_float:
            for x in (a, b):
                found = t.select(t.unary("isnan", x), x, found)
        return t.run_time(found)

    def element(tile: Tile, at: tuple[int, ...]) -> Region:
        return t.element(tile.buffer, map(add, tile.offsets, at))

    def number(tile: Tile, at: tuple[int, ...]) -> Scalar:
        return t.convert(t.load(element(tile, at)), o.accumulator)

    rest = [range(e) for d, e in enumerate(source.extents) if d != o.dim]
    places = itertools.product(*map(range, dest.extents))
    results = []  # `dest` may be a part of `source`
    for outer, to in zip(itertools.product(*rest), places, strict=True):
        values = [
            number(source, (*outer[: o.dim], k, *outer[o.dim :]))
            for k in range(source.extents[o.dim])
        ]
        if o.kind.startswith("abs"):
            values = [t.unary("abs", x) for x in values]
        if not o.clear:
            values.insert(0, number(dest, to))
        results.append((element(dest, to), functools.reduce(both, values)))
    for place, value in results:
        t.store(place, value)


# --- between blocks ---


def combine_parts(fragments: Any, parts: int, kinds: Any, everywhere: bool = False) -> Any:
    """What `parts` blocks, neighbours along dimension 2 of the grid, have in `fragments` becomes
    one by the operations `kinds`, in the last of them: there it is true; or `everywhere`, in each.
    Programs that tilec writes say it (`whole_loops.tiles`); they have no blocks along dimension
    1."""


@builtin(combine_parts)
def _combine_parts(t: Expressions, c: Call) -> Scalar:
    number, part = (t.emit(BlockIndex, dim).result for dim in (0, 2))
    fragments = tuple(buffer.value for buffer in c["fragments"])
    kinds, everywhere = (*c["kinds"],), c.flag("everywhere")
    return t.emit_scalar(CombineParts, fragments, number, part, c["parts"], kinds, everywhere)


# --- running values -------------------------------------------------------------------------------


builtin(T.cumsum)(lambda t, c: _scan(t, c, "sum"))
builtin(T.cummax)(lambda t, c: _scan(t, c, "max"))


def scan_tile(
    src: Any, kind: str, dim: int, dst: Any = None, reverse: bool = False, begins: Any = None
) -> None:
    """As T.cumsum and T.cummax, of any `kind` of `Scan`, of rows that begin anew where a tile of
    bools says so. Programs that tilec writes say it (`whole_loops.scans`)."""


@builtin(scan_tile)
def _scan_tile(t: Expressions, c: Call) -> None:
    begins = None if c["begins"] is None else _tile(t, c, "begins")
    _scan(t, c, c.choice("kind", SCANS), begins)


def _scan(t: Expressions, c: Call, kind: str, begins: Tile | None = None) -> None:
    c.of("tiles")
    source = _tile(t, c, "src")
    dest = source if c["dst"] is None else _tile(t, c, "dst")
    dim = dimension(t, c, "dim", source)
    if source.extents != dest.extents:
        raise t.error(
            f"T.{c.builtin} of {t.tile_text(source)} gives a tile of that shape, but dst is "
            f"{t.tile_text(dest)}",
            f"allocate dst with shape {source.extents}, or leave it out",
            c.place("dst"),
        )
    for tile in (source, dest):
        if tile.buffer.type.dtype is BOOL:
            hint = "copy it to a tile of int32 first"
            raise t.error(f"T.{c.builtin} is of numbers, not of {describe(tile.buffer)}", hint)
    t.check_overlap(f"T.{c.builtin} of {t.tile_text(source)}", source, dest)
    reverse = c.flag("reverse")
    cut = None if begins is None else t.box(begins)
    t.emit(Scan, t.box(source), t.box(dest), dim, kind, reverse=reverse, begins=cut)


# --- conditions -----------------------------------------------------------------------------------


builtin(T.any_of)(lambda t, c: _together(t, c, "or"))
builtin(T.all_of)(lambda t, c: _together(t, c, "and"))


def _together(t: Expressions, c: Call, kind: str) -> Number:
    """The elements of a region, one after the other: whether they are not 0, combined."""
    c.of("tiles")
    with t.at(c.place("buffer")):
        box = t.box(t.element_tile(c["buffer"], f"the argument of T.{c.builtin}"))
    index, so_far = Value(ScalarType(INT32), "n"), Value(ScalarType(BOOL), "so_far")
    inner = Builder(t.loc)
    indices, behind = [], 1
    for offset, extent in reversed([*zip(box.offsets, box.extents)]):
        at = inner.binary("floordiv", index, behind)
        at = inner.binary("mod", at, extent)
        indices.append(shifted(inner, offset, at) if extent > 1 else offset)
        behind *= extent
    value = inner.value(Load, box.buffer, tuple(reversed(indices)))
    value = inner.cast(value, BOOL)
    inner.emit(Yield, (inner.binary(kind, so_far, value),))
    first = t.emit(Const, kind == "and", BOOL).result
    zero, end, one = (t.emit(Const, n, INT32).result for n in (0, behind, 1))
    return t.emit_scalar(For, "serial", zero, end, one, (first,), inner.block((index, so_far)))


def _tile(t: Expressions, c: Call, name: str, local: bool = False) -> Tile:
    with t.at(c.place(name)):
        tile = t.tile(c[name], f"{name} of T.{c.builtin}")
        if local and tile.buffer.type.space == "local":
            return tile
        if tile.buffer.type.space not in ("shared", "fragment"):
            raise t.error(
                f"{name} of T.{c.builtin} is {describe(tile.buffer)}; it must be a fragment or a "
                "shared tile",
                "copy the tensor's tile first: T.copy(A[i, j], tile)"
                if tile.buffer.is_global
                else "allocate it with T.alloc_fragment",
            )
        return tile


def dimension(t: Expressions, c: Call, name: str, tile: Tile) -> int:
    """A compile-time dimension of `tile`, from 0; a negative one counts from the end."""
    rank, dim = len(tile.extents), static_int(c[name])
    if dim is not None and -rank <= dim < rank:
        return dim % rank
    hint = f"write {name}={rank - 1}" if rank < 2 else f"write {name}=0 to {name}={rank - 1}"
    what = f"{name} of T.{c.builtin} is {describe(c[name])}, but"
    if dim is None:
        what = what.removesuffix(" but") + " not an int known at compile time:"
        if isinstance(c[name], tuple | list):
            hint += ", a call for each dimension"
    message = f"{what} {t.tile_text(tile)} has {rank} dimension{'s' * (rank != 1)}"
    raise t.error(message, hint, c.place(name))


# --- values of threads, as TVM combines them ------------------------------------------------------

FUNCTIONS = Closure | T.Macro | types.FunctionType


@builtin(T.comm_reducer)
def comm_reducer(t: Expressions, c: Call) -> Reducer:
    values = c.several("identity")
    if len(values) != 1 or not isinstance(c["combine"], FUNCTIONS):
        message = "T.comm_reducer takes a function of two values and a list of one number"
        raise t.error(message, "write T.comm_reducer(lambda x, y: x + y, [T.float32(0)])")
    return Reducer(c["combine"], t.number(values[0], "the identity"))


@builtin(T.attr)
def attr(t: Expressions, c: Call) -> AttrHeader:
    reducer = c["node"] if isinstance(c["node"], Reducer) else None
    return AttrHeader(reducer, c["key"] == "async_scope" and bool(c["value"]))


@builtin(T.tvm_thread_allreduce, of="threads")
def tvm_thread_allreduce(t: Expressions, c: Call) -> None:
    reducer, result = t.reducer, c["result"]
    if reducer is None:
        hint = 'put it under with T.attr(T.comm_reducer(…), "reduce_scope", …):'
        raise t.error("T.tvm_thread_allreduce has no reducer", hint)
    if not isinstance(result, Region) or not result.is_element:
        raise c.wrong("result", f"is {describe(result)}, not an element", "name one: reduced[0]")
    dim = _dimension(t, c["thread"])
    value = t.run_time(c.number("value"))
    cond = c["cond"]
    if isinstance(cond, Scalar):
        holds = t.convert(cond, BOOL)
        value = t.select(holds, value, t.convert(reducer.identity, value.dtype))
    shape = t.block_shape
    stride, extent = math.prod(shape[:dim]), shape[dim] if dim < len(shape) else 1
    lanes = min(32, t.warp_size)  # that T.shfl_xor reaches
    neighbours = stride == 1 and math.prod(shape) % t.warp_size == 0
    if neighbours and extent & (extent - 1) == 0 and extent <= lanes:
        found = t.trace_function(_in_lanes, [value, reducer.combine, extent], {})
    elif neighbours and extent % lanes == 0:
        found = t.trace_function(_in_lanes, [value, reducer.combine, lanes], {})
        value = t.run_time(t.number(found, "what is combined"))
        given = [value, reducer.combine, value.dtype, index_of_thread(t, c), lanes]
        found = t.trace_function(_by_groups, [*given, extent, math.prod(shape)], {})
    else:
        index = index_of_thread(t, c)
        place = t.binary("mod", t.binary("floordiv", index, stride), extent)
        first = t.binary("sub", index, t.binary("mul", place, stride))
        widths = [extent]
        while widths[-1] > 1:
            widths.append((widths[-1] + 1) // 2)
        steps = [(to, of - to) for of, to in itertools.pairwise(widths)]
        given = [value, reducer.combine, value.dtype, index, place, first, stride, steps]
        found = t.trace_function(_in_memory, [*given, math.prod(shape)], {})
    t.store(result, t.number(found, "what is combined"))


def _dimension(t: Expressions, index: object) -> int:
    found = t.thread_dims.get(index.value) if isinstance(index, Scalar) else None
    if isinstance(index, int) and index == 0:
        found = len(t.block_shape)  # a dimension of one thread
    if found is None or not t.block_shape:
        message = f"{describe(index)} is no index of this thread in a block of a known shape"
        raise t.error(message, "give what T.get_thread_binding(0) or T.thread_binding returned")
    return found


def _in_lanes(value, combine, extent):  # type: ignore[no-untyped-def]
    """In the language of kernels: neighbours exchange by shuffles."""
    distances = [1 << k for k in range(extent.bit_length() - 1)]
    for distance in distances:
        value = combine(value, T.shfl_xor(value, distance))
    return value


def _by_groups(value, combine, dtype, index, lanes, extent, threads):  # type: ignore[no-untyped-def]
    """In the language of kernels: each thread reads what `lanes` threads together have found."""
    left = T.alloc_shared((threads // lanes,), dtype)
    if index % lanes == 0:
        left[index // lanes] = value
    T.sync_threads()
    first = index // extent * (extent // lanes)
    value = T.cast(left[first], dtype)
    others = list(range(1, extent // lanes))
    for k in others:
        value = combine(value, left[first + k])
    return T.cast(value, dtype)


def _in_memory(value, combine, dtype, index, place, first, stride, steps, threads):  # type: ignore[no-untyped-def]
    """In the language of kernels: the lower half of a group takes what the upper one has left,
    until one thread has all: rounded in halves as shuffles do, not from one end to the other."""
    left = T.alloc_shared((threads,), dtype)
    T.sync_threads()
    left[index] = value
    T.sync_threads()
    for distance, taken in steps:
        if place < taken:
            left[index] = combine(left[index], left[index + distance * stride])
        T.sync_threads()
    return T.cast(left[first], dtype)
