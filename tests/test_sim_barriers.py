"""The simulator's barriers: phases and bytes of mbarriers, order, meetings, the register pool."""

from __future__ import annotations

import numpy as np
import pytest
from sim_bench import Bench

from tilec.ir import types as dt
from tilec.ir.instr import cluster, sync
from tilec.ir.instr import memory as moves
from tilec.sim.buffers import SHARED_BASE
from tilec.sim.intrinsics import intrinsic
from tilec.sim.tensors import TensorMap

GATE = np.int32(SHARED_BASE + 90000)
OTHER = np.int32(SHARED_BASE + 90008)
ZERO, ONE = np.int32(0), np.int32(1)


def made(bench, *counts):
    """mbarriers of these counts from GATE on, of which all threads know."""
    for block in range(len(bench.blocks)):
        one = bench.active([0], block)
        for i, count in enumerate(counts):
            bench.run(one, sync.mbarrier_init(count), GATE + np.int32(8 * i), buffer="full")
        bench.run(one, sync.MBARRIER_INIT_FENCE)
        everyone = bench.active(block=block)
        bench.pass_(everyone, sync.BARRIER_SYNC, ZERO, np.int32(bench.blocks[block].threads))


def write(bench, active, offset, data=None):
    """Each thread stores 4 bytes."""
    data = np.arange(len(active.lanes), dtype=np.int32) if data is None else data
    at = SHARED_BASE + offset + 4 * np.arange(len(active.lanes))
    active.block.memory.warp_write(active, at, data[:, None].view(np.uint8))


def read(bench, active, offset):
    at = SHARED_BASE + offset + 4 * np.arange(len(active.lanes))
    return active.block.memory.warp_read(active, at, 4).view(np.int32)[:, 0]


# --- mbarriers ---


def test_a_phase_ends_with_its_last_arrival_and_orders_what_was_done():
    bench = Bench(64)
    made(bench, 32)
    left, right = bench.active(range(32)), bench.active(range(32, 64))
    wait = bench.run(right, sync.MBARRIER_WAIT, GATE, ZERO)
    assert not wait.ready().any() and "32 of 32 arrivals" in wait.describe()
    write(bench, left, 0)
    guard = (np.arange(32) < 20).astype(np.int32)
    bench.run(left, sync.MBARRIER_ARRIVE_IF, GATE, guard)
    assert not wait.ready().any() and "12 of 32 arrivals" in wait.describe()
    bench.run(bench.active(range(20, 32)), sync.MBARRIER_ARRIVE, GATE)
    assert wait.ready().all()
    wait.finish(wait.ready())
    np.testing.assert_array_equal(read(bench, right, 0), np.arange(32))
    assert not bench.kinds
    later = bench.run(right, sync.MBARRIER_WAIT, GATE, ONE)
    assert not later.ready().any()


def test_a_wait_that_is_not_finished_orders_nothing():
    bench = Bench(64)
    made(bench, 1)
    write(bench, bench.active(range(32)), 0)
    bench.run(bench.active([0]), sync.MBARRIER_ARRIVE, GATE)
    read(bench, bench.active(range(32, 64)), 0)
    assert bench.kinds == ["data race"]


def test_only_the_arriving_thread_is_ordered():
    bench = Bench(64)
    made(bench, 1)
    write(bench, bench.active(range(32)), 0)
    bench.run(bench.active([0]), sync.MBARRIER_ARRIVE, GATE)
    right = bench.active(range(32, 64))
    bench.pass_(right, sync.MBARRIER_WAIT, GATE, ZERO)
    read(bench, right, 0)
    assert "data race" in bench.kinds


@pytest.mark.parametrize("synced", [False, True])
def test_a_warp_sync_orders_a_warp(synced):
    bench = Bench(64)
    made(bench, 1)
    left, right = bench.active(range(32)), bench.active(range(32, 64))
    write(bench, left, 0)
    if synced:
        bench.run(left, sync.WARP_SYNC)
    bench.run(bench.active([0]), sync.MBARRIER_ARRIVE, GATE)
    bench.pass_(right, sync.MBARRIER_WAIT, GATE, ZERO)
    read(bench, right, 0)
    assert ("data race" in bench.kinds) is not synced


def test_threads_wait_for_barriers_of_their_own():
    bench = Bench(64)
    made(bench, 1, 1)
    active = bench.active()
    which = np.where(np.arange(64) < 32, GATE, OTHER).astype(np.int32)
    wait = bench.run(active, sync.MBARRIER_WAIT, which, ZERO)
    bench.run(bench.active([0]), sync.MBARRIER_ARRIVE, OTHER)
    assert wait.ready().tolist() == [False] * 32 + [True] * 32
    wait.finish(wait.ready())
    rest = wait.only(~wait.ready())
    bench.run(bench.active([0]), sync.MBARRIER_ARRIVE, GATE)
    assert rest.ready().all() and len(rest.ready()) == 32


def test_a_barrier_must_be_made_and_known():
    bench = Bench(64)
    bench.run(bench.active([0]), sync.MBARRIER_ARRIVE, GATE)
    assert bench.kinds == ["uninitialised read"]
    bench = Bench(64)
    bench.run(bench.active([0]), sync.mbarrier_init(1), GATE)
    bench.run(bench.active([0]), sync.MBARRIER_ARRIVE, GATE)
    assert not bench.kinds
    bench.run(bench.active([40]), sync.MBARRIER_ARRIVE, GATE)
    assert bench.kinds == ["data race"]


def load(bench, active, bytes):
    a = bench.tensors[0]
    bench.maps.append(TensorMap(a, a.address, (4096,), (), (bytes // 4,), 0, dt.INT32))
    words = ZERO, GATE
    number = np.int64(len(bench.maps) - 1)
    bench.run(active, moves.tma_load(1), np.int32(SHARED_BASE), number, *words, buffer="A_shared")


@pytest.mark.parametrize("bytes", [256, 512, 1024])
def test_bytes_must_be_those_announced(bytes):
    bench = Bench(32, arrays={"A": np.arange(4096, dtype=np.int32)})
    made(bench, 1)
    one, active = bench.active([0]), bench.active()
    bench.run(one, sync.mbarrier_expect(512), GATE)
    load(bench, one, bytes)
    wait = bench.run(active, sync.MBARRIER_WAIT, GATE, ZERO)
    if bytes == 512:
        assert wait.ready().all()
        wait.finish(wait.ready())
        assert read(bench, active, 0).tolist() == list(range(32)) and not bench.kinds
        return
    assert not wait.ready().any()
    active.waiting = wait
    bench.blocks[0].barriers.deadlock(active, [active])
    assert bench.kinds == ["deadlock", "transaction bytes"]
    found = list(bench.findings)
    assert f"{bytes} have come" in found[1].message
    assert "warp 0 waits for the end of a phase" in found[0].details[0]


def test_a_copy_is_not_seen_before_its_phase_was_waited_for():
    bench = Bench(32, arrays={"A": np.arange(4096, dtype=np.int32)})
    made(bench, 1)
    one = bench.active([0])
    bench.run(one, sync.mbarrier_expect(512), GATE)
    load(bench, one, 512)
    read(bench, bench.active(), 0)
    assert bench.kinds == ["read before wait"]


def test_a_load_needs_the_fence_of_the_initialisation():
    bench = Bench(32, arrays={"A": np.arange(4096, dtype=np.int32)})
    one = bench.active([0])
    bench.run(one, sync.mbarrier_init(1), GATE)
    bench.run(one, sync.mbarrier_expect(512), GATE)
    load(bench, one, 512)
    assert bench.kinds == ["missing proxy fence"]


def test_a_ring_of_phases_is_clean():
    """Full and empty barriers of one slot, a producer and a consumer warp."""
    bench = Bench(64)
    made(bench, 32, 32)
    left, right = bench.active(range(32)), bench.active(range(32, 64))
    for i in range(6):
        bench.pass_(left, sync.MBARRIER_WAIT, OTHER, np.int32(i + 1 & 1))
        write(bench, left, 0, np.arange(32, dtype=np.int32) + i)
        bench.run(left, sync.MBARRIER_ARRIVE, GATE)
        bench.pass_(right, sync.MBARRIER_WAIT, GATE, np.int32(i & 1))
        assert (read(bench, right, 0) == np.arange(32) + i).all()
        bench.run(right, sync.MBARRIER_ARRIVE, OTHER)
    assert not list(bench.findings)


def test_an_early_release_is_found_whatever_the_schedule():
    bench = Bench(64)
    made(bench, 32, 32)
    left, right = bench.active(range(32)), bench.active(range(32, 64))
    for i in range(2):
        bench.pass_(left, sync.MBARRIER_WAIT, OTHER, np.int32(i + 1 & 1))
        write(bench, left, 0, np.arange(32, dtype=np.int32) + i)
        bench.run(left, sync.MBARRIER_ARRIVE, GATE)
        bench.pass_(right, sync.MBARRIER_WAIT, GATE, np.int32(i & 1))
        bench.run(right, sync.MBARRIER_ARRIVE, OTHER)
        read(bench, right, 0)
    assert bench.kinds == ["overwritten before read"]


def test_a_phase_that_nobody_has_seen_can_alias():
    """The producer does not wait for the consumer: its second phase may end before the consumer
    looks for the first."""
    bench = Bench(64)
    made(bench, 32)
    left, right = bench.active(range(32)), bench.active(range(32, 64))
    bench.run(left, sync.MBARRIER_ARRIVE, GATE)
    bench.pass_(right, sync.MBARRIER_WAIT, GATE, ZERO)
    bench.run(left, sync.MBARRIER_ARRIVE, GATE)
    assert bench.kinds == ["parity can alias"]


def test_a_stale_parity_is_found():
    """Who waits for phase 2 without having seen the end of phase 1 might take phase 0 for it."""
    bench = Bench(96)
    made(bench, 1, 32)
    one, right = bench.active([0]), bench.active(range(32, 64))
    for _ in range(3):
        bench.run(one, sync.MBARRIER_ARRIVE, GATE)
    bench.pass_(right, sync.MBARRIER_WAIT, GATE, ZERO)
    assert bench.kinds == ["parity can alias"]


def test_an_arrival_too_many_while_bytes_are_missing():
    bench = Bench(32)
    made(bench, 1)
    one = bench.active([0])
    bench.run(one, sync.mbarrier_expect(64), GATE)
    bench.run(one, sync.MBARRIER_ARRIVE, GATE)
    assert bench.kinds == ["transaction bytes"]


# --- clusters ---


def meet(bench):
    waits = [
        bench.run(bench.active(block=r), cluster.CLUSTER_BARRIER) for r in range(len(bench.blocks))
    ]
    for i, w in enumerate(waits):
        assert w.ready().all() and i >= 0
        w.finish(w.ready())


@pytest.mark.parametrize("met", [False, True])
def test_loads_from_another_block(met):
    bench = Bench(64, blocks=2)
    for r in range(2):
        write(bench, bench.active(block=r), 0, np.arange(64, dtype=np.int32) * 10**r)
    if met:
        meet(bench)
    active = bench.active(block=0)
    address = (SHARED_BASE + 8 * (np.arange(64) % 32)).astype(np.int32)
    got = bench.run(active, cluster.cluster_load(2), address, ONE)
    np.testing.assert_array_equal(np.stack(got, -1).ravel()[:64], np.arange(64) * 10)
    assert bench.kinds == ([] if met else ["data race"])
    bench.run(active, cluster.cluster_load(1), address, np.int32(2))
    assert "out of bounds" in bench.kinds


def test_arrivals_at_another_block():
    bench = Bench(32, blocks=2)
    made(bench, 2)
    meet(bench)
    wait = bench.run(bench.active(block=1), sync.MBARRIER_WAIT, GATE, ZERO)
    guard = (np.arange(32) == 3).astype(np.int32)
    for r in range(2):
        assert not wait.ready().any()
        active = bench.active(block=r)
        write(bench, active, 512)
        bench.run(active, cluster.MBARRIER_PUBLISH_AT, GATE, ONE, guard)
    assert wait.ready().all()
    own = bench.run(bench.active(block=0), cluster.MBARRIER_WAIT_ACQUIRE, GATE, ZERO)
    assert not own.ready().any() and not bench.kinds


def test_the_cluster_barrier_waits_for_all():
    bench = Bench(64, blocks=2)
    first = bench.run(bench.active(block=0), cluster.CLUSTER_BARRIER)
    half = bench.run(bench.active(range(32), 1), cluster.CLUSTER_BARRIER)
    assert not first.ready().any() and "96 of 128 threads" in first.describe()
    bench.run(bench.active(range(32, 64), 1), cluster.CLUSTER_BARRIER)
    assert first.ready().all() and half.ready().all()


# --- named barriers ---


def test_named_barriers_meet_and_come():
    bench = Bench(128)
    left, right = bench.active(range(64)), bench.active(range(64, 128))
    write(bench, right, 0)
    wait = bench.run(left, sync.BARRIER_SYNC, np.int32(3), np.int32(128))
    assert not wait.ready().any() and "barrier 3" in wait.describe()
    bench.run(right, sync.BARRIER_ARRIVE, np.int32(3), np.int32(128))
    assert wait.ready().all()
    wait.finish(wait.ready())
    read(bench, left, 0)
    assert not bench.kinds
    write(bench, left, 1024)
    read(bench, right, 1024)  # who only arrives has nothing behind it
    assert bench.kinds == ["data race"]


def test_warps_may_come_to_different_barriers():
    bench = Bench(128)
    active = bench.active()
    number = (np.arange(128) // 64 + 1).astype(np.int32)
    wait = bench.run(active, sync.BARRIER_SYNC, number, np.int32(64))
    assert wait.ready().all()
    wait.finish(wait.ready())
    write(bench, bench.active(range(64)), 0)
    assert not bench.kinds


@pytest.mark.parametrize(
    ("lanes", "number", "threads"), [(range(20), 0, 32), (range(32), 16, 32), (range(32), 1, 40)]
)
def test_misused_named_barriers(lanes, number, threads):
    bench = Bench(64)
    active = bench.active(lanes)
    bench.run(active, sync.BARRIER_SYNC, np.int32(number), np.int32(threads))
    assert "barrier divergence" in bench.kinds


def test_a_barrier_has_one_count():
    bench = Bench(96)
    bench.run(bench.active(range(32)), sync.BARRIER_SYNC, ONE, np.int32(64))
    bench.run(bench.active(range(32, 64)), sync.BARRIER_SYNC, ONE, np.int32(96))
    assert bench.kinds == ["barrier divergence"]


# --- AMD ---


@pytest.mark.parametrize("fences", ["", "release", "acquire", "release acquire"])
def test_amds_barrier_orders_only_what_is_fenced(fences):
    bench = Bench(128, "hip:gfx942")
    halves = [bench.active(range(64)), bench.active(range(64, 128))]
    write(bench, halves[0], 0)
    waits = []
    for m in halves:
        if "release" in fences:
            m.block.barriers.fence(m, "release")
        waits.append(intrinsic("llvm.amdgcn.s.barrier")(m))
    for m, w in zip(halves, waits):
        assert w.ready().all()
        w.finish(w.ready())
        if "acquire" in fences:
            m.block.barriers.fence(m, "acquire")
    read(bench, halves[1], 0)
    assert bench.kinds == ([] if fences == "release acquire" else ["data race"])


# --- registers ---


def test_the_register_pool():
    """HOPPER: three warpgroups of 384 threads have 504 registers per thread between them."""
    bench = Bench(384)
    groups = [bench.active(range(128 * g, 128 * g + 128)) for g in range(3)]
    waits = [bench.run(groups[g], sync.setmaxnreg(232, True)) for g in (1, 2)]
    assert not waits[0].ready().any() and not waits[1].ready().any()
    assert bench.run(groups[0], sync.setmaxnreg(40, False)) is None
    for w in waits:
        assert w.ready().all()
        w.finish(w.ready())
    assert bench.blocks[0].barriers.registers.free() == 0 and not bench.kinds


def test_more_registers_than_there_are():
    bench = Bench(384)
    groups = [bench.active(range(128 * g, 128 * g + 128)) for g in range(3)]
    bench.run(groups[0], sync.setmaxnreg(32, False))
    waits = [bench.run(groups[g], sync.setmaxnreg(240, True)) for g in (1, 2)]
    waits[0].finish(waits[0].ready())
    assert not waits[1].ready().any()
    groups[2].waiting = waits[1]
    bench.blocks[0].barriers.deadlock(groups[2], [groups[2]])
    assert bench.kinds == ["register pool"]
    assert "more than the 504" in list(bench.findings)[0].details[0]


def test_setmaxnreg_of_a_part_of_a_warpgroup():
    bench = Bench(128)
    bench.run(bench.active(range(64)), sync.setmaxnreg(40, False))
    assert bench.kinds == ["barrier divergence"]
    bench = Bench(128)
    bench.run(bench.active(), sync.setmaxnreg(40, False))
    bench.run(bench.active(), sync.setmaxnreg(48, False))
    assert bench.kinds == ["register pool"]
