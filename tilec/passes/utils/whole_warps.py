"""A block of any number of threads as one of whole warps.

Before: a kernel may ask for 1, 48 or 1000 threads. After: for a multiple of the target's warps.
Tile ops are done by all of them; what each thread does by itself, to memory or for others, only by
those that were asked for:

    threads=48                      threads=64
    S[t] = f(t)              ->     if t < 48 { S[t] = f(t) }
    copy A, B                       copy A, B

Reading costs nothing and stays, but for shared memory at a thread's own index, which would lie
behind its end; of tensors it is guarded, whatever the author says of his threads."""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.core import Block, Builder, Func, Op, rewrite, walk
from tilec.ir.ops import (
    Assume,
    DeviceAssert,
    Load,
    MbarrierArrive,
    MbarrierExpect,
    MbarrierExpectTx,
    Parallel,
    Print,
    Shuffle,
    ShuffleXor,
    ThreadIndex,
    WarpMma,
)
from tilec.ir.types import ScalarType
from tilec.ir.uniformity import LANES, Level, Uniformity, uniformity_of
from tilec.ir.varying import varying
from tilec.ir.verify import meets
from tilec.passes.utils.building import or_zero
from tilec.target import Target

_MEMORY = ("shared", "global")


def whole_warps(func: Func, target: Target) -> Func:
    """`func` with a number of threads that is a multiple of a warp; see the module's opening."""
    asked, size = int(func.attrs.get("threads") or 0), target.warp_size
    if target.max_threads == 1:  # threads are iterations; only shuffles know of warps
        shuffles = any(isinstance(o, Shuffle | ShuffleXor | WarpMma) for o in walk(func.body))
        size = LANES if shuffles else 1
    threads = -(-asked // size) * size
    if threads == asked:
        return func
    facts = uniformity_of(func)
    loops = (o for o in walk(func.body) if isinstance(o, Parallel))
    shared_out = {x for loop in loops for x in walk(loop.body)}  # among all threads

    own = (o.result for o in walk(func.body) if _is_threads_own(o, facts))
    threads_own = varying(func.body, own, allocs=False)

    def visit(o: Op) -> Sequence[Op] | None:
        if isinstance(o, Assume):  # what the author says of his threads
            return [] if o.lhs in threads_own or o.rhs in threads_own else None
        return _guarded(o, asked) if o not in shared_out and _is_own(o, facts) else None

    return func.with_body(rewrite(func.body, visit)).with_attrs(threads=threads)


def _is_threads_own(o: Op, facts: Uniformity) -> bool:
    """Whether `o` gives the thread's index, or what may have come of it in a variable."""
    if isinstance(o, Load) and o.source.buffer.space == "local":
        return facts.level(o.source) > Level.BLOCK
    return isinstance(o, ThreadIndex)


def _is_own(o: Op, facts: Uniformity) -> bool:
    """Whether each thread does `o` by itself, so that one too many would be noticed."""
    if o.pure or o.region_fields or meets(Block((), (o,))):
        return False
    if isinstance(o, MbarrierArrive | MbarrierExpect | MbarrierExpectTx):
        return True
    memory = [e for e in o.effects() if e.region and e.region.buffer.buffer.space in _MEMORY]
    if any(e.kind == "update" for e in memory):
        return True
    levels = [facts.level(v) for v in o.operands if isinstance(v.type, ScalarType)]
    shows = isinstance(o, Print | DeviceAssert)
    if shows:
        levels.append(facts.around(o))
    if max(levels, default=Level.BLOCK) == Level.BLOCK:
        return False  # all do the same
    reads_shared = isinstance(o, Load) and o.buffer.buffer.space == "shared"
    return reads_shared or shows or any(e.writes for e in memory)


def _guarded(o: Op, asked: int) -> list[Op]:
    b = Builder(o.loc)
    inside = b.compare("lt", b.value(ThreadIndex), asked)
    return [*b.ops, or_zero(inside, o)]
