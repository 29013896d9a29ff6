"""T.tma_copy for each warp, and of one tile for several blocks of a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilec
import tilec.language as T
from tilec.ir.errors import CompileError

TARGET = "cuda:sm_90a"
M, K, N = T.dynamic("M, K, N")


@tilec.kernel
def rows(A: T.Tensor((M, K), "float32"), B: T.Tensor((M,), "float32"), wait: T.constexpr = True):
    """The sum of each row, a warp's: its lanes take what the warp's copy has brought."""
    with T.Kernel(T.ceildiv(M, 4), threads=128) as b:
        warp, lane = T.get_warp_idx(32), T.get_lane_idx(32)
        row = b * 4 + warp
        tile = T.alloc_shared((4, 96), "float32")
        bars = T.alloc_barrier([32] * 4)
        T.tma_copy(A[row, 0:96], tile[warp, 0:96], barrier=bars[warp], leader_scope_threads=32)
        T.mbarrier_arrive(bars[warp])
        if wait:
            T.mbarrier_wait_parity(bars[warp], 0)
        total = T.alloc_var("float32", 0.0)
        for step in T.serial(3):
            total = total + tile[warp, (lane * 3 + step + 7) % 96]
        total = T.warp_reduce_sum(total)
        if (lane == 0) & (row < M):
            B[row] = total


@pytest.mark.parametrize("shape", [(8, 96), (5, 100), (1, 1), (7, 95)])
def test_each_warp_has_a_tile(shape: tuple[int, int], rng: np.random.Generator) -> None:
    a, b = rng.standard_normal(shape).astype(np.float32), np.zeros(shape[0], np.float32)
    report = tilec.simulate(rows, a, b, target=TARGET)
    assert report.ok, report
    want = a[:, :96].astype(np.float64).sum(axis=1)
    np.testing.assert_allclose(b, want, rtol=1e-5, atol=1e-5)


def test_lanes_that_copy_have_met(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((4, 96)).astype(np.float32), np.zeros(4, np.float32)
    report = tilec.simulate(rows, a, b, wait=False, target=TARGET)
    np.testing.assert_allclose(b, a.sum(axis=1), rtol=1e-4, atol=1e-4)
    assert report.ok, report


@tilec.kernel
def shared_tiles(A: T.Tensor((N, 16, 32), "float32"), B: T.Tensor((4, N, 16, 32), "float32")):
    """Every block of a cluster is given each of N tiles, in a ring of two."""
    with T.Kernel(4, threads=128, cluster_dims=2) as b:
        tile = T.alloc_shared((2, 16, 32), "float32")
        bars = T.alloc_barrier([128] * 2)
        for k in T.serial(N):
            T.tma_copy(A[k, :, :], tile[k % 2, :, :], barrier=bars[k % 2], cluster_mask=0b11)
            T.mbarrier_arrive(bars[k % 2])
            T.mbarrier_wait_parity(bars[k % 2], k // 2 % 2)
            T.copy(tile[k % 2, :, :], B[b, k, :, :])


@pytest.mark.parametrize("n", [1, 5])
def test_blocks_are_given_one_tile(n: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal((n, 16, 32)).astype(np.float32)
    b = np.zeros((4, n, 16, 32), np.float32)
    report = tilec.simulate(shared_tiles, a, b, target=TARGET)
    assert report.ok, report
    np.testing.assert_array_equal(b, np.broadcast_to(a, b.shape))


def test_one_block_starts_the_copy() -> None:
    """When all have come; the blocks begin and end together."""
    specs = tilec.spec((5, 16, 32), "float32"), tilec.spec((4, 5, 16, 32), "float32")
    ptx = shared_tiles.compile(*specs, target=TARGET).stages["ptx"]
    assert ptx.count("multicast::cluster") == ptx.count("cp.async.bulk.tensor.3d.shared") == 1
    assert ptx.count("barrier.cluster.wait") == 2
    only = of_the_first.compile(
        *(tilec.spec((64, 64), "float32") for _ in range(2)), mask=0b101, target=TARGET
    )
    assert only.stages["ptx"].count("cp.async.bulk.tensor.2d.shared") == 2
    own = of_the_first.compile(
        *(tilec.spec((64, 64), "float32") for _ in range(2)), mask=0b100, target=TARGET
    )
    assert "multicast" not in own.stages["ptx"]


@tilec.kernel
def apart(A: T.Tensor((N, 16, 32), "float32"), B: T.Tensor((2, N, 16, 32), "float32")):
    """A group of each block brings tiles for both, as far ahead as there is room; another group
    takes them out. Two copies count on one barrier."""
    with T.Kernel(2, threads=256, cluster_dims=2) as b:
        tile = T.alloc_shared((3, 2, 8, 32), "float32")
        full, free = T.alloc_barrier([128] * 3), T.alloc_barrier([128] * 3)
        for k in T.serial(N):
            with T.ws(1):
                T.barrier_wait(free[k % 3], k // 3 + 1)
                for half in T.serial(2):
                    T.tma_copy(
                        A[k, half * 8 : half * 8 + 8, :],
                        tile[k % 3, half, :, :],
                        barrier=full[k % 3],
                        cluster_mask=0b11,
                    )
                T.barrier_arrive(full[k % 3])
            with T.ws(0):
                T.barrier_wait(full[k % 3], k // 3)
                for half, i, j in T.Parallel(2, 8, 32):
                    B[b, k, half * 8 + i, j] = tile[k % 3, half, i, j]
                T.barrier_arrive(free[k % 3])


@pytest.mark.parametrize("n", [1, 2, 11])
def test_groups_share_tiles(n: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal((n, 16, 32)).astype(np.float32)
    b = np.zeros((2, n, 16, 32), np.float32)
    report = tilec.simulate(apart, a, b, target=TARGET, schedules=4)
    assert report.ok, report
    np.testing.assert_array_equal(b, np.broadcast_to(a, b.shape))


@pytest.mark.gpu
def test_tiles_for_several_blocks_on_a_gpu(torch: Any) -> None:
    for step in range(200):
        n = 1 + step % 37
        a = (torch.arange(n * 512, device="cuda").float() + step).reshape(n, 16, 32)
        b, c = (torch.zeros((m, n, 16, 32), device="cuda") for m in (2, 4))
        apart(a, b)
        shared_tiles(a, c)
        assert torch.equal(b, a.expand_as(b)) and torch.equal(c, a.expand_as(c))


@tilec.kernel
def of_the_first(
    A: T.Tensor((64, N), "float32"), B: T.Tensor((64, N), "float32"), mask: T.constexpr
):
    """Blocks in a cluster of 2x2; those of the mask are given what the first of them names."""
    with T.Kernel(2, 4, threads=64, cluster_dims=(2, 2)) as (x, y):
        tile = T.alloc_shared((16, 32), "float32")
        bar = T.alloc_barrier(64)
        T.tma_copy(A[y * 16, x * 32], tile, barrier=bar, cluster_mask=mask)
        T.mbarrier_arrive(bar)
        T.mbarrier_wait_parity(bar, 0)
        T.copy(tile, B[y * 16, x * 32])


@pytest.mark.parametrize("mask", [0b1, 0b1010, 0b1100, 0b1111, 0b1000])
@pytest.mark.parametrize("columns", [64, 60])
def test_blocks_are_given_the_tile_of_the_first(
    mask: int, columns: int, rng: np.random.Generator
) -> None:
    a = rng.standard_normal((64, columns)).astype(np.float32)
    b = np.zeros_like(a)
    report = tilec.simulate(of_the_first, a, b, mask=mask, target=TARGET)
    assert report.ok, report
    np.testing.assert_array_equal(b, given(a, mask, 2))


def given(a: np.ndarray, mask: int, across: int) -> np.ndarray:
    """What each block of 16x32 has of `a`, in clusters of `across` x 2 blocks."""
    wide = np.zeros((a.shape[0], across * 32), a.dtype)
    wide[:, : a.shape[1]] = a
    want = wide.copy()
    first = (mask & -mask).bit_length() - 1
    for y in range(a.shape[0] // 16):
        for x in range(across):
            if mask >> (x + across * (y % 2)) & 1:
                fy, fx = y - y % 2 + first // across, first % across
                tile = wide[fy * 16 : fy * 16 + 16, fx * 32 : fx * 32 + 32]
                want[y * 16 : y * 16 + 16, x * 32 : x * 32 + 32] = tile
    return want[:, : a.shape[1]]


def test_a_place_that_one_block_alone_knows() -> None:
    @tilec.kernel
    def kernel(I: T.Tensor((4,), "int32"), A: T.Tensor((64, 32), "float32")):
        with T.Kernel(4, threads=128, cluster_dims=2) as b:
            tile = T.alloc_shared((16, 32), "float32")
            bar = T.alloc_barrier(128)
            T.tma_copy(A[I[b], 0], tile, barrier=bar, cluster_mask=3)

    message = "and no other block can compute where this one begins"
    with pytest.raises(CompileError, match=message) as e:
        kernel.compile(*(tilec.spec(*s) for s in (((4,), "int32"), ((64, 32), "float32"))), target=TARGET)  # fmt: skip  # noqa: E501
    assert e.value.loc.line == kernel_line("cluster_mask=3)")


def kernel_line(text: str) -> int:
    return next(n for n, line in enumerate(open(__file__), 1) if text in line)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"leader_scope_threads": 64}, "leader_scope_threads of T.tma_copy is 64: a copy is that"),
        ({"cluster_mask": 0}, "cluster_mask of T.tma_copy is 0"),
        ({"cluster_mask": 0b101}, "is 0b101; a cluster has 2 blocks"),
    ],
)
def test_errors(keywords: dict[str, Any], message: str) -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64, 32), "float32")):
        with T.Kernel(4, threads=128, cluster_dims=2) as b:
            tile = T.alloc_shared((16, 32), "float32")
            bar = T.alloc_barrier(128)
            T.tma_copy(A[b * 16, 0], tile, barrier=bar, **keywords)

    with pytest.raises(CompileError, match=message):
        kernel.compile(tilec.spec((64, 32), "float32"), target=TARGET)


@pytest.mark.parametrize(("how", "extents"), [("rows", "4x64"), ("columns", "64x8")])
def test_parts_that_no_box_fills(how: str, extents: str) -> None:
    """Where its places are computed, a part begins at multiples of its extents."""

    @tilec.kernel
    def kernel(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            tile, bar = T.alloc_shared((64, 64), "float16"), T.alloc_barrier(128)
            for n in T.serial(2):
                if how == "rows":
                    T.tma_copy(A[0, 0], tile[n * 4 + 1 : n * 4 + 5, :], barrier=bar)
                else:
                    T.tma_copy(A[0, 0], tile[0:64, n * 8 + 4 : n * 8 + 12], barrier=bar)
                T.barrier_arrive(bar)
                T.barrier_wait(bar, n)
            T.copy(tile, B)

    with pytest.raises(CompileError, match=f"TMA cannot fill this {extents} part of tile") as found:
        kernel.compile(*[tilec.spec((64, 64), "float16")] * 2, target=TARGET)
    assert "T.tma_copy(" in str(found.value)


@tilec.kernel
def stages(A: T.Tensor((M, 128), "float16"), B: T.Tensor((M, 128), "float16")):
    """Halves change places, each in a stage of one buffer."""
    with T.Kernel(T.ceildiv(M, 32), threads=128) as b:
        tiles = T.alloc_shared((2, 32, 64), "float16")
        bars = T.alloc_barrier([128] * 2)
        for n in T.serial(2):
            T.tma_copy(A[b * 32, n * 64], tiles[n, :, :], barrier=bars[n])
            T.barrier_arrive(bars[n])
        for n in T.serial(2):
            T.barrier_wait(bars[n], 0)
            T.tma_copy(tiles[n, :, :], B[b * 32, (1 - n) * 64])


@pytest.mark.parametrize("rows", [1, 32, 70])
def test_a_stage_leaves_by_tma(rows: int, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((rows, 128)).astype(np.float16), np.zeros((rows, 128), np.float16)
    made = stages.compile(a, b, target=TARGET)
    assert "cp.async.bulk.tensor.2d.global.shared::cta" in made.stages["ptx"]
    assert "st.global" not in made.stages["ptx"]
    report = tilec.simulate(stages, a, b, target=TARGET, schedules=2)
    assert report.ok, report
    np.testing.assert_array_equal(b, np.roll(a, 64, 1))
