"""Builtins by which threads decide together, and the extents of blocks and grids."""

from __future__ import annotations

import math

from tilec import language as T
from tilec.builtins.threads import ALL_LANES
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins import Call, builtin
from tilec.frontend.builtins_scalar import index_of_thread
from tilec.frontend.builtins_threads import combined, lane_of, not_a_mask, shuffled
from tilec.frontend.expressions import Expressions
from tilec.frontend.index import Reach
from tilec.frontend.values import Number, Scalar, describe
from tilec.ir.ops import GridSize
from tilec.ir.types import BOOL, INT32, UINT32, UINT64

# --- extents --------------------------------------------------------------------------------------


def _shape(t: Expressions, c: Call) -> tuple[int, int, int]:
    if not t.block_shape:
        hint = "write with T.Kernel(…, threads=128)"
        raise t.error(f"T.{c.builtin}: how many threads a block has is left to tilec", hint)
    x, y, z = (*t.block_shape, 1, 1)[:3]
    return x, y, z


builtin(T.get_thread_extents)(lambda t, c: _shape(t, c))
builtin(T.get_thread_extent)(lambda t, c: _shape(t, c)[c.axis("dim")])
builtin(T.get_block_extents)(lambda t, c: tuple(_blocks(t, dim) for dim in range(3)))
builtin(T.get_block_extent)(lambda t, c: _blocks(t, c.axis("dim")))


def _blocks(t: Expressions, dim: int) -> Number:
    return t.to_index(t.emit_scalar(GridSize, dim, reach=Reach(1)))


# --- votes of a warp ------------------------------------------------------------------------------


def _holds(t: Expressions, c: Call) -> Scalar:
    """Whether this thread's predicate holds."""
    not_a_mask(t, c, "predicate")
    given = c.whole("predicate", "write a comparison, or an int", "")
    return t.run_time(t.truth(given))


def _in_mask(t: Expressions, c: Call) -> Scalar | None:
    """Whether this thread's lane is one of the mask; None where all are."""
    given = c.values.get("mask", ALL_LANES)
    if static_int(given) in (ALL_LANES, -1):
        return None
    if isinstance(given, bool) or (isinstance(given, Scalar) and given.dtype is BOOL):
        hint = f"write T.{c.builtin}(x): what a lane says stands first, mask= last"
        raise c.wrong("mask", f"is {describe(given)}, not an int of a bit for each lane", hint)
    mask = t.convert(c.number("mask"), UINT64)
    bit = t.binary("and", t.binary("shr", mask, t.convert(lane_of(t, c), UINT64)), 1)
    return t.run_time(t.compare("ne", bit, 0))


def _vote(t: Expressions, c: Call, kind: str, said: Scalar, yes: Number, otherwise: int) -> Number:
    """What the lanes of the mask say, combined; the others say `otherwise`."""
    value = t.select(said, yes, 0)
    inside = _in_mask(t, c)
    if inside is not None:
        value = t.select(inside, value, otherwise)
    return combined(t, c, kind, value)


@builtin(T.any_sync, of="threads")
def any_sync(t: Expressions, c: Call) -> Number:
    return _vote(t, c, "bitor", _holds(t, c), t.constant(1, INT32), 0)


@builtin(T.all_sync, of="threads")
def all_sync(t: Expressions, c: Call) -> Number:
    return _vote(t, c, "bitand", _holds(t, c), t.constant(1, INT32), 1)


def _ballot(t: Expressions, c: Call, said: Scalar) -> Number:
    c.of("threads")
    bits = UINT32 if t.warp_size <= 32 else UINT64
    own = t.binary("shl", t.constant(1, bits), t.convert(lane_of(t, c), bits))
    return _vote(t, c, "bitor", said, own, 0)


@builtin(T.ballot_sync)
def ballot_sync(t: Expressions, c: Call) -> Number:
    return t.convert(_ballot(t, c, _holds(t, c)), UINT64)


builtin(T.ballot)(ballot_sync)
builtin(T.activemask)(lambda t, c: t.convert(_ballot(t, c, t.constant(True, BOOL)), UINT64))


@builtin(T.match_any_sync, of="threads")
def match_any_sync(t: Expressions, c: Call) -> Number:
    not_a_mask(t, c, "value")
    value = t.run_time(c.number("value"))
    found: Number = t.constant(0, UINT32)
    for lane in range(32):
        same = t.run_time(t.compare("eq", shuffled(t, value, lane), value))
        found = t.binary("or", found, t.select(same, t.constant(1 << lane, UINT32), 0))
    asked = _ballot(t, c, t.constant(True, BOOL))  # lanes of the mask that there are
    return t.binary("and", found, t.convert(asked, UINT32))


@builtin(T.match_all_sync, of="threads")
def match_all_sync(t: Expressions, c: Call) -> Number:
    not_a_mask(t, c, "value")
    value = t.run_time(c.number("value"))
    asked = t.run_time(t.convert(_ballot(t, c, t.constant(True, BOOL)), UINT32))
    below = t.binary("sub", t.binary("and", asked, t.unary("neg", asked)), 1)
    first = t.unary("popcount", t.run_time(below))
    same = t.run_time(t.compare("eq", shuffled(t, value, first), value))
    agree = _vote(t, c, "bitand", same, t.constant(1, INT32), 1)
    return t.select(t.run_time(t.compare("ne", agree, 0)), asked, 0)


@builtin(T.shuffle_elect, of="threads")
def shuffle_elect(t: Expressions, c: Call) -> object:
    extent = c.integer("thread_extent", 0)
    index = index_of_thread(t, c)
    return t.compare("eq", t.binary("mod", index, extent) if extent else index, 0)


# --- votes of a block -----------------------------------------------------------------------------


def _count(said, warps):  # type: ignore[no-untyped-def]
    """In how many threads `said` is 1, in the language of kernels."""
    notes = T.alloc_shared((warps,), "int32")
    mine = T.warp_reduce_sum(said)
    T.sync_threads()
    if T.get_lane_idx() == 0:
        notes[T.get_warp_idx()] = mine
    T.sync_threads()
    total = T.alloc_var("int32", 0)
    for warp in T.serial(warps):
        total += notes[warp]
    return total + 0


def _counted(t: Expressions, c: Call) -> Number:
    c.of("threads")
    said = t.select(_holds(t, c), t.constant(1, INT32), 0)
    warps = -(-math.prod(_shape(t, c)) // t.warp_size)
    return t.number(t.trace_function(_count, [said, warps], {}), "the count")


builtin(T.syncthreads_count)(lambda t, c: _counted(t, c))


@builtin(T.syncthreads_and)
def syncthreads_and(t: Expressions, c: Call) -> Number:
    return _as_int(t, t.compare("eq", _counted(t, c), math.prod(_shape(t, c))))


builtin(T.syncthreads_or)(lambda t, c: _as_int(t, t.compare("ne", _counted(t, c), 0)))


def _as_int(t: Expressions, found: Number) -> Number:
    return t.convert(found, INT32)
