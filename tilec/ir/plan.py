"""A plan: what the compiler may choose for a kernel and the user left open.

The passes read a plan from the function's attributes; the driver tries plans in order and keeps
the first whose exact budget of shared memory and registers holds. What the user wrote is never
changed by a plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tilec.ir.core import Func
from tilec.target import Target


@dataclass(frozen=True)
class Plan:
    """What may be chosen.

    `specialise`: producer warps bring tiles by TMA, the user's threads compute.
    `persistent`: each block of the launch walks over several blocks of the user's grid.
    `teams`: how many sets of the user's threads a launched block holds; with 2, each computes
    blocks of its own and they take turns at the tensor cores (ping-pong).
    `cluster`: how many neighbours along each grid dimension form a cluster, in which what several
    of them need is loaded once (multicast).
    `split`: how many blocks of a cluster share the iterations of one sum.
    `panel`: how many blocks along grid dimension 1 are visited before dimension 0 advances (L2
    reuse), where the user gave no swizzle.
    `staged_store`: a fragment goes to global memory through shared memory and TMA.
    `single_buffer`: a tile that comes through registers has one version in shared memory, not two.
    `stages`: versions of a loop's buffers where the user left `num_stages` open.
    """

    name: str
    specialise: bool = False
    persistent: bool = False
    teams: int = 1
    cluster: tuple[int, int, int] = (1, 1, 1)
    split: int = 1
    panel: int = 8
    staged_store: bool = False
    single_buffer: bool = False
    stages: int = 2

    def apply(self, func: Func) -> Func:
        """`func` with the plan's choices as attributes."""
        chosen = asdict(self)
        chosen["plan"] = chosen.pop("name")
        return func.with_attrs(**chosen)


def plans(func: Func, target: Target) -> tuple[Plan, ...]:
    """The plans worth trying for `func` on `target`, best first."""
    if not target.has("cp_async"):
        return (Plan("plain"), Plan("one buffer", single_buffer=True))
    if not target.has("tma"):
        return (Plan("plain"),)
    return (
        Plan("specialised persistent", specialise=True, persistent=True, staged_store=True),
        Plan("specialised persistent, direct stores", specialise=True, persistent=True),
        Plan("plain"),
    )
