"""Which loops are left to LLVM to have several of their rounds at once."""

from __future__ import annotations

from tilec.ir.core import Block
from tilec.ir.ops import CheckIndex, Const, MemLoad, RegRead, RegWrite, Yield

SHORT = 24  # ops of a loop's body
_LOADING = (MemLoad, RegRead, RegWrite, CheckIndex, Yield)


def is_short(body: Block) -> bool:
    """Whether a loop does little more than load and compute: several rounds of it should load at
    the same time."""
    acts = [o for o in body.ops if not isinstance(o, Const)]
    return (
        len(acts) <= SHORT
        and any(isinstance(o, MemLoad) for o in acts)
        and all(o.pure or isinstance(o, _LOADING) for o in acts)
    )
