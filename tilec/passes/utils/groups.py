"""Groups of threads that kernels part themselves into: which scope an op belongs to, and the
barriers at which each group meets."""

from __future__ import annotations

from collections.abc import Callable

from tilec.ir.core import Func, Op, Value, walk, within
from tilec.ir.errors import CompileError
from tilec.ir.instr.sync import NAMED_BARRIERS
from tilec.ir.loc import Loc
from tilec.ir.ops import Barrier, BarrierArrive, Scope
from tilec.passes.utils.rings import meeting
from tilec.passes.utils.sync_state import ALL, Group
from tilec.target import Target


def warps_of(func: Func, target: Target) -> Callable[[Op], int]:
    """For each op of the function as it stands now: the warps of the scope that it is in."""
    whole = int(func.attrs["threads"]) // target.warp_size
    found: dict[Op, int] = {}
    for o, around in within(func.body) if func.body.has(Scope) else ():
        for scope in (x for x in around if isinstance(x, Scope)):
            found[o] = scope.warps // scope.consumer_groups
    return lambda o: found.get(o, whole)


def fragment_warps(func: Func, target: Target) -> dict[Value, int]:
    """The warps that hold each fragment: of the scope that uses it. Raises CompileError where
    scopes of different sizes do."""
    warps = warps_of(func, target)
    found: dict[Value, tuple[int, Op]] = {}

    for o in walk(func.body):
        for v in o.operands:
            if getattr(v.type, "space", "") != "fragment":
                continue
            before, first = found.setdefault(v, (warps(o), o))
            if before != warps(o):
                size = target.warp_size
                raise CompileError(
                    f"{v.name} is a fragment of {before * size} threads on line "
                    f"{first.loc.line}, and of {warps(o) * size} threads here",
                    o.loc,
                    "use it in groups of one size only; hand it on through shared memory",
                )
    return {v: n for v, (n, _) in found.items()}


# --- where they meet ---


class GroupBarriers:
    """`whole`: number and threads of that of all threads; `numbered`: a barrier of the author's
    whose number is known at run time, if there is one."""

    def __init__(self, func: Func, warp_size: int) -> None:
        self.whole, self._warp_size = meeting(func), warp_size
        self.numbered = next((o for o in func.body.every(Barrier) if o.number is not None), None)
        self._numbers = {} if self.numbered else _numbers(func)  # it may be any of them

    def of(self, group: Group, loc: Loc) -> Barrier:
        """The barrier at which the threads of `group` meet. Raises CompileError where there is none
        for it."""
        if group == ALL:
            return Barrier(*self.whole, loc=loc)
        number = self._numbers.get(group)
        if number is None and self.numbered is not None:
            raise CompileError(
                "a group of threads meets here, at a barrier that T.sync_threads may name: the "
                f"number in line {self.numbered.loc.line} is known at run time",
                loc,
                "write a compile-time number there, such as T.sync_threads(1, …)",
            )
        if number is None:
            raise CompileError(
                f"the threads part into more groups than the {NAMED_BARRIERS} barriers of a block",
                loc,
                "use fewer groups, or move tile ops out of some of them",
            )
        return Barrier(number, group[1] * self._warp_size, loc=loc)


def _numbers(func: Func) -> dict[Group, int]:
    """A named barrier for each group of threads, of those that the author does not use."""
    groups = dict.fromkeys((o.first_warp, o.warps) for o in func.body.every(Scope))
    taken = {o.id for o in walk(func.body) if isinstance(o, Barrier | BarrierArrive)}
    free = (n for n in range(NAMED_BARRIERS - 1, 0, -1) if n not in taken)
    return dict(zip(groups, free))
