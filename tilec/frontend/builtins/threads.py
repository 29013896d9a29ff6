"""Builtins of threads: indices, meetings, shuffles, decisions that they take together, the extents
of blocks and grids; and of the blocks of a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tilec import language as T
from tilec.builtins.threads import ALL_LANES
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.scalar import block_index, index_of_thread, thread_along
from tilec.frontend.builtins.table import Call, builtin, emits, named, traced
from tilec.frontend.expressions import Expressions
from tilec.frontend.guards import Condition
from tilec.frontend.index import Reach
from tilec.frontend.values import Number, Scalar, describe
from tilec.ir import ops
from tilec.ir.core import Block, Op, Value, makers, upstream, walk
from tilec.ir.ops import GridSize
from tilec.ir.ops.tile import COMBINED
from tilec.ir.semantics import neutral
from tilec.ir.types import BOOL, INT32, UINT32, UINT64
from tilec.support.lazy import Lazy

sync = Lazy("tilec.ir.instr.sync")  # with it come the tables of all instructions


def sources_of(t: Expressions, values: Iterable[Value]) -> tuple[list[Op], bool, bool]:
    """The ops that values are computed from, whether the thread's index is among these, and whether
    something is that cannot be computed for another thread."""
    defs = makers(o for b in t.builders for o in b.ops)
    values = list(values)
    made = list(upstream(values, defs))
    inner = [x for o in made for x in (o, *(y for block in o.regions for y in walk(block)))]
    by_thread = any(isinstance(x, ops.ThreadIndex) for x in inner)
    kept = any(isinstance(x, ops.Load) and x.buffer.space == "local" for x in inner)
    carried = any(v in t.carried for v in (*values, *(v for x in inner for v in x.operands)))
    return made, by_thread, kept or carried or (by_thread and not all(o.pure for o in made))


def same_in_all_threads(
    t: Expressions, guards: Sequence[Condition | None], values: Iterable[Value] = ()
) -> bool:
    """Whether either all threads or none come where `guards` hold, and find `values` alike, as far
    as can be told."""
    if None in guards:
        return False
    terms = [v for guard in guards for c in guard or () for v in c.tested.terms]
    _, by_thread, unknown = sources_of(t, (*terms, *values))
    return not by_thread and not unknown


def asks_for_threads(t: Expressions) -> bool:
    """Whether the kernel has asked for the thread's index so far."""
    made = (o for b in t.builders for o in walk(Block((), tuple(b.ops))))
    return any(isinstance(o, ops.ThreadIndex) for o in made)


# --- indices --------------------------------------------------------------------------------------


builtin(T.thread_return, of="threads")(lambda t, c: t.end_thread(c.node))


@builtin(T.get_thread_bindings, of="threads")
def get_thread_bindings(t: Expressions, c: Call) -> tuple[Number, ...]:
    return tuple(thread_along(t, c, dim) for dim in range(3))


builtin(T.get_block_bindings)(lambda t, c: tuple(block_index(t, axis) for axis in range(3)))


def _warp_size(t: Expressions, c: Call) -> int:
    return t.warp_size if c["warp_size"] is None else c.integer("warp_size", 1)


def lane_of(t: Expressions, c: Call) -> Number:
    """The lane of this thread in a warp of the target."""
    return t.binary("mod", index_of_thread(t, c), t.warp_size)


builtin(T.get_lane_idx)(lambda t, c: t.binary("mod", index_of_thread(t, c), _warp_size(t, c)))


@builtin(T.get_warp_idx, T.get_warp_idx_sync)
def get_warp_idx(t: Expressions, c: Call) -> Number:
    return t.binary("floordiv", index_of_thread(t, c), _warp_size(t, c))


@builtin(T.get_warp_group_idx)
def get_warp_group_idx(t: Expressions, c: Call) -> Number:
    warps = 4 if c["warps_per_group"] is None else c.integer("warps_per_group", 1)
    size = _warp_size(t, c) * warps
    return t.binary("floordiv", index_of_thread(t, c), size)


# --- meetings -------------------------------------------------------------------------------------


@builtin(T.sync_threads, of="threads")
def sync_threads(t: Expressions, c: Call) -> None:
    if c["barrier_id"] is None:
        number = sync.NAMED_BARRIERS - 1 if t.options.whole_syncs and t.depth else 0
        t.emit(ops.Barrier, number)
        return
    given = c.whole("barrier_id", "barriers have numbers: write 1")
    at_run_time = isinstance(given, Scalar) and static_int(given) is None
    number = 0 if at_run_time else c.integer("barrier_id", 0)
    threads = 0 if c["arrive_count"] is None else c.integer("arrive_count", 1)
    if number >= sync.NAMED_BARRIERS:
        hint = f"a block has barriers 0 to {sync.NAMED_BARRIERS - 1}"
        raise c.wrong("barrier_id", f"is {number}", hint)
    if threads % 32 and threads != math.prod(t.block_shape):
        hint = f"write {max(32, threads // 32 * 32)}"
        raise c.wrong("arrive_count", f"is {threads}: whole warps of 32 threads come", hint)
    whole = threads == math.prod(t.block_shape) or (threads == 0 and number == 0)
    value = t.convert(given, T.int32).value if at_run_time else None
    t.emit(ops.Barrier, number, 0 if whole else threads, value)


builtin(T.sync_grid, of="threads")(emits(ops.GridSync))
builtin(T.sync_warp, of="threads")(emits(ops.WarpSync))


# --- shuffles -------------------------------------------------------------------------------------


def not_a_mask(t: Expressions, c: Call, name: str) -> None:
    """CUDA's functions of a warp take the mask first, which would be taken for the value here."""
    if static_int(c[name]) == ALL_LANES:
        hint = f"T.{c.builtin} takes {name} first, and mask= last; all lanes take part without it"
        raise c.wrong(name, f"is 0x{ALL_LANES:x}, a mask of all lanes", hint)


def _value(t: Expressions, c: Call) -> Scalar:
    c.of("threads")
    not_a_mask(t, c, "value")
    return t.run_time(c.number("value"))


def _lanes(t: Expressions, c: Call) -> tuple[int, Number, Number]:
    """The width of a group of lanes, this thread's lane, and its place in its group."""
    width = c.integer("width", 1)
    if width > t.warp_size or width & (width - 1):
        said = f"is {width}; lanes form groups of a power of two up to the {t.warp_size} of a warp"
        raise c.wrong("width", said, f"write width={t.warp_size}, or leave it out")
    lane = lane_of(t, c)
    return width, lane, t.binary("mod", lane, width)


def _delta(t: Expressions, c: Call, name: str = "delta") -> Number:
    delta = c.whole(name, "lanes are ints", "")
    return delta if isinstance(delta, int) else t.to_index(delta)


def shuffled(t: Expressions, value: Scalar, lane: Number) -> Scalar:
    """`value` as a lane of the warp has it."""
    return t.emit_scalar(ops.Shuffle, value.value, t.convert(lane, T.int32).value)


@builtin(T.shfl_sync)
def shfl_sync(t: Expressions, c: Call) -> Scalar:
    value = _value(t, c)
    width, lane, place = _lanes(t, c)
    there = t.binary("mod", _delta(t, c, "srcLane"), width)
    return shuffled(t, value, t.binary("add", t.binary("sub", lane, place), there))


@builtin(T.shfl_xor)
def shfl_xor(t: Expressions, c: Call) -> Scalar:
    value, delta = _value(t, c), _delta(t, c)
    width, lane, place = _lanes(t, c)
    known = static_int(delta)
    if known is not None and 0 < known < width:
        return t.emit_scalar(ops.ShuffleXor, value.value, known)
    there = t.binary("xor", place, t.binary("mod", delta, width))
    return shuffled(t, value, t.binary("add", t.binary("sub", lane, place), there))


builtin(T.shfl_up)(lambda t, c: _moved(t, c, "sub"))
builtin(T.shfl_down)(lambda t, c: _moved(t, c, "add"))


def _moved(t: Expressions, c: Call, kind: str) -> Scalar:
    """From a lane at a distance; lanes for whom there is none in their group keep what they
    have."""
    value, delta = _value(t, c), _delta(t, c)
    width, lane, place = _lanes(t, c)
    at = t.binary(kind, place, delta)
    inside = t.compare("lt", at, width) if kind == "add" else t.compare("ge", at, 0)
    there = t.binary(kind, lane, delta)
    if isinstance(inside, Scalar):
        return shuffled(t, value, t.select(inside, there, lane))
    return shuffled(t, value, there if inside else lane)


def combined(t: Expressions, c: Call, kind: str, value: Scalar) -> Scalar:
    """`value` of all lanes of the warp that the kernel asked for, combined."""
    threads = math.prod(t.block_shape)
    if t.block_shape and threads % t.warp_size:  # where nobody asked, warps are whole
        asked = t.compare("lt", index_of_thread(t, c), threads)
        if isinstance(asked, Scalar):
            nothing = t.constant(neutral(COMBINED.get(kind, kind), value.dtype), value.dtype)
            value = t.select(asked, value, nothing)
    mask = t.warp_size // 2
    while mask:
        other = t.emit_scalar(ops.ShuffleXor, value.value, mask)
        value = t.run_time(t.binary(COMBINED.get(kind, kind), value, other))
        mask //= 2
    return value


@builtin(*named("warp_reduce_{}", ("sum", "max", "min", "bitand", "bitor")))
def warp_reduce(t: Expressions, c: Call) -> Number:
    value, kind = _value(t, c), c.builtin.removeprefix("warp_reduce_")
    if kind.startswith("bit") and value.dtype.is_float:
        message = f"T.{c.builtin} combines the bits of ints, not {describe(value)}"
        raise t.error(message, "use T.warp_reduce_max, or an int", c.place("value"))
    return combined(t, c, kind, value)


# --- clusters -------------------------------------------------------------------------------------


builtin(T.block_rank_in_cluster)(lambda t, c: rank_in_cluster(t))


def rank_in_cluster(t: Expressions) -> Number:
    """This block's number in its cluster."""
    rank: Number = 0
    for dim, blocks in reversed([*enumerate(t.cluster or ())]):
        if blocks > 1:
            own = t.binary("mod", block_index(t, dim), blocks)
            rank = t.binary("add", t.binary("mul", rank, blocks), own)
    return rank


def in_cluster(t: Expressions, c: Call) -> None:
    """Raise CompileError in a kernel that is not launched in clusters."""
    if t.cluster is None:
        hint = "write with T.Kernel(…, cluster_dims=2)"
        raise t.error(f"T.{c.builtin} in a kernel that is not launched in clusters", hint)


def _meet(t: Expressions, c: Call, part: str) -> None:
    in_cluster(t, c)
    t.emit(ops.ClusterBarrier, part)


builtin(T.cluster_sync, of="threads")(lambda t, c: _meet(t, c, ""))
builtin(T.cluster_arrive, of="threads")(lambda t, c: _meet(t, c, "arrive"))
builtin(T.cluster_wait, of="threads")(lambda t, c: _meet(t, c, "wait"))


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


@builtin(T.ballot_sync, T.ballot)
def ballot_sync(t: Expressions, c: Call) -> Number:
    return t.convert(_ballot(t, c, _holds(t, c)), UINT64)


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
    return traced(t, _count, said, warps)


builtin(T.syncthreads_count)(lambda t, c: _counted(t, c))


@builtin(T.syncthreads_and)
def syncthreads_and(t: Expressions, c: Call) -> Number:
    return _as_int(t, t.compare("eq", _counted(t, c), math.prod(_shape(t, c))))


builtin(T.syncthreads_or)(lambda t, c: _as_int(t, t.compare("ne", _counted(t, c), 0)))


def _as_int(t: Expressions, found: Number) -> Number:
    return t.convert(found, INT32)
