"""Instructions between the blocks of a cluster: barriers, arrivals, loads, stores and copies across
blocks.

PTX ISA 8.0, sections "barrier.cluster", "mapa", "mbarrier.arrive" (`.shared::cluster`), "ld", "st"
(`.shared::cluster`), "cp.async.bulk". Addresses are shared-memory addresses (i32) of this block; a
block of the cluster is named by its rank (i32), and `mapa` turns both into the address over there.
"""

from __future__ import annotations

import functools

from tilec.ir.errors import InternalError
from tilec.ir.instr.instruction import Asm, Instruction, Operands
from tilec.ir.instr.machine import Machine, acting
from tilec.ir.instr.semantics import Outcome, Semantics, Word, waiting

MAX_BLOCKS = 8
"""Blocks of the largest cluster that every device takes (CUDA C++ Programming Guide, "Thread Block
Clusters")."""


def _barrier(half: str, text: str, act: Semantics) -> Instruction:
    return Instruction(f"barrier.cluster{half}", "cluster", Operands().asm(text, act))


_ARRIVE, _WAIT = "barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;"
CLUSTER_BARRIER = _barrier("", f"{_ARRIVE} {_WAIT}", waiting(lambda m: m.cluster_sync()))
"""All threads of all blocks of the cluster meet; a warp's threads may come one by one."""

CLUSTER_ARRIVE = _barrier(".arrive", _ARRIVE, lambda m: m.cluster_arrive())
CLUSTER_WAIT = _barrier(".wait", _WAIT, waiting(lambda m: m.cluster_wait()))
"""The two halves of it: each thread waits once for each of its arrivals."""


def _arrive(order: str) -> Asm:
    x = Operands()
    address, block, guard = x.inputs("r", 3)

    def arrive(m: Machine, address: Word, block: Word, guard: Word) -> None:
        everywhere = order == ".release.cluster"
        m.mbarrier_arrive(address, block=block, cluster_scope=everywhere, where=acting(guard))

    return x.asm(
        f"{{ .reg .pred p; .reg .b32 there; setp.ne.u32 p, {guard}, 0; "
        f"@p mapa.shared::cluster.u32 there, {address}, {block}; "
        f"@p mbarrier.arrive{order}.shared::cluster.b64 _, [there]; }}",
        arrive,
    )


MBARRIER_ARRIVE_AT = Instruction("mbarrier.arrive_at", "cluster", _arrive(""))
"""Arguments: address, block, and an i32: 0 for those who do not arrive (no branch). What threads
wrote before is not ordered: `.release.cluster` would put a fence of the whole device before every
arrival, which costs a matrix product a fifth of its speed. Reads by wgmma that have been waited for
need no more."""

MBARRIER_PUBLISH_AT = Instruction("mbarrier.publish_at", "cluster", _arrive(".release.cluster"))
"""The same, and whoever waits with MBARRIER_WAIT_ACQUIRE sees what was written before."""


def _wait() -> Asm:
    x = Operands()
    address, parity = x.inputs("r", 2)

    @waiting
    def wait(m: Machine, address: Word, parity: Word) -> Outcome:
        return m.mbarrier_wait(address, parity, cluster_scope=True)

    return x.asm(
        "{ .reg .pred p; L${:uid}_W: "
        f"mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [{address}], {parity}; "
        "@p bra L${:uid}_D; bra L${:uid}_W; L${:uid}_D: }",
        wait,
    )


MBARRIER_WAIT_ACQUIRE = Instruction("mbarrier.wait_acquire", "cluster", _wait())
"""Arguments: address, parity (i32)."""

LOAD_WORDS = (1, 2, 4)


@functools.cache
def cluster_load(words: int) -> Instruction:
    """Arguments: address, block; results: `words` (1, 2, 4) adjacent words of 32 bits (i32)."""
    if words not in LOAD_WORDS:
        raise InternalError(f"a load of {words} words from another block; it takes {LOAD_WORDS}")
    x = Operands()
    values = ", ".join(x.outputs("r", words))
    address, block = x.inputs("r", 2)

    def load(m: Machine, address: Word, block: Word) -> Outcome:
        return m.cluster_load(address, block, words)

    form = f".v{words}.b32 {{{values}}}" if words > 1 else f".b32 {values}"
    asm = x.asm(
        f"{{ .reg .b32 there; mapa.shared::cluster.u32 there, {address}, {block}; "
        f"ld.shared::cluster{form}, [there]; }}",
        load,
    )
    return Instruction(f"ld.cluster.{words}", "cluster", asm, 32)


STORE_BYTES = (1, 2, 4, 8, 16)


@functools.cache
def cluster_store(bytes: int) -> Instruction:
    """Arguments: address, block, and the words of 32 bits that the bytes are (of one or two bytes
    the lower ones of a word)."""
    if bytes not in STORE_BYTES:
        raise InternalError(f"a store of {bytes} bytes to another block; it takes {STORE_BYTES}")
    x = Operands()
    address, block = x.inputs("r", 2)
    words = x.inputs("r", max(bytes // 4, 1))

    def store(m: Machine, address: Word, block: Word, *words: Word) -> None:
        m.cluster_store(address, block, words, bytes)

    values = f".v{len(words)}.b32" if len(words) > 1 else f".b{8 * bytes}"
    given = f"{{{', '.join(words)}}}" if len(words) > 1 else words[0]
    asm = x.asm(
        f"{{ .reg .b32 there; mapa.shared::cluster.u32 there, {address}, {block}; "
        f"st.shared::cluster{values} [there], {given}; }}",
        store,
    )
    return Instruction(f"st.cluster.{bytes}", "cluster", asm, 8 * bytes)


@functools.cache
def expect_at(bytes: int) -> Instruction:
    """Arrive once at another block's mbarrier and announce `bytes` of asynchronous copies there.
    Arguments: address, block."""
    x = Operands()
    address, block = x.inputs("r", 2)

    def expect(m: Machine, address: Word, block: Word) -> None:
        m.mbarrier_arrive(address, expect=bytes, block=block, cluster_scope=True)

    asm = x.asm(
        f"{{ .reg .b32 there; mapa.shared::cluster.u32 there, {address}, {block}; "
        f"mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [there], {bytes}; }}",
        expect,
    )
    return Instruction(f"mbarrier.expect_at.{bytes}", "cluster", asm)


@functools.cache
def cluster_send(bytes: int) -> Instruction:
    """An asynchronous copy of `bytes`, a multiple of 16, to another block, whose mbarrier counts
    them. Arguments: address to read, address to write, address of the mbarrier, block. Section
    "cp.async.bulk"."""
    if bytes <= 0 or bytes % 16:
        raise InternalError(f"a bulk copy of {bytes} bytes: it moves multiples of 16")
    x = Operands()
    source, dest, barrier, block = x.inputs("r", 4)

    def send(m: Machine, source: Word, dest: Word, barrier: Word, block: Word) -> None:
        m.cluster_send(source, dest, barrier, block, bytes)

    asm = x.asm(
        f"{{ .reg .b32 there, gate; mapa.shared::cluster.u32 there, {dest}, {block}; "
        f"mapa.shared::cluster.u32 gate, {barrier}, {block}; "
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
        f"[there], [{source}], {bytes}, [gate]; }}",
        send,
    )
    return Instruction(f"cp.bulk.cluster.{bytes}", "cluster", asm, 8 * bytes)


CLUSTER_INSTRUCTIONS: tuple[Instruction, ...] = (
    CLUSTER_BARRIER,
    CLUSTER_ARRIVE,
    CLUSTER_WAIT,
    MBARRIER_ARRIVE_AT,
    MBARRIER_PUBLISH_AT,
    MBARRIER_WAIT_ACQUIRE,
    *(cluster_load(n) for n in LOAD_WORDS),
    *(cluster_store(n) for n in STORE_BYTES),
)
