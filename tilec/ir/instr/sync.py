"""Instructions that order others: mbarriers, fences, named barriers, the register split.

PTX ISA 8.0, sections "Parallel Synchronization and Communication Instructions: mbarrier", "bar",
"fence", and "setmaxnreg". Addresses of mbarriers are shared-memory addresses (i32).
"""

from __future__ import annotations

import functools

from tilec.ir.errors import InternalError
from tilec.ir.instr.row import Asm, Operands, Row


@functools.cache
def mbarrier_init(count: int) -> Row:
    """Argument: address. The phase completes after `count` arrivals."""
    x = Operands()
    asm = x.asm(f"mbarrier.init.shared::cta.b64 [{x.input('r')}], {count};")
    return Row(f"mbarrier.init.{count}", "mbarrier", asm)


@functools.cache
def mbarrier_expect(bytes: int) -> Row:
    """Arrive once and announce `bytes` of asynchronous copies. Argument: address."""
    x = Operands()
    asm = x.asm(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{x.input('r')}], {bytes};")
    return Row(f"mbarrier.expect.{bytes}", "mbarrier", asm)


def _arrive() -> Asm:
    x = Operands()
    return x.asm(f"mbarrier.arrive.shared::cta.b64 _, [{x.input('r')}];")


def _arrive_if() -> Asm:
    x = Operands()
    address, guard = x.inputs("r", 2)
    return x.asm(
        f"{{ .reg .pred p; setp.ne.u32 p, {guard}, 0; "
        f"@p mbarrier.arrive.shared::cta.b64 _, [{address}]; }}"
    )


def _wait() -> Asm:
    x = Operands()
    address, parity = x.inputs("r", 2)
    return x.asm(
        "{ .reg .pred p; L${:uid}_W: "
        f"mbarrier.try_wait.parity.shared::cta.b64 p, [{address}], {parity}; "
        "@p bra L${:uid}_D; bra L${:uid}_W; L${:uid}_D: }"
    )


def _named(word: str) -> Asm:
    x = Operands()
    number, threads = x.inputs("r", 2)
    return x.asm(f"bar.{word} {number}, {threads};")


MBARRIER_ARRIVE = Row("mbarrier.arrive", "mbarrier", _arrive())
"""Argument: address."""

MBARRIER_ARRIVE_IF = Row("mbarrier.arrive_if", "mbarrier", _arrive_if())
"""Arguments: address, and an i32: 0 for those who do not arrive (no branch)."""

MBARRIER_WAIT = Row("mbarrier.wait", "mbarrier", _wait())
"""Arguments: address, parity (i32) of the phase whose completion is waited for."""

MBARRIER_INIT_FENCE = Row(
    "mbarrier.init_fence", "mbarrier", Operands().asm("fence.mbarrier_init.release.cluster;")
)
PROXY_FENCE = Row("fence.proxy", "tma", Operands().asm("fence.proxy.async.shared::cta;"))
WARP_SYNC = Row("bar.warp.sync", "mma", Operands().asm("bar.warp.sync 0xffffffff;"))

BARRIER_SYNC = Row("bar.sync", "mma", _named("sync"))
"""Arguments: number of the barrier, number of threads (a multiple of 32) that it waits for."""

BARRIER_ARRIVE = Row("bar.arrive", "mma", _named("arrive"))
"""As BARRIER_SYNC, without waiting."""


@functools.cache
def setmaxnreg(registers: int, increase: bool) -> Row:
    """Take or give registers: from here on each thread of the warpgroup has `registers`."""
    if registers % 8 or not 24 <= registers <= 256:
        raise InternalError(f"setmaxnreg {registers}: it takes multiples of 8 from 24 to 256")
    word = "inc" if increase else "dec"
    asm = Operands().asm(f"setmaxnreg.{word}.sync.aligned.u32 {registers};", memory=False)
    return Row(f"setmaxnreg.{word}.{registers}", "setmaxnreg", asm)


SYNC_ROWS: tuple[Row, ...] = (
    MBARRIER_ARRIVE,
    MBARRIER_ARRIVE_IF,
    MBARRIER_WAIT,
    MBARRIER_INIT_FENCE,
    PROXY_FENCE,
    WARP_SYNC,
    BARRIER_SYNC,
    BARRIER_ARRIVE,
)
