"""Atomics that every thread of a block does alike: legal, as in TileLang, and hardly meant.

Outside of T.Parallel a scalar statement is each thread's own, so that T.atomic_add(Y[0], s[0]) adds
as often as the block has threads. Not told are those that a thread may well mean: of a kernel that
asks for its threads, with the previous value (a ticket), in an order with other memory (an arrival
at a counter), and those that come out the same however often they are done (max, and, exchange)."""

from __future__ import annotations

from tilec.ir.core import Func, walk
from tilec.ir.errors import CompileWarning, warn
from tilec.ir.ops import Atomic, DeviceFence, Parallel, ThreadIndex
from tilec.ir.uniformity import Level, uniformity_of

_EACH_TIME = ("add", "xor")  # one more changes the result


def warn_of_repeated_atomics(func: Func) -> None:
    """Warn of each in a TILE function, at its line."""
    every = list(walk(func.body))
    found = [o for o in every if isinstance(o, Atomic) and o.kind in _EACH_TIME]
    if not found or any(isinstance(o, (ThreadIndex, DeviceFence)) for o in every):
        return
    threads = func.attrs.get("threads")
    if threads == 1:
        return
    used = {v for o in every for v in o.operands}
    shared_out = {x for o in every if isinstance(o, Parallel) for x in walk(o.body)}
    alike = uniformity_of(func)
    for o in found:
        levels = (alike.around(o), *map(alike.level, (*o.indices, o.value)))
        if o in shared_out or o.result in used or max(levels) > Level.BLOCK:
            continue
        name = o.dest.name
        times = f"{threads} times" if threads else "as often as there are threads"
        warn(
            CompileWarning,
            f"each thread of the block does this atomic {o.kind} of the same value to the same "
            f"element of {name}: it is done {times}",
            o.loc,
            f"for i in T.Parallel(1): T.atomic_{o.kind}({name}[…], …) does it once for the block\n"
            f"if each thread is to do it: for i in T.Parallel({threads or 'threads'})",
        )
