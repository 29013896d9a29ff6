"""gather_sums: `cluster_sum` becomes stores, arrivals and loads between the blocks of a cluster.

Before: SCHEDULED, with at most one `cluster_sum`. After: none. Every block but the first writes
its registers to its own shared memory, 16 bytes of each thread next to those of its neighbours, and
arrives at a barrier of the first block, publishing what it wrote. The first block waits for all
warps of the others and adds what it loads from them, one block after the other: the same thread
holds the same elements in all blocks. The cluster begins together (its barriers are set up) and
ends together (no shared memory goes while it is read)."""

from __future__ import annotations

from collections.abc import Callable

from tilec.ir.clusters import split_of
from tilec.ir.core import Block, Builder, Func, Op, Value, rewrite, walk
from tilec.ir.layout import row_major
from tilec.ir.ops import (
    Alloc,
    Barrier,
    Binary,
    ClusterBarrier,
    ClusterIndex,
    ClusterLoad,
    ClusterSum,
    Compare,
    Const,
    Extract,
    For,
    Lane,
    MbarrierArrive,
    MbarrierInit,
    MbarrierInitFence,
    MbarrierWait,
    MemStore,
    Pack,
    RegRead,
    RegWrite,
    ThreadIndex,
    WarpSync,
    Yield,
)
from tilec.ir.types import INT32, INT64, BufferType
from tilec.passes.lower_gemm import close, unrolled
from tilec.passes.rings import const, elected, only_if
from tilec.target import Target

VECTOR_BITS = 128


def gather_sums(func: Func, target: Target) -> Func:
    """See the module's opening."""
    sums = [o for o in walk(func.body) if isinstance(o, ClusterSum)]
    if not sums:
        return func
    (o,) = sums
    threads = int(func.attrs["threads"])
    specialised = int(func.attrs["launch_threads"]) != threads
    top = Builder(func.loc)
    staging = {v: _staging(top, v, threads) for v in o.fragments}
    t = BufferType((1,), INT64, "barrier")
    arrived = top.value(Alloc, t, name="sum_arrived")
    init = Builder(func.loc)
    others = split_of(func) - 1
    init.emit(MbarrierInit, arrived, others * (threads // target.warp_size))
    init.emit(MbarrierInitFence)
    only_if(top, elected(top), init.ops)
    top.emit(ClusterBarrier)

    def visit(o: Op) -> None | list[Op]:
        if not isinstance(o, ClusterSum):
            return None
        b = Builder(o.loc)
        b.emit(Barrier, *((1, threads) if specialised else (0, 0)))  # nobody reads what was here
        number = b.value(ClusterIndex, 0)
        zero = const(b, 0)
        only_if(b, b.value(Compare, "ne", number, zero), _give(o, staging, arrived, threads))
        only_if(
            b, b.value(Compare, "eq", number, zero), _take(o, staging, arrived, threads, others)
        )
        return b.ops

    body = rewrite(func.body, visit)
    ends = bool(body.ops) and isinstance(body.ops[-1], Yield)
    last = Builder(func.loc)
    last.emit(ClusterBarrier)
    ops = (
        *top.ops,
        *body.ops[: len(body.ops) - ends],
        *last.ops,
        *body.ops[len(body.ops) - ends :],
    )
    return func.with_body(Block((), ops))


def _lanes(v: Value) -> int:
    """Elements of a fragment that travel together."""
    return VECTOR_BITS // v.dtype.bits


def _count(v: Value) -> tuple[int, int]:
    """(vectors that are full, elements of the last one that is not) in a thread's registers."""
    layout = v.buffer.layout
    assert layout is not None
    return divmod(layout.size("reg"), _lanes(v))


def _staging(b: Builder, v: Value, threads: int) -> Value:
    full, left = _count(v)
    shape = ((full + bool(left)) * threads * _lanes(v),)
    t = BufferType(shape, v.dtype, "shared", layout=row_major(shape))
    return b.value(Alloc, t, name=f"{v.name}_parts")


class _Vectors:
    """Where a thread's registers stand in the staging buffer."""

    def __init__(self, b: Builder, v: Value, threads: int) -> None:
        self.v = v
        self.lanes = _lanes(v)
        self.own = b.value(Binary, "mul", b.value(ThreadIndex), const(b, self.lanes))
        self.apart = threads * self.lanes

    def offset(self, b: Builder, vector: Value) -> Value:
        before = b.value(Binary, "mul", vector, const(b, self.apart))
        return b.value(Binary, "add", before, self.own)

    def register(self, b: Builder, vector: Value, element: int) -> Value:
        first = b.value(Binary, "mul", vector, const(b, self.lanes))
        return b.value(Binary, "add", first, const(b, element))


def _give(o: ClusterSum, staging: dict[Value, Value], arrived: Value, threads: int) -> list[Op]:
    b = Builder(o.loc)
    for v in o.fragments:
        vectors = _Vectors(b, v, threads)

        def store(into: Builder, vector: Value, count: int, vectors: _Vectors = vectors) -> None:
            v = vectors.v
            values = [
                into.value(RegRead, v, vectors.register(into, vector, e)) for e in range(count)
            ]
            empty = 0 if v.dtype.is_int else 0.0
            values += [into.value(Const, empty, v.dtype)] * (vectors.lanes - count)
            at = vectors.offset(into, vector)
            packed = into.value(Pack, tuple(values))
            into.emit(MemStore, staging[v], at, packed, VECTOR_BITS // 8)

        _each(b, v, store)
    b.emit(WarpSync)
    lane = b.value(Compare, "eq", b.value(Lane), const(b, 0))
    b.emit(MbarrierArrive, arrived, const(b, 0), lane, const(b, 0), publish=True)
    return b.ops


def _take(
    o: ClusterSum, staging: dict[Value, Value], arrived: Value, threads: int, others: int
) -> list[Op]:
    b = Builder(o.loc)
    b.emit(MbarrierWait, arrived, const(b, 0), const(b, 0), acquire=True)
    block = Value(b.value(Const, 1, INT32).type, "block")
    inner = Builder(o.loc)
    for v in o.fragments:
        vectors = _Vectors(inner, v, threads)

        def add(into: Builder, vector: Value, count: int, vectors: _Vectors = vectors) -> None:
            v = vectors.v
            at = vectors.offset(into, vector)
            got = into.value(ClusterLoad, staging[v], at, block, vectors.lanes)
            for e in range(count):
                register = vectors.register(into, vector, e)
                value = into.value(Extract, got, e)
                total = into.value(Binary, "add", into.value(RegRead, v, register), value)
                into.emit(RegWrite, v, register, total)

        _each(inner, v, add)
    inner.emit(Yield)
    bounds = (const(b, 1), const(b, others + 1), const(b, 1))
    b.emit(For, "serial", *bounds, (), inner.block([block]))
    return b.ops


def _each(b: Builder, v: Value, do: Callable[[Builder, Value, int], None]) -> None:
    """`do(builder, vector, elements)` for every vector of a thread's registers."""
    full, left = _count(v)
    if full:
        vector, inner = unrolled(b, full, "vector")
        do(inner, vector, _lanes(v))
        close(b, "unroll", vector, full, inner)
    if left:
        do(b, const(b, full), left)
