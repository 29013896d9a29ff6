"""Builtins of asynchrony by hand: mbarriers, TMA copies, groups of threads, registers."""

from __future__ import annotations

import math

from tilec import language as T
from tilec.frontend.arithmetic import static_int
from tilec.frontend.builtins.table import Call, builtin, emits
from tilec.frontend.builtins.threads import in_cluster
from tilec.frontend.builtins.tile import eviction_policy
from tilec.frontend.expressions import Expressions
from tilec.frontend.index import Reach
from tilec.frontend.tma_scopes import copy_by_warp, gate_of, is_for_each_warp, of_first_block
from tilec.frontend.values import Buffer, GroupHeader, Region, Scalar, Tile, describe
from tilec.ir import ops
from tilec.ir.core import Value
from tilec.ir.types import INT32, INT64
from tilec.support.lazy import Lazy

sync = Lazy("tilec.ir.instr.sync")  # with it come the tables of all instructions

GROUP_THREADS = 128  # of a `T.ws`


# --- barriers -------------------------------------------------------------------------------------


@builtin(T.alloc_barrier)
def alloc_barrier(t: Expressions, c: Call) -> Buffer:
    c.of("tiles")
    if len(t.builders) > 1:
        hint = "move it up to the other buffers: a barrier is initialised once"
        raise t.error(f"T.{c.builtin} stands in a loop or under a condition", hint)
    counts = [*map(static_int, c.several("arrive_count"))]
    if not counts or any(n is None or not 0 < n <= sync.MAX_ARRIVALS for n in counts):
        hint = (
            "write how many threads arrive in a phase, a compile-time int from 1 to "
            f"{sync.MAX_ARRIVALS}, or a list of such counts for as many barriers"
        )
        raise c.wrong("arrive_count", f"is {describe(c['arrive_count'])}", hint)
    barrier = t.allocated((len(counts),), INT64, "barrier")
    for slot, n in enumerate(counts):
        t.emit(ops.MbarrierInit, barrier.value, n, slot)
    return barrier


@builtin(T.alloc_cluster_barrier)
def alloc_cluster_barrier(t: Expressions, c: Call) -> object:
    in_cluster(t, c)
    return alloc_barrier(t, c)


def _barrier(t: Expressions, c: Call, name: str = "mbarrier") -> tuple[Value, Value]:
    """A barrier buffer and the slot in it (i32)."""
    given = c[name]
    with t.at(c.place(name)):
        buffer = given.buffer if isinstance(given, Region) else given
        if not isinstance(buffer, Buffer) or buffer.type.space != "barrier":
            hint = "make one with bar = T.alloc_barrier(128), or several with a list of counts"
            raise c.wrong(name, f"is {describe(given)}, not a barrier", hint)
        if isinstance(given, Region):
            if not given.is_element:
                said = f"is {describe(given)}: one barrier at a time"
                raise c.wrong(name, said, f"write {buffer.name}[i]")
            return buffer.value, _slot(t, given)
        if buffer.type.size != 1:
            said = f"is {describe(buffer)}: {buffer.type.size} barriers"
            raise c.wrong(name, said, f"write which: {buffer.name}[i]")
        return buffer.value, t.constant(0, INT32).value


def _slot(t: Expressions, element: Region) -> Value:
    t.check_element(element)
    (at,) = element.offsets
    return t.run_time(at, INT32).value if not isinstance(at, Scalar) else t.convert(at, INT32).value


def _block(t: Expressions, c: Call, name: str) -> Value:
    """The number of a block in the cluster (i32)."""
    block, blocks = c.number(name), math.prod(t.cluster or ())
    known = static_int(block)
    if isinstance(block, float) or (known is not None and not 0 <= known < blocks):
        said = f"is {block}; the blocks of the cluster are 0 to {blocks - 1}"
        raise c.wrong(name, said, "write T.block_rank_in_cluster() for one's own")
    return t.convert(block, INT32).value


@builtin(T.barrier_arrive, T.mbarrier_arrive, of="threads")
def arrive(t: Expressions, c: Call) -> None:
    if c["cta_id"] is None:
        t.emit(ops.MbarrierArrive, *_barrier(t, c))
        return
    in_cluster(t, c)
    t.emit(ops.MbarrierArrive, *_barrier(t, c), None, _block(t, c, "cta_id"), publish=True)


@builtin(T.cp_async_barrier_noinc, of="threads")
def arrive_with_copies(t: Expressions, c: Call) -> None:
    t.emit(ops.MbarrierArrive, *_barrier(t, c, "barrier"), copies=True)


@builtin(T.barrier_wait, T.mbarrier_wait_parity, of="threads")
def wait(t: Expressions, c: Call) -> None:
    barrier, slot = _barrier(t, c)
    hint = "write the number of the phase, from 0: its lowest bit is the parity"
    given = c.whole("parity", hint, ", not an integer")
    with t.at(c.place("parity")):
        if not isinstance(given, Scalar):
            parity = t.constant(int(given) & 1, INT32)
        else:
            number = t.convert(given, INT32)
            parity = t.emit_scalar(
                ops.Binary, "and", number.value, t.constant(1, INT32).value, reach=Reach(0, 1)
            )
    t.emit(ops.MbarrierWait, barrier, slot, parity.value, acquire=t.cluster is not None)


def _bytes(t: Expressions, c: Call) -> int:
    found = c.integer("tx", 1)
    if found > sync.MAX_BYTES:
        said = f"is {found:,} bytes, the most that a phase counts is {sync.MAX_BYTES:,}"
        raise c.wrong("tx", said, "announce the bytes of one stage")
    return found


@builtin(T.mbarrier_expect_tx, of="threads")
def expect_tx(t: Expressions, c: Call) -> None:
    t.emit(ops.MbarrierExpectTx, *_barrier(t, c), _bytes(t, c))


@builtin(T.mbarrier_arrive_expect_tx, of="threads")
def arrive_expect_tx(t: Expressions, c: Call) -> None:
    t.emit(ops.MbarrierExpect, *_barrier(t, c), _bytes(t, c))


builtin(T.fence_proxy_async, of="threads")(emits(ops.ProxyFence))


# --- movement -------------------------------------------------------------------------------------


def _check_bytes(
    t: Expressions, c: Call, tiles: tuple[Tile, Tile], spaces: str, path: str, hint: str
) -> None:
    """Raise CompileError for a copy that is none of bytes as they are, between `spaces`, as `path`
    says: "global shared", say, or several such pairs."""
    source, dest = tiles
    s, d = source.buffer.type, dest.buffer.type
    sides = f"the source is {t.tile_text(source)}, the destination {t.tile_text(dest)}"
    if f"{s.space} {d.space}" not in spaces.split(", "):
        raise t.error(f"T.{c.builtin} goes {path}: {sides}", hint)
    for tile in tiles:
        if tile.buffer.packed is not None:
            raise t.error(
                f"T.{c.builtin} moves bytes as they are, and {t.tile_text(tile)} is unpacked by "
                "registers",
                'write T.copy, or bring the bytes: a tensor of uint8, or T.view(A, shape, "uint8")',
            )
    if s.dtype != d.dtype:
        who = "TMA" if c.builtin == "tma_copy" else f"T.{c.builtin}"
        instead = "" if c.builtin == "copy_cluster" else ", or write T.copy"
        hint = f'allocate {dest.buffer.name} as "{s.dtype.name}"{instead}'
        raise t.error(f"{who} converts nothing: {sides}", hint)


@builtin(T.tma_copy, of="tiles")
def tma_copy(t: Expressions, c: Call) -> None:
    source, dest = tiles = c.tiles()
    path, hint = (
        "from a tensor to shared memory, or back",
        "write T.copy, or go through a shared tile",
    )
    _check_bytes(t, c, tiles, "global shared, shared global", path, hint)
    policy = eviction_policy(t, c)
    if dest.buffer.is_global:
        if c["barrier"] is not None:
            raise t.error(
                "nothing is counted on the barrier of a T.tma_copy to a tensor: the source is "
                f"{t.tile_text(source)}, the destination {t.tile_text(dest)}",
                "leave barrier out; T.tma_store_wait(0) waits for it",
                c.place("barrier"),
            )
        t.emit(ops.Copy, t.box(source), t.box(dest), engine="tma_store", eviction_policy=policy)
        return
    if c["barrier"] is None:
        raise t.error(
            "T.tma_copy needs the barrier that counts its bytes",
            f"write T.tma_copy(…, {dest.buffer.name}, barrier=bar), with bar = T.alloc_barrier(1)",
        )
    barrier = _barrier(t, c, "barrier")
    several: tuple[int, Value, Value] | None = None
    if c["cluster_mask"] is not None:
        in_cluster(t, c)
        source = of_first_block(t, c, source)
        several = gate_of(t, c)
    if is_for_each_warp(t, c):
        copy_by_warp(t, source, dest)
    else:
        t.emit(ops.TmaCopy, t.box(source), t.box(dest), *barrier, policy, *(several or ()))


@builtin(T.copy_cluster, of="tiles")
def copy_cluster(t: Expressions, c: Call) -> None:
    in_cluster(t, c)
    if c["coalesced_width"] is not None:
        c.integer("coalesced_width", 1)
    policy = eviction_policy(t, c)
    if (c["dst_block"] is None) == (c["cluster_mask"] is None):
        raise t.error(
            "T.copy_cluster takes one of dst_block and cluster_mask",
            "write dst_block=1 for the block that a shared tile goes to, or cluster_mask=0b11 for "
            "the blocks that are given one tile of a tensor",
        )
    source, dest = tiles = c.tiles()
    if c["cluster_mask"] is not None:
        _to_several(t, c, source, dest, policy)
        return
    path = "from shared memory to that of another block"
    _check_bytes(t, c, tiles, "shared shared", path, "go through a shared tile")
    block = _block(t, c, "dst_block")
    told = () if c["remote_barrier"] is None else _barrier(t, c, "remote_barrier")
    t.emit(ops.ClusterCopy, t.box(source), t.box(dest), block, *told)


def _to_several(t: Expressions, c: Call, source: Tile, dest: Tile, policy: str) -> None:
    """One tile of a tensor for several blocks; who comes behind it finds it there."""
    if not source.buffer.is_global or dest.buffer.type.space != "shared":
        raise t.error(
            "cluster_mask of T.copy_cluster brings a tile of a tensor to shared memory: the source "
            f"is {t.tile_text(source)}, the destination {t.tile_text(dest)}",
            "write dst_block for a copy from block to block",
            c.place("cluster_mask"),
        )
    if c["remote_barrier"] is not None:
        raise t.error(
            "T.copy_cluster waits for what cluster_mask brings: nothing is counted on "
            "remote_barrier",
            "leave remote_barrier out, or write T.tma_copy(…, barrier=bar, cluster_mask=…)",
            c.place("remote_barrier"),
        )
    source = of_first_block(t, c, source)
    t.emit(ops.Copy, t.box(source), t.box(dest), eviction_policy=policy)


_waits = emits(ops.TmaStoreWait, lambda c: c.integer("count", 0), lambda c: c.flag("read"))
builtin(T.tma_store_wait, of="threads")(_waits)


@builtin(T.async_copy, of="tiles")
def async_copy(t: Expressions, c: Call) -> None:
    width = 0 if c["coalesced_width"] is None else c.integer("coalesced_width", 1)
    source, dest = tiles = c.tiles()
    path = "from a tensor to shared memory"
    _check_bytes(t, c, tiles, "global shared", path, "write T.copy")
    t.emit(ops.Copy, t.box(source), t.box(dest), coalesced_width=width, engine="cp_async")
    t.emit(ops.CpAsyncCommit)


builtin(T.ptx_commit_group, of="threads")(emits(ops.CpAsyncCommit))
builtin(T.ptx_wait_group, of="threads")(emits(ops.CpAsyncWait, lambda c: c.integer("num", 0)))


# --- products -------------------------------------------------------------------------------------


@builtin(T.wait_wgmma, T.warpgroup_wait, of="tiles")
def wait_products(t: Expressions, c: Call) -> None:
    t.emit(ops.WgmmaWait, c.integer("id" if "id" in c.values else "num_mma", 0), ())


# --- groups of threads ----------------------------------------------------------------------------


@builtin(T.named_barrier_arrive, of="threads")
def named_barrier_arrive(t: Expressions, c: Call) -> None:
    number = c.integer("barrier_id", 1)
    threads = c.integer("thread_count", 32)
    if number >= sync.NAMED_BARRIERS:
        hint = f"a block has barriers 1 to {sync.NAMED_BARRIERS - 1} beside that of all its threads"
        raise c.wrong("barrier_id", f"is {number}", hint)
    if threads % 32:
        hint = f"write {threads // 32 * 32}"
        raise c.wrong("thread_count", f"is {threads}: whole warps of 32 threads come", hint)
    t.emit(ops.BarrierArrive, number, threads)


@builtin(T.ws)
def ws(t: Expressions, c: Call) -> GroupHeader:
    ids = [static_int(i) for i in c["group"]]
    first = ids[0] if ids else None
    known = [i for i in ids if i is not None and i >= 0]
    if first is None or known != [*range(first, first + len(ids))]:
        raise t.error(
            f"T.ws({', '.join(map(describe, c['group']))}): not warpgroups that follow one another",
            "write T.ws(0) for threads 0 to 127, T.ws(1) for 128 to 255, T.ws(0, 1) for both",
        )
    block, last = math.prod(t.block_shape), (first + len(ids)) * GROUP_THREADS
    if t.block_shape and last > block:
        named = ", ".join(map(str, ids))
        raise t.error(
            f"T.ws({named}) is of threads {first * GROUP_THREADS} to {last - 1}, the block has "
            f"{block}",
            f"write with T.Kernel(…, threads={last})",
        )
    return GroupHeader(first * GROUP_THREADS, len(ids) * GROUP_THREADS, t.loc)


def group_condition(t: Expressions, header: GroupHeader) -> Scalar:
    """Whether a thread belongs to the group."""
    thread = t.emit_scalar(ops.ThreadIndex, reach=Reach(0))
    last = header.first + header.threads
    inside = t.run_time(t.compare("lt", thread, last))
    if header.first:
        above = t.run_time(t.compare("ge", thread, header.first))
        inside = t.logical_and(above, inside)
    return inside


# --- registers ------------------------------------------------------------------------------------


def _set_registers(t: Expressions, c: Call, increase: bool) -> None:
    c.of("tiles")
    n = c.integer("reg_count", 1)
    if n not in sync.REGISTER_CHOICES:
        raise c.wrong(
            "reg_count",
            f"is {n}: registers move in eights, from {sync.REGISTER_CHOICES[0]} to "
            f"{sync.REGISTER_CHOICES[-1]}",
            f"write {min(max(n // 8 * 8, sync.REGISTER_CHOICES[0]), sync.REGISTER_CHOICES[-1])}",
        )
    t.emit(ops.SetRegisters, n, increase)


@builtin(T.set_max_nreg)
def set_max_nreg(t: Expressions, c: Call) -> None:
    if c["is_inc"] not in (0, 1):
        hint = "write 1 for more registers than before, 0 for fewer"
        raise c.wrong("is_inc", f"is {describe(c['is_inc'])}", hint)
    _set_registers(t, c, bool(c["is_inc"]))


builtin(T.inc_max_nreg)(lambda t, c: _set_registers(t, c, True))
builtin(T.dec_max_nreg)(lambda t, c: _set_registers(t, c, False))


@builtin(T.annotate_producer_reg_dealloc, T.annotate_consumer_reg_alloc, T.no_set_max_nreg)
@builtin(T.warpgroup_arrive, T.warpgroup_commit_batch, T.warpgroup_fence_operand)
@builtin(T.disable_warp_group_reg_alloc, T.tma_store_arrive)
@builtin(T.ptx_fence_barrier_init, of="threads")
def hint(t: Expressions, c: Call) -> None:
    """Nothing: tilec does it by itself."""
    if "reg_count" in c.values:
        c.integer("reg_count", 1)
