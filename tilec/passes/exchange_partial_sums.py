"""exchange_partial_sums: `cluster_sum` becomes stores, arrivals and loads between the blocks of a
cluster.

Before: SCHEDULED, with at most one `cluster_sum`. After: none. A block writes its registers to its
own shared memory, 16 bytes of each thread next to those of its neighbours, and publishes them by
arriving at a barrier of whoever reads them. The same thread holds the same elements in all blocks.

- Two blocks: the first one loads the registers of the other and adds them.
- More: each block adds up one share of the vectors of all blocks, in the order of their numbers,
  leaves the totals in its own shared memory and publishes them to the first block, which loads
  them. So no block has to bring in much more than one fragment.

The cluster begins together (its barriers are set up) and ends together (no shared memory goes while
it is read)."""

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
    Extract,
    Lane,
    MbarrierArrive,
    MbarrierInit,
    MbarrierInitFence,
    MbarrierWait,
    MemStore,
    Pack,
    RegRead,
    RegWrite,
    WarpSync,
    Yield,
)
from tilec.ir.types import INT64, BufferType
from tilec.passes.lower_gemm import close, unrolled
from tilec.passes.utils.rings import const, elected, only_if
from tilec.passes.utils.vectors import VECTOR_BITS, Vectors
from tilec.target import Target

BATCH = 8  # vectors on their way at once: the way to another block takes about a thousand clocks


def exchange_partial_sums(func: Func, target: Target) -> Func:
    """See the module's opening."""
    sums = [o for o in walk(func.body) if isinstance(o, ClusterSum)]
    if not sums:
        return func
    (o,) = sums
    gather = _Gather(func, o, target)

    def visit(o: Op) -> None | list[Op]:
        return gather.expand(o) if isinstance(o, ClusterSum) else None

    body = rewrite(func.body, visit)
    end = len(body.ops) - (bool(body.ops) and isinstance(body.ops[-1], Yield))
    last = ClusterBarrier(loc=func.loc)
    return func.with_body(Block((), (*gather.top.ops, *body.ops[:end], last, *body.ops[end:])))


class _Parts(Vectors):
    """The registers of one fragment as vectors in the shared memory of each block."""

    def __init__(self, top: Builder, fragment: Value, threads: int) -> None:
        super().__init__(fragment, threads)
        t = BufferType((self.size,), fragment.dtype, "shared", layout=row_major((self.size,)))
        self.buffer = top.value(Alloc, t, name=f"{fragment.name}_parts")

    def each(self, b: Builder, do: Callable[[Builder, list[Value], int], None]) -> None:
        """`do(builder, vectors, elements of each)` for all vectors, with numbers for their
        registers: a batch at a time, so that what it loads is on its way all at once."""
        batches, rest = divmod(self.full, BATCH)
        if batches:
            batch, inner = unrolled(b, batches, "batch")
            first = inner.value(Binary, "mul", batch, const(inner, BATCH))
            vectors = [inner.value(Binary, "add", first, const(inner, i)) for i in range(BATCH)]
            do(inner, vectors, self.lanes)
            close(b, "unroll", batch, batches, inner)
        if rest:
            do(b, [const(b, batches * BATCH + i) for i in range(rest)], self.lanes)
        if self.left:
            do(b, [const(b, self.full)], self.left)

    def write(self, b: Builder, vectors: list[Value], elements: int) -> None:
        """Vectors of registers to this block's shared memory."""
        for vector in vectors:
            self.store(b, vector, self.registers(b, vector, elements))

    def store(self, b: Builder, vector: Value, values: list[Value]) -> None:
        packed = b.value(Pack, tuple(values))
        b.emit(MemStore, self.buffer, self.offset(b, vector), packed, VECTOR_BITS // 8)

    def load(self, b: Builder, vector: Value, block: Value) -> list[Value]:
        """The elements of one vector of another block."""
        got = b.value(ClusterLoad, self.buffer, self.offset(b, vector), block, self.lanes)
        return [b.value(Extract, got, e) for e in range(self.lanes)]


class _Gather:
    """One `cluster_sum`. `top` is what the kernel does first."""

    def __init__(self, func: Func, o: ClusterSum, target: Target) -> None:
        self.loc = o.loc
        self.blocks = split_of(func)
        self.threads = int(func.attrs["threads"])
        specialised = int(func.attrs["launch_threads"]) != self.threads
        self.barrier = (1, self.threads) if specialised else (0, 0)
        self.top = top = Builder(func.loc)
        self.parts = [_Parts(top, v, self.threads) for v in o.fragments]
        warps = self.threads // target.warp_size
        self.direct = self.blocks == 2
        self.written = self._barrier("parts_written")
        self.summed = self.written if self.direct else self._barrier("shares_summed")
        init = Builder(func.loc)
        writers = 1 if self.direct else self.blocks
        init.emit(MbarrierInit, self.written, writers * warps)
        if not self.direct:
            init.emit(MbarrierInit, self.summed, self.blocks * warps)
        init.emit(MbarrierInitFence)
        only_if(top, elected(top), init.ops)
        top.emit(ClusterBarrier)

    def _barrier(self, name: str) -> Value:
        return self.top.value(Alloc, BufferType((1,), INT64, "barrier"), name=name)

    def expand(self, o: ClusterSum) -> list[Op]:
        b = Builder(self.loc)
        b.emit(Barrier, *self.barrier)  # all threads are done with what was in these bytes
        number = b.value(ClusterIndex, 0)
        first = b.value(Compare, "eq", number, const(b, 0))
        if self.direct:
            give, take = Builder(self.loc), Builder(self.loc)
            self.write(give)
            self.publish(give, self.written, 1)
            only_if(b, b.value(Compare, "ne", number, const(b, 0)), give.ops)
            self.wait(take, self.written)
            self.take(take)
            only_if(b, first, take.ops)
            return b.ops
        self.write(b)
        self.publish(b, self.written, self.blocks)
        self.wait(b, self.written)
        for p in self.parts:
            self.sum_share(b, p, number)
        self.publish(b, self.summed, 1)
        take = Builder(self.loc)
        self.wait(take, self.summed)
        self.take(take)
        take.emit(Barrier, *self.barrier)  # what comes next may use the bytes
        only_if(b, first, take.ops)
        return b.ops

    # --- steps ---

    def write(self, b: Builder) -> None:
        for p in self.parts:
            p.each(b, p.write)

    def publish(self, b: Builder, barrier: Value, blocks: int) -> None:
        """Each warp arrives once at the barrier of the first `blocks` blocks."""
        b.emit(WarpSync)
        lane = b.value(Lane)
        who = b.value(Compare, "lt", lane, const(b, blocks))
        b.emit(MbarrierArrive, barrier, const(b, 0), who, lane, publish=True)

    def wait(self, b: Builder, barrier: Value) -> None:
        b.emit(MbarrierWait, barrier, const(b, 0), const(b, 0), acquire=True)

    def share(self, p: _Parts) -> int:
        """Vectors that each block adds up; the last blocks perhaps fewer."""
        return -(-p.count // self.blocks)

    def sum_share(self, b: Builder, p: _Parts, number: Value) -> None:
        """Add up this block's share of the vectors, in the order of the blocks."""
        share = self.share(p)
        start = b.value(Binary, "mul", number, const(b, share))
        last = const(b, p.count - 1)
        batch = max(1, BATCH // self.blocks)
        for i in range(0, share, batch):
            first = b.value(Binary, "add", start, const(b, i))
            # Beyond the last vector stands nothing: the last blocks may have no share.
            mine = Builder(self.loc)
            self.sum_batch(mine, p, first, min(batch, share - i), last)
            only_if(b, b.value(Compare, "le", first, last), mine.ops)

    def sum_batch(self, b: Builder, p: _Parts, first: Value, count: int, last: Value) -> None:
        """Add up `count` vectors from `first` on, as far as there are any; all loads are on their
        way before the first sum."""
        vectors = [b.value(Binary, "add", first, const(b, n)) for n in range(count)]
        loaded = [
            [p.load(b, b.value(Binary, "min", v, last), const(b, n)) for n in range(self.blocks)]
            for v in vectors
        ]
        for vector, parts in zip(vectors, loaded):
            total = parts[0]
            for values in parts[1:]:
                total = [b.value(Binary, "add", x, y) for x, y in zip(total, values)]
            store = Builder(self.loc)
            p.store(store, vector, total)
            # Beyond the last vector stands a part that its own block has yet to read.
            only_if(b, b.value(Compare, "le", vector, last), store.ops)

    def take(self, b: Builder) -> None:
        """In the first block: every vector from the block that has it, on top of its own registers
        where that is another block's part, in their place where it is the total."""
        for p in self.parts:

            def some(into: Builder, vectors: list[Value], elements: int, p: _Parts = p) -> None:
                loaded = [p.load(into, v, self.holder(into, p, v)) for v in vectors]
                for vector, values in zip(vectors, loaded):
                    for e, value in enumerate(values[:elements]):
                        register = p.register(into, vector, e)
                        if self.direct:
                            own = into.value(RegRead, p.fragment, register)
                            value = into.value(Binary, "add", own, value)
                        into.emit(RegWrite, p.fragment, register, value)

            p.each(b, some)

    def holder(self, b: Builder, p: _Parts, vector: Value) -> Value:
        """The block whose vector the first one takes."""
        if self.direct:
            return const(b, 1)
        return b.value(Binary, "floordiv", vector, const(b, self.share(p)))
