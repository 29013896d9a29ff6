"""Whether the simulator can execute what is printed for GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from tilec.ir.llvm import Function
from tilec.sim.intrinsics import intrinsic


def meaningless(f: Function) -> Iterator[str]:
    """The rows and intrinsics of a function that the simulator could not execute."""
    for block in f.blocks:
        for i in block.insts:
            if i.opcode in ("asm", "call") and i.instr != "vprintf":
                if i.semantics is None and intrinsic(i.instr) is None:
                    yield i.instr or i.text
