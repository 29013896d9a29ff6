"""Shuffles and meetings of a warp under conditions, and in loops, that are the warp's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from form_help import tile_func
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.core import Block, Op, walk
from tilec.ir.ops import For, If, Shuffle, ShuffleXor, WarpSync, While
from tilec.passes.mask_warps import mask_warps
from tilec.target import find_target

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

TARGETS = ["cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"]
M, N, K, R = T.dynamic("M, N, K, R")


@tilec.kernel
def rows(
    first: T.Tensor((M,), "int32"),
    columns: T.Tensor((K,), "int32"),
    values: T.Tensor((K,), "float32"),
    x: T.Tensor((N,), "float32"),
    y: T.Tensor((R,), "float32"),
    threads: T.constexpr,
):
    """A sparse matrix by a vector: a warp for each row."""
    with T.Kernel(T.ceildiv(R, 3), threads=threads) as block:
        warp, lane = T.get_warp_idx(), T.get_lane_idx()
        row = block * 3 + warp
        if warp < 3 and row < R:
            total = T.alloc_var("float32", 0.0)
            for k in T.serial(T.ceildiv(first[row + 1] - first[row], 32)):
                at = first[row] + k * 32 + lane
                if lane < 32 and at < first[row + 1]:
                    total += values[at] * x[columns[at]]
            whole = T.warp_reduce_sum(total)
            if lane == 0:
                y[row] = whole


def sparse(rng: np.random.Generator, count: int = 17) -> tuple[list[np.ndarray], np.ndarray]:
    first = np.concatenate([[0], np.cumsum(rng.integers(0, 90, count))]).astype(np.int32)
    columns = rng.integers(0, 50, first[-1]).astype(np.int32)
    values, x = (rng.integers(-3, 4, n).astype(np.float32) for n in (first[-1], 50))
    products = values * x[columns]
    want = [products[a:b].sum() for a, b in zip(first, first[1:])]
    return [first, columns, values, x], np.array(want, np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [256, 200])
def test_a_warp_for_each_row(target: str, threads: int, rng: np.random.Generator) -> None:
    given, want = sparse(rng)
    y = np.full(len(want), 7, np.float32)
    run(rows, target, *given, y, threads=threads)
    np.testing.assert_array_equal(y, want)


@tilec.kernel
def loops(A: T.Tensor((M, N), "int32"), trips: T.Tensor((M,), "int32"), B: T.Tensor((M, N), "int32")):  # fmt: skip  # noqa: E501
    """Warps leave their loops at times of their own; what lanes exchange is carried."""
    with T.Kernel(1, threads=256):
        warp, lane = T.get_warp_idx(), T.get_lane_idx()
        for row in T.serial(warp, M, 2):
            if warp < 2:
                x, n = T.alloc_var("int32"), T.alloc_var("int32", 0)
                x = A[row, lane % N]
                for k in T.serial(trips[row]):
                    x = x * 3 + T.shfl_xor(x, 1) + k
                while T.any_sync(x > 1000):
                    n += 1
                    x = x // 2 + T.shfl_down(x, 1) % 2
                if trips[row] % 2 == 0:
                    x += T.shfl_sync(x, 3)
                else:
                    T.sync_warp()
                    x -= n
                if lane < N:
                    B[row, lane] = x


def looped(a: np.ndarray, trips: np.ndarray, lanes: int) -> np.ndarray:
    x = np.resize(a.T, (lanes, len(a))).T.astype(np.int64)
    x = np.stack([np.resize(row, lanes) for row in a]).astype(np.int64)
    lane = np.arange(lanes)
    down = np.where(lane % 32 == 31, lane, lane + 1)
    for row, count in zip(x, trips):
        for k in range(count):
            row[:] = row * 3 + row[lane ^ 1] + k
        n = 0
        while (row > 1000).any():
            row[:] = row // 2 + row[down] % 2
            n += 1
        row[:] = row + row[lane // 32 * 32 + 3] if count % 2 == 0 else row - n
    return x[:, : a.shape[1]]


@pytest.mark.turns("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
@pytest.mark.parametrize("target", TARGETS)
def test_loops_that_warps_leave_by_themselves(target: str, rng: np.random.Generator) -> None:
    a, trips = rng.integers(0, 50, (7, 16)).astype(np.int32), np.arange(7, dtype=np.int32) % 5
    b = np.zeros_like(a)
    run(loops, target, a, trips, b)
    lanes = 64 if target.startswith("hip") else 32
    np.testing.assert_array_equal(b, looped(a, trips, lanes))


@tilec.kernel
def sums(A: T.Tensor((M, N), "int32"), B: T.Tensor((M,), "int32")):
    """All warps walk over rows alike, and over those of their own alike, where they have one."""
    with T.Kernel(1, threads=256):
        warp, lane = T.get_warp_idx(), T.get_lane_idx()
        for first in T.serial(0, M, 4):
            row = first + warp
            if warp < 4 and row < M:
                total = T.alloc_var("int32", 0)
                for k in T.serial(T.ceildiv(N, 32)):
                    x = T.alloc_var("int32", 0)
                    if lane < 32 and k * 32 + lane < N:
                        x = A[row, k * 32 + lane]
                    total += T.warp_reduce_sum(x)
                if lane == 0:
                    B[row] = total


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(7, 70), (4, 32), (1, 1), (5, 0)])
def test_loops_that_all_warps_do_alike(
    shape: tuple[int, int], target: str, rng: np.random.Generator
) -> None:
    a, b = rng.integers(-9, 9, shape).astype(np.int32), np.full(shape[0], 7, np.int32)
    run(sums, target, a, b)
    np.testing.assert_array_equal(b, a.sum(1))


@pytest.mark.gpu
def test_on_a_gpu(torch: Any, rng: np.random.Generator) -> None:
    given, want = sparse(rng, 500)
    a, trips = rng.integers(0, 50, (7, 16)).astype(np.int32), np.arange(7, dtype=np.int32) % 5
    on_gpu = [torch.from_numpy(x).cuda() for x in (*given, a, trips)]
    for _ in range(50):
        y = torch.full((500,), float("nan"), device="cuda")
        rows(*on_gpu[:4], y, threads=256)
        np.testing.assert_array_equal(y.cpu().numpy(), want)
        b = torch.zeros((7, 16), dtype=torch.int32, device="cuda")
        loops(*on_gpu[4:], b)
        np.testing.assert_array_equal(b.cpu().numpy(), looped(a, trips, 32))


def together(block: Block, around: type[Op]) -> int:
    """How many exchanges of a warp stand in ops of a class."""
    ops = [x for o in walk(block) if isinstance(o, around) for r in o.regions for x in walk(r)]
    return len({id(x) for x in ops if isinstance(x, Shuffle | ShuffleXor | WarpSync)})


def test_exchanges_on_the_cpu_are_under_no_condition(rng: np.random.Generator) -> None:
    given, want = sparse(rng)
    names = dict(zip(("first", "columns", "values", "x", "y"), (*given, want)))
    func = tile_func(rows.function, names, threads=256)
    assert together(func.body, If) == 5
    masked = mask_warps(func, find_target("cpu"))
    assert together(masked.body, If) == 0
    assert sum(isinstance(o, ShuffleXor) for o in walk(masked.body)) == 5
    a, trips = np.zeros((7, 16), np.int32), np.zeros(7, np.int32)
    func = tile_func(loops.function, {"A": a, "trips": trips, "B": a})
    assert together(func.body, If) > 5 and together(func.body, For) > 5
    masked = mask_warps(func, find_target("cpu"))
    assert together(masked.body, If) == together(masked.body, For) == 0
    assert sum(isinstance(o, While) for o in walk(masked.body)) == 3
    func = tile_func(sums.function, {"A": np.zeros((7, 70), np.int32), "B": trips})
    masked = mask_warps(func, find_target("cpu"))
    assert together(func.body, If) == 5 and together(masked.body, If) == 0
    assert sum(isinstance(o, For) for o in walk(masked.body)) == 1  # which all warps do alike


CONDITIONS = {
    "lane": "T.get_lane_idx() < 5",
    "thread": "T.get_thread_binding(0) < 40",
    "parity": "T.get_thread_binding(0) % 2 == 0",
    "half a warp": "T.get_thread_binding(0) // 16 == 1",
    "data": "A[T.get_thread_binding(0)] > 0",
}


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=list(CONDITIONS))
def test_conditions_that_part_a_warp(condition: str, tmp_path: Any) -> None:
    source = (
        "import tilec, tilec.language as T\n@tilec.kernel\n"
        'def k(A: T.Tensor((128,), "int32")):\n    with T.Kernel(1, threads=128):\n'
        f"        x = A[T.get_thread_binding(0)]\n        if {condition}:\n"
        "            A[T.get_thread_binding(0)] = T.shfl_xor(x, 1)\n"
    )
    path = tmp_path / "k.py"
    path.write_text(source)
    scope: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), scope)
    for target in ("cuda:sm_90a", "hip:gfx942"):
        with pytest.raises(tilec.CompileError) as e:
            scope["k"].compile(np.zeros(128, np.int32), target=target)
        assert "a shuffle needs every thread of its scope" in str(e.value)
        assert e.value.loc.line == 7 and "T.get_warp_idx()" in e.value.hint


@tilec.kernel
def whole_block(X: T.Tensor((N,), "float32"), Y: T.Tensor((1,), "float32"), taken: T.Tensor((1,), "int32"), lanes: T.constexpr):  # fmt: skip  # noqa: E501
    """The first warp reads the places of the warps that there are, and of no others; blocks add
    their sums under a lock."""
    with T.Kernel(3, threads=192) as block:
        parts = T.alloc_shared((64,), "float32")
        tx, lane, warp = T.get_thread_binding(0), T.get_lane_idx(), T.get_warp_idx()
        warps = T.ceildiv(192, lanes)
        total = T.alloc_var("float32", 0.0)
        for i in T.serial(block * 192 + tx, N, 3 * 192):
            total += X[i]
        mine = T.warp_reduce_sum(total)
        if lane == 0:
            parts[warp] = mine
        T.sync_threads()
        if warp == 0:
            whole = T.warp_reduce_sum(parts[lane] if lane < warps else 0.0)
            if lane == 0:
                while T.atomic_exchange(taken[0], 1, "acquire", return_prev=True) != 0:
                    T.evaluate(0)
                Y[0] += whole
                T.atomic_exchange(taken[0], 0, "release")


@pytest.mark.turns("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
@pytest.mark.parametrize("target", TARGETS)
def test_places_that_nobody_wrote_are_not_read(target: str, rng: np.random.Generator) -> None:
    x, y, taken = rng.integers(-9, 10, 1001).astype(np.float32), np.zeros(1), np.zeros(1, np.int32)
    y = y.astype(np.float32)
    run(whole_block, target, x, y, taken, lanes=64 if target.startswith("hip") else 32)
    assert y[0] == x.sum() and taken[0] == 0


def test_tile_words_of_some_threads_are_named_on_the_cpu() -> None:
    @tilec.kernel
    def kernel(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((64, 64), "float16")
            if T.get_thread_binding(0) < 128:
                T.copy(A, a)

    with pytest.raises(tilec.CompileError, match="tile words under a condition") as e:
        kernel.compile(np.zeros((64, 64), np.float16), target="cpu")
    assert "< 128" in e.value.loc.source_line() and "out of the condition" in e.value.hint
