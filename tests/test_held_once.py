"""What several threads hold and one needs is computed by one; rows of shared memory that are walked
down are set apart as those who write them like it."""

from __future__ import annotations

import numpy as np
import pytest

import tilec
import tilec.language as T

pytestmark = pytest.mark.turns

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
M, N = T.dynamic("M, N")


@tilec.kernel
def row_sums(A: T.Tensor((M, 256), "float32"), S: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 8), threads=128) as by:
        part = T.alloc_fragment((8, 256), "float32")
        T.copy(A[by * 8, 0], part)
        rows = T.alloc_shared((8, 256), "float32")
        T.copy(part, rows)
        total = T.alloc_fragment((8,), "float32")
        T.clear(total)
        for i in T.Parallel(8):
            for j in T.serial(256):
                total[i] += rows[i, j]
        T.copy(total, S[by * 8])


@tilec.kernel
def centred(A: T.Tensor((M, 64), "float32"), C: T.Tensor((M, 64), "float32")):
    """All threads need the sums: each row's elements are several threads'."""
    with T.Kernel(T.ceildiv(M, 8), threads=128) as by:
        rows = T.alloc_shared((8, 64), "float32")
        T.copy(A[by * 8, 0], rows)
        total = T.alloc_fragment((8,), "float32")
        half = T.alloc_fragment((8,), "float32")
        tile = T.alloc_fragment((8, 64), "float32")
        T.copy(rows, tile)
        T.clear(total)
        for i in T.Parallel(8):
            for j in T.serial(64):
                total[i] += rows[i, j]
        for i in T.Parallel(8):
            half[i] = total[i] / 64
        for i, j in T.Parallel(8, 64):
            tile[i, j] -= half[i]
        T.copy(tile, C[by * 8, 0])


def whole_numbers(rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(rows)
    return rng.integers(-9, 9, (rows, columns)).astype("float32")


@pytest.mark.parametrize("target", TARGETS)
def test_one_warp_adds_what_one_thread_stores(target: str):
    a, s = whole_numbers(8, 256), np.full(8, np.nan, "float32")
    report = tilec.simulate(row_sums, a, s, target=target)
    assert report.ok, report
    np.testing.assert_array_equal(s, a.sum(1))
    (loop,) = (x for x in report.counts.lines if x.shared_read)
    assert loop.shared_requests == 256  # not as many for each warp
    assert loop.conflicts == 0
    (copied,) = (x for x in report.counts.lines if x.shared_written)
    assert copied.shared_written == 8 * 256 * 4
    assert copied.wavefronts <= 2 * copied.ideal_wavefronts


@pytest.mark.parametrize("target", TARGETS)
def test_what_all_threads_need_all_of_them_have(target: str):
    for rows in (8, 13):
        a = whole_numbers(rows, 64)
        c = np.full_like(a, np.nan)
        report = tilec.simulate(centred, a, c, target=target)
        assert report.ok, report
        np.testing.assert_array_equal(c, a - a.sum(1, keepdims=True) / 64)


@pytest.mark.parametrize(
    "dtype, rows, skip", [("float32", 32, 1), ("float32", 8, 4), ("float16", 8, 8)]
)
def test_rows_that_are_walked_down_are_apart(dtype: str, rows: int, skip: int):
    @tilec.kernel
    def turned(A: T.Tensor((M, N), dtype), C: T.Tensor((N, M), dtype)):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, rows), threads=64) as (bx, by):
            tile = T.alloc_shared((rows, 64), dtype)
            T.copy(A[by * rows, bx * 64], tile)
            for i, j in T.Parallel(64, rows):
                C[bx * 64 + i, by * rows + j] = tile[j, i]

    specs = tilec.spec((256, 256), dtype), tilec.spec((256, 256), dtype)
    text = turned.compile(*specs, target="cuda:sm_90a").stages["infer_layouts"]
    assert f"padded({rows}x64, 64, {skip})" in text
    a = np.arange(50 * 70, dtype=dtype).reshape(50, 70)
    c = np.zeros((70, 50), dtype)
    assert tilec.simulate(turned, a, c, target="cuda:sm_90a").ok
    np.testing.assert_array_equal(c, a.T)
