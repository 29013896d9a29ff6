"""Atomics of few elements, at indices that are read: a block collects them in shared memory."""

from typing import Any

import numpy as np
import pytest
from simulated import run

import tilec
import tilec.language as T

pytestmark = [pytest.mark.usefixtures("unassembled"), pytest.mark.turns]

M, N, K = T.dynamic("M, N, K")
Ints = T.Tensor((1024,), "int32")
GPUS = ("cuda:sm_90a", "cuda:sm_80", "hip:gfx942")


@tilec.kernel
def histogram(X: T.Tensor((N,), "float32"), H: T.Tensor((64,), "int32")):
    with T.Kernel(T.ceildiv(N, 1024), threads=128) as b:
        for i in T.Parallel(1024):
            if b * 1024 + i < N:
                bin_ = T.cast(T.floor(X[b * 1024 + i] * 64), "int32")
                T.atomic_add(H[T.clamp(bin_, 0, 63)], 1)


@tilec.kernel
def weights(I: T.Tensor((N,), "int64"), W: T.Tensor((N,), "float32"),  # noqa: E741
            S: T.Tensor((K,), "float32"), C: T.Tensor((K, 2), "uint32")):  # fmt: skip
    for i in T.Parallel(N):
        T.atomic_add(S[I[i]], W[i])
        T.atomic_add(C[I[i], 1], 3)
        T.atomic_add(C[I[i], 0], 1)


@tilec.kernel
def extremes(
    X: T.Tensor((N,), "int32"), A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "uint32"),
    D: T.Tensor((8,), "int64"), E: T.Tensor((8,), "uint32"), Z: T.Tensor((1,), "int32"),
):  # fmt: skip
    with T.Kernel(2, threads=128) as b:
        for s in T.serial(T.ceildiv(N, 512)):
            if s % 2 == b:
                for i in T.Parallel(512):
                    if s * 512 + i < N:
                        x = X[s * 512 + i]
                        T.atomic_max(A[x & 7], x)
                        T.atomic_min(B[x & 7], T.cast(x, "uint32"))
                        T.atomic_min(D[x & 7], T.cast(x, "int64") * 3)
                        T.atomic_xor(E[x & 7], T.cast(x, "uint32"))
                        T.atomic_add(Z[0], x)


@tilec.kernel
def of_rows(X: T.Tensor((M, 1000), "uint8"), H: T.Tensor((M, 256), "int32")):
    with T.Kernel(M, threads=128) as r:
        for i in T.Parallel(1000):
            T.atomic_add(H[r, X[r, i]], 1)


@tilec.kernel
def two(X: T.Tensor((N,), "int32"), A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
    for i in T.Parallel(N):
        T.atomic_add(A[X[i]], 1)
        T.atomic_add(B[X[i]], 2)


@tilec.kernel
def asked(X: Ints, H: T.Tensor((64,), "int32"), Y: Ints):
    with T.Kernel(1, threads=128):
        for i in T.Parallel(1024):
            Y[i] = T.atomic_add(H[X[i]], 1, return_prev=True)


@tilec.kernel
def told(X: Ints, H: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=128):
        for i in T.Parallel(1024):
            T.atomic_add(H[X[i]], 1, memory_order="release")


@tilec.kernel
def read_again(X: Ints, H: T.Tensor((64,), "int32"), Y: Ints):
    with T.Kernel(1, threads=128):
        for i in T.Parallel(1024):
            T.atomic_add(H[X[i]], 1)
            Y[i] = H[i % 64]


@tilec.kernel
def many(X: Ints, H: T.Tensor((4096,), "int32")):
    with T.Kernel(1, threads=128):
        for i in T.Parallel(1024):
            T.atomic_add(H[X[i]], 1)


@tilec.kernel
def bytes_(X: Ints, H: T.Tensor((64,), "int8")):
    with T.Kernel(1, threads=128):
        for i in T.Parallel(1024):
            T.atomic_add(H[X[i]], 1)


@tilec.kernel
def side_by_side(X: Ints, H: T.Tensor((8, 128), "float32")):
    with T.Kernel(8, threads=128) as b:
        for i, j in T.Parallel(8, 128):
            T.atomic_add(H[X[b * 128 + i], j], 1.0)


def stage(kernel: Any, arrays: list[np.ndarray], target: str) -> str:
    return str(kernel.compile(*arrays, target=target).stages["collect_atomics"])


@pytest.mark.parametrize("n", [0, 1, 3001])
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_a_histogram(target: str, n: int, rng: np.random.Generator) -> None:
    x = (rng.random(n) * 1.2 - 0.1).astype(np.float32)
    arrays = [x, np.full(64, 5, np.int32)]
    run(histogram, target, *arrays)
    want = 5 + np.bincount(np.clip(np.floor(x * 64).astype(int), 0, 63), minlength=64)
    np.testing.assert_array_equal(arrays[1], want)


@pytest.mark.covering(1)
@pytest.mark.parametrize("n, k", [(0, 3), (1, 0), (1, 1), (3001, 0), (3001, 37), (3001, 9000)])
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_as_many_elements_as_there_are(
    target: str, n: int, k: int, rng: np.random.Generator
) -> None:
    """More than a block has room for among them; indices out of bounds do nothing."""
    index, w = rng.integers(-3, k + 3, n), rng.standard_normal(n).astype(np.float32)
    index[:2] = (2**40, -(2**40))[:n]
    arrays = [index, w, np.ones(k, np.float32), np.ones((k, 2), np.uint32)]
    run(weights, target, *arrays)
    inside = (index >= 0) & (index < k)
    counts = np.bincount(index[inside], minlength=k)
    sums = np.bincount(index[inside], w[inside].astype(float), minlength=k)
    np.testing.assert_allclose(arrays[2], 1 + sums, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(arrays[3], 1 + np.stack([counts, 3 * counts], 1))
    if target != "cpu":
        assert "compare.le %K, %c" in stage(weights, arrays, target)


@pytest.mark.covering(1)
@pytest.mark.parametrize("n", [0, 1, 2000])
@pytest.mark.parametrize("target", [*GPUS, "cpu"])
def test_other_kinds_over_a_loop(target: str, n: int, rng: np.random.Generator) -> None:
    x = rng.integers(-(2**31), 2**31, n).astype(np.int32)
    a, b = np.full(8, -5, np.int32), np.full(8, 1 << 31, np.uint32)
    d, e, z = np.full(8, 10, np.int64), np.full(8, 3, np.uint32), np.zeros(1, np.int32)
    want = [v.copy() for v in (a, b, d, e)]
    u, thrice = x.view(np.uint32), x.astype(np.int64) * 3
    folds = ((np.maximum, x), (np.minimum, u), (np.minimum, thrice), (np.bitwise_xor, u))
    for at, (f, v) in enumerate(folds):
        f.at(want[at], x & 7, v)
    arrays = [x, a, b, d, e, z]
    run(extremes, target, *arrays)
    for got, expected in zip((a, b, d, e), want):
        np.testing.assert_array_equal(got, expected)
    assert z[0] == x.sum(dtype=np.int32)
    if target != "cpu":
        text = stage(extremes, arrays, target)
        assert text.count("alloc shared") == 4 and "reduce %Z" in text  # one place needs no memory
        assert text.index("alloc shared") < text.index("for")  # once for the whole loop


@pytest.mark.parametrize("target", GPUS)
def test_a_row_of_a_tensor_is_a_block_s(target: str, rng: np.random.Generator) -> None:
    x, h = rng.integers(0, 256, (3, 1000)).astype(np.uint8), np.zeros((3, 256), np.int32)
    run(of_rows, target, x, h)
    np.testing.assert_array_equal(h, [np.bincount(row, minlength=256) for row in x])
    assert "alloc shared<256xi32>" in stage(of_rows, [x, h], target)


def test_one_request_for_neighbours() -> None:
    """A thread has every 128th element of a block's, so that a warp's are side by side."""
    arrays = [np.zeros(4096, np.float32), np.zeros(64, np.int32)]
    made = histogram.compile(*arrays, target="cuda:sm_90a").stages
    assert made["ptx"].count("atom.shared.add") >= 8
    assert made["ptx"].count("atom.global.add") == 1  # 64 elements, 128 threads


@pytest.mark.parametrize("kernel", [asked, told, read_again, many, bytes_, side_by_side])
def test_what_others_may_see_stays(kernel: Any) -> None:
    x, h = np.zeros(1024, np.int32), np.zeros(64, np.int32)
    given = {
        "many": [x, np.zeros(4096, np.int32)],
        "bytes_": [x, np.zeros(64, np.int8)],
        "side_by_side": [x, np.zeros((8, 128), np.float32)],
        "told": [x, h],
    }.get(kernel.name, [x, h, x.copy()])
    assert "alloc shared" not in stage(kernel, given, "cuda:sm_90a")


def test_arrays_that_share_memory(rng: np.random.Generator) -> None:
    x, h = rng.integers(0, 64, 3000).astype(np.int32), np.zeros(64, np.int32)
    run(two, "cuda:sm_90a", x, h, h)
    np.testing.assert_array_equal(h, 3 * np.bincount(x, minlength=64))
