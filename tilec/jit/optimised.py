"""The records of a kernel as LLVM's optimiser leaves them.

The optimised text is read back into records (`ir.llvm_parser`). Each finds the user's line and the
buffer that it touches by its debug location, which for this one optimisation numbers these places;
inline assembly finds its row by what it says, a hardware intrinsic by its name."""

from __future__ import annotations

import re

from tilec.codegen import Assembled, Emitter
from tilec.ir.errors import InternalError
from tilec.ir.llvm import Function, Inst
from tilec.ir.llvm_parser import parse_function
from tilec.ir.llvm_printer import DebugInfo
from tilec.ir.loc import Loc

_ASM = re.compile(r'asm (?:sideeffect )?"([^"]*)", "([^"]*)"')
_CALLED = re.compile(r"@([\w.]+)\(")


class _Places(DebugInfo):
    """Debug locations whose lines number the places of records: user's location and buffer."""

    def __init__(self, emitter: Emitter) -> None:
        super().__init__(emitter.func.name, emitter.func.loc, "LineTablesOnly")
        self.number: dict[tuple[Loc, str], int] = {}

    def place(self, inst: Inst) -> tuple[int, int]:
        return self.number.setdefault((inst.loc, inst.buffer), len(self.number) + 1), 1


def optimised_function(emitter: Emitter) -> Function:
    """The records of the emitter's function after LLVM's optimiser. Raises InternalError."""
    places = _Places(emitter)
    parsed = parse_function(Assembled(emitter.module(places), emitter.target).llvm_opt)
    known = list(places.number)
    rows: dict[tuple[str, ...], Inst] = {}
    for block in emitter.f.blocks:
        for i in block.insts:
            found = _ASM.search(i.text) if i.opcode == "asm" else _CALLED.search(i.text)
            if found and i.opcode in ("asm", "call"):
                rows.setdefault(found.groups(), i)
    for block in parsed.function.blocks:
        for i in block.insts:
            line = parsed.lines.get(id(i))
            if line:
                i.loc, i.buffer = known[line - 1]
            if i.opcode in ("asm", "call"):
                source = rows.get(parsed.asm.get(id(i)) or (i.row,))
                if source is not None:
                    i.row, i.meaning = source.row, source.meaning
                elif i.opcode == "asm":
                    raise InternalError(f"LLVM has changed inline assembly: {parsed.asm[id(i)]}")
    return parsed.function
