"""What the simulator runs: a variant's LOWERED function and the records that print as its LLVM
text, without LLVM and without an assembler.

The passes and the emitter are those of a compilation, with the plan that it kept, so that the
records print as the very text that LLVM is given."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec.codegen import Assembled, Emitter, emit_records
from tilec.frontend import Signature
from tilec.ir.core import Func
from tilec.ir.errors import InternalError
from tilec.ir.llvm import Function, Inst
from tilec.ir.llvm_parser import parse_function
from tilec.ir.llvm_printer import DebugInfo
from tilec.ir.loc import Loc
from tilec.ir.schedule import Plan
from tilec.jit.build import lowered_again, trace_variant
from tilec.jit.host_functions import with_host_meanings
from tilec.jit.specialise import SpecialisationKey
from tilec.runtime.image import Image
from tilec.sim.buffers import RegisterBuffer
from tilec.sim.program import Program
from tilec.sim.records import read_program
from tilec.target import find_target

_STRING = re.compile(r'(@[\w.]+) = .* c"((?:\\[0-9A-F]{2})*)"$')
_ASM = re.compile(r'asm (?:sideeffect )?"([^"]*)", "([^"]*)"')
_CALLED = re.compile(r"@([\w.]+)\(")


@dataclass(frozen=True)
class Records:
    """`func`: LOWERED. `function`: its records, which print as `text`. `strings`: the constant
    texts of T.print, by name. `registers`: its fragments and local buffers. `emitter`: who has made
    the records. `is_optimised`: they are what LLVM's optimiser has left."""

    func: Func
    function: Function
    text: str
    strings: Mapping[str, str]
    registers: tuple[RegisterBuffer, ...]
    emitter: Emitter
    is_optimised: bool = False

    @functools.cached_property
    def program(self) -> Program:
        """The records made ready to run, once for all runs in which nothing is traced."""
        return read_program(self.function)

    @functools.cached_property
    def optimised(self) -> Records:
        """What LLVM's optimiser makes of them, in which no stack slot is a user's buffer."""
        return replace(
            self, function=optimised_function(self.emitter), registers=(), is_optimised=True
        )


def variant_records(
    signature: Signature, key: SpecialisationKey, image: Image, plan: Plan
) -> Records:
    """The records of the variant of `key`, which is `image` with its plan. Raises CompileError."""
    return records_of(lowered_again(trace_variant(signature, key), image, plan), key.target)


def records_of(func: Func, target: str, emitted: tuple[Emitter, str] | None = None) -> Records:
    """The records of a LOWERED function, which may have been `emitted` before. Raises CompileError
    for what the target cannot do."""
    meant = with_host_meanings(func)
    if emitted is None or meant is not func:
        emitted = emit_records(meant, find_target(target))
    func, (emitter, text) = meant, emitted
    registers = tuple(
        RegisterBuffer(value, tuple(s.ref for s in r.slots), r.pack, r.is_array)
        for value, r in emitter.registers.items()
    )
    lines: Sequence[str] = getattr(emitter, "strings", ())
    return Records(func, emitter.f, text, dict(map(_string, lines)), registers, emitter)


def _string(line: str) -> tuple[str, str]:
    """Name and text of a constant, every byte of which the emitter spells in hexadecimal, a zero
    last."""
    found = _STRING.match(line)
    assert found is not None, line
    return found[1], bytes.fromhex(found[2].replace("\\", "")).rstrip(b"\0").decode()


# --- what LLVM's optimiser leaves -----------------------------------------------------------------
#
# The optimised text is read back into records (`ir.llvm_parser`). Each finds the user's line and
# the buffer that it touches by its debug location, which for this one optimisation numbers these
# places; inline assembly finds its instruction by what it says, a hardware intrinsic by its name.


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
    instrs: dict[tuple[str, ...], Inst] = {}
    for block in emitter.f.blocks:
        for i in block.insts:
            found = _ASM.search(i.text) if i.opcode == "asm" else _CALLED.search(i.text)
            if found and i.opcode in ("asm", "call"):
                instrs.setdefault(found.groups(), i)
    for block in parsed.function.blocks:
        for i in block.insts:
            line = parsed.lines.get(id(i))
            if line:
                i.loc, i.buffer = known[line - 1]
            if i.opcode in ("asm", "call"):
                source = instrs.get(parsed.asm.get(id(i)) or (i.instr,))
                if source is not None:
                    i.instr, i.semantics = source.instr, source.semantics
                elif i.opcode == "asm":
                    raise InternalError(f"LLVM has changed inline assembly: {parsed.asm[id(i)]}")
    return parsed.function
