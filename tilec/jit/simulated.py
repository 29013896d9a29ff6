"""What the simulator runs: a variant's LOWERED function and the records that print as its LLVM
text, without LLVM and without an assembler.

The passes and the emitter are those of a compilation, with the plan that it kept, so that the
records print as the very text that LLVM is given."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilec import passes
from tilec.codegen import Emitter, emit_records
from tilec.frontend import Signature
from tilec.ir.core import Func
from tilec.ir.llvm import Function
from tilec.ir.schedule import Plan
from tilec.jit.build import trace_variant
from tilec.jit.optimised import optimised_function
from tilec.jit.specialise import Facts
from tilec.sim.program.records import Program, read_program
from tilec.sim.reports.buffers import RegisterBuffer
from tilec.target import find_target

_STRING = re.compile(r'(@[\w.]+) = .* c"((?:\\[0-9A-F]{2})*)"$')


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
        return read_program(self.function, self.strings)

    @functools.cached_property
    def optimised(self) -> Records:
        """What LLVM's optimiser makes of them, in which no stack slot is a user's buffer."""
        return replace(
            self, function=optimised_function(self.emitter), registers=(), is_optimised=True
        )


def variant_records(signature: Signature, facts: Facts, plan: Plan) -> Records:
    """The records of the variant of `facts` with this plan. Raises CompileError."""
    func = trace_variant(signature, facts)
    return records_of(passes.run_plan(func, find_target(facts.target), plan), facts.target)


def records_of(func: Func, target: str) -> Records:
    """The records of a LOWERED function. Raises CompileError for what the target cannot do."""
    emitter, text = emit_records(func, find_target(target))
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
