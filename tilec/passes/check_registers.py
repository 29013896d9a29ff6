"""check_registers: a fragment that no thread can hold is refused before any code is made.

Before and after: LAID_OUT; nothing is changed. Raises ResourceError where one fragment alone takes
more registers than a thread has, less what addresses and loops need, and says what would fit."""

from __future__ import annotations

from tilec.ir.core import Func, walk
from tilec.ir.errors import ResourceError
from tilec.ir.ops import Alloc
from tilec.passes.registers import budget
from tilec.target import Target


def check_registers(func: Func, target: Target) -> Func:
    """See the module's opening."""
    threads = int(func.attrs["threads"]) * int(func.attrs.get("teams", 1))
    specialised = bool(func.attrs.get("specialise"))
    limit = budget(threads, specialised, target)
    for o in walk(func.body):
        if not isinstance(o, Alloc) or o.type.space != "fragment" or o.type.layout is None:
            continue
        needed = -(-o.type.layout.size("reg") * o.type.dtype.bits // 32)
        if needed <= limit:
            continue
        shape = "x".join(map(str, o.type.shape))
        raise ResourceError(
            f"the {shape} {o.type.dtype.name} fragment {o.result.name} takes {needed} registers of "
            f"each of {threads} threads; on {target} {limit} are left for it",
            o.loc,
            _hint(o, threads, specialised, target, int(func.attrs.get("teams", 1))),
        )
    return func


def _hint(o: Alloc, threads: int, specialised: bool, target: Target, teams: int) -> str:
    """More threads, if they would hold the fragment; else a smaller tile that does."""
    bits = o.type.size * o.type.dtype.bits
    if teams > 1:
        held = bits // (threads // teams) // 32
        fits = [t for t in (128, 256) if bits // t <= 32 * budget(t, specialised, target)]
        other = f'consumers="cooperative" and threads={fits[-1]}' if fits else "a smaller tile"
        return f"each of {teams} teams holds a tile of its own in {held} registers: {other} fits"
    more = threads
    while more <= target.max_threads:
        if bits // more <= 32 * budget(more, specialised, target):
            return f"threads={more} fits"
        more *= 2
    rows, columns = o.type.static_shape[0], o.type.static_shape[-1]
    return f"halve the tile: {rows // 2}x{columns} or {rows}x{columns // 2}"
