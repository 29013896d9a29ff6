"""Machine code for one plan after another, until the assembler has nothing to say against it.

A plan's budgets are computed before there is code. Whether the registers really hold what was put
there is known to the assembler only, and it reports the worst quietly: values that spill, wgmma
that is serialised, a split of the registers that is ignored. Such a plan is given up for the next
one. Where every plan has a fault, the one with the smallest is kept, and its advisories stay
readable. A few spilled bytes cost less than a plan that is predicted to be slower: they settle the
matter once no plan is left that is about as fast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tilec import codegen
from tilec.codegen.assemble import Assembled, assemble, with_instructions, with_min_blocks
from tilec.codegen.foreign import without_asm
from tilec.codegen.gpu_print import without_prints
from tilec.codegen.nvptx import register_share
from tilec.codegen.ptxas import trouble
from tilec.ir import ops
from tilec.ir.clusters import residents_of
from tilec.ir.core import Func, Op, walk
from tilec.ir.errors import CompileError, InternalError, ResourceError, TilecError
from tilec.ir.schedule import Plan
from tilec.jit.compiled import FEW_SPILLED
from tilec.passes.utils.registers import AMPLE, FEWEST, register_split
from tilec.support.ahead import begun, in_turn
from tilec.target import Target

STREAMING = (1024, 640)  # threads of a multiprocessor whose loads keep its memory busy
SPARED = 0.68  # of the registers that ptxas takes do, where there is something to wait for
SPILLED_FOR_A_BLOCK = 64  # bytes of a thread: another block gains more
_PRODUCTS = (ops.Mma, ops.Wgmma)


class Settled(Exception):
    """The plans that are left are slower than the few spilled bytes of `Attempts.least`."""


@dataclass(frozen=True)
class Attempt:
    """The code of one plan (None: there are no plans for the target)."""

    plan: Plan | None
    func: Func
    llvm_text: str
    assembled: Assembled
    spared: bool = False  # what it spills makes room for a block
    emitted: tuple[codegen.Emitter, str] | None = None  # for GPUs: the records that LLVM was given
    resplit: bool = False  # its registers are shared out otherwise than the passes have it

    @property
    def faults(self) -> tuple[int, int]:
        """Bytes spilled, then advisories: smaller is better."""
        return self.assembled.spilled_bytes or 0, len(self.assembled.advisories)


def _blamed(func: Func, error: InternalError) -> TilecError:
    """What no assembler takes is the user's fault, where there is code of the user's own."""
    written = [
        o
        for o in walk(func.body)
        if isinstance(o, ops.Asm | ops.AsmEffect | ops.Extern | ops.ExternEffect)
    ]
    if not written:
        return error
    first, *more = dict.fromkeys(o.loc for o in written)
    others = ", ".join(str(loc.line) for loc in more if loc.line != first.line)
    where = f" (or line {others})" if others else ""
    hint = "the text of T.asm, or of a function, goes to the assembler as it is: mend it there"
    return CompileError(f"this code{where} is refused: {error.message}", first, hint)


class Attempts:
    """The plans of one function that have been taken as far as machine code. `kept`: the one
    without fault; `least`: of those with one, the best. `fast` are plans that are predicted to take
    about the same time, less than the others; none if nothing is predicted."""

    def __init__(self, target: Target, fast: Iterable[Plan] = ()) -> None:
        self.target = target
        self.fast = {replace(plan, stages=0) for plan in fast}
        self.kept: Attempt | None = None
        self.least: Attempt | None = None
        self._spilling: dict[Plan, int] = {}  # `_in_registers`: with so many blocks at once
        self._faulty: set[Plan] = set()  # as of blocks of one tile each
        self._made: dict[str, Attempt] = {}

    def make(
        self, plan: Plan | None, func: Func, beside: Callable[[], None] = lambda: None
    ) -> Attempt:
        """Machine code of `func`, which has been through the passes, less what it prints where the
        target has no function for that, or the assembly of the user's where it has no assembler:
        only the simulator runs it then. Where there is no product to hold in registers, or threads
        wait for tiles, a thread that could do with fewer gets fewer, so that more of them load at
        the same time. Two plans may have the same code, as where nothing can be brought by TMA: it
        is assembled once. `beside` is begun when there is the assembler to wait for."""
        emitted = None if self.target.kind == "cpu" else codegen.emit_records(func, self.target)
        text = emitted[1] if emitted else codegen.emit(func, self.target)
        made = self._made.get(text) or self._assembled(plan, func, text, beside)
        if made.resplit:  # the simulator and whoever explains it are to see what runs
            func, emitted = made.func, None
        made = self._made[text] = replace(made, plan=plan, func=func, emitted=emitted)
        return made

    def _assembled(
        self, plan: Plan | None, func: Func, text: str, beside: Callable[[], None]
    ) -> Attempt:
        coded = text if self.target.has("printf") else without_prints(text)
        coded = coded if self.target.has("inline_asm") else without_asm(coded)
        guess = self._likely_blocks(func)
        guessed: list[Callable[[], Assembled]] = []

        def meanwhile(unfinished: Assembled) -> None:
            beside()
            if guess:
                guessed.extend(begun([lambda: with_min_blocks(unfinished, guess)]))

        try:
            assembled = assemble(coded, self.target, meanwhile)
        except InternalError as error:
            raise _blamed(func, error) from None
        made = self._of_producers(Attempt(plan, func, text, assembled))
        for blocks in self._more_blocks(func, made.assembled):
            known = guessed and blocks == guess
            again = guessed[0]() if known else with_min_blocks(made.assembled, blocks)
            more = replace(made, llvm_text=again.llvm_text, assembled=again)
            if more.faults == made.faults:
                return more
            spilled, advisories = more.faults
            if _waits(func) and spilled <= SPILLED_FOR_A_BLOCK and advisories <= 1:
                return replace(more, spared=True)
        return made

    def _of_producers(self, made: Attempt) -> Attempt:
        """`made`, or, where it spills a little, the same with another split: consumers have the few
        registers that producers can spare or, where it is producers that spill, as those of 64-bit
        indices do, give them some."""
        if not 0 < (made.assembled.spilled_bytes or 0) <= FEW_SPILLED:
            return made
        least = made
        others = [_with_producers(made.func, self.target, n) for n in (FEWEST, AMPLE)]
        funcs = [func for func in others if func is not None]
        tasks = [functools.partial(self._shared_out, made, func) for func in funcs]
        for func, again in zip(funcs, in_turn(tasks)):
            text = again.llvm_text
            more = replace(made, func=func, llvm_text=text, assembled=again, resplit=True)
            least = min(least, more, key=lambda a: a.faults)
            if not least.faults[0]:
                break
        return least

    def _shared_out(self, made: Attempt, func: Func) -> Assembled:
        """The code of `func`, which is `made.func` but for its shares of the registers."""
        own = self._shares(made.func)
        if any(made.llvm_text.count(one) != 1 for one in own):  # the user's own say the same
            return assemble(codegen.emit(func, self.target), self.target)
        return with_instructions(made.assembled, dict(zip(own, self._shares(func))))

    def _shares(self, func: Func) -> list[str]:
        """The instructions by which scopes come to their registers, as LLVM passes them on."""
        scopes = (o for o in func.body.every(ops.Scope) if o.registers)
        return [register_share(o, func, self.target).asm.template for o in scopes]

    def _more_blocks(self, func: Func, made: Assembled) -> list[int]:
        """How many blocks a multiprocessor should hold but does not, for its registers: what is
        best, then what may do."""
        if made.registers is None or made.spilled_bytes:
            return []  # fewer registers spill more
        if not _waits(func):
            return self._streaming_blocks(func, made.registers)
        if not self._may_hold_more(func):
            return []
        threads, shared = _block_of(func)
        now = occupancy(self.target, made.registers, shared, threads) or 1
        left = self.target.registers // ((now + 1) * threads)
        most = occupancy(self.target, 1, shared, threads) or 1
        return [now + 1] if now < most and left >= SPARED * made.registers else []

    def _likely_blocks(self, func: Func) -> int:
        """What of that is likely before the registers are known; 0 if nothing is."""
        wanted = (
            []
            if _waits(func)
            else self._streaming_blocks(func, self.target.max_registers_per_thread)
        )
        return wanted[0] if wanted else 0

    def _streaming_blocks(self, func: Func, registers: int) -> list[int]:
        """How many blocks a multiprocessor should hold so that their loads keep memory busy, but
        does not, if a thread takes so many registers."""
        if not self._may_hold_more(func) or any(isinstance(o, _PRODUCTS) for o in walk(func.body)):
            return []
        threads, shared = _block_of(func)
        most = occupancy(self.target, 1, shared, threads) or 1
        now = occupancy(self.target, registers, shared, threads) or 1
        wanted = {min(n // threads, most): None for n in STREAMING}
        return [n for n in wanted if n > now]

    def _may_hold_more(self, func: Func) -> bool:
        """Whether the number of blocks is left to tilec."""
        if not self.target.has("min_blocks") or not _block_of(func)[0]:
            return False
        if func.attrs.get("min_blocks"):
            return False  # the user's number
        # With fewer registers at launch, the block would wait for its share for ever.
        shared_out = (isinstance(o, ops.SetRegisters) or (isinstance(o, ops.Scope) and o.registers)
                      for o in walk(func.body))  # fmt: skip
        return not any(shared_out)

    def refuse(self, plan: Plan, func: Func) -> None:
        """Raises ResourceError for a plan that spills as others have, and Settled if what there is
        will do: before the passes are run."""
        if self.fast and replace(plan, stages=0) not in self.fast and self.least is not None:
            spilled, advisories = self.least.faults
            if 0 < spilled <= FEW_SPILLED and advisories <= 1:
                raise Settled
        one = _of_one_tile(plan)
        spilled_with = self._spilling.get(_in_registers(plan), plan.residents + 1)
        if (plan.persistent and one in self._faulty) or plan.residents >= spilled_with:
            self._faulty.add(one)
            raise ResourceError("registers spill, as with a plan that holds as much", func.loc)

    def check(self, plan: Plan, func: Func, beside: Callable[[], None] = lambda: None) -> None:
        """Make the code of a plan and keep it, with `beside` as in `make`. Raises ResourceError if
        the assembler finds fault with it, or cannot fit it in."""
        made = self.make(plan, func, beside)
        fault = trouble(made.assembled.advisories)
        if not fault or made.spared:
            self.kept = made
            return
        if made.faults[0] > FEW_SPILLED:
            alike = _in_registers(plan)
            self._spilling[alike] = min(plan.residents, self._spilling.get(alike, plan.residents))
        self._faulty.add(_of_one_tile(plan))
        if self.least is None or made.faults < self.least.faults:
            self.least = made
        raise ResourceError(f"the assembler reports: {fault}", func.loc, "choose smaller tiles")


def occupancy(target: Target, registers: int | None, shared: int, threads: int) -> int | None:
    """Blocks of `threads` threads that one multiprocessor holds at once; None where `registers`
    is unknown."""
    limits = occupancy_limits(target, registers, shared, threads)
    return min(limits.values()) if limits and registers is not None else None


def occupancy_limits(
    target: Target, registers: int | None, shared: int, threads: int
) -> dict[str, int]:
    """How many blocks each resource of a multiprocessor has room for; empty where the target's are
    unknown."""
    held = target.residency
    if held is None:
        return {}
    warps = -(-threads // target.warp_size)
    limits = {"blocks": held.blocks, "threads": held.threads // (warps * target.warp_size)}
    per_warp = -(-(registers or 0) * target.warp_size // held.unit) * held.unit
    if per_warp:
        limits["registers"] = target.registers // (per_warp * warps)
    if shared + held.reserved:
        limits["shared memory"] = held.shared_bytes // (shared + held.reserved)
    return limits


def _block_of(func: Func) -> tuple[int, int]:
    """The threads of a launched block, 0 if they are not known, and its bytes of shared memory."""
    return int(func.attrs.get("launch_threads", 0)), int(func.attrs.get("shared_bytes", 0))


def _waits(func: Func) -> bool:
    """Whether tiles wait in registers of the threads that compute: only another block has something
    to do while they are on their way."""
    return any(isinstance(o, ops.Realign) for o in walk(func.body))


def _with_producers(func: Func, target: Target, producer: int) -> Func | None:
    """`func` whose producers have so many registers; None if nobody would have more."""
    scopes = {o.name: o for o in func.body.every(ops.Scope) if o.registers}
    if "consumer" not in scopes or "producer" not in scopes:
        return None
    own = scopes["consumer"].registers, scopes["producer"].registers
    split = register_split(scopes["consumer"].warps, target, producer, residents_of(func))
    if split[0] <= own[0] and split[1] <= own[1]:
        return None
    given = dict(zip(("consumer", "producer"), split))

    def visit(o: Op) -> Op | None:
        if not isinstance(o, ops.Scope) or not o.registers:
            return None
        return replace(o, registers=given[o.name])

    return func.rewrite(Op, visit)


def _of_one_tile(plan: Plan) -> Plan:
    """The plan whose blocks compute one tile each: one that goes on to the next tile holds what it
    holds, and where it is."""
    return replace(plan, name="", stages=0, persistent=False)


def _in_registers(plan: Plan) -> Plan:
    """What of a plan decides about registers: not how the results leave, nor who else loads the
    tiles, nor how many blocks share a sum. What spills much, spills long before that; and the more,
    the more blocks share the registers."""
    same = replace(plan, name="", stages=0, staged_store=False, cluster=(1, 1, 1), residents=1)
    return replace(same, split=min(plan.split, 2), parts=min(plan.parts, 2))
