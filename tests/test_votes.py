"""Votes of warps and blocks, and the extents of blocks and grids."""

import numpy as np
import pytest
from simulated import run_compiled

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942")
COUNTS = (32, 16, 96, 100, 1)


@tilec.kernel
def warps(A: T.Tensor((128,), "int32"), B: T.Tensor((8, 128), "int64"), threads: T.constexpr):
    with T.Kernel(1, threads=threads):
        tx = T.get_thread_binding(0)
        x = A[tx]
        B[0, tx] = T.any_sync(x > 2)
        B[1, tx] = T.all_sync(x > 0)
        B[2, tx] = T.cast(T.ballot_sync(x > 1), "int64")
        B[3, tx] = T.cast(T.ballot(x), "int64")
        B[4, tx] = T.cast(T.activemask(), "int64")
        B[5, tx] = T.any_sync(x > 2, 0xF)
        B[6, tx] = T.all_sync(x < 2, mask=0x6)
        B[7, tx] = T.warp_reduce_min(x)


@tilec.kernel
def matches(A: T.Tensor((128,), "int32"), B: T.Tensor((3, 128), "uint32"), threads: T.constexpr):
    with T.Kernel(1, threads=threads):
        tx = T.get_thread_binding(0)
        B[0, tx] = T.match_any_sync(A[tx])
        B[1, tx] = T.match_all_sync(A[tx])
        B[2, tx] = T.match_all_sync(A[tx] * 0)


@tilec.kernel
def blocks(A: T.Tensor((128,), "int32"), B: T.Tensor((5, 128), "int32"), threads: T.constexpr):
    with T.Kernel(1, threads=threads):
        tx = T.get_thread_binding(0)
        B[0, tx] = T.syncthreads_count(A[tx] > 1)
        B[1, tx] = T.syncthreads_and(A[tx] > 0)
        B[2, tx] = T.syncthreads_or(A[tx] > 3)
        B[3, tx] = T.syncthreads_count(tx % 2 == 0)
        if T.shuffle_elect():
            B[4, 0] = 7


@tilec.kernel
def extents(B: T.Tensor((7,), "int32")):
    with T.Kernel(3, 2, threads=(8, 4)) as (bx, by):
        if bx + by == 0 and T.get_thread_binding(0) + T.get_thread_binding(1) == 0:
            x, y, z = T.get_thread_extents()
            B[0] = x
            B[1] = y
            B[2] = z
            B[3] = T.get_thread_extent(1)
            gx, gy, gz = T.get_block_extents()
            B[4] = gx * 10 + gy
            B[5] = gz
            B[6] = T.get_block_extent(0)


def lanes(values, lane, chosen):
    return sum(1 << k for k in range(len(values)) if chosen(values[k]))


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", COUNTS)
def test_votes_of_a_warp(target, threads):
    size = 64 if "hip" in target else 32
    a = np.random.default_rng(threads).integers(0, 4, 128).astype("int32")
    b = np.full((8, 128), -7, "int64")
    run_compiled(warps, target, a, b, threads=threads)
    assert (b[:, threads:] == -7).all()
    for first in range(0, threads, size):
        warp = a[first : min(first + size, threads)]
        wanted = [
            (warp > 2).any(),
            (warp > 0).all(),
            lanes(warp, 0, lambda x: x > 1),
            lanes(warp, 0, lambda x: x != 0),
            (1 << len(warp)) - 1,
            (warp[:4] > 2).any(),
            (warp[1:3] < 2).all(),
            warp.min(),
        ]
        for row, expected in zip(b[:, first : first + len(warp)], wanted):
            np.testing.assert_array_equal(row, np.array(expected).astype(np.uint64).astype("int64"))


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS[:3])
@pytest.mark.parametrize("threads", COUNTS)
def test_matches(target, threads):
    a = np.random.default_rng(threads).integers(0, 3, 128).astype("int32")
    b = np.full((3, 128), 99, "uint32")
    run_compiled(matches, target, a, b, threads=threads)
    for first in range(0, threads, 32):
        warp = a[first : min(first + 32, threads)]
        there = (1 << len(warp)) - 1
        for k, x in enumerate(warp):
            assert b[0, first + k] == lanes(warp, 0, lambda y, x=x: y == x)
            assert b[1, first + k] == (there if (warp == x).all() else 0)
            assert b[2, first + k] == there


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", COUNTS)
def test_votes_of_a_block(target, threads):
    a = np.random.default_rng(threads).integers(0, 4, 128).astype("int32")
    b = np.full((5, 128), -7, "int32")
    run_compiled(blocks, target, a, b, threads=threads)
    own = a[:threads]
    wanted = [(own > 1).sum(), (own > 0).all(), (own > 3).any(), -(-threads // 2)]
    for row, expected in zip(b, wanted):
        assert (row[:threads] == int(expected)).all() and (row[threads:] == -7).all()
    assert b[4, 0] == 7


@pytest.mark.parametrize("target", TARGETS)
def test_extents(target):
    b = np.zeros(7, "int32")
    run_compiled(extents, target, b)
    assert b.tolist() == [8, 4, 1, 4, 32, 1, 3]


WRONG = {
    "float predicate": ("T.any_sync(0.5)", "predicate of T.any_sync is"),
    "a mask, as CUDA has it": (
        "T.ballot_sync(0xFFFFFFFF, T.int32(1))",
        "0xffffffff, a mask of all",
    ),
    "a mask of some": ("T.any_sync(15, T.int32(1) > 0)", "mask of T.any_sync is .*, not an int"),
    "a mask to match": ("T.match_any_sync(0xFFFFFFFF, T.int32(1))", "value of T.match_any_sync is"),
    "a mask to shuffle": ("T.shfl_down(0xFFFFFFFF, T.int32(1), 16)", "a mask of all lanes"),
    "unknown number of threads": ("T.get_thread_extent(0)", "left to tilec"),
    "no such dimension": ("T.get_block_extent(3)", "dim of T.get_block_extent is"),
}


@pytest.mark.parametrize("call, says", WRONG.values(), ids=WRONG)
def test_wrong_calls(call, says, tmp_path):
    text = f"""
import tilec, tilec.language as T
@tilec.kernel
def wrong(B: T.Tensor((7,), "int32")):
    with T.Kernel(1):
        B[0] = {call}
"""
    file = tmp_path / "wrong.py"
    file.write_text(text)
    names: dict = {}
    exec(compile(text, str(file), "exec"), names)
    with pytest.raises(tilec.CompileError, match=says) as caught:
        names["wrong"].compile(np.zeros(7, "int32"), target="cpu")
    assert caught.value.loc.line == 6


def test_votes_in_a_parallel_loop_are_refused():
    @tilec.kernel
    def wrong(B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                B[i] = T.any_sync(i > 3)

    with pytest.raises(tilec.CompileError, match=r"T.any_sync cannot stand in T.Parallel"):
        wrong.compile(np.zeros(64, "int32"), target="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("threads", COUNTS)
def test_on_a_gpu(threads):
    torch = pytest.importorskip("torch")
    a = np.random.default_rng(threads).integers(0, 4, 128).astype("int32")
    given = torch.from_numpy(a).cuda()
    for kernel, shape, dtype in (
        (warps, (8, 128), "int64"),
        (blocks, (5, 128), "int32"),
        (matches, (3, 128), "int32"),
    ):
        wanted = np.full(shape, 3, "uint32" if kernel is matches else dtype)
        kernel(a, wanted, threads=threads)
        kind = torch.uint32 if kernel is matches else getattr(torch, dtype)
        found = torch.full(shape, 3, dtype=kind, device="cuda")
        for _ in range(50):
            kernel(given, found, threads=threads)
            np.testing.assert_array_equal(found.cpu().numpy(), wanted)
