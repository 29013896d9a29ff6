"""Targets as values: what a machine is, in the numbers the passes ask for.

A pass never compares a target's name: it asks for a feature (`target.has("tma")`) or a number
(`target.shared_bytes`). Everything a vendor's manual states about an instruction lives in a row
(`tilec.ir.instr`), not here.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field


class TargetError(ValueError):
    """A target's name is unknown, or names a machine that tilec does not compile for yet."""


@dataclass(frozen=True)
class Target:
    """One machine tilec compiles for.

    `warp_size` is the lanes that execute together (a wave on AMD); `shared_bytes` the shared
    memory (LDS) one block may use; `registers` the 32-bit registers of one multiprocessor that
    blocks share; `multiprocessors` a default for grids of persistent kernels when no device is at
    hand."""

    name: str
    kind: str
    arch: str
    warp_size: int = 32
    shared_bytes: int = 0
    registers: int = 65536
    max_registers_per_thread: int = 255
    max_threads: int = 1024
    multiprocessors: int = 1
    fragment_registers: int = 0
    features: frozenset[str] = field(default_factory=frozenset)

    def has(self, feature: str) -> bool:
        """Whether the machine has `feature`, e.g. "mma", "ldmatrix", "cp_async", "wgmma", "tma",
        "mfma"."""
        return feature in self.features

    def __str__(self) -> str:
        return self.name


_SM80 = frozenset({"mma", "ldmatrix", "cp_async"})
_SM90 = _SM80 | {"stmatrix", "tma", "wgmma", "mbarrier", "setmaxnreg", "cluster", "mma_fp8"}

TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("cuda:sm_80", "cuda", "sm_80", 32, 166_912, multiprocessors=108, features=_SM80),
        Target("cuda:sm_90a", "cuda", "sm_90a", 32, 232_448, multiprocessors=132, features=_SM90),
        Target(
            "hip:gfx942",
            "hip",
            "gfx942",
            64,
            65_536,
            registers=131_072,
            max_registers_per_thread=512,
            multiprocessors=304,
            fragment_registers=192,
            features=frozenset({"mfma"}),
        ),
        Target("cpu", "cpu", "host", 1, 1 << 20, max_threads=1),
    )
}

NOT_YET = ("cuda:sm_89", "hip:gfx90a", "hip:gfx950", "hip:gfx1100")


def find_target(name: str) -> Target:
    """The target called `name` ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942", "cpu").

    Raises TargetError for a name that is planned but not built, and for one that is unknown (with
    the nearest name that exists)."""
    if name in TARGETS:
        return TARGETS[name]
    if name in NOT_YET:
        raise TargetError(
            f"target {name!r} is not supported yet; today tilec compiles for {', '.join(TARGETS)}"
        )
    near = difflib.get_close_matches(name, TARGETS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise TargetError(f"unknown target {name!r}{hint} (targets: {', '.join(TARGETS)})")
