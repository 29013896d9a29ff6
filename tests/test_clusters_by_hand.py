"""Blocks of a cluster that meet, and arrive at one another's barriers, as their author says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.core import walk
from tilec.ir.ops import ClusterBarrier

M, N = T.dynamic("M, N")


@tilec.kernel
def neighbours(
    A: T.Tensor((M,), "int32"),
    B: T.Tensor((M,), "int32"),
    how: T.constexpr,
    dims: T.constexpr = (4, 1, 1),
):
    """Each block reads what the next one of its cluster wrote."""
    with T.ClusterKernel(M, cluster_dims=dims, threads=96) as bx:
        rank = T.block_rank_in_cluster()
        tx = T.get_thread_binding()
        if tx == 0:
            A[bx] = 10 * bx + rank
        if how == "sync":
            T.cluster_sync()
        elif how == "halves":
            T.cluster_arrive()
            T.cluster_wait()
        if tx == 64:
            B[bx] = A[bx - rank + (rank + 1) % dims[0]]


@tilec.kernel
def to_the_first(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32"), wait: T.constexpr):
    """All threads of a cluster arrive at the barrier of its first block, twice; that adds up what
    they left."""
    with T.Kernel(M, threads=64, cluster_dims=2) as bx:
        bar = T.alloc_cluster_barrier([128])
        T.cluster_sync()
        first = bx - T.block_rank_in_cluster()
        for step in T.serial(2):
            for i in T.Parallel(64):
                B[bx, step * 64 + i] = A[bx, step * 64 + i] * 2
            T.mbarrier_arrive(bar, 0)
            if T.block_rank_in_cluster() == 0:
                if wait:
                    T.mbarrier_wait_parity(bar, step)
                for i in T.Parallel(64):
                    B[first, step * 64 + i] += B[first + 1, step * 64 + 63 - i]
        T.cluster_sync()


def ranks(a: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    i = np.arange(len(a))
    return 10 * i + i % blocks, (10 * i + i % blocks)[i - i % blocks + (i + 1) % blocks]


@pytest.mark.parametrize("blocks", [2, 4, 8])
@pytest.mark.parametrize("how", ["sync", "halves"])
def test_blocks_meet(how: str, blocks: int) -> None:
    a, b = np.zeros(16, np.int32), np.zeros(16, np.int32)
    report = tilec.simulate(neighbours, a, b, how=how, dims=(blocks, 1, 1), target="cuda:sm_90a")
    assert report.ok, report
    for got, want in zip((a, b), ranks(a, blocks)):
        np.testing.assert_array_equal(got, want)


def test_what_they_become() -> None:
    a = np.zeros(16, np.int32)
    made = neighbours.compile(a, a, how="halves", target="cuda:sm_90a")
    barriers = [o for o in walk(made.lowered.body) if isinstance(o, ClusterBarrier)]
    assert [o.part for o in barriers] == ["arrive", "wait"]
    ptx = made.stages["ptx"]
    assert ptx.index("barrier.cluster.arrive.release") < ptx.index("barrier.cluster.wait.acquire")
    assert made.lowered.attrs["cluster"] == (4, 1, 1)


def test_without_a_meeting_it_is_a_race() -> None:
    a, b = np.zeros(16, np.int32), np.zeros(16, np.int32)
    report = tilec.simulate(neighbours, a, b, how="", target="cuda:sm_90a")
    assert "data race" in str(report) and "B[bx] = A[" in str(report)


def halves(a: np.ndarray) -> np.ndarray:
    b = a * 2
    for step in (0, 64):
        b[::2, step : step + 64] += b[1::2, step : step + 64][:, ::-1]
    return b


@pytest.mark.parametrize("wait", [True, False])
def test_arrivals_at_another_block(wait: bool, rng: np.random.Generator) -> None:
    a = rng.integers(-9, 10, (6, 128)).astype(np.float32)
    b = np.zeros_like(a)
    report = tilec.simulate(to_the_first, a, b, wait=wait, target="cuda:sm_90a")
    assert report.ok == wait, report
    if wait:
        np.testing.assert_array_equal(b, halves(a))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_ranks_on_every_target(target: str) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((6, 4), "int32")):
        with T.Kernel(6, 4, cluster_dims=(3, 2), threads=32) as (bx, by):
            if T.get_thread_binding() == 0:
                A[bx, by] = T.block_rank_in_cluster()

    a = np.zeros((6, 4), np.int32)
    if target == "cpu":
        kernel(a)
    else:
        assert tilec.simulate(kernel, a, target=target).ok
    np.testing.assert_array_equal(a, np.arange(6)[:, None] % 3 + np.arange(4) % 2 * 3)


C2 = ", cluster_dims=2"
ERRORS = {
    "no cluster": ("", "T.cluster_sync()", "T.cluster_sync in a kernel that is not launched in"),
    "no barrier": ("", "T.alloc_cluster_barrier(1)", "T.alloc_cluster_barrier in a kernel that is"),
    "parallel": (C2, "for i in T.Parallel(4): T.cluster_sync()", "cannot stand in T.Parallel"),
    "rank": (
        C2,
        "bar = T.alloc_cluster_barrier(1); T.mbarrier_arrive(bar, 2)",
        "cta_id of T.mbarrier_arrive is 2; the blocks of the cluster are 0 to 1",
    ),
    "thread": (C2, "if T.get_lane_idx() < 3: T.cluster_sync()", "0 to 2"),
    "count": (C2, "T.alloc_cluster_barrier(0)", "arrive_count of T.alloc_cluster_barrier is"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, tmp_path: Any) -> None:
    dims, line, message = ERRORS[name]
    source = (
        'import tilec, tilec.language as T\n@tilec.kernel\ndef k(A: T.Tensor((8,), "int32")):\n'
        f"    with T.Kernel(8, threads=32{dims}):\n        {line}\n"
    )
    path = tmp_path / "k.py"
    path.write_text(source)
    scope: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), scope)
    with pytest.raises(tilec.CompileError, match=message) as e:
        scope["k"].compile(np.zeros(8, np.int32), target="cuda:sm_90a")
    assert e.value.loc.line == 5


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "hip:gfx942"])
def test_targets_without_clusters_say_so(target: str) -> None:
    a = np.zeros(16, np.int32)
    with pytest.raises(tilec.CompileError, match="has no clusters whose blocks could meet"):
        neighbours.compile(a, a, how="sync", target=target)


@pytest.mark.gpu
def test_on_a_gpu(torch: Any, rng: np.random.Generator) -> None:
    a = rng.integers(-9, 10, (132, 128)).astype(np.float32)
    x = torch.from_numpy(a).cuda()
    for _ in range(200):
        for how in ("sync", "halves"):
            p, q = (torch.zeros(1024, dtype=torch.int32, device="cuda") for _ in range(2))
            neighbours(p, q, how=how)
            for got, want in zip((p, q), ranks(np.zeros(1024), 4)):
                np.testing.assert_array_equal(got.cpu().numpy(), want)
        y = torch.full_like(x, float("nan"))
        to_the_first(x, y, wait=True)
        np.testing.assert_array_equal(y.cpu().numpy(), halves(a))
