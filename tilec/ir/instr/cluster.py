"""Instructions between the blocks of a cluster: barriers, arrivals, loads, stores and copies across
blocks.

PTX ISA 8.0, sections "barrier.cluster", "mapa", "mbarrier.arrive" (`.shared::cluster`), "ld", "st"
(`.shared::cluster`), "cp.async.bulk". Addresses are shared-memory addresses (i32) of this block; a
block of the cluster is named by its rank (i32), and `mapa` turns both into the address over there.
"""

from __future__ import annotations

import functools

from tilec.ir.errors import InternalError
from tilec.ir.instr.instruction import Instruction, register_list, row
from tilec.ir.instr.machine import Machine, acting
from tilec.ir.instr.semantics import Semantics, Word, waiting
from tilec.ir.instr.sync import until_completed

MAX_BLOCKS = 8
"""Blocks of the largest cluster that every device takes (CUDA C++ Programming Guide, "Thread Block
Clusters")."""


def _barrier(half: str, text: str, act: Semantics) -> Instruction:
    return row(f"barrier.cluster{half}", "cluster", text, act)


_ARRIVE, _WAIT = "barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;"
CLUSTER_BARRIER = _barrier("", f"{_ARRIVE} {_WAIT}", waiting(lambda m: m.cluster_sync()))
"""All threads of all blocks of the cluster meet; a warp's threads may come one by one."""

CLUSTER_ARRIVE = _barrier(".arrive", _ARRIVE, lambda m: m.cluster_arrive())
CLUSTER_WAIT = _barrier(".wait", _WAIT, waiting(lambda m: m.cluster_wait()))
"""The two halves of it: each thread waits once for each of its arrivals."""


def _there(text: str, address: str = "$0", block: str = "$1") -> str:
    """`text`, in which `there` is the place of an address in another block."""
    return f"{{ .reg .b32 there; mapa.shared::cluster.u32 there, {address}, {block}; {text} }}"


def _arrive(name: str, order: str) -> Instruction:
    text = (
        "{ .reg .pred p; .reg .b32 there; setp.ne.u32 p, $2, 0; "
        "@p mapa.shared::cluster.u32 there, $0, $1; "
        f"@p mbarrier.arrive{order}.shared::cluster.b64 _, [there]; }}"
    )

    def arrive(m: Machine, address: Word, block: Word, guard: Word) -> None:
        everywhere = order == ".release.cluster"
        m.mbarrier_arrive(address, block=block, cluster_scope=everywhere, where=acting(guard))

    return row(name, "cluster", text, arrive, "rrr")


MBARRIER_ARRIVE_AT = _arrive("mbarrier.arrive_at", "")
"""Arguments: address, block, and an i32: 0 for those who do not arrive (no branch). What threads
wrote before is not ordered: `.release.cluster` would put a fence of the whole device before every
arrival, which costs a matrix product a fifth of its speed. Reads by wgmma that have been waited for
need no more."""

MBARRIER_PUBLISH_AT = _arrive("mbarrier.publish_at", ".release.cluster")
"""The same, and whoever waits with MBARRIER_WAIT_ACQUIRE sees what was written before."""

MBARRIER_WAIT_ACQUIRE = until_completed(
    "mbarrier.wait_acquire", "cluster", ".acquire.cluster",
    lambda m, at, parity: m.mbarrier_wait(at, parity, cluster_scope=True),
)  # fmt: skip

LOAD_WORDS = (1, 2, 4)


@functools.cache
def cluster_load(words: int) -> Instruction:
    """Arguments: address, block; results: `words` (1, 2, 4) adjacent words of 32 bits (i32)."""
    if words not in LOAD_WORDS:
        raise InternalError(f"a load of {words} words from another block; it takes {LOAD_WORDS}")
    values = ", ".join(f"${n}" for n in range(words))
    form = f".v{words}.b32 {{{values}}}" if words > 1 else f".b32 {values}"
    text = _there(f"ld.shared::cluster{form}, [there];", f"${words}", f"${words + 1}")
    name, made = f"ld.cluster.{words}", "r" * words
    return row(name, "cluster", text, lambda m, *x: m.cluster_load(*x, words), "rr", made, bits=32)


STORE_BYTES = (1, 2, 4, 8, 16)


@functools.cache
def cluster_store(bytes: int) -> Instruction:
    """Arguments: address, block, and the words of 32 bits that the bytes are (of one or two bytes
    the lower ones of a word)."""
    if bytes not in STORE_BYTES:
        raise InternalError(f"a store of {bytes} bytes to another block; it takes {STORE_BYTES}")
    words = [f"${2 + n}" for n in range(max(bytes // 4, 1))]
    values = f".v{len(words)}.b32" if len(words) > 1 else f".b{8 * bytes}"
    given = register_list(words) if len(words) > 1 else words[0]

    def store(m: Machine, address: Word, block: Word, *words: Word) -> None:
        m.cluster_store(address, block, words, bytes)

    text = _there(f"st.shared::cluster{values} [there], {given};")
    inputs = "rr" + "r" * len(words)
    return row(f"st.cluster.{bytes}", "cluster", text, store, inputs, bits=8 * bytes)


@functools.cache
def expect_at(bytes: int) -> Instruction:
    """Arrive once at another block's mbarrier and announce `bytes` of asynchronous copies there.
    Arguments: address, block."""

    def expect(m: Machine, address: Word, block: Word) -> None:
        m.mbarrier_arrive(address, expect=bytes, block=block, cluster_scope=True)

    word = "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64"
    text = _there(f"{word} _, [there], {bytes};")
    return row(f"mbarrier.expect_at.{bytes}", "cluster", text, expect, "rr")


@functools.cache
def cluster_send(bytes: int) -> Instruction:
    """An asynchronous copy of `bytes`, a multiple of 16, to another block, whose mbarrier counts
    them. Arguments: address to read, address to write, address of the mbarrier, block. Section
    "cp.async.bulk"."""
    if bytes <= 0 or bytes % 16:
        raise InternalError(f"a bulk copy of {bytes} bytes: it moves multiples of 16")
    text = (
        "{ .reg .b32 there, gate; mapa.shared::cluster.u32 there, $1, $3; "
        "mapa.shared::cluster.u32 gate, $2, $3; "
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
        f"[there], [$0], {bytes}, [gate]; }}"
    )
    name, bits = f"cp.bulk.cluster.{bytes}", 8 * bytes
    return row(name, "cluster", text, lambda m, *x: m.cluster_send(*x, bytes), "rrrr", bits=bits)
