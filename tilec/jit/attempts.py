"""Machine code for one plan after another, until the assembler has nothing to say against it.

A plan's budgets are computed before there is code. Whether the registers really hold what was put
there is known to the assembler only, and it reports the worst quietly: values that spill, wgmma
that is serialised, a split of the registers that is ignored. Such a plan is given up for the next
one. Where every plan has a fault, the one with the smallest is kept, and its advisories stay
readable."""

from __future__ import annotations

from dataclasses import dataclass

from tilec import codegen
from tilec.codegen.assemble import Assembled, assemble
from tilec.codegen.ptxas import trouble
from tilec.ir.core import Func
from tilec.ir.errors import ResourceError
from tilec.ir.plan import Plan
from tilec.target import Target


@dataclass(frozen=True)
class Attempt:
    """The code of one plan (None: there are no plans for the target)."""

    plan: Plan | None
    func: Func
    llvm_text: str
    assembled: Assembled

    @property
    def faults(self) -> tuple[int, int]:
        """Bytes spilled, then advisories: smaller is better."""
        return self.assembled.spilled_bytes or 0, len(self.assembled.advisories)


class Attempts:
    """The plans of one function that have been taken as far as machine code. `kept`: the one
    without fault; `least`: of those with one, the best."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.kept: Attempt | None = None
        self.least: Attempt | None = None

    def make(self, plan: Plan | None, func: Func) -> Attempt:
        """Machine code of `func`, which has been through the passes."""
        text = codegen.emit(func, self.target)
        return Attempt(plan, func, text, assemble(text, self.target))

    def check(self, plan: Plan, func: Func) -> None:
        """Make the code of a plan and keep it. Raises ResourceError if the assembler finds fault
        with it, or cannot fit it in."""
        made = self.make(plan, func)
        fault = trouble(made.assembled.advisories)
        if not fault:
            self.kept = made
            return
        if self.least is None or made.faults < self.least.faults:
            self.least = made
        raise ResourceError(f"the assembler reports: {fault}", func.loc, "choose smaller tiles")
