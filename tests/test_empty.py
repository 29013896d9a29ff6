"""Arrays without elements: a sum over nothing is zero, and a grid without blocks is no launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from array_kinds import KINDS
from simulated import run

import tilec
import tilec.language as T
from tilec.ir.errors import LaunchError

pytestmark = pytest.mark.turns

M, N, K = T.dynamic("M, N, K")


@tilec.kernel
def biased_product(
    A: T.Tensor((M, K), "float32"),
    B: T.Tensor((K, N), "float32"),
    bias: T.Tensor((N,), "float32"),
    C: T.Tensor((M, N), "float32"),
):
    with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 16), threads=64) as (bx, by):
        A_s = T.alloc_shared((16, 8), "float32")
        B_s = T.alloc_shared((8, 16), "float32")
        acc = T.alloc_fragment((16, 16), "float32")
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(K, 8), num_stages=2):
            T.copy(A[by * 16, k * 8], A_s)
            T.copy(B[k * 8, bx * 16], B_s)
            T.gemm(A_s, B_s, acc)
        for i, j in T.Parallel(16, 16):
            C[by * 16 + i, bx * 16 + j] = acc[i, j] + bias[bx * 16 + j]


@tilec.kernel
def doubled(A):
    rows, columns = T.const("rows, columns")
    A: T.Tensor((rows, columns), "float32")
    C = T.empty((rows, columns), "float32")
    with T.Kernel(T.ceildiv(rows, 8), threads=32) as b:
        for i, j in T.Parallel(8, 16):
            C[b * 8 + i, j] = A[b * 8 + i, j] * 2.0
    return C


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(20, 30, 0), (0, 30, 10), (20, 0, 10), (0, 0, 0), (20, 30, 10), (20, 30, 0), (1, 1, 1)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_products(kind: Any, m: int, n: int, k: int, rng: np.random.Generator) -> None:
    a, b, bias = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n), (n,)))
    c = np.full((m, n), np.nan, np.float32)
    want = a @ b + bias
    for _ in range(3):  # anew, then twice by what was remembered
        c[...] = np.nan
        biased_product(*map(kind, (a, b, bias, c)))
        np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 3, 0])
def test_allocated_outputs(rows: int, rng: np.random.Generator) -> None:
    a = rng.standard_normal((rows, 16)).astype(np.float32)
    for _ in range(3):
        c = doubled(a)
        assert c.shape == (rows, 16)
        np.testing.assert_array_equal(c, 2 * a)


def test_a_variant_ahead_of_time(rng: np.random.Generator) -> None:
    shapes = ((20, 0), (0, 30), (30,), (20, 30))
    made = biased_product.compile(*(tilec.spec(s, "float32") for s in shapes), target="cpu")
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    made(*arrays)
    np.testing.assert_array_equal(arrays[3], np.broadcast_to(arrays[2], (20, 30)))


def test_no_blocks_for_whole_arrays() -> None:
    a, b, bias = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32), np.ones(4, np.float32)

    @tilec.kernel
    def by_launch(A: T.Tensor((M, N), "float32")):
        b = T.program_id(0)
        A[b, 0] = 1.0

    for grid in (0, (0, 4), (2, 0), lambda meta: 0):
        by_launch[grid](a)
        report = tilec.simulate(by_launch, a, grid=grid, target="cuda:sm_80")
        assert report.ok and report.launched == 0
    np.testing.assert_array_equal(a, 1.0)
    with pytest.raises(LaunchError, match="has -1 blocks in y"):
        by_launch[0, -1](a)
    biased_product(a, b, bias, np.empty((4, 4), np.float32))


@tilec.kernel
def first_of_all(A: T.Tensor((N, N), "float32"), C: T.Tensor((N, N), "float32"), rows: T.int32):
    for i, j in T.Parallel(rows, N // 2):
        s = 0.0
        for k in range(N - 2):
            s += A[i, k]
        C[i, j] = s + 1


@tilec.kernel
def first_half_in_blocks(A: T.Tensor((N, N), "float32"), C: T.Tensor((N, N), "float32")):
    with T.Kernel(N // 2, threads=32) as b:
        C[b, 0] = A[b, 0]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "cuda:sm_80", "hip:gfx942"])
def test_loops_over_nothing(target: str) -> None:
    """Of a grid that tilec makes, or of the author's."""
    for n, rows in ((7, 7), (1, 1), (7, 0), (7, -3), (2, 2), (1, 1), (7, 3), (7, 0)):
        a = np.ones((n, n), np.float32)
        c, want = np.zeros_like(a), np.zeros_like(a)
        want[: max(0, rows), : n // 2] = 1 + max(0, n - 2)
        run(first_of_all, target, a, c, rows)
        np.testing.assert_array_equal(c, want)
    for n in (1, 2, 1):
        c = np.zeros((n, n), np.float32)
        run(first_half_in_blocks, target, np.ones((n, n), np.float32), c)
        assert c.sum() == n // 2


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90a", "hip:gfx942"])
def test_loops_over_nothing_of_fixed_sizes(target: str) -> None:
    @tilec.kernel
    def halves(A, C):
        n = T.const("n")
        A: T.Tensor((n,), "float32")
        C: T.Tensor((n,), "float32")
        for i, j in T.Parallel(2, n // 2):
            C[i * (n // 2) + j] = A[j] + 1

    for n in (8, 1, 8, 1):
        c, want = np.zeros(n, np.float32), np.full(n, 2.0 if n > 1 else 0.0, np.float32)
        run(halves, target, np.ones(n, np.float32), c)
        np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("rest", [0, 3])
@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80", "hip:gfx942"])
def test_a_parallel_loop_over_what_is_left(target: str, rest: int) -> None:
    """As of a tile's columns that no vector holds: there may be none."""

    @tilec.kernel
    def filled(Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                Y[i] = 1
            for i, j in T.Parallel(rest, 2):
                Y[8 + i * 2 + j] = 2

    y = np.zeros(16, np.float32)
    if target == "cpu":
        filled(y)
    else:
        report = tilec.simulate(filled, y, target=target)
        assert report.ok, report
    assert [*y] == [1] * 8 + [2] * (2 * rest) + [0] * (8 - 2 * rest)


def test_a_parallel_loop_of_less_than_nothing() -> None:
    @tilec.kernel
    def filled(Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(-1):
                Y[i] = 1

    with pytest.raises(tilec.CompileError, match="an extent of T.Parallel is -1, the least is 0"):
        filled.compile(tilec.spec((3,), "float32"), target="cpu")


@tilec.kernel
def product(
    A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")
) -> None:
    for i, j in T.Parallel(M, N):
        acc = 0.0
        for k in range(K):
            acc += A[i, k] * B[k, j]
        C[i, j] = acc


@pytest.mark.parametrize("target", ["cuda:sm_90a", "hip:gfx942"])
@pytest.mark.parametrize("m, n, k", [(0, 3, 5), (5, 0, 4), (0, 0, 0)])
def test_tiles_for_no_blocks_fit(m: int, n: int, k: int, target: str) -> None:
    """All tiles take no time there: the largest would be as good as any, and fits no machine."""
    a, b, c = (np.ones(s, np.float32) for s in ((m, k), (k, n), (m, n)))
    assert product.compile(a, b, c, target=target).resources.shared_bytes <= 32768
    assert tilec.simulate(product, a, b, c, target=target).launched == 0
