"""Instructions that order others: mbarriers, fences, named barriers, the register split.

PTX ISA 8.0, sections "Parallel Synchronization and Communication Instructions: mbarrier", "bar",
"fence", and "setmaxnreg". Addresses of mbarriers are shared-memory addresses (i32).
"""

from __future__ import annotations

import functools

from tilec.ir.errors import InternalError
from tilec.ir.instr.instruction import Asm, Instruction, Operands
from tilec.ir.instr.machine import Machine, acting
from tilec.ir.instr.semantics import Outcome, Semantics, Word, waiting

MAX_ARRIVALS = (1 << 20) - 1  # of a phase of an mbarrier
MAX_BYTES = (1 << 20) - 1  # that a phase waits for
NAMED_BARRIERS = 16  # of a block
REGISTER_CHOICES = range(24, 257, 8)  # of setmaxnreg


@functools.cache
def mbarrier_init(count: int) -> Instruction:
    """Argument: address. The phase completes after `count` arrivals."""
    x = Operands()

    def init(m: Machine, address: Word) -> None:
        m.mbarrier_init(address, count)

    asm = x.asm(f"mbarrier.init.shared::cta.b64 [{x.input('r')}], {count};", init)
    return Instruction(f"mbarrier.init.{count}", "mbarrier", asm)


@functools.cache
def mbarrier_expect(bytes: int) -> Instruction:
    """Arrive once and announce `bytes` of asynchronous copies. Argument: address."""
    x = Operands()

    def expect(m: Machine, address: Word) -> None:
        m.mbarrier_arrive(address, expect=bytes)

    text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{x.input('r')}], {bytes};"
    asm = x.asm(text, expect)
    return Instruction(f"mbarrier.expect.{bytes}", "mbarrier", asm)


@functools.cache
def mbarrier_expect_tx(bytes: int) -> Instruction:
    """Announce `bytes` of asynchronous copies, without arriving. Argument: address."""
    x = Operands()

    def expect(m: Machine, address: Word) -> None:
        m.mbarrier_expect_tx(address, bytes)

    text = f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{x.input('r')}], {bytes};"
    return Instruction(f"mbarrier.expect_tx.{bytes}", "mbarrier", x.asm(text, expect))


def _arrive() -> Asm:
    x = Operands()

    def arrive(m: Machine, address: Word) -> None:
        m.mbarrier_arrive(address)

    return x.asm(f"mbarrier.arrive.shared::cta.b64 _, [{x.input('r')}];", arrive)


def _arrive_if() -> Asm:
    x = Operands()
    address, guard = x.inputs("r", 2)

    def arrive(m: Machine, address: Word, guard: Word) -> None:
        m.mbarrier_arrive(address, where=acting(guard))

    return x.asm(
        f"{{ .reg .pred p; setp.ne.u32 p, {guard}, 0; "
        f"@p mbarrier.arrive.shared::cta.b64 _, [{address}]; }}",
        arrive,
    )


def _wait() -> Asm:
    x = Operands()
    address, parity = x.inputs("r", 2)

    @waiting
    def wait(m: Machine, address: Word, parity: Word) -> Outcome:
        return m.mbarrier_wait(address, parity)

    return x.asm(
        "{ .reg .pred p; L${:uid}_W: "
        f"mbarrier.try_wait.parity.shared::cta.b64 p, [{address}], {parity}; "
        "@p bra L${:uid}_D; bra L${:uid}_W; L${:uid}_D: }",
        wait,
    )


def _named(word: str, semantics: Semantics) -> Asm:
    x = Operands()
    number, threads = x.inputs("r", 2)
    return x.asm(f"bar.{word} {number}, {threads};", semantics)


MBARRIER_ARRIVE = Instruction("mbarrier.arrive", "mbarrier", _arrive())
"""Argument: address."""

MBARRIER_ARRIVE_IF = Instruction("mbarrier.arrive_if", "mbarrier", _arrive_if())
"""Arguments: address, and an i32: 0 for those who do not arrive (no branch)."""

MBARRIER_WAIT = Instruction("mbarrier.wait", "mbarrier", _wait())
"""Arguments: address, parity (i32) of the phase whose completion is waited for."""

MBARRIER_INIT_FENCE = Instruction(
    "mbarrier.init_fence",
    "mbarrier",
    Operands().asm("fence.mbarrier_init.release.cluster;", lambda m: m.mbarrier_init_fence()),
)
PROXY_FENCE = Instruction(
    "fence.proxy",
    "tma",
    Operands().asm("fence.proxy.async.shared::cta;", lambda m: m.proxy_fence()),
)
LAUNCH_DEPENDENTS = Instruction(
    "griddepcontrol.launch_dependents",
    "pdl",
    Operands().asm("griddepcontrol.launch_dependents;", lambda m: None),
)
"""The next launch may begin once all blocks of this one have come here, or ended. Launches that the
simulator runs follow one another: neither this nor the wait does anything there."""

WAIT_FOR_LAUNCHES = Instruction(
    "griddepcontrol.wait", "pdl", Operands().asm("griddepcontrol.wait;", lambda m: None)
)
"""Wait until all launches before this one have ended and what they wrote is seen."""

WARP_SYNC = Instruction(
    "bar.warp.sync", "mma", Operands().asm("bar.warp.sync 0xffffffff;", lambda m: m.warp_sync())
)

BARRIER_SYNC = Instruction(
    "bar.sync", "mma", _named("sync", waiting(lambda m, n, of: m.barrier_sync(n, of)))
)
"""Arguments: number of the barrier, number of threads (a multiple of 32) that it waits for."""

BARRIER_ARRIVE = Instruction(
    "bar.arrive", "mma", _named("arrive", lambda m, n, of: m.barrier_arrive(n, of))
)
"""As BARRIER_SYNC, without waiting."""


@functools.cache
def setmaxnreg(registers: int, increase: bool) -> Instruction:
    """Take or give registers: from here on each thread of the warpgroup has `registers`."""
    if registers not in REGISTER_CHOICES:
        raise InternalError(f"setmaxnreg {registers}: it takes multiples of 8 from 24 to 256")
    word = "inc" if increase else "dec"

    def split(m: Machine) -> Outcome:
        return m.setmaxnreg(registers, increase)

    asm = Operands().asm(
        f"setmaxnreg.{word}.sync.aligned.u32 {registers};",
        waiting(split) if increase else split,
        memory=False,
    )
    return Instruction(f"setmaxnreg.{word}.{registers}", "setmaxnreg", asm)


DEVICE_FENCE = Instruction(
    "fence.gpu", "mma", Operands().asm("fence.acq_rel.gpu;", lambda m: m.device_fence())
)
"""Section "membar/fence": also a release pattern with an atomic after it, an acquire pattern with
one before it."""


PAUSE = Instruction(
    "nanosleep", "mma", Operands().asm("nanosleep.u32 40;", waiting(lambda m: m.pause()))
)


def _count_up() -> Asm:
    x = Operands()
    (before,) = x.outputs("r", 1)
    address, last = x.input("l"), x.input("r")

    def count(m: Machine, address: Word, last: Word) -> Outcome:
        return (m.count_up(address, last),)

    return x.asm(f"atom.relaxed.gpu.global.inc.u32 {before}, [{address}], {last};", count)


COUNT_UP = Instruction("atom.inc", "mma", _count_up())
"""Section "atom". Arguments: an address in global memory (i64), the number after which it is 0
again (i32); result: what was there."""

SYNC_INSTRUCTIONS: tuple[Instruction, ...] = (
    MBARRIER_ARRIVE,
    MBARRIER_ARRIVE_IF,
    MBARRIER_WAIT,
    MBARRIER_INIT_FENCE,
    PROXY_FENCE,
    WARP_SYNC,
    BARRIER_SYNC,
    BARRIER_ARRIVE,
    DEVICE_FENCE,
    PAUSE,
    COUNT_UP,
)
