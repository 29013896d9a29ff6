"""Instructions that order others: mbarriers, fences, named barriers, the register split.

PTX ISA 8.0, sections "Parallel Synchronization and Communication Instructions: mbarrier", "bar",
"fence", and "setmaxnreg". Addresses of mbarriers are shared-memory addresses (i32).
"""

from __future__ import annotations

import functools

from tilec.ir.errors import InternalError
from tilec.ir.instr.instruction import Instruction, row
from tilec.ir.instr.machine import acting
from tilec.ir.instr.semantics import Semantics, waiting

MAX_ARRIVALS = (1 << 20) - 1  # of a phase of an mbarrier
MAX_BYTES = (1 << 20) - 1  # that a phase waits for
NAMED_BARRIERS = 16  # of a block
REGISTER_CHOICES = range(24, 257, 8)  # of setmaxnreg


@functools.cache
def mbarrier_init(count: int) -> Instruction:
    """Argument: address. The phase completes after `count` arrivals."""
    text = f"mbarrier.init.shared::cta.b64 [$0], {count};"
    name = f"mbarrier.init.{count}"
    return row(name, "mbarrier", text, lambda m, at: m.mbarrier_init(at, count), "r")


@functools.cache
def mbarrier_expect(bytes: int) -> Instruction:
    """Arrive once and announce `bytes` of asynchronous copies. Argument: address."""
    text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {bytes};"
    name = f"mbarrier.expect.{bytes}"
    return row(name, "mbarrier", text, lambda m, at: m.mbarrier_arrive(at, expect=bytes), "r")


@functools.cache
def mbarrier_expect_tx(bytes: int) -> Instruction:
    """Announce `bytes` of asynchronous copies, without arriving. Argument: address."""
    text = f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], {bytes};"
    name = f"mbarrier.expect_tx.{bytes}"
    return row(name, "mbarrier", text, lambda m, at: m.mbarrier_expect_tx(at, bytes), "r")


def until_completed(name: str, feature: str, order: str, semantics: Semantics) -> Instruction:
    """Wait at an mbarrier: a loop around `try_wait`. Arguments: address, parity (i32) of the phase
    whose completion is waited for."""
    text = (
        "{ .reg .pred p; L${:uid}_W: "
        f"mbarrier.try_wait.parity{order}.shared::cta.b64 p, [$0], $1; "
        "@p bra L${:uid}_D; bra L${:uid}_W; L${:uid}_D: }"
    )
    return row(name, feature, text, waiting(semantics), "rr")


MBARRIER_ARRIVE = row(
    "mbarrier.arrive", "mbarrier", "mbarrier.arrive.shared::cta.b64 _, [$0];",
    lambda m, at: m.mbarrier_arrive(at), "r",
)  # fmt: skip
"""Argument: address."""

MBARRIER_ARRIVE_IF = row(
    "mbarrier.arrive_if",
    "mbarrier",
    "{ .reg .pred p; setp.ne.u32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }",
    lambda m, address, guard: m.mbarrier_arrive(address, where=acting(guard)),
    "rr",
)
"""Arguments: address, and an i32: 0 for those who do not arrive (no branch)."""

MBARRIER_ARRIVE_COPIES = row(
    "mbarrier.arrive_copies", "mbarrier", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];",
    lambda m, at: m.mbarrier_arrive(at, copies=True), "r",
)  # fmt: skip
"""Argument: address. One of the arrivals that the barrier was initialised with, when this thread's
cp.async copies so far are done. PTX ISA, "cp.async.mbarrier.arrive"."""

MBARRIER_WAIT = until_completed(
    "mbarrier.wait", "mbarrier", "", lambda m, at, parity: m.mbarrier_wait(at, parity)
)

MBARRIER_INIT_FENCE = row(
    "mbarrier.init_fence",
    "mbarrier",
    "fence.mbarrier_init.release.cluster;",
    lambda m: m.mbarrier_init_fence(),
)
PROXY_FENCE = row("fence.proxy", "tma", "fence.proxy.async.shared::cta;", lambda m: m.proxy_fence())
LAUNCH_DEPENDENTS = row(
    "griddepcontrol.launch_dependents", "pdl", "griddepcontrol.launch_dependents;", lambda m: None
)
"""The next launch may begin once all blocks of this one have come here, or ended. Launches that the
simulator runs follow one another: neither this nor the wait does anything there."""

WAIT_FOR_LAUNCHES = row("griddepcontrol.wait", "pdl", "griddepcontrol.wait;", lambda m: None)
"""Wait until all launches before this one have ended and what they wrote is seen."""

WARP_SYNC = row("bar.warp.sync", "mma", "bar.warp.sync 0xffffffff;", lambda m: m.warp_sync())

BARRIER_SYNC = row(
    "bar.sync", "mma", "bar.sync $0, $1;", waiting(lambda m, n, of: m.barrier_sync(n, of)), "rr"
)
"""Arguments: number of the barrier, number of threads (a multiple of 32) that it waits for."""

BARRIER_ARRIVE = row(
    "bar.arrive", "mma", "bar.arrive $0, $1;", lambda m, n, of: m.barrier_arrive(n, of), "rr"
)
"""As BARRIER_SYNC, without waiting."""


@functools.cache
def setmaxnreg(registers: int, increase: bool) -> Instruction:
    """Take or give registers: from here on each thread of the warpgroup has `registers`."""
    if registers not in REGISTER_CHOICES:
        raise InternalError(f"setmaxnreg {registers}: it takes multiples of 8 from 24 to 256")
    word = "inc" if increase else "dec"
    mark = waiting if increase else lambda semantics: semantics
    act = mark(lambda m: m.setmaxnreg(registers, increase))
    text = f"setmaxnreg.{word}.sync.aligned.u32 {registers};"
    return row(f"setmaxnreg.{word}.{registers}", "setmaxnreg", text, act, memory=False)


DEVICE_FENCE = row("fence.gpu", "mma", "fence.acq_rel.gpu;", lambda m: m.device_fence())
"""Section "membar/fence": also a release pattern with an atomic after it, an acquire pattern with
one before it."""

PAUSE = row("nanosleep", "mma", "nanosleep.u32 40;", waiting(lambda m: m.pause()))

COUNT_UP = row(
    "atom.inc",
    "mma",
    "atom.relaxed.gpu.global.inc.u32 $0, [$1], $2;",
    lambda m, address, last: (m.count_up(address, last),),
    "lr",
    "r",
)
"""Section "atom". Arguments: an address in global memory (i64), the number after which it is 0
again (i32); result: what was there."""
