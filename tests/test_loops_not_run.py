"""Loops of 0, 1 and 2 iterations between threads that exchange data: the barrier that a loop holds
orders nothing where the loop does not run."""

from typing import Any

import numpy as np
import pytest
from form_help import GPUS, tile_func

import tilec
import tilec.language as T
from tilec.ir.core import Block, Func, walk
from tilec.ir.ops import Barrier, For, While
from tilec.passes import run_plan
from tilec.tune.plans import plans

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, N = T.dynamic("M, N")
WIDTH = 128
Rows, Steps = T.Tensor((M, WIDTH), "float32"), T.Tensor((N, WIDTH), "float32")


@tilec.kernel
def serial(A: Rows, X: Steps, C: Rows, D: Rows):
    with T.Kernel(M, threads=128) as bx:
        s = T.alloc_shared((128,), "float32")
        T.copy(A[bx, 0], s)
        for _ in T.serial(N):
            for i in T.Parallel(128):
                D[bx, i] = s[127 - i]
        for i in T.Parallel(128):
            C[bx, i] = s[127 - i]


@tilec.kernel
def with_range(A: Rows, X: Steps, C: Rows, D: Rows):
    with T.Kernel(M, threads=64) as bx:
        s = T.alloc_shared((128,), "float32")
        for i in T.Parallel(128):
            s[i] = A[bx, i]
        for _ in range(2 * N, N, -1):
            for i in T.Parallel(128):
                D[bx, i] = s[127 - i]
        for i in T.Parallel(128):
            C[bx, i] = s[127 - i]


@tilec.kernel
def pipelined(A: Rows, X: Steps, C: Rows, D: Rows):
    with T.Kernel(M, threads=128) as bx:
        s, x = T.alloc_shared((128,), "float32"), T.alloc_shared((1, 128), "float32")
        total = T.alloc_fragment((128,), "float32")
        T.clear(total)
        T.copy(A[bx, 0], s)
        for k in T.Pipelined(N, num_stages=2):
            T.copy(X[k, 0], x)
            for i in T.Parallel(128):
                total[i] += x[0, 127 - i] * s[127 - i]
        for i in T.Parallel(128):
            C[bx, i] = s[127 - i] + 0 * total[i]


@tilec.kernel
def persistent(A: Rows, X: Steps, C: Rows, D: Rows):
    with T.Kernel(1, threads=128) as block:
        s, x = T.alloc_shared((128,), "float32"), T.alloc_shared((1, 128), "float32")
        total = T.alloc_fragment((128,), "float32")
        T.clear(total)
        T.copy(A[0, 0], s)
        for tile in T.Persistent([N], 1, block):
            for k in T.Pipelined(N, num_stages=3):
                T.copy(X[k, 0], x)
                for i in T.Parallel(128):
                    total[i] += x[0, 127 - i] * s[127 - i] + tile
        for i in T.Parallel(128):
            C[0, i] = s[127 - i] + 0 * total[i]


@tilec.kernel
def nested(A: Rows, X: Steps, C: Rows, D: Rows):
    """The loop outside runs, the one inside does not."""
    with T.Kernel(M, threads=128) as bx:
        s = T.alloc_shared((128,), "float32")
        T.copy(A[bx, 0], s)
        for k in T.serial(2):
            for _ in T.serial(k * N):
                for i in T.Parallel(128):
                    D[bx, i] = s[127 - i]
        for i in T.Parallel(128):
            C[bx, i] = s[127 - i]


@tilec.kernel
def with_while(A: Rows, X: Steps, C: Rows, D: Rows):
    with T.Kernel(M, threads=128) as bx:
        s = T.alloc_shared((128,), "float32")
        k = 0
        T.copy(A[bx, 0], s)
        while k < N:
            for i in T.Parallel(128):
                D[bx, i] = s[127 - i]
            k += 1
        for i in T.Parallel(128):
            C[bx, i] = s[127 - i]


@tilec.kernel
def with_if(A: Rows, X: Steps, C: Rows, D: Rows):
    with T.Kernel(M, threads=128) as bx:
        s = T.alloc_shared((128,), "float32")
        T.copy(A[bx, 0], s)
        if N > 0:
            for i in T.Parallel(128):
                D[bx, i] = s[127 - i]
        for i in T.Parallel(128):
            C[bx, i] = s[127 - i]


@tilec.kernel
def through_global(A: Rows, X: Steps, C: Rows, D: Rows):
    """What the loop overwrites has been read by other threads before it."""
    with T.Kernel(M, threads=128) as bx:
        s = T.alloc_shared((128,), "float32")
        T.copy(A[bx, 0], s)
        for _ in T.serial(N):
            for i in T.Parallel(128):
                D[bx, i] = s[127 - i]
        for i in T.Parallel(128):
            C[bx, 127 - i] = s[i]
        for _ in T.serial(N):
            for i in T.Parallel(128):
                D[bx, 127 - i] = C[bx, i]
        for i in T.Parallel(128):
            C[bx, i] = C[bx, i] + 0


KERNELS: tuple[Any, ...] = (
    serial, with_range, pipelined, persistent, nested, with_while, with_if, through_global,
)  # fmt: skip
NAMES = [k.__name__ for k in KERNELS]


def arrays(trips: int, rows: int = 1) -> dict[str, np.ndarray]:
    a = np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH)
    return {"A": a, "X": np.ones((trips, WIDTH), np.float32), "C": 0 * a, "D": 0 * a}


@pytest.mark.covering(2)
@pytest.mark.parametrize("target", GPUS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=NAMES)
@pytest.mark.parametrize("trips", [0, 1, 2])
def test_no_race_however_often_the_loop_runs(kernel: Any, target: Any, trips: int) -> None:
    held = arrays(trips)
    report = tilec.simulate(kernel, **held, target=str(target))
    assert not report.findings, str(report)
    np.testing.assert_array_equal(held["C"], held["A"][:, ::-1])


def barriers(kernel: Any, target: Any) -> tuple[int, int]:
    """Barriers of the threads that compute: before the user's loop, the last one, and from there
    on."""
    func = tile_func(kernel.function, arrays(2))
    kept: dict[str, Func] = {}
    plan = next(p for p in plans(func, target) if not p.specialise)
    run_plan(func, target, plan, kept.__setitem__)
    ops = kept["insert_sync"].body.ops
    last = max(i for i, o in enumerate(ops) if isinstance(o, (For, While)))
    front = sum(isinstance(o, Barrier) for o in ops[:last])
    return front, sum(isinstance(o, Barrier) for o in walk(Block((), ops[last:])))


@tilec.kernel
def surely(A: Rows, X: Steps, C: Rows, D: Rows):
    with T.Kernel(M, threads=128) as bx:
        s = T.alloc_shared((128,), "float32")
        T.copy(A[bx, 0], s)
        for _ in T.serial(3):
            for i in T.Parallel(128):
                D[bx, i] = s[127 - i]
        for i in T.Parallel(128):
            C[bx, i] = s[127 - i]


@pytest.mark.parametrize("target", GPUS, ids=str)
@pytest.mark.parametrize("kernel", [serial, surely], ids=lambda k: k.name)
def test_one_barrier_before_a_loop_that_may_not_run(kernel: Any, target: Any) -> None:
    """What only reads, in the loop and behind it, needs the barrier once, wherever it runs."""
    assert barriers(kernel, target) == (1, 0)


@tilec.kernel
def tiles_of_columns(A, C: T.Tensor((4, 8), "float32")):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    with T.Kernel(2, threads=128) as block:
        for tile in T.Persistent([T.ceildiv(M, 4) * T.ceildiv(N, 8)], 2, block):
            by, bx = tile // T.ceildiv(N, 8), tile % T.ceildiv(N, 8)
            for i, j in T.Parallel(4, 8):
                C[i, j] = A[by * 4 + i, bx * 8 + j]


@pytest.mark.parametrize("target", ["cpu", *GPUS], ids=str)
def test_a_walk_without_a_tile_divides_by_no_extent(target: Any) -> None:
    def run(a: np.ndarray) -> np.ndarray:
        c = np.full((4, 8), 7, np.float32)
        if target == "cpu":
            tiles_of_columns(a, c)
        else:
            report = tilec.simulate(tiles_of_columns, a, c, target=str(target))
            assert not report.findings, str(report)
        return c

    one = np.arange(32, dtype=np.float32).reshape(4, 8)
    np.testing.assert_array_equal(run(one), one)
    assert (run(one[:, :0]) == 7).all()
