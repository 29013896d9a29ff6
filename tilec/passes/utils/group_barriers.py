"""The barriers at which the groups of threads that a kernel parts itself into meet."""

from __future__ import annotations

from tilec.ir import ops
from tilec.ir.core import Func, walk
from tilec.ir.errors import CompileError
from tilec.ir.instr.sync import NAMED_BARRIERS
from tilec.ir.loc import Loc
from tilec.passes.utils.rings import meeting
from tilec.passes.utils.sync_state import ALL, Group


class GroupBarriers:
    """`whole`: number and threads of that of all threads; `numbered`: a barrier of the author's
    whose number is known at run time, if there is one."""

    def __init__(self, func: Func, warp_size: int) -> None:
        self.whole, self._warp_size = meeting(func), warp_size
        self.numbered = next(
            (o for o in func.body.every(ops.Barrier) if o.number is not None), None
        )
        self._numbers = {} if self.numbered else _numbers(func)  # it may be any of them

    def of(self, group: Group, loc: Loc) -> ops.Barrier:
        """The barrier at which the threads of `group` meet. Raises CompileError where there is none
        for it."""
        if group == ALL:
            return ops.Barrier(*self.whole, loc=loc)
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
        return ops.Barrier(number, group[1] * self._warp_size, loc=loc)


def _numbers(func: Func) -> dict[Group, int]:
    """A named barrier for each group of threads, of those that the author does not use."""
    groups = dict.fromkeys((o.first_warp, o.warps) for o in func.body.every(ops.Scope))
    taken = {o.id for o in walk(func.body) if isinstance(o, ops.Barrier | ops.BarrierArrive)}
    free = (n for n in range(NAMED_BARRIERS - 1, 0, -1) if n not in taken)
    return dict(zip(groups, free))
